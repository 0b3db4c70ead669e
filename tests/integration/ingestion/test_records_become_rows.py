"""Records of a real Kafka come out of the table as they went in."""

from tests.integration.ingestion.world import World, exactly, places, value


def test_records_written_before_and_after_the_driver_started_are_rows(world: World) -> None:
    topic = world.topic(partitions=2)
    job = world.job(topic)
    world.produce(topic, [value(number) for number in range(100)])
    world.apply(job)
    world.start()
    rows = world.await_rows(job, 100)
    assert [(row["id"], row["name"], row["score"]) for row in rows] == [(n, f"n{n}", n / 2) for n in range(100)]
    world.produce(topic, [value(number) for number in range(100, 150)])
    assert places(world.await_rows(job, 150)) == exactly({0: 150})
    assert world.landed(job) == {0: 150, 1: 0}
