"""Another engine renames and drops columns during ingestion: fields follow their columns by field id."""

import json
from typing import Any

import fastavro
import pytest

from firn.model.jobs import Column, IngestJob, RecordSchema
from firn_spark.tables.java_tables import quoted
from tests.integration.ingestion.contracts import schema_of
from tests.integration.ingestion.evolution.avro import framed
from tests.integration.ingestion.gates import gate_at
from tests.integration.ingestion.world import WAIT, World, exactly, places
from tests.servers.apicurio import Apicurio
from tests.servers.process import PATIENCE

ALTERED = (
    "RENAME COLUMN name TO title",
    "RENAME COLUMN place.code TO airport",
    "DROP COLUMN score",
    "DROP COLUMN place.city",
)
JSON = RecordSchema(
    format="Json",
    unknown_fields="DeadLetter",
    fields=(
        Column(name="id", type="long", required=True),
        Column(name="name", type="string"),
        Column(name="score", type="double"),
        Column(name="place", type="struct<code: string, city: string>"),
    ),
)
PLACE = {"type": "record", "name": "P", "fields": [{"name": name, "type": "string"} for name in ("code", "city")]}
AVRO: list[Any] = [
    {"name": "id", "type": "long"},
    {"name": "name", "type": "string"},
    {"name": "score", "type": "double"},
    {"name": "place", "type": PLACE},
]


def record(number: int) -> dict[str, Any]:
    return {"id": number, "name": f"n{number}", "score": number / 2, "place": {"code": f"c{number}", "city": "x"}}


def alter(world: World, job: IngestJob) -> None:
    """Change the columns of the table with Spark's SQL."""
    name = quoted(job.table.catalog, job.table.namespace, job.table.name)
    for change in ALTERED:
        world.spark.sql(f"ALTER TABLE {name} {change}")


def check(world: World, job: IngestJob, count: int) -> None:
    """Check that all values are in the columns of their fields, and that no column came again."""
    rows = world.await_rows(job, count)
    assert places(rows) == exactly({0: count})
    for number, row in enumerate(sorted(rows, key=lambda row: row["id"])):
        assert (row["title"], row["place"]) == (f"n{number}", {"airport": f"c{number}"})
        assert row.keys() <= {"id", "title", "place", "_kafka", "more"}
    assert world.dead(job) == []


def test_fields_follow_columns_that_spark_renames_and_drops(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = gate_at("before-commit", monkeypatch)
    topic = world.topic()
    job = world.job(topic, freshness_ms=500, record_schema=JSON)
    world.produce(topic, [json.dumps(record(number)).encode() for number in range(5)])
    world.apply(job)
    world.start()
    world.await_rows(job, 5)
    gate.closed.set()
    world.produce(topic, [json.dumps(record(number)).encode() for number in range(5, 10)])
    assert gate.held.wait(WAIT * PATIENCE)
    alter(world, job)
    gate.open.set()
    check(world, job, 10)
    world.produce(topic, [json.dumps(record(number)).encode() for number in range(10, 15)])
    check(world, job, 15)
    world.stop()
    world.produce(topic, [json.dumps(record(number)).encode() for number in range(15, 20)])
    world.start()
    check(world, job, 20)


def test_fields_of_a_registry_follow_columns_that_spark_renames_and_drops(world: World, registry: Apicurio) -> None:
    topic = world.topic()
    subject = f"{topic}-value"
    world.settings = world.settings.model_copy(update={"registries": {"main": registry.connection}})
    schemas = [{"type": "record", "name": "R", "fields": AVRO}]
    schemas.append({"type": "record", "name": "R", "fields": [*AVRO, {"name": "more", "type": ["null", "int"]}]})
    numbers = [registry.register(subject, schemas[0])]
    job = world.job(topic, record_schema=schema_of(registry, subject))
    numbers.append(registry.register(subject, schemas[1]))

    def produce(writer: int, *ids: int) -> None:
        parsed = fastavro.parse_schema(schemas[writer])
        values = [{**record(number), "more": number} for number in ids]
        world.produce(topic, [framed(numbers[writer], parsed, value) for value in values])

    world.apply(job)
    world.start()
    produce(0, *range(5))
    world.await_rows(job, 5)
    alter(world, job)
    produce(0, *range(5, 10))
    check(world, job, 10)
    produce(1, *range(10, 15))
    check(world, job, 15)
    world.stop()
    world.start()
    produce(0, *range(15, 20))
    produce(1, *range(20, 25))
    check(world, job, 25)


def test_a_field_follows_a_column_that_spark_adds_and_then_renames(world: World, registry: Apicurio) -> None:
    topic = world.topic()
    subject = f"{topic}-value"
    world.settings = world.settings.model_copy(update={"registries": {"main": registry.connection}})
    first: list[Any] = [{"name": "id", "type": "long"}]
    later = [*first, {"name": "note", "type": ["null", "string"]}]
    schemas = [{"type": "record", "name": "R", "fields": fields} for fields in (first, later)]
    numbers = [registry.register(subject, schemas[0])]
    job = world.job(topic, freshness_ms=500, record_schema=schema_of(registry, subject))
    numbers.append(registry.register(subject, schemas[1]))

    def produce(writer: int, *ids: int) -> None:
        parsed = fastavro.parse_schema(schemas[writer])
        world.produce(topic, [framed(numbers[writer], parsed, {"id": each, "note": f"n{each}"}) for each in ids])

    def sql(change: str) -> None:
        world.spark.sql(f"ALTER TABLE {quoted(job.table.catalog, job.table.namespace, job.table.name)} {change}")

    world.apply(job)
    world.start()
    produce(0, 0)
    world.await_rows(job, 1)
    sql("ADD COLUMN note string")
    produce(1, 1)
    world.await_rows(job, 2)
    sql("RENAME COLUMN note TO remark")
    for number in (2, 3):
        produce(1, number)
        rows = world.await_rows(job, number + 1)
    assert [row["remark"] for row in rows] == [None, "n1", "n2", "n3"]
    assert rows[0].keys() == {"id", "remark", "_kafka"}
    assert world.dead(job) == []
