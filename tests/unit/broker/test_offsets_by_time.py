"""ListOffsets by timestamp, which decodes batches."""

from datetime import timedelta
from typing import Any

import cramjam
import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from firn.records import contents
from firn_broker.log_types import Partition
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_contents import batch, record
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Asked, broker, create


async def by_time(asked: Asked, timestamp: int) -> tuple[ErrorCode, int]:
    partition = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": timestamp}
    answer: Any = await asked.ask(
        2, 7, replica_id=-1, isolation_level=0, timeout=i32Timedelta.parse(timedelta(0)),
        topics=[{"name": "t", "partitions": [partition]}],
    )  # fmt: skip
    partition_answer = answer.topics[0].partitions[0]
    return partition_answer.error_code, partition_answer.offset


def test_a_time_maps_to_the_first_record_at_or_after_it() -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t")
            for start in (1000, 2000):
                body = record(0) + record(1, time=5) + record(2, time=9)
                await produce(asked, "t", 0, batch(body, 3, time=start))
            # The header has the times 1000 and 2000, so the broker decodes this batch.
            assert [(await by_time(asked, time))[1] for time in (1, 1000, 1001, 2000, 2001)] == [0, 0, 3, 3, -1]

    run(story())


@pytest.mark.parametrize("bad", ["bomb", "nonsense"])
def test_a_batch_too_large_to_decode_maps_to_its_first_record(bad: str) -> None:
    async def story() -> None:
        bomb = bytes(cramjam.zstd.compress(record(0, value=bytes(contents.MAX_BYTES))))
        assert len(bomb) < 10_000
        async with broker() as asked:
            topic = await create(asked, "t")
            await produce(asked, "t", 0, batch(record(0), 1, time=1000))
            there = batch(bomb, 1, attributes=4, time=2000) if bad == "bomb" else raw(1, time=2000)
            assert (await produce(asked, "t", 0, there)).base_offset == 1
            await produce(asked, "t", 0, batch(record(0), 1, time=3000))
            assert [await by_time(asked, time) for time in (1500, 2001, -3)] == [
                (ErrorCode.none, 1), (ErrorCode.none, 2), (ErrorCode.none, 2),
            ]  # fmt: skip
            await asked.broker.metadata_store.log.advance_start(Partition(topic, 0), 2)
            assert await by_time(asked, 1500) == (ErrorCode.none, 2)

    run(story())
