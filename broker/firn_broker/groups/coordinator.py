"""Which groups this broker has, and what it keeps of them.

A group is a classic one or one of KIP-848 (`groups.group.Group`); an empty one becomes what its next member speaks.

Groups are spread over shards by their names, and shards over live brokers by rendezvous hashing. Before a broker answers for a shard it
takes the shard's lease and loads its groups; every write says the lease's epoch, so a broker that lost it cannot change anything, and one that
could not renew its node lease in time forgets its groups, so it does not answer from memory what another may know better. When
another broker becomes the one for a shard, its old one gives it back and sends members away with NOT_COORDINATOR; they find the new one,
which knows their generation and assignments.

A group lasts as long as somebody is in it, or was told to come again, or something of it is stored. What is stored of one that nobody is in,
its offsets among it, is deleted after `GroupSettings.offsets_seconds` without a member or a commit. The time of that is stored with the group
no more often than `_FRESH` of it passes, so it may be that much longer.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import structlog
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from firn.model.clock import Clock
from firn.model.errors import FencedError, UnavailableError
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.membership import Membership
from firn_broker.groups import classic, consumer
from firn_broker.groups.classic import JoinReply, JoinRequest, State, SyncReply
from firn_broker.groups.consumer import HeartbeatReply, HeartbeatRequest
from firn_broker.groups.group import Group
from firn_broker.log_types import CommittedOffset, Lease, NodeLease, Partition, StoredGroup
from firn_broker.ports import GroupStore, NodeStore
from firn_broker.settings import GroupSettings
from firn_broker.topics.topic_metadata import TopicMetadata

log = structlog.get_logger()
T = TypeVar("T")

TICK_SECONDS = 0.1
CHECK_SECONDS = 1.0
WRITES = 4
"""Groups that are stored at a time because of what time brought."""
EXPIRE_SECONDS = 600.0
"""How often groups are looked for that nobody needs any more."""
EXPIRE_LIMIT = 1_000
"""Groups that are written for that at a time, for each shard."""
_FRESH = 1 / 7
"""How much of a group's time may pass before commits store it anew."""
NAME_BYTES = 2_048
"""A longer name of a group, or one with a zero byte, is no key that every coordinator can keep."""


class GroupError(Exception):
    """The request cannot be answered here or now; ``code`` says why."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


def _check(name: str) -> None:
    if "\0" in name or len(name.encode()) > NAME_BYTES:
        raise GroupError(ErrorCode.invalid_group_id)


@dataclass(slots=True)
class Shard:
    """A part of all groups, ours by ``lease``, in the ``term`` of the node's."""

    number: int
    lease: Lease
    node: NodeLease
    term: int
    groups: dict[str, Group] = field(default_factory=dict)
    timers: dict[str, asyncio.TimerHandle] = field(default_factory=dict)
    """When to look at a group, for those with something to wait for: no later than its next deadline."""
    kept: dict[str, int] = field(default_factory=dict)
    """Versions of groups that are stored. One whose write may have happened is here too."""
    expiring: dict[str, asyncio.Event] = field(default_factory=dict)
    """Groups that are being deleted: who needs one waits for that, and begins anew."""
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a group is stored by `_store`, or deleted: meanwhile others gather what goes with the next write."""


class GroupCoordinator:
    """Answers for the groups of this broker's shards."""

    def __init__(
        self,
        group_store: GroupStore,
        nodes: NodeStore,
        membership: Membership,
        topic_metadata: TopicMetadata,
        identifiers: Identifiers,
        clock: Clock,
        settings: GroupSettings,
    ) -> None:
        self._group_store = group_store
        self._nodes = nodes
        self._membership = membership
        self._topic_metadata = topic_metadata
        self._identifiers = identifiers
        self._clock = clock
        self.settings = settings
        self._shards: dict[int, Shard] = {}
        self._loading: dict[int, asyncio.Lock] = {}
        self._owed: dict[int, NodeLease] = {}
        """Shards that this node may still have the right to without serving them, as its answer or the way to give it back was lost."""
        self._ripe: list[tuple[Shard, str]] = []
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
        if self._now() >= self._membership.until:
            raise GroupError(ErrorCode.coordinator_not_available)
        shard = self._shards.get(number)
        if shard is not None and shard.term == self._membership.term:
            return shard
        async with self._loading.setdefault(number, asyncio.Lock()):
            lease, term = self._membership.lease, self._membership.term
            if not self._membership.nodes or self._membership.of_shard(number).id != lease.node:
                raise GroupError(ErrorCode.not_coordinator)
            shard = self._shards.get(number)
            if shard is not None and shard.term == term:
                return shard
            if shard is not None:
                self._lose(shard)
            again = number in self._owed
            self._owed[number] = lease
            try:
                held = await self._nodes.acquire(f"groups/{number}", lease)
                if held is not None and again:
                    # Writes of before may still be under way: a new epoch keeps them from changing what is read now.
                    await self._nodes.release(held, lease)
                    held = await self._nodes.acquire(f"groups/{number}", lease)
                if held is None:
                    # Its old broker has not let go yet.
                    raise GroupError(ErrorCode.coordinator_load_in_progress)
                stored = await self._group_store.load_groups(number)
                with_offsets = await self._group_store.groups_with_offsets()
            except FencedError as error:
                raise GroupError(ErrorCode.not_coordinator) from error
            except UnavailableError as error:
                raise GroupError(ErrorCode.coordinator_not_available) from error
            if self._stopping or self._membership.term != term:
                # It may have been somebody else's while it was read: again, with a new right to it.
                raise GroupError(ErrorCode.not_coordinator)
            shard = Shard(number, held, lease, term)
            for name in with_offsets:
                if self.shard(name) == number:
                    shard.groups[name] = self._classic(name)
                    shard.kept[name] = 0
            for kept in stored:
                is_consumer = json.loads(kept.state).get("kind") == consumer.Group.kind
                group: Group = self._consumer(kept.name) if is_consumer else self._classic(kept.name)
                group.version = shard.kept[kept.name] = kept.version
                group.load(kept.state, self._now())
                shard.groups[kept.name] = group
                self._schedule(shard, group)
            self._shards[number] = shard
            self._owed.pop(number, None)
            return shard

    def _classic(self, name: str, version: int = 0) -> classic.Group:
        settings = self.settings
        group = classic.Group(name, settings.initial_rebalance_ms / 1000, settings.max_members, self._member_id)
        group.version = version
        return group

    def _consumer(self, name: str, version: int = 0) -> consumer.Group:
        settings = self.settings
        return consumer.Group(name, settings.consumer_session_ms / 1000, settings.max_members, version)

    def _member_id(self, client: str) -> str:
        return f"{client}-{self._identifiers.uuid4()}"

    def _lose(self, shard: Shard) -> None:
        if self._shards.get(shard.number) is shard:
            del self._shards[shard.number]
            self._owed[shard.number] = shard.node
        for timer in shard.timers.values():
            timer.cancel()
        for group in shard.groups.values():
            group.disband(ErrorCode.not_coordinator)

    def _lose_all(self) -> None:
        for shard in list(self._shards.values()):
            self._lose(shard)

    async def run(self) -> None:
        """Time's part, for ever: sessions, rebalances, shards that are another's now. It waits for no write, as members wait for it."""
        async with asyncio.TaskGroup() as writes:
            writes.create_task(self._give_back())
            writing = asyncio.Semaphore(WRITES)
            checked = self._now()
            while True:
                await asyncio.sleep(TICK_SECONDS)
                try:
                    if self._now() >= self._membership.until:
                        self._lose_all()
                    if self._now() - checked >= CHECK_SECONDS:
                        checked = self._now()
                        self._lose_moved()
                except Exception:
                    log.exception("shards could not be checked")
                ripe, self._ripe = self._ripe, []
                for shard, name in ripe:
                    # By name: another group, of the other protocol perhaps, may have taken the place of the one that set the timer.
                    if self._shards.get(shard.number) is shard and (group := shard.groups.get(name)) is not None:
                        try:
                            if self._tick(shard, group):
                                writes.create_task(self._write(shard, group, writing))
                        except Exception:
                            log.exception("cannot look after a group", group=name)
                        self._schedule(shard, group)

    def _schedule(self, shard: Shard, group: Group) -> None:
        """Look at the group when its next deadline is there. A look that comes too early only finds the next one."""
        deadline = group.next_deadline()
        timer = shard.timers.get(group.name)
        if timer is not None and timer.when() <= deadline:
            return
        if timer is not None:
            timer.cancel()
            del shard.timers[group.name]
        if deadline < float("inf"):
            loop = asyncio.get_running_loop()
            shard.timers[group.name] = loop.call_at(deadline, self._ripen, shard, group.name)

    def _ripen(self, shard: Shard, name: str) -> None:
        shard.timers.pop(name, None)
        self._ripe.append((shard, name))

    def _tick(self, shard: Shard, group: Group) -> bool:
        """What time brings; whether the group has to be stored after it."""
        now = self._now()
        if now < group.next_deadline():
            return False
        was_empty = group.empty
        group.tick(now)
        return not self._forgotten(shard, group) and (
            isinstance(group, consumer.Group) or (group.empty and not was_empty)
        )

    async def _write(self, shard: Shard, group: Group, writing: asyncio.Semaphore) -> None:
        async with writing:
            try:
                if isinstance(group, consumer.Group):
                    await self._store(shard, group)
                elif group.empty and shard.groups.get(group.name) is group:
                    # Whoever came meanwhile is stored with what it is assigned.
                    await self._keep(shard, group)
            except Exception:
                log.exception("cannot store a group", group=group.name)

    def _forgotten(self, shard: Shard, group: Group) -> bool:
        """Whether the group is gone, as nobody is in it and nothing of it is stored."""
        if not group.idle or group.name in shard.kept:
            return False
        self._remove(shard, group)
        return True

    def _remove(self, shard: Shard, group: Group) -> None:
        if shard.groups.get(group.name) is not group:
            return
        del shard.groups[group.name]
        shard.kept.pop(group.name, None)
        if (timer := shard.timers.pop(group.name, None)) is not None:
            timer.cancel()

    def _lose_moved(self) -> None:
        """Forget shards that are another's now."""
        membership = self._membership
        for shard in list(self._shards.values()):
            if shard.term != membership.term or (
                membership.nodes and membership.of_shard(shard.number).id != membership.lease.node
            ):
                self._lose(shard)

    async def _give_back(self) -> None:
        """Give up the right to shards that are another's now, for ever."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            membership = self._membership
            for number, node in list(self._owed.items()):
                try:
                    if node != membership.lease:
                        # It ended with the node's lease.
                        self._owed.pop(number, None)
                    elif membership.nodes and membership.of_shard(number).id != node.node:
                        await self._give(number, node)
                except Exception:
                    log.exception("a shard of groups could not be given back", shard=number)

    async def _give(self, number: int, node: NodeLease) -> None:
        """Give a shard back that is not served here; again later if that fails."""
        async with self._loading.setdefault(number, asyncio.Lock()):
            if number in self._shards:
                return
            try:
                # What one has is given once more; what another has is not.
                held = await self._nodes.acquire(f"groups/{number}", node)
                if held is not None:
                    await self._nodes.release(held, node)
            except UnavailableError as error:
                log.warning("cannot release groups", shard=number, error=str(error))
                return
            except FencedError:
                pass
            self._owed.pop(number, None)

    # What nobody needs any more

    async def expire(self) -> None:
        """Delete groups whose time is over, for ever."""
        while True:
            await asyncio.sleep(EXPIRE_SECONDS)
            for number in range(self.settings.shards):
                try:
                    await self._expire_shard(await self._own(number))
                except GroupError as error:
                    if error.code is not ErrorCode.not_coordinator:
                        log.warning("cannot expire groups", shard=number, error=str(error))
                except Exception:
                    log.exception("groups could not be expired", shard=number)

    async def _expire_shard(self, shard: Shard) -> None:
        """Once. Raises GroupError."""
        written = 0
        for group in list(shard.groups.values()):
            age = self._age(group)
            if not group.idle or (age is not None and age < 1 + _FRESH):
                continue
            if written == EXPIRE_LIMIT or self._shards.get(shard.number) is not shard:
                return
            written += 1
            if age is None:
                # Of before this was stored, or only its offsets are.
                if not await self._keep(shard, group):
                    raise GroupError(ErrorCode.coordinator_not_available)
            else:
                await self._expire_group(shard, group)

    async def _expire_group(self, shard: Shard, group: Group) -> None:
        async with shard.storing:
            age = self._age(group)
            if shard.groups.get(group.name) is not group or not group.idle or age is None or age < 1 + _FRESH:
                return
            done = shard.expiring[group.name] = asyncio.Event()
            try:
                await self._guarded(
                    shard, lambda: asyncio.ensure_future(self._group_store.delete_group(shard.lease, group.name))
                )
                self._remove(shard, group)
                log.info("group expired", group=group.name)
            finally:
                del shard.expiring[group.name]
                done.set()

    def _age(self, group: Group) -> float | None:
        """How much of its time an empty group has had; None if that is not stored."""
        if group.empty_ms is None:
            return None
        return (self._wall_ms() - group.empty_ms) / 1000 / self.settings.offsets_seconds

    def _wall_ms(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    def stop(self) -> None:
        """Answer no more: this broker ends. Its rights end with its node's lease."""
        self._stopping = True
        self._lose_all()

    async def _keep(self, shard: Shard, group: Group) -> bool:
        """Save the group; whether that worked."""
        group.version += 1
        return not await self._save(shard, group)

    async def _save(self, shard: Shard, group: Group) -> ErrorCode:
        group.empty_ms = self._wall_ms() if group.empty else None
        version = group.version
        shard.kept.setdefault(group.name, 0)
        try:
            await self._group_store.save_group(
                shard.lease, shard.number, StoredGroup(group.name, version, group.save())
            )
        except FencedError:
            self._lose(shard)
            return ErrorCode.not_coordinator
        except UnavailableError as error:
            log.warning("cannot save a group", group=group.name, error=str(error))
            group.empty_ms = None
            return ErrorCode.coordinator_not_available
        if shard.groups.get(group.name) is group:
            shard.kept[group.name] = max(shard.kept.get(group.name, 0), version)
        return ErrorCode.none

    async def _store(self, shard: Shard, group: Group) -> ErrorCode:
        """Have a group stored as it is now: what is answered from then on survives this broker. What happened while another write was
        under way goes with one write."""
        version = group.version
        if shard.kept.get(group.name, 0) >= version:
            return ErrorCode.none
        async with shard.storing:
            if self._shards.get(shard.number) is not shard or shard.groups.get(group.name) is not group:
                return ErrorCode.coordinator_not_available
            if shard.kept.get(group.name, 0) >= version:
                return ErrorCode.none
            return await self._save(shard, group)

    async def _guarded(self, shard: Shard, work: Callable[[], "asyncio.Future[T]"]) -> T:
        try:
            return await work()
        except FencedError as error:
            self._lose(shard)
            raise GroupError(ErrorCode.not_coordinator) from error
        except UnavailableError as error:
            raise GroupError(ErrorCode.coordinator_not_available) from error

    async def _certain(self, shard: Shard, error: ErrorCode) -> None:
        """What ends a client for good is not said from memory alone: when the coordinator's clock leaps, our lease ends there before we know,
        and another may have the group, and the member, anew. Raises GroupError if it may."""
        if error is not ErrorCode.fenced_instance_id:
            return
        try:
            held = await self._nodes.acquire(f"groups/{shard.number}", shard.node)
        except FencedError:
            held = None
        except UnavailableError as unknown:
            raise GroupError(ErrorCode.coordinator_not_available) from unknown
        if held is None or held.epoch != shard.lease.epoch:
            self._lose(shard)
            raise GroupError(ErrorCode.not_coordinator)

    async def _find(self, name: str) -> tuple[Shard, Group | None]:
        _check(name)
        shard = await self._own(self.shard(name))
        while (expiring := shard.expiring.get(name)) is not None:
            await expiring.wait()
            shard = await self._own(self.shard(name))
        return shard, shard.groups.get(name)

    async def _find_classic(self, name: str) -> tuple[Shard, classic.Group | None]:
        """Members of the classic protocol know nothing of a group of the other."""
        shard, group = await self._find(name)
        return shard, group if isinstance(group, classic.Group) else None

    # Members of consumer groups

    async def consume(self, name: str, request: HeartbeatRequest) -> HeartbeatReply:
        """A member joins, is there, or leaves; answered when what it is told is stored. Raises GroupError."""
        if not name:
            return HeartbeatReply(ErrorCode.invalid_request, request.member, message="GroupId can't be empty.")
        shard, found = await self._find(name)
        if isinstance(found, consumer.Group):
            group = found
        elif found is not None and not found.empty:
            return HeartbeatReply(
                ErrorCode.group_id_not_found, request.member,
                message=f"group {name} has members of the classic protocol: they have to leave before others join",
            )  # fmt: skip
        elif request.epoch != consumer.JOIN:
            return HeartbeatReply(ErrorCode.unknown_member_id, request.member, message=f"group {name} has no members")
        else:
            group = self._consumer(name, found.version if found else 0)
        before = group.version
        reply = group.heartbeat(request, self._topic_metadata.by_name, self._now())
        if found is None or found is not group:
            if reply.error:
                return reply
            shard.groups[name] = group
        if group.version != before:
            self._schedule(shard, group)
        if not reply.error and (error := await self._store(shard, group)):
            return HeartbeatReply(error, request.member, message="the group cannot be stored now: try again")
        await self._certain(shard, reply.error)
        return reply

    # Members of classic groups

    async def join(self, name: str, request: JoinRequest) -> JoinReply:
        """A member joins; answered when the rebalance is done. Raises GroupError."""
        if not name:
            raise GroupError(ErrorCode.invalid_group_id)
        settings = self.settings
        if not settings.min_session_ms <= request.session_seconds * 1000 <= settings.max_session_ms:
            raise GroupError(ErrorCode.invalid_session_timeout)
        shard, found = await self._find(name)
        if isinstance(found, classic.Group):
            group = found
        elif found is not None and not found.empty:
            return JoinReply(ErrorCode.inconsistent_group_protocol, request.member)
        elif request.member:
            return JoinReply(ErrorCode.unknown_member_id, request.member)
        else:
            group = self._classic(name, found.version if found else 0)
        future: asyncio.Future[JoinReply] = asyncio.get_running_loop().create_future()
        group.join(request, self._now(), future)
        if group is found or not group.idle:
            shard.groups[name] = group
            self._schedule(shard, group)
        refused = future.done() and future.result().error
        if request.instance is not None and not request.member and not refused and name in shard.kept:
            # What is stored may know the instance by an older id. Whoever goes on from there must not take the new one for a stranger's,
            # which ends a client for good: it is told when it is stored, be it in the middle of a rebalance.
            group.version += 1
            if error := await self._store(shard, group):
                return JoinReply(error, request.member)
        reply = await future
        await self._certain(shard, reply.error)
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
        shard, group = await self._find_classic(name)
        if group is None:
            return SyncReply(ErrorCode.unknown_member_id)
        future: asyncio.Future[SyncReply] = asyncio.get_running_loop().create_future()
        if group.sync(member, instance, generation, protocol_type, protocol, self._now(), future):
            group.propose(assignments)
            if await self._keep(shard, group):
                group.assigned(generation, self._now())
            else:
                group.unassigned(generation, ErrorCode.coordinator_not_available, self._now())
            self._schedule(shard, group)
        reply = await future
        await self._certain(shard, reply.error)
        return reply

    async def heartbeat(self, name: str, member: str, instance: str | None, generation: int) -> ErrorCode:
        """A member is there. Raises GroupError."""
        shard, group = await self._find_classic(name)
        if group is None:
            return ErrorCode.unknown_member_id
        error = group.heartbeat(member, instance, generation, self._now())
        await self._certain(shard, error)
        return error

    async def leave(self, name: str, members: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
        """Members go, named by (id, instance). Raises GroupError."""
        shard, group = await self._find_classic(name)
        if group is None:
            return [ErrorCode.unknown_member_id] * len(members)
        errors = [group.leave(id, instance, self._now()) for id, instance in members]
        self._schedule(shard, group)
        if not self._forgotten(shard, group) and group.state is State.EMPTY:
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
        """Keep offsets of a member of this generation, or epoch, or of anybody (-1) while the group is empty. Raises GroupError."""
        shard, group = await self._find(name)
        if group is None:
            if generation >= 0:
                return ErrorCode.illegal_generation
            if not offsets:
                return ErrorCode.none
            group = shard.groups[name] = self._classic(name)
        elif error := group.may_commit(member, instance, generation, self._now()):
            await self._certain(shard, error)
            return error
        if group.empty and ((age := self._age(group)) is None or age >= _FRESH):
            # Before the offsets, so that they are never older than what is stored of their time.
            if not await self._keep(shard, group):
                raise GroupError(ErrorCode.coordinator_not_available)
        else:
            shard.kept.setdefault(name, 0)
        await self._guarded(
            shard, lambda: asyncio.ensure_future(self._group_store.commit_offsets(shard.lease, name, offsets))
        )
        return ErrorCode.none

    async def offsets(
        self, name: str, member: str | None = None, epoch: int = -1
    ) -> Mapping[Partition, CommittedOffset]:
        """All offsets of a group, for a member of this epoch or for anybody. Raises GroupError, UnavailableError.

        Who does not ask as a member is answered by any broker: they are read from where they are kept, never from memory.
        """
        _check(name)
        if member or epoch >= 0:
            _, group = await self._find(name)
            if group is not None and (error := group.may_read(member, epoch)):
                raise GroupError(error)
        return await self._group_store.load_offsets(name)

    async def delete_offsets(self, name: str, partitions: Sequence[Partition]) -> None:
        """Forget offsets of partitions. Raises GroupError."""
        shard, group = await self._find(name)
        if group is None:
            raise GroupError(ErrorCode.group_id_not_found)
        await self._guarded(
            shard, lambda: asyncio.ensure_future(self._group_store.delete_offsets(shard.lease, name, partitions))
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
        async with shard.storing:
            if not group.empty:
                raise GroupError(ErrorCode.non_empty_group)
            await self._guarded(shard, lambda: asyncio.ensure_future(self._group_store.delete_group(shard.lease, name)))
            # Who joined meanwhile joins again, and makes the group anew.
            group.disband(ErrorCode.coordinator_not_available)
            self._remove(shard, group)
