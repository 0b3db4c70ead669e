"""The consumer group protocol of KIP-848 as a state machine: members only send heartbeats, the group assigns.

::

    heartbeat --> the member and what it wants --> has that, or a topic of it, changed? --> group epoch + 1 --> new targets (assignors)
                                                                                                                   |
    answer: epoch, assignment  <-- one step of this member towards its target <------------------------------------+

One step (``CurrentAssignmentBuilder``):

- what it has and shall not have is taken from its assignment, and its epoch is one more, until a heartbeat of that epoch says that it owns
  none of that any more; if that takes longer than its rebalance timeout, it is out. Kafka leaves the epoch, and believes a member that does
  not own it before it was told; if the answer is lost, such a member may yet begin with what it was told before;
- then it goes to the target's epoch and gets what it shall have and nobody owns. The rest comes as others give it up.

So a partition is owned by one member at a time: it is free when its owner said so, left, or was not heard of for a session.

- Epoch 0 joins, -1 leaves; a static member that says -2 keeps its partitions for a session, for whoever comes with its instance id.
- A member that says an older epoch missed an answer: the one before is taken if what it owns fits, any other is fenced.
- Nothing may be answered before `save` of that ``version`` is kept: whoever loads the group must know what members were told.

Source: KIP-848, ``GroupMetadataManager.java``.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

import re2
from kio.schema.errors import ErrorCode

from firn_broker.groups.assignors import ASSIGNORS, UNIFORM, Subscriber, preferred
from firn_broker.log_types import Partition, Topic

JOIN, LEAVE, LEAVE_FOR_NOW = 0, -1, -2
"""Epochs that say what a member wants."""

NAMES_CHARACTERS = 1 << 20
"""What the names of topics that a member subscribes to may be long together, as they are stored with the group (Kafka: in one record)."""
PATTERN_CHARACTERS = 4096
PATTERN_BYTES = 1 << 20
"""Length of a pattern of topics, and memory of its compiled form, at most."""

Partitions = frozenset[Partition]
NOTHING: Partitions = frozenset()


class State(StrEnum):
    """As ConsumerGroupDescribe and ListGroups write it."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """What a member says. None: as before."""

    member: str
    epoch: int
    instance: str | None = None
    rack: str | None = None
    rebalance_seconds: float | None = None
    names: frozenset[str] | None = None
    pattern: str | None = None
    assignor: str | None = None
    owned: Partitions | None = None
    client: str = ""
    host: str = ""

    @property
    def is_full(self) -> bool:
        """It says everything, as after an error: its answer does the same."""
        return self.epoch == JOIN or None not in (self.rebalance_seconds, self.names, self.owned)


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """What it is told. ``assignment`` is None when it has not changed."""

    error: ErrorCode
    member: str
    epoch: int = 0
    assignment: Partitions | None = None
    message: str | None = None


class _RefusedError(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class Member:
    """One member. It owns ``assigned``, and ``revoking`` until it says that it does not."""

    id: str
    instance: str | None
    rack: str | None = None
    client: str = ""
    host: str = ""
    rebalance_seconds: float = 0.0
    names: frozenset[str] = frozenset()
    pattern: str | None = None
    assignor: str | None = None
    epoch: int = 0
    previous: int = 0
    assigned: Partitions = NOTHING
    revoking: Partitions = NOTHING
    target: Partitions = NOTHING
    topics: frozenset[UUID] = frozenset()
    """What it is subscribed to, of the topics that exist."""
    deadline: float = 0.0
    revoke_until: float = float("inf")

    def step(self, epoch: int) -> None:
        """Be in ``epoch``."""
        self.previous, self.epoch = self.epoch, epoch


@dataclass(slots=True)
class Group:
    """One group."""

    kind: ClassVar[str] = "consumer"
    protocol_type: ClassVar[str] = "consumer"

    name: str
    session_seconds: float
    max_members: int
    version: int = 0
    empty_ms: int | None = None
    epoch: int = 0
    assignment_epoch: int = 0
    """The epoch that the members' targets are of."""
    assignor: str = UNIFORM
    members: dict[str, Member] = field(default_factory=dict)
    partitions: dict[UUID, int] = field(default_factory=dict)
    """Numbers of partitions of all subscribed topics, which targets are made of."""
    _owners: dict[Partition, str] = field(default_factory=dict)
    _instances: dict[str, str] = field(default_factory=dict)
    _topics: Mapping[str, Topic] | None = None
    _dead: bool = False

    @property
    def state(self) -> State:
        """See `groups.group.Group`."""
        if self._dead:
            return State.DEAD
        if not self.members:
            return State.EMPTY
        if self.epoch > self.assignment_epoch:
            return State.ASSIGNING
        settled = all(it.epoch == self.epoch and it.assigned == it.target for it in self.members.values())
        return State.STABLE if settled else State.RECONCILING

    @property
    def empty(self) -> bool:
        """See `groups.group.Group`."""
        return not self.members and not self._dead

    @property
    def idle(self) -> bool:
        """See `groups.group.Group`."""
        return self.empty

    # Heartbeats

    def heartbeat(self, request: HeartbeatRequest, topics: Mapping[str, Topic], now: float) -> HeartbeatReply:
        """A member joins, is there, or leaves. ``topics`` are all by name: a mapping that is replaced when they change."""
        try:
            _check(request)
            if request.epoch in (LEAVE, LEAVE_FOR_NOW):
                return self._leave(request, now)
            member = self._joining(request) if request.epoch == JOIN else self._known(request)
        except _RefusedError as error:
            return HeartbeatReply(error.code, request.member, message=str(error))
        member.deadline = now + self.session_seconds
        member.client, member.host = request.client, request.host
        wants_more = self._update(member, request)
        self._look(topics, member if wants_more else None)
        if self.epoch > self.assignment_epoch:
            self._assign()
        before = member.assigned
        self._reconcile(member, request, now)
        tell = request.is_full or member.assigned != before
        return HeartbeatReply(ErrorCode.none, member.id, member.epoch, member.assigned if tell else None)

    def _joining(self, request: HeartbeatRequest) -> Member:
        """The member that joins, a new one if need be."""
        member = self.members.get(request.member)
        held = None if request.instance is None else self.static(request.instance)
        if held is not None and (held.id != request.member or held.epoch == LEAVE_FOR_NOW):
            if held.epoch != LEAVE_FOR_NOW:
                raise _RefusedError(
                    ErrorCode.unreleased_instance_id, f"instance id {held.instance} is still that of member {held.id}"
                )
            if member is not None and member is not held:
                raise _RefusedError(ErrorCode.fenced_instance_id, f"member {member.id} has another instance id")
            return self._succeed(held, request.member)
        if member is not None:
            if member.instance != request.instance:
                raise _RefusedError(ErrorCode.fenced_instance_id, f"member {member.id} has another instance id")
            # Whatever its epoch is: who did not hear the answer, or was fenced, has given up everything and begins anew (KAFKA-19233).
            return member
        if len(self.members) >= self.max_members:
            raise _RefusedError(
                ErrorCode.group_max_size_reached,
                f"group {self.name} has {self.max_members} members, which is its bound",
            )
        member = self.members[request.member] = Member(request.member, request.instance)
        if request.instance is not None:
            self._instances[request.instance] = member.id
        self.version += 1
        return member

    def _succeed(self, held: Member, id: str) -> Member:
        """A static member came back, as another process: what was its predecessor's is its own."""
        del self.members[held.id]
        held.id, held.epoch, held.previous = id, 0, 0
        self.members[id] = held
        assert held.instance is not None
        self._instances[held.instance] = id
        for partition in held.assigned:
            self._owners[partition] = id
        self.version += 1
        return held

    def _known(self, request: HeartbeatRequest) -> Member:
        member = self._named(request)
        self._check_epoch(member, request)
        return member

    def _named(self, request: HeartbeatRequest) -> Member:
        if request.instance is not None:
            held = self.static(request.instance)
            if held is None:
                raise _RefusedError(ErrorCode.unknown_member_id, f"instance id {request.instance} is not in the group")
            if held.id != request.member:
                raise _RefusedError(
                    ErrorCode.fenced_instance_id, f"instance id {request.instance} is that of member {held.id} now"
                )
        member = self.members.get(request.member)
        if member is None:
            raise _RefusedError(ErrorCode.unknown_member_id, f"member {request.member} is not in the group")
        return member

    def _check_epoch(self, member: Member, request: HeartbeatRequest) -> None:
        missed = (
            request.epoch == member.previous
            and request.owned is not None
            and request.owned <= member.assigned | member.revoking
        )
        if request.epoch > member.epoch or (request.epoch < member.epoch and not missed):
            raise _RefusedError(
                ErrorCode.fenced_member_epoch,
                f"member {member.id} is in epoch {member.epoch}, not {request.epoch}: it has to give up its partitions and join again",
            )

    def _update(self, member: Member, request: HeartbeatRequest) -> bool:
        """What the member says anew; whether it wants other topics."""
        before = member.names, member.pattern
        aside = member.rack, member.rebalance_seconds, member.assignor
        if request.names is not None:
            member.names = request.names
        if request.pattern is not None:
            member.pattern = request.pattern or None
        if request.rack is not None:
            member.rack = request.rack
        if request.rebalance_seconds is not None:
            member.rebalance_seconds = request.rebalance_seconds
        if request.assignor is not None:
            member.assignor = request.assignor
        if aside != (member.rack, member.rebalance_seconds, member.assignor):
            self.version += 1
        return before != (member.names, member.pattern)

    def _look(self, topics: Mapping[str, Topic], changed: Member | None) -> None:
        """Raise the epoch if ``changed`` wants other topics, or if some that are subscribed to came, grew or went."""
        if topics is self._topics and changed is None:
            return
        stale = self.members.values() if topics is not self._topics else (changed,) if changed else ()
        found: dict[tuple[frozenset[str], str | None], frozenset[UUID]] = {}
        for member in stale:
            wish = member.names, member.pattern
            if wish not in found:
                found[wish] = _subscribed(member.names, member.pattern, topics)
            member.topics = found[wish]
        self._topics = topics
        wanted = frozenset().union(*(it.topics for it in self.members.values()))
        partitions = {topic.id: topic.partitions for topic in topics.values() if topic.id in wanted}
        if changed is not None or partitions != self.partitions:
            self.partitions = partitions
            self.epoch += 1
            self.version += 1

    def _assign(self) -> None:
        self.assignor = preferred(it.assignor for it in self.members.values())
        members = [Subscriber(it.id, it.instance or it.id, it.topics, it.target) for it in self.members.values()]
        for id, target in ASSIGNORS[self.assignor](members, self.partitions).items():
            self.members[id].target = target
        self.assignment_epoch = self.epoch
        self.version += 1

    def _reconcile(self, member: Member, request: HeartbeatRequest, now: float) -> None:
        """One step towards the target."""
        joins, owned = request.epoch == JOIN, request.owned
        if member.revoking:
            # Who says an older epoch has not heard of it, and may yet begin with what it heard before.
            heard = joins or request.epoch == member.epoch
            if owned is None or owned & member.revoking or not heard:
                return
            self._free(member, member.revoking)
            member.revoking, member.revoke_until = NOTHING, float("inf")
        elif member.epoch == self.assignment_epoch and member.assigned == member.target:
            return
        excess = member.assigned - member.target
        kept = member.assigned & member.target
        if excess and not joins:
            member.assigned, member.revoking = kept, excess
            member.revoke_until = now + member.rebalance_seconds
            member.step(min(member.epoch + 1, self.assignment_epoch))
            self.version += 1
            return
        self._free(member, excess)
        gained = frozenset(it for it in member.target - kept if it not in self._owners)
        for partition in gained:
            self._owners[partition] = member.id
        if excess or gained or member.epoch != self.assignment_epoch:
            member.assigned = kept | gained
            member.step(self.assignment_epoch)
            self.version += 1

    def _free(self, member: Member, partitions: Iterable[Partition]) -> None:
        for partition in partitions:
            if self._owners.get(partition) == member.id:
                del self._owners[partition]

    # Members that go

    def static(self, instance: str) -> Member | None:
        """The member with that instance id."""
        id = self._instances.get(instance)
        return None if id is None else self.members[id]

    def _leave(self, request: HeartbeatRequest, now: float) -> HeartbeatReply:
        member = self._named(request)
        if request.epoch == LEAVE_FOR_NOW:
            self._free(member, member.revoking)
            member.revoking, member.revoke_until = NOTHING, float("inf")
            member.epoch = member.previous = LEAVE_FOR_NOW
            member.deadline = now + self.session_seconds
            self.version += 1
        else:
            self._remove(member)
        return HeartbeatReply(ErrorCode.none, member.id, request.epoch)

    def _remove(self, member: Member) -> None:
        """Whoever sends the next heartbeat finds new targets."""
        self._free(member, member.assigned | member.revoking)
        del self.members[member.id]
        if member.instance is not None:
            del self._instances[member.instance]
        self.epoch += 1
        self.version += 1

    def tick(self, now: float) -> bool:
        """See `groups.group.Group`: sessions end, and so does the time to give partitions up."""
        gone = [it for it in self.members.values() if now >= min(it.deadline, it.revoke_until)]
        for member in gone:
            self._remove(member)
        return bool(gone)

    def next_deadline(self) -> float:
        """See `groups.group.Group`."""
        return min((min(it.deadline, it.revoke_until) for it in self.members.values()), default=float("inf"))

    def disband(self, error: ErrorCode) -> None:
        """See `groups.group.Group`. Nobody waits here."""
        self._dead = True

    # Offsets

    def may_commit(self, member: str, instance: str | None, epoch: int, now: float) -> ErrorCode:
        """See `groups.group.Group`."""
        return ErrorCode.none if epoch < 0 and not self.members else self._in_epoch(member, epoch)

    def may_read(self, member: str | None, epoch: int) -> ErrorCode:
        """See `groups.group.Group`."""
        return ErrorCode.none if not member and epoch < 0 else self._in_epoch(member or "", epoch)

    def _in_epoch(self, id: str, epoch: int) -> ErrorCode:
        member = self.members.get(id)
        if member is None:
            return ErrorCode.unknown_member_id
        return ErrorCode.none if epoch == member.epoch else ErrorCode.stale_member_epoch

    def subscribed(self) -> frozenset[UUID]:
        """Topics that a member is subscribed to."""
        return frozenset().union(*(it.topics for it in self.members.values()))

    # What is kept

    def save(self) -> str:
        """As JSON."""
        return json.dumps(
            {
                "kind": self.kind, "epoch": self.epoch, "assignmentEpoch": self.assignment_epoch, "assignor": self.assignor,
                "emptyMs": self.empty_ms,
                "partitions": {topic.hex: count for topic, count in self.partitions.items()},
                "members": [
                    {
                        "id": it.id, "instance": it.instance, "rack": it.rack, "client": it.client, "host": it.host,
                        "rebalance": it.rebalance_seconds, "names": sorted(it.names), "pattern": it.pattern,
                        "assignor": it.assignor, "epoch": it.epoch, "previous": it.previous,
                        "topics": sorted(topic.hex for topic in it.topics), "assigned": _written(it.assigned),
                        "revoking": _written(it.revoking), "target": _written(it.target),
                    }
                    for it in self.members.values()
                ],
            }
        )  # fmt: skip

    def load(self, text: str, now: float) -> None:
        """From JSON. Members have a whole session to be heard of, and as long as ever to give partitions up."""
        kept = json.loads(text)
        self.epoch, self.assignment_epoch, self.assignor = kept["epoch"], kept["assignmentEpoch"], kept["assignor"]
        self.empty_ms = kept.get("emptyMs")
        self.partitions = {UUID(topic): count for topic, count in kept["partitions"].items()}
        for it in kept["members"]:
            member = self.members[it["id"]] = Member(
                it["id"], it["instance"], it["rack"], it["client"], it["host"], it["rebalance"], frozenset(it["names"]),
                it["pattern"], it["assignor"], it["epoch"], it["previous"], _read(it["assigned"]), _read(it["revoking"]),
                _read(it["target"]), frozenset(map(UUID, it["topics"])), now + self.session_seconds,
            )  # fmt: skip
            if member.revoking:
                member.revoke_until = now + member.rebalance_seconds
            if member.instance is not None:
                self._instances[member.instance] = member.id
            for partition in member.assigned | member.revoking:
                self._owners[partition] = member.id


def _written(partitions: Partitions) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        found.setdefault(topic.hex, []).append(index)
    return found


def _read(kept: Mapping[str, Any]) -> Partitions:
    return frozenset(Partition(UUID(topic), index) for topic, indexes in kept.items() for index in indexes)


def _check(request: HeartbeatRequest) -> None:
    """What no group may take. Raises _RefusedError."""
    wrong = None
    if not request.member:
        wrong = "MemberId can't be empty."
    elif request.instance == "" or request.rack == "":
        wrong = "InstanceId and RackId can't be empty."
    elif request.epoch < LEAVE_FOR_NOW:
        wrong = f"MemberEpoch {request.epoch} is invalid."
    elif request.epoch == LEAVE_FOR_NOW and request.instance is None:
        wrong = "InstanceId can't be null."
    elif request.epoch == JOIN and request.rebalance_seconds is None:
        wrong = "RebalanceTimeoutMs must be provided in first request."
    elif request.epoch == JOIN and request.owned != NOTHING:
        wrong = "TopicPartitions must be empty when (re-)joining."
    elif request.epoch == JOIN and not request.names and not request.pattern:
        wrong = "SubscribedTopicNames or SubscribedTopicRegex must be set in first request."
    elif request.names is not None and sum(map(len, request.names)) > NAMES_CHARACTERS:
        wrong = f"SubscribedTopicNames have more than {NAMES_CHARACTERS} characters together."
    if wrong is not None:
        raise _RefusedError(ErrorCode.invalid_request, wrong)
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        raise _RefusedError(
            ErrorCode.unsupported_assignor, f"ServerAssignor {request.assignor} is none of {', '.join(ASSIGNORS)}."
        )
    if request.pattern:
        _compiled(request.pattern)


def _compiled(pattern: str) -> Any:
    """RE2's own form, whose time is linear in what it reads: Kafka's syntax (RE2/J). Raises _RefusedError."""
    if len(pattern) > PATTERN_CHARACTERS:
        raise _RefusedError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex has {len(pattern)} characters, more than {PATTERN_CHARACTERS}.",
        )
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PATTERN_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise _RefusedError(
            ErrorCode.invalid_regular_expression, f"SubscribedTopicRegex is not valid: {error.args[0].decode()}"
        ) from error


def _subscribed(names: frozenset[str], pattern: str | None, topics: Mapping[str, Topic]) -> frozenset[UUID]:
    found = {topics[name].id for name in names if name in topics}
    if pattern is not None:
        matches = _compiled(pattern).fullmatch
        found.update(topic.id for name, topic in topics.items() if matches(name))
    return frozenset(found)
