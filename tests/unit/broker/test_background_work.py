"""Background tasks of a broker continue, whatever the coordinator answers."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from firn_broker.groups.classic import Group
from firn_broker.groups.lag import GroupLag
from firn_broker.topics.topic_metadata import TopicMetadata
from tests.fakes.virtual_time import run
from tests.unit.broker.rig import FIRST, Rig, rig


class OneGroup:
    """Every group of a broker."""

    async def list(self) -> list[Group]:
        return [Group("g", 0.0, 1, str)]


WORK: dict[str, Callable[[Rig], Coroutine[Any, Any, None]]] = {
    "the node's lease": lambda parts: parts.membership.keep(),
    "topics": lambda parts: TopicMetadata(parts.store.topics, parts.watermarks).keep(),
    "high watermarks": lambda parts: parts.reader.poll(lambda: False),
    "the lag of groups": lambda parts: GroupLag(
        parts.store.groups,
        OneGroup(),  # type: ignore[arg-type]
        TopicMetadata(parts.store.topics, parts.watermarks),
    ).run(),
}


@pytest.mark.slow
@pytest.mark.parametrize("work", WORK)
def test_background_work_continues_after_an_unexpected_error(work: str) -> None:
    async def story() -> None:
        async with rig() as parts:
            with parts.watermarks.watch([FIRST]):
                parts.store.trouble = [RuntimeError("unheard of")] * 2
                task = asyncio.create_task(WORK[work](parts))
                await asyncio.sleep(60)
                assert not parts.store.trouble
                assert not task.done()
                task.cancel()

    run(story())
