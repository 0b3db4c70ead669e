"""Requests that repeat a name get one answer for it, as with Kafka. An answer cannot grow by repetition."""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from firn.records.cursor import MalformedError
from firn_broker.log_types import LogState, Partition
from firn_broker.metadata_store.sqlite.logs.log import SqliteLog
from tests.fakes.virtual_time import run
from tests.unit.broker.whole import Asked, Shared, broker, create

LIST_OFFSETS, METADATA, OFFSET_COMMIT, OFFSET_FETCH, FIND, DESCRIBE, LEADER_EPOCH = 2, 3, 8, 9, 10, 15, 23
DESCRIBE_CONFIGS, DELETE_GROUPS, CONSUMER_DESCRIBE = 32, 42, 69
TIMES = 50


class Counting(SqliteLog):
    """Counts the requested states of logs."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared.store.database)
        self.asked: list[int] = []

    async def states(self, partitions: Sequence[Partition]) -> Sequence[LogState | None]:
        self.asked.append(len(partitions))
        return await super().states(partitions)


async def commit(asked: Asked, group: str, *partitions: int) -> None:
    committed = [
        {"partition_index": partition, "committed_offset": 5, "committed_leader_epoch": -1, "committed_metadata": "m"}
        for partition in partitions
    ]
    await asked.ask(
        OFFSET_COMMIT, 8, group_id=group, generation_id_or_member_epoch=-1, member_id="", group_instance_id=None,
        topics=[{"name": "t", "partitions": committed}],
    )  # fmt: skip


def test_repeated_topics_are_described_once_by_name_and_by_id() -> None:
    async def story() -> None:
        async with broker() as asked:
            id = await create(asked, "t", 3)
            names = [
                {"topic_id": UUID(int=n), "name": topic_name} for n in range(TIMES) for topic_name in ("t", "nowhere")
            ]
            ids = [{"topic_id": id, "name": None}] * TIMES
            answer = await asked.ask(METADATA, 12, topics=names + ids, allow_auto_topic_creation=False)
            assert [(topic.name, len(topic.partitions)) for topic in answer.topics] == [
                ("t", 3),
                ("nowhere", 0),
                ("t", 3),
            ]

    run(story())


def test_repeated_configs_are_described_once() -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t")
            all_of_it = {"resource_type": 2, "resource_name": "t", "configuration_keys": None}
            some = {**all_of_it, "configuration_keys": ("retention.ms",)}
            answer = await asked.ask(
                DESCRIBE_CONFIGS, 4, resources=[all_of_it, some] * TIMES, include_synonyms=True,
                include_documentation=False,
            )  # fmt: skip
            every, single = [[config.name for config in result.configs] for result in answer.results]
            assert (len(every) > 20, single) == (True, ["retention.ms"])

    run(story())


@pytest.mark.parametrize(
    ("api", "version", "field", "answer_field"),
    [
        (DESCRIBE, 5, "groups", "groups"), (CONSUMER_DESCRIBE, 1, "group_ids", "groups"),
        (DELETE_GROUPS, 2, "groups_names", "results"), (FIND, 5, "coordinator_keys", "coordinators"),
    ],
)  # fmt: skip
def test_repeated_groups_are_described_once(api: int, version: int, field: str, answer_field: str) -> None:
    async def story() -> None:
        async with broker() as asked:
            answer = await asked.ask(api, version, **{field: ("g", "h") * TIMES})
            assert len(getattr(answer, answer_field)) == 2

    run(story())


def test_repeated_offsets_of_a_group_are_answered_once() -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t", 3)
            await commit(asked, "g", 0, 2)
            everything: dict[str, Any] = {"group_id": "g", "member_id": None, "member_epoch": -1, "topics": None}
            answer = await asked.ask(OFFSET_FETCH, 9, groups=[everything] * TIMES, require_stable=True)
            (group,) = answer.groups
            assert [[partition.partition_index for partition in topic.partitions] for topic in group.topics] == [[0, 2]]
            topics = [{"name": "t", "partition_indexes": (2, 1) * TIMES}, {"name": "t", "partition_indexes": (0, 1)}]
            answer = await asked.ask(OFFSET_FETCH, 9, groups=[{**everything, "topics": topics}], require_stable=True)
            (topic,) = answer.groups[0].topics
            assert [(partition.partition_index, partition.committed_offset) for partition in topic.partitions] == [
                (2, 5),
                (1, -1),
                (0, 5),
            ]
            with pytest.raises(MalformedError):
                await asked.ask(
                    OFFSET_FETCH, 9, groups=[everything, {**everything, "topics": topics}], require_stable=True
                )

    run(story())


def test_offsets_of_partitions_are_read_at_once_and_each_once() -> None:
    async def story() -> None:
        shared = Shared()
        shared.store.log = counting = Counting(shared)
        async with broker(shared) as asked:
            await create(asked, "t", 3)
            await create(asked, "u")
            counting.asked.clear()
            wanted = [
                {"partition_index": partition, "current_leader_epoch": -1, "timestamp": -1}
                for partition in (0, *(1,) * TIMES, 7, 7)
            ]
            other = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -2}]
            answer = await asked.ask(
                LIST_OFFSETS, 7, replica_id=-1, isolation_level=0,
                topics=[{"name": "t", "partitions": wanted}, {"name": "u", "partitions": other}],
            )  # fmt: skip
            assert counting.asked == [3]
            first, *again, unknown, _ = answer.topics[0].partitions
            assert (first.error_code, first.offset) == (ErrorCode.none, 0)
            assert {(partition.error_code, partition.offset) for partition in again} == {
                (ErrorCode.invalid_request, -1)
            }
            assert unknown.error_code is ErrorCode.unknown_topic_or_partition
            assert answer.topics[1].partitions[0].offset == 0

    run(story())


def test_ends_of_epochs_are_read_at_once_and_each_once() -> None:
    async def story() -> None:
        shared = Shared()
        shared.store.log = counting = Counting(shared)
        async with broker(shared) as asked:
            await create(asked, "t", 3)
            counting.asked.clear()
            wanted = [
                {"partition": partition, "current_leader_epoch": -1, "leader_epoch": 0}
                for partition in (0, *(1,) * TIMES, 7)
            ]
            answer = await asked.ask(LEADER_EPOCH, 4, replica_id=-1, topics=[{"topic": "t", "partitions": wanted}])
            assert counting.asked == [2]
            assert [partition.end_offset for partition in answer.topics[0].partitions] == [0] * (TIMES + 1) + [-1]

    run(story())
