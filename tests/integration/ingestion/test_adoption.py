"""A topic of another Kafka cluster continues a table at the adopted offsets: no record lands twice."""

from typing import Any

from firn.model import names
from firn.model.jobs import Adoption, IngestJob
from tests.integration.ingestion.world import World, audit_of, exactly, places, value
from tests.servers.process import await_true


def good(first: int, count: int) -> list[bytes]:
    return [value(n) for n in range(first, first + count)]


def test_an_idle_table_of_an_earlier_version_records_its_cluster(world: World) -> None:
    topic = world.topic("idle")
    job = world.job(topic)
    world.produce(topic, good(0, 5))
    world.apply(job)
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: 5}, "offset 5", job)
    world.stop()
    world.table(job).updateProperties().remove(names.TABLE_KAFKA_CLUSTER).commit()
    world.start()
    await_true(
        "the table names its Kafka cluster",
        lambda: world.table(job).properties().get(names.TABLE_KAFKA_CLUSTER),
        60,
    )


def test_a_planned_move_to_another_cluster_lands_nothing_twice(world: World) -> None:
    old = world.topic("old")
    job = world.job(old)
    world.produce(old, good(0, 20))
    world.apply(job)
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: 20}, "offset 20", job)
    world.stop()
    world.remove(job)
    table = world.table(job)
    assert table.properties().get(names.TABLE_KAFKA_CLUSTER)
    # The new topic has the records that landed last, as a mirror has. The table says that it is of another cluster.
    table.updateProperties().set(names.TABLE_KAFKA_CLUSTER, "another").commit()
    new = world.topic("new")
    world.produce(new, good(10, 20))
    moved: dict[str, Any] = {"uid": job.uid, "table": {"name": old}}
    waiting = world.job(new, **moved)
    world.apply(waiting)
    world.start()
    state = world.await_state(waiting, "BackingOff")
    assert "set spec.ingestion.adopt" in state.message
    assert world.landed(job) == {0: 20}
    adopting: IngestJob = world.job(
        new, **moved, adopt=Adoption(topic_id=world.topic_id(old), offsets={0: 10}), generation=2
    )
    world.apply(adopting)
    world.await_rows(adopting, 30)
    numbers = sorted(row["id"] for row in world.rows(adopting))
    assert numbers == list(range(30))
    audited = audit_of(world, adopting)
    (part,) = audited.partitions
    assert (part.rows, part.missing, part.unproved, audited.exact) == (10, 0, 10, True)
    assert places(world.rows(adopting)) == exactly({0: 20}) + exactly({0: 20}) - exactly({0: 10})
    assert world.table(job).properties().get(names.TABLE_KAFKA_CLUSTER) != "another"
