"""Several clients change the configs of a topic at the same time, through brokers with old metadata."""

import asyncio

from kio.schema.errors import ErrorCode

from tests.fakes.virtual_time import run
from tests.unit.broker.test_compaction import alter
from tests.unit.broker.whole import Shared, broker, create


def test_concurrent_config_changes_are_all_kept() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as first, broker(shared, 2) as second:
            await create(first, "t")
            changes = {
                "retention_ms": "1000",
                "retention_bytes": "2000",
                "segment_ms": "3000",
                "segment_bytes": "40000",
            }
            codes = await asyncio.gather(
                *(
                    alter((first, second)[number % 2], "t", **{name: value})
                    for number, (name, value) in enumerate(changes.items())
                )
            )
            assert set(codes) == {ErrorCode.none}
            for asked in (first, second):
                await asked.broker.topic_metadata.refresh()
                configs = asked.broker.topic_metadata.by_name["t"].configs
                assert configs == {name.replace("_", "."): value for name, value in changes.items()}

    run(story())
