"""Computed columns of a real Kafka's records are in the table, and a value that does not fit makes one dead letter."""

import hashlib
from datetime import UTC, datetime

from firn.model.jobs import Column, ProjectedColumn, Projection, RecordSchema
from firn.schemas import projections
from tests.integration.ingestion.world import Record, World, exactly, places, value

FIELDS = (Column(name="id", type="long"), Column(name="name", type="string"), Column(name="score", type="double"))
COLUMNS = (
    ProjectedColumn(name="number", source="$.id"),
    ProjectedColumn(name="digest", source="$.name", function="Sha256"),
    ProjectedColumn(name="account", source="key", cast="int"),
    ProjectedColumn(name="region", source="header:region"),
    ProjectedColumn(name="at", source="$.id", cast="timestamptz", epoch="s"),
    ProjectedColumn(name="origin", constant="web"),
)


def schema_of(*columns: ProjectedColumn) -> RecordSchema:
    projection = Projection(columns=columns, keeps_others=True)
    return projections.resolved(RecordSchema(format="Json", fields=FIELDS, projection=projection))


def test_computed_columns_are_in_the_table(world: World) -> None:
    topic = world.topic()
    job = world.job(
        topic, record_schema=schema_of(*COLUMNS), table={"partition_by": ["region"], "sort_by": ["account"]}
    )
    keys = [b"no number" if n % 10 == 0 else b"%d" % n for n in range(50)]
    headers: list[list[tuple[str, bytes | None]]] = [[("region", b"eu" if n % 2 else b"us")] for n in range(50)]
    world.produce(topic, [Record(value(n), key=keys[n], headers=headers[n]) for n in range(50)])
    world.apply(job)
    world.start()
    for row in world.await_rows(job, 45):
        number = row["number"]
        assert row["digest"] == hashlib.sha256(f"n{number}".encode()).hexdigest()
        assert (row["account"], row["region"]) == (number, "eu" if number % 2 else "us")
        assert row["at"].replace(tzinfo=UTC) == datetime.fromtimestamp(number, UTC)
        assert (row["origin"], row["score"]) == ("web", number / 2)
        assert not {"id", "name"} & row.keys()
    dead = world.dead(job)
    assert {(row["error_code"], row["error_detail"]) for row in dead} == {
        ("InvalidFormat", "column account: key cannot become int, found no number")
    }
    assert places([*world.rows(job), *dead]) == exactly({0: 50})

    more = schema_of(*COLUMNS, ProjectedColumn(name="masked", source="$.name", function="Mask"))
    world.apply(job.model_copy(update={"record_schema": more, "generation": 2}))
    world.await_state(job, "CaughtUp", generation=2)
    world.produce(topic, [Record(value(51), key=b"51")])
    rows = world.await_rows(job, 46)
    assert [row["masked"] for row in rows if row["number"] == 51] == ["***"]
    assert {row["masked"] for row in rows if row["number"] != 51} == {None}
