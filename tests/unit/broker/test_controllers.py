"""Clients send changes of topics to the broker that answered them, because another one may have died."""

import asyncio

import pytest

from firn_broker.cluster.membership import Membership
from tests.fakes.virtual_time import run
from tests.unit.broker.whole import Asked, Shared, broker

METADATA, DESCRIBE_CLUSTER = 3, 60


async def controllers(asked: Asked) -> set[int]:
    """Return the controllers that a broker names."""
    metadata = await asked.ask(METADATA, 12, topics=[])
    described = await asked.ask(DESCRIBE_CLUSTER, 1)
    return {metadata.controller_id, described.controller_id}


def test_each_broker_names_itself_as_the_controller() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1) as first, broker(shared, 2) as second:
            await asyncio.sleep(10)
            for asked in (first, second):
                assert await controllers(asked) == {asked.broker.membership.lease.node}

    run(story())


def test_a_broker_that_sends_clients_away_names_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1) as first, broker(shared, 2) as second:
            await asyncio.sleep(10)
            monkeypatch.setattr(Membership, "redirects", property(lambda node: node is second.broker.membership))
            for asked in (first, second):
                assert await controllers(asked) == {first.broker.membership.lease.node}
            monkeypatch.setattr(Membership, "redirects", property(lambda node: node is first.broker.membership))
            assert await controllers(first) == {second.broker.membership.lease.node}

    run(story())
