"""KIP-848 groups (``group.protocol=consumer``) with the clients that support them: librdkafka and Java."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.broker.admins import admin
from tests.integration.broker.test_fleet import all_of, fleet_of
from tests.integration.broker.test_java_clients import GROUPS, PRODUCER, attempt, call, console_consumers, table
from tests.integration.broker.test_librdkafka import create, describe, group, produce, take
from tests.servers.firn_broker import FirnBroker, embedded
from tests.servers.postgres import Postgres
from tests.servers.process import await_true, stop
from tests.servers.s3 import S3


@pytest.fixture(scope="module")
def firn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirnBroker]:
    """Run a broker with short heartbeats, so that rebalances are short."""
    with embedded(
        tmp_path_factory.mktemp("firn") / "data", FIRN_BROKER_GROUPS__CONSUMER_HEARTBEAT_MS="200",
        FIRN_BROKER_GROUPS__CONSUMER_SESSION_MS="10000", FIRN_BROKER_GROUPS__INITIAL_REBALANCE_MS="100",
    ) as server:  # fmt: skip
        yield server


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    return f"{request.node.originalname}".replace("_", "-")


def member(broker: FirnBroker, name: str, **config: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap, "group.id": name, "group.protocol": "consumer", "auto.offset.reset": "earliest",
            "enable.auto.commit": False, **config,
        }
    )  # fmt: skip


def assigned(members: list[Consumer], counts: list[int], seconds: float = 30) -> None:
    """Wait until the members have these numbers of partitions. No record arrives meanwhile."""
    deadline = time.monotonic() + seconds
    while [len(consumer.assignment()) for consumer in members] != counts:
        assert time.monotonic() < deadline, [consumer.assignment() for consumer in members]
        for consumer in members:
            assert consumer.poll(0.05) is None


def test_members_share_partitions_take_over_and_commit(firn: FirnBroker, name: str) -> None:
    create(firn, name, 4)
    produce(firn, name, [{"value": b"%d" % number, "partition": number % 4} for number in range(200)])
    first, second = member(firn, name), member(firn, name)
    first.subscribe([name])
    assert len(take(first, 200)) == 200
    first.commit(asynchronous=False)
    second.subscribe([name])
    assigned([first, second], [2, 2])
    description = describe(admin(firn), name)
    assert (description.state.name, description.type.name, description.partition_assignor) == (
        "STABLE",
        "CONSUMER",
        "uniform",
    )
    assert sorted(len(participant.assignment.topic_partitions) for participant in description.members) == [2, 2]
    produce(firn, name, [{"value": b"more", "partition": number % 4} for number in range(40)])
    assert len(take(first, 20)) == len(take(second, 20)) == 20
    for consumer in (first, second):
        consumer.commit(asynchronous=False)
    first.close()
    assigned([second], [4])
    second.close()
    listed = {listing.group_id: listing for listing in admin(firn).list_consumer_groups().result(10).valid}
    assert (listed[name].state.name, listed[name].type.name) == ("EMPTY", "CONSUMER")
    for done in admin(firn).delete_consumer_groups([name]).values():
        done.result(10)
    assert name not in [listing.group_id for listing in admin(firn).list_consumer_groups().result(10).valid]


def test_a_pattern_subscription_reads_later_topics(firn: FirnBroker, name: str) -> None:
    reader = member(firn, name, **{"topic.metadata.refresh.interval.ms": 500})
    reader.subscribe([f"^{name}-.*"])
    for number in (1, 2):
        create(firn, f"{name}-{number}")
        produce(firn, f"{name}-{number}", [{"value": b"%d" % number}])
        assert [record.value() for record in take(reader, 1)] == [b"%d" % number]
    reader.close()


def test_a_static_member_keeps_its_partitions_across_a_restart(firn: FirnBroker, name: str) -> None:
    create(firn, name, 4)
    other = member(firn, name)
    other.subscribe([name])
    before = []
    for _ in range(2):
        static = member(firn, name, **{"group.instance.id": "a"})
        static.subscribe([name])
        assigned([static, other], [2, 2])
        before.append(sorted(partition.partition for partition in static.assignment()))
        static.close()
    assert before[0] == before[1]
    other.close()


def test_a_group_has_one_protocol(firn: FirnBroker, name: str) -> None:
    create(firn, name)
    produce(firn, name, [{"value": b"v"}])
    modern = member(firn, name)
    modern.subscribe([name])
    take(modern, 1)
    classic = group(firn, name)
    classic.subscribe([name])
    refused: list[str] = []
    deadline = time.monotonic() + 20
    while not refused:
        assert time.monotonic() < deadline
        message = classic.poll(0.1)
        if message is not None and (error := message.error()) is not None:
            refused.append(error.name())
    assert refused == ["INCONSISTENT_GROUP_PROTOCOL"]
    modern.close()
    assert len(take_through(classic, 1)) == 1, "the last member of the other protocol has left"
    late = member(firn, name)
    late.subscribe([name])
    with pytest.raises(KafkaException, match="group id does not exist"):
        take_raising(late)
    late.close()
    classic.close()


def take_through(consumer: Consumer, count: int) -> list[Any]:
    """Read records. Ignore errors that arrive before."""
    messages: list[Any] = []
    deadline = time.monotonic() + 30
    while len(messages) < count:
        assert time.monotonic() < deadline
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            messages.append(message)
    return messages


def take_raising(consumer: Consumer) -> None:
    """Poll until an error arrives, and raise it."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is not None:
            raise KafkaException(message.error())


@pytest.mark.parametrize("ending", ["stop", "kill"])
def test_a_group_outlives_its_broker(tmp_path: Path, name: str, ending: str) -> None:
    with embedded(tmp_path / "data", FIRN_BROKER_GROUPS__CONSUMER_HEARTBEAT_MS="200") as broker:
        create(broker, name, 4)
        revoked: list[int] = []
        members = [member(broker, name) for _ in range(2)]
        for consumer in members:
            consumer.subscribe(
                [name], on_revoke=lambda _, them: revoked.extend(partition.partition for partition in them)
            )
        assigned(members, [2, 2])
        before = ids(broker, name)
        produce(broker, name, [{"value": b"%d" % number, "partition": number % 4} for number in range(100)])
        for consumer in members:
            take(consumer, 50)
            consumer.commit(asynchronous=False)
        revoked.clear()
        if ending == "stop":
            assert broker.stop() == 0
        else:
            broker.kill()
        broker.start()
        produce(broker, name, [{"value": b"%d" % number, "partition": number % 4} for number in range(100, 200)])
        for consumer in members:
            assert len(take(consumer, 50)) == 50
            await_true("the group continues", lambda consumer=consumer: committed(consumer))  # type: ignore[misc]
        assert not revoked, "the group keeps its members and their partitions"
        assert ids(broker, name) == before
        for consumer in members:
            consumer.close()


def test_a_group_moves_with_its_broker(tmp_path: Path, database: Postgres, storage: S3, name: str) -> None:
    with fleet_of(3, tmp_path, database, storage) as fleet:
        everybody = all_of(fleet)
        create(everybody, name, 4)
        members = [member(everybody, name) for _ in range(2)]
        revoked: list[int] = []
        for consumer in members:
            consumer.subscribe(
                [name], on_revoke=lambda _, them: revoked.extend(partition.partition for partition in them)
            )
        assigned(members, [2, 2])
        before = ids(everybody, name)
        revoked.clear()
        coordinator = coordinator_of(everybody, name)
        fleet[coordinator].kill()
        for consumer in members:
            await_true(
                "the group has a broker again",
                lambda consumer=consumer: consumer.poll(0) is None and committed(consumer),  # type: ignore[misc]
            )
        produce(everybody, name, [{"value": b"after", "partition": number % 4} for number in range(100)])
        for consumer in members:
            assert len(take(consumer, 50)) == 50
            consumer.commit(asynchronous=False)
        assert coordinator_of(everybody, name) != coordinator
        assert ids(everybody, name) == before
        assert not revoked, "members keep their partitions"
        for consumer in members:
            consumer.close()
        fleet[coordinator].start()


def coordinator_of(broker: FirnBroker, name: str) -> int:
    asking = AdminClient({"bootstrap.servers": broker.bootstrap})
    node: int = describe(asking, name).coordinator.id
    return node


def committed(consumer: Consumer) -> bool:
    """Return True if the consumer can commit offsets."""
    try:
        consumer.commit(
            offsets=[TopicPartition(partition.topic, partition.partition, 0) for partition in consumer.assignment()],
            asynchronous=False,
        )
    except KafkaException:
        return False
    return True


def ids(broker: FirnBroker, name: str) -> list[str]:
    """Return the ids of the members. A new client asks, because one that lost its connection takes long."""
    asking = AdminClient({"bootstrap.servers": broker.bootstrap})
    return sorted(participant.member_id for participant in describe(asking, name).members)


@pytest.fixture
def java(firn: FirnBroker, name: str, tmp_path: Path) -> Iterator[list["subprocess.Popen[bytes]"]]:
    with console_consumers(firn, name, tmp_path, "group.protocol=consumer") as processes:
        yield processes


def test_java_members_share_partitions_and_tools_describe_them(
    firn: FirnBroker, name: str, java: list["subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    describe = ("--describe", "--group", name)

    def shared() -> bool:
        output = attempt(firn, GROUPS, *describe, "--members").stdout
        return sorted(line[-1] for line in table(output)[1:]) == ["2", "2"]

    await_true("two members with two partitions each", shared)
    call(firn, PRODUCER, "--topic", name, "--command-property", "batch.size=1",
         stdin="".join(f"{number}\n" for number in range(200)))  # fmt: skip
    logs = [tmp_path / f"consumer-{number}.log" for number in range(2)]

    def consumed() -> list[int]:
        """Return the consumed numbers. The other lines are messages of Java, such as that of a repeated commit."""
        return sorted(int(line) for log in logs for line in log.read_text().splitlines() if line.isdigit())

    await_true("all records consumed", lambda: len(consumed()) >= 200)
    assert consumed() == list(range(200))
    verbose = call(firn, GROUPS, *describe, "--members", "--verbose")
    assert "CURRENT-EPOCH" in verbose
    assert "Stable" in call(firn, GROUPS, *describe, "--state")
    refused = attempt(firn, GROUPS, "--delete", "--group", name)
    assert "GroupNotEmptyException" in refused.stdout + refused.stderr
    for process in java:
        stop(process)
    assert [name, "Consumer", "Empty"] in table(call(firn, GROUPS, "--list", "--type", "--state"))
    rows = table(call(firn, GROUPS, *describe))[1:]
    assert (sum(int(row[3]) for row in rows), [row[5] for row in rows]) == (200, ["0"] * 4)
    call(firn, GROUPS, "--group", name, "--topic", name, "--reset-offsets", "--to-earliest", "--execute")
    assert sum(int(row[5]) for row in table(call(firn, GROUPS, *describe))[1:]) == 200
    call(firn, GROUPS, "--delete", "--group", name)
    assert name not in call(firn, GROUPS, "--list").split()
