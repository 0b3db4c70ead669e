"""Many topics in one group: adding or removing a topic restarts nothing, and a failing topic delays no other."""

from collections import Counter

from firn.model.jobs import KafkaConnection
from tests.integration.ingestion.world import World, value


def test_one_group_lands_fifty_topics(world: World) -> None:
    topics = [world.topic(f"t{number}") for number in range(50)]
    jobs = [world.job(topic) for topic in topics]
    for number, topic in enumerate(topics):
        world.produce(topic, [value(number)] * (number + 1))
    world.apply(*jobs)
    world.start()
    for number, job in enumerate(jobs):
        world.await_state(job, "CaughtUp", rows=number + 1)
    union = " union all ".join(
        f"select '{number}' as number, id from {job.table.identifier}" for number, job in enumerate(jobs)
    )
    copies = Counter((int(row.number), row.id) for row in world.spark.sql(union).collect())
    assert copies == Counter({(number, number): number + 1 for number in range(50)})


def test_topics_join_and_leave_a_running_driver(world: World) -> None:
    first, second = world.topic("first"), world.topic("second")
    job, two = world.job(first), world.job(second)
    world.apply(job)
    world.start()
    world.produce(first, [value(1)])
    world.await_rows(job, 1)
    world.apply(two)
    world.produce(second, [value(2)])
    world.await_rows(two, 1)
    world.remove(job)
    world.await_offsets(lambda: world.progress(job) is None, "the topic to leave", job)
    world.produce(first, [value(3)])
    world.produce(second, [value(4)])
    world.await_rows(two, 2)
    assert len(world.rows(job)) == 1
    world.apply(job)
    assert [row["id"] for row in world.await_rows(job, 2)] == [1, 3]


def test_a_suspended_topic_waits(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, suspended=True)
    world.produce(topic, [value(1)])
    world.apply(job)
    world.start()
    world.await_state(job, "Suspended")
    world.apply(job.model_copy(update={"suspended": False}))
    world.await_rows(job, 1)


def test_a_broken_topic_delays_no_other(world: World) -> None:
    good = world.job(world.topic("good"))
    missing = world.job(f"missing_{world.suffix}")
    catalog = world.settings.catalogs["lake"].model_copy(update={"uri": "postgresql://127.0.0.1:9/lake"})
    world.settings = world.settings.model_copy(
        update={
            "kafka": {**world.settings.kafka, "silent": KafkaConnection(bootstrap_servers="127.0.0.1:9")},
            "catalogs": {**world.settings.catalogs, "down": catalog},
        }
    )
    nowhere = world.job(world.topic("nowhere"), table={"catalog": "down"})
    silent = world.job(world.topic("silent"), profile="silent")
    unknown = world.job(world.topic("unknown"), profile="unknown")
    world.produce(good.topic, [value(1)])
    world.apply(good, missing, nowhere, silent, unknown)
    world.start()
    world.await_rows(good, 1)
    world.await_state(nowhere, "BackingOff", table_reason="CatalogUnreachable")
    world.await_state(silent, "BackingOff", reason="BrokerUnreachable")
    world.await_state(unknown, "BackingOff")
    world.produce(good.topic, [value(2)])
    world.await_rows(good, 2)
    world.await_state(missing, "BackingOff")
    world.create(missing.topic)
    world.produce(missing.topic, [value(3)])
    world.await_rows(missing, 1)
