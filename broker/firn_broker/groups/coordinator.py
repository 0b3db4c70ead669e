"""Which groups this broker has, and what it keeps of them.

Groups are spread over shards by their names, and shards over live brokers by rendezvous hashing. Before a broker answers for a shard it
takes the shard's lease and loads its groups; every write says the lease's epoch, so a broker that lost it cannot change anything. When
another broker becomes the one for a shard, its old one gives it back and sends members away with NOT_COORDINATOR; they find the new one,
which knows their generation and assignments.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from firn.model.clock import Clock
from firn.model.errors import FencedError, UnavailableError
from firn_broker.coordinates import CommittedOffset, Lease, NodeLease, Partition, StoredGroup
from firn_broker.groups.classic import Group, JoinReply, JoinRequest, State, SyncReply
from firn_broker.identifiers import Identifiers
from firn_broker.membership import Membership
from firn_broker.ports import Coordinator
from firn_broker.settings import GroupSettings

log = structlog.get_logger()
T = TypeVar("T")

TICK_SECONDS = 0.1
CHECK_SECONDS = 1.0


class GroupError(Exception):
    """The request cannot be answered here or now; ``code`` says why."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


@dataclass(slots=True)
class Shard:
    """A part of all groups, ours by ``lease``."""

    number: int
    lease: Lease
    node: NodeLease
    groups: dict[str, Group] = field(default_factory=dict)


class GroupCoordinator:
    """Answers for the groups of this broker's shards."""

    def __init__(
        self,
        coordinator: Coordinator,
        membership: Membership,
        identifiers: Identifiers,
        clock: Clock,
        settings: GroupSettings,
    ) -> None:
        self._coordinator = coordinator
        self._membership = membership
        self._identifiers = identifiers
        self._clock = clock
        self.settings = settings
        self._shards: dict[int, Shard] = {}
        self._loading: dict[int, asyncio.Lock] = {}
        self._unsure: set[int] = set()
        """Shards that are not here, and whose lease may be ours by the coordinator's word: an answer was lost. Nobody else gets it while we
        live, so it has to be given back."""
        self._stopping = False

    def shard(self, group: str) -> int:
        """Where a group belongs."""
        return crc32c(group.encode()) % self.settings.shards

    def counts(self) -> Mapping[str, int]:
        """How many groups are in which state."""
        return Counter(group.state.value for shard in self._shards.values() for group in shard.groups.values())

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # Shards

    async def _own(self, number: int) -> Shard:
        """The shard, loaded if need be. Raises GroupError when it is not ours."""
        if self._stopping:
            raise GroupError(ErrorCode.not_coordinator)
        shard = self._shards.get(number)
        lease = self._membership.lease
        if shard is not None and shard.node == lease:
            return shard
        if not self._membership.nodes or self._membership.of_shard(number).id != lease.node:
            raise GroupError(ErrorCode.not_coordinator)
        async with self._loading.setdefault(number, asyncio.Lock()):
            shard = self._shards.get(number)
            if shard is not None and shard.node == lease:
                return shard
            try:
                self._unsure.add(number)
                held = await self._coordinator.take(f"groups/{number}", lease)
                if held is None:
                    self._unsure.discard(number)
                    # Its old broker has not let go yet.
                    raise GroupError(ErrorCode.coordinator_load_in_progress)
                stored = await self._coordinator.groups(number)
                with_offsets = await self._coordinator.offset_groups()
            except FencedError as error:
                raise GroupError(ErrorCode.not_coordinator) from error
            except UnavailableError as error:
                raise GroupError(ErrorCode.coordinator_not_available) from error
            shard = Shard(number, held, lease)
            for name in with_offsets:
                if self.shard(name) == number:
                    shard.groups[name] = self._new(name)
            for kept in stored:
                group = self._new(kept.name)
                group.version = kept.version
                group.load(kept.state, self._now())
                shard.groups[kept.name] = group
            self._shards[number] = shard
            self._unsure.discard(number)
            return shard

    def _new(self, name: str) -> Group:
        return Group(name, self.settings.initial_rebalance_ms / 1000, self.settings.max_members, self._member_id)

    def _member_id(self, client: str) -> str:
        return f"{client}-{self._identifiers.uuid4()}"

    def _lose(self, shard: Shard) -> None:
        if self._shards.get(shard.number) is shard:
            del self._shards[shard.number]
        for group in shard.groups.values():
            group.disband(ErrorCode.not_coordinator)

    async def run(self) -> None:
        """Time's part, for ever: sessions, rebalances, shards that are another's now."""
        checked = self._now()
        while True:
            await asyncio.sleep(TICK_SECONDS)
            now = self._now()
            for shard in list(self._shards.values()):
                for group in list(shard.groups.values()):
                    if now >= group.next_deadline():
                        generation = group.generation
                        group.tick(now)
                        if group.state is State.EMPTY and group.generation != generation:
                            await self._keep(shard, group)
            if now - checked >= CHECK_SECONDS:
                checked = now
                await self._check()

    async def _check(self) -> None:
        lease = self._membership.lease
        for shard in list(self._shards.values()):
            if shard.node != lease:
                self._lose(shard)
            elif self._membership.nodes and self._membership.of_shard(shard.number).id != lease.node:
                await self._give(shard)
        for number in sorted(self._unsure):
            if self._membership.nodes and self._membership.of_shard(number).id != lease.node:
                await self._forgo(number)

    async def _give(self, shard: Shard) -> None:
        self._lose(shard)
        try:
            await self._coordinator.release(shard.lease, shard.node)
        except UnavailableError as error:
            self._unsure.add(shard.number)
            log.warning("cannot release groups", shard=shard.number, error=str(error))

    async def _forgo(self, number: int) -> None:
        """Make sure that a shard's lease is not ours: taking what one has says which it is."""
        async with self._loading.setdefault(number, asyncio.Lock()):
            if number in self._shards:
                return
            lease = self._membership.lease
            try:
                held = await self._coordinator.take(f"groups/{number}", lease)
                if held is not None:
                    await self._coordinator.release(held, lease)
            except UnavailableError as error:
                log.warning("cannot release groups", shard=number, error=str(error))
                return
            except FencedError:
                pass
            self._unsure.discard(number)

    async def release(self) -> None:
        """Give all back: this broker ends."""
        self._stopping = True
        for shard in list(self._shards.values()):
            await self._give(shard)

    async def _keep(self, shard: Shard, group: Group) -> bool:
        """Save the group; whether that worked."""
        group.version += 1
        try:
            await self._coordinator.save_group(
                shard.lease, shard.number, StoredGroup(group.name, group.version, group.save())
            )
        except FencedError:
            self._lose(shard)
            return False
        except UnavailableError as error:
            log.warning("cannot save a group", group=group.name, error=str(error))
            return False
        return True

    async def _guarded(self, shard: Shard, work: Callable[[], "asyncio.Future[T]"]) -> T:
        try:
            return await work()
        except FencedError as error:
            self._lose(shard)
            raise GroupError(ErrorCode.not_coordinator) from error
        except UnavailableError as error:
            raise GroupError(ErrorCode.coordinator_not_available) from error

    async def _find(self, name: str) -> tuple[Shard, Group | None]:
        shard = await self._own(self.shard(name))
        return shard, shard.groups.get(name)

    # Members

    async def join(self, name: str, request: JoinRequest) -> JoinReply:
        """A member joins; answered when the rebalance is done. Raises GroupError."""
        if not name:
            raise GroupError(ErrorCode.invalid_group_id)
        settings = self.settings
        if not settings.min_session_ms <= request.session_seconds * 1000 <= settings.max_session_ms:
            raise GroupError(ErrorCode.invalid_session_timeout)
        shard, group = await self._find(name)
        if group is None:
            if request.member:
                return JoinReply(ErrorCode.unknown_member_id, request.member)
            group = shard.groups[name] = self._new(name)
        future: asyncio.Future[JoinReply] = asyncio.get_running_loop().create_future()
        group.join(request, self._now(), future)
        stable = group.state is State.STABLE
        reply = await future
        if stable and not reply.error and request.instance is not None and not request.member:
            # A static member has a new id: whoever leads next has to know it.
            await self._keep(shard, group)
        return reply

    async def sync(
        self,
        name: str,
        member: str,
        instance: str | None,
        generation: int,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Mapping[str, bytes],
    ) -> SyncReply:
        """A member asks for its part; the leader brings everyone's. Raises GroupError."""
        shard, group = await self._find(name)
        if group is None:
            return SyncReply(ErrorCode.unknown_member_id)
        future: asyncio.Future[SyncReply] = asyncio.get_running_loop().create_future()
        if group.sync(member, instance, generation, protocol_type, protocol, self._now(), future):
            group.propose(assignments)
            if await self._keep(shard, group):
                group.assigned(generation, self._now())
            else:
                group.unassigned(generation, ErrorCode.coordinator_not_available, self._now())
        return await future

    async def heartbeat(self, name: str, member: str, instance: str | None, generation: int) -> ErrorCode:
        """A member is there. Raises GroupError."""
        _, group = await self._find(name)
        if group is None:
            return ErrorCode.unknown_member_id
        return group.heartbeat(member, instance, generation, self._now())

    async def leave(self, name: str, members: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Members go, named by (id, instance). Raises GroupError."""
        shard, group = await self._find(name)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(members)
        errors = [group.leave(id, instance, self._now()) for id, instance in members]
        if group.state is State.EMPTY:
            await self._keep(shard, group)
        return errors

    # Offsets

    async def commit(
        self,
        name: str,
        member: str,
        instance: str | None,
        generation: int,
        offsets: Mapping[Partition, CommittedOffset],
    ) -> ErrorCode:
        """Keep offsets of a member of this generation, or of anybody (generation -1) while the group is empty. Raises GroupError."""
        shard, group = await self._find(name)
        if generation < 0 and (group is None or group.state is State.EMPTY):
            if group is None:
                shard.groups[name] = self._new(name)
        elif group is None:
            return ErrorCode.illegal_generation
        elif error := group.known(member, instance, generation):
            return error
        elif group.state is State.COMPLETING:
            return ErrorCode.rebalance_in_progress
        else:
            of_group = group.members[member]
            of_group.deadline = self._now() + of_group.session_seconds
        await self._guarded(
            shard, lambda: asyncio.ensure_future(self._coordinator.commit_offsets(shard.lease, name, offsets))
        )
        return ErrorCode.none

    async def offsets(self, name: str) -> Mapping[Partition, CommittedOffset]:
        """All offsets of a group. Raises GroupError."""
        shard, _ = await self._find(name)
        return await self._guarded(shard, lambda: asyncio.ensure_future(self._coordinator.offsets(name)))

    async def delete_offsets(self, name: str, partitions: Sequence[Partition]) -> None:
        """Forget offsets of partitions. Raises GroupError."""
        shard, group = await self._find(name)
        if group is None:
            raise GroupError(ErrorCode.group_id_not_found)
        await self._guarded(
            shard, lambda: asyncio.ensure_future(self._coordinator.delete_offsets(shard.lease, name, partitions))
        )

    # Looking at groups

    async def describe(self, name: str) -> Group | None:
        """The group, if there is one. Raises GroupError."""
        _, group = await self._find(name)
        return group

    async def list(self) -> list[Group]:
        """All groups of this broker's shards. Raises GroupError."""
        found: list[Group] = []
        for number in range(self.settings.shards):
            try:
                shard = await self._own(number)
            except GroupError as error:
                if error.code is not ErrorCode.not_coordinator:
                    raise
                continue
            found += shard.groups.values()
        return found

    async def delete(self, name: str) -> None:
        """Forget an empty group and its offsets. Raises GroupError."""
        shard, group = await self._find(name)
        if group is None:
            raise GroupError(ErrorCode.group_id_not_found)
        if group.state is not State.EMPTY:
            raise GroupError(ErrorCode.non_empty_group)
        await self._guarded(shard, lambda: asyncio.ensure_future(self._coordinator.delete_group(shard.lease, name)))
        group.disband(ErrorCode.group_id_not_found)
        shard.groups.pop(name, None)
