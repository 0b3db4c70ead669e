"""A landing in Spark: in forked Python workers, with commits by the driver."""

import functools
import json
import sys
from collections.abc import Iterator
from typing import Any
from zipimport import zipimporter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import StaticTable

from firn.model.jobs import Column
from firn.tables import rows
from firn_spark.tables.dead_letters import IDENTITY
from firn_spark.worker.fetched import Fetched
from firn_spark.worker.landing import RESULT_DDL, Kind, LandingPlan, TopicLanding, land
from tests.integration.landing.conftest import CATALOG
from tests.integration.landing.tables import commit, java_table, of_kind, table_spec
from tests.unit.spark import records
from tests.unit.spark.tables import iceberg_schema


def create(spark: Any, name: str, columns: Any, partition: str = "", **properties: Any) -> Any:
    """Create a table of these columns."""
    iceberg, identifier = spark._jvm.org.apache.iceberg, f"{CATALOG}.jobs.{name}"
    schema = iceberg.SchemaParser.fromJson(iceberg_schema(columns).model_dump_json())
    names = spark.sparkContext._gateway.new_array(spark._jvm.String, 2)
    names[0], names[1] = "jobs", name
    catalog = iceberg.spark.Spark3Util.loadIcebergCatalog(spark._jsparkSession, CATALOG)
    unpartitioned = iceberg.PartitionSpec.unpartitioned()
    catalog.createTable(
        spark._jvm.org.apache.iceberg.catalog.TableIdentifier.of(names), schema, unpartitioned, None, properties
    )
    if partition:
        spark.sql(f"ALTER TABLE {identifier} ADD PARTITION FIELD {partition}")
    return identifier


def table_columns(job: Any) -> Any:
    return rows.table_columns(job.record_schema, job.table.metadata_columns)


def run(spark: Any, batches: Any, plan: Any) -> Any:
    frame = spark.createDataFrame(pa.Table.from_batches(batches)).coalesce(1)
    results = frame.mapInArrow(functools.partial(land, plan=plan), RESULT_DDL).collect()
    return {name: [(row.kind, json.loads(row.json)) for row in results if row.topic == name] for name in plan.topics}


def test_many_topics_land_in_one_job(spark: Any) -> None:
    flights = records.job(("carrier", "string"), ("delay", "double"), ("at", "timestamptz"))
    raw = records.job(raw_as="String")
    identifiers = {
        "flights": create(spark, "flights", table_columns(flights), "months(at)"),
        "raw": create(spark, "raw", table_columns(raw)),
    }
    letters = create(spark, "flights__dlq", rows.dead_letter_columns(), "days(ingested_at)")
    values = [
        json.dumps({"carrier": "UA", "delay": n / 4, "at": f"2013-0{n % 9 + 1}-01T10:00:00Z"}).encode()
        for n in range(1000)
    ]
    values[500] = b"garbage"
    names = ["raw" if n % 10 == 3 else "flights" for n in range(1000)]
    plan = LandingPlan(
        {
            "flights": TopicLanding(flights, table_spec(spark, identifiers["flights"]), table_spec(spark, letters)),
            "raw": TopicLanding(raw, table_spec(spark, identifiers["raw"])),
        },
        ingested_at=1_700_000_000_000_000,
    )
    headers = [[{"key": "h", "value": b"v"}]] * 1000
    output = run(spark, [records.batch(values, topic=names, headers=headers)], plan)
    for name, identifier in identifiers.items():
        commit(spark, identifier, output[name])
    commit(spark, letters, output["flights"], Kind.DEAD)
    assert spark.table(identifiers["raw"]).count() == 100
    assert spark.table(identifiers["flights"]).where("month(at) = 3").count() == 100
    (letter,) = spark.table(letters).collect()
    assert (bytes(letter.value), letter.error_code, letter._kafka.offset) == (b"garbage", "InvalidJson", 500)
    (stats,) = of_kind(output["flights"], Kind.STATS)
    assert (stats["rows"], stats["dead"]) == (899, 1)
    row = spark.table(identifiers["flights"]).where("_kafka.offset = 7").first()
    assert (row._kafka.headers[0].key, bytes(row._kafka.headers[0].value), row.delay) == ("h", b"v", 1.75)


def test_spark_computes_the_identity_of_a_dead_letter(spark: Any) -> None:
    job = records.job(Column(name="a", type="int", required=True))
    letters = create(spark, "identities__dlq", rows.dead_letter_columns(), "days(ingested_at)")
    values = [None, b"", b"\xff\x00", b"{", "é:1:".encode(), b"x" * 70_000]
    columns = {"key": [b"k", None, b"", b":", b"\xff", b"1:"], "timestamp_ms": [-1, 0, 1, records.NOON, 2**40, 7]}
    bad = records.batch(values, **columns)
    spec = table_spec(spark, create(spark, "identities", table_columns(job)))
    plan = LandingPlan({"t": TopicLanding(job, spec, table_spec(spark, letters))}, ingested_at=0)
    commit(spark, letters, run(spark, [bad], plan)["t"], Kind.DEAD)
    found = {row[0]: bytes(row[1]) for row in spark.table(letters).selectExpr("_kafka.offset", IDENTITY).collect()}
    fetched = Fetched.from_arrow("t", bad)
    assert found == {offset: fetched.identity(offset) for offset in range(len(values))}


@pytest.mark.parametrize("version", ["2", "3"])
def test_files_land_in_tables_of_both_versions(spark: Any, version: str) -> None:
    job = records.job(("a", "int"), Column(name="b", type="string", required=True))
    properties: dict[str, Any] = {"format-version": version}
    identifier = create(spark, f"version{version}", table_columns(job), **properties)
    plan = LandingPlan({"t": TopicLanding(job, table_spec(spark, identifier))}, ingested_at=0)
    for _ in range(2):
        output = run(spark, [records.batch([b'{"a": 1, "b": "x"}', b'{"b": "y"}'])], plan)
        commit(spark, identifier, output["t"])
    assert sorted((row.a or 0, row.b) for row in spark.table(identifier).collect()) == [(0, "y")] * 2 + [(1, "x")] * 2
    if version == "3":
        assert sorted(row._row_id for row in spark.sql(f"SELECT _row_id FROM {identifier}").collect()) == [0, 1, 2, 3]


def test_times_of_day_land_although_spark_cannot_read_them(spark: Any) -> None:
    job = records.job(("time", "time"), ("n", "int"))
    identifier = create(spark, "times", table_columns(job))
    plan = LandingPlan({"t": TopicLanding(job, table_spec(spark, identifier))}, ingested_at=0)
    output = [(row["kind"], json.loads(row["json"])) for batch in land(iter([records.batch([b'{"time": "12:34:56.789", "n": 1}'])]), plan)
             for row in batch.to_pylist()]  # fmt: skip
    table = java_table(spark, identifier)
    append, iceberg = table.newAppend(), spark._jvm.org.apache.iceberg
    for descriptor in of_kind(output, Kind.DATA):
        node = iceberg.util.JsonUtil.mapper().readTree(json.dumps(descriptor))
        append.appendFile(iceberg.ContentFileParser.fromJson(node, table.specs()))
    append.commit()
    arrow = (
        StaticTable.from_metadata(java_table(spark, identifier).operations().current().metadataFileLocation())
        .scan()
        .to_arrow()
    )
    assert str(arrow["time"][0].as_py()) == "12:34:56.789000"


def test_large_records_come_in_bounded_batches(spark: Any) -> None:
    job = records.job(("a", "string"))
    identifier = create(spark, "large", table_columns(job))
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "65536")
    spark.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(4 << 20))
    values = [json.dumps({"a": "x" * (1 << 20)}).encode()] * 24
    plan = LandingPlan({"t": TopicLanding(job, table_spec(spark, identifier))}, ingested_at=0, buffer_bytes=8 << 20)
    output = run(spark, [records.batch(values)], plan)["t"]
    files = [pq.read_metadata(file["file-path"].removeprefix("file://")) for file in of_kind(output, Kind.DATA)]
    assert sum(file.num_row_groups for file in files) >= 3
    commit(spark, identifier, output)
    assert spark.table(identifier).where("length(a) = 1048576").count() == 24


def test_a_worker_imports_nothing_from_archives(spark: Any) -> None:
    def archives(_: Iterator[int]) -> list[str]:
        return [place for place, found in sys.path_importer_cache.items() if isinstance(found, zipimporter)]

    assert spark.sparkContext.parallelize([0], 1).mapPartitions(archives).collect() == []
