"""The audit log: denied operations, failed authentications, refused connections, connections without TLS and administrative changes,
as lines of the broker's log.

A line names the principal, its address, the operation and the resource. It contains neither passwords nor tokens, nor
values of configs. The first denial has a line at once. Repetitions have one line a minute with their count. So clients
cannot fill the log or the memory: what exceeds the bounds is only counted.

Connections that the broker closes for other reasons have the same bounds, and their lines are not part of the audit log."""

import asyncio
from collections import Counter, OrderedDict
from dataclasses import dataclass

import structlog

from firn.model.clock import Clock
from firn_broker import metrics
from firn_broker.access.changes import ChangeLog, Changes, named, resource, short
from firn_broker.access_types import Caller, Operation, ResourceType

log = structlog.get_logger()

REPEAT_SECONDS = 60.0
"""Seconds between two lines about the same event."""
EVENTS = 1_000
"""Different events of one period that have lines of their own."""
EVENTS_OF_SOURCE = 20
"""Different events of one principal or address that have lines of their own. Others would lose theirs."""

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

    def __init__(self, name: str, clock: Clock, *, audit: bool = True) -> None:
        self._name = name
        self._clock = clock
        self._audit = {"audit": True} if audit else {}
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
        log.info(self._name, **self._audit, **dict(fields), **count)


class Audit:
    """Writes the audit log."""

    def __init__(self, clock: Clock) -> None:
        self._denials = _Events("access denied", clock)
        self._failures = _Events("authentication failed", clock)
        self._handshakes = _Events("TLS handshake failed", clock)
        self._refused = _Events("connection refused", clock)
        self._unauthenticated = _Events("connection closed", clock)
        self._closed = _Events("connection closed", clock, audit=False)
        self._unencrypted = _Events("connection without encryption", clock)
        self._events = (
            self._denials, self._failures, self._handshakes, self._refused, self._unauthenticated, self._closed,
            self._unencrypted,
        )  # fmt: skip
        self._changes = ChangeLog(clock)

    def denied(self, caller: Caller, operation: Operation, type: ResourceType, name: str) -> None:
        """Note that ACLs denied an operation."""
        asked = named(operation)
        metrics.DENIALS.labels(asked).inc()
        self._denials.note(
            caller.principal,
            (
                ("principal", short(caller.principal)), ("address", caller.host), ("operation", asked),
                ("resource", resource(type, name)),
            ),
        )  # fmt: skip

    def failed(self, address: str, mechanism: str, reason: str) -> None:
        """Note that a client at ``address`` failed to authenticate. The reason may name the user."""
        self._failures.note(address, (("address", address), ("mechanism", short(mechanism)), ("reason", short(reason))))

    def handshake_failed(self, address: str, reason: str) -> None:
        """Note that a TLS handshake failed for another reason than the certificate of the client."""
        self._handshakes.note(address, (("address", address), ("reason", short(reason))))

    def refused(self, address: str, reason: str) -> None:
        """Note a connection that exceeded a limit of connections."""
        self._refused.note(address, (("address", address), ("reason", short(reason))))

    def closed(self, address: str, client: str, reason: str, *, authenticated: bool) -> None:
        """Note a connection that the broker closed, with the id that the client states."""
        events = self._closed if authenticated else self._unauthenticated
        events.note(address, (("address", address), ("client", short(client)), ("reason", short(reason))))

    def unencrypted(self, caller: Caller, client: str) -> None:
        """Note a connection without TLS, by the id that the client states, while other listeners have TLS."""
        self._unencrypted.note(
            caller.host, (("address", caller.host), ("principal", short(caller.principal)), ("client", short(client)))
        )

    def changes(self, caller: Caller, operation: str) -> Changes:
        """Return the changes of a request, by the name of its API."""
        return Changes(self._changes, caller, operation)

    async def keep(self) -> None:
        """Write the lines about repetitions when they are due, until cancelled."""
        try:
            while True:
                await asyncio.sleep(REPEAT_SECONDS)
                for events in self._events:
                    events.flush()
                self._changes.flush()
        finally:
            self._changes.flush(ended=True)
