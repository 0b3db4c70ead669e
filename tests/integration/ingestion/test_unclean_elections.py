"""A log that lost its end gives landed offsets to other records. The table records them, and ingestion continues."""

from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import NewTopic

from firn.model.errors import FirnError
from firn.model.jobs import GroupSettings, IngestJob
from firn.model.progress import Cause
from firn.records import record_batch
from firn_spark.kafka.admin import Kafka as Client
from firn_spark.kafka.admin import LogEnd
from tests.integration.ingestion.world import World, exactly, places, value
from tests.servers.kafka import Kafka, kafka
from tests.servers.process import await_true, free_port


def good(first: int, count: int) -> list[bytes]:
    return [value(n) for n in range(first, first + count)]


def of(broker: Kafka, settings: GroupSettings, spark: object, directory: Path) -> World:
    """Return a world whose only Kafka is ``broker``."""
    return World(settings.model_copy(update={"kafka": {"classic": broker.connection}}), broker, spark, directory)


def land(world: World, job: IngestJob, end: int) -> list[tuple[int, int, Cause]]:
    """Land the topic up to ``end``. Returns the losses."""
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: end}, f"offset {end}", job)
    state = world.await_state(job, "CaughtUp")
    world.stop()
    assert state.losses is not None
    return [(loss.start, loss.end, loss.cause) for loss in state.losses.ranges]


def assert_seven_to_ten_are_lost(world: World, job: IngestJob) -> None:
    """The records 7, 8 and 9 landed, then the log had other records there. Later records landed once."""
    assert land(world, job, 30) == [(7, 10, Cause.CUT_BACK)]
    rows = world.rows(job)
    assert places(rows) == exactly({0: 30})
    assert [row["id"] for row in rows] == [*range(10), *range(103, 123)]


def test_the_leader_knows_where_an_epoch_ended(world: World) -> None:
    """An end that the epoch never reached stands for a log that was cut back."""
    topic = world.topic(partitions=3)
    world.produce(topic, good(0, 10))
    client = Client("classic", world.broker.connection)
    found: list[dict[int, LogEnd]] = []

    def all_led() -> bool:
        ends = client.log_ends({topic: (0, 1, 2)})[topic]
        if not isinstance(ends, FirnError):
            found.append(ends)
        return bool(found)

    await_true("a leader of each partition", all_led)
    (ends,) = found
    assert [end.offset for end in ends.values()] == [10, 0, 0]
    epoch = ends[0].epoch
    assert epoch is not None
    assert client.divergences({topic: ends}) == {topic: {}}
    beyond = {0: LogEnd(13, epoch), 1: LogEnd(1, epoch), 2: LogEnd(0, epoch)}
    assert client.divergences({topic: beyond}) == {topic: {0: 10, 1: 0}}
    assert client.divergences({topic: {0: LogEnd(13, None)}}) == {topic: {}}


def test_offsets_that_were_given_to_other_records_are_recorded(
    settings: GroupSettings, spark: object, tmp_path: Path
) -> None:
    """A broker without replicas loses the newest records in a crash, and gets new ones before the driver looks."""
    with kafka(tmp_path / "kafka") as broker, of(broker, settings, spark, tmp_path) as world:
        topic = world.topic()
        job = world.job(topic)
        world.apply(job)
        world.produce(topic, good(0, 7))
        world.produce(topic, good(7, 3))
        land(world, job, 10)
    cut_back(tmp_path / "kafka" / "log", topic, 7)
    with kafka(tmp_path / "kafka"):
        world.produce(topic, good(100, 23))
        assert world.end(topic) == 30
        assert_seven_to_ten_are_lost(world, job)


@pytest.mark.long
def test_an_unclean_election_is_recorded(settings: GroupSettings, spark: object, tmp_path: Path) -> None:
    with kafka(tmp_path / "kafka") as first, of(first, settings, spark, tmp_path) as world:
        topic = f"orders_{world.suffix}"
        job = world.job(topic)

        def replicas_are_in_sync() -> bool:
            description = world.admin.describe_topics(TopicCollection([topic]))[topic].result(30)
            return len(description.partitions[0].isr) == 2

        with replica(tmp_path, 3):
            with replica(tmp_path, 2):
                config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
                new = NewTopic(topic, 1, replica_assignment=[[2, 3]], config=config)
                world.admin.create_topics([new])[topic].result(30)
                world.apply(job)
                world.produce(topic, good(0, 4))
                assert land(world, job, 4) == []
            # Broker 3 has all records of its predecessor.
            with replica(tmp_path, 2):
                await_true("broker 2 is in sync again", replicas_are_in_sync, 60)
                world.produce(topic, good(4, 3))
                assert land(world, job, 7) == []
            # Broker 2 does not get these records.
            world.produce(topic, good(7, 3))
            assert land(world, job, 10) == []
        with replica(tmp_path, 2):
            world.produce(topic, good(100, 23))
            assert_seven_to_ten_are_lost(world, job)


def cut_back(log: Path, topic: str, end: int) -> None:
    """Remove the records from offset ``end`` on from the log of a broker that does not run, as a crash of its host does."""
    partition = log / f"{topic}-0"
    segment = partition / f"{0:020}.log"
    data = segment.read_bytes()
    kept = next(
        place
        for place, _, _ in record_batch.walk(memoryview(data))
        if int.from_bytes(data[place : place + 8], "big") == end
    )
    segment.write_bytes(data[:kept])
    # The broker reads the log itself after a crash.
    for file in (log / ".kafka_cleanshutdown", *log.glob("*-offset-checkpoint"), *partition.glob("*.*index")):
        file.unlink(missing_ok=True)


def replica(directory: Path, node: int) -> AbstractContextManager[Kafka]:
    """Run broker ``node`` of the cluster whose first node is in ``directory``."""
    own, (plain, controller) = directory / f"kafka-{node}", ports(directory / "kafka")
    if not own.exists():
        (own / "log").mkdir(parents=True)
        formatted = (directory / "kafka" / "log" / "meta.properties").read_text().splitlines()
        lines = [line for line in formatted if line.startswith(("version", "cluster.id"))]
        (own / "log" / "meta.properties").write_text("\n".join([*lines, f"node.id={node}", ""]))
        (own / "ports").write_text(f"{free_port()} {controller} 0 0")
    plain, _ = ports(own)
    return kafka(
        own,
        process__roles="broker",
        node__id=str(node),
        controller__quorum__voters=f"1@127.0.0.1:{controller}",
        listeners=f"PLAINTEXT://127.0.0.1:{plain}",
        broker__session__timeout__ms="3000",
        replica__lag__time__max__ms="3000",
    )


def ports(directory: Path) -> tuple[int, int]:
    """Return the ports of the plain listener and of the controller."""
    plain, controller, *_ = (directory / "ports").read_text().split()
    return int(plain), int(controller)
