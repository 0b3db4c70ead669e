"""Tasks read objects as they read brokers, and leave to the brokers what they cannot read."""

import random
import threading
from collections.abc import Callable
from pathlib import Path

import obstore
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn.model.errors import CorruptDataError
from firn_spark.worker.fetched import Fetched
from firn_spark.worker.fetching import objects
from firn_spark.worker.fetching.access import Bucket
from firn_spark.worker.fetching.objects import Objects, Part, in_order, in_windows
from firn_spark.worker.fetching.slices import ObjectRange, Slice
from tests.unit.fetching.bucket import Place, Stored, batch, numbered
from tests.unit.fetching.log import TRANSACTIONAL, Batch, Record, marker
from tests.unit.fetching.test_batches import WRONG
from tests.unit.fetching.test_hostile_bytes import FRAMES, checked, damaged, sample


@pytest.fixture
def bucket(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the keys of the objects that are requested."""
    keys: list[str] = []
    plain = obstore.get_range

    def counted(store: object, key: str, **more: object) -> object:
        keys.append(key)
        return plain(store, key, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(obstore, "get_range", counted)
    return keys


def read(reader: Objects) -> dict[Place, list[tuple[int, bytes | None]]]:
    """Return offset and value of each record, in the order of each partition."""
    found: dict[Place, list[tuple[int, bytes | None]]] = {}
    for block in reader.blocks():
        for part, offset, value in zip(
            block.partitions.tolist(), block.offsets.tolist(), block.values.to_list(), strict=True
        ):
            found.setdefault((block.topic, part), []).append((offset, value))
    return found


def values(first: int, end: int) -> list[tuple[int, bytes | None]]:
    return [(number, b"%d" % number) for number in range(first, end)]


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_records_get_the_offsets_of_their_ranges(bucket: Stored, codec: int) -> None:
    bucket.put("a", {("orders", 0): [batch(b"0", b"1", codec=codec), batch(b"2", codec=codec)]})
    bucket.put("b", {("orders", 0): [batch(b"3", b"4", b"5", codec=codec)]})
    reader = bucket.reader(bucket.slice(start=1, end=5))
    assert read(reader) == {("orders", 0): values(1, 5)}
    assert reader.rest == []


def test_records_of_a_topic_with_append_time_have_the_time_of_their_commit(bucket: Stored) -> None:
    bucket.put("a", {("orders", 0): [batch(b"0", b"1")]}, append_ms=1_800_000_000_000)
    (block,) = bucket.reader(bucket.slice()).blocks()
    assert block.times.tolist() == [1_800_000_000_000] * 2
    assert block.time_types.tolist() == [1, 1]


def test_offsets_that_compaction_removed_stay_free(bucket: Stored) -> None:
    compacted = Batch(0, [Record(1, b"1"), Record(4, b"4")], last=5)
    bucket.put("a", {("orders", 0): [compacted, numbered(6, 2)]})
    reader = bucket.reader(bucket.slice())
    assert read(reader) == {("orders", 0): [(1, b"1"), (4, b"4"), (6, b"6"), (7, b"7")]}
    assert reader.rest == []


def test_one_request_reads_an_object_for_all_its_topics(bucket: Stored, requests: list[str]) -> None:
    places = [("orders", 0), ("orders", 1), ("visits", 0)]
    for number in range(5):
        bucket.put(f"o{number}", {place: [numbered(3 * number, 3)] for place in places[number % 2 :]})
    found = read(bucket.reader(*(bucket.slice(*place) for place in places)))
    assert [len(found[place]) for place in places] == [9, 15, 15]
    assert sorted(requests) == [f"o{number}" for number in range(5)]


def test_small_objects_make_one_block_for_each_topic(bucket: Stored) -> None:
    places = [("orders", 0), ("orders", 1), ("visits", 0)]
    for number in range(20):
        bucket.put(f"o{number}", {place: [numbered(number, 1)] for place in places})
    assert len(list(bucket.reader(*(bucket.slice(*place) for place in places)).blocks())) == 2


def test_a_large_object_is_read_in_parts(bucket: Stored, requests: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "WINDOW_BYTES", 600)
    bucket.put("a", {("orders", part): [numbered(0, 20)] for part in range(6)})
    found = read(bucket.reader(*(bucket.slice(partition=part) for part in range(6))))
    assert found == {("orders", part): values(0, 20) for part in range(6)}
    assert 1 < len(requests) <= 6


def test_a_missing_object_leaves_its_partitions_to_the_brokers(bucket: Stored) -> None:
    for number in range(3):
        bucket.put(f"o{number}", {("orders", 0): [numbered(2 * number, 2)]})
        if number != 1:
            bucket.put(f"p{number}", {("visits", 0): [numbered(number, 1)]})
    (bucket.directory / "o1").unlink()
    reader = bucket.reader(bucket.slice(), bucket.slice("visits"))
    found = read(reader)
    assert found["orders", 0] == values(0, 2)
    assert len(found["visits", 0]) == 2
    assert reader.rest == [Slice("orders", 0, 2, 6)]
    assert "object o1: it does not exist" in reader.problem


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[:20],
    "empty": lambda data: b"",
    "a changed byte": lambda data: data[:-8] + bytes([data[-8] ^ 1]) + data[-7:],
    "zeros": lambda data: bytes(len(data)),
    "bytes of another object": lambda data: b"x" * len(data),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_object_leaves_its_partitions_to_the_brokers(bucket: Stored, damage: str) -> None:
    bucket.put("a", {("orders", 0): [numbered(0, 2)]})
    bucket.put("b", {("orders", 0): [numbered(2, 2)]})
    bucket.write("b", DAMAGES[damage]((bucket.directory / "b").read_bytes()))
    reader = bucket.reader(bucket.slice())
    assert read(reader) == {("orders", 0): values(0, 2)}
    assert reader.rest == [Slice("orders", 0, 2, 4)]
    assert "object b: " in reader.problem


@pytest.mark.parametrize(
    "stored",
    [
        batch(b"0"),
        numbered(0, 3),
        marker(0, 7, aborts=True),
        Batch(0, [Record(0), Record(1)], attributes=TRANSACTIONAL),
    ],
)
def test_batches_that_no_broker_stored_there_are_not_read(bucket: Stored, stored: Batch) -> None:
    """The range covers two offsets, and a diskless broker refuses transactions."""
    bucket.put("a", {("orders", 0): [stored]})
    (place,) = bucket.ranges["orders", 0]
    bucket.ranges["orders", 0] = [place._replace(last=1)]
    reader = bucket.reader(bucket.slice(end=2))
    assert read(reader) == {}
    assert reader.rest == [Slice("orders", 0, 0, 2)]


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("codec", [0, 4])
def test_records_that_their_producer_sent_malformed_are_refused_as_in_an_answer(
    bucket: Stored, name: str, codec: int
) -> None:
    bucket.put("a", {("orders", 0): [Batch(0, [Record(0)], last=0, codec=codec, body=WRONG[name])]})
    with pytest.raises(CorruptDataError, match="topic orders, partition 0, offset 0: "):
        read(bucket.reader(bucket.slice()))


def test_offsets_that_a_range_repeats_are_read_once(bucket: Stored) -> None:
    """Compaction may join ranges while the driver asks for the next ones."""
    bucket.put("a", {("orders", 0): [numbered(0, 3)]})
    bucket.put("b", {("orders", 0): [numbered(3, 3)]})
    bucket.put("joined", {("copy", 0): [numbered(0, 3), numbered(3, 3)]})
    first, second = bucket.ranges["orders", 0]
    bucket.ranges["orders", 0] = [first, bucket.ranges["copy", 0][0], second]
    assert read(bucket.reader(bucket.slice())) == {("orders", 0): values(0, 6)}


def test_a_gap_between_ranges_is_left_to_the_brokers(bucket: Stored) -> None:
    for number in range(3):
        bucket.put(f"o{number}", {("orders", 0): [numbered(number, 1)]})
    del bucket.ranges["orders", 0][1]
    reader = bucket.reader(bucket.slice())
    assert read(reader) == {("orders", 0): values(0, 1)}
    assert reader.rest == [Slice("orders", 0, 1, 3)]


def test_a_bucket_that_refuses_reads_is_left_at_once(bucket: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "WINDOW_BYTES", 100)
    for number in range(10):
        bucket.put(f"o{number}", {("orders", 0): [numbered(number, 1)]})
    asked = []

    def refuse(_: object, key: str, **more: object) -> object:
        asked.append(key)
        raise PermissionError("403 AccessDenied")

    monkeypatch.setattr(obstore, "get_range", refuse)
    reader = bucket.reader(bucket.slice())
    assert read(reader) == {}
    assert reader.rest == [Slice("orders", 0, 0, 10)]
    assert "403 AccessDenied" in reader.problem
    assert len(asked) <= 2


def test_a_task_does_not_wait_for_other_requests_after_one_failed_for_all_objects(
    bucket: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        bucket.put(f"o{number:02}", {("orders", 0): [numbered(number, 1)]})
    asked: list[str] = []
    ended = threading.Event()

    def answer(_: object, key: str, **more: object) -> object:
        asked.append(key)
        if key != "o00":
            ended.wait(60)
        raise TimeoutError("no answer")

    monkeypatch.setattr(obstore, "get_range", answer)
    reader = bucket.reader(bucket.slice())
    try:
        assert read(reader) == {}
        assert reader.unusable
        assert reader.rest == [Slice("orders", 0, 0, 30)]
        assert "no answer" in reader.problem
        assert len(asked) <= objects.READS + 1
    finally:
        ended.set()


def test_a_bucket_whose_options_are_wrong_is_left_to_the_brokers(bucket: Stored) -> None:
    bucket.put("a", {("orders", 0): [numbered(0, 2)]})
    for url, options in (("s3://b/p", {"no_such_option": "x"}), ("nothing", {}), ("s3://", {})):
        reader = Objects(Bucket(url, options), [bucket.slice()])
        assert read(reader) == {}
        assert reader.rest == [Slice("orders", 0, 0, 2)]
        assert f"bucket {url}: " in reader.problem


def test_an_object_that_cannot_come_once_is_read_twice(bucket: Stored, requests: list[str]) -> None:
    """Compaction may leave two partitions with the opposite order of two objects."""
    bucket.put("a", {("orders", 0): [numbered(0, 1)]})
    bucket.put("b", {("orders", 0): [numbered(1, 1)], ("orders", 1): [numbered(0, 1)]})
    place = bucket.ranges["orders", 0][0]
    bucket.ranges["orders", 1].append(place._replace(base=1, last=1))
    found = read(bucket.reader(bucket.slice(), bucket.slice(partition=1)))
    assert [[offset for offset, _ in found["orders", part]] for part in (0, 1)] == [[0, 1], [0, 1]]
    assert sorted(requests) in (["a", "a", "b"], ["a", "b"])


def test_two_ranges_of_one_partition_are_refused(bucket: Stored) -> None:
    bucket.put("a", {("orders", 0): [numbered(0, 4)]})
    with pytest.raises(ValueError, match="two ranges of one partition"):
        bucket.reader(bucket.slice(end=2), bucket.slice(start=2))


def test_damaged_bytes_are_read_or_refused(bucket: Stored) -> None:
    """Batches with a checksum that fits their damage: a producer may send such bytes."""
    rng = random.Random(5)
    refused = 0
    count = FRAMES // 50
    for _ in range(count):
        data = damaged(sample(rng), rng)
        (bucket.directory / "a").write_bytes(data)
        last = rng.choice([int.from_bytes(data[23:27], "big", signed=True), rng.randrange(9)])
        place = ObjectRange("a", 0, len(data), 7, 7 + last, rng.choice([-1, 5]))
        reader = bucket.reader(Slice("orders", 0, 7, 100, (place,)))
        try:
            blocks: list[Fetched] = list(reader.blocks())
        except CorruptDataError:
            refused += 1
            continue
        refused += not blocks
        for block in blocks:
            checked(block)
            assert all(7 <= offset <= place.last for offset in block.offsets.tolist())
    assert 0.2 < refused / count < 0.99


QUEUES = st.lists(st.lists(st.integers(0, 12), max_size=12), max_size=6)


@given(QUEUES)
def test_ranges_keep_the_order_of_their_partitions(drawn: list[list[int]]) -> None:
    queues = [
        [ObjectRange(f"o{key}", 100 * place, 10, place, place, -1) for place, key in enumerate(keys)] for keys in drawn
    ]
    steps = list(in_order(queues))
    assert all(len({part.range.key for part in step}) == 1 for step in steps)
    parts = [part for step in steps for part in step]
    assert [[part.range for part in parts if part.slice == number] for number in range(len(queues))] == queues
    assert [part for window in in_windows(iter(steps)) for part in window] == parts


@given(st.lists(st.sets(st.integers(0, 30)), min_size=1, max_size=6))
def test_each_object_comes_once_if_all_partitions_have_the_same_order(drawn: list[set[int]]) -> None:
    queues = [
        [ObjectRange(f"o{key}", 0, 10, place, place, -1) for place, key in enumerate(sorted(keys))] for keys in drawn
    ]
    keys = [step[0].range.key for step in in_order(queues)]
    assert len(keys) == len(set(keys))


def test_windows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "WINDOW_BYTES", 100)
    monkeypatch.setattr(objects, "WINDOW_OBJECTS", 3)

    def step(key: str, *sizes: int) -> list[Part]:
        return [Part(number, ObjectRange(key, 0, size, 0, 0, -1)) for number, size in enumerate(sizes)]

    steps = [step("a", 50), step("b", 60), step("c", 10, 10), step("d", 1), step("e", 1), step("f", 70, 70, 300)]
    windows = list(in_windows(iter(steps)))
    assert [[part.range.length for part in window] for window in windows] == [
        [50],
        [60, 10, 10, 1],
        [1],
        [70],
        [70],
        [300],
    ]
