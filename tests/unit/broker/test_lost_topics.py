"""Brokers know the topics that exist, also when the coordinator lost a topic and no counter shows it."""

import asyncio

from tests.fakes.virtual_time import run
from tests.unit.broker.whole import Shared, broker, create


def test_brokers_forget_a_topic_whose_number_another_topic_has() -> None:
    """The second broker changes topics before the first one compares the counters again."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, seed=1) as first, broker(shared, seed=2) as second:
            await create(first, "base")
            await asyncio.sleep(10)
            backup = shared.store.database.connection.serialize()
            await create(first, "lost")
            await asyncio.sleep(1.5)
            shared.store.database.connection.deserialize(backup)
            await create(second, "new")
            await asyncio.sleep(5)
            for asked in (first, second):
                assert sorted(asked.broker.topic_metadata.by_name) == ["base", "new"]
                assert asked.broker.not_ready is None

    run(story())
