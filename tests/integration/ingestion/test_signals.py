"""A driver that is told to end, or stopped, in the middle of something."""

import signal

from firn_controllers.ingestion_group.stateful_set import GRACE_SECONDS
from tests.integration.ingestion.world import World, exactly, places, value


def some(first: int, count: int = 20) -> list[bytes]:
    """Records of which every fifth is bad."""
    return [b"bad %d" % n if n % 5 == 0 else value(n) for n in range(first, first + count)]


def test_sigterm_in_the_middle_of_a_commit_lets_the_commit_end(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.produce(topic, some(0))
    world.apply(job)
    # It stands still before the first of the two commits of its round, and has the signal when it goes on.
    with world.spawn("before-dlq-commit=stop:1") as driver:
        driver.await_stopped()
        assert world.rows(job) == world.dead(job) == []
        driver.process.send_signal(signal.SIGTERM)
        driver.process.send_signal(signal.SIGCONT)
        assert driver.process.wait(GRACE_SECONDS) == 0, (world.directory / "driver.log").read_text()[-3000:]
    assert world.landed(job) == {0: 20}
    assert places(world.rows(job)) + places(world.dead(job)) == exactly({0: 20})
    assert len(world.dead(job)) == 4
    world.produce(topic, some(20))
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: 40}, "offset 40", job)
    assert places([*world.rows(job), *world.dead(job)]) == exactly({0: 40})
