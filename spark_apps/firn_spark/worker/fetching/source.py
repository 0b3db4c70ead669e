"""Records of slices from the brokers' logs, inside a task.

Only committed records are read. Offsets without a record (compaction, aborted transactions, markers) are skipped. The next request to a
broker is under way while the records of its last answer are decoded.
"""

import select
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta

import numpy as np
from kio.schema.errors import ErrorCode

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, NotReadyError, UnavailableError
from firn_spark.worker.fetched import Fetched, Numbers
from firn_spark.worker.fetching import answers
from firn_spark.worker.fetching.access import GRANT_HINT, Access
from firn_spark.worker.fetching.batches import Batches, Blocks, Position, wanted
from firn_spark.worker.fetching.cluster import Cluster, Leader, Partition
from firn_spark.worker.fetching.connection import FETCH
from firn_spark.worker.fetching.slices import Slice

STALL_SECONDS = 30.0
"""Seconds without a record after which reading fails."""
DOUBT_SECONDS = 10.0
"""Seconds without a record after which another broker is asked for the leaders."""
ANSWER_SECONDS = 8.0
"""Seconds after which a broker that owes an answer counts as gone. Its partitions may have another leader by then."""
ANSWER_BYTES = 8 << 20
PARTITION_BYTES = 4 << 20
"""Bytes that an answer, and a partition in it, may have. The first batch of an answer comes whole."""
WAIT = timedelta(milliseconds=500)
"""Longest time that a broker waits for records. All records of a range are in the log, so it waits only while its log is behind."""
PAUSE_SECONDS = 0.1
"""Pause after an answer without progress."""
_READ_COMMITTED = 1
_DENIED = frozenset(
    {ErrorCode.topic_authorization_failed, ErrorCode.cluster_authorization_failed, ErrorCode.sasl_authentication_failed}
)


def read(access: Access, slices: Sequence[Slice]) -> Iterator[Fetched]:
    """Read the records in ``slices``.

    Raises UnavailableError when nothing arrives for `STALL_SECONDS`, AccessDeniedError if the brokers refuse the client, NotReadyError if the
    log no longer reaches back to a start, and CorruptDataError for bytes that no broker can have stored.
    """
    reader = _Reader(
        access, [Position(part.topic, part.partition, part.start, part.end) for part in slices if part.start < part.end]
    )
    try:
        yield from reader.blocks()
    finally:
        reader.close()


class _Reader:
    """Positions that have not reached their ends, their leaders, and the nodes that owe an answer."""

    def __init__(self, access: Access, positions: Sequence[Position]) -> None:
        self._cluster = Cluster(access, ANSWER_SECONDS)
        self._waiting: dict[Partition, Position] = {(part.topic, part.partition): part for part in positions}
        if len(self._waiting) < len(positions):
            raise ValueError("a task reads two ranges of one partition")
        self._leaders: dict[Partition, Leader] = {}
        self._asked: dict[int, float] = {}
        """Node that owes an answer -> monotonic seconds of the request."""
        self._deadline = self._doubt_at = 0.0
        self._problem = "check that the leader of the partition runs"

    def close(self) -> None:
        self._cluster.close()

    def blocks(self) -> Iterator[Fetched]:
        """Read until every position has reached its end."""
        blocks = Blocks()
        self._progress()
        while self._waiting:
            self._check()
            self._ask()
            for answer in self._answers():
                for batches in answer:
                    yield from blocks.add(batches)
                    self._progress()
        yield from blocks.flush()

    def _progress(self, seconds: float = 0.0) -> None:
        """Restart the stall timeout, because a broker answered, or because landing a block took the time."""
        self._deadline = time.monotonic() + STALL_SECONDS + seconds
        self._doubt_at = time.monotonic() + DOUBT_SECONDS + seconds

    def _check(self) -> None:
        now = time.monotonic()
        if now > self._doubt_at:
            # A broker that is cut off from the others can answer as the leader, without new records.
            self._doubt_at = now + DOUBT_SECONDS
            self._cluster.doubt()
            self._leaders.clear()
        if now > self._deadline:
            part = next(iter(self._waiting.values()))
            raise UnavailableError(
                f"{part.name}, offset {part.next}: no record arrived within {STALL_SECONDS:.0f} s; {self._problem}",
                reason=Reason.BROKER_UNREACHABLE,
            )

    def _ask(self) -> None:
        """Send a request to each leader that owes no answer."""
        unknown = [place for place in self._waiting if place not in self._leaders]
        if unknown:
            try:
                self._leaders |= self._cluster.leaders(unknown)
            except UnavailableError as error:
                self._problem = str(error)
        for node in {self._leaders[place][0] for place in self._waiting if place in self._leaders} - self._asked.keys():
            self._send(node)

    def _send(self, node: int) -> None:
        topics: dict[str, list[dict[str, int]]] = {}
        for place, part in self._waiting.items():
            leader, epoch = self._leaders.get(place, (-1, -1))
            if leader == node:
                topics.setdefault(part.topic, []).append(
                    {
                        "partition": part.partition,
                        "current_leader_epoch": epoch,
                        "fetch_offset": part.next,
                        "last_fetched_epoch": -1,
                        "log_start_offset": -1,
                        "partition_max_bytes": PARTITION_BYTES,
                    }
                )
        if not topics:
            return
        request = {
            "replica_id": -1,
            "max_wait": WAIT,
            "min_bytes": 1,
            "max_bytes": ANSWER_BYTES,
            "isolation_level": _READ_COMMITTED,
            "session_id": 0,
            "session_epoch": -1,
            "topics": [{"topic": topic, "partitions": parts} for topic, parts in topics.items()],
            "forgotten_topics_data": [],
            "rack_id": "",
        }
        try:
            self._cluster.connection(node).send(FETCH, request)
        except OSError as error:
            self._broke(node, error)
        else:
            self._asked[node] = time.monotonic()

    def _answers(self) -> Iterator[list[Batches]]:
        """Yield the batches of each answer that has arrived."""
        if not self._asked:
            time.sleep(PAUSE_SECONDS)  # no partition has a leader that answers
            return
        connections = {self._cluster.connection(node).fileno(): node for node in self._asked}
        ready, _, _ = select.select(list(connections), [], [], PAUSE_SECONDS)
        for node in [node for node, asked in self._asked.items() if time.monotonic() - asked > ANSWER_SECONDS]:
            if self._cluster.connection(node).fileno() not in ready:
                del self._asked[node]
                self._broke(node, TimeoutError(f"no answer within {ANSWER_SECONDS:.0f} s"))
        for number in ready:
            node = connections[number]
            del self._asked[node]
            try:
                answer, frame = self._cluster.connection(node).receive(answers.Fetch)
            except OSError as error:
                self._broke(node, error)
                continue
            batches, failed = self._receive(answer, frame)
            if failed:
                self._cluster.doubt()
                time.sleep(PAUSE_SECONDS)
            else:
                self._send(node)
                if node in self._asked:
                    # A broker that throttles reads the next request later (KIP-219).
                    self._asked[node] += answer.throttle_time.total_seconds()
            yield batches

    def _broke(self, node: int, error: OSError) -> None:
        """Forget a connection and the leaders behind it."""
        self._problem = f"broker {node} does not answer: {error}"
        self._cluster.drop(node)
        self._cluster.doubt()
        self._leaders = {place: leader for place, leader in self._leaders.items() if leader[0] != node}

    def _receive(self, answer: answers.Fetch, frame: Numbers) -> tuple[list[Batches], bool]:
        """Move the positions behind the batches of an answer. Return the batches, and whether a partition failed."""
        found: list[Batches] = []
        failed = answer.error_code is not ErrorCode.none
        if answer.throttle_time:
            self._progress(answer.throttle_time.total_seconds())
        start = _address(frame)
        for topic in answer.responses:
            for part in topic.partitions:
                place = (topic.topic, part.partition_index)
                position = self._waiting.get(place)
                if position is None:
                    continue
                if part.error_code is not ErrorCode.none:
                    self._failed(position, part.error_code)
                    failed = True
                elif part.records:
                    first = _address(np.frombuffer(part.records, np.uint8)) - start
                    aborted = [(entry.producer_id, entry.first_offset) for entry in part.aborted_transactions or ()]
                    before = position.next
                    found += wanted(position, frame, first, first + len(part.records), aborted)
                    # Bytes without progress are a part of a batch, or repeat earlier offsets. They must not keep the task busy for ever.
                    failed |= not self._advance(place, position, before)
        return found, failed

    def _advance(self, place: Partition, position: Position, before: int) -> bool:
        """Return whether a position moved. Then others are asked for before it, and it is removed at its end."""
        if position.next == before:
            return False
        self._progress()
        del self._waiting[place]
        if position.next < position.end:
            self._waiting[place] = position
        return True

    def _failed(self, position: Position, code: ErrorCode) -> None:
        """Look for the leader again, or raise if that cannot help."""
        if code is ErrorCode.offset_out_of_range:
            raise NotReadyError(
                f"{position.name}: the log no longer has offset {position.next}. The driver reloads the bounds of the log and retries"
            )
        if code in _DENIED:
            raise AccessDeniedError(f"{position.name}: {_words(code)}; {GRANT_HINT}")
        self._problem = f"the brokers answer: {_words(code)}"
        self._leaders.pop((position.topic, position.partition), None)


def _address(array: Numbers) -> int:
    """Return the address of an array's first byte."""
    address: int = array.__array_interface__["data"][0]
    return address


def _words(code: ErrorCode) -> str:
    return code.name.replace("_", " ")
