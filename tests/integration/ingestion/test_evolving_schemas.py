"""Producers change their schemas at random while the driver is killed at random: no row is lost or under a wrong column."""

import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from firn.model.jobs import IngestJob
from firn.schemas.versions import read_versions
from firn_spark.jvm import texts
from firn_spark.tables.java_tables import quoted
from firn_spark.worker.fetched import Numbers
from tests.integration.ingestion.contracts import schema_of
from tests.integration.ingestion.evolution.avro import Avro
from tests.integration.ingestion.evolution.checks import Checks
from tests.integration.ingestion.evolution.evolution import Evolution
from tests.integration.ingestion.evolution.json_schema import Json
from tests.integration.ingestion.evolution.protobuf import Protobuf
from tests.integration.ingestion.evolution.shape import Format, Version
from tests.integration.ingestion.world import Process, Record, World
from tests.servers.apicurio import Apicurio
from tests.servers.process import await_true

LONG = "FIRN_LONG" in os.environ
SEED = int(os.environ.get("FIRN_SEED", random.randrange(2**32) if LONG else 11))
EARLIER = 20
"""Earlier versions that the second producer writes in a step."""
SECONDS = 1200 if LONG else 240
"""Time for the rows that wait after the last record."""
READ_AT_ONCE = 200_000
PARTITIONS = (0, 1)


@dataclass(frozen=True)
class Story:
    """A format, and the policy for schemas that the table cannot hold.

    ``versions`` of the schema, ``records`` of each step, ``drivers`` one after the other, of which all but the last are killed, and
    earlier ``snapshots`` to read. Each is read with the schema that the table had then.
    """

    make: Callable[[], Format]
    incompatible: str
    versions: int
    records: int
    drivers: int = 7 if LONG else 2
    snapshots: int = 4 if LONG else 2


# More versions of Avro than a driver keeps for a topic.
STORIES = (
    [
        Story(Avro, "Hold", 200, 10_000),
        *(Story(make, way, 200, 1000) for make in (Protobuf, Json) for way in ("NewColumn", "DeadLetter")),
    ]
    if LONG
    else [
        Story(Avro, "Hold", 66, 40),
        Story(Json, "NewColumn", 12, 40, snapshots=1),
    ]
)


class KilledDrivers:
    """Drivers of which each is killed after it has landed rows."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._landed = 0
        self.running: Process | None = None

    def restart(self, job: IngestJob) -> None:
        """Kill the driver while it works, and start another one."""
        if self.running is not None:
            await_true("rows land", lambda: self._world.size(job) > self._landed, 240)
            self.running.__exit__()
        self._landed = self._world.size(job)
        self.running = self._world.spawn()


def produce(
    world: World, topic: str, story: Story, versions: list[Version], first: int, pick: random.Random
) -> list[int]:
    """Produce records of two producers: one has the newest version, and one has earlier versions. Return the versions."""
    earlier = [pick.randrange(len(versions)) for _ in range(EARLIER)]
    chosen = [len(versions) - 1 if pick.random() < 0.7 else pick.choice(earlier) for _ in range(story.records)]
    by_version = np.array(chosen)
    found: dict[int, bytes] = {}
    for place in sorted(set(chosen)):
        found.update(versions[place].records(first + np.flatnonzero(by_version == place)))
    world.produce(topic, (Record(found[number], partition=number % len(PARTITIONS)) for number in sorted(found)))
    return chosen


def rows_of(world: World, job: IngestJob, count: int, snapshot: int | None = None) -> Iterator[pa.Table]:
    """Yield the rows of the table as Spark reads them, in parts, with the schema of the snapshot."""
    reader = world.spark.read.format("iceberg")
    if snapshot is not None:
        reader = reader.option("versionAsOf", str(snapshot))
    kafka = [f"_kafka.{name}" for name in ("partition", "offset", "schema_id")]
    frame = reader.load(quoted(job.table.catalog, job.table.namespace, job.table.name)).select("*", *kafka)
    for low in range(0, count, READ_AT_ONCE):
        yield frame.drop("_kafka").where(f"id >= {low} and id < {low + READ_AT_ONCE}").toArrow()


def check_places(parts: list[pa.Table], dead: list[dict[str, Any]], ends: dict[int, int]) -> None:
    """Check that rows and dead letters have every offset of every partition, once each."""
    partitions, offsets = (
        np.concatenate([*(part[name].to_numpy() for part in parts), [each["_kafka"][name] for each in dead]])
        for name in ("partition", "offset")
    )
    for partition, end in ends.items():
        assert np.array_equal(np.sort(offsets[partitions == partition]), np.arange(end))


def evenly(items: list[Any], count: int) -> list[Any]:
    return [items[len(items) * place // (count + 1)] for place in range(1, count + 1)]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: f"{story.make.name}-{story.incompatible}")
@pytest.mark.timeout(2400 if LONG else 600)
def test_random_versions_of_a_schema_land_each_value_in_its_column(
    served: World, registry: Apicurio, story: Story
) -> None:
    world, one = served, story.make()
    print(f"seed {SEED}")
    pick = random.Random(SEED)
    topic = world.topic(partitions=len(PARTITIONS))
    subject = f"{topic}-value"
    evolution = Evolution(one, story.incompatible, pick)

    def register(schema: Any) -> int:
        return registry.register(subject, schema, one.name.upper())

    versions = [evolution.first(register)]
    schema = schema_of(registry, subject, one.name, one.message).model_copy(update={"incompatible": story.incompatible})
    job = world.job(topic, record_schema=schema)
    world.apply(job)
    written = produce(world, topic, story, versions, 0, pick)
    starts, killed = sorted(pick.sample(range(1, story.versions), story.drivers)), KilledDrivers(world)
    for step in range(1, story.versions):
        versions.append(evolution.next(register))
        written += produce(world, topic, story, versions, len(written), pick)
        if step in starts:
            killed.restart(job)
    ends = {partition: world.end(topic, partition) for partition in PARTITIONS}
    assert killed.running is not None
    with killed.running:
        await_true(f"all records of {topic} land", lambda: world.landed(job) == ends, SECONDS)
    check(world, job, story, Checks(versions, evolution.columns, fields_of_versions(world, job)), np.array(written))


def fields_of_versions(world: World, job: IngestJob) -> dict[str, str]:
    """Return the fields of columns for other types, by the name of the column."""
    table = world.table(job)
    known = read_versions(texts(table.properties()))
    return {each["name"]: known[each["id"]] for each in world.tables.names(table)[0] if each["id"] in known}


def check(world: World, job: IngestJob, story: Story, checks: Checks, written: Numbers) -> None:
    """Check all rows with the present schema, and those of earlier snapshots with the schemas that these have."""
    refused = np.isin(written, [place for place, version in enumerate(checks.versions) if version.refused])
    dead = world.dead(job)
    assert {each["error_code"] for each in dead} <= {"IncompatibleSchema"}, dead[:3]
    slim = []
    for rows in rows_of(world, job, len(written)):
        checks.check_columns(rows, np.unique(written[~refused]).tolist(), single=story.incompatible != "NewColumn")
        checks.check(rows, written)
        slim.append(rows.select(["id", "partition", "offset"]))
    numbers = np.sort(np.concatenate([part["id"].to_numpy() for part in slim]))
    assert np.array_equal(numbers, np.flatnonzero(~refused))
    check_places(slim, dead, {partition: world.end(job.topic, partition) for partition in PARTITIONS})
    for snapshot in evenly(world.snapshots(job), story.snapshots):
        for rows in rows_of(world, job, len(written), int(snapshot.snapshotId())):
            checks.check(rows, written)
    print(
        f"{job.topic}: {len(checks.versions)} versions, {len(written)} records, {len(dead)} dead letters, {story.drivers - 1} kills"
    )
