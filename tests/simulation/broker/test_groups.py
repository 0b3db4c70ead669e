"""Members of a KIP-848 group on brokers that die or lose the coordinator.

No partition ever has two readers, and in the end every partition has one.
"""

import asyncio
import io
import os
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta

from firn_broker.log_types import Topic
from firn_broker.network.router import Client
from tests.fakes.virtual_time import run
from tests.simulation.broker.world import SETTINGS, Dead, World
from tests.unit.broker.whole import fill

SEEDS = 300 if os.environ.get("FIRN_LONG") else 15
TOPIC, GROUP, PARTITIONS, MEMBERS = "t", "g", 7, 4
TROUBLED, SETTLING = 90.0, 40.0
HEARTBEAT = 68
SESSION = SETTINGS.groups.consumer_session_ms / 1000
REBALANCE = i32Timedelta.parse(timedelta(seconds=3 * SESSION))
"""Longer than any member takes to learn that it has to revoke a partition, or that its session is over."""
REFUSED = {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress}
OUT = {ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch}


class Member:
    """Follows its assignment after a delay, and revokes it after a session without a reply."""

    def __init__(self, world: World, topic: UUID, members: list["Member"]) -> None:
        self.world = world
        self.topic = topic
        self.members = members
        self.lives = 0
        self.owned: frozenset[int] = frozenset()
        self.sure_until = 0.0
        self.begin()

    def begin(self) -> None:
        """Start over, as a new process."""
        self.lives += 1
        self.id = f"{id(self)}-{self.lives}"
        self.out()

    def out(self) -> None:
        self.epoch = 0
        self.owned = self.assignment = frozenset[Any]()
        self.says_all = True

    async def run(self) -> None:
        chance = self.world.chance
        while True:
            await asyncio.sleep(chance.random() * 2)
            if now() >= self.sure_until:
                self.owned = frozenset()
            if chance.random() < 0.02:
                self.out()
                self.epoch = -1 if chance.random() < 0.5 else 0
                if self.epoch:
                    await self.beat()
                self.begin()
            if await self.beat():
                await asyncio.sleep(chance.random())
                self.owned = self.assignment
                self.check()

    async def beat(self) -> bool:
        """Send a heartbeat and return True if the group's broker answered."""
        if not self.world.hosts:
            return False
        sent, host = now(), self.world.chance.choice(self.world.hosts)
        fields: dict[str, Any] = {
            "group_id": GROUP,
            "member_id": self.id,
            "member_epoch": self.epoch,
            "topic_partitions": None,
        }
        if self.says_all:
            fields |= {"rebalance_timeout": REBALANCE, "subscribed_topic_names": (TOPIC,)}
        if self.says_all or self.world.chance.random() < 0.7:
            owned = [{"topic_id": self.topic, "partitions": tuple(self.owned)}] if self.owned else ()
            fields["topic_partitions"] = owned
        buffer = io.BytesIO()
        schema = load_request_schema(HEARTBEAT, 1)
        entity_writer(schema)(buffer, fill(schema, fields))
        try:
            body = await self.world.ask(host, Client("member"), HEARTBEAT, 1, buffer.getvalue())
        except Dead:
            self.says_all = True
            return False
        reply: Any = entity_reader(load_response_schema(HEARTBEAT, 1))(body, 0)[0]
        if reply.error_code in REFUSED:
            self.says_all = True
            return False
        if reply.error_code in OUT:
            self.out()
            return False
        assert not reply.error_code, (reply, fields)
        assert reply.member_epoch >= self.epoch, "epochs only grow"
        self.epoch, self.says_all, self.sure_until = reply.member_epoch, False, sent + SESSION
        if reply.assignment is not None:
            self.assignment = frozenset(
                index for topic in reply.assignment.topic_partitions for index in topic.partitions
            )
        return True

    def check(self) -> None:
        for other in self.members:
            if other is not self and now() < min(self.sure_until, other.sure_until):
                assert not self.owned & other.owned, (self.id, self.owned, other.id, other.owned)


def now() -> float:
    return asyncio.get_running_loop().time()


async def trouble_brokers(world: World) -> None:
    """Cut brokers off from the coordinator, or kill them and start others, until cancelled."""
    chance = world.chance
    while True:
        await asyncio.sleep(chance.expovariate(0.15))
        if not world.hosts:
            continue
        host = chance.choice(world.hosts)
        if chance.random() < 0.5:
            host.cut = now() + chance.random() * 12
            await asyncio.sleep(host.cut - now())
        else:
            world.kill(host)
            await asyncio.sleep(chance.random() * 3)
            await world.start()


async def check_every_partition_has_a_reader(members: list[Member]) -> None:
    """Check that members own each partition once, after at most 100 seconds: a member may be about to rejoin."""

    def owned() -> list[int]:
        return sorted(partition for member in members for partition in member.owned)

    for _ in range(100):
        if owned() == list(range(PARTITIONS)):
            break
        await asyncio.sleep(1)
    assert owned() == list(range(PARTITIONS))


async def story(seed: int) -> None:
    world = World(seed)
    chance = world.chance
    await world.store.start()
    for _ in range(3):
        await world.start()
    topic = world.hosts[0].broker.identifiers.uuid4()
    await world.store.topics.create_topic(Topic(topic, TOPIC, PARTITIONS, {}))
    members: list[Member] = []
    members += [Member(world, topic, members) for _ in range(MEMBERS)]
    world.trouble, world.slowness = chance.choice((0.02, 0.1, 0.3)), chance.choice((0.01, 0.2))
    troubling = asyncio.create_task(trouble_brokers(world))
    living = [asyncio.create_task(member.run()) for member in members]
    failed = await asyncio.wait(living, timeout=TROUBLED, return_when=asyncio.FIRST_EXCEPTION)
    troubling.cancel()
    for host in world.hosts:
        host.cut = 0.0
    world.trouble = 0.0
    if not failed[0]:
        failed = await asyncio.wait(living, timeout=SETTLING, return_when=asyncio.FIRST_EXCEPTION)
    for task in failed[0]:
        task.result()
    await check_every_partition_has_a_reader(members)
    for task in living:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    world.end()
    assert not world.errors


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_partition_has_one_reader(seed: int) -> None:
    run(story(seed))
