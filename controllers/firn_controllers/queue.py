"""The work queue: keys in, reconciles out. Level-triggered: a key says "look here", never what happened.

`KeySchedule` holds the rules and does no I/O: a key waits once however often it is added, is never worked on twice at a time, and
is looked at again when it was added meanwhile. Fresh events go before resyncs. Failures back off exponentially with jitter,
forgotten at the first success. `WorkQueue` runs it on asyncio with a bounded number of workers.
"""

import asyncio
import contextlib
import heapq
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from firn.model.clock import Clock

log = logging.getLogger(__name__)

Key = tuple[str, ...]
ReconcileVerdict = Literal["ok", "retry", "error"]

FIRST_DELAY = 1.0
"""Seconds before the first repetition after a failure; doubled each time."""
LONGEST_DELAY = 300.0
ROUTINE_SHARE = 8
"""Every so many keys, one that waits for a resync goes before the fresh ones, so that it cannot starve."""
DEADLINE = 120.0
"""Seconds that one reconcile may take before it is broken off and counted as failed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a reconcile asks of the queue: look again ``after`` seconds at the latest; ``failed``: back off instead, up to ``longest``."""

    after: float | None = None
    failed: bool = False
    longest: float = LONGEST_DELAY


class ReconcileMeter(Protocol):
    """Where the queue reports to (metrics)."""

    def depth(self, waiting: int) -> None:
        """Keys that wait for a worker."""
        ...

    def reconciled(self, key: Key, seconds: float, verdict: ReconcileVerdict) -> None:
        """A reconcile ended: ``retry`` backs off by its own word, ``error`` by an exception."""
        ...


class NoReconcileMeter:
    """Reports nowhere."""

    def depth(self, waiting: int) -> None:
        """See `ReconcileMeter.depth`."""

    def reconciled(self, key: Key, seconds: float, verdict: ReconcileVerdict) -> None:
        """See `ReconcileMeter.reconciled`."""


class KeySchedule:
    """Which key is next, without I/O. ``jitter`` gives numbers in [0, 1)."""

    def __init__(self, clock: Clock, jitter: Callable[[], float]) -> None:
        self._clock = clock
        self._jitter = jitter
        self._fresh: deque[Key] = deque()
        self._routine: deque[Key] = deque()
        self._waiting: dict[Key, float] = {}  # since when
        self._working: set[Key] = set()
        self._again: set[Key] = set()  # added while being worked on
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []  # entries that `_due` does not confirm are stale
        self._failures: dict[Key, int] = {}
        self._taken = 0

    def add(self, key: Key, *, fresh: bool = True) -> None:
        """Have ``key`` looked at; ``fresh`` ones go before the others."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting[key] = self._clock.monotonic()
            (self._fresh if fresh else self._routine).append(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Have ``key`` looked at in ``seconds``, or earlier where that was said before."""
        due = self._clock.monotonic() + seconds
        if due < self._due.get(key, float("inf")):
            self._due[key] = due
            heapq.heappush(self._heap, (due, key))

    def release(self) -> None:
        """Let the keys whose time has come wait for a worker."""
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self.add(key, fresh=False)

    def start_next(self) -> Key | None:
        """The next key to work on, or None. Pair it with `done`."""
        if not self._waiting:
            return None
        self._taken += 1
        routine_first = self._taken % ROUTINE_SHARE == 0
        line = self._routine if self._routine and (routine_first or not self._fresh) else self._fresh
        key = line.popleft()
        del self._waiting[key]
        self._due.pop(key, None)
        self._working.add(key)
        return key

    def done(self, key: Key, outcome: Outcome) -> None:
        """``key`` has been worked on."""
        self._working.discard(key)
        if outcome.failed:
            failures = self._failures.get(key, 0) + 1
            self._failures[key] = failures
            self.add_after(key, self.delay(failures, outcome.longest))
        else:
            self._failures.pop(key, None)
            if outcome.after is not None:
                self.add_after(key, outcome.after)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def delay(self, failures: int, longest: float = LONGEST_DELAY) -> float:
        """Seconds to wait after so many failures in a row, half of them by chance."""
        full: float = min(longest, FIRST_DELAY * 2 ** min(failures - 1, 30))
        return full * (0.5 + 0.5 * self._jitter())

    @property
    def depth(self) -> int:
        """Keys that wait for a worker."""
        return len(self._waiting)

    @property
    def working(self) -> int:
        """Keys that are worked on."""
        return len(self._working)

    @property
    def oldest(self) -> float | None:
        """Since when the key that waits longest has waited (monotonic seconds)."""
        heads = [self._waiting[line[0]] for line in (self._fresh, self._routine) if line]
        return min(heads, default=None)

    @property
    def next_due(self) -> float | None:
        """When `release` has something to do at the earliest (monotonic seconds)."""
        while self._heap and self._due.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class WorkQueue:
    """A `KeySchedule` with workers. Use from one event loop."""

    def __init__(self, clock: Clock, jitter: Callable[[], float], meter: ReconcileMeter | None = None) -> None:
        self._clock = clock
        self.schedule = KeySchedule(clock, jitter)
        self._meter = meter or NoReconcileMeter()
        self._changed = asyncio.Event()
        self._stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._last_progress = clock.monotonic()

    def add(self, key: Key, *, fresh: bool = True) -> None:
        """See `KeySchedule.add`."""
        self.schedule.add(key, fresh=fresh)
        self._changed.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """See `KeySchedule.add_after`."""
        self.schedule.add_after(key, seconds)
        self._changed.set()

    def stop(self) -> None:
        """Take no more keys; `run` returns when those being worked on are done."""
        self._stopping = True
        self._changed.set()

    @property
    def depth(self) -> int:
        """Keys that wait for a worker."""
        return self.schedule.depth

    @property
    def stuck_seconds(self) -> float:
        """How long nothing has moved although there was work: what a liveness probe looks at. 0 while there is none."""
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
    ) -> None:
        """Work until `stop`; then give what is being worked on ``grace`` seconds before it is cancelled."""
        while not self._stopping:
            self.schedule.release()
            while len(self._tasks) < workers and (key := self.schedule.start_next()) is not None:
                if not self._tasks:
                    self._last_progress = self._clock.monotonic()
                task = asyncio.create_task(self._work(key, reconcile, deadline))
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

    async def _work(self, key: Key, reconcile: Callable[[Key], Awaitable[Outcome]], deadline: float) -> None:
        started = self._clock.monotonic()
        outcome = Outcome(failed=True)
        verdict: ReconcileVerdict = "error"
        try:
            async with asyncio.timeout(deadline):
                outcome = await reconcile(key)
            verdict = "retry" if outcome.failed else "ok"
        except TimeoutError:
            log.error("reconcile of %s broken off after %s s", key, deadline)
        except Exception:
            log.exception("reconcile of %s failed", key)
        finally:
            self.schedule.done(key, outcome)
            self._last_progress = self._clock.monotonic()
            self._meter.reconciled(key, self._last_progress - started, verdict)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._changed.set()
