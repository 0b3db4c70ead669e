"""Brokers that cannot reach their coordinator: clients receive retriable errors, and succeed afterwards."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn_broker import api_table
from firn_broker.cluster.producer_ids import BLOCK
from firn_broker.log.writer import Append
from firn_broker.log_types import Partition
from firn_broker.ports import AccessStore, GroupStore, LogStore, NodeStore, RetentionStore, TopicStore
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import batch
from tests.unit.broker.test_whole_brokers import COMMON, GIVEN
from tests.unit.broker.whole import Asked, Shared, broker, create, zero


@contextmanager
def outage(shared: Shared) -> Iterator[None]:
    """Make every call of the metadata store fail."""

    async def nothing(*_: Any, **__: Any) -> Any:
        raise UnavailableError("no way there")

    store = shared.store
    ports = {
        store.nodes: NodeStore, store.topics: TopicStore, store.log: LogStore, store.retention: RetentionStore, store.groups: GroupStore,
        store.access: AccessStore,
    }  # fmt: skip
    calls: list[tuple[object, str]] = [(store, "start"), (store, "cluster_id")]
    calls += [(port, name) for port, protocol in ports.items() for name in vars(protocol) if not name.startswith("_")]
    for port, name in calls:
        setattr(port, name, nothing)
    try:
        yield
    finally:
        for port, name in calls:
            delattr(port, name)


API_VERSIONS = 18
PARTITION = {"partition_index": 0}
ASKED: dict[str, tuple[int, dict[str, Any], ErrorCode]] = {
    "latest offset": (
        2,
        {"replica_id": -1, "topics": [{"name": "t", "partitions": [{**PARTITION, "timestamp": -1}]}]},
        ErrorCode.kafka_storage_error,
    ),
    "first offset of an unknown topic": (
        2,
        {"replica_id": -1, "topics": [{"name": "new", "partitions": [{**PARTITION, "timestamp": -2}]}]},
        ErrorCode.kafka_storage_error,
    ),
    "end of an epoch": (
        23,
        {"topics": [{"topic": "t", "partitions": [{"partition": 0, "leader_epoch": 0, "current_leader_epoch": -1}]}]},
        ErrorCode.kafka_storage_error,
    ),
    "deletion of records": (
        21, {"topics": [{"name": "t", "partitions": [{**PARTITION, "offset": -1}]}]}, ErrorCode.kafka_storage_error,
    ),
    "metadata of an unknown topic": (
        3, {"topics": [{"name": "new"}], "allow_auto_topic_creation": False}, ErrorCode.leader_not_available,
    ),
    "metadata of a topic to be made": (
        3, {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}, ErrorCode.leader_not_available,
    ),
    "creation of a topic": (
        19,
        {"topics": [{"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}]},
        ErrorCode.not_controller,
    ),
    "deletion of a topic": (
        20, {"topics": [{"name": "t", "topic_id": None}], "topic_names": ("t",)}, ErrorCode.not_controller,
    ),
    "growth of a topic": (
        37, {"topics": [{"name": "t", "count": 3, "assignments": None}], "validate_only": False}, ErrorCode.not_controller,
    ),
    "replacement of configs": (
        33, {"resources": [{"resource_type": 2, "resource_name": "t", "configs": []}]}, ErrorCode.request_timed_out,
    ),
    "change of configs": (
        44, {"resources": [{"resource_type": 2, "resource_name": "t", "configs": []}]}, ErrorCode.request_timed_out,
    ),
    "configs of an unknown topic": (
        32, {"resources": [{"resource_type": 2, "resource_name": "new", "configuration_keys": None}]},
        ErrorCode.request_timed_out,
    ),
    "sizes": (35, {"topics": None}, ErrorCode.kafka_storage_error),
    "commit for an unknown topic": (
        8,
        {"generation_id_or_member_epoch": -1, "topics": [{"name": "new", "partitions": [{**PARTITION, "committed_offset": 1}]}]},
        ErrorCode.coordinator_not_available,
    ),
    "commit": (
        8,
        {"generation_id_or_member_epoch": -1, "topics": [{"name": "t", "partitions": [{**PARTITION, "committed_offset": 1}]}]},
        ErrorCode.coordinator_not_available,
    ),
    "offsets of a group": (
        9,
        {
            "groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": (0,)}]}],
            "topics": [{"name": "t", "partition_indexes": (0,)}],
            "require_stable": False,
        },
        ErrorCode.coordinator_load_in_progress,
    ),
    "deletion of offsets": (
        47, {"topics": [{"name": "t", "partitions": [PARTITION]}]}, ErrorCode.coordinator_not_available,
    ),
    "join": (11, {"protocols": [{"name": "range", "metadata": b""}]}, ErrorCode.coordinator_not_available),
    "description of groups": (15, {"groups": ("g",)}, ErrorCode.coordinator_not_available),
    "list of groups": (16, {}, ErrorCode.coordinator_not_available),
    "ACLs": (29, {"resource_type_filter": 1, "operation": 1, "permission_type": 1}, ErrorCode.request_timed_out),
    "creation of an ACL": (
        30, {"creations": [{"resource_type": 2, "resource_name": "t", "principal": "User:a", "host": "*", "operation": 3, "permission_type": 3}]},
        ErrorCode.request_timed_out,
    ),
    "deletion of ACLs": (
        31, {"filters": [{"resource_type_filter": 1, "operation": 1, "permission_type": 1}]}, ErrorCode.request_timed_out,
    ),
    "quotas": (48, {"components": (), "strict": False}, ErrorCode.request_timed_out),
    "change of quotas": (
        49,
        {
            "entries": [
                {
                    "entity": [{"entity_type": "user", "entity_name": "a"}],
                    "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
                }
            ]
        },
        ErrorCode.request_timed_out,
    ),
    "users": (50, {"users": None}, ErrorCode.request_timed_out),
    "change of a user": (
        51,
        {
            "deletions": (),
            "upsertions": [{"name": "a", "mechanism": 2, "iterations": 4096, "salt": b"salt", "salted_password": b"p" * 64}],
        },
        ErrorCode.not_controller,
    ),
    "deletion of groups": (42, {"groups_names": ("g",)}, ErrorCode.coordinator_not_available),
}  # fmt: skip


def codes(answer: Any) -> set[ErrorCode]:
    """Return all error codes of an answer."""
    if isinstance(answer, tuple):
        return set().union(*map(codes, answer)) if answer else set()
    if isinstance(answer, ErrorCode):
        return {answer}
    fields = getattr(answer, "__dataclass_fields__", ())
    return set().union(*(codes(getattr(answer, name)) for name in fields)) if fields else set()


@pytest.mark.parametrize("operation", ASKED)
def test_clients_retry_in_an_outage_and_succeed_later(operation: str) -> None:
    api, fields, expected = ASKED[operation]

    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            await create(asked, "t")
            low, high = next(route.versions for route in asked.broker.routes if route.key == api)
            given = {**COMMON, "validate_only": False, **fields}
            with outage(shared):
                for version in range(low, high + 1):
                    if version > 3 or "allow_auto_topic_creation" not in fields:
                        assert codes(await asked.ask(api, version, **given)) - {ErrorCode.none} == {expected}, version
            await asked.broker.topic_metadata.refresh()
            assert expected not in codes(await asked.ask(api, high, **given))

    run(story())


def test_any_broker_answers_offset_fetches_without_a_member() -> None:
    """A consumer with a new assignment may not know yet that its group has moved."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared) as first, broker(shared) as second:
            await create(first, "t")
            both = (first, second)
            for asked in both:
                await asked.broker.topic_metadata.refresh()
                await asked.broker.membership._renew()
            committed = [codes(await commit(asked_broker, "g", "")) for asked_broker in both]
            assert set().union(*committed) == {ErrorCode.none, ErrorCode.not_coordinator}
            wanted = [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": (0,)}]}]
            for asked in both:
                answer = await asked.ask(9, 9, groups=wanted, require_stable=True)
                assert answer.groups[0].topics[0].partitions[0].committed_offset == 1
            asked = second if committed[0] == {ErrorCode.none} else first
            member = [{**wanted[0], "member_id": "m", "member_epoch": 1}]
            assert codes(await asked.ask(9, 9, groups=member, require_stable=True)) - {ErrorCode.none} == {
                ErrorCode.unstable_offset_commit
            }

    run(story())


@pytest.mark.slow
def test_producers_get_reserved_ids_in_an_outage() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            with outage(shared):
                answers = [await asked.ask(22, 4, **COMMON, transactional_id=None) for _ in range(BLOCK + 1)]
                assert len({answer.producer_id for answer in answers[:BLOCK]}) == BLOCK
                assert codes(tuple(answers[:BLOCK])) == {ErrorCode.none}
                assert answers[BLOCK].error_code is ErrorCode.coordinator_load_in_progress
            many = await asyncio.gather(*(asked.ask(22, 4, **COMMON, transactional_id=None) for _ in range(3 * BLOCK)))
            assert len({answer.producer_id for answer in [*answers[:BLOCK], *many]}) == 4 * BLOCK

    run(story())


def test_an_outage_closes_no_connection() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            with outage(shared):
                for route in api_table.routes(asked.broker):
                    given = next((fields for key, fields, _ in ASKED.values() if key == route.key), {})
                    given = {**COMMON, **GIVEN.get(route.key, {}), **given}
                    low, high = route.versions
                    for version in range(max(low, {0: 3}.get(route.key, 0)), high + 1):
                        if route.key != API_VERSIONS:
                            await asked.ask(route.key, version, **given)

    run(story())


def test_metadata_has_the_last_known_topics_in_an_outage() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            id = await create(asked, "t")
            with outage(shared):
                everything = await asked.ask(3, 12, topics=None, allow_auto_topic_creation=True)
                assert [(topic.name, topic.error_code, len(topic.partitions)) for topic in everything.topics] == [
                    ("t", ErrorCode.none, 1)
                ]
                assert len(everything.brokers) == 1
                answer = await asked.ask(
                    3, 12, topics=[{"name": None, "topic_id": id}, {"name": None, "topic_id": UUID(int=7)}],
                    allow_auto_topic_creation=True,
                )  # fmt: skip
                assert [topic.error_code for topic in answer.topics] == [ErrorCode.none, ErrorCode.leader_not_available]

    run(story())


@pytest.mark.parametrize("topic", ["t", "new"])
def test_consumers_retry_reads_of_offsets_in_an_outage(topic: str) -> None:
    """After any other error librdkafka leaves a partition without an offset, and reads no records of it."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            await create(asked, "t")
            wanted = [{"name": topic, "partition_indexes": (0,)}]
            with outage(shared):
                for version in (7, 8, 9):
                    given = {"group_id": "g", "topics": wanted, "groups": [{"group_id": "g", "topics": wanted}]}
                    answer = await asked.ask(9, version, **given, require_stable=True)
                    group = answer.groups[0] if version > 7 else answer
                    assert group.error_code is ErrorCode.none
                    assert group.topics[0].partitions[0].error_code is ErrorCode.unstable_offset_commit
                answer = await asked.ask(9, 9, groups=[{"group_id": "g", "topics": None}], require_stable=True)
                assert answer.groups[0].error_code is ErrorCode.coordinator_load_in_progress

    run(story())


def test_a_stopping_broker_does_not_wait_for_the_end_of_an_outage() -> None:
    async def story() -> None:
        shared = Shared()
        now = asyncio.get_running_loop().time
        async with broker(shared) as asked:
            await create(asked, "t")
            partition = Partition(asked.broker.topic_metadata.by_name["t"].id, 0)
            with outage(shared):
                answer = asked.broker.writer.append([Append(partition, batch(1), False)])
                await asyncio.sleep(1)
                await asked.broker.leave_service()
                began = now()
                await asked.broker.stop()
                assert now() - began < 20
                assert not answer.done()

    run(story())


@pytest.mark.parametrize("group", ["a\0b", "g" * 3_000])
def test_a_group_name_that_cannot_be_stored_is_rejected(group: str) -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t")
            assert codes(await commit(asked, group, "")) == {ErrorCode.invalid_group_id}
            answer = await asked.ask(9, 9, groups=[{"group_id": group, "topics": None}])
            assert codes(answer) == {ErrorCode.invalid_group_id}

    run(story())


def test_a_zero_byte_in_metadata_or_a_config_is_rejected() -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t")
            assert codes(await commit(asked, "g", "a\0b")) == {ErrorCode.invalid_request}
            assert codes(await commit(asked, "g", "", offset=-(2**63))) == {ErrorCode.invalid_request}
            config = {"name": "leader.replication.throttled.replicas", "value": "a\0b"}
            topic = {"name": "u", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": [config]}
            made = await asked.ask(19, 7, topics=[topic], timeout=zero(), validate_only=False)
            assert codes(made) == {ErrorCode.invalid_config}

    run(story())


async def commit(asked: Asked, group: str, metadata: str, offset: int = 1) -> Any:
    return await asked.ask(
        8, 9, group_id=group, generation_id_or_member_epoch=-1, member_id="",
        topics=[{"name": "t", "partitions": [{**PARTITION, "committed_offset": offset, "committed_metadata": metadata}]}],
    )  # fmt: skip
