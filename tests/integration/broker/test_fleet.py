"""Several brokers over one PostgreSQL and one bucket: each serves every partition, and a killed broker loses nothing."""

import itertools
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from tests.integration.broker.admins import admin
from tests.integration.broker.test_librdkafka import create, describe, group, produce, read, take
from tests.servers.firn_broker import FirnBroker, fleet_settings, of_fleet
from tests.servers.postgres import Postgres, directory_for_postgres, postgres
from tests.servers.process import await_true, free_port
from tests.servers.proxies.tcp import Proxy
from tests.servers.s3 import S3

_numbers = itertools.count()


OF: dict[str, dict[str, str | int]] = {
    "classic": {"auto.offset.reset": "earliest", "session.timeout.ms": 6000, "heartbeat.interval.ms": 300},
    "consumer": {"auto.offset.reset": "earliest", "group.protocol": "consumer"},
}
"""Settings of a consumer, by the protocol of its group."""


@contextmanager
def fleet_of(count: int, directory: Path, database: Postgres, storage: S3) -> Iterator[list[FirnBroker]]:
    """Run brokers that share their own schema and their own part of the bucket."""
    number = next(_numbers)
    settings = {
        **fleet_settings(directory, database, storage, f"fleet-{number}"),
        "leaseSeconds": 2,
        "groups": {"initialRebalanceMs": 100},
        "writer": {"flushSeconds": 0.05},
    }
    brokers = [of_fleet(directory, f"broker-{node}", {**settings, "nodeId": node}) for node in range(count)]
    try:
        for broker in brokers:
            broker.start()
        yield brokers
    finally:
        for broker in brokers:
            if broker.process is not None:
                broker.stop()


@pytest.fixture
def fleet(tmp_path: Path, database: Postgres, storage: S3) -> Iterator[list[FirnBroker]]:
    with fleet_of(3, tmp_path, database, storage) as brokers:
        yield brokers


def all_of(brokers: list[FirnBroker]) -> FirnBroker:
    """Return the brokers as one bootstrap address."""
    return FirnBroker([], 0, Path(), bootstrap_servers=",".join(broker.bootstrap for broker in brokers))


def test_any_broker_serves_records_of_another(fleet: list[FirnBroker], name: str) -> None:
    everybody = all_of(fleet)
    await_true("three brokers", lambda: len(admin(everybody).list_topics(timeout=10).brokers) == 3)
    create(everybody, name, 6)
    partitions = admin(everybody).list_topics(name, 10).topics[name].partitions
    assert len({partition.leader for partition in partitions.values()}) > 1
    produce(everybody, name, [{"key": b"%d" % number, "value": b"%d" % number} for number in range(2000)])
    assert sorted(int(record.value()) for record in read(everybody, name, 2000)) == list(range(2000))


RECORDS, PARTITIONS = 6000, 6
KILLED_AT, RESTARTED_AT = 2000, 4500
"""Numbers of produced records."""


def test_a_killed_broker_loses_no_record(fleet: list[FirnBroker], name: str) -> None:
    everybody = all_of(fleet)
    await_true("three brokers", lambda: len(admin(everybody).list_topics(timeout=10).brokers) == 3)
    create(everybody, name, PARTITIONS)
    members = [group(everybody, name) for _ in range(2)]
    for member in members:
        member.subscribe([name])
    acknowledged: list[tuple[int, int]] = []
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, message: Any) -> None:
        if error:
            failed.append(error)
        else:
            acknowledged.append((message.partition(), int(message.value())))

    producer = Producer({"bootstrap.servers": everybody.bootstrap, "enable.idempotence": True, "linger.ms": 5})
    consumed: set[tuple[int, int]] = set()
    for number in range(RECORDS):
        producer.produce(name, b"%d" % number, partition=number % PARTITIONS, on_delivery=delivered)
        producer.poll(0)
        if number % 20 == 0:
            time.sleep(0.01)
            consumed |= consumed_by(members, 0.005)
        if number == KILLED_AT:
            fleet[1].kill()
        if number == RESTARTED_AT:
            fleet[1].start()
    assert producer.flush(60) == 0
    assert not failed
    assert len(acknowledged) == RECORDS
    check_stored(read(everybody, name, RECORDS))
    deadline = time.monotonic() + 60
    while len(consumed) < RECORDS:
        assert time.monotonic() < deadline, len(consumed)
        consumed |= consumed_by(members, 0.1)
    for member in members:
        member.close()


def consumed_by(members: list[Consumer], seconds: float) -> set[tuple[int, int]]:
    """Return the partitions and offsets of the records that each member consumes within ``seconds``."""
    return {
        (message.partition() or 0, message.offset() or 0)
        for member in members
        for message in member.consume(500, seconds)
        if message.error() is None
    }


def check_stored(records: list[Any]) -> None:
    """Check that each partition has its records in the order in which the test produced them."""
    by_partition: dict[int, list[tuple[int, int]]] = {}
    for record in records:
        by_partition.setdefault(record.partition(), []).append((record.offset(), int(record.value())))
    for partition, stored in by_partition.items():
        assert [offset for offset, _ in stored] == list(range(RECORDS // PARTITIONS)), partition
        assert [value for _, value in stored] == list(range(partition, RECORDS, PARTITIONS)), (
            "no record is lost, duplicated or out of order"
        )


def test_a_group_moves_with_its_broker(fleet: list[FirnBroker], name: str) -> None:
    everybody = all_of(fleet)
    create(everybody, name, 2)
    produce(everybody, name, [{"value": b"%d" % number, "partition": number % 2} for number in range(100)])
    member = group(everybody, name, **{"session.timeout.ms": 30000})
    member.subscribe([name])
    take(member, 100)
    member.commit(asynchronous=False)
    coordinator = describe(admin(everybody), name).coordinator.id
    fleet[coordinator].kill()
    produce(everybody, name, [{"value": b"after", "partition": number % 2} for number in range(100)])
    assert [record.value() for record in take(member, 100)] == [b"after"] * 100

    def committed() -> bool:
        with suppress(KafkaException):
            member.commit(asynchronous=False)
            return True
        return False

    await_true("the group has a broker again", committed)
    description = describe(admin(everybody), name)
    assert (description.state.name, len(description.members)) == ("STABLE", 1)
    assert description.coordinator.id != coordinator
    member.close()
    fleet[coordinator].start()


def test_a_broker_without_the_database_redirects_its_clients(
    tmp_path: Path, database: Postgres, storage: S3, name: str
) -> None:
    with Proxy(database.port) as way, fleet_of(1, tmp_path, database, storage) as brokers, ExitStack() as cut:
        settings = yaml.safe_load((tmp_path / "broker-0.yaml").read_text())
        settings["coordinator"]["uri"] = replace(database, port=way.port).uri
        brokers.append(of_fleet(tmp_path, "cut-off", {**settings, "nodeId": 1}))
        brokers[1].start()
        everybody = all_of(brokers)
        create(everybody, name, 32)

        def each_leads(broker: FirnBroker) -> bool:
            partitions = admin(broker).list_topics(name, 10).topics[name].partitions.values()
            return {partition.leader for partition in partitions} == {0, 1}

        for broker in brokers:
            await_true("each broker leads some partitions", partial(each_leads, broker))
        way.cut()
        cut.callback(way.mend)
        records = [{"value": b"%d" % number, "partition": number % 32} for number in range(800)]
        produce(everybody, name, records, **{"enable.idempotence": True})
        members = [group(everybody, f"{name}-{number}") for number in range(6)]
        for member in members:
            member.subscribe([name])
            assert sorted(int(record.value()) for record in take(member, 800)) == list(range(800))
            member.close()


def test_a_broker_may_start_before_its_database(tmp_path: Path, database: Postgres, storage: S3, name: str) -> None:
    with Proxy(database.port) as way, ThreadPoolExecutor() as beside:
        broker = of_fleet(
            tmp_path, "early", fleet_settings(tmp_path, replace(database, port=way.port), storage, "early")
        )

        def waits() -> bool:
            return broker.log.exists() and b"cannot join the cluster yet" in broker.log.read_bytes()

        way.cut()
        starting = beside.submit(broker.start)
        await_true("the broker reports why it waits", waits)
        assert broker.stop() == 0, "a waiting broker can be stopped"
        assert starting.exception() is not None
        broker.log.unlink()
        starting = beside.submit(broker.start)
        try:
            await_true("the broker waits again", waits)
            way.mend()
            starting.result()
            create(broker, name)
            produce(broker, name, [{"value": b"v"}])
        finally:
            broker.stop()


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_consumers_that_start_around_an_outage_read_every_record(
    tmp_path: Path, database: Postgres, storage: S3, name: str, protocol: str
) -> None:
    with Proxy(database.port) as way, fleet_of(1, tmp_path, replace(database, port=way.port), storage) as brokers:
        (broker,) = brokers
        create(broker, name, 3)
        produce(broker, name, [{"value": b"%d" % number} for number in range(300)])
        members: list[Consumer] = []
        values_by_member: list[list[bytes]] = []

        def poll_all(seconds: float = 0) -> None:
            """Poll all members in turn. When the connection is cut and restored, each step of the start is
            interrupted for some of them."""
            for member, values in zip(members, values_by_member, strict=True):
                values += [
                    message.value() or b"" for message in member.consume(300, seconds) if message.error() is None
                ]

        for number in range(60):
            if number == 20:
                way.cut()
            elif number == 45:
                way.mend()
            members.append(
                Consumer({**OF[protocol], "bootstrap.servers": broker.bootstrap, "group.id": f"{name}-{number}"})
            )
            members[-1].subscribe([name])
            values_by_member.append([])
            poll_all(0.001)

        def all_read() -> bool:
            poll_all(0.01)
            return all(len(set(values)) == 300 for values in values_by_member)

        try:
            await_true("all consumers have read everything", all_read)
        finally:
            for member in members:
                member.close()
        assert all(len(values) == 300 for values in values_by_member), "each record is read once"


def test_a_database_restart_loses_no_record(tmp_path: Path, storage: S3, name: str) -> None:
    port = free_port()
    acknowledged: dict[int, int] = {}
    failed: list[KafkaError] = []

    def delivered(number: int) -> Callable[[KafkaError | None, Any], None]:
        return lambda error, message: failed.append(error) if error else acknowledged.update({number: message.offset()})

    with directory_for_postgres() as directory, ExitStack() as first:
        database = first.enter_context(postgres(directory, port))
        with fleet_of(2, tmp_path, database, storage) as brokers:
            everybody = all_of(brokers)
            create(everybody, name)
            producer = Producer({"bootstrap.servers": everybody.bootstrap, "enable.idempotence": True, "linger.ms": 5})
            for number in range(1500):
                producer.produce(name, b"%d" % number, on_delivery=delivered(number))
                producer.poll(0.002)
                if number == 500:
                    first.close()
            with postgres(directory, port):
                assert producer.flush(60) == 0
                assert not failed
                messages = read(everybody, name, 1500)
                assert [int(message.value()) for message in messages] == list(range(1500))
                assert {int(message.value()): message.offset() for message in messages} == acknowledged
                for broker in brokers:
                    assert broker.stop() == 0
