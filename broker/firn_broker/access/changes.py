"""Administrative changes in the audit log: which of them each request made, and which may have taken effect.

A request has a line with the number of its changes and the names of their resources. If there are many names, further
lines continue it. Beyond a bound, one line has the sum of all further requests of a principal with the same operation
in a minute. So every change is counted, and no client can fill the log or the memory."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import structlog

from firn.model.clock import Clock
from firn_broker.access_types import Caller, Operation, ResourceType

log = structlog.get_logger()

PERIOD_SECONDS = 60.0
LINES = 200
"""Lines of one principal in a period, without the sums of further requests. So no other principal hides its changes."""
NAMES = 1_000
"""Names that a request may have in its lines."""
NAMES_OF_SUM = 100
"""Names in the sum of further requests."""
ADDRESSES_OF_SUM = 20
NAMES_OF_LINE = 100
CHARACTERS_OF_LINE = 8_000
"""Characters of the names of a line. Container runtimes break lines of more than 16 KiB."""
CHARACTERS = 255
"""Characters of a name."""
MADE, UNKNOWN = "changed", "change with an unknown outcome"
"""Events of the log."""


@dataclass(slots=True)
class Attempt:
    """Changes that a request asks the coordinator for."""

    resources: list[tuple[ResourceType, str]]
    """Changed resources. The handler may remove those that the coordinator refused."""
    made: bool = False
    """True if the coordinator has made the changes."""


class _Sum:
    """The number of changes, and the names of their resources within a bound."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.counts: Counter[str] = Counter()
        """Changes by the type of the resource."""
        self._names: dict[str, None] = {}
        self.unnamed = 0
        """Changes whose names are beyond the bound."""

    def add(self, type: ResourceType, name: str) -> None:
        """Add a change."""
        self.counts[named(type)] += 1
        self._name(resource(type, name))

    def merge(self, other: "_Sum") -> None:
        """Add the changes of a request."""
        self.counts.update(other.counts)
        self.unnamed += other.unnamed
        for name in other._names:
            self._name(name)

    def _name(self, name: str) -> None:
        if len(self._names) < self._most:
            self._names[name] = None
        elif name not in self._names:
            self.unnamed += 1

    def pages(self) -> Iterator[list[str]]:
        """Divide the names among lines."""
        page: list[str] = []
        characters = 0
        for name in self._names:
            if page and (len(page) == NAMES_OF_LINE or characters + len(name) > CHARACTERS_OF_LINE):
                yield page
                page, characters = [], 0
            page.append(name)
            characters += len(name)
        yield page


@dataclass(slots=True)
class _Further:
    """The sum of requests that have no lines of their own."""

    addresses: dict[str, None] = field(default_factory=dict)
    requests: int = 0
    sum: _Sum = field(default_factory=lambda: _Sum(NAMES_OF_SUM))


@dataclass(slots=True)
class _Principal:
    """Changes of one principal within the period."""

    lines: int = 0
    further: dict[tuple[str, str], _Further] = field(default_factory=dict)
    """By event and operation."""


class ChangeLog:
    """Writes the lines of all requests."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._principals: dict[str, _Principal] = {}
        """Only clients with a right to change something are here, so these are few."""
        self._begun = clock.monotonic()
        """When the period began."""

    def write(self, caller: Caller, event: str, operation: str, sum: _Sum) -> None:
        """Write the lines of a request, or add it to the sum of further requests."""
        self.flush()
        of = self._principals.setdefault(caller.principal, _Principal())
        if of.lines < LINES:
            of.lines += _write(event, short(caller.principal), caller.host, operation, sum)
            return
        further = of.further.setdefault((event, operation), _Further())
        if len(further.addresses) < ADDRESSES_OF_SUM:
            further.addresses[caller.host] = None
        further.requests += 1
        further.sum.merge(sum)

    def flush(self, *, ended: bool = False) -> None:
        """Write the sums of further requests if their period, or this process, has ended."""
        now = self._clock.monotonic()
        if now - self._begun < PERIOD_SECONDS and not ended:
            return
        for principal, of in self._principals.items():
            for (event, operation), further in of.further.items():
                addresses = ", ".join(further.addresses)
                _write(event, short(principal), addresses, operation, further.sum, requests=further.requests)
        self._begun = now
        self._principals.clear()


class Changes:
    """The changes of one request."""

    def __init__(self, log: ChangeLog, caller: Caller, operation: str) -> None:
        self._log = log
        self._caller = caller
        self._operation = operation
        self._events = {event: _Sum(NAMES) for event in (MADE, UNKNOWN)}

    def note(self, attempt: Attempt, *, unknown: bool = False) -> None:
        """Note changes that were made, or whose outcome is unknown."""
        for type, name in attempt.resources:
            self._events[UNKNOWN if unknown else MADE].add(type, name)

    def write(self) -> None:
        """Write the lines at the end of the request."""
        for event, sum in self._events.items():
            if sum.counts:
                self._log.write(self._caller, event, self._operation, sum)


def _write(event: str, principal: str, address: str, operation: str, sum: _Sum, **requests: int) -> int:
    """Write the lines, and return their number."""
    number = 0
    for number, names in enumerate(sum.pages(), start=1):
        more: dict[str, object] = {"part": number} if number > 1 else {**requests, "counts": dict(sum.counts)}
        if number == 1 and sum.unnamed:
            more["unnamed"] = sum.unnamed
        log.info(event, audit=True, principal=principal, address=address, operation=operation, resources=names, **more)
    return number


def named(code: Operation | ResourceType) -> str:
    """Return the name of an operation or a type as Kafka's tools write it, for example ``DescribeConfigs``."""
    return code.name.title().replace("_", "")


def resource(type: ResourceType, name: str) -> str:
    """Return a resource as the audit log names it."""
    return f"{named(type)}:{short(name)}"


def short(text: str) -> str:
    """Return the beginning of a text from a client."""
    return text if len(text) <= CHARACTERS else text[:CHARACTERS] + "…"
