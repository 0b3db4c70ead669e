"""Requests of clients that may use some resources and not others, and changes of ACLs between requests."""

import asyncio
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode
from structlog.testing import capture_logs

from firn_broker.access.authorizer import SUPPORTED
from firn_broker.access_types import Operation, ResourceType
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_authorization import (
    DELETE,
    DESCRIBE,
    EVERYTHING,
    GROUP,
    MEMBERS,
    NEW,
    NO_CLUSTER,
    NO_TOPIC,
    READ,
    TOPIC,
    WRITE,
    allow,
    ask,
    closed,
    filled,
    on_cluster,
    on_group,
    on_topic,
)
from tests.unit.broker.test_disconnected_clients import seconds, serving
from tests.unit.broker.test_repeated_fetches import Consumer, Handled, asks
from tests.unit.broker.test_whole_brokers import fetch, produce
from tests.unit.broker.whole import Asked, Shared, broker, create, settle

NONE = ErrorCode.none
NOT_REQUESTED = -(1 << 31)
NOWHERE = UUID(int=99)


def bits(*operations: Operation) -> int:
    return sum(1 << operation for operation in operations)


async def by_id(asked: Asked, id: UUID) -> Any:
    partition = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1, "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }  # fmt: skip
    answer = await asked.ask(
        1, 16, max_wait=seconds(0), min_bytes=1, max_bytes=1 << 20, isolation_level=0, session_id=0, session_epoch=-1,
        topics=[{"topic_id": id, "partitions": [partition]}], forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    return answer.responses[0].partitions[0].error_code


def test_metadata_of_all_topics_has_those_that_the_client_may_describe() -> None:
    async def story() -> None:
        async with filled() as asked:
            allow(asked, *EVERYTHING)
            await create(asked, NEW)
            for grants, names in (([], []), ([on_topic(READ, NEW)], [NEW]), (EVERYTHING, [TOPIC, NEW])):
                allow(asked, *grants)
                for version in (0, 12):
                    answer = await asked.ask(3, version, topics=[] if version == 0 else None)
                    assert [topic.name for topic in answer.topics] == names
                    assert len(answer.brokers) == 1

    run(story())


def test_an_id_does_not_reveal_a_name() -> None:
    async def story() -> None:
        async with filled() as asked:
            id = asked.broker.topic_metadata.by_name[TOPIC].id
            for grants, errors in (
                ([], [(None, NO_TOPIC), (None, ErrorCode.unknown_topic_id)]),
                ([on_topic(DESCRIBE)], [(TOPIC, NONE), (None, ErrorCode.unknown_topic_id)]),
            ):
                allow(asked, *grants)
                wanted = [{"topic_id": each, "name": None} for each in (id, NOWHERE)]
                answer = await asked.ask(3, 12, topics=wanted, allow_auto_topic_creation=False)
                assert [(topic.name, topic.error_code) for topic in answer.topics] == errors
                assert await by_id(asked, id) is NO_TOPIC
                assert await by_id(asked, NOWHERE) is ErrorCode.unknown_topic_id
                answer = await asked.ask(20, 6, topics=[{"name": None, "topic_id": id}], timeout=seconds(0))
                (deleted,) = answer.responses
                assert (deleted.name, deleted.error_code) == (errors[0][0], NO_TOPIC)
            allow(asked, on_topic(READ), on_topic(DELETE))
            assert await by_id(asked, id) is NONE
            answer = await asked.ask(20, 6, topics=[{"name": None, "topic_id": id}], timeout=seconds(0))
            assert (answer.responses[0].name, answer.responses[0].error_code) == (TOPIC, NONE)

    run(story())


@pytest.mark.parametrize(
    ("grants", "error"),
    [
        ([], NO_TOPIC),
        ([on_cluster(Operation.CREATE)], NO_TOPIC),
        ([on_topic(DESCRIBE, NEW)], NO_TOPIC),
        ([on_topic(DESCRIBE, NEW), on_topic(Operation.CREATE, NEW)], NONE),
        ([on_topic(WRITE, NEW), on_cluster(Operation.CREATE)], NONE),
    ],
)
def test_metadata_creates_a_topic_only_for_a_client_that_may_create_it(grants: Any, error: ErrorCode) -> None:
    async def story() -> None:
        async with closed() as asked:
            allow(asked, *grants)
            answer = await ask(asked, "Metadata", topics=[{"name": NEW}])
            assert [topic.error_code for topic in answer.topics] == [error]
            assert (NEW in asked.broker.topic_metadata.by_name) is (error is NONE)
            allow(asked, on_topic(DESCRIBE, "other"))
            answer = await ask(asked, "Metadata", topics=[{"name": "other"}], allow_auto_topic_creation=False)
            assert [topic.error_code for topic in answer.topics] == [ErrorCode.unknown_topic_or_partition]

    run(story())


def test_a_topic_is_created_without_configs_for_a_client_that_may_not_describe_them() -> None:
    async def story() -> None:
        async with closed() as asked:
            allow(asked, on_topic(Operation.CREATE, NEW))
            (topic,) = (await ask(asked, "CreateTopics")).topics
            assert (topic.error_code, topic.topic_config_error_code) == (NONE, NO_TOPIC)
            assert (topic.num_partitions, topic.replication_factor, topic.configs) == (-1, -1, ())
            allow(asked, *EVERYTHING)
            assert (await ask(asked, "DeleteTopics", topics=[{"name": NEW, "topic_id": None}])).responses[
                0
            ].error_code is NONE
            (topic,) = (await ask(asked, "CreateTopics")).topics
            assert (topic.topic_config_error_code, topic.num_partitions, bool(topic.configs)) == (NONE, 1, True)

    run(story())


def test_the_topics_of_a_request_are_authorised_one_by_one() -> None:
    async def story() -> None:
        async with filled() as asked:
            allow(asked, *EVERYTHING)
            await create(asked, NEW)
            allow(asked, on_topic(WRITE, NEW), on_group(READ), on_topic(READ, NEW))
            data = [{"index": 0, "records": bytes(raw())}]
            answer = await ask(
                asked, "Produce", topic_data=[{"name": name, "partition_data": data} for name in (TOPIC, NEW)]
            )
            assert [topic.partition_responses[0].error_code for topic in answer.responses] == [NO_TOPIC, NONE]
            committed = [{"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}]
            answer = await ask(
                asked, "OffsetCommit", topics=[{"name": name, "partitions": committed} for name in (TOPIC, NEW)]
            )
            assert [topic.partitions[0].error_code for topic in answer.topics] == [NO_TOPIC, NONE]
            answer = await ask(asked, "OffsetFetch", groups=[{"group_id": GROUP, "topics": None}])
            assert [topic.name for topic in answer.groups[0].topics] == [NEW]
            answer = await ask(
                asked, "DeleteTopics", topics=[{"name": name, "topic_id": None} for name in (TOPIC, NEW, "nowhere")]
            )
            assert [topic.error_code for topic in answer.responses] == [NO_TOPIC] * 3
            allow(asked, on_topic(DELETE, NEW), on_topic(DESCRIBE, "nowhere"))
            answer = await ask(
                asked, "DeleteTopics", topics=[{"name": name, "topic_id": None} for name in (TOPIC, NEW, "nowhere")]
            )
            assert [topic.error_code for topic in answer.responses] == [
                NO_TOPIC, NONE, ErrorCode.unknown_topic_or_partition,
            ]  # fmt: skip

    run(story())


def test_the_configs_of_brokers_belong_to_the_cluster() -> None:
    async def story() -> None:
        async with filled() as asked:
            resources = [{"resource_type": 4, "resource_name": "0", "configuration_keys": None}]
            assert (await ask(asked, "DescribeConfigs", resources=resources)).results[0].error_code is NO_CLUSTER
            allow(asked, on_cluster(Operation.DESCRIBE_CONFIGS))
            assert (await ask(asked, "DescribeConfigs", resources=resources)).results[0].configs

    run(story())


def test_clients_learn_what_they_may_do() -> None:
    async def operations(asked: Asked) -> list[int]:
        cluster = await ask(asked, "Metadata", 10)
        described = await ask(asked, "DescribeCluster")
        (group,) = (await ask(asked, "DescribeGroups")).groups
        (members,) = (await ask(asked, "ConsumerGroupDescribe")).groups
        return [
            (await ask(asked, "Metadata")).topics[0].topic_authorized_operations, cluster.cluster_authorized_operations,
            described.cluster_authorized_operations, group.authorized_operations, members.authorized_operations,
        ]  # fmt: skip

    async def story() -> None:
        async with filled() as asked:
            assert await operations(asked) == [NOT_REQUESTED, 0, 0, NOT_REQUESTED, NOT_REQUESTED]
            allow(asked, on_topic(READ), on_cluster(DESCRIBE), on_group(READ), on_group(DELETE, MEMBERS))
            read = bits(READ, DESCRIBE)
            assert await operations(asked) == [read, bits(DESCRIBE), bits(DESCRIBE), read, bits(DELETE, DESCRIBE)]
        async with broker() as asked:
            await create(asked, TOPIC)
            await ask(asked, "ConsumerGroupHeartbeat", group_id=MEMBERS)
            cluster = SUPPORTED[ResourceType.CLUSTER]
            group = SUPPORTED[ResourceType.GROUP]
            assert await operations(asked) == [SUPPORTED[ResourceType.TOPIC], cluster, cluster, group, group]
            unasked = await ask(asked, "Metadata", include_topic_authorized_operations=False)
            assert unasked.topics[0].topic_authorized_operations == NOT_REQUESTED

    run(story())


def test_a_waiting_fetch_returns_no_records_that_the_client_may_not_read_any_more() -> None:
    async def story() -> None:
        shared = Shared()
        async with filled(shared) as asked:
            writer = Asked(asked.broker)
            allow(asked, on_topic(READ), on_topic(WRITE))
            waiting = asyncio.create_task(fetch(asked, TOPIC, 0, 1, wait=5))
            await settle()
            allow(asked, on_topic(WRITE))
            assert (await produce(writer, TOPIC, 0, raw())).error_code is NONE
            answer = await waiting
            assert (answer.error_code, answer.high_watermark, answer.records) == (NO_TOPIC, -1, b"")

    run(story())


async def test_a_repeated_fetch_ends_when_the_client_may_not_read_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    handled = Handled(monkeypatch)
    async with serving(Shared(), "Acl") as (asked, _, connect):
        allow(asked, on_topic(READ, "t"))
        reader = Consumer(await connect(), asked)
        assert (await reader.partition(asks())).error_code is NONE
        assert (await reader.partition(asks())).error_code is NONE
        assert handled.count == 1
        # The wait of the third one has begun when the ACLs change.
        waiting = asyncio.create_task(reader.partition(asks()))
        while not asked.broker.watermarks.claims():
            await asyncio.sleep(0)
        allow(asked, on_topic(DELETE, "t"))
        assert (await waiting).error_code is NO_TOPIC
        assert (await reader.partition(asks())).error_code is NO_TOPIC
        allow(asked, on_topic(READ, "t"))
        assert (await reader.partition(asks())).error_code is NONE


async def test_each_fetch_of_a_session_is_authorised() -> None:
    async with serving(Shared(), "Acl") as (asked, _, connect):
        allow(asked, on_topic(READ, "t"))
        reader = Consumer(await connect(), asked)
        session = (await reader.fetch(asks(epoch=0))).session_id
        allow(asked, on_topic(DELETE, "t"))
        answer = await reader.fetch(asks(session=session, epoch=1, topics=False))
        assert [topic.partitions[0].error_code for topic in answer.responses] == [NO_TOPIC]
        allow(asked, on_topic(READ, "t"))
        answer = await reader.fetch(asks(session=session, epoch=2, topics=False))
        assert [topic.partitions[0].error_code for topic in answer.responses] == [NONE]


def test_a_pattern_subscribes_only_to_topics_that_the_member_may_describe() -> None:
    async def beat(asked: Asked, epoch: int) -> Any:
        answer = await ask(
            asked, "ConsumerGroupHeartbeat", group_id="g", member_epoch=epoch, subscribed_topic_names=None,
            subscribed_topic_regex="topic.*" if not epoch else None, topic_partitions=() if not epoch else None,
        )  # fmt: skip
        assert answer.error_code is NONE
        topics = None if answer.assignment is None else {entry.topic_id for entry in answer.assignment.topic_partitions}
        return answer.member_epoch, topics

    async def story() -> None:
        async with filled() as asked:
            allow(asked, *EVERYTHING)
            ids = {TOPIC: asked.broker.topic_metadata.by_name[TOPIC].id, NEW: await create(asked, NEW)}
            allow(asked, on_group(READ, "g"), on_topic(DESCRIBE))
            epoch, topics = await beat(asked, 0)
            assert topics == {ids[TOPIC]}
            assert await beat(asked, epoch) == (epoch, None)
            allow(asked, on_group(READ, "g"), on_topic(DESCRIBE), on_topic(READ, NEW))
            epoch, topics = await beat(asked, epoch)
            assert topics == set(ids.values())
            allow(asked, on_group(READ, "g"), on_topic(DESCRIBE, NEW), on_topic(DESCRIBE, "other"))
            assert (await beat(asked, epoch))[1] == {ids[NEW]}

    run(story())


def test_denials_and_changes_are_in_the_audit_log() -> None:
    async def story() -> None:
        async with filled() as asked:
            with capture_logs() as written:
                await ask(asked, "DeleteTopics")
                allow(asked, on_topic(DELETE))
                await ask(asked, "DeleteRecords")
                await ask(asked, "Metadata", topics=None)
        denied, changed = [line for line in written if line.get("audit")]
        assert (denied["event"], denied["operation"], denied["resource"]) == (
            "access denied",
            "Describe",
            "Topic:topic-1",
        )
        assert (changed["event"], changed["operation"], changed["resources"]) == (
            "changed", "DeleteRecords", ["Topic:topic-1"],
        )  # fmt: skip
        async with broker() as asked:
            with capture_logs() as written:
                await create(asked, TOPIC)
            assert not [line for line in written if line.get("audit")]

    run(story())
