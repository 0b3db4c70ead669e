"""The shards of groups that this broker owns, with their groups in memory.

The name of a group decides its shard, and rendezvous hashing over the live brokers decides the owner of a shard. A
broker acquires the lease of a shard before it answers for the shard's groups, and then loads them. Every write names
the lease, so a broker that lost it changes nothing. A broker that could not renew its node lease in time drops its
shards: another broker may have changed the groups since.

When another broker becomes the owner of a shard, this broker releases the lease and answers members with
NOT_COORDINATOR. They find the new owner, which loads their generation and assignments. A release without a reply is
repeated until it is confirmed. A failover may take a confirmed release back, so this broker also asks the coordinator
which shards it holds, and releases those that it does not serve.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import structlog
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from firn.model.errors import FencedError, UnavailableError
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.membership import Membership
from firn_broker.groups import classic, consumer
from firn_broker.groups.group import Group, GroupError
from firn_broker.log_types import Lease, NodeLease, StoredGroup
from firn_broker.network.budget import Quota
from firn_broker.ports import GroupStore, NodeStore
from firn_broker.settings import GroupSettings

log = structlog.get_logger()

CHECK_SECONDS = 1.0
"""Seconds between two comparisons of shards with their owners."""
HELD_SECONDS = 10.0
"""Seconds between two requests for the leases that this broker holds in the coordinator."""
LEASES = "groups/"
"""The prefix of the leases of shards."""


@dataclass(slots=True)
class Shard:
    """A shard that this broker owns by ``lease``, in the ``term`` of its node lease."""

    number: int
    lease: Lease
    node: NodeLease
    term: int
    memory: Quota
    groups: dict[str, Group] = field(default_factory=dict)
    timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    """Timers of groups with a deadline, each set no later than the next deadline."""
    saved: dict[str, int] = field(default_factory=dict)
    """Saved versions of groups; 0 for a group whose first write may have happened."""
    deleting: dict[str, asyncio.Event] = field(default_factory=dict)
    """Groups whose deletion is under way. A request for such a group waits for the end of the deletion."""
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held during a write of one group. Changes that arrive meanwhile share the next write."""

    def forget(self, group: Group) -> None:
        """Remove a group from memory, unless another group has its name by now."""
        if self.groups.get(group.name) is not group:
            return
        del self.groups[group.name]
        self.memory.forget(group.name)
        self.saved.pop(group.name, None)
        if (timer := self.timers.pop(group.name, None)) is not None:
            timer.cancel()

    def forget_unused(self, group: Group) -> bool:
        """Remove a group that has no members and nothing saved; return whether it was removed."""
        if not group.idle or group.name in self.saved:
            return False
        self.forget(group)
        return True


class Shards:
    """Acquires, loads, drops and releases shards."""

    def __init__(
        self,
        store: GroupStore,
        nodes: NodeStore,
        membership: Membership,
        identifiers: Identifiers,
        settings: GroupSettings,
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._membership = membership
        self._identifiers = identifiers
        self._settings = settings
        self.memory = Quota(settings.max_bytes)
        self._owned: dict[int, Shard] = {}
        self._loading: dict[int, asyncio.Lock] = {}
        self._unreleased: dict[int, NodeLease] = {}
        """Shards whose lease this node may hold without serving them, because a reply from the coordinator was lost."""
        self._due: list[tuple[Shard, str]] = []
        self._stopping = False

    def number_of(self, group: str) -> int:
        """Return the number of a group's shard."""
        return crc32c(group.encode()) % self._settings.shards

    def owned(self) -> Sequence[Shard]:
        """Return the shards that this broker serves."""
        return list(self._owned.values())

    def owns(self, shard: Shard) -> bool:
        """Return whether ``shard`` is still served, and was not dropped or loaded again."""
        return self._owned.get(shard.number) is shard

    # Acquire and load

    async def acquire(self, number: int) -> Shard:
        """Return a shard; acquire and load it first if necessary.

        Raises GroupError when this broker is not its owner.
        """
        if self._stopping:
            raise GroupError(ErrorCode.not_coordinator)
        if asyncio.get_running_loop().time() >= self._membership.until:
            raise GroupError(ErrorCode.coordinator_not_available)
        if (shard := self._current(number)) is not None:
            return shard
        async with self._loading.setdefault(number, asyncio.Lock()):
            lease, term = self._membership.lease, self._membership.term
            if not self._membership.nodes or self._membership.shard_coordinator(number).id != lease.node:
                raise GroupError(ErrorCode.not_coordinator)
            if (shard := self._current(number)) is not None:
                return shard
            if (former := self._owned.get(number)) is not None:
                self.drop(former)
            try:
                held = await self._acquire_lease(number, lease)
                stored = await self._store.load_groups(number)
                with_offsets = await self._store.groups_with_offsets(number)
            except FencedError as error:
                raise GroupError(ErrorCode.not_coordinator) from error
            except UnavailableError as error:
                raise GroupError(ErrorCode.coordinator_not_available) from error
            if self._stopping or self._membership.term != term:
                # Another broker may have owned the shard during the load. The client's next attempt acquires the lease
                # again.
                raise GroupError(ErrorCode.not_coordinator)
            shard = Shard(number, held, lease, term, self.memory)
            self._load(shard, stored, [name for name in with_offsets if self.number_of(name) == number])
            self._owned[number] = shard
            for group in shard.groups.values():
                self.schedule(shard, group)
            self._unreleased.pop(number, None)
            return shard

    def _current(self, number: int) -> Shard | None:
        shard = self._owned.get(number)
        return shard if shard is not None and shard.term == self._membership.term else None

    async def _acquire_lease(self, number: int, node: NodeLease) -> Lease:
        repeated = number in self._unreleased
        self._unreleased[number] = node
        name = f"{LEASES}{number}"
        held = await self._nodes.acquire(name, node)
        if held is not None and repeated:
            # Writes under the earlier lease may still be under way. A new epoch keeps them from changing what is loaded
            # next.
            await self._nodes.release(held, node)
            held = await self._nodes.acquire(name, node)
        if held is None:
            # The former owner has not released it yet.
            raise GroupError(ErrorCode.coordinator_load_in_progress)
        return held

    def _load(self, shard: Shard, stored: Sequence[StoredGroup], with_offsets: Sequence[str]) -> None:
        now = asyncio.get_running_loop().time()
        for name in with_offsets:
            shard.groups[name] = self.new_classic(name)
            shard.saved[name] = 0
        for saved in stored:
            is_consumer = json.loads(saved.state).get("kind") == consumer.Group.kind
            group: Group = self.new_consumer(saved.name) if is_consumer else self.new_classic(saved.name)
            group.version = shard.saved[saved.name] = saved.version
            group.load(saved.state, now)
            shard.groups[saved.name] = group

    def new_classic(self, name: str, version: int = 0) -> classic.Group:
        """Create an empty group of the classic protocol."""
        settings = self._settings
        group = classic.Group(name, settings.initial_rebalance_ms / 1000, settings.max_members, self._member_id)
        group.version = version
        return group

    def new_consumer(self, name: str, version: int = 0) -> consumer.Group:
        """Create an empty group of KIP-848."""
        settings = self._settings
        return consumer.Group(name, settings.consumer_session_ms / 1000, settings.max_members, version)

    def _member_id(self, client: str) -> str:
        return f"{client}-{self._identifiers.uuid4()}"

    # Deadlines

    def schedule(self, shard: Shard, group: Group) -> None:
        """Set the group's timer to its next deadline, and count its memory. A timer that fires too early only sets the
        next one."""
        if self.owns(shard) and shard.groups.get(group.name) is group:
            self.memory.count(group.name, group.sizes())
        deadline = group.next_deadline()
        timer = shard.timers.get(group.name)
        if timer is not None and timer.when() <= deadline:
            return
        if timer is not None:
            timer.cancel()
            del shard.timers[group.name]
        if deadline < float("inf"):
            loop = asyncio.get_running_loop()
            shard.timers[group.name] = loop.call_at(deadline, self._fire, shard, group.name)

    def _fire(self, shard: Shard, name: str) -> None:
        shard.timers.pop(name, None)
        self._due.append((shard, name))

    def take_due(self) -> Sequence[tuple[Shard, str]]:
        """Return the names of groups whose timers fired since the last call."""
        due, self._due = self._due, []
        return due

    # Drop and release

    def drop(self, shard: Shard) -> None:
        """Stop serving a shard; answer all waiting members with NOT_COORDINATOR."""
        if self.owns(shard):
            del self._owned[shard.number]
            self._unreleased[shard.number] = shard.node
            # A newer shard of this number counts the memory of its own groups.
            for name in shard.groups:
                self.memory.forget(name)
        for timer in shard.timers.values():
            timer.cancel()
        for group in shard.groups.values():
            group.disband(ErrorCode.not_coordinator)

    def drop_all(self) -> None:
        """Stop serving all shards."""
        for shard in self.owned():
            self.drop(shard)

    def drop_moved(self) -> None:
        """Stop serving shards that another broker owns now."""
        membership = self._membership
        for shard in self.owned():
            if shard.term != membership.term or (
                membership.nodes and membership.shard_coordinator(shard.number).id != membership.lease.node
            ):
                self.drop(shard)

    def stop(self) -> None:
        """Drop all shards and acquire none again. Their leases end with the node lease."""
        self._stopping = True
        self.drop_all()

    async def keep_releasing(self) -> None:
        """Release the leases of shards that another broker owns now. Runs until cancelled."""
        clock, membership = asyncio.get_running_loop().time, self._membership
        asked = clock()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            if clock() - asked >= HELD_SECONDS:
                asked = clock()
                await self._find_unserved()
            for number, node in list(self._unreleased.items()):
                try:
                    if node != membership.lease:
                        # The lease ended with that node lease.
                        self._unreleased.pop(number, None)
                    elif membership.nodes and membership.shard_coordinator(number).id != node.node:
                        await self._release(number, node)
                except Exception:
                    log.exception("cannot release a shard of groups", shard=number)

    async def _find_unserved(self) -> None:
        """Find the shards whose lease this node holds without serving them.

        The coordinator may have lost a confirmed release in a failover. Without this, no other broker could acquire the
        shard while this broker lives.
        """
        node = self._membership.lease
        try:
            names = await self._nodes.held(node)
        except UnavailableError as error:
            log.warning("cannot read the leases of this broker", error=str(error))
            return
        except Exception:
            log.exception("cannot read the leases of this broker")
            return
        for name in names:
            if not name.startswith(LEASES):
                continue
            number = int(name.removeprefix(LEASES))
            if number not in self._owned and number not in self._unreleased:
                log.warning(
                    "the coordinator has a lease of this broker for groups that it does not serve", shard=number
                )
                self._unreleased[number] = node

    async def _release(self, number: int, node: NodeLease) -> None:
        """Release the lease of a shard that is not served here. A failure is repeated by the next check."""
        async with self._loading.setdefault(number, asyncio.Lock()):
            if number in self._owned:
                return
            try:
                # Acquiring returns the lease that this node holds already, or None when another node holds it.
                held = await self._nodes.acquire(f"{LEASES}{number}", node)
                if held is not None:
                    await self._nodes.release(held, node)
            except UnavailableError as error:
                log.warning("cannot release groups", shard=number, error=str(error))
                return
            except FencedError:
                # A newer lease of the shard exists. If this node holds it, the next call of _find_unserved finds it.
                pass
            self._unreleased.pop(number, None)
