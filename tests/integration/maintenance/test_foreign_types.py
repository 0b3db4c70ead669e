"""Tables with columns of types that Firn does not write, or that Spark does not read: nothing stops, and no value is lost."""

import json
from typing import Any

import pyarrow.parquet as pq
import pytest

from firn.model.errors import ConflictError
from firn.model.jobs import Column
from firn.model.maintenance import CompactionWork, RetentionWork, SnapshotsWork
from tests.integration.maintenance.lake import DAY, FIELDS, Lake, Topic

NOW = CompactionWork(open_grace_ms=0)


def add(topic: Topic, name: str, kind: str) -> None:
    """Add a column as another engine does."""
    iceberg = topic.lake.spark._jvm.org.apache.iceberg
    topic.table.updateSchema().addColumn(name, iceberg.types.Types.fromPrimitiveString(kind)).commit()
    topic.spec = topic.tables.spec(topic.table)


def evolve(topic: Topic, *columns: Column) -> None:
    """Let the driver add columns of the topic."""
    schema = topic.job.record_schema
    topic.job = topic.job.model_copy(
        update={"record_schema": schema.model_copy(update={"fields": (*schema.fields, *columns)})}
    )
    topic.table = topic.tables.ensure(topic.job)
    topic.spec = topic.tables.spec(topic.table)


def with_other_type(lake: Lake, kind: str) -> Topic:
    """Return a table with rows before and after another engine adds the column ``other``. The driver then adds ``note``."""
    topic = lake.topic(format_version=3)
    topic.ingest(2)
    add(topic, "other", kind)
    topic.ingest(2)
    evolve(topic, Column(name="note", type="string"))
    return topic


@pytest.mark.parametrize(
    "kind", ["geometry", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("geography", "unknown"))]
)
def test_a_column_that_only_spark_knows_stays_as_it_is(lake: Lake, kind: str) -> None:
    topic = with_other_type(lake, kind)
    topic.ingest(2, more={"note": "x"})
    report = lake.run(topic.work(compaction=NOW))
    assert (report.outcome, report.files_after) == ("Done", 1)
    topic.check()
    assert [row["note"] for row in topic.rows()] == [None] * 40 + ["x"] * 20
    assert "other" in topic.rows()[0]


@pytest.mark.parametrize(
    "kind", ["time", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("timestamp_ns", "geometry(srid:4326)"))]
)
def test_files_of_a_table_that_spark_cannot_read_stay_as_they_are(lake: Lake, kind: str) -> None:
    topic = with_other_type(lake, kind)
    topic.ingest(1, more={"note": "x"})
    everything = RetentionWork(
        enforce=True, snapshots=SnapshotsWork(max_age_ms=0, min_keep=1), orphan_min_age_ms=DAY, metadata_keep=1
    )
    report = lake.run(topic.work(compaction=NOW, retention=everything))
    assert (report.outcome, report.files_after) == ("Done", 0)
    assert (
        report.message
        == f"column other has type {kind}, which Spark cannot read: the run leaves the data files as they are"
    )
    assert report.snapshots is not None
    assert report.snapshots.items > 0
    assert topic.fresh().currentSnapshot().summary()["total-data-files"] == "5"


VARIANTS: tuple[Any, ...] = (
    {"a": [1, 2.5, "x", None, True], "b": {"c": "long " * 40, "ä": -(2**40)}, "": {}},
    [], "text", 12345678901234567890, 1e300, -0.001, False, {str(n): n for n in range(300)}, [{"k": [n]} for n in range(300)],
)  # fmt: skip


def test_variants_are_what_spark_makes_of_the_same_json(lake: Lake) -> None:
    fields = (*FIELDS, Column(name="loose", type="variant"), Column(name="all", type="list<variant>"))
    topic = lake.topic(fields=fields, format_version=3)
    for number, value in enumerate(VARIANTS):
        topic.ingest(1, 1, more={"loose": value, "all": [value, None]} if number else {"loose": value})
    topic.ingest(1, 1)

    def check() -> None:
        rows = topic.sql_rows("SELECT to_json(loose) AS text, to_json(all) AS texts FROM {t} ORDER BY id")
        expected = [json.dumps(value, ensure_ascii=False) for value in VARIANTS]
        parsed = lake.spark.createDataFrame([(text,) for text in expected], "text string")
        same = [row[0] for row in parsed.selectExpr("to_json(parse_json(text))").collect()]
        assert [row["text"] for row in rows] == [*same, None]
        assert [row["texts"] for row in rows] == [None, *(f"[{text},null]" for text in same[1:]), None]

    check()
    report = lake.run(topic.work(compaction=NOW))
    assert (report.outcome, report.files_after) == ("Done", 1)
    check()
    (file,) = topic.data_files()
    footer = pq.ParquetFile(lake.path(file["file_path"])).schema
    assert "loose (Variant(1))" in str(footer)
    assert pq.read_metadata(lake.path(file["file_path"])).created_by.startswith("parquet-cpp-arrow")


def test_nanoseconds_are_in_the_files(lake: Lake) -> None:
    at = {"fine": "2024-02-29T12:00:00.123456789", "zoned": 1_700_000_000_123_456_789}
    fields = (
        *FIELDS,
        Column(name="fine", type="timestamp_ns"),
        Column(name="zoned", type="timestamptz_ns", epoch="ns"),
    )
    topic = lake.topic(fields=fields, format_version=3, partition_by=("day(fine)",))
    topic.ingest(more=at)
    iceberg = lake.spark._jvm.org.apache.iceberg
    row = iceberg.data.IcebergGenerics.read(topic.fresh()).build().iterator().next()
    assert [str(row.getField(name)) for name in at] == [
        "2024-02-29T12:00:00.123456789",
        "2023-11-14T22:13:20.123456789Z",
    ]
    task = topic.fresh().newScan().includeColumnStats().planFiles().iterator().next()
    ids = {str(field.name()): field.fieldId() for field in topic.fresh().schema().columns()}
    bound = iceberg.types.Conversions.fromByteBuffer(
        topic.fresh().schema().findType(ids["zoned"]), task.file().lowerBounds().get(ids["zoned"])
    )
    assert bound == 1_700_000_000_123_456_789
    assert str(pq.read_schema(lake.path(str(task.file().location()))).field("fine").type) == "timestamp[ns]"


def test_a_table_gets_the_version_before_the_columns_that_need_it(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest()
    target = topic.job.table.model_copy(update={"format_version": 3})
    topic.job = topic.job.model_copy(update={"table": target})
    evolve(topic, Column(name="loose", type="variant"), Column(name="usual", type="decimal(9, 2)", default="1.5"))
    topic.ingest(more={"loose": [1]})
    topic.ingest(more={"usual": None})
    rows = topic.sql_rows("SELECT to_json(loose) AS text, CAST(usual AS STRING) AS usual FROM {t} ORDER BY id")
    assert [(row["text"], row["usual"]) for row in rows] == [(None, "1.50")] * 10 + [("[1]", "1.50")] * 10 + [
        (None, None)
    ] * 10
    fields = topic.job.record_schema.fields
    changed = fields[-1].model_copy(update={"default": "2.5"})
    schema = topic.job.record_schema.model_copy(update={"fields": (*fields[:-1], changed)})
    topic.job = topic.job.model_copy(update={"record_schema": schema})
    column = topic.tables.ensure(topic.job).schema().findField("usual")
    assert (str(column.initialDefault()), str(column.writeDefault())) == ("1.50", "2.50")


def test_a_default_that_the_type_rounds_is_no_change(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic(format_version=3)
    near = Column(name="near", type="float", default="0.1000000001")
    far = Column(name="far", type="float", default="16777217")
    evolve(topic, near, far, Column(name="none", type="decimal(5, 2)", default="-0"))
    changes: list[Any] = []
    monkeypatch.setattr(topic.tables, "_change", lambda *changed: changes.append(changed))
    topic.table = topic.tables.ensure(topic.job)
    assert changes == []
    topic.ingest(1, 1)
    (row,) = topic.sql_rows("SELECT CAST(near AS STRING) AS near, far, CAST(none AS STRING) AS none FROM {t}")
    assert (row["near"], row["far"], row["none"]) == ("0.1", 16777216.0, "0.00")


def test_new_rows_have_the_defaults_of_members(lake: Lake) -> None:
    fields = (
        *FIELDS,
        Column(name="price", type="struct<amount: long>"),
        Column(name="parts", type="list<struct<n: int>>"),
    )
    topic = lake.topic(fields=fields, format_version=3)
    topic.ingest(1, 1, more={"price": {"amount": 1}, "parts": [{"n": 1}]})
    iceberg = lake.spark._jvm.org.apache.iceberg
    text = iceberg.types.Types.fromPrimitiveString("string")
    euro = iceberg.expressions.Expressions.lit("EUR")
    update = topic.table.updateSchema().addRequiredColumn("price", "currency", text, None, euro)
    update.addColumn("parts.element", "unit", text, None, iceberg.expressions.Expressions.lit("kg")).commit()
    topic.table = topic.tables.ensure(topic.job)
    topic.table.updateSchema().updateColumnDefault(
        "price.currency", iceberg.expressions.Expressions.lit("USD")
    ).commit()
    topic.spec = topic.tables.spec(topic.table)
    topic.ingest(1, 1, more={"price": {"amount": 2}, "parts": [{"n": 2}, {"n": 3}]})
    topic.ingest(1, 1)
    found = topic.sql_rows("SELECT to_json(price) AS price, to_json(parts) AS parts FROM {t} ORDER BY id")
    assert [(row["price"], row["parts"]) for row in found] == [
        ('{"amount":1,"currency":"EUR"}', '[{"n":1,"unit":"kg"}]'),
        ('{"amount":2,"currency":"USD"}', '[{"n":2,"unit":"kg"},{"n":3,"unit":"kg"}]'),
        (None, None),
    ]


def test_a_required_member_that_the_schema_lacks_is_refused(lake: Lake) -> None:
    topic = lake.topic(fields=(*FIELDS, Column(name="price", type="struct<amount: long>")), format_version=3)
    topic.ingest(1, 1)
    text = lake.spark._jvm.org.apache.iceberg.types.Types.fromPrimitiveString("string")
    update = topic.table.updateSchema().allowIncompatibleChanges()
    update.addRequiredColumn("price", "currency", text).commit()
    with pytest.raises(ConflictError, match=r"required column price\.currency is not in the schema"):
        topic.tables.ensure(topic.job)
