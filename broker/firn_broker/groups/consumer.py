"""The consumer group protocol of KIP-848 as a state machine: members only send heartbeats, and the group assigns
partitions.

::

    heartbeat --> the member's subscription --> has it, or one of its topics, changed? --> group epoch + 1 --> new targets (assignors)
                                                                                                                   |
    answer: epoch, assignment  <-- one step of this member towards its target <------------------------------------+

One step (``CurrentAssignmentBuilder``):

- The group revokes the partitions that are not in the member's target, and increments the member's epoch. A heartbeat
  in that epoch has to confirm that the member owns none of them; after its rebalance timeout the member is removed.
  Kafka leaves the epoch as it is, and trusts a member that does not own the partitions before it knows of the
  revocation. If that reply is lost, such a member may still start to read the partitions of an earlier reply.
- Then the member moves to the target's epoch, and gets the partitions of its target that no other member owns. It gets
  the rest as other members release them.

So a partition has one owner at a time. It becomes free when its owner confirms the revocation, leaves, or times out.

- Epoch 0 joins, -1 leaves. A static member that sends -2 keeps its partitions for a session, for the process that
  returns with its instance id.
- A member in an older epoch has lost a reply. The group accepts the previous epoch if the owned partitions fit, and
  fences any other.
- A heartbeat must not be answered before `save` of that ``version`` is stored: a broker that loads the group must know
  all replies.

Source: KIP-848, ``GroupMetadataManager.java``.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar
from uuid import UUID

import re2
from kio.schema.errors import ErrorCode

from firn_broker.access.authorizer import Sight
from firn_broker.groups.assignors import ASSIGNORS, UNIFORM, Assignment, Subscriber, preferred
from firn_broker.groups.group import GROUP_BYTES, MEMBER_BYTES, PARTITION_BYTES, as_json
from firn_broker.log_types import Partition, Topic

JOIN, LEAVE, LEAVE_FOR_NOW = 0, -1, -2
"""Epochs with a special meaning in requests."""

NAMES_CHARACTERS = 1 << 20
"""Characters of all topic names to which a member subscribes. They are stored with the group (by Kafka in one
record)."""
PATTERN_CHARACTERS = 4096
PATTERN_BYTES = 1 << 20
"""Bounds of the length of a topic pattern and of the memory of its compiled form."""

COSTLY = 1_000
"""Members and partitions of a group together from which new targets take milliseconds to compute. Then they are not
computed for each member that joins, but once for all changes of an interval, outside the event loop."""

Partitions = frozenset[Partition]
NOTHING: Partitions = frozenset()


class State(StrEnum):
    """The states in ConsumerGroupDescribe and ListGroups."""

    EMPTY = "Empty"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    """The heartbeat of a member. A field that is None has not changed."""

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
    sight: Sight | None = None
    """The topics to which a pattern may subscribe the member; None for all."""

    @property
    def is_full(self) -> bool:
        """Return whether the heartbeat has all fields, as after an error; the reply has all fields then, too."""
        return self.epoch == JOIN or None not in (self.rebalance_seconds, self.names, self.owned)

    @property
    def subscription_bytes(self) -> int:
        """Return the bytes of the subscription that the heartbeat brings."""
        return sum(map(len, self.names or ())) + len(self.pattern or "")


@dataclass(frozen=True, slots=True)
class HeartbeatReply:
    """The reply to a heartbeat. ``assignment`` is None if it has not changed."""

    error: ErrorCode
    member: str
    epoch: int = 0
    assignment: Partitions | None = None
    message: str | None = None


class TargetsNeededError(Exception):
    """The group has taken a heartbeat, and needs new targets for the reply."""


class _RefusedError(Exception):
    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(slots=True)
class Member:
    """A member. It owns ``assigned``, and ``revoking`` until it confirms the revocation."""

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
    """The existing topics to which it is subscribed."""
    deadline: float = 0.0
    revoke_until: float = float("inf")
    subscription_bytes: int = 0
    sight: Sight | None = None
    """As in the last heartbeat. A loaded group does not know it."""

    def step(self, epoch: int) -> None:
        """Move to ``epoch``."""
        self.previous, self.epoch = self.epoch, epoch


@dataclass(frozen=True, slots=True)
class Plan:
    """All that new targets depend on, at one time."""

    epoch: int
    assignor: str
    members: Sequence[Member]
    subscribers: Sequence[Subscriber]
    partitions: Mapping[UUID, int]

    def compute(self) -> Assignment:
        """Compute the targets. May run in another thread."""
        return ASSIGNORS[self.assignor](self.subscribers, self.partitions)


@dataclass(slots=True)
class Group:
    """A group of the consumer protocol."""

    kind: ClassVar[str] = "consumer"
    protocol_type: ClassVar[str] = "consumer"

    name: str
    session_seconds: float
    max_members: int
    version: int = 0
    empty_ms: int | None = None
    epoch: int = 0
    assignment_epoch: int = 0
    """The epoch of the members' targets."""
    assignor: str = UNIFORM
    members: dict[str, Member] = field(default_factory=dict)
    partitions: dict[UUID, int] = field(default_factory=dict)
    """Numbers of partitions of all subscribed topics, from which the targets are computed."""
    _owners: dict[Partition, str] = field(default_factory=dict)
    _instances: dict[str, str] = field(default_factory=dict)
    _topics: Mapping[str, Topic] | None = None
    _dead: bool = False
    _written: dict[str, tuple[tuple[Any, ...], str]] = field(default_factory=dict)
    """The JSON of each member when it was last written, and the values that it is made of."""

    @property
    def state(self) -> State:
        """Return the state that clients are shown."""
        if self._dead:
            return State.DEAD
        if not self.members:
            return State.EMPTY
        if self.epoch > self.assignment_epoch:
            return State.ASSIGNING
        settled = all(
            member.epoch == self.epoch and member.assigned == member.target for member in self.members.values()
        )
        return State.STABLE if settled else State.RECONCILING

    @property
    def empty(self) -> bool:
        """Return whether the group has no members."""
        return not self.members and not self._dead

    @property
    def idle(self) -> bool:
        """Return whether the group has no members and expects none."""
        return self.empty

    # Heartbeats

    def heartbeat(
        self, request: HeartbeatRequest, topics: Mapping[str, Topic], now: float, *, may_wait: bool = False
    ) -> HeartbeatReply:
        """Let a member join, stay or leave. ``topics`` are all topics by name, in a mapping that is replaced when they
        change.

        With ``may_wait``, raises TargetsNeededError if new targets would take long to compute. The caller then computes them
        (`plan`, `assign`) and repeats the heartbeat.
        """
        try:
            _check(request)
            if request.epoch in (LEAVE, LEAVE_FOR_NOW):
                return self._leave(request, now)
            member = self._joining(request) if request.epoch == JOIN else self._existing(request)
        except _RefusedError as error:
            return HeartbeatReply(error.code, request.member, message=str(error))
        member.deadline = now + self.session_seconds
        member.client, member.host = request.client, request.host
        resubscribed = self._update(member, request)
        resighted = member.sight != request.sight and member.pattern is not None
        member.sight = request.sight
        if resubscribed or resighted or topics is not self._topics:
            self._update_topics(topics, member, resubscribed=resubscribed)
        if self.epoch > self.assignment_epoch:
            if len(self.members) + sum(self.partitions.values()) < COSTLY:
                plan = self.plan()
                self.assign(plan, plan.compute())
            elif may_wait:
                raise TargetsNeededError
        before = member.assigned
        self._reconcile(member, request, now)
        complete = request.is_full or member.assigned != before
        return HeartbeatReply(ErrorCode.none, member.id, member.epoch, member.assigned if complete else None)

    def _joining(self, request: HeartbeatRequest) -> Member:
        """Return the member that joins, which may be new."""
        member = self.members.get(request.member)
        held = None if request.instance is None else self.static(request.instance)
        if held is not None and (held.id != request.member or held.epoch == LEAVE_FOR_NOW):
            if held.epoch != LEAVE_FOR_NOW:
                raise _RefusedError(
                    ErrorCode.unreleased_instance_id, f"member {held.id} still has instance id {held.instance}"
                )
            if member is not None and member is not held:
                raise _RefusedError(ErrorCode.fenced_instance_id, f"member {member.id} has another instance id")
            return self._succeed(held, request.member)
        if member is not None:
            if member.instance != request.instance:
                raise _RefusedError(ErrorCode.fenced_instance_id, f"member {member.id} has another instance id")
            # In any epoch: a member that lost the reply, or was fenced, has released its partitions and starts again
            # (KAFKA-19233).
            return member
        if len(self.members) >= self.max_members:
            raise _RefusedError(
                ErrorCode.group_max_size_reached,
                f"group {self.name} already has {self.max_members} members, the maximum",
            )
        member = self.members[request.member] = Member(request.member, request.instance)
        if request.instance is not None:
            self._instances[request.instance] = member.id
        self.version += 1
        return member

    def _succeed(self, held: Member, id: str) -> Member:
        """Give the partitions of a static member to the process that returns with its instance id."""
        del self.members[held.id]
        held.id, held.epoch, held.previous = id, 0, 0
        self.members[id] = held
        assert held.instance is not None
        self._instances[held.instance] = id
        for partition in held.assigned:
            self._owners[partition] = id
        self.version += 1
        return held

    def _existing(self, request: HeartbeatRequest) -> Member:
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
                    ErrorCode.fenced_instance_id, f"member {held.id} has instance id {request.instance} now"
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
                f"member {member.id} is in epoch {member.epoch}, not {request.epoch}: it must release its partitions and join again",
            )

    def _update(self, member: Member, request: HeartbeatRequest) -> bool:
        """Take the changed fields of a heartbeat; return whether the subscription has changed."""
        before = member.names, member.pattern
        others = member.rack, member.rebalance_seconds, member.assignor
        if request.names is not None:
            member.names = request.names
            member.subscription_bytes = request.subscription_bytes
        if request.pattern is not None:
            member.pattern = request.pattern or None
        if request.rack is not None:
            member.rack = request.rack
        if request.rebalance_seconds is not None:
            member.rebalance_seconds = request.rebalance_seconds
        if request.assignor is not None:
            member.assignor = request.assignor
        if others != (member.rack, member.rebalance_seconds, member.assignor):
            self.version += 1
        return before != (member.names, member.pattern)

    def _update_topics(self, topics: Mapping[str, Topic], asking: Member, *, resubscribed: bool) -> None:
        """Increment the epoch if the subscription of ``asking`` is new, if it may describe other topics, or if subscribed
        topics were created, grown or deleted."""
        stale = self.members.values() if topics is not self._topics else (asking,)
        existing = frozenset() if asking.sight is None else frozenset(topic.id for topic in topics.values())
        moved = False
        matches: dict[tuple[frozenset[str], str | None, Sight | None], frozenset[UUID]] = {}
        for member in stale:
            if asking.sight is not None and member.sight is None and member.pattern is not None:
                # The group was loaded. Until its heartbeat, the member keeps the topics that it had.
                member.topics &= existing
                continue
            subscription = member.names, member.pattern, member.sight
            if subscription not in matches:
                matches[subscription] = _subscribed(*subscription, topics)
            moved = moved or member.topics != matches[subscription]
            member.topics = matches[subscription]
        self._topics = topics
        subscribed = self.subscribed()
        partitions = {topic.id: topic.partitions for topic in topics.values() if topic.id in subscribed}
        # ACLs may change the topics of members without a change of the group's topics.
        changed = resubscribed or (moved and asking.sight is not None)
        if changed or partitions != self.partitions:
            self.partitions = partitions
            self.epoch += 1
            self.version += 1

    def plan(self) -> Plan:
        """Return the plan for the targets of the present epoch."""
        members = list(self.members.values())
        return Plan(
            self.epoch,
            preferred(member.assignor for member in members),
            members,
            [Subscriber(member.id, member.instance or member.id, member.topics, member.target) for member in members],
            self.partitions,
        )

    def assign(self, plan: Plan, targets: Assignment) -> None:
        """Take the targets of a plan, unless newer ones are there. Members that joined since have none yet."""
        if plan.epoch <= self.assignment_epoch:
            return
        for member, subscriber in zip(plan.members, plan.subscribers, strict=True):
            # A static member may have another id by now.
            member.target = targets[subscriber.id]
        self.assignor, self.assignment_epoch = plan.assignor, plan.epoch
        self.version += 1

    def _reconcile(self, member: Member, request: HeartbeatRequest, now: float) -> None:
        """Move the member one step towards its target."""
        joins, owned = request.epoch == JOIN, request.owned
        if member.revoking:
            # A member in an older epoch does not know of the revocation, and may still start to read the partitions.
            informed = joins or request.epoch == member.epoch
            if owned is None or owned & member.revoking or not informed:
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
        gained = frozenset(partition for partition in member.target - kept if partition not in self._owners)
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

    # Members that leave

    def static(self, instance: str) -> Member | None:
        """Return the static member with that instance id."""
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
        """Remove the member. The next heartbeat of any member computes new targets."""
        self._free(member, member.assigned | member.revoking)
        del self.members[member.id]
        if member.instance is not None:
            del self._instances[member.instance]
        self.epoch += 1
        self.version += 1

    def tick(self, now: float) -> bool:
        """Remove members whose session or whose revocation has timed out."""
        expired = [member for member in self.members.values() if now >= min(member.deadline, member.revoke_until)]
        for member in expired:
            self._remove(member)
        return bool(expired)

    def next_deadline(self) -> float:
        """Return the time of the next deadline."""
        return min(
            (min(member.deadline, member.revoke_until) for member in self.members.values()), default=float("inf")
        )

    def disband(self, error: ErrorCode) -> None:
        """Mark the group as dead. No member waits for a reply."""
        self._dead = True

    # Offsets

    def may_commit(self, member: str, instance: str | None, epoch: int, now: float) -> ErrorCode:
        """Return the error for a commit by that member in that epoch."""
        return ErrorCode.none if epoch < 0 and not self.members else self._in_epoch(member, epoch)

    def may_read(self, member: str | None, epoch: int) -> ErrorCode:
        """Return the error for a member that fetches offsets in that epoch."""
        return ErrorCode.none if not member and epoch < 0 else self._in_epoch(member or "", epoch)

    def _in_epoch(self, id: str, epoch: int) -> ErrorCode:
        member = self.members.get(id)
        if member is None:
            return ErrorCode.unknown_member_id
        return ErrorCode.none if epoch == member.epoch else ErrorCode.stale_member_epoch

    def subscribed(self) -> frozenset[UUID]:
        """List the topics to which any member is subscribed."""
        return frozenset().union(*(member.topics for member in self.members.values()))

    # Stored state

    def sizes(self) -> Mapping[str, int]:
        """Return the approximate bytes of the group, by the address of its members."""
        sizes = {"": GROUP_BYTES}
        for member in self.members.values():
            partitions = len(member.assigned) + len(member.revoking) + len(member.target)
            size = MEMBER_BYTES + member.subscription_bytes + PARTITION_BYTES * partitions
            sizes[member.host] = sizes.get(member.host, 0) + size
        return sizes

    def snapshot(self) -> Callable[[], str]:
        """Return a function that writes the present state as JSON. It writes only members that have changed."""
        head = {
            "kind": self.kind, "epoch": self.epoch, "assignmentEpoch": self.assignment_epoch, "assignor": self.assignor,
            "emptyMs": self.empty_ms, "partitions": {topic.hex: count for topic, count in self.partitions.items()},
        }  # fmt: skip
        members = [
            (
                member.id, member.instance, member.rack, member.client, member.host, member.rebalance_seconds, member.names,
                member.pattern, member.assignor, member.epoch, member.previous, member.topics, member.assigned,
                member.revoking, member.target,
            )
            for member in self.members.values()
        ]  # fmt: skip

        def write() -> str:
            before, written = self._written, {}
            for values in members:
                last = before.get(values[0])
                # Sets that have not changed are the same objects, which are equal without a comparison.
                written[values[0]] = last if last and last[0] == values else (values, member_json(*values))
            self._written = written
            return as_json(head, (text for _, text in written.values()))

        return write

    def load(self, text: str, now: float) -> None:
        """Load the stored state. Session timeouts and revocation timeouts start again."""
        stored = json.loads(text)
        self.epoch, self.assignment_epoch = stored["epoch"], stored["assignmentEpoch"]
        self.assignor = stored["assignor"]
        self.empty_ms = stored.get("emptyMs")
        self.partitions = {UUID(topic): count for topic, count in stored["partitions"].items()}
        for entry in stored["members"]:
            member = self.members[entry["id"]] = Member(
                entry["id"], entry["instance"], entry["rack"], entry["client"], entry["host"], entry["rebalance"],
                frozenset(entry["names"]), entry["pattern"], entry["assignor"], entry["epoch"], entry["previous"],
                _read(entry["assigned"]), _read(entry["revoking"]), _read(entry["target"]),
                frozenset(map(UUID, entry["topics"])), now + self.session_seconds,
            )  # fmt: skip
            member.subscription_bytes = sum(map(len, member.names)) + len(member.pattern or "")
            if member.revoking:
                member.revoke_until = now + member.rebalance_seconds
            if member.instance is not None:
                self._instances[member.instance] = member.id
            for partition in member.assigned | member.revoking:
                self._owners[partition] = member.id


def member_json(
    id: str, instance: str | None, rack: str | None, client: str, host: str, rebalance: float, names: frozenset[str],
    *more: Any,
) -> str:  # fmt: skip
    """Return the stored form of a member, from the values that `Group.snapshot` takes from it."""
    pattern, assignor, epoch, previous, topics, assigned, revoking, target = more
    return json.dumps(
        {
            "id": id, "instance": instance, "rack": rack, "client": client, "host": host, "rebalance": rebalance,
            "names": sorted(names), "pattern": pattern, "assignor": assignor, "epoch": epoch, "previous": previous,
            "topics": sorted(topic.hex for topic in topics), "assigned": _by_topic(assigned),
            "revoking": _by_topic(revoking), "target": _by_topic(target),
        }
    )  # fmt: skip


def _by_topic(partitions: Partitions) -> dict[str, list[int]]:
    indexes: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        indexes.setdefault(topic.hex, []).append(index)
    return indexes


def _read(stored: Mapping[str, Any]) -> Partitions:
    return frozenset(Partition(UUID(topic), index) for topic, indexes in stored.items() for index in indexes)


def _check(request: HeartbeatRequest) -> None:
    """Check what holds for every group. Raises _RefusedError."""
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
    """Compile a pattern with RE2, which has Kafka's syntax (RE2/J) and matches in linear time. Raises _RefusedError."""
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


def _subscribed(
    names: frozenset[str], pattern: str | None, sight: Sight | None, topics: Mapping[str, Topic]
) -> frozenset[UUID]:
    subscribed = {topics[name].id for name in names if name in topics}
    if pattern is not None:
        matches = _compiled(pattern).fullmatch
        subscribed.update(
            topic.id for name, topic in topics.items() if matches(name) and (sight is None or sight.sees(name))
        )
    return frozenset(subscribed)
