"""Threads in virtual time: one thread runs at a time, and time advances when all of them wait.

Threads change places only when they sleep or wait, so that a seed always tells the same story. A killed process
gets `Killed` at the next place where one of its threads would run.
"""

import asyncio
import heapq
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from random import Random
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import patch

from tests.fakes.faults import Killed
from tests.gen import NOW

BEGIN = 1000.0
"""Monotonic seconds at the start of a story."""

TICK = 0.001
"""Shortest time that an event loop waits."""
MOST_TURNS = 100
"""Turns of an event loop after which it waits in any case."""


class Process:
    """A process: its threads die together, may stand still, and share a wall clock that is wrong by ``skew`` seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.frozen_until = 0.0
        self.skew = 0.0


class Thread:
    """A thread of a story."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.baton = threading.Lock()
        self.baton.acquire()
        self.turn = 0
        """Number of the wake-up that counts. Earlier ones are outdated."""


class _Worker:
    """A thread of the operating system, which runs one thread of a story after the other."""

    idle: ClassVar["deque[_Worker]"] = deque()

    def __init__(self) -> None:
        self.start = threading.Semaphore(0)
        self.work: Callable[[], None] = lambda: None
        threading.Thread(target=self._run, name="simulated", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.start.acquire()
            self.work()


class Scheduler:
    """Decides which thread runs. Create it in the thread that tells the story."""

    def __init__(self) -> None:
        self.now = 0.0
        self.errors: list[BaseException] = []
        self.world = Process("world")
        self.current = Thread(self.world)
        self._main = self.current
        self._queue: list[tuple[float, int, int, Thread]] = []
        self._count = 0
        self._threads: dict[Thread, None] = {}

    def spawn(self, process: Process, work: Callable[[], None]) -> None:
        """Start a thread of a process."""
        thread = Thread(process)
        self._threads[thread] = None
        worker = _Worker.idle.pop() if _Worker.idle else _Worker()

        def run() -> None:
            thread.baton.acquire()
            try:
                self._check(thread)
                work()
            except Killed:
                pass
            except BaseException as error:
                self.errors.append(error)
            del self._threads[thread]
            _Worker.idle.append(worker)
            self._hand_over(self._next())

        worker.work = run
        worker.start.release()
        self.wake(thread, self.now)

    def wake(self, thread: Thread, at: float) -> None:
        """Let a thread run at this time."""
        self._count += 1
        heapq.heappush(self._queue, (at, self._count, thread.turn, thread))

    def pause(self) -> None:
        """Let other threads run until a wake-up of this one. Raises Killed if its process died."""
        me = self.current
        following = self._next()
        if following is not me:
            self._hand_over(following)
            me.baton.acquire()
        self._check(me)

    def sleep(self, seconds: float) -> None:
        """Let other threads run for this time. Raises Killed if the process died."""
        self.wake(self.current, self.now + max(0.0, seconds))
        self.pause()

    def end(self) -> None:
        """Kill every process, and wait until all threads ended."""
        while self._threads:
            for thread in self._threads:
                thread.process.dead = True
                self.wake(thread, self.now)
            self.sleep(0.0)

    def _check(self, me: Thread) -> None:
        process = me.process
        while not process.dead and process.frozen_until > self.now:
            self.wake(me, process.frozen_until)
            following = self._next()
            if following is not me:
                self._hand_over(following)
                me.baton.acquire()
        if process.dead and me is not self._main:
            raise Killed(process.name)

    def _next(self) -> Thread:
        while self._queue:
            at, _, turn, thread = heapq.heappop(self._queue)
            if turn == thread.turn and (thread is self._main or thread in self._threads):
                thread.turn += 1
                self.now = max(self.now, at)
                return thread
        raise AssertionError("no thread can ever run again")

    def _hand_over(self, thread: Thread) -> None:
        self.current = thread
        thread.baton.release()


class Event:
    """`threading.Event` in virtual time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._flag = False
        self._waiting: list[Thread] = []

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        for thread in self._waiting:
            self._scheduler.wake(thread, self._scheduler.now)
        self._waiting = []

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler
        if not self._flag:
            me = scheduler.current
            self._waiting.append(me)
            if timeout is not None:
                scheduler.wake(me, scheduler.now + timeout)
            scheduler.pause()
            if me in self._waiting:
                self._waiting.remove(me)
        return self._flag


class Lock:
    """`threading.Lock` in virtual time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False

    def __enter__(self) -> None:
        while self._held:
            self._scheduler.sleep(0.01)
        self._held = True

    def __exit__(self, *_: object) -> None:
        self._held = False


class Pool:
    """`concurrent.futures.ThreadPoolExecutor` in virtual time, without a limit of threads."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def submit(self, work: Callable[..., Any], *values: Any) -> Any:
        done = Event(self._scheduler)

        def run() -> None:
            work(*values)
            done.set()

        self._scheduler.spawn(self._scheduler.current.process, run)
        return SimpleNamespace(result=done.wait)

    def shutdown(self, wait: bool = True) -> None:
        """Do nothing: a thread ends with its work."""


class Clock:
    """The time as `firn.model.clock.Clock` and as the module ``time``, for the process of the running thread."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.sleep = scheduler.sleep

    def monotonic(self) -> float:
        return BEGIN + self._scheduler.now

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self._scheduler.now + self._scheduler.current.process.skew)

    def time(self) -> float:
        return NOW.timestamp() + self._scheduler.now + self._scheduler.current.process.skew

    def thread_time(self) -> float:
        """Return 0: work takes no time here."""
        return 0.0


class AsyncLoop(asyncio.SelectorEventLoop):
    """An event loop of one thread. It waits in virtual time, and other threads wake it by ``call_soon_threadsafe``."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._woken = Event(scheduler)
        self._turns = 0
        super().__init__()
        self._selector.select = self._select  # type: ignore[attr-defined]

    def _select(self, timeout: float | None = None) -> Sequence[Any]:
        self._turns += 1
        if timeout is None or timeout > 0 or self._turns > MOST_TURNS:
            # Where rounding makes a timer early, time has to go on.
            self._turns = 0
            self._woken.wait(None if timeout is None else max(timeout, TICK))
        self._woken.clear()
        return []

    def _write_to_self(self) -> None:
        self._woken.set()

    def time(self) -> float:
        return self._scheduler.now


@contextmanager
def virtual(scheduler: Scheduler, modules: Sequence[ModuleType], chance: Random) -> Iterator[None]:
    """Replace the time, threads and random numbers that ``modules`` import."""

    def uuid4() -> Any:
        return SimpleNamespace(hex=f"{chance.getrandbits(128):032x}")

    class Spawned:
        def __init__(self, target: Callable[[], None], **_: Any) -> None:
            self._target = target

        def start(self) -> None:
            scheduler.spawn(scheduler.current.process, self._target)

        def is_alive(self) -> bool:
            return False

    replacements = {
        "time": Clock(scheduler),
        "threading": SimpleNamespace(Event=lambda: Event(scheduler), Lock=lambda: Lock(scheduler), Thread=Spawned),
        "ThreadPoolExecutor": lambda *_, **__: Pool(scheduler),
        "random": chance,
        "uuid": SimpleNamespace(uuid4=uuid4),
    }
    with ExitStack() as stack:
        for module in modules:
            for name, replacement in replacements.items():
                if hasattr(module, name):
                    stack.enter_context(patch.object(module, name, replacement))
        yield
