"""Producers give a field another type: with NewColumn, each type has a column of its own, whichever driver lands the records."""

import json
from typing import Any

import fastavro
import pytest

from firn_spark.tables.java_tables import quoted
from tests.integration.ingestion.contracts import schema_of
from tests.integration.ingestion.evolution.avro import framed
from tests.integration.ingestion.world import World, exactly, places
from tests.servers.apicurio import Apicurio

KINDS = {"Avro": ("int", "string", "boolean"), "Json": ("integer", "string", "boolean")}
VALUES = (lambda number: number, lambda number: f"n{number}", lambda number: number % 2 == 0)


def schema_text(kind: str, version: int) -> dict[str, Any]:
    name = KINDS[kind][version]
    if kind == "Json":
        return {"type": "object", "properties": {"id": {"type": "integer"}, "total": {"type": name}}}
    return {
        "type": "record",
        "name": "R",
        "fields": [{"name": "id", "type": "long"}, {"name": "total", "type": ["null", name]}],
    }


def avro_value(schema_id: int, version: int, number: int) -> bytes:
    """Return a record with this number in Avro, written with a version of the schema."""
    content = {"id": number, "total": VALUES[version](number)}
    return framed(schema_id, fastavro.parse_schema(schema_text("Avro", version)), content)


@pytest.mark.parametrize("kind", ["Avro", "Json"])
def test_each_type_of_a_field_has_a_column(world: World, registry: Apicurio, kind: str) -> None:
    topic = world.topic()
    subject = f"{topic}-value"
    world.settings = world.settings.model_copy(update={"registries": {"main": registry.connection}})
    numbers: list[int] = []

    def register(version: int) -> None:
        numbers.append(registry.register(subject, schema_text(kind, version), kind.upper()))

    def produce(*writers: int) -> None:
        """Produce a record of each of these versions."""
        end, values = world.end(topic), []
        for number, version in enumerate(writers, end):
            if kind == "Json":
                content = {"id": number, "total": VALUES[version](number)}
                values.append(b"\0" + numbers[version].to_bytes(4) + json.dumps(content).encode())
            else:
                values.append(avro_value(numbers[version], version, number))
        written.extend(writers)
        world.produce(topic, values)

    written: list[int] = []
    register(0)
    contract = schema_of(registry, subject, kind).model_copy(update={"incompatible": "NewColumn"})
    job = world.job(topic, record_schema=contract)
    world.apply(job)
    world.start()
    produce(0, 0)
    register(1)
    produce(1, 0, 1, 0)
    world.await_rows(job, 6)
    world.stop()
    register(2)
    produce(2, 1, 0)
    world.start()
    world.await_rows(job, 9)
    name = quoted(job.table.catalog, job.table.namespace, job.table.name)
    world.spark.sql(f"ALTER TABLE {name} RENAME COLUMN total_v2 TO total_text")
    world.stop()
    produce(0, 1, 2)
    world.start()
    rows = world.await_rows(job, 12)
    assert places(rows) == exactly({0: 12})
    columns = ("total", "total_text", "total_v3")
    for number, (row, version) in enumerate(zip(sorted(rows, key=lambda row: row["id"]), written, strict=True)):
        wanted = [VALUES[version](number) if place == version else None for place in range(3)]
        assert [row[column] for column in columns] == wanted
        assert set(row) == {"id", *columns, "_kafka"}
    assert world.dead(job) == []
