"""Requests of a process to catalog, store, Kafka and Kubernetes, which fail as the story says.

A fault waits at a call of a process, and happens at its next passage: before or after the effect of the call, or
instead of it.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any, TypeVar

from firn.model.conditions import Reason
from firn.model.errors import FirnError, UnavailableError
from tests.fakes.faults import Killed
from tests.fakes.lake.java import JavaError, error
from tests.simulation.product.threads import Clock, Process, Scheduler

T = TypeVar("T")
LOST, UNANSWERED, LATE, TWICE, SLOW = "lost", "unanswered", "late", "twice", "slow"
REFUSED, EXPIRED, TIMED_OUT, FULL = "409", "401", "419", "disk full"
KILL_BEFORE, KILL_AFTER = "kill before", "kill after"
SYSTEMS = {"tables": "catalog", "topics": "kafka"}
"""Port of the operator -> the system behind it."""
PAUSE_SECONDS = 0.05
"""Longest time of a usual request."""
UNKNOWN_SECONDS = 8.0
"""Longest time after which a late request takes effect."""


@dataclass
class Fault:
    """A fault of the next passage but ``skip`` of a call. ``seconds`` is a delay."""

    call: str
    kind: str
    skip: int = 0
    seconds: float = 1.0


class Outages:
    """Systems that answer no process until a time."""

    def __init__(self) -> None:
        self.until: dict[str, float] = {}

    def holds(self, call: str, now: float) -> bool:
        """Return whether the system behind a call is gone."""
        port = call.partition(".")[0]
        return now < self.until.get(SYSTEMS.get(port, port), 0.0)


class Host(Process):
    """A process whose requests may fail."""

    def __init__(
        self, name: str, scheduler: Scheduler, chance: Random, outages: Outages, happened: Counter[str]
    ) -> None:
        super().__init__(name)
        self.scheduler = scheduler
        self.clock = Clock(scheduler)
        self.armed: list[Fault] = []
        self.troubled_at = 0.0
        """When the last fault of this process happened."""
        self.calls = 0
        self._chance = chance
        self._outages = outages
        self._happened = happened

    def now_ms(self) -> int:
        """Implement `Gateway.now_ms`."""
        return int(self.clock.time() * 1000)

    def request(self, name: str, effect: Callable[[], T]) -> T:
        """Implement `Gateway.request`."""
        fault = self._begin(name)
        self.scheduler.sleep(self._delay(fault))
        if self._outages.holds(name, self.scheduler.now):
            raise failure(name, LOST)
        if fault in (LOST, REFUSED, EXPIRED, TIMED_OUT, FULL, LATE):
            if fault == LATE:
                self._later(effect)
            raise failure(name, fault)
        result = effect()
        if fault == TWICE:
            self._later(effect)
        if fault == KILL_AFTER:
            self.kill()
        self.scheduler.sleep(self._delay(""))
        if fault == UNANSWERED:
            raise failure(name, UNANSWERED)
        return result

    async def ask(self, name: str, effect: Callable[[], Awaitable[T]]) -> T:
        """Make a request of asynchronous code, as `request` does."""
        fault = self._begin(name)
        await asyncio.sleep(self._delay(fault))
        gone = self._outages.holds(name, self.scheduler.now)
        if gone and name.startswith("cluster."):
            self.troubled_at = max(self.troubled_at, self.scheduler.now)
        if gone or fault in (LOST, LATE, REFUSED, EXPIRED, TIMED_OUT, FULL):
            raise failure(name, LOST, java=False)
        result = await effect()
        if fault == KILL_AFTER:
            self.kill()
        if fault == UNANSWERED:
            raise failure(name, UNANSWERED, java=False)
        return result

    def kill(self) -> None:
        """End the process here. Raises Killed in its own threads."""
        self.dead = True
        self.troubled_at = self.scheduler.now
        if self.scheduler.current.process is self:
            raise Killed(self.name)

    def _begin(self, name: str) -> str:
        if self.dead:
            raise Killed(self.name)
        self.calls += 1
        for fault in self.armed:
            if name == fault.call:
                if fault.skip:
                    fault.skip -= 1
                    continue
                self.armed.remove(fault)
                self._happened[f"{fault.kind} {name}"] += 1
                self.troubled_at = max(self.troubled_at, self.scheduler.now)
                if fault.kind == KILL_BEFORE:
                    self.kill()
                self._seconds = fault.seconds
                return fault.kind
        return ""

    def _delay(self, fault: str) -> float:
        if fault == SLOW:
            self.troubled_at = self.scheduler.now + self._seconds
            return self._seconds
        return self._chance.random() ** 3 * PAUSE_SECONDS

    def _later(self, effect: Callable[[], Any]) -> None:
        seconds = self._seconds

        def work() -> None:
            self.scheduler.sleep(seconds)
            with suppress(JavaError, FirnError):
                effect()

        # The request is on its way: the death of the process does not stop it.
        self.scheduler.spawn(self.scheduler.world, work)


class Port:
    """A port of the operator, as one process reaches it."""

    def __init__(self, name: str, inner: Any, host: Host) -> None:
        self._name = name
        self._inner = inner
        self._host = host

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*values: Any, **named: Any) -> Any:
            return await self._host.ask(f"{self._name}.{name}", lambda: getattr(self._inner, name)(*values, **named))

        self.__dict__[name] = call
        return call


def failure(call: str, fault: str, *, java: bool = True) -> Exception:
    """Return the exception that the client of a call raises."""
    system = call.partition(".")[0]
    if not java or system == "kafka":
        if system in ("kafka", "topics"):
            return UnavailableError(
                f"profile classic (kafka:9092), {call}: timed out", reason=Reason.BROKER_UNREACHABLE
            )
        return UnavailableError(f"table lake.demo.flights: {call}: timed out", reason=Reason.CATALOG_UNREACHABLE)
    match fault:
        case "409":
            return error("CommitFailedException", "409: the metadata has changed")
        case "401":
            return error("NotAuthorizedException", "401: the token is not valid")
        case "419":
            return error("RESTException", "Unable to process: 419 authentication timeout")
        case "disk full":
            return error("java.io.IOException", "No space left on device")
        case "unanswered" if system == "catalog":
            return error("CommitStateUnknownException", "500: internal server error")
        case _:
            return error("org.apache.iceberg.jdbc.UncheckedSQLException", "the connection was closed")
