"""KIP-848 groups (``group.protocol=consumer``) with the clients that support them: librdkafka and Java."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.integration.broker.test_fleet import all_of, fleet_of
from tests.integration.broker.test_java_clients import GROUPS, PRODUCER, attempt, call, console_consumers, table
from tests.integration.broker.test_librdkafka import admin, create, group, produce, take
from tests.servers.firn_broker import FirnBroker, embedded
from tests.servers.postgres import Postgres
from tests.servers.process import await_true, stop
from tests.servers.s3 import S3


@pytest.fixture(scope="module")
def firn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirnBroker]:
    """Its members are heard of often, so that rebalances are short."""
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
    """Wait until they have so many partitions; no record comes meanwhile."""
    deadline = time.monotonic() + seconds
    while [len(it.assignment()) for it in members] != counts:
        assert time.monotonic() < deadline, [it.assignment() for it in members]
        for one in members:
            assert one.poll(0.05) is None


def test_members_share_take_over_and_commit(firn: FirnBroker, name: str) -> None:
    create(firn, name, 4)
    produce(firn, name, [{"value": b"%d" % number, "partition": number % 4} for number in range(200)])
    first, second = member(firn, name), member(firn, name)
    first.subscribe([name])
    assert len(take(first, 200)) == 200
    first.commit(asynchronous=False)
    second.subscribe([name])
    assigned([first, second], [2, 2])
    (described,) = admin(firn).describe_consumer_groups([name]).values()
    found = described.result(10)
    assert (found.state.name, found.type.name, found.partition_assignor) == ("STABLE", "CONSUMER", "uniform")
    assert sorted(len(it.assignment.topic_partitions) for it in found.members) == [2, 2]
    produce(firn, name, [{"value": b"more", "partition": number % 4} for number in range(40)])
    assert len(take(first, 20)) == len(take(second, 20)) == 20
    for one in (first, second):
        one.commit(asynchronous=False)
    first.close()
    assigned([second], [4])
    second.close()
    listed = {it.group_id: it for it in admin(firn).list_consumer_groups().result(10).valid}
    assert (listed[name].state.name, listed[name].type.name) == ("EMPTY", "CONSUMER")
    for done in admin(firn).delete_consumer_groups([name]).values():
        done.result(10)
    assert name not in [it.group_id for it in admin(firn).list_consumer_groups().result(10).valid]


def test_topics_that_come_later_are_read_by_pattern(firn: FirnBroker, name: str) -> None:
    reader = member(firn, name, **{"topic.metadata.refresh.interval.ms": 500})
    reader.subscribe([f"^{name}-.*"])
    for number in (1, 2):
        create(firn, f"{name}-{number}")
        produce(firn, f"{name}-{number}", [{"value": b"%d" % number}])
        assert [it.value() for it in take(reader, 1)] == [b"%d" % number]
    reader.close()


def test_a_static_member_comes_back_to_its_partitions(firn: FirnBroker, name: str) -> None:
    create(firn, name, 4)
    other = member(firn, name)
    other.subscribe([name])
    before = []
    for _ in range(2):
        static = member(firn, name, **{"group.instance.id": "a"})
        static.subscribe([name])
        assigned([static, other], [2, 2])
        before.append(sorted(it.partition for it in static.assignment()))
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
        found = classic.poll(0.1)
        if found is not None and (error := found.error()) is not None:
            refused.append(error.name())
    assert refused == ["INCONSISTENT_GROUP_PROTOCOL"]
    modern.close()
    assert len(take_through(classic, 1)) == 1, "nobody is left: the group is its own"
    late = member(firn, name)
    late.subscribe([name])
    with pytest.raises(KafkaException, match="group id does not exist"):
        take_raising(late)
    late.close()
    classic.close()


def take_through(consumer: Consumer, count: int) -> list[Any]:
    """Records, whatever errors come before."""
    found: list[Any] = []
    deadline = time.monotonic() + 30
    while len(found) < count:
        assert time.monotonic() < deadline
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            found.append(message)
    return found


def take_raising(consumer: Consumer) -> None:
    """Until an error comes."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        message = consumer.poll(0.2)
        if message is not None and message.error() is not None:
            raise KafkaException(message.error())


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_group_outlives_its_broker(tmp_path: Path, name: str, how: str) -> None:
    with embedded(tmp_path / "data", FIRN_BROKER_GROUPS__CONSUMER_HEARTBEAT_MS="200") as broker:
        create(broker, name, 4)
        revoked: list[int] = []
        members = [member(broker, name) for _ in range(2)]
        for one in members:
            one.subscribe([name], on_revoke=lambda _, them: revoked.extend(it.partition for it in them))
        assigned(members, [2, 2])
        before = ids(broker, name)
        produce(broker, name, [{"value": b"%d" % number, "partition": number % 4} for number in range(100)])
        for one in members:
            take(one, 50)
            one.commit(asynchronous=False)
        revoked.clear()
        if how == "stop":
            assert broker.stop() == 0
        else:
            broker.kill()
        broker.start()
        produce(broker, name, [{"value": b"%d" % number, "partition": number % 4} for number in range(100, 200)])
        for one in members:
            assert len(take(one, 50)) == 50
            await_true("the group goes on", lambda one=one: committed(one))  # type: ignore[misc]
        assert not revoked, "with the same members, who keep their partitions"
        assert ids(broker, name) == before
        for one in members:
            one.close()


def test_a_group_moves_with_its_broker(tmp_path: Path, database: Postgres, storage: S3, name: str) -> None:
    with fleet_of(3, tmp_path, database, storage) as fleet:
        everybody = all_of(fleet)
        create(everybody, name, 4)
        members = [member(everybody, name) for _ in range(2)]
        revoked: list[int] = []
        for one in members:
            one.subscribe([name], on_revoke=lambda _, them: revoked.extend(it.partition for it in them))
        assigned(members, [2, 2])
        before = ids(everybody, name)
        revoked.clear()
        coordinator = coordinator_of(everybody, name)
        fleet[coordinator].kill()
        for one in members:
            await_true("the group has a broker again", lambda one=one: one.poll(0) is None and committed(one))  # type: ignore[misc]
        produce(everybody, name, [{"value": b"after", "partition": number % 4} for number in range(100)])
        for one in members:
            assert len(take(one, 50)) == 50
            one.commit(asynchronous=False)
        assert coordinator_of(everybody, name) != coordinator
        assert ids(everybody, name) == before
        assert not revoked, "members keep what they have"
        for one in members:
            one.close()
        fleet[coordinator].start()


def coordinator_of(broker: FirnBroker, name: str) -> int:
    asking = AdminClient({"bootstrap.servers": broker.bootstrap})
    (described,) = asking.describe_consumer_groups([name]).values()
    node: int = described.result(20).coordinator.id
    return node


def committed(one: Consumer) -> bool:
    """Return True if the consumer can commit offsets."""
    try:
        one.commit(offsets=[TopicPartition(it.topic, it.partition, 0) for it in one.assignment()], asynchronous=False)
    except KafkaException:
        return False
    return True


def ids(broker: FirnBroker, name: str) -> list[str]:
    """Of the members. Asked by a new client: one that lost its connection takes its time."""
    asking = AdminClient({"bootstrap.servers": broker.bootstrap})
    (described,) = asking.describe_consumer_groups([name]).values()
    return sorted(it.member_id for it in described.result(20).members)


@pytest.fixture
def java(firn: FirnBroker, name: str, tmp_path: Path) -> Iterator[list["subprocess.Popen[bytes]"]]:
    with console_consumers(firn, name, tmp_path, "group.protocol=consumer") as processes:
        yield processes


def test_java_members_share_and_tools_tell_of_them(
    firn: FirnBroker, name: str, java: list["subprocess.Popen[bytes]"], tmp_path: Path
) -> None:
    describe = ("--describe", "--group", name)

    def shared() -> bool:
        found = attempt(firn, GROUPS, *describe, "--members").stdout
        return sorted(line[-1] for line in table(found)[1:]) == ["2", "2"]

    await_true("two members with two partitions each", shared)
    call(firn, PRODUCER, "--topic", name, "--command-property", "batch.size=1",
         stdin="".join(f"{number}\n" for number in range(200)))  # fmt: skip
    logs = [tmp_path / f"consumer-{number}.log" for number in range(2)]

    def consumed() -> list[int]:
        """The rest is what Java logs, such as a commit that crossed a new epoch and is sent again."""
        return sorted(int(line) for it in logs for line in it.read_text().splitlines() if line.isdigit())

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
