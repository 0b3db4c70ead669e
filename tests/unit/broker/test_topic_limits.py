"""Limits of topics and partitions, and the cost of creating many topics."""

from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.fakes.virtual_time import run
from tests.unit.broker.whole import Asked, Shared, broker, create, zero

TOPICS: dict[str, Any] = {"topics": {"max_topics": 3, "max_partitions": 6}}


async def metadata(asked: Asked, *names: str) -> list[ErrorCode]:
    answer: Any = await asked.ask(
        3, 9,
        topics=[{"name": name} for name in names], allow_auto_topic_creation=True,
        include_cluster_authorized_operations=False, include_topic_authorized_operations=False,
    )  # fmt: skip
    return [topic.error_code for topic in answer.topics]


async def created(asked: Asked, name: str, partitions: int = 1) -> tuple[ErrorCode, str | None]:
    answer: Any = await asked.ask(
        19, 7,
        topics=[
            {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
        ],
        timeout=zero(), validate_only=False,
    )  # fmt: skip
    return answer.topics[0].error_code, answer.topics[0].error_message


async def grown(asked: Asked, name: str, partitions: int) -> ErrorCode:
    answer: Any = await asked.ask(
        37, 3, topics=[{"name": name, "count": partitions, "assignments": None}], timeout=zero(), validate_only=False
    )
    code: ErrorCode = answer.results[0].error_code
    return code


def test_a_cluster_has_a_limited_number_of_topics() -> None:
    async def story() -> None:
        async with broker(**TOPICS) as asked:
            assert await metadata(asked, "a", "b", "c", "d") == [ErrorCode.none] * 3 + [ErrorCode.policy_violation]
            code, message = await created(asked, "d")
            assert code is ErrorCode.policy_violation
            assert message is not None
            assert "topics.maxTopics" in message
            assert await metadata(asked, "a", "d") == [ErrorCode.none, ErrorCode.policy_violation]

    run(story())


def test_a_cluster_has_a_limited_number_of_partitions() -> None:
    async def story() -> None:
        async with broker(**TOPICS) as asked:
            await create(asked, "a", 3)
            code, message = await created(asked, "b", 4)
            assert code is ErrorCode.policy_violation
            assert message is not None
            assert "topics.maxPartitions" in message
            assert await grown(asked, "a", 7) is ErrorCode.policy_violation
            assert await grown(asked, "a", 6) is ErrorCode.none
            assert (await created(asked, "b"))[0] is ErrorCode.policy_violation

    run(story())


def test_a_topic_of_another_broker_is_found_at_the_limit() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1, **TOPICS) as first, broker(shared, 2, **TOPICS) as second:
            assert await metadata(second, "x") == [ErrorCode.none]
            assert await metadata(first, "a", "b", "c", "x") == [ErrorCode.none] * 4
            assert await metadata(second, "a", "d") == [ErrorCode.none, ErrorCode.policy_violation]

    run(story())


def test_creating_a_topic_does_not_load_all_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        load, loads = shared.store.topics.load_topics, 0

        async def counted(known: Any = None) -> Any:
            nonlocal loads
            loaded = await load(known)
            loads += loaded is not None
            return loaded

        async with broker(shared) as asked:
            monkeypatch.setattr(shared.store.topics, "load_topics", counted)
            assert set(await metadata(asked, *(f"t{number}" for number in range(200)))) == {ErrorCode.none}
            for number in range(50):
                await create(asked, f"u{number}")
            assert loads <= 1
            await asked.broker.topic_metadata.refresh()
            assert len(asked.broker.topic_metadata.by_name) == asked.broker.topic_metadata.partitions == 250

    run(story())
