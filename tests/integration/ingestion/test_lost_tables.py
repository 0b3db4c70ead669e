"""The table or its namespace disappears under the driver. Every record is in the table that follows."""

import pytest

from firn_spark.tables.commits import read_landed
from tests.integration.ingestion.gates import gate_at
from tests.integration.ingestion.test_exactly_once import good, topic_with
from tests.integration.ingestion.world import WAIT, World, exactly, places, value
from tests.servers.process import PATIENCE


@pytest.mark.parametrize("place", ["after-data-files", "before-commit"])
def test_a_table_dropped_during_a_round_is_recreated_with_every_record(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    gate = gate_at(place, monkeypatch)
    topic, job = topic_with(world, good(0), freshness_ms=500)
    gate.closed.set()
    world.produce(topic, [value(number) for number in range(10, 20)])
    assert gate.held.wait(WAIT * PATIENCE)
    world.spark.sql(f"drop table {job.table.identifier}")
    gate.open.set()
    world.await_state(job, "CaughtUp", lag_records=0)
    assert places(world.await_rows(job, 20)) == exactly({0: 20})


def test_a_dropped_namespace_is_recreated_with_every_record(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    job = job.model_copy(update={"table": job.table.model_copy(update={"namespace": f"gone_{world.suffix}"})})
    world.produce(topic, [value(number) for number in range(10)])
    world.apply(job)
    world.start()
    world.await_rows(job, 10)
    world.spark.sql(f"drop table {job.table.identifier}")
    world.spark.sql(f"drop namespace {job.table.identifier.rpartition('.')[0]}")
    world.produce(topic, [value(10)])
    assert places(world.await_rows(job, 11)) == exactly({0: 11})
    landed = read_landed(world.table(job))
    assert landed is not None
    assert landed.offsets == {0: 11}
