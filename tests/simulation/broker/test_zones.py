"""Metadata names live brokers of a client's zone, spreads clients over them, and soon drops a dead broker."""

import asyncio
import os
from collections import Counter, defaultdict
from uuid import UUID

import pytest

from firn_broker.log_types import Topic
from tests.fakes.virtual_time import run
from tests.simulation.broker import wire
from tests.simulation.broker.clients import somewhere
from tests.simulation.broker.world import LEASE_SECONDS, SETTINGS, Dead, Host, World

SEEDS = 20 if os.environ.get("FIRN_LONG") else 5
ZONES = ("a", "b", "c")
PARTITIONS = 64
FORGOTTEN_SECONDS = LEASE_SECONDS * 1.2 + 1
"""The lease of a dead broker, the fifth of it until the others renew theirs, and a second for calls."""


class Observer:
    """Leaders that brokers name to clients of a zone."""

    def __init__(self, world: World, died: dict[int, tuple[str, float]]) -> None:
        self._world = world
        self._died = died
        self.near = self.far = 0
        self.led: dict[str, Counter[int]] = defaultdict(Counter)

    async def once(self, zone: str) -> None:
        world = self._world
        host = await somewhere(world)
        since = {broker_host.number for broker_host in world.hosts}
        asked = world.now()
        try:
            reply = await wire.call(world, host, 3, 9, client=f"reader,zone={zone}", topics=None)
        except Dead:
            return
        ports = {node.node_id: node.port for node in reply.brokers}
        racks = {node.node_id: node.rack for node in reply.brokers}
        for port in ports.values():
            if port in self._died:
                assert asked - self._died[port][1] <= FORGOTTEN_SECONDS, f"broker {port} is named long after its end"
        leaders = {partition.leader_id for partition in reply.topics[0].partitions}
        assert leaders <= set(ports)
        if zone in racks.values():
            assert {racks[leader] for leader in leaders} == {zone}, "leaders in other zones, while the zone has brokers"
            self.near += 1
        else:
            alive = (
                {broker_host.number for broker_host in world.hosts if broker_host.zone == zone} & since & self._settled
            )
            assert not alive, f"brokers of {zone} that live are not named"
            self.far += 1
        self.led[zone].update(ports[partition.leader_id] for partition in reply.topics[0].partitions)

    @property
    def _settled(self) -> set[int]:
        """Return brokers that started so long ago that all others know them."""
        return {
            host.number
            for host in self._world.hosts
            if self._world.now() - self._world.began[host.number] > LEASE_SECONDS
        }


@pytest.mark.parametrize("seed", range(SEEDS))
def test_leaders_are_in_the_zone_alive_and_spread(seed: int) -> None:
    async def story() -> None:
        world = World(seed)
        died: dict[int, tuple[str, float]] = {}
        await world.store.start()
        for zone in ZONES * 2:
            await world.start(zone)
        await world.store.topics.create_topic(Topic(UUID(int=seed + 1), "t", PARTITIONS, {"retention.ms": "-1"}))
        observer, chance = Observer(world, died), world.chance

        async def fate() -> None:
            while True:
                await asyncio.sleep(chance.expovariate(0.3))
                victim: Host = chance.choice(world.hosts)
                # Sometimes a whole zone dies.
                gone = (
                    [host_in_zone for host_in_zone in world.hosts if host_in_zone.zone == victim.zone]
                    if chance.random() < 0.4
                    else [victim]
                )
                if len(gone) == len(world.hosts):
                    continue
                for host in gone:
                    died[host.number] = host.zone, world.now()
                    world.kill(host)
                await asyncio.sleep(chance.random() * 4 * LEASE_SECONDS)
                for host in gone:
                    await world.start(host.zone)

        fates = world.later(fate())
        for _ in range(300):
            await asyncio.sleep(chance.random())
            await observer.once(chance.choice(ZONES))
        fates.cancel()
        assert observer.near > 100
        assert observer.far > 0
        assert len(died) > 5
        while world.hosts:
            world.kill(world.hosts[0])
        # After all brokers are back, each zone spreads its partitions over its own brokers.
        for zone in ZONES * 3:
            await world.start(zone)
        await asyncio.sleep(2 * LEASE_SECONDS)
        observer.led.clear()
        for zone in ZONES:
            await observer.once(zone)
            led = observer.led[zone]
            assert set(led) == {host.number for host in world.hosts if host.zone == zone}
            assert max(led.values()) < 2 * PARTITIONS / len(led)
        assert not world.errors
        world.end()

    assert SETTINGS.lease_seconds == LEASE_SECONDS
    run(story())
