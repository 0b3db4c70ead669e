"""Compare data files and descriptors with those of Iceberg's own writer for the same rows."""

import base64
import datetime
import json
import random
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg import types
from pyiceberg.expressions import EqualTo, GreaterThanOrEqual
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable
from pyiceberg.transforms import parse_transform
from pyiceberg.types import NestedField

from firn_spark.worker.data_files import DELTA
from firn_spark.worker.landing import Kind, LandingPlan, TopicLanding, land
from tests.integration.landing.conftest import CATALOG
from tests.integration.landing.tables import commit, java_table, of_kind, results, table_spec
from tests.unit.spark import records

FIELDS = {
    "flag": "boolean", "small": "int", "big": "long", "single": "float", "double": "double", "name": "string",
    "price": "decimal(9, 2)", "huge": "decimal(38, 10)", "day": "date", "local": "timestamp", "at": "timestamptz",
    "id": "uuid", "blob": "binary", "digest": "fixed[4]", "tags": "list<string>", "scores": "map<string, long>",
    "place": "struct<city: string, at: struct<lat: double, since: timestamptz>>",
}  # fmt: skip
METADATA = types.StructType(
    NestedField(101, "partition", types.IntegerType(), required=False),
    NestedField(102, "offset", types.LongType(), required=False),
    NestedField(103, "timestamp", types.TimestamptzType(), required=False),
    NestedField(104, "timestamp_ms", types.LongType(), required=False),
    NestedField(105, "timestamp_type", types.IntegerType(), required=False),
    NestedField(106, "key", types.BinaryType(), required=False),
    NestedField(
        107,
        "headers",
        types.ListType(
            108,
            types.StructType(
                NestedField(109, "key", types.StringType(), required=False),
                NestedField(110, "value", types.BinaryType(), required=False),
            ),
            element_required=False,
        ),
        required=False,
    ),
)
PLACE = types.StructType(
    NestedField(51, "city", types.StringType(), required=False),
    NestedField(
        52,
        "at",
        types.StructType(
            NestedField(53, "lat", types.DoubleType(), required=False),
            NestedField(54, "since", types.TimestamptzType(), required=False),
        ),
        required=False,
    ),
)
ICEBERG = {
    "flag": types.BooleanType(), "small": types.IntegerType(), "big": types.LongType(), "single": types.FloatType(),
    "double": types.DoubleType(), "name": types.StringType(), "price": types.DecimalType(9, 2),
    "huge": types.DecimalType(38, 10), "day": types.DateType(), "local": types.TimestampType(), "at": types.TimestamptzType(),
    "id": types.UUIDType(), "blob": types.BinaryType(), "digest": types.FixedType(4),
    "tags": types.ListType(41, types.StringType(), element_required=False),
    "scores": types.MapType(42, types.StringType(), 43, types.LongType(), value_required=False),
    "place": PLACE, "_kafka": METADATA,
}  # fmt: skip
SCHEMA = Schema(
    *(NestedField(place + 1, name, kind, required=False) for place, (name, kind) in enumerate(ICEBERG.items()))
)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def random_value(name: str, chance: random.Random) -> Any:
    if chance.random() < 0.15:
        return None
    micros = chance.randrange(-(10**15), 3 * 10**15)
    moment = EPOCH + datetime.timedelta(microseconds=micros)
    raw = bytes(chance.randrange(256) for _ in range(4))
    return {
        "flag": chance.random() < 0.5,
        "small": chance.randrange(-(2**31), 2**31),
        "big": chance.choice([-(2**63), 2**63 - 1, chance.randrange(-1000, 1000)]),
        "single": chance.uniform(-1e6, 1e6),
        "double": chance.choice([chance.uniform(-1e300, 1e300), 0.1, -1.5]),
        "name": chance.choice(
            ["", "Zürich", "a" * 40, "\ud7ff" * 20, "\U0010ffff" * 18, f"n{chance.randrange(5)}", "😀 smile"]
        ),
        "price": str(Decimal(chance.randrange(-(10**9) + 1, 10**9)).scaleb(-2)),
        "huge": str(Decimal(chance.randrange(-(10**37), 10**37)).scaleb(-10)),
        "day": moment.date().isoformat(),
        "local": moment.replace(tzinfo=None).isoformat(),
        "at": moment.isoformat(),
        "id": str(uuid.UUID(int=chance.getrandbits(128))),
        "blob": pybase64(b"\xff" * 20 if chance.random() < 0.2 else raw * chance.randrange(8)),
        "digest": pybase64(raw),
        "tags": [chance.choice(["x", None, "long" * 20]) for _ in range(chance.randrange(4))],
        "scores": {f"k{index}": chance.choice([None, index]) for index in range(chance.randrange(3))},
        "place": {"city": "Bern", "at": chance.choice([None, {"lat": chance.random(), "since": moment.isoformat()}])},
    }[name]


def pybase64(data: bytes) -> Any:
    return base64.b64encode(data).decode()


def random_batch(seed: str | int, count: int = 60) -> Any:
    chance = random.Random(seed)
    values = [{name: random_value(name, chance) for name in FIELDS} for _ in range(count)]
    times = [chance.choice([-1000, 0, chance.randrange(0, 4 * 10**12) * 1000]) for _ in range(count)]
    return values, records.batch([json.dumps(value).encode() for value in values], timestamp=times)


def create(spark: Any, name: str, spec: Any = (), sort: str = "", properties: Any = None) -> Any:
    """Create a table of `SCHEMA`. ``spec`` has (transform, column) pairs."""
    iceberg, identifier = spark._jvm.org.apache.iceberg, f"{CATALOG}.n.{name}"
    fields = [
        PartitionField(source_id=SCHEMA.find_field(column).field_id, field_id=1000 + place, transform=parse_transform(transform),
                       name=f"{column.replace('.', '_')}_{transform.partition('[')[0]}_{place}")
        for place, (transform, column) in enumerate(spec)
    ]  # fmt: skip
    schema = iceberg.SchemaParser.fromJson(SCHEMA.model_dump_json())
    java_spec = iceberg.PartitionSpecParser.fromJson(schema, PartitionSpec(*fields, spec_id=0).model_dump_json())
    catalog = iceberg.spark.Spark3Util.loadIcebergCatalog(spark._jsparkSession, CATALOG)
    tables = spark._jvm.org.apache.iceberg.catalog
    names = spark.sparkContext._gateway.new_array(spark._jvm.String, 2)
    names[0], names[1] = "n", name
    catalog.createTable(tables.TableIdentifier.of(names), schema, java_spec, None, properties or {})
    if sort:
        spark.sql(f"ALTER TABLE {identifier} WRITE LOCALLY ORDERED BY {sort}")
    return identifier


def landed(spark: Any, identifier: str, batch: Any, job: Any = None) -> Any:
    job = job or records.job(*FIELDS.items())
    plan = LandingPlan({"t": TopicLanding(job, table_spec(spark, identifier))}, ingested_at=1_700_000_000_000_000)
    output = results(land(iter([batch]), plan))
    assert not of_kind(output, Kind.ERROR)
    commit(spark, identifier, output)
    return output


COUNTS = ("value-counts", "null-value-counts", "nan-value-counts")
BOUNDS = ("lower-bounds", "upper-bounds")


def files(spark: Any, identifier: str) -> Any:
    """Return rows and column metrics by partition, as Iceberg reads them back."""
    iceberg, table = spark._jvm.org.apache.iceberg, java_table(spark, identifier)
    tasks = table.newScan().includeColumnStats().planFiles().iterator()
    by_partition = {}
    while tasks.hasNext():
        file = json.loads(iceberg.ContentFileParser.toJson(tasks.next().file(), table.spec()))
        key = repr(file["partition"])
        assert key not in by_partition, "one file a partition"
        metrics = {name: dict(zip(file[name]["keys"], file[name]["values"], strict=True)) for name in COUNTS + BOUNDS}
        sized = sorted(file["column-sizes"]["keys"])
        by_partition[key] = {
            "rows": file["record-count"],
            "groups": len(file["split-offsets"]),
            "sized": sized,
            **metrics,
        }
    return by_partition


SPECS = {
    "none": [],
    "identity": [("identity", "flag"), ("identity", "small")],
    "identities of texts": [("identity", "name"), ("identity", "day")],
    "identities of times": [("identity", "at"), ("identity", "local")],
    "identities of the rest": [("identity", "price"), ("identity", "digest")],
    "identity of a double": [("identity", "double")],
    "bytes and ids": [("identity", "blob"), ("identity", "id")],
    "buckets of numbers": [("bucket[5]", "small"), ("bucket[3]", "big"), ("bucket[2]", "price")],
    "buckets of texts": [("bucket[3]", "name"), ("bucket[4]", "id"), ("bucket[2]", "blob")],
    "buckets of times": [("bucket[3]", "day"), ("bucket[4]", "at"), ("bucket[2]", "local"), ("bucket[2]", "digest")],
    "bucket of a large decimal": [("bucket[7]", "huge")],
    "truncated": [("truncate[3]", "name"), ("truncate[1000000000]", "small")],
    "truncated bytes": [("truncate[2]", "blob"), ("truncate[1000]", "price")],
    "truncated large": [("truncate[7]", "big"), ("truncate[100]", "huge")],
    "calendar": [("year", "day"), ("month", "at")],
    "days": [("day", "local"), ("year", "at")],
    "hours": [("hour", "at")],
    "void": [("void", "name"), ("year", "local")],
    "members": [("month", "_kafka.timestamp"), ("year", "place.at.since"), ("bucket[2]", "_kafka.offset")],
}  # fmt: skip


@pytest.mark.parametrize("name", SPECS)
def test_partitions_counts_and_bounds_equal_those_of_icebergs_writer(spark: Any, name: str) -> None:
    ours = create(spark, f"ours_{list(SPECS).index(name)}", SPECS[name])
    theirs = create(
        spark, f"theirs_{list(SPECS).index(name)}", SPECS[name], properties={"write.distribution-mode": "hash"}
    )
    _, batch = random_batch(seed=name)
    landed(spark, ours, batch)
    spark.table(ours).repartition(1).sortWithinPartitions("_kafka.offset").writeTo(theirs).option(
        "fanout-enabled", True
    ).append()
    mine, oracle = files(spark, ours), files(spark, theirs)
    assert mine.keys() == oracle.keys()
    for partition, file in oracle.items():
        for name in BOUNDS:
            file[name].pop(SCHEMA.find_field("id").field_id, None)  # engines do not agree on the order of UUIDs
        assert mine[partition] == file


@pytest.mark.parametrize("delta", ["false", "true"])
def test_rows_read_back_equal_the_records(spark: Any, delta: str) -> None:
    table = create(spark, f"values_{delta}", properties={DELTA: delta})
    values, batch = random_batch(seed=1)
    landed(spark, table, batch)
    rows = spark.table(table).orderBy("_kafka.offset").collect()
    assert len(rows) == len(values)
    for row, value in zip(rows, values, strict=True):
        for name in ("flag", "small", "big", "name", "double", "tags", "scores", "id"):
            assert row[name] == value[name]
        for name in ("price", "huge"):
            assert row[name] == (None if value[name] is None else Decimal(value[name]))
        for name in ("blob", "digest"):
            assert (row[name] and pybase64(row[name])) == (value[name] or row[name])
        assert (row.day and row.day.isoformat()) == value["day"]
        assert (row.place and row.place.city) == (value["place"] and "Bern")
    arrow = (
        StaticTable.from_metadata(java_table(spark, table).operations().current().metadataFileLocation())
        .scan()
        .to_arrow()
    )
    assert sorted(arrow["_kafka"].combine_chunks().field("offset").to_pylist()) == list(range(len(values)))
    by_offset = {row["_kafka"]["offset"]: row for row in arrow.to_pylist()}
    for offset, value in enumerate(values):
        at = by_offset[offset]["at"]
        assert (at and at.isoformat()) == value["at"]
        place = value["place"]
        expected = place and place["at"] and place["at"]["lat"]
        struct = by_offset[offset]["place"]
        assert (struct and struct["at"] and struct["at"]["lat"]) == expected


def test_both_engines_prune_by_partition_and_by_bounds(spark: Any) -> None:
    table = create(spark, "pruned", [("day", "at")])
    values = [
        {"at": f"2024-03-0{day}T12:00:00Z", "small": day * 100 + index} for day in range(1, 6) for index in range(10)
    ]
    batch = records.batch([json.dumps(value).encode() for value in values])
    landed(spark, table, batch)
    static = StaticTable.from_metadata(java_table(spark, table).operations().current().metadataFileLocation())
    assert len(list(static.scan().plan_files())) == 5
    by_partition = static.scan(row_filter=GreaterThanOrEqual(term="at", value="2024-03-05T00:00:00+00:00"))
    assert len(list(by_partition.plan_files())) == 1
    assert by_partition.to_arrow().num_rows == 10
    assert len(list(static.scan(row_filter=EqualTo(term="small", value=307)).plan_files())) == 1
    assert len(list(static.scan(row_filter=EqualTo(term="_kafka.offset", value=7)).plan_files())) == 1
    for condition, rows in (
        ("small = 307", 1),
        ("at >= timestamp '2024-03-05 00:00:00'", 10),
        ("_kafka.offset = 7", 1),
    ):
        read = spark.sql(f"SELECT small, input_file_name() AS file FROM {table} WHERE {condition}").collect()
        assert len(read) == rows
        assert len({row.file for row in read}) == 1


def test_rows_have_the_sort_order_of_the_table(spark: Any) -> None:
    table = create(spark, "ordered", [("bucket[2]", "big")], sort="small DESC NULLS LAST, name ASC NULLS FIRST")
    _, batch = random_batch(seed=5)
    output = landed(spark, table, batch)
    assert {file["sort-order-id"] for file in of_kind(output, Kind.DATA)} == {1}
    for file in of_kind(output, Kind.DATA):
        rows = pa.parquet.read_table(file["file-path"].removeprefix("file:")).to_pylist()
        keys = [
            (row["small"] is None, -(row["small"] or 0), row["name"] is not None, (row["name"] or "").encode())
            for row in rows
        ]
        assert keys == sorted(keys)


def test_every_row_lands_once_with_little_memory_and_small_files(spark: Any) -> None:
    table = create(spark, "pieces", [("bucket[3]", "small")], properties={"write.target-file-size-bytes": "10000"})
    job = records.job(*FIELDS.items())
    parts = [random_batch(seed)[1] for seed in range(6)]
    moved = [part.set_column(part.schema.get_field_index("offset"), "offset", pa.array(range(place * 60, place * 60 + 60)))
             for place, part in enumerate(parts)]  # fmt: skip
    plan = LandingPlan({"t": TopicLanding(job, table_spec(spark, table))}, ingested_at=0, buffer_bytes=25_000)
    output = results(land(iter(moved), plan))
    commit(spark, table, output)
    assert len(of_kind(output, Kind.DATA)) > 6
    offsets = [row.offset for row in spark.sql(f"SELECT _kafka.offset FROM {table}").collect()]
    assert sorted(offsets) == list(range(360))
    (stats,) = of_kind(output, Kind.STATS)
    expected = {
        "rows": 360,
        "dead": 0,
        "skipped": 0,
        "excluded": 0,
        "unrouted": 0,
        "bytes": sum(map(payload, moved)),
        "partitions": {"0": [360, 0, 359]},
    }
    assert {key: stats[key] for key in expected} == expected


def payload(batch: Any) -> Any:
    return sum(len(value) for value in batch["value"].to_pylist())
