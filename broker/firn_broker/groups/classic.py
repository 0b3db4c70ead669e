"""The classic group protocol as a state machine without I/O and without a clock.

::

            a member joins                    all have joined, or the timeout is over
    Empty ----------------> Preparing --------------------------------------------> Completing
      ^                      ^  ^                                                       |
      | no members are left  |  | a member joins, leaves, or times out                  | the leader's assignments are stored
      +----------------------+  +---------------- Stable <------------------------------+

- Preparing: members join or rejoin. A dynamic member that does not before the rebalance timeout is removed.
- Completing: all members have the generation; followers wait for the leader's assignments.
- A member without a heartbeat for its session timeout is removed, unless it waits for a reply of the group.
- A static member (``group.instance.id``) that returns replaces its old process, which is fenced. A stable group
  rebalances for it only if the group would choose another protocol. Its metadata do not count: Java's cooperative
  consumers write their generation there.
- A new dynamic member first gets its id and joins again with it (KIP-394), so that a lost reply leaves no unknown
  member.

Times are seconds of a monotonic clock. Pending replies are futures, which the caller creates. Source:
``GroupCoordinator.scala``, ``GroupMetadata.scala``, KIP-345, KIP-394, KIP-814."""

import asyncio
import base64
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from kio.schema.errors import ErrorCode

from firn_broker.groups.group import GROUP_BYTES, MEMBER_BYTES, PENDING_BYTES, as_json

PENDING_SECONDS = 10.0
"""Seconds for which a group keeps the id of a member that has not joined with it, and for which a rebalance waits for
such members. Clients join again at once."""


class State(StrEnum):
    """The states in DescribeGroups and ListGroups."""

    EMPTY = "Empty"
    PREPARING = "PreparingRebalance"
    COMPLETING = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """The request of a member that joins."""

    member: str
    instance: str | None
    client: str
    host: str
    session_seconds: float
    rebalance_seconds: float
    protocol_type: str
    protocols: Sequence[tuple[str, bytes]]
    known_id_required: bool
    skips_assignment: bool

    @property
    def size(self) -> int:
        """Return the approximate bytes that the member takes in memory, without its assignment."""
        metadata = sum(len(name) + len(data) for name, data in self.protocols)
        return MEMBER_BYTES + len(self.member or self.client) + len(self.client) + metadata


@dataclass(frozen=True, slots=True)
class JoinReply:
    """The reply to a join. Only the leader gets ``members``: (member, instance, metadata for the chosen protocol)."""

    error: ErrorCode
    member: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: Sequence[tuple[str, str | None, bytes]] = ()


@dataclass(frozen=True, slots=True)
class SyncReply:
    """The reply to a sync: the member's assignment."""

    error: ErrorCode
    assignment: bytes = b""
    protocol_type: str | None = None
    protocol: str | None = None


JoinFuture = asyncio.Future[JoinReply]
SyncFuture = asyncio.Future[SyncReply]


@dataclass(slots=True)
class Member:
    """A member. A rebalance waits for it until ``joining`` is set."""

    id: str
    instance: str | None
    client: str
    host: str
    session_seconds: float
    rebalance_seconds: float
    protocols: Sequence[tuple[str, bytes]]
    deadline: float
    size: int
    """Approximate bytes in memory, without the assignment."""
    assignment: bytes = b""
    joining: JoinFuture | None = None
    syncing: SyncFuture | None = None

    @classmethod
    def joined_by(cls, id: str, request: JoinRequest, now: float) -> "Member":
        """Create the member that ``request`` makes."""
        return cls(
            id, request.instance, request.client, request.host, request.session_seconds, request.rebalance_seconds,
            request.protocols, now + request.session_seconds, request.size,
        )  # fmt: skip

    def metadata(self, protocol: str | None) -> bytes:
        """Return the metadata that the member sent for ``protocol``."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def stored(self) -> Mapping[str, Any]:
        """Return what is stored of the member, for JSON."""
        return {
            "id": self.id, "instance": self.instance, "client": self.client, "host": self.host,
            "session": self.session_seconds, "rebalance": self.rebalance_seconds,
            "protocols": [[name, _text(data)] for name, data in self.protocols], "assignment": _text(self.assignment),
        }  # fmt: skip

    @classmethod
    def restored(cls, stored: Mapping[str, Any], now: float) -> "Member":
        """Create the member of `stored`, with a whole session left."""
        request = JoinRequest(
            stored["id"], stored["instance"], stored["client"], stored["host"], stored["session"], stored["rebalance"], "",
            [(name, base64.b64decode(data)) for name, data in stored["protocols"]], known_id_required=False,
            skips_assignment=False,
        )  # fmt: skip
        member = cls.joined_by(stored["id"], request, now)
        member.assignment = base64.b64decode(stored["assignment"])
        return member


@dataclass(slots=True)
class PendingIds:
    """The ids of members that have not joined with them yet. A new id above the limit displaces the oldest."""

    limit: int
    _ids: dict[str, tuple[float, str]] = field(default_factory=dict)
    """When each id expires, and the address of its client."""

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, id: str, until: float, host: str) -> None:
        """Add an id of the client at ``host``."""
        self._ids[id] = until, host
        if len(self._ids) > self.limit:
            del self._ids[next(iter(self._ids))]

    def take(self, id: str) -> bool:
        """Remove an id; return whether it was there."""
        return self._ids.pop(id, None) is not None

    def expire(self, now: float) -> None:
        """Remove expired ids."""
        self._ids = {id: (until, host) for id, (until, host) in self._ids.items() if now < until}

    def next_expiry(self) -> float:
        """Return when the next id expires."""
        return min((until for until, _ in self._ids.values()), default=float("inf"))

    def sizes(self) -> Iterator[tuple[str, int]]:
        """Yield the address and the bytes of each id."""
        return ((host, PENDING_BYTES + len(id)) for id, (_, host) in self._ids.items())


def _answer(future: Any, reply: Any) -> None:
    if future is not None and not future.done():
        future.set_result(reply)


@dataclass(slots=True)
class Group:
    """A group of the classic protocol."""

    kind: ClassVar[str] = "classic"

    name: str
    initial_seconds: float
    max_members: int
    new_id: Callable[[str], str]
    state: State = State.EMPTY
    protocol_type: str | None = None
    protocol: str | None = None
    generation: int = 0
    leader: str | None = None
    members: dict[str, Member] = field(default_factory=dict)
    pending: PendingIds = field(init=False)
    version: int = 0
    empty_ms: int | None = None
    _proposed: bool = False
    """True if the leader of this generation has sent its assignments. `snapshot` then writes a stable group."""
    _rebalance_end: float = 0.0
    _pending_end: float = 0.0
    """When the rebalance stops to wait for pending ids."""
    _first: bool = False
    """True if the group was empty before the rebalance. It then ends at `_initial_until` without waiting for pending ids, as with
    Kafka."""
    _initial_until: float = 0.0

    def __post_init__(self) -> None:
        self.pending = PendingIds(self.max_members)

    @property
    def empty(self) -> bool:
        """Return whether the group has no members."""
        return self.state is State.EMPTY

    @property
    def idle(self) -> bool:
        """Return whether the group has no members and expects none."""
        return self.empty and not self.pending

    # Joining

    def join(self, request: JoinRequest, now: float, future: JoinFuture) -> None:
        """Let a member join or rejoin."""
        if not _speaks(self, request):
            _answer(future, JoinReply(ErrorCode.inconsistent_group_protocol, request.member))
        elif not request.member:
            self._join_new(request, now, future)
        else:
            self._join_known(request, now, future)

    def _join_new(self, request: JoinRequest, now: float, future: JoinFuture) -> None:
        if request.instance is not None and (old := self.static(request.instance)) is not None:
            self._replace(old, request, now, future)
        elif len(self.members) >= self.max_members:
            _answer(future, JoinReply(ErrorCode.group_max_size_reached))
        elif request.instance is None and request.known_id_required:
            id = self.new_id(request.client)
            self.pending.add(id, now + min(request.session_seconds, PENDING_SECONDS), request.host)
            _answer(future, JoinReply(ErrorCode.member_id_required, id))
        else:
            self._add(self.new_id(request.instance or request.client), request, now, future)

    def _join_known(self, request: JoinRequest, now: float, future: JoinFuture) -> None:
        member = self.members.get(request.member)
        if request.instance is not None:
            held = self.static(request.instance)
            if held is None:
                _answer(future, JoinReply(ErrorCode.unknown_member_id, request.member))
                return
            if held.id != request.member:
                _answer(future, JoinReply(ErrorCode.fenced_instance_id, request.member))
                return
        if member is None and self.pending.take(request.member):
            if len(self.members) >= self.max_members:
                _answer(future, JoinReply(ErrorCode.group_max_size_reached, request.member))
            else:
                self._add(request.member, request, now, future)
            return
        if member is None:
            _answer(future, JoinReply(ErrorCode.unknown_member_id, request.member))
            return
        same = list(member.protocols) == list(request.protocols)
        member.deadline = now + request.session_seconds
        if self.state is State.COMPLETING and same:
            # The member lost the reply to its join.
            _answer(future, self._joined(member))
        elif self.state is State.STABLE and same and member.id != self.leader:
            _answer(future, self._joined(member))
        else:
            self._update(member, request, future)
            self._rebalance(now)

    def _add(self, id: str, request: JoinRequest, now: float, future: JoinFuture) -> None:
        self.protocol_type = request.protocol_type
        self.members[id] = Member.joined_by(id, request, now)
        self.members[id].joining = future
        if self.leader is None:
            self.leader = id
        if self.state is State.PREPARING and now < self._initial_until:
            # More members may join: extend the delay, within the rebalance timeout.
            self._initial_until = min(now + self.initial_seconds, self._rebalance_end)
        self._rebalance(now)

    def _update(self, member: Member, request: JoinRequest, future: JoinFuture) -> None:
        _answer(member.joining, JoinReply(ErrorCode.rebalance_in_progress, member.id))
        member.protocols = request.protocols
        member.session_seconds = request.session_seconds
        member.rebalance_seconds = request.rebalance_seconds
        member.client, member.host = request.client, request.host
        member.size = request.size
        member.joining = future

    def _replace(self, old: Member, request: JoinRequest, now: float, future: JoinFuture) -> None:
        """Replace the old process of a static member by the one that joins."""
        _answer(old.joining, JoinReply(ErrorCode.fenced_instance_id, old.id))
        _answer(old.syncing, SyncReply(ErrorCode.fenced_instance_id))
        was_leader = self.leader == old.id
        del self.members[old.id]
        id = self.new_id(request.instance or "")
        member = Member.joined_by(id, request, now)
        member.assignment = old.assignment
        self.members[id] = member
        if was_leader:
            self.leader = id
        if self.state is State.STABLE and _vote(self.members.values()) == self.protocol:
            reply = self._joined(member)
            if was_leader and not request.skips_assignment:
                # The reply names another leader, so that the member does not compute assignments that exist already.
                reply = JoinReply(reply.error, id, reply.generation, reply.protocol_type, reply.protocol, old.id)
            elif was_leader:
                reply = JoinReply(
                    reply.error, id, reply.generation, reply.protocol_type, reply.protocol, id, True, reply.members
                )
            _answer(future, reply)
        else:
            member.joining = future
            self._rebalance(now)

    def _rebalance(self, now: float) -> None:
        """Start a rebalance if none is in progress, and complete it if all members have joined."""
        if self.state is not State.PREPARING:
            for member in self.members.values():
                _answer(member.syncing, SyncReply(ErrorCode.rebalance_in_progress))
                member.syncing = None
            self._first = self.state is State.EMPTY
            self.state = State.PREPARING
            self._rebalance_end = now + max((member.rebalance_seconds for member in self.members.values()), default=0.0)
            self._initial_until = min(now + self.initial_seconds, self._rebalance_end) if self._first else now
            # Kafka has no such bound: there, a client that asks for one id after the other delays every rebalance.
            self._pending_end = now if self._first else now + PENDING_SECONDS
        self._try_complete(now)

    def _try_complete(self, now: float) -> None:
        if self.state is not State.PREPARING:
            return
        if now >= self._rebalance_end or (now >= self._earliest_end and self._all_joined()):
            self._complete(now)

    @property
    def _earliest_end(self) -> float:
        return max(self._initial_until, self._pending_end) if self.pending else self._initial_until

    def _all_joined(self) -> bool:
        """Return whether the rebalance waits for no member, except for clients with a pending id."""
        return all(member.joining is not None for member in self.members.values())

    def _complete(self, now: float) -> None:
        for member in list(self.members.values()):
            if member.joining is None and member.instance is None:
                self._drop(member)
        joined = [member for member in self.members.values() if member.joining is not None]
        if not joined and self.members:
            # Only static members are left, and none has joined: their session timeouts remove them.
            self._rebalance_end = now + max(member.rebalance_seconds for member in self.members.values())
            return
        self.generation += 1
        if not self.members:
            self.state, self.protocol, self.leader = State.EMPTY, None, None
            return
        if self.leader not in self.members or self.members[self.leader].joining is None:
            self.leader = joined[0].id
        self.protocol = _vote(self.members.values())
        self.state, self._proposed = State.COMPLETING, False
        for member in self.members.values():
            member.assignment = b""
            if member.joining is not None:
                member.deadline = now + member.session_seconds
                _answer(member.joining, self._joined(member))
                member.joining = None

    def _joined(self, member: Member) -> JoinReply:
        members = (
            [(other.id, other.instance, other.metadata(self.protocol)) for other in self.members.values()]
            if member.id == self.leader
            else []
        )
        leader = self.leader or ""
        return JoinReply(
            ErrorCode.none, member.id, self.generation, self.protocol_type, self.protocol, leader, False, members
        )

    # Members

    def static(self, instance: str) -> Member | None:
        """Return the static member with that instance id."""
        return next((member for member in self.members.values() if member.instance == instance), None)

    def identify(self, id: str, instance: str | None, generation: int | None = None) -> ErrorCode:
        """Check the identity and the generation that a member claims; return the error."""
        if self.state is State.DEAD:
            return ErrorCode.unknown_member_id
        if instance is not None:
            held = self.static(instance)
            if held is None:
                return ErrorCode.unknown_member_id
            if held.id != id:
                return ErrorCode.fenced_instance_id
        if id not in self.members:
            return ErrorCode.unknown_member_id
        if generation is not None and generation != self.generation:
            return ErrorCode.illegal_generation
        return ErrorCode.none

    def _drop(self, member: Member) -> None:
        _answer(member.joining, JoinReply(ErrorCode.unknown_member_id, member.id))
        _answer(member.syncing, SyncReply(ErrorCode.unknown_member_id))
        del self.members[member.id]
        if self.leader == member.id:
            self.leader = next(iter(self.members), None)

    def leave(self, id: str, instance: str | None, now: float) -> ErrorCode:
        """Remove a member; a static one may be named by its instance id alone."""
        if instance is not None and not id:
            held = self.static(instance)
            id = held.id if held else ""
        if self.pending.take(id):
            self._try_complete(now)
            return ErrorCode.none
        if error := self.identify(id, instance):
            return error
        self._remove(self.members[id], now)
        return ErrorCode.none

    def _remove(self, member: Member, now: float) -> None:
        self._drop(member)
        if self.state in (State.STABLE, State.COMPLETING):
            self._rebalance(now)
        else:
            self._try_complete(now)

    def heartbeat(self, id: str, instance: str | None, generation: int, now: float) -> ErrorCode:
        """Record a heartbeat of a member."""
        if error := self.identify(id, instance, generation):
            return error
        member = self.members[id]
        member.deadline = now + member.session_seconds
        return ErrorCode.rebalance_in_progress if self.state is State.PREPARING else ErrorCode.none

    # Assignments

    def sync(
        self, id: str, instance: str | None, generation: int, protocol_type: str | None, protocol: str | None,
        now: float, future: SyncFuture,
    ) -> bool:  # fmt: skip
        """Let a member wait for its assignment; return True for the leader, whose assignments have to be stored now
        (`assigned`)."""
        error = self.identify(id, instance, generation)
        if not error and (
            (protocol_type is not None and protocol_type != self.protocol_type)
            or (protocol is not None and protocol != self.protocol)
        ):
            error = ErrorCode.inconsistent_group_protocol
        if not error and self.state is State.PREPARING:
            error = ErrorCode.rebalance_in_progress
        if not error and self.state is State.EMPTY:
            error = ErrorCode.unknown_member_id
        if error:
            _answer(future, SyncReply(error))
            return False
        member = self.members[id]
        member.deadline = now + member.session_seconds
        if self.state is State.STABLE:
            _answer(future, SyncReply(ErrorCode.none, member.assignment, self.protocol_type, self.protocol))
            return False
        _answer(member.syncing, SyncReply(ErrorCode.rebalance_in_progress))
        member.syncing = future
        return id == self.leader

    def propose(self, assignments: Mapping[str, bytes]) -> None:
        """Take the leader's assignments before they are stored."""
        self._proposed = True
        for member in self.members.values():
            member.assignment = assignments.get(member.id, b"")

    def assigned(self, generation: int, now: float) -> None:
        """Become stable after the assignments were stored, unless the group has changed since."""
        if self.state is State.COMPLETING and self.generation == generation:
            self.state = State.STABLE
            for member in self.members.values():
                member.deadline = now + member.session_seconds
                _answer(member.syncing, SyncReply(ErrorCode.none, member.assignment, self.protocol_type, self.protocol))
                member.syncing = None

    def unassigned(self, generation: int, error: ErrorCode, now: float) -> None:
        """Rebalance after the assignments could not be stored."""
        if self.state is State.COMPLETING and self.generation == generation:
            for member in self.members.values():
                _answer(member.syncing, SyncReply(error))
                member.syncing = None
                member.assignment = b""
            self._rebalance(now)

    # Offsets

    def may_commit(self, member: str, instance: str | None, epoch: int, now: float) -> ErrorCode:
        """Return the error for a commit; a valid commit counts as a heartbeat."""
        if epoch < 0 and self.state is State.EMPTY:
            return ErrorCode.none
        if error := self.identify(member, instance, epoch):
            return error
        if self.state is State.COMPLETING:
            return ErrorCode.rebalance_in_progress
        of_group = self.members[member]
        of_group.deadline = now + of_group.session_seconds
        return ErrorCode.none

    def may_read(self, member: str | None, epoch: int) -> ErrorCode:
        """Allow every reader."""
        return ErrorCode.none

    # Time

    def tick(self, now: float) -> bool:
        """Remove members whose session timed out, and complete a rebalance whose timeout is over."""
        before = len(self.members)
        self.pending.expire(now)
        for member in list(self.members.values()):
            # Removing a member may complete a rebalance, which removes others.
            present = self.members.get(member.id) is member
            if present and member.joining is None and member.syncing is None and now >= member.deadline:
                self._remove(member, now)
        self._try_complete(now)
        return len(self.members) != before

    def next_deadline(self) -> float:
        """Return the time of the next deadline."""
        times = [self.pending.next_expiry()]
        times += [
            member.deadline for member in self.members.values() if member.joining is None and member.syncing is None
        ]
        if self.state is State.PREPARING:
            times.append(self._rebalance_end)
            if self._all_joined():
                times.append(self._earliest_end)
        return min(times, default=float("inf"))

    def disband(self, error: ErrorCode) -> None:
        """Answer all waiting members with ``error``."""
        for member in self.members.values():
            _answer(member.joining, JoinReply(error, member.id))
            _answer(member.syncing, SyncReply(error))
        self.state = State.DEAD

    # Stored state

    def sizes(self) -> Mapping[str, int]:
        """Return the approximate bytes of the group, by the address of its members."""
        sizes = {"": GROUP_BYTES}
        for member in self.members.values():
            sizes[member.host] = sizes.get(member.host, 0) + member.size + len(member.assignment)
        for host, size in self.pending.sizes():
            sizes[host] = sizes.get(host, 0) + size
        return sizes

    def snapshot(self) -> Callable[[], str]:
        """Return a function that writes the present state as JSON."""
        stable = self.state is State.STABLE or (self.state is State.COMPLETING and self._proposed)
        head = {
            "type": self.protocol_type, "protocol": self.protocol, "generation": self.generation, "leader": self.leader,
            "emptyMs": self.empty_ms, "rebalancing": bool(self.members) and not stable,
        }  # fmt: skip
        members = [copy(member) for member in self.members.values()]
        return lambda: as_json(head, (json.dumps(member.stored()) for member in members))

    def load(self, text: str, now: float) -> None:
        """Load the stored state. A group that was rebalancing starts the rebalance again."""
        stored = json.loads(text)
        self.protocol_type, self.protocol = stored["type"], stored["protocol"]
        self.generation, self.leader = stored["generation"], stored["leader"]
        self.empty_ms = stored.get("emptyMs")
        self.members = {member["id"]: Member.restored(member, now) for member in stored["members"]}
        self.state = State.STABLE if self.members else State.EMPTY
        if stored.get("rebalancing"):
            self._rebalance(now)


def _speaks(group: Group, request: JoinRequest) -> bool:
    """Return whether the member supports a protocol that all other members support."""
    if not request.protocols or not request.protocol_type:
        return False
    if group.state is State.EMPTY or not group.members:
        return True
    others = [member for member in group.members.values() if member.id != request.member]
    common = {name for name, _ in request.protocols}
    for other in others:
        common &= {name for name, _ in other.protocols}
    return request.protocol_type == group.protocol_type and (bool(common) or not others)


def _vote(members: Collection[Member]) -> str:
    """Choose the protocol that most members prefer among those that all members support."""
    common = set.intersection(*({name for name, _ in member.protocols} for member in members))
    votes = Counter(next((name for name, _ in member.protocols if name in common), "") for member in members)
    return max(sorted(votes), key=lambda name: votes[name])


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
