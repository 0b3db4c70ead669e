"""The group coordinator: it answers requests about members, offsets, descriptions and deletions.

A group is a classic one or one of KIP-848 (`groups.group.Group`). The next member of an empty group decides which.
`groups.shards` decides which groups this broker has, `groups.storage` saves them, and `groups.expiry` applies their
deadlines.

A group exists while it has a member, while a member has to rejoin, or while something of it is saved.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence

import structlog
from kio.schema.errors import ErrorCode

from firn.model.clock import Clock
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.membership import Membership
from firn_broker.groups import classic, consumer
from firn_broker.groups.classic import JoinReply, JoinRequest, State, SyncReply
from firn_broker.groups.consumer import HeartbeatReply, HeartbeatRequest, TargetsNeededError
from firn_broker.groups.expiry import FRESH, GroupExpiry
from firn_broker.groups.group import GROUP_BYTES, MEMBER_BYTES, Group, GroupError
from firn_broker.groups.shards import Shard, Shards
from firn_broker.groups.storage import GroupStorage
from firn_broker.log.decoder import Decoder
from firn_broker.log_types import CommittedOffset, Partition
from firn_broker.ports import GroupStore, NodeStore
from firn_broker.settings import GroupSettings
from firn_broker.topics.topic_metadata import TopicMetadata

log = structlog.get_logger()

NAME_BYTES = 2_048
"""Bytes of the longest name of a group. Not every coordinator can store a longer name, or one with a zero byte."""
ASSIGN_SECONDS = 0.2
"""Seconds for which a large group collects changes before it computes new targets
(``group.consumer.assignment.interval.ms``)."""


def _check(name: str) -> None:
    if "\0" in name or len(name.encode()) > NAME_BYTES:
        raise GroupError(ErrorCode.invalid_group_id)


def _growth(group: consumer.Group, request: HeartbeatRequest) -> int:
    """Return the bytes by which a heartbeat lets its group grow."""
    member = group.members.get(request.member) or group.static(request.instance or "")
    if member is None:
        return MEMBER_BYTES + request.subscription_bytes if request.epoch == consumer.JOIN else 0
    return 0 if request.names is None else request.subscription_bytes - member.subscription_bytes


def _now() -> float:
    return asyncio.get_running_loop().time()


class GroupCoordinator:
    """Kafka's group coordinator for the groups of this broker's shards."""

    def __init__(
        self, store: GroupStore, nodes: NodeStore, membership: Membership, topic_metadata: TopicMetadata, identifiers: Identifiers,
        clock: Clock, decoder: Decoder, settings: GroupSettings,
    ) -> None:  # fmt: skip
        self._topic_metadata = topic_metadata
        self._decoder = decoder
        self._assigning: dict[str, asyncio.Task[None]] = {}
        """The computations of new targets, by group."""
        self.settings = settings
        self.shards = Shards(store, nodes, membership, identifiers, settings)
        self.storage = GroupStorage(store, nodes, self.shards, clock, decoder, settings)
        self.expiry = GroupExpiry(self.shards, self.storage, membership, settings)

    def shard(self, group: str) -> int:
        """Return the number of a group's shard."""
        return self.shards.number_of(group)

    def counts(self) -> Mapping[str, int]:
        """Count groups by state."""
        return Counter(group.state.value for shard in self.shards.owned() for group in shard.groups.values())

    async def run(self) -> None:
        """Apply deadlines and keep shards with their owners, until cancelled."""
        await self.expiry.run()

    async def expire(self) -> None:
        """Delete expired groups, until cancelled."""
        await self.expiry.run_retention()

    def stop(self) -> None:
        """Answer no more requests, because this broker ends."""
        self.shards.stop()

    async def _find(self, name: str) -> tuple[Shard, Group | None]:
        _check(name)
        shard = await self.shards.acquire(self.shard(name))
        while (deleting := shard.deleting.get(name)) is not None:
            await deleting.wait()
            shard = await self.shards.acquire(self.shard(name))
        return shard, shard.groups.get(name)

    async def _find_classic(self, name: str) -> tuple[Shard, classic.Group | None]:
        """Find a classic group; a group of KIP-848 does not exist for members of the classic protocol."""
        shard, group = await self._find(name)
        return shard, group if isinstance(group, classic.Group) else None

    # Members of groups of KIP-848

    async def consume(self, name: str, request: HeartbeatRequest) -> HeartbeatReply:
        """Answer a heartbeat: a member joins, stays or leaves.

        The reply is saved before it is sent. Raises GroupError.
        """
        if not name:
            return HeartbeatReply(ErrorCode.invalid_request, request.member, message="GroupId can't be empty.")
        shard, existing = await self._find(name)
        if isinstance(existing, consumer.Group):
            group = existing
        elif existing is not None and not existing.empty:
            return HeartbeatReply(
                ErrorCode.group_id_not_found, request.member,
                message=f"group {name} has members of the classic protocol: stop them before members of the consumer protocol join",
            )  # fmt: skip
        elif request.epoch != consumer.JOIN:
            return HeartbeatReply(ErrorCode.unknown_member_id, request.member, message=f"group {name} has no members")
        else:
            group = self.shards.new_consumer(name, existing.version if existing else 0)
        if error := self._refused(group, request.host, _growth(group, request)):
            return HeartbeatReply(error, request.member, message=f"group {name} has no memory for the member")
        before = group.version
        try:
            reply = group.heartbeat(request, self._topic_metadata.by_name, _now(), may_wait=True)
        except TargetsNeededError:
            shard.groups[name] = group
            self.shards.schedule(shard, group)
            await self._assigned(shard, group, group.epoch)
            reply = group.heartbeat(request, self._topic_metadata.by_name, _now())
        if group is not existing:
            if reply.error:
                return reply
            shard.groups[name] = group
        if group.version != before:
            self.shards.schedule(shard, group)
        if not reply.error and (error := await self.storage.save_changes(shard, group)):
            return HeartbeatReply(error, request.member, message="the coordinator cannot save the group now: try again")
        await self.storage.confirm(shard, reply.error)
        return reply

    def _refused(self, group: Group, host: str, growth: int) -> ErrorCode:
        """Return the error for a member with which the group grows by this many bytes."""
        memory = self.shards.memory
        if growth > 0 and memory.of(group.name) + growth > self.settings.max_group_bytes:
            return ErrorCode.group_max_size_reached
        if growth > 0 and not memory.fits(host, growth):
            log.warning("groups take all their memory (groups.maxBytes)", group=group.name, host=host)
            return ErrorCode.coordinator_not_available
        return ErrorCode.none

    async def _assigned(self, shard: Shard, group: consumer.Group, epoch: int) -> None:
        """Wait until the group has the targets of an epoch. All changes within `ASSIGN_SECONDS` share one computation.

        Raises GroupError when the group is not served here any more.
        """
        while group.assignment_epoch < epoch:
            if not self.shards.owns(shard) or shard.groups.get(group.name) is not group:
                raise GroupError(ErrorCode.not_coordinator)
            if (task := self._assigning.get(group.name)) is None:
                task = self._assigning[group.name] = asyncio.create_task(self._assign(group))
            await asyncio.shield(task)

    async def _assign(self, group: consumer.Group) -> None:
        try:
            await asyncio.sleep(ASSIGN_SECONDS)
            plan = group.plan()
            group.assign(plan, await self._decoder.run(plan.compute))
        finally:
            del self._assigning[group.name]

    # Members of classic groups

    async def join(self, name: str, request: JoinRequest) -> JoinReply:
        """Add a member, and answer after the rebalance. Raises GroupError."""
        if not name:
            raise GroupError(ErrorCode.invalid_group_id)
        settings = self.settings
        if not settings.min_session_ms <= request.session_seconds * 1000 <= settings.max_session_ms:
            raise GroupError(ErrorCode.invalid_session_timeout)
        shard, existing = await self._find(name)
        if isinstance(existing, classic.Group):
            group = existing
        elif existing is not None and not existing.empty:
            return JoinReply(ErrorCode.inconsistent_group_protocol, request.member)
        elif request.member:
            return JoinReply(ErrorCode.unknown_member_id, request.member)
        else:
            group = self.shards.new_classic(name, existing.version if existing else 0)
        member = group.members.get(request.member)
        if member is None and request.instance is not None:
            member = group.static(request.instance)
        if error := self._refused(group, request.host, request.size - (member.size if member else 0)):
            return JoinReply(error, request.member)
        future: asyncio.Future[JoinReply] = asyncio.get_running_loop().create_future()
        group.join(request, _now(), future)
        if group is existing or not group.idle:
            shard.groups[name] = group
            self.shards.schedule(shard, group)
        refused = future.done() and future.result().error
        if request.instance is not None and not request.member and not refused and name in shard.saved:
            # The saved group may know the instance by an older member id. A broker that loads it would fence the new
            # id, which ends the client permanently. So the new id is saved before the reply, even in the middle of a
            # rebalance.
            group.version += 1
            if error := await self.storage.save_changes(shard, group):
                return JoinReply(error, request.member)
        reply = await future
        await self.storage.confirm(shard, reply.error)
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
        """Answer a member with its assignment; the leader's request brings the assignments of all.

        Raises GroupError.
        """
        shard, group = await self._find_classic(name)
        if group is None:
            return SyncReply(ErrorCode.unknown_member_id)
        future: asyncio.Future[SyncReply] = asyncio.get_running_loop().create_future()
        if group.sync(member, instance, generation, protocol_type, protocol, _now(), future):
            group.propose(assignments)
            self.shards.schedule(shard, group)
            if await self.storage.save(shard, group):
                group.assigned(generation, _now())
            else:
                group.unassigned(generation, ErrorCode.coordinator_not_available, _now())
            self.shards.schedule(shard, group)
        reply = await future
        await self.storage.confirm(shard, reply.error)
        return reply

    async def heartbeat(self, name: str, member: str, instance: str | None, generation: int) -> ErrorCode:
        """Extend a member's session. Raises GroupError."""
        shard, group = await self._find_classic(name)
        if group is None:
            return ErrorCode.unknown_member_id
        error = group.heartbeat(member, instance, generation, _now())
        await self.storage.confirm(shard, error)
        return error

    async def leave(self, name: str, members: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Remove members, named by (id, instance). Raises GroupError."""
        shard, group = await self._find_classic(name)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(members)
        errors = [group.leave(id, instance, _now()) for id, instance in members]
        self.shards.schedule(shard, group)
        if not shard.forget_unused(group) and group.state is State.EMPTY:
            await self.storage.save(shard, group)
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
        """Save offsets of a member of this generation or epoch; -1 commits without a member while the group is empty.

        Raises GroupError.
        """
        shard, group = await self._find(name)
        if group is None:
            if generation >= 0:
                return ErrorCode.illegal_generation
            if not offsets:
                return ErrorCode.none
            group = self.shards.new_classic(name)
            if error := self._refused(group, "", GROUP_BYTES):
                return error
            shard.groups[name] = group
            self.shards.schedule(shard, group)
        elif error := group.may_commit(member, instance, generation, _now()):
            await self.storage.confirm(shard, error)
            return error
        if group.empty and ((share := self.storage.empty_share(group)) is None or share >= FRESH):
            # Save the time before the offsets: otherwise a crash in between leaves offsets that expire too early.
            if not await self.storage.save(shard, group):
                raise GroupError(ErrorCode.coordinator_not_available)
        else:
            shard.saved.setdefault(name, 0)
        await self.storage.commit_offsets(shard, name, offsets)
        return ErrorCode.none

    async def offsets(
        self, name: str, member: str | None = None, epoch: int = -1
    ) -> Mapping[Partition, CommittedOffset]:
        """Return all offsets of a group. Raises GroupError and UnavailableError.

        Only the group's owner answers a member, and checks its epoch. Any broker answers a request without a member:
        offsets are never read from memory.
        """
        _check(name)
        if member or epoch >= 0:
            _, group = await self._find(name)
            if group is not None and (error := group.may_read(member, epoch)):
                raise GroupError(error)
        return await self.storage.load_offsets(name)

    async def delete_offsets(self, name: str, partitions: Sequence[Partition]) -> None:
        """Delete offsets of partitions. Raises GroupError."""
        shard, group = await self._find(name)
        if group is None:
            raise GroupError(ErrorCode.group_id_not_found)
        await self.storage.delete_offsets(shard, name, partitions)

    # Descriptions and deletion

    async def describe(self, name: str) -> Group | None:
        """Return the group, or None. Raises GroupError."""
        _, group = await self._find(name)
        return group

    async def list(self) -> list[Group]:
        """Return all groups of this broker's shards. Raises GroupError."""
        groups: list[Group] = []
        for number in range(self.settings.shards):
            try:
                shard = await self.shards.acquire(number)
            except GroupError as error:
                if error.code is not ErrorCode.not_coordinator:
                    raise
                continue
            groups += shard.groups.values()
        return groups

    async def delete(self, name: str) -> None:
        """Delete an empty group and its offsets. Raises GroupError."""
        shard, group = await self._find(name)
        if group is None:
            raise GroupError(ErrorCode.group_id_not_found)
        async with shard.storing:
            if not group.empty:
                raise GroupError(ErrorCode.non_empty_group)
            await self.storage.delete(shard, name)
            # A member that joined during the deletion joins again, and creates the group again.
            group.disband(ErrorCode.coordinator_not_available)
            shard.forget(group)
