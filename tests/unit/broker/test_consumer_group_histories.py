"""Random histories of KIP-848 groups: members join, leave, die and lose replies, topics change,
and the broker crashes before it stores the state."""

import os
from dataclasses import dataclass, field
from random import Random
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from firn_broker.groups.consumer import Group, HeartbeatReply, HeartbeatRequest, Partitions, State
from firn_broker.log_types import Partition, Topic

SEEDS = 2000 if os.environ.get("FIRN_LONG") else 60
STEPS = 250
SESSION, REBALANCE = 45.0, 30.0
NAMES = ("a", "b", "c")
NOTHING: Partitions = frozenset()


@dataclass
class Client:
    """A consumer with the partitions that it reads (``owned``) and its last assignment."""

    id: str
    instance: str | None
    names: frozenset[str]
    epoch: int = 0
    owned: Partitions = NOTHING
    assignment: Partitions = NOTHING
    says_all: bool = True
    epochs: list[int] = field(default_factory=list)

    def beat(self, chance: Random) -> HeartbeatRequest:
        if self.epoch == 0 or self.says_all:
            return HeartbeatRequest(
                self.id, self.epoch, self.instance, None, REBALANCE, self.names, owned=self.owned if self.epoch else NOTHING
            )  # fmt: skip
        return HeartbeatRequest(self.id, self.epoch, self.instance, owned=self.owned if chance.random() < 0.7 else None)

    def hear(self, reply: HeartbeatReply) -> None:
        if reply.error:
            assert reply.error in (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch), reply
            self.epoch, self.owned, self.assignment, self.says_all = 0, NOTHING, NOTHING, True
            self.epochs.clear()
            return
        assert not self.epochs or reply.epoch >= self.epochs[-1]
        self.epochs.append(reply.epoch)
        self.epoch, self.says_all = reply.epoch, False
        if reply.assignment is not None:
            self.assignment = reply.assignment


class World:
    """A group, the broker that has it, and its members."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.now = 0.0
        self.topics = {name: Topic(UUID(int=number), name, 3) for number, name in enumerate(NAMES, 1)}
        self.group = self.made()
        self.stored: str | None = None
        self.clients: list[Client] = []
        self.count = 0
        self.told_epoch = 0

    def made(self) -> Group:
        return Group("g", SESSION, 100)

    def join(self) -> None:
        self.count += 1
        instance = f"i{self.count}" if self.chance.random() < 0.3 else None
        names = frozenset(self.chance.sample(NAMES, self.chance.randrange(1, 4)))
        self.clients.append(Client(f"m{self.count}", instance, names))

    def ask(self, request: HeartbeatRequest) -> HeartbeatReply:
        """Return the answer of the group, and store its state."""
        reply = self.group.heartbeat(request, self.topics, self.now)
        self.stored = self.group.snapshot()()
        assert self.group.epoch >= self.told_epoch
        self.told_epoch = self.group.epoch
        return reply

    def step(self) -> None:
        chance = self.chance
        if not self.clients or chance.random() < 0.05:
            self.join()
        client = chance.choice(self.clients)
        match chance.choices(range(10), (40, 10, 25, 4, 3, 3, 3, 3, 6, 3))[0]:
            case 0:
                client.hear(self.ask(client.beat(chance)))
            case 1:
                self.ask(client.beat(chance))
                client.says_all = True
            case 2:
                client.owned = client.assignment
            case 3:
                self.clients.remove(client)
            case 4:
                self.clients.remove(client)
                self.ask(HeartbeatRequest(client.id, -1, client.instance))
            case 5 if client.instance is not None and client.epoch:
                self.restart(client)
            case 6:
                self.change_topic(chance.choice(NAMES))
            case 7:
                client.names = frozenset(chance.sample(NAMES, chance.randrange(1, 4)))
                client.says_all = True
            case 8:
                self.now += chance.choice((1, 5, 5, 20, 50))
                self.group.tick(self.now)
            case 9:
                self.crash(client)

    def restart(self, client: Client) -> None:
        """Let a static member leave for a while (epoch -2), and return as a new process with the same instance id."""
        left = self.ask(HeartbeatRequest(client.id, -2, client.instance))
        self.clients.remove(client)
        if not left.error:
            self.count += 1
            self.clients.append(Client(f"m{self.count}", client.instance, client.names))

    def change_topic(self, name: str) -> None:
        """Delete a topic, re-create it, or add partitions to it."""
        chance = self.chance
        self.topics = dict(self.topics)
        old = self.topics.pop(name, None)
        if old is None or chance.random() < 0.8:
            id = UUID(int=chance.getrandbits(100)) if old is None or chance.random() < 0.3 else old.id
            grown = old.partitions + chance.randrange(3) if old is not None and id == old.id else 2
            self.topics[name] = Topic(id, name, grown)

    def crash(self, client: Client) -> None:
        """Let the broker crash, sometimes before it stores the effect of a heartbeat, and load the stored state."""
        if self.chance.random() < 0.5:
            # No client receives this reply, and the state is not stored.
            self.group.heartbeat(client.beat(self.chance), self.topics, self.now)
            client.says_all = True
        self.group = self.made()
        if self.stored is not None:
            self.group.load(self.stored, self.now)

    def check(self) -> None:
        """Check that no partition has two owners. A member whose session expired by its own clock does not count."""
        owned: dict[Partition, str] = {}
        for client in self.clients:
            if client.id in self.group.members:
                for partition in client.owned:
                    assert owned.setdefault(partition, client.id) == client.id, (partition, owned[partition], client)

    def settle(self) -> None:
        """Let all clients follow their assignments for longer than any time-out."""
        for _ in range(40):
            self.now += 5
            self.group.tick(self.now)
            for client in list(self.clients):
                client.hear(self.ask(client.beat(self.chance)))
                self.check()
                client.owned = client.assignment
                self.check()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_each_partition_has_at_most_one_owner_and_finally_one(seed: int) -> None:
    world = World(seed)
    for _ in range(STEPS):
        world.step()
        world.check()
    if not world.clients:
        world.join()
    world.settle()
    assert world.group.state is State.STABLE
    owned = [partition for client in world.clients for partition in client.owned]
    assert len(owned) == len(set(owned))
    subscribed = {name for client in world.clients for name in client.names}
    expected = {
        Partition(topic.id, n)
        for name, topic in world.topics.items()
        if name in subscribed
        for n in range(topic.partitions)
    }
    assert set(owned) == expected
    for giver in world.clients:
        for taker in world.clients:
            could = any(
                world.topics[name].id == partition.topic
                for partition in giver.owned
                for name in taker.names & set(world.topics)
            )
            assert not could or len(giver.owned) - len(taker.owned) <= 1, (giver, taker)
