"""Producer ids rise with time over all brokers, so that a new producer has a greater id than a forgotten one."""

import asyncio
from random import Random

import pytest

from firn_broker.cluster import producer_ids
from firn_broker.cluster.producer_ids import BLOCK, GAP, ProducerIds
from tests.fakes.virtual_time import run
from tests.unit.broker.whole import Shared

LIFETIME = 20.0


@pytest.fixture(autouse=True)
def _lifetime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(producer_ids, "BLOCK_SECONDS", LIFETIME)


def test_a_broker_gives_no_id_below_the_ids_that_others_gave_long_before() -> None:
    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        quiet, busy = (ProducerIds(shared.store.nodes, Random(seed)) for seed in (1, 2))
        keeping = asyncio.create_task(quiet.keep())
        await quiet.allocate()
        before = [await busy.allocate() for _ in range(2 * BLOCK)]
        await asyncio.sleep(2 * LIFETIME + 2)
        assert await quiet.allocate() > max(before)
        keeping.cancel()

    run(story())


def test_an_idle_broker_takes_one_block_in_the_lifetime_of_a_block() -> None:
    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        ids = ProducerIds(shared.store.nodes, Random(1))
        keeping = asyncio.create_task(ids.keep())
        first = await ids.allocate()
        await asyncio.sleep(10.5 * LIFETIME)
        assert await ids.allocate() <= first + 12 * (BLOCK + GAP)
        keeping.cancel()

    run(story())


def test_a_block_that_the_coordinator_forgot_is_not_given_again() -> None:
    async def story() -> None:
        given = []
        for seed in (1, 2):
            # Both brokers ask the coordinator in the same state.
            shared = Shared()
            await shared.store.start()
            ids = ProducerIds(shared.store.nodes, Random(seed))
            given.append({await ids.allocate() for _ in range(2 * BLOCK)})
        assert not given[0] & given[1]

    run(story())
