"""Records that the log deletes before they land are recorded in the table, once, and ingestion continues."""

from confluent_kafka import TopicPartition

from firn.model.jobs import IngestJob
from firn.model.progress import Cause
from tests.integration.ingestion.world import World, exactly, places, value
from tests.servers.process import await_true


def good(first: int, count: int = 10) -> list[bytes]:
    return [value(n) for n in range(first, first + count)]


def newest_loss(world: World, job: IngestJob) -> int:
    """Return the number of the newest loss that the driver reports; 0 if there is none."""
    state = world.progress(job)
    return state.losses.newest if state is not None and state.losses is not None else 0


def test_deleted_records_are_recorded_once_and_survive_restarts(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.apply(job)
    world.produce(topic, good(0))
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: 10}, "offset 10", job)
    state = world.await_state(job, "CaughtUp")
    assert state.losses is not None
    assert state.losses.newest == 0
    world.stop()
    world.produce(topic, good(10, 20))
    world.admin.delete_records([TopicPartition(topic, 0, 25)])[TopicPartition(topic, 0)].result(30)
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: 30}, "offset 30", job)
    world.await_state(job, "CaughtUp")
    world.stop()
    # Nothing is left: the next driver commits the gap alone.
    world.produce(topic, good(30))
    world.admin.delete_records([TopicPartition(topic, 0, 40)])[TopicPartition(topic, 0)].result(30)
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: 40}, "offset 40", job)
    # The driver reports the loss after it has read the commit back.
    await_true("a report of the second loss", lambda: newest_loss(world, job) == 2)
    state = world.await_state(job, "CaughtUp")
    assert state.losses is not None
    assert [(loss.id, loss.partition, loss.start, loss.end, loss.cause) for loss in state.losses.ranges] == [
        (1, 0, 10, 25, Cause.DELETED),
        (2, 0, 30, 40, Cause.DELETED),
    ]
    assert state.losses.table == str(world.table(job).uuid())[:8]
    assert places(world.rows(job)) == exactly({0: 30}) - places(
        [{"_kafka": {"partition": 0, "offset": n}} for n in range(10, 25)]
    )


def test_records_before_the_first_row_of_a_replaced_table_are_recorded(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.apply(job)
    world.produce(topic, good(0))
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: 10}, "offset 10", job)
    world.stop()
    job = job.model_copy(update={"first_table": str(world.table(job).uuid())})
    world.spark.sql(f"drop table {job.table.identifier}")
    world.admin.delete_records([TopicPartition(topic, 0, 6)])[TopicPartition(topic, 0)].result(30)
    world.apply(job)
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: 10}, "offset 10 again", job)
    state = world.await_state(job, "CaughtUp")
    assert state.losses is not None
    assert [(loss.partition, loss.start, loss.end, loss.cause) for loss in state.losses.ranges] == [
        (0, 0, 6, Cause.REPLACED)
    ]
    assert state.losses.table == str(world.table(job).uuid())[:8]
