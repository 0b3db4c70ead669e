"""Producers change their schemas at random while the driver is killed at random: no row is lost or under a wrong column."""

import os
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from firn.model.jobs import IngestJob
from firn_spark.tables.java_tables import quoted
from firn_spark.worker.fetched import Numbers
from tests.integration.ingestion.contracts import schema_of
from tests.integration.ingestion.evolution import Evolution, Version
from tests.integration.ingestion.world import Process, Record, World
from tests.servers.apicurio import Apicurio
from tests.servers.process import await_true

LONG = "FIRN_LONG" in os.environ
VERSIONS, RECORDS = (200, 10_000) if LONG else (90, 40)
"""Versions of the schema, and records of each step. There are more versions than a driver keeps for a topic."""
EARLIER = 20
"""Earlier versions that the second producer writes in a step."""
DRIVERS = 7 if LONG else 2
"""Drivers one after the other. All but the last are killed."""
SNAPSHOTS = 4 if LONG else 2
"""Earlier snapshots to read. Each is read with the schema that the table had then."""
SECONDS = 1200 if LONG else 240
"""Time for the rows that wait after the last record."""
READ_AT_ONCE = 200_000
PARTITIONS = (0, 1)


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
    world: World, topic: str, evolution: Evolution, versions: list[Version], first: int, pick: random.Random
) -> list[int]:
    """Produce records of two producers: one has the newest version, and one has earlier versions. Return the versions."""
    earlier = [pick.randrange(len(versions)) for _ in range(EARLIER)]
    chosen = [len(versions) - 1 if pick.random() < 0.7 else pick.choice(earlier) for _ in range(RECORDS)]
    by_version = np.array(chosen)
    found: dict[int, bytes] = {}
    for place in sorted(set(chosen)):
        found.update(evolution.records(versions[place], first + np.flatnonzero(by_version == place)))
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


def check_places(parts: list[pa.Table], ends: dict[int, int]) -> None:
    """Check that the rows have every offset of every partition, once each."""
    partitions, offsets = (
        np.concatenate([part[name].to_numpy() for part in parts]) for name in ("partition", "offset")
    )
    for partition, end in ends.items():
        assert np.array_equal(np.sort(offsets[partitions == partition]), np.arange(end))


def evenly(items: list[Any], count: int) -> list[Any]:
    return [items[len(items) * place // (count + 1)] for place in range(1, count + 1)]


@pytest.mark.timeout(2400 if LONG else 600)
def test_random_versions_of_a_schema_land_each_value_in_its_column(served: World, registry: Apicurio) -> None:
    world = served
    seed = random.randrange(2**32) if LONG else 11
    print(f"seed {seed}")
    pick = random.Random(seed)
    topic = world.topic(partitions=len(PARTITIONS))
    subject = f"{topic}-value"
    evolution, versions = Evolution(pick), list[Version]()
    written: list[int] = []
    starts, killed = sorted(pick.sample(range(VERSIONS), DRIVERS)), KilledDrivers(world)
    job = None
    for step in range(VERSIONS):
        evolution.step()
        versions.append(evolution.version(registry.register(subject, evolution.schema())))
        if job is None:
            job = world.job(topic, record_schema=schema_of(registry, subject))
            world.apply(job)
        written += produce(world, topic, evolution, versions, len(written), pick)
        if step in starts:
            killed.restart(job)
    assert job is not None
    running, name = killed.running, job.table.identifier
    assert running is not None
    with running:
        await_true(f"all rows in {name}", lambda: world.size(job) >= len(written), SECONDS)
    check(world, job, evolution, versions, np.array(written))


def check(world: World, job: IngestJob, evolution: Evolution, versions: list[Version], written: Numbers) -> None:
    """Check all rows with the present schema, and those of earlier snapshots with the schemas that these have."""
    slim = []
    for rows in rows_of(world, job, len(written)):
        evolution.check_columns(rows, [versions[place] for place in np.unique(written).tolist()])
        evolution.check(rows, versions, written)
        slim.append(rows.select(["id", "partition", "offset"]))
    numbers = np.sort(np.concatenate([part["id"].to_numpy() for part in slim]))
    assert np.array_equal(numbers, np.arange(len(written)))
    check_places(slim, {partition: world.end(job.topic, partition) for partition in PARTITIONS})
    for snapshot in evenly(world.snapshots(job), SNAPSHOTS):
        for rows in rows_of(world, job, len(written), int(snapshot.snapshotId())):
            evolution.check(rows, versions, written)
    assert world.dead(job) == []
