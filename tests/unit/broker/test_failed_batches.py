"""A connection's later batches wait for the batch in front of them that the client has to send again."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from firn_broker.log.writer import Append
from firn_broker.log_types import BatchOutcome
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Asked, Shared, broker, create

NONE, AGAIN, UNKNOWN = ErrorCode.none, ErrorCode.kafka_storage_error, ErrorCode.unknown_topic_or_partition


async def send(asked: Asked, sequence: int, producer: int = 0) -> tuple[ErrorCode, int]:
    answer = await produce(asked, "t", 0, raw(producer=producer, epoch=0, sequence=sequence))
    return answer.error_code, answer.base_offset


def test_a_batch_is_rejected_in_the_turn_in_which_the_one_before_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t")
            failing: asyncio.Future[list[BatchOutcome]] = asyncio.get_running_loop().create_future()
            with monkeypatch.context() as patched:
                patched.setattr(asked.broker.writer, "append", lambda _: failing)
                first = asyncio.create_task(send(asked, 0))
                await asyncio.sleep(0.1)
            await asked.client.produce_order.acquire()
            second = asyncio.create_task(send(asked, 1))
            await asyncio.sleep(0.1)
            # The second request runs before the handler of the first one.
            asked.client.produce_order.release()
            failing.set_result([BatchOutcome(AGAIN)])
            appended: list[Sequence[Append]] = []
            append = asked.broker.writer.append

            def noted(batches: Sequence[Append]) -> "asyncio.Future[list[BatchOutcome]]":
                appended.append(batches)
                return append(batches)

            monkeypatch.setattr(asked.broker.writer, "append", noted)
            assert [await first, await second] == [(AGAIN, -1), (AGAIN, -1)]
            assert appended == []
            assert [await send(asked, 0), await send(asked, 1)] == [(NONE, 0), (NONE, 1)]

    run(story())


def test_an_earlier_batch_need_not_wait_for_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t")
            with monkeypatch.context() as patched:
                failing: asyncio.Future[list[BatchOutcome]] = asyncio.get_running_loop().create_future()
                failing.set_result([BatchOutcome(AGAIN)])
                patched.setattr(asked.broker.writer, "append", lambda _: failing)
                assert await send(asked, 1) == (AGAIN, -1)
            assert [await send(asked, sequence) for sequence in (2, 0, 2, 1, 2)] == [
                (AGAIN, -1), (NONE, 0), (AGAIN, -1), (NONE, 1), (NONE, 2),
            ]  # fmt: skip

    run(story())


def test_a_batch_waits_for_the_one_before_when_the_topic_is_created_again() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked, broker(shared, seed=2) as other:
            await create(asked, "t")
            assert [await send(asked, 0), await send(asked, 1)] == [(NONE, 0), (NONE, 1)]
            await other.ask(20, 3, topic_names=["t"], timeout=i32Timedelta.parse(timedelta(seconds=1)))
            await create(other, "t")
            (known,) = [topic.id for topic in asked.broker.topic_metadata.by_id.values()]
            assert await send(asked, 2) == (UNKNOWN, -1)
            while asked.broker.topic_metadata.by_name["t"].id == known:
                await asyncio.sleep(0.1)
            assert await send(asked, 3) == (AGAIN, -1), "the topic has no record of the producer"
            assert await send(asked, 2) == (AGAIN, -1), "an earlier batch may be under way through another broker"
            assert [await send(asked, 2), await send(asked, 3)] == [(NONE, 0), (NONE, 1)]

    run(story())
