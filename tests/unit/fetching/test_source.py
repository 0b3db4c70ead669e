"""Reading goes on through everything that brokers do, and names what it cannot go on through."""

import socket
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from firn.model.errors import AccessDeniedError, CorruptDataError, NotReadyError, UnavailableError
from firn_spark.worker.fetching import cluster, connection, source
from firn_spark.worker.fetching.access import Access
from firn_spark.worker.fetching.buffers import KEPT
from firn_spark.worker.fetching.cluster import Cluster
from firn_spark.worker.fetching.slices import Slice
from tests.servers.process import free_port
from tests.unit.fetching.broker import Answer, Broker, WantedPartition, disconnect, error, records
from tests.unit.fetching.log import Batch, Record

NOT_LEADER, OUT_OF_RANGE, DENIED, FENCED, STORAGE = 6, 1, 29, 74, 56


@pytest.fixture
def brokers() -> Iterator[list[Broker]]:
    cluster: list[Broker] = []
    with Broker(1, cluster), Broker(2, cluster):
        yield cluster


def batches(first: int, last: int) -> bytes:
    """Return the bytes of batches of two records, from offset ``first`` to ``last``."""
    return b"".join(Batch(base, [Record(0), Record(1)]).encode() for base in range(first, last, 2))


def lead(brokers: list[Broker], leaders: dict[int, int], **script: list[Answer]) -> None:
    """Give partitions their leaders, and brokers their answers: ``n1p0`` are those of node 1 for partition 0."""
    for broker in brokers:
        broker.leaders = dict(leaders)
    for place, answers in script.items():
        node, part = int(place[1]), int(place[3:])
        brokers[node - 1].script[part] = deque(answers)


def read(brokers: list[Broker], *slices: Slice) -> list[tuple[int, int]]:
    """Return partition and offset of each record."""
    servers = ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)
    blocks = source.read(Access(servers), slices)
    return sorted(
        place for block in blocks for place in zip(block.partitions.tolist(), block.offsets.tolist(), strict=True)
    )


def exactly(first: int, end: int, part: int = 0) -> list[tuple[int, int]]:
    return [(part, offset) for offset in range(first, end)]


def test_each_partition_is_read_from_its_leader(brokers: list[Broker]) -> None:
    lead(brokers, {0: 1, 1: 2}, n1p0=[records(batches(0, 6)), records(batches(6, 10))], n2p1=[records(batches(4, 8))])
    found = read(brokers, Slice("orders", 0, 1, 10), Slice("orders", 1, 4, 7))
    assert found == exactly(1, 10) + exactly(4, 7, part=1)
    assert [part.fetch_offset for part in brokers[0].wanted] == [1, 6]


def test_records_of_large_answers_stay_while_later_ones_arrive(brokers: list[Broker]) -> None:
    """Answers above 64 KiB are read into memory that is used again."""
    values = [bytes([65 + offset]) * 100_000 for offset in range(6)]
    answers = [records(Batch(offset, [Record(0, value=value)]).encode()) for offset, value in enumerate(values)]
    lead(brokers, {0: 1, 1: 2}, n1p0=answers[:4], n2p1=answers[4:])
    servers = ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)
    blocks = list(source.read(Access(servers), [Slice("orders", 0, 0, 4), Slice("orders", 1, 4, 6)]))
    found = {
        offset: value
        for block in blocks
        for offset, value in zip(block.offsets.tolist(), block.values.to_list(), strict=True)
    }
    assert found == dict(enumerate(values))


def test_all_brokers_of_a_reader_share_a_few_buffers(brokers: list[Broker]) -> None:
    answers = [records(Batch(offset, [Record(0, value=bytes(100_000))]).encode()) for offset in range(12)]
    lead(brokers, {0: 1, 1: 2}, n1p0=answers[:6], n2p1=answers[6:])
    servers = ",".join(f"127.0.0.1:{broker.port}" for broker in brokers)
    places, offsets = set(), []
    for block in source.read(Access(servers), [Slice("orders", 0, 0, 6), Slice("orders", 1, 6, 12)]):
        buffer = block.values.data.base
        assert isinstance(buffer, np.ndarray)
        places.add(buffer.ctypes.data)
        offsets += block.offsets.tolist()
    assert sorted(offsets) == list(range(12))
    assert len(places) <= KEPT


def test_a_partition_that_brought_records_waits_for_the_others(brokers: list[Broker]) -> None:
    lead(
        brokers,
        {0: 1, 1: 1},
        n1p0=[records(batches(0, 4)), records(batches(4, 8))],
        n1p1=[records(b""), records(batches(0, 8))],
    )
    read(brokers, Slice("orders", 0, 0, 8), Slice("orders", 1, 0, 8))
    assert [part.partition for part in brokers[0].wanted] == [0, 1, 1, 0]


@pytest.mark.parametrize("code", [NOT_LEADER, FENCED, STORAGE])
def test_a_new_leader_is_found(brokers: list[Broker], code: int) -> None:
    def moved(broker: Broker, part: object) -> object:
        for one in brokers:
            one.leaders, one.epochs = {0: 2}, {0: 5}
        return error(code)(broker, part)  # type: ignore[arg-type]

    lead(brokers, {0: 1}, n1p0=[records(batches(0, 4)), moved], n2p0=[records(batches(4, 8))])  # type: ignore[list-item]
    assert read(brokers, Slice("orders", 0, 0, 8)) == exactly(0, 8)
    assert [part.current_leader_epoch for part in brokers[1].wanted] == [5]


def test_a_lost_connection_is_opened_again(brokers: list[Broker]) -> None:
    lead(brokers, {0: 1}, n1p0=[records(batches(0, 4)), disconnect, disconnect, records(batches(4, 8))])
    assert read(brokers, Slice("orders", 0, 0, 8)) == exactly(0, 8)


def test_a_bootstrap_server_that_is_away_is_skipped(brokers: list[Broker]) -> None:
    lead(brokers, {0: 2}, n2p0=[records(batches(0, 4))])
    servers = f"127.0.0.1:{free_port()}, 127.0.0.1:{brokers[1].port}"
    assert sum(len(block) for block in source.read(Access(servers), [Slice("orders", 0, 0, 4)])) == 4


def test_a_throttled_answer_is_no_end(brokers: list[Broker]) -> None:
    lead(brokers, {0: 1}, n1p0=[records(batches(0, 4))])
    brokers[0].throttle = timedelta(milliseconds=50)
    assert read(brokers, Slice("orders", 0, 0, 4)) == exactly(0, 4)


def test_an_answer_may_repeat_records_before_the_wanted_ones(brokers: list[Broker]) -> None:
    lead(brokers, {0: 1}, n1p0=[records(batches(0, 4)), records(batches(0, 8))])
    assert read(brokers, Slice("orders", 0, 0, 8)) == exactly(0, 8)


def test_a_leader_that_falls_silent_is_replaced(brokers: list[Broker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "ANSWER_SECONDS", 0.3)

    def vanish(broker: Broker, part: WantedPartition) -> Mapping[str, Any] | None:
        for one in brokers:
            one.leaders = {0: 2}
        broker.silent.set()
        return records(b"")(broker, part)

    lead(brokers, {0: 1}, n1p0=[records(batches(0, 4)), vanish], n2p0=[records(batches(4, 8))])
    servers = f"127.0.0.1:{brokers[1].port}"
    found = [
        offset
        for block in source.read(Access(servers), [Slice("orders", 0, 0, 8)])
        for offset in block.offsets.tolist()
    ]
    assert found == list(range(8))


def test_a_leader_that_only_one_broker_names_is_replaced(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is cut off from the others still names itself, and its log gets no records."""
    monkeypatch.setattr(source, "DOUBT_SECONDS", 0.2)
    lead(brokers, {0: 1}, n2p0=[records(batches(0, 8))])
    brokers[1].leaders, brokers[1].epochs = {0: 2}, {0: 5}
    assert read(brokers, Slice("orders", 0, 0, 8)) == exactly(0, 8)


def test_an_earlier_leader_epoch_does_not_replace_a_later_one(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "TRUST_SECONDS", 0.0)
    brokers[0].leaders, brokers[0].epochs = {0: 1}, {0: 4}
    brokers[1].leaders, brokers[1].epochs = {0: 2}, {0: 5}
    asked = Cluster(Access(f"127.0.0.1:{brokers[1].port},127.0.0.1:{brokers[0].port}"), 5)
    try:
        assert asked.leaders([("orders", 0)]) == {("orders", 0): (2, 5)}
        asked.doubt()
        assert asked.leaders([("orders", 0)]) == {}
        asked.doubt()
        assert asked.leaders([("orders", 0)]) == {("orders", 0): (2, 5)}
    finally:
        asked.close()


def test_a_broker_that_sends_an_answer_byte_by_byte_is_replaced(
    brokers: list[Broker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "ANSWER_SECONDS", 0.3)
    monkeypatch.setattr(connection, "LOWEST_RATE", 1 << 30)
    lead(brokers, {0: 1}, n1p0=[records(batches(0, 8))], n2p0=[records(batches(0, 8))])
    brokers[1].leaders, brokers[1].epochs = {0: 2}, {0: 5}
    brokers[0].drip = 0.05
    assert read(brokers, Slice("orders", 0, 0, 8)) == exactly(0, 8)
    assert brokers[0].wanted


LAST = bytearray(Batch(0, [Record(0)]).encode())
LAST[:8] = (2**63 - 1).to_bytes(8, "big")
STUCK = {
    "a part of a batch": batches(0, 2)[:70],
    "offsets before the wanted one": batches(0, 4),
    "fewer bytes than a header": batches(0, 2)[:16],
}


@pytest.mark.parametrize("name", STUCK)
def test_bytes_that_bring_no_progress_are_no_sign_of_life(
    brokers: list[Broker], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "STALL_SECONDS", 0.5)
    lead(brokers, {0: 1}, n1p0=[records(STUCK[name])] * 1_000)
    with pytest.raises(UnavailableError, match="offset 4: no record arrived"):
        read(brokers, Slice("orders", 0, 4, 8))
    assert len(brokers[0].wanted) < 50


def test_an_offset_beyond_all_logs_is_refused(brokers: list[Broker]) -> None:
    lead(brokers, {0: 1}, n1p0=[records(bytes(LAST))])
    with pytest.raises(CorruptDataError, match="impossible header"):
        read(brokers, Slice("orders", 0, 0, 8))


def test_a_task_reads_one_range_of_a_partition(brokers: list[Broker]) -> None:
    with pytest.raises(ValueError, match="two ranges of one partition"):
        read(brokers, Slice("orders", 0, 0, 4), Slice("orders", 0, 4, 8))


def test_offsets_that_the_log_no_longer_has_are_named(brokers: list[Broker]) -> None:
    lead(brokers, {0: 1}, n1p0=[error(OUT_OF_RANGE)])
    with pytest.raises(NotReadyError, match="topic orders, partition 0: the log no longer has offset 3"):
        read(brokers, Slice("orders", 0, 3, 8))


def test_a_denial_names_the_topic_and_the_right(brokers: list[Broker]) -> None:
    lead(brokers, {0: 1}, n1p0=[error(DENIED)])
    with pytest.raises(AccessDeniedError, match=r"topic orders, partition 0: topic authorization failed; grant .*Read"):
        read(brokers, Slice("orders", 0, 3, 8))


def test_brokers_that_are_too_old_are_named(brokers: list[Broker]) -> None:
    lead(brokers, {0: 1})
    for broker in brokers:
        broker.versions = {3: (0, 5), 1: (0, 3)}
    with pytest.raises(UnavailableError, match="serves versions 0 to 3 of API 1, and Firn uses 4 to 12"):
        read(brokers, Slice("orders", 0, 0, 8))


@pytest.mark.parametrize("fault", ["no records", "no leader", "no answer", "no broker", "errors"])
def test_brokers_that_bring_no_record_are_reported(
    brokers: list[Broker], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "STALL_SECONDS", 0.5)
    monkeypatch.setattr(source, "ANSWER_SECONDS", 0.2)
    lead(brokers, {0: 1}, n1p0=[error(NOT_LEADER)] * 100 if fault == "errors" else [])
    if fault == "no leader":
        lead(brokers, {0: -1})
    if fault == "no answer":
        brokers[0].silent.set()
        brokers[1].silent.set()
    if fault == "no broker":
        for broker in brokers:
            broker.__exit__()
    cause = {
        "no records": "check that the leader of the partition runs",
        "no leader": "check that the leader of the partition runs",
        "no answer": "no broker answers",
        "no broker": "does not answer|no broker answers",
        "errors": "the brokers answer: not leader or follower",
    }[fault]
    with pytest.raises(UnavailableError, match=f"topic orders, partition 0, offset 0: no record arrived.*({cause})"):
        read(brokers, Slice("orders", 0, 0, 8))


def test_a_port_of_another_protocol_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STALL_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as web:
        web.settimeout(5)

        def serve() -> None:
            with suppress(OSError):
                while True:
                    connection, _ = web.accept()
                    with connection:
                        connection.recv(1000)
                        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        access = Access(f"127.0.0.1:{web.getsockname()[1]}")
        with pytest.raises(UnavailableError, match="check that the address is a Kafka listener"):
            list(source.read(access, [Slice("orders", 0, 0, 1)]))
