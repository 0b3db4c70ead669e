"""The audit log: denied operations, failed authentications, connections without TLS and administrative changes, as lines of the broker's log.

A line names the principal, its address, the operation and the resource. It contains neither passwords nor tokens, nor
values of configs. The first denial has a line at once. Repetitions have one line a minute with their count. So clients
cannot fill the log or the memory: what exceeds the bounds is only counted."""

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass

import structlog

from firn.model.clock import Clock
from firn_broker import metrics
from firn_broker.access_types import Caller, Operation, ResourceType

log = structlog.get_logger()

REPEAT_SECONDS = 60.0
"""Seconds between two lines about the same event."""
EVENTS = 1_000
"""Different events of one period that have lines of their own."""
EVENTS_OF_SOURCE = 20
"""Different events of one principal or address that have lines of their own. Others would lose theirs."""
CHANGES = 200
"""Lines about changes of one principal within a period of `REPEAT_SECONDS`, so that no other principal hides its changes."""
CHARACTERS = 255
"""Characters of a name in a line."""

Fields = tuple[tuple[str, str], ...]


@dataclass(slots=True)
class _Event:
    source: str
    last: float
    """When the last line was written."""
    count: int = 0
    """Repetitions since."""


class _Events:
    """Events of one kind. Each has a line at once, and then one for all its repetitions of a period."""

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._events: OrderedDict[Fields, _Event] = OrderedDict()
        """In the order of their last lines."""
        self._of_source: Counter[str] = Counter()

    def note(self, source: str, fields: Fields) -> None:
        """Note an event. The first field names its source."""
        self.flush()
        known = self._events.get(fields)
        if known is None and self._of_source[source] >= EVENTS_OF_SOURCE:
            # One line for all further events of this source.
            fields = fields[:1]
            known = self._events.get(fields)
        if known is not None:
            known.count += 1
        elif len(self._events) >= EVENTS:
            metrics.AUDIT_OMITTED.inc()
        else:
            self._write(fields, source)

    def flush(self) -> None:
        """Write the lines about repetitions that are due, and forget events without any."""
        due = self._clock.monotonic() - REPEAT_SECONDS
        while self._events:
            fields, event = next(iter(self._events.items()))
            if event.last > due:
                return
            del self._events[fields]
            self._of_source[event.source] -= 1
            if not self._of_source[event.source]:
                del self._of_source[event.source]
            if event.count:
                self._write(fields, event.source, count=event.count)

    def _write(self, fields: Fields, source: str, **count: int) -> None:
        self._events[fields] = _Event(source, self._clock.monotonic())
        self._of_source[source] += 1
        log.info(self._name, audit=True, **dict(fields), **count)


class Audit:
    """Writes the audit log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._denials = _Events("access denied", clock)
        self._failures = _Events("authentication failed", clock)
        self._unencrypted = _Events("connection without encryption", clock)
        self._changes: Counter[str] = Counter()
        """Changes of each principal."""
        self._period = 0.0
        """When the counted changes began."""

    def denied(self, caller: Caller, operation: Operation, type: ResourceType, name: str) -> None:
        """Note that ACLs denied an operation."""
        named = _name(operation)
        metrics.DENIALS.labels(named).inc()
        self._denials.note(
            caller.principal,
            (
                ("principal", _short(caller.principal)), ("address", caller.host), ("operation", named),
                ("resource", _resource(type, name)),
            ),
        )  # fmt: skip

    def failed(self, address: str, mechanism: str, reason: str) -> None:
        """Note that a client at ``address`` failed to authenticate. The reason may name the user."""
        self._failures.note(
            address, (("address", address), ("mechanism", _short(mechanism)), ("reason", _short(reason)))
        )

    def unencrypted(self, caller: Caller, client: str) -> None:
        """Note a connection without TLS, by the id that the client states, while other listeners have TLS."""
        self._unencrypted.note(
            caller.host,
            (("address", caller.host), ("principal", _short(caller.principal)), ("client", _short(client))),
        )

    def changed(self, caller: Caller, change: str, type: ResourceType, name: str) -> None:
        """Note an administrative change, by the name of the API that made it."""
        now = self._clock.monotonic()
        if now - self._period >= REPEAT_SECONDS:
            self._period = now
            self._changes.clear()
        # Only clients with a principal that may change something are counted, so these are few.
        self._changes[caller.principal] += 1
        if self._changes[caller.principal] > CHANGES:
            metrics.AUDIT_OMITTED.inc()
            return
        log.info(
            "changed", audit=True, principal=_short(caller.principal), address=caller.host, operation=change,
            resource=_resource(type, name),
        )  # fmt: skip

    async def keep(self) -> None:
        """Write the lines about repetitions when they are due, until cancelled."""
        while True:
            await asyncio.sleep(REPEAT_SECONDS)
            self._denials.flush()
            self._failures.flush()
            self._unencrypted.flush()


def _name(operation: Operation) -> str:
    """Return the name of an operation as Kafka's tools write it, for example ``DescribeConfigs``."""
    return operation.name.title().replace("_", "")


def _resource(type: ResourceType, name: str) -> str:
    return f"{type.name.title().replace('_', '')}:{_short(name)}"


def _short(text: str) -> str:
    return text if len(text) <= CHARACTERS else text[:CHARACTERS] + "…"
