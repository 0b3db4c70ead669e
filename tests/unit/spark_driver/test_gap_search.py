"""An audit reads the log only where rows are missing."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError

from firn.model.errors import UnavailableError
from firn.model.maintenance import OffsetRange
from firn.model.progress import FilteredRange
from firn_spark.kafka import gaps
from firn_spark.kafka.gaps import Found, find_records

DENIED = SimpleNamespace(
    topic=lambda: None, partition=lambda: None, error=lambda: KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
)
"""An error that librdkafka reports without a right on the group. The search uses no group."""


def message(error: Any, **more: Any) -> Any:
    return SimpleNamespace(topic=lambda: "orders", partition=lambda: 0, error=error, **more)


class Consumer:
    """A consumer of one partition, whose log has records at these offsets. It reads ten of them at a time."""

    def __init__(self, records: Sequence[int]) -> None:
        self._records = records
        self._next = 0
        self.seeks: list[int] = []
        self.read = 0
        self.closed = False

    def assign(self, places: Any) -> None:
        self._next = places[0].offset
        self.seeks.append(self._next)

    def consume(self, number: int, timeout: float) -> list[Any]:
        ahead = [offset for offset in self._records if offset >= self._next][:10]
        self.read += len(ahead)
        if not ahead:
            return [DENIED, message(lambda: SimpleNamespace(code=lambda: KafkaError._PARTITION_EOF))]
        self._next = ahead[-1] + 1
        return [DENIED, *(message(lambda: None, offset=lambda offset=offset: offset) for offset in ahead)]

    def close(self) -> None:
        self.closed = True


def search(monkeypatch: pytest.MonkeyPatch, records: Sequence[int], ranges: Any, **more: Any) -> tuple[Found, Consumer]:
    consumer = Consumer(records)
    monkeypatch.setattr(gaps, "Consumer", lambda *_, **__: consumer)
    return find_records({}, "orders", {0: ranges}, lambda: None, **more), consumer


def test_records_in_ranges_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    found, consumer = search(monkeypatch, [1, 5, 6, 9, 20, 21], [(0, 1), (2, 4), (5, 6), (9, 21)])
    ranges = [OffsetRange(0, 5, 6), OffsetRange(0, 9, 21)]
    assert (found, consumer.seeks, consumer.closed) == (Found(3, (0, 5), 0, ranges), [0], True)


def test_a_range_at_the_end_of_the_log_ends_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = search(monkeypatch, [1, 2], [(3, 9)])
    assert found == Found(0, None, 0)


def test_the_search_jumps_over_what_no_range_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    found, consumer = search(monkeypatch, range(100_000), [(3, 4), (50_000, 50_002)])
    ranges = [OffsetRange(0, 3, 4), OffsetRange(0, 50_000, 50_002)]
    assert (found, consumer.seeks, consumer.read) == (Found(3, (0, 3), 0, ranges), [3, 50_000], 20)


def test_a_long_search_ends_and_leaves_the_rest_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = [(number, number + 1) for number in range(0, 1000, 2)]
    found, consumer = search(monkeypatch, range(1, 1000, 2), ranges, most=50)
    assert (found.records, consumer.read) == (0, 50)
    assert found.unknown == 450
    assert (len(found.unsearched), found.unsearched[0], found.ranges) == (450, OffsetRange(0, 100, 101), [])


def test_filtered_records_are_not_missing_up_to_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = {0: [FilteredRange(0, 6, 2), FilteredRange(6, 10, 1), FilteredRange(20, 30, 5)]}
    found, _ = search(monkeypatch, [1, 5, 6, 9, 15, 20, 21], [(0, 40)], filtered=ranges)
    assert (found.records, found.first) == (2, (0, 9))
    assert found.filtered.decided({0: (0, 40)}) == (5, 0)
    assert found.filtered.decided({0: (1, 29)}) == (1, 4), "ranges that begin earlier or end later are not decided"


def test_no_range_needs_no_consumer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(gaps, "Consumer")
    assert find_records({}, "orders", {0: []}, lambda: None) == Found()


def test_a_broker_without_an_answer_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = SimpleNamespace(assign=lambda _: None, consume=lambda *_, **__: [], close=lambda: None)
    monkeypatch.setattr(gaps, "Consumer", lambda *_, **__: silent)
    monkeypatch.setattr(gaps, "STALL_SECONDS", -1.0)
    with pytest.raises(UnavailableError, match="topic orders, partition 0: no record and no end"):
        find_records({}, "orders", {0: [(1, 2)]}, lambda: None)
