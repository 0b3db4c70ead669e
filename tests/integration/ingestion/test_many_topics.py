"""Many topics in one group: adding or removing one restarts nothing, and a failing topic does not delay the others."""

from collections import Counter

from firn.model.jobs import KafkaConnection
from tests.integration.ingestion.world import World, value


def test_fifty_topics_in_one_group(world: World) -> None:
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
    found = Counter((int(row.number), row.id) for row in world.spark.sql(union).collect())
    assert found == Counter({(number, number): number + 1 for number in range(50)})


def test_topics_come_and_go(world: World) -> None:
    first, second = world.topic("first"), world.topic("second")
    one, two = world.job(first), world.job(second)
    world.apply(one)
    world.start()
    world.produce(first, [value(1)])
    world.await_rows(one, 1)
    world.apply(two)
    world.produce(second, [value(2)])
    world.await_rows(two, 1)
    world.remove(one)
    world.await_offsets(lambda: world.progress(one) is None, "the topic to leave", one)
    world.produce(first, [value(3)])
    world.produce(second, [value(4)])
    world.await_rows(two, 2)
    assert len(world.rows(one)) == 1
    world.apply(one)
    assert [row["id"] for row in world.await_rows(one, 2)] == [1, 3]


def test_a_suspended_topic_waits(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, suspended=True)
    world.produce(topic, [value(1)])
    world.apply(job)
    world.start()
    world.await_state(job, "Suspended")
    world.apply(job.model_copy(update={"suspended": False}))
    world.await_rows(job, 1)


def test_what_is_broken_holds_up_nobody_else(world: World) -> None:
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
