"""Incremental fetch sessions (KIP-227): a consumer of many partitions names only those that it changes, and the answer
has only those that have changed.

A connection has at most one session, which ends with it. Sessions share a limit of partitions. A consumer that gets no
session sends all its partitions in each request.

Source: KIP-227, ``FetchSession.scala``."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from uuid import UUID

from kio.schema.errors import ErrorCode

from firn_broker.cluster.identifiers import Identifiers
from firn_broker.network.budget import Quota
from firn_broker.network.router import Client
from firn_broker.wire.fetch import ELEMENTS, FetchPartition, FetchRequest, FetchResult

FULL, LAST = 0, -1
"""Epochs of a request with all partitions: `FULL` asks for a session, `LAST` ends the session and asks for none."""
FIRST = 1
"""The epoch of the first request that continues a session."""
GREATEST = (1 << 31) - 1
FEW = 32
"""After a full answer, a fetch first looks up at least this many partitions of its session."""
FAILURES = 6
"""Failures in a row that count. After the last one, 64 fetches look up all partitions at once."""

Key = tuple[str | UUID, int]
"""A partition as the consumer names it."""
Wanted = Mapping[Key, FetchPartition]


@dataclass(slots=True)
class _Partition:
    wanted: FetchPartition
    high_watermark: int = -1
    log_start: int = -1
    """The bounds in the last answer; -1 if the next answer must have the partition."""


@dataclass(slots=True)
class FetchSession:
    """The session of a consumer."""

    id: int
    names_ids: bool
    """True if the consumer names topics by their ids."""
    epoch: int = FIRST
    """The epoch of the next request."""
    _partitions: dict[Key, _Partition] = field(default_factory=dict)
    """In the order in which an answer serves them."""
    _filled_by: int = 0
    """Partitions with records in the last answer. 0 if the answer had less than half of the bytes that it may have."""
    _failures: int = 0
    """Attempts in a row whose first partitions filled no answer; at most `FAILURES`."""
    _skipped: int = 0
    """The number of next fetches that look up all partitions at once."""

    def __len__(self) -> int:
        return len(self._partitions)

    @property
    def wanted(self) -> Wanted:
        """Return all partitions of the session."""
        return {key: partition.wanted for key, partition in self._partitions.items()}

    def first_wanted(self) -> Wanted | None:
        """Return the first partitions if they probably fill the next answer, because others nearly filled the last one.

        After failed attempts, return None for some fetches (`tried`)."""
        few = max(FEW, 2 * self._filled_by)
        if not self._filled_by or few >= len(self):
            return None
        if self._skipped:
            self._skipped -= 1
            return None
        return {key: partition.wanted for key, partition in islice(self._partitions.items(), few)}

    def tried(self, *, full: bool) -> None:
        """Remember whether the first partitions filled an answer. After each failure in a row, twice as many fetches look
        up all partitions."""
        self._failures = 0 if full else min(self._failures + 1, FAILURES)
        self._skipped = 0 if full else 1 << self._failures

    def update(self, request: FetchRequest) -> None:
        """Take the changes of the next request."""
        for key, wanted in wanted_by(request).items():
            if (known := self._partitions.get(key)) is not None:
                known.wanted = wanted
            else:
                self._partitions[key] = _Partition(wanted)
        for key in request.forgotten:
            self._partitions.pop(key, None)
        self.advance()

    def advance(self) -> None:
        """Expect the next request."""
        self.epoch = FIRST if self.epoch == GREATEST else self.epoch + 1

    def changes(self, results: Iterable[tuple[Key, FetchResult]], max_bytes: int) -> list[tuple[Key, FetchResult]]:
        """Return the results that the consumer does not know, and remember them.

        ``max_bytes`` is the limit of the answer. One batch that is larger than the limit may exceed it."""
        changed, behind = [], []
        size = served = 0
        for key, result in results:
            partition = self._partitions[key]
            bounds = result.high_watermark, result.log_start
            same = bounds == (partition.high_watermark, partition.log_start)
            if result.error or result.high_watermark <= partition.wanted.offset:
                behind.append(key)
            if same and not result.error and not result.records and result.preferred < 0:
                continue
            changed.append((key, result))
            partition.high_watermark, partition.log_start = (-1, -1) if result.error else bounds
            if result.records:
                # The partitions before it in the next answer may take all its bytes.
                self._partitions[key] = self._partitions.pop(key)
                size += sum(map(len, result.records))
                served += 1
        self._filled_by = served if size >= max_bytes // 2 else 0
        if self._filled_by:
            # Partitions without records would otherwise stay in front, and the first ones would fill no answer.
            for key in behind:
                self._partitions[key] = self._partitions.pop(key)
        return changed


class FetchSessions:
    """The sessions of all connections."""

    def __init__(self, most: int, identifiers: Identifiers) -> None:
        """Limit the partitions of all sessions to ``most``."""
        self._identifiers = identifiers
        self._sessions: dict[str, FetchSession] = {}
        """By the address of the connection."""
        self.partitions = Quota(most)

    def find(self, client: Client, request: FetchRequest) -> tuple[FetchSession | None, ErrorCode]:
        """Return the session that a request continues, or None if the request has all its partitions; and an error."""
        session = self._sessions.get(client.peer)
        if request.session_epoch in (FULL, LAST):
            # A connection has one session, so another request for one replaces it.
            self.close(client)
            return None, ErrorCode.none
        if session is None or session.id != request.session_id:
            return None, ErrorCode.fetch_session_id_not_found
        if session.epoch != request.session_epoch:
            return None, ErrorCode.invalid_fetch_session_epoch
        if session.names_ids != request.names_ids:
            return None, ErrorCode.fetch_session_topic_id_error
        session.update(request)
        if not self._count(client, len(session)):
            self.close(client)
            return None, ErrorCode.fetch_session_id_not_found
        return session, ErrorCode.none

    def open(self, client: Client, request: FetchRequest, wanted: Wanted) -> FetchSession | None:
        """Open a session with these partitions, if the request asks for one and there is room."""
        if request.session_epoch != FULL or not wanted or client.closed or not self._count(client, len(wanted)):
            return None
        id = self._identifiers.uuid4().int % GREATEST + 1
        session = FetchSession(id, request.names_ids, _partitions={key: _Partition(at) for key, at in wanted.items()})
        self._sessions[client.peer] = session
        client.on_close = partial(self.close, client)
        return session

    def holds(self, client: Client, session: FetchSession | None) -> bool:
        """Return whether this is the session of the connection, or whether it has none if ``session`` is None."""
        return self._sessions.get(client.peer) is session

    def size(self, client: Client) -> int:
        """Return the number of partitions in the session of a connection."""
        session = self._sessions.get(client.peer)
        return 0 if session is None else len(session)

    def close(self, client: Client) -> None:
        """End the session of a connection, if it has one."""
        self._sessions.pop(client.peer, None)
        self.partitions.forget(client.peer)

    def _count(self, client: Client, size: int) -> bool:
        """Count the partitions of a connection's session; return False if there are too many."""
        if size > ELEMENTS or not self.partitions.fits(client.address, size - self.partitions.of(client.peer)):
            return False
        self.partitions.count(client.peer, {client.address: size})
        return True


def wanted_by(request: FetchRequest) -> Wanted:
    """Return the partitions of a request. The last one counts if it has one several times, as with Kafka."""
    return {(name, partition.index): partition for name, partitions in request.topics for partition in partitions}
