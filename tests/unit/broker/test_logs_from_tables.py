"""Logs that are made from the rows of tables: consumers get the records with their offsets in a new cluster with an empty bucket."""

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka.record.default_records import DefaultRecordBatch
from kio.schema.errors import ErrorCode

from firn.driver_requests.landed_offsets import DataFile
from firn.model.errors import CorruptDataError, InvalidSpecError
from firn_broker.history.restoring import process, tables
from firn_broker.history.rows import Group, groups
from firn_broker.maintenance import placeholders
from firn_broker.maintenance.known_topics import KnownTable, KnownTopic
from tests.fakes.virtual_time import run
from tests.unit.broker.test_history_entries import FIELDS, Local, write
from tests.unit.broker.test_history_indexing import World
from tests.unit.broker.test_lost_coordinators import Outcome, lose, read, recovered
from tests.unit.broker.test_rebuilt_batches import Row, produced
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Shared, broker, create

ID = UUID(int=77)
Rows = dict[tuple[int, int], Row]
"""Records by partition and offset."""
SIZES = [(tables.BATCH_BYTES, tables.OBJECT_BYTES), (300, 1_000)]


def some_rows(seed: int, partitions: int = 3, most: int = 400) -> Rows:
    """Return records with gaps between their offsets."""
    rng = random.Random(seed)
    rows: Rows = {}
    for partition in range(partitions):
        offset = rng.randrange(50)
        for _ in range(rng.randrange(most)):
            headers = [("h", b"x"), ("h", None)] if rng.random() < 0.1 else []
            key = None if rng.random() < 0.3 else b"k%d" % rng.randrange(9)
            value = None if rng.random() < 0.1 else rng.randbytes(rng.randrange(60))
            rows[partition, offset] = Row(rng.randrange(10**12), key, value, headers)
            offset += 1 if rng.random() < 0.9 else rng.randrange(1, 30)
    return rows


def files_of(directory: Path, rows: Rows, seed: int, count: int = 3) -> list[DataFile]:
    """Write the rows to data files in any order, and some rows twice."""
    rng = random.Random(seed)
    shuffled = [(*place, row) for place, row in rows.items()]
    rng.shuffle(shuffled)
    parts = [shuffled[number::count] for number in range(count)]
    parts[0] += parts[1][:5]
    return [write(directory / f"{number}", part, group=40) for number, part in enumerate(parts) if part]


def known(files: Sequence[DataFile], landed: Mapping[int, int], partitions: int = 3) -> KnownTopic:
    table = KnownTable(fields=FIELDS, files=files)
    configs = {"retention.ms": "-1"}
    return KnownTopic(name="t", id=ID, partitions=partitions, configs=configs, next=landed, table=table)


async def made(shared: Shared, topic: KnownTopic) -> Outcome:
    return await recovered(shared, [topic], files=Local())


def records(batches: Sequence[bytes]) -> Iterator[tuple[int, Row]]:
    for batch in batches:
        found = DefaultRecordBatch(batch)
        assert found.validate_crc()
        for record in found:
            yield record.offset, Row(record.timestamp, record.key, record.value, record.headers)


@pytest.mark.parametrize(("batch", "size"), SIZES)
@pytest.mark.parametrize("seed", range(4))
def test_consumers_get_the_rows_as_records_with_their_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, batch: int, size: int
) -> None:
    monkeypatch.setattr(tables, "BATCH_BYTES", batch)
    monkeypatch.setattr(tables, "OBJECT_BYTES", size)
    rows = some_rows(seed)
    ends = {number: max((at for part, at in rows if part == number), default=-1) + 1 for number in range(3)}
    landed = {0: ends[0] + 7, 1: ends[1], 2: ends[2] + 1}

    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        outcome = await made(shared, known(files_of(tmp_path, rows, seed), landed))
        assert (outcome.topics, outcome.done.records, outcome.gaps, outcome.complete) == (["t"], 0, {}, True)
        async with broker(shared) as asked:
            for partition in range(3):
                start, batches = await read(asked, partition)
                wanted = {offset: row for (part, offset), row in rows.items() if part == partition}
                assert start == min(wanted, default=landed[partition])
                found = list(records(batches))
                assert [offset for offset, _ in found] == sorted(wanted)
                assert dict(found) == {
                    offset: row._replace(headers=list(row.headers)) for offset, row in wanted.items()
                }
                answer = await produce(asked, "t", partition, produced([Row(1, None, b"new")], idempotent=False))
                assert (answer.error_code, answer.base_offset) == (ErrorCode.none, landed[partition])
            assert max(map(len, shared.objects.objects.values())) < 3 * size + 2_000

    run(story())


def test_a_command_that_is_repeated_adds_nothing(tmp_path: Path) -> None:
    rows = some_rows(5)
    topic = known(files_of(tmp_path, rows, 5), {})

    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        asked = process.TABLE_ROWS.validate_python(topic.question())
        # An earlier command ended here.
        first = await tables.rebuild(shared.objects, asked, Local())
        assert set(first) == set(shared.objects.objects)
        outcome = await made(shared, topic)
        assert sorted(outcome.done.compacted) == sorted(first)
        again = await made(shared, topic)
        assert (again.topics, again.done.records, again.done.compacted, again.complete) == ([], 0, [], True)

    run(story())


def test_the_log_of_a_restored_table_can_be_lost_again(tmp_path: Path) -> None:
    rows = some_rows(6)
    topic = known(files_of(tmp_path, rows, 6), {})

    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        await made(shared, topic)
        async with broker(shared) as asked:
            before = [await read(asked, partition) for partition in range(3)]
        await lose(shared)
        outcome = await recovered(shared, [topic.model_copy(update={"table": None})])
        assert outcome.complete
        async with broker(shared, 2) as asked:
            assert [await read(asked, partition) for partition in range(3)] == before

    run(story())


@pytest.mark.parametrize("with_table", [True, False])
def test_objects_of_a_command_that_did_not_end_are_given_up(tmp_path: Path, with_table: bool) -> None:
    """The next command has another list of data files, or none."""
    rows = some_rows(7)
    files, landed = files_of(tmp_path, rows, 7), {0: 9_000, 1: 9_000, 2: 9_000}

    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        first = known(files[:2], landed)
        await placeholders.begin(shared.store, shared.objects, [first], [])
        old = await tables.rebuild(shared.objects, process.TABLE_ROWS.validate_python(first.question()), Local())
        topic = known(files, landed) if with_table else first.model_copy(update={"table": None})
        outcome = await made(shared, topic)
        assert outcome.begun.stale == old
        async with broker(shared) as asked:
            found = [
                (partition, offset)
                for partition in range(3)
                for offset, _ in records((await read(asked, partition))[1])
            ]
        assert found == (sorted(rows) if with_table else [])

    run(story())


def test_a_topic_that_has_records_already_is_reported(tmp_path: Path) -> None:
    rows = some_rows(10)
    files = files_of(tmp_path, rows, 10)

    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        async with broker(shared) as asked:
            id = await create(asked, "t", partitions=3)
            await produce(asked, "t", 0, produced([Row(1, None, b"own")], idempotent=False))
        outcome = await made(shared, known(files, {}).model_copy(update={"id": id}))
        assert (outcome.begun.unchanged, outcome.complete) == (["t"], False)

    run(story())


def test_a_topic_with_records_in_the_bucket_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared) as asked:
            id = await create(asked, "t", partitions=2)
            await world.fill(asked, 3)
        await lose(world.shared)
        topic = known([], {}, 2).model_copy(update={"id": id})
        (key, *_) = keys = list(world.shared.objects.objects)
        with pytest.raises(InvalidSpecError, match=rf"topic t: the bucket has records of it, such as those in {key}"):
            await placeholders.begin(world.shared.store, world.shared.objects, [topic], keys)

    run(story())


def test_a_new_database_gets_the_same_log_from_the_same_file(tmp_path: Path) -> None:
    rows = some_rows(11)
    topic = known(files_of(tmp_path, rows, 11), {0: 9_000})

    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        await made(shared, topic)
        async with broker(shared) as asked:
            before = [await read(asked, partition) for partition in range(3)]
        await lose(shared)
        assert (await made(shared, topic)).complete
        async with broker(shared, 2) as asked:
            assert [await read(asked, partition) for partition in range(3)] == before

    run(story())


def test_a_name_of_another_topic_is_refused_before_the_upload(tmp_path: Path) -> None:
    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        async with broker(shared) as asked:
            await create(asked, "t", partitions=3)
        with pytest.raises(InvalidSpecError, match="topic t: the coordinator has a topic of this name"):
            await made(shared, known(files_of(tmp_path, some_rows(12), 12), {}))
        assert not shared.objects.objects

    run(story())


def test_rows_of_other_writers_are_left_out(tmp_path: Path) -> None:
    rows = some_rows(13, partitions=1)
    ours = write(tmp_path / "ours", [(*place, row) for place, row in rows.items()], group=40)
    mixed = pq.read_table(ours.path)
    fields = mixed.schema
    other = pa.table([pa.nulls(3, field.type) for field in fields], schema=fields)
    pq.write_table(pa.concat_tables([other, mixed]), tmp_path / "mixed", row_group_size=50)
    pq.write_table(other, tmp_path / "nulls")
    pq.write_table(pa.table([pa.array([1])], schema=pa.schema([fields.field("other")])), tmp_path / "foreign")
    files = [DataFile(str(tmp_path / name), (tmp_path / name).stat().st_size) for name in ("mixed", "nulls", "foreign")]

    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        assert (await made(shared, known(files, {}, partitions=1))).complete
        async with broker(shared) as asked:
            found = [offset for offset, _ in records((await read(asked, 0))[1])]
        assert found == [offset for _, offset in sorted(rows)]

    run(story())


def test_a_row_group_is_read_once_for_all_partitions(tmp_path: Path) -> None:
    rows = {(partition, offset): Row(1, None, b"v") for offset in range(60) for partition in range(20)}
    in_order = sorted(rows, key=lambda place: (place[1], place[0]))
    file = write(tmp_path / "file", [(*place, rows[place]) for place in in_order], group=100)
    files = Local()

    async def story() -> None:
        asked = process.TABLE_ROWS.validate_python(known([file], {}, partitions=20).question())
        await tables.rebuild(Shared().objects, asked, files)

    run(story())
    assert files.opened == 1 + len(rows) // 100


def test_batches_are_small_beside_large_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "BATCH_BYTES", 2_000)
    rows = {(0, offset): Row(1, None, b"v", [("h", b"x" * 1_000)] if offset < 50 else []) for offset in range(500)}

    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        await made(shared, known(files_of(tmp_path, rows, 1, 2), {}, partitions=1))
        async with broker(shared) as asked:
            assert max(map(len, (await read(asked, 0))[1])) < 5_000

    run(story())


def test_rows_of_partitions_that_the_topic_lacks_are_refused(tmp_path: Path) -> None:
    topic = known(files_of(tmp_path, some_rows(8), 8), {}, partitions=2)

    async def story() -> None:
        with pytest.raises(CorruptDataError, match="rows of partition 2, and the topic has 2 partitions"):
            await tables.rebuild(Shared().objects, process.TABLE_ROWS.validate_python(topic.question()), Local())

    run(story())


def test_offsets_that_are_far_apart_are_in_batches_of_their_own(tmp_path: Path) -> None:
    far = 1 << 40
    offsets = [0, 1, 1 << 28, 3 << 28, far, far + (1 << 31), far + (3 << 31)]
    rows = {(0, offset): Row(1, None, b"%d" % offset) for offset in offsets}

    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        outcome = await made(shared, known(files_of(tmp_path, rows, 1, 2), {}, partitions=1))
        assert outcome.done.complete
        async with broker(shared) as asked:
            _, batches = await read(asked, 0)
            assert [offset for offset, _ in records(batches)] == offsets

    run(story())


def test_windows_cover_all_rows_and_bound_their_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = some_rows(9, partitions=1, most=2_000)
    files = files_of(tmp_path, rows, 9)
    monkeypatch.setattr(tables, "OBJECT_BYTES", 2_000)
    found = [group for file in files for group in groups(file, Local().open(file), FIELDS)]
    parts = list(tables.windows(found))
    assert len(parts) > 10
    assert all(first < end for first, end, _ in parts)
    assert all(one[1] <= other[0] for one, other in pairwise(parts))
    inside = [[offset for _, offset in rows if first <= offset < end] for first, end, _ in parts]
    assert sorted(offset for part in inside for offset in part) == sorted(offset for _, offset in rows)
    assert max(map(len, inside)) < 150
    for first, end, touched in parts:
        assert [group for group in found if group.has(0, first, end - 1)] == [
            group for group in found if group in touched
        ]


def test_windows_of_dense_and_sparse_row_groups_lose_no_offset() -> None:
    file = DataFile("f", 1)
    dense = Group(file, 0, 65 << 20, (0, 0), (0, 0))
    sparse = Group(file, 1, 1_000, (0, 0), (0, 1 << 40))
    parts = [(first, end) for first, end, _ in tables.windows([dense, sparse])]
    assert (parts[0], parts[-1][1]) == ((0, 1), (1 << 40) + 1)
    assert all(one[1] == other[0] for one, other in pairwise(parts))
