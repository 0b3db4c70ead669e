"""The work queue: keys in, reconciles out. A key names the object to reconcile, and carries no event.

`KeySchedule` holds the rules and does no I/O. A key waits once however often it is added, is reconciled by one worker
at a time, and is reconciled again if it was added during a reconcile. It waits in one of five lanes, which share the
workers (`Lane`). Failures back off exponentially with jitter until the first success. `WorkQueue` runs the schedule on
asyncio with a limited number of workers.
"""

import asyncio
import contextlib
import heapq
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, Protocol

from firn.model.clock import Clock
from firn.model.errors import CommitConflictError, NotReadyError, UnavailableError

log = logging.getLogger(__name__)

Key = tuple[str, ...]
ReconcileVerdict = Literal["ok", "retry", "error"]

FIRST_DELAY = 1.0
"""Seconds before the first retry after a failure; doubled each time."""
LONGEST_DELAY = 300.0
LONGEST_SHARED_DELAY = 15.0
"""Seconds after which a shared key is retried at the latest. The conditions of many topics follow its recovery."""
DEADLINE = 120.0
"""Seconds after which a reconcile is cancelled and counted as failed."""


class Lane(IntEnum):
    """The reason why a key waits. A lower number is more urgent."""

    NEWS = 0
    """A driver reports something new, or the next step of a creation is possible. Such reconciles are short, and users
    wait for their result."""
    EDIT = 1
    """A user changed an object that the operator knows."""
    CHANGE = 2
    """A user created or deleted the object, perhaps thousands at once, or changed another object that claims the same topic or table."""
    DEPENDENCY = 3
    """A dependency that many objects share has changed."""
    ROUTINE = 4
    """A resync or a retry."""


SHARES = {Lane.NEWS: 12, Lane.EDIT: 6, Lane.CHANGE: 4, Lane.DEPENDENCY: 2, Lane.ROUTINE: 1}
"""Starts of each lane among 25, while keys wait in all of them. So many keys in one lane delay the other lanes only a little."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Instruction of a reconcile to the queue.

    The key is reconciled again ``after`` seconds at the latest, and then waits in ``lane``. ``failed``: it backs off
    instead, by up to ``longest`` seconds.
    """

    after: float | None = None
    failed: bool = False
    longest: float = LONGEST_DELAY
    lane: Lane = Lane.ROUTINE


class ReconcileMeter(Protocol):
    """Port for metrics about the queue."""

    def depth(self, waiting: int) -> None:
        """Report the number of keys that wait for a worker."""
        ...

    def reconciled(self, key: Key, seconds: float, verdict: ReconcileVerdict) -> None:
        """Report a reconcile that ended. ``retry``: it asked to back off; ``error``: it raised an exception."""
        ...


class NoReconcileMeter:
    """Meter that reports nothing."""

    def depth(self, waiting: int) -> None:
        """Report nothing."""

    def reconciled(self, key: Key, seconds: float, verdict: ReconcileVerdict) -> None:
        """Report nothing."""


class KeySchedule:
    """Decides which key is next, without I/O. ``jitter`` returns numbers in [0, 1).

    Keys of the kinds ``shared`` always wait in `Lane.NEWS`, and back off for less time: they are few, and many other keys
    depend on them.
    """

    def __init__(self, clock: Clock, jitter: Callable[[], float], shared: frozenset[str] = frozenset()) -> None:
        self._clock = clock
        self._jitter = jitter
        self._shared = shared
        self._lanes: dict[Lane, dict[Key, float]] = {lane: {} for lane in Lane}  # since when, in order
        self._credit = dict.fromkeys(Lane, 0)
        self._working: set[Key] = set()
        self._again: dict[Key, Lane] = {}  # added while being worked on
        self._due: dict[Key, tuple[float, Lane]] = {}
        self._heap: list[tuple[float, Key]] = []  # entries that `_due` does not confirm are stale
        self._failures: dict[Key, int] = {}

    def add(self, key: Key, lane: Lane = Lane.CHANGE) -> None:
        """Add a key. A key that waits in a less urgent lane moves to the end of this one."""
        if key[0] in self._shared:
            lane = Lane.NEWS
        if key in self._working:
            self._again[key] = min(lane, self._again.get(key, lane))
            return
        present = self._lane_of(key)
        if present is None:
            self._lanes[lane][key] = self._clock.monotonic()
        elif lane < present:
            self._lanes[lane][key] = self._lanes[present].pop(key)

    def add_after(self, key: Key, seconds: float, lane: Lane = Lane.ROUTINE) -> None:
        """Add a key after ``seconds``, or earlier if an earlier time was set."""
        due = self._clock.monotonic() + seconds
        if key not in self._due or due < self._due[key][0]:
            self._due[key] = (due, lane)
            heapq.heappush(self._heap, (due, key))

    def release(self) -> None:
        """Add the keys whose delay is over."""
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if key in self._due and self._due[key][0] == due:
                self.add(key, self._due.pop(key)[1])

    def start_next(self) -> Key | None:
        """Return the next key to work on, or None. The caller calls `done` when it has finished."""
        lane = self._next_lane()
        if lane is None:
            return None
        key = next(iter(self._lanes[lane]))
        del self._lanes[lane][key]
        self._due.pop(key, None)
        self._working.add(key)
        return key

    def done(self, key: Key, outcome: Outcome) -> None:
        """Note that a key has been worked on, and schedule it again."""
        self._working.discard(key)
        if outcome.failed:
            failures = self._failures.get(key, 0) + 1
            self._failures[key] = failures
            longest = min(outcome.longest, LONGEST_SHARED_DELAY) if key[0] in self._shared else outcome.longest
            self.add_after(key, self.delay(failures, longest), outcome.lane)
        else:
            self._failures.pop(key, None)
            if outcome.after is not None:
                self.add_after(key, outcome.after, outcome.lane)
        if key in self._again:
            self.add(key, self._again.pop(key))

    def _lane_of(self, key: Key) -> Lane | None:
        return next((lane for lane, keys in self._lanes.items() if key in keys), None)

    def _next_lane(self) -> Lane | None:
        """Return the next lane, by smooth weighted round-robin over the lanes with waiting keys.

        Each of these lanes gains its share. The lane with the most credit is next, and loses the sum of these shares.
        """
        waiting = [lane for lane, keys in self._lanes.items() if keys]
        for lane in Lane:
            self._credit[lane] = self._credit[lane] + SHARES[lane] if lane in waiting else 0
        if not waiting:
            return None
        chosen = max(waiting, key=lambda lane: (self._credit[lane], -lane))
        self._credit[chosen] -= sum(SHARES[lane] for lane in waiting)
        return chosen

    def delay(self, failures: int, longest: float = LONGEST_DELAY) -> float:
        """Return the seconds to wait after so many failures in a row, half of them random."""
        full: float = min(longest, FIRST_DELAY * 2 ** min(failures - 1, 30))
        return full * (0.5 + 0.5 * self._jitter())

    @property
    def depth(self) -> int:
        """Number of keys that wait for a worker."""
        return sum(map(len, self._lanes.values()))

    @property
    def working(self) -> int:
        """Number of keys that workers reconcile now."""
        return len(self._working)

    @property
    def oldest(self) -> float | None:
        """Time since which the first key of a lane waits (monotonic seconds)."""
        return min((next(iter(keys.values())) for keys in self._lanes.values() if keys), default=None)

    @property
    def next_due(self) -> float | None:
        """Monotonic time at which `release` has something to do at the earliest."""
        while self._heap and self._due.get(self._heap[0][1], (None,))[0] != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class WorkQueue:
    """A `KeySchedule` with workers. Use it from one event loop."""

    def __init__(
        self,
        clock: Clock,
        jitter: Callable[[], float],
        meter: ReconcileMeter | None = None,
        shared: frozenset[str] = frozenset(),
    ) -> None:
        self._clock = clock
        self.schedule = KeySchedule(clock, jitter, shared)
        self._meter = meter or NoReconcileMeter()
        self._changed = asyncio.Event()
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_progress = clock.monotonic()

    def add(self, key: Key, lane: Lane = Lane.CHANGE) -> None:
        """Add a key, and wake a worker."""
        self.schedule.add(key, lane)
        self._changed.set()

    def add_after(self, key: Key, seconds: float, lane: Lane = Lane.ROUTINE) -> None:
        """Add a key after ``seconds``."""
        self.schedule.add_after(key, seconds, lane)
        self._changed.set()

    def stop(self) -> None:
        """Start no more keys. `run` returns when the active ones have finished."""
        self._stopping = True
        self._changed.set()

    @property
    def depth(self) -> int:
        """Number of keys that wait for a worker."""
        return self.schedule.depth

    @property
    def stuck_seconds(self) -> float:
        """Seconds without progress although there was work, for the liveness probe. 0 without work."""
        if not self.schedule.depth and not self.schedule.working:
            return 0.0
        waited_since = self.schedule.oldest
        reference = self._last_progress if waited_since is None else max(self._last_progress, waited_since)
        return max(0.0, self._clock.monotonic() - reference)

    async def run(
        self,
        reconcile: Callable[[Key], Awaitable[Outcome]],
        workers: int,
        grace: float = 20.0,
        deadline: float = DEADLINE,
        retry_lane: Callable[[Key], Lane] = lambda _: Lane.ROUTINE,
    ) -> None:
        """Work until `stop`. Active reconciles then have ``grace`` seconds before they are cancelled.

        A key whose reconcile raises an exception or times out waits in its ``retry_lane``.
        """
        while not self._stopping:
            self.schedule.release()
            while len(self._tasks) < workers and (key := self.schedule.start_next()) is not None:
                if not self._tasks:
                    self._last_progress = self._clock.monotonic()
                task = asyncio.create_task(self._work(key, reconcile, deadline, retry_lane))
                self._tasks.add(task)
                task.add_done_callback(self._ended)
            self._meter.depth(self.schedule.depth)
            self._changed.clear()
            due = self.schedule.next_due
            pause = None if due is None else max(0.0, due - self._clock.monotonic())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), pause)
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=grace)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _work(
        self,
        key: Key,
        reconcile: Callable[[Key], Awaitable[Outcome]],
        deadline: float,
        retry_lane: Callable[[Key], Lane],
    ) -> None:
        started = self._clock.monotonic()
        outcome: Outcome | None = None
        verdict: ReconcileVerdict = "error"
        try:
            async with asyncio.timeout(deadline):
                outcome = await reconcile(key)
            verdict = "retry" if outcome.failed else "ok"
        except TimeoutError:
            log.error("reconcile of %s timed out after %s s", key, deadline)
        except (CommitConflictError, NotReadyError, UnavailableError) as error:
            # Another writer was faster, or a system does not answer: nothing is wrong with the operator.
            verdict = "retry"
            log.warning("reconcile of %s failed and is retried: %s", key, error)
        except Exception:
            log.exception("reconcile of %s failed", key)
        finally:
            self.schedule.done(key, outcome or Outcome(failed=True, lane=retry_lane(key)))
            self._last_progress = self._clock.monotonic()
            self._meter.reconciled(key, self._last_progress - started, verdict)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()
