"""Concurrent calls become few requests, and every caller gets its own answer."""

import asyncio
from collections.abc import Sequence

import pytest

from firn_operator.adapters.batches import Batch


async def test_concurrent_calls_share_a_request_and_get_their_own_answers() -> None:
    requests: list[list[int]] = []

    async def run(items: Sequence[int]) -> Sequence[int | BaseException]:
        requests.append(list(items))
        return [item * 10 for item in items]

    batch: Batch[int, int] = Batch(run, limit=100)
    assert await asyncio.gather(*(batch.submit(number) for number in range(50))) == [n * 10 for n in range(50)]
    assert len(requests) == 1


async def test_calls_during_a_request_share_the_next() -> None:
    go = asyncio.Event()
    requests: list[list[int]] = []

    async def run(items: Sequence[int]) -> Sequence[int | BaseException]:
        requests.append(list(items))
        await go.wait()
        return list(items)

    batch: Batch[int, int] = Batch(run, limit=100)
    first = asyncio.create_task(batch.submit(1))
    while not requests:
        await asyncio.sleep(0)
    later = [asyncio.create_task(batch.submit(number)) for number in (2, 3)]
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.gather(first, *later) == [1, 2, 3]
    assert requests == [[1], [2, 3]]


async def test_a_request_is_no_larger_than_the_limit() -> None:
    sizes: list[int] = []

    async def run(items: Sequence[int]) -> Sequence[int | BaseException]:
        sizes.append(len(items))
        return list(items)

    batch: Batch[int, int] = Batch(run, limit=4)
    await asyncio.gather(*(batch.submit(number) for number in range(10)))
    assert sizes == [4, 4, 2]


async def test_an_error_is_raised_only_to_its_caller() -> None:
    async def run(items: Sequence[int]) -> Sequence[int | BaseException]:
        return [ValueError("no") if item == 1 else item for item in items]

    batch: Batch[int, int] = Batch(run, limit=10)
    answers = await asyncio.gather(*(batch.submit(number) for number in range(3)), return_exceptions=True)
    assert answers[0] == 0
    assert isinstance(answers[1], ValueError)
    assert answers[2] == 2


async def test_a_failed_request_raises_to_all_and_the_next_one_runs() -> None:
    broken = True

    async def run(items: Sequence[int]) -> Sequence[int | BaseException]:
        if broken:
            raise OSError("down")
        return list(items)

    batch: Batch[int, int] = Batch(run, limit=10)
    answers = await asyncio.gather(*(batch.submit(number) for number in range(3)), return_exceptions=True)
    assert all(isinstance(answer, OSError) for answer in answers)
    broken = False
    assert await batch.submit(7) == 7


async def test_a_cancelled_caller_does_not_affect_the_others() -> None:
    go = asyncio.Event()

    async def run(items: Sequence[int]) -> Sequence[int | BaseException]:
        await go.wait()
        return list(items)

    batch: Batch[int, int] = Batch(run, limit=10)
    impatient, patient = (asyncio.create_task(batch.submit(number)) for number in (1, 2))
    await asyncio.sleep(0)
    impatient.cancel()
    go.set()
    assert await patient == 2
    with pytest.raises(asyncio.CancelledError):
        await impatient
