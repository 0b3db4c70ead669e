"""Row groups by Kafka partition, in files of ingestion and of compaction."""

import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import IdentityTransform

from firn.model.jobs import Column
from firn.model.names import HISTORY, SINGLE
from firn.tables.rows import metadata_columns
from firn_spark.worker import row_groups
from firn_spark.worker.data_files import DataFileWriter, TableSpec, arrow_schema
from firn_spark.worker.row_groups import are_by_partition, by_partition
from tests.unit.spark import tables
from tests.unit.spark.test_merging import merged, plan, source


def rows(partitions: list[int], size: int = 100, *, flat: bool = False) -> pa.Table:
    """Return rows of these partitions with values of ``size`` bytes. Each has its place as its offset."""
    numbers, offsets = pa.array(partitions, pa.int32()), pa.array(range(len(partitions)), pa.int64())
    value = pa.array([b"v" * size] * len(partitions))
    if flat:
        return pa.table({"value": value, "_kafka_partition": numbers, "_kafka_offset": offsets})
    return pa.table({"value": value, "_kafka": pa.StructArray.from_arrays([numbers, offsets], ["partition", "offset"])})


def found(parts: list[pa.Table]) -> list[list[tuple[int, int]]]:
    return [[(row["_kafka"]["partition"], row["_kafka"]["offset"]) for row in part.to_pylist()] for part in parts]


@pytest.fixture(autouse=True)
def small_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "LEAST_BYTES", 1_000)


def test_each_partition_with_enough_rows_has_row_groups_of_its_own() -> None:
    partitions = random.Random(1).sample([0] * 30 + [1] * 30 + [5] * 30, 90)
    parts = found(list(by_partition(rows(partitions))))
    assert [{partition for partition, _ in part} for part in parts] == [{0}, {1}, {5}]
    for part in parts:
        assert part == sorted(part)


def test_partitions_with_few_rows_share_a_row_group() -> None:
    partitions = [0] * 30 + [1, 2, 3] + [4] * 30 + [5]
    parts = found(list(by_partition(rows(partitions))))
    assert [sorted({partition for partition, _ in part}) for part in parts] == [[0], [1, 2, 3, 4, 5]]
    assert [row for part in parts for row in part] == [(part, place) for place, part in enumerate(partitions)]


@pytest.mark.parametrize("seed", range(20))
def test_no_row_is_lost_and_none_is_doubled(seed: int) -> None:
    rng = random.Random(seed)
    partitions = [rng.randrange(rng.choice([1, 3, 40])) for _ in range(rng.randrange(1, 200))]
    parts = list(by_partition(rows(partitions, rng.choice([1, 50, 500]), flat=True)))
    read = pa.concat_tables(parts)
    wanted = sorted((partition, place) for place, partition in enumerate(partitions))
    assert list(zip(read["_kafka_partition"].to_pylist(), read["_kafka_offset"].to_pylist(), strict=True)) == wanted
    assert all(part.num_rows for part in parts)


def test_a_row_group_has_a_bound_for_readers_of_many_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_groups, "MOST_BYTES", 4_000)
    parts = list(by_partition(rows([0] * 100 + [1] * 10)))
    assert [len(part) for part in parts] == [33, 33, 34, 10]
    assert max(part.nbytes for part in parts) <= 4_000
    assert [len(part) for part in by_partition(rows([0] * 3, 9_000))] == [1, 1, 1], "each row has more"


def test_a_table_without_rows_has_no_row_group() -> None:
    assert list(by_partition(rows([]))) == []


def test_a_property_of_the_table_decides() -> None:
    assert are_by_partition({HISTORY: SINGLE})
    assert not are_by_partition({HISTORY: "Copy"})
    assert not are_by_partition({})


def test_columns_with_dictionaries_stay_as_they_are(tmp_path: Path) -> None:
    table = rows([1, 0] * 500)
    table = table.set_column(0, "value", table["value"].dictionary_encode())
    with pq.ParquetWriter(tmp_path / "file", table.schema) as writer:
        for part in by_partition(table):
            writer.write_table(part)
    assert pq.ParquetFile(tmp_path / "file").metadata.num_row_groups == 2


VALUE = Column(name="value", type="binary")


def kafka_rows(spec: TableSpec, partitions: list[int]) -> pa.Table:
    """Return rows of these partitions as a task has them."""
    schema = arrow_schema(Schema.model_validate_json(spec.schema))
    kafka = schema.field("_kafka").type
    members = [pa.nulls(len(partitions), each.type) for each in kafka]
    members[0], members[1] = pa.array(partitions, pa.int32()), pa.array(range(len(partitions)), pa.int64())
    struct = pa.StructArray.from_arrays(members, fields=list(kafka))
    return pa.table([pa.array([b"v" * 90] * len(partitions)), struct], schema=schema)


def of_row_groups(text: dict[str, Any]) -> list[set[int]]:
    """Return the partitions of each row group of a file."""
    file = pq.ParquetFile(text["file-path"].removeprefix("file://"))
    return [
        set(file.read_row_group(number)["_kafka"].combine_chunks().field("partition").to_pylist())
        for number in range(file.metadata.num_row_groups)
    ]


@pytest.mark.parametrize("history", ["Single", "Copy"])
def test_ingestion_and_compaction_write_them_if_the_table_says_so(tmp_path: Path, history: str) -> None:
    spec = tables.table_spec(tmp_path, (VALUE, *metadata_columns("Struct")), properties={HISTORY: history})
    shuffled = random.Random(2).sample([0] * 40 + [1] * 40, 80)
    writer = DataFileWriter(spec)
    written = [json.loads(text) for text in [*writer.write(kafka_rows(spec, shuffled)), *writer.finish()]]
    mixed = [source(tmp_path, kafka_rows(spec, shuffled), number) for number in (1, 2)]
    (new,) = merged(plan(spec, mixed))
    wanted = [{0}, {1}] if history == "Single" else [{0, 1}]
    assert of_row_groups(written[0]) == of_row_groups(new) == wanted
    assert (written[0]["record-count"], new["record-count"]) == (80, 160)


def test_files_of_a_sorted_table_keep_its_order(tmp_path: Path) -> None:
    order = SortOrder(SortField(source_id=1, transform=IdentityTransform()), order_id=1).model_dump_json()
    columns = (VALUE, *metadata_columns("Struct"))
    spec = tables.table_spec(tmp_path, columns, properties={HISTORY: SINGLE}, sort_order=order)
    writer = DataFileWriter(spec)
    (text,) = writer.write(kafka_rows(spec, [1, 0] * 40))
    assert of_row_groups(json.loads(text)) == [{0, 1}]
