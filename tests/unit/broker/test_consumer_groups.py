"""The consumer group protocol of KIP-848, step by step, without a broker."""

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from firn_broker.access.authorizer import Sight
from firn_broker.access_types import Caller, Operation, ResourceType
from firn_broker.groups.consumer import Group, HeartbeatReply, HeartbeatRequest, Partitions, State
from firn_broker.log_types import Partition, Topic

NONE = ErrorCode.none
SESSION, REBALANCE = 45.0, 60.0


def topic(number: int, name: str, partitions: int) -> Topic:
    return Topic(UUID(int=number), name, partitions)


def parts(*indexes: int, topic: int = 1) -> Partitions:
    return frozenset(Partition(UUID(int=topic), index) for index in indexes)


class Play:
    """A group, its time, and topic ``t`` with four partitions."""

    def __init__(self, **more: Any) -> None:
        self.group = Group("g", SESSION, **{"max_members": 10, **more})
        self.now = 0.0
        self.topics = {"t": topic(1, "t", 4)}

    def beat(self, member: str, epoch: int, **more: Any) -> HeartbeatReply:
        return self.group.heartbeat(HeartbeatRequest(member, epoch, **more), self.topics, self.now)

    def join(self, member: str, **more: Any) -> HeartbeatReply:
        fields = {"rebalance_seconds": REBALANCE, "names": frozenset({"t"}), "owned": frozenset(), **more}
        return self.beat(member, 0, **fields)

    def after(self, seconds: float) -> None:
        """Advance the time, and reach every deadline on the way."""
        end = self.now + seconds
        while (deadline := self.group.next_deadline()) <= end:
            self.now = max(self.now, deadline)
            self.group.tick(self.now)
        self.now = end

    def state(self) -> State:
        """Return the state of the group. This is a call, because a type checker remembers the value of a property."""
        return self.group.state

    def pair(self) -> tuple[Partitions, Partitions]:
        """Return members m and n, who share t in epoch 2."""
        self.join("m")
        self.join("n")
        left = self.beat("m", 1).assignment
        assert left is not None
        self.beat("m", 2, owned=left)
        given = self.beat("n", 2).assignment
        assert given is not None
        assert self.group.state is State.STABLE
        return left, given


def test_the_first_member_gets_every_partition() -> None:
    play = Play()
    assert play.state() is State.EMPTY
    reply = play.join("m")
    assert reply == HeartbeatReply(NONE, "m", 1, parts(0, 1, 2, 3))
    assert play.state() is State.STABLE
    assert play.beat("m", 1, owned=parts(0, 1, 2, 3)) == HeartbeatReply(NONE, "m", 1), "nothing changes"


def test_a_partition_moves_after_its_old_owner_revoked_it() -> None:
    play = Play()
    play.join("m")
    assert play.join("n") == HeartbeatReply(NONE, "n", 2, frozenset()), "the member is in the group, and waits"
    assert play.state() is State.RECONCILING
    reply = play.beat("m", 1)
    assert (reply.epoch, len(reply.assignment or ())) == (2, 2)
    assert reply.assignment is not None
    rest = parts(0, 1, 2, 3) - reply.assignment
    assert play.beat("n", 2).assignment is None
    assert play.beat("m", 2).assignment is None, "without a list of owned partitions the member has revoked none"
    assert play.beat("n", 2).assignment is None
    play.beat("m", 2, owned=reply.assignment | set(list(rest)[:1]))
    assert play.beat("n", 2).assignment is None, "some partitions are left"
    play.beat("m", 1, owned=reply.assignment)
    assert play.beat("n", 2).assignment is None, "a member in its earlier epoch has not received the assignment"
    play.beat("m", 2, owned=reply.assignment)
    assert play.beat("n", 2).assignment == rest
    assert play.state() is State.STABLE


def test_a_partition_is_revoked_before_its_first_read() -> None:
    """The member may have received the assignment, and may begin to read when the reply that revokes it is lost."""
    play = Play()
    play.join("m")
    play.join("n")
    reply = play.beat("m", 1, owned=frozenset())
    assert reply.assignment is not None
    assert play.beat("n", 2).assignment is None
    begun = play.beat("m", 1, owned=parts(0, 1, 2, 3), names=frozenset({"t"}), rebalance_seconds=REBALANCE)
    assert begun == reply, "the reply was lost, and the member may have begun to read"
    play.beat("m", 2, owned=reply.assignment)
    assert play.beat("n", 2).assignment == parts(0, 1, 2, 3) - reply.assignment


def test_a_member_that_leaves_releases_its_partitions() -> None:
    play = Play()
    play.pair()
    assert play.beat("m", -1) == HeartbeatReply(NONE, "m", -1)
    assert play.beat("n", 2).assignment == parts(0, 1, 2, 3)
    assert play.beat("m", 2).error is ErrorCode.unknown_member_id
    assert play.beat("n", -1).error is NONE
    assert play.state() is State.EMPTY


def test_a_member_without_heartbeats_for_a_session_is_removed() -> None:
    play = Play()
    play.pair()
    play.after(SESSION - 1)
    play.beat("n", 2)
    play.after(2)
    assert list(play.group.members) == ["n"]
    assert play.beat("n", 2).assignment == parts(0, 1, 2, 3)


def test_a_member_that_does_not_release_in_time_is_removed() -> None:
    play = Play()
    play.join("m", rebalance_seconds=20.0)
    play.join("n")
    play.beat("m", 1)
    for _ in range(3):
        play.after(6)
        assert play.beat("m", 2).error is NONE
        assert play.beat("n", 2).error is NONE
    play.after(2)
    assert play.beat("m", 2).error is ErrorCode.unknown_member_id
    assert play.beat("n", 2).assignment == parts(0, 1, 2, 3)


def test_a_member_that_missed_a_reply_continues() -> None:
    play = Play()
    play.join("m")
    reply = play.beat("m", 1) if play.join("n").error is NONE else None
    assert reply is not None
    assert reply.assignment is not None
    again = play.beat("m", 1, owned=reply.assignment, names=frozenset({"t"}), rebalance_seconds=REBALANCE)
    assert again == HeartbeatReply(NONE, "m", 2, reply.assignment), "a full heartbeat gets a full reply"


def test_a_join_with_a_lost_reply_may_be_repeated() -> None:
    play = Play()
    assert play.join("m") == play.join("m") == HeartbeatReply(NONE, "m", 1, parts(0, 1, 2, 3))
    assert play.group.epoch == 1


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_restarted_member_is_accepted_in_any_epoch(steps: int) -> None:
    """The member was fenced, or replies to its joins were lost."""
    play = Play()
    play.join("m")
    play.join("n")
    for _ in range(steps):
        play.beat("m", 1, owned=frozenset())
        play.topics = {"t": topic(1, "t", play.topics["t"].partitions + 2)}
    again = play.join("m")
    assert again.error is NONE
    assert again.assignment is not None
    assert play.beat("n", 2).error is NONE
    play.beat("m", again.epoch, owned=again.assignment)
    rest = play.beat("n", play.group.members["n"].epoch, owned=frozenset()).assignment or frozenset()
    given = {*play.group.members["m"].assigned, *play.group.members["n"].assigned, *rest}
    assert len(given) == play.topics["t"].partitions, "no partition waits for those that m has revoked"


@pytest.mark.parametrize("epoch", [1, 4])
def test_a_member_in_another_epoch_is_fenced(epoch: int) -> None:
    play = Play()
    left, _ = play.pair()
    play.topics = {"t": topic(1, "t", 6)}
    assert play.beat("m", 2).epoch == 3
    owned = left if epoch == 4 else parts(0, 1, 2, 3)
    assert play.beat("m", epoch, owned=owned).error is ErrorCode.fenced_member_epoch
    assert play.beat("m", 3).error is NONE


def test_an_old_heartbeat_revokes_nothing() -> None:
    play = Play()
    play.join("m", names=frozenset({"t"}))
    play.topics = {"t": topic(1, "t", 6)}
    assert play.beat("m", 1, owned=parts(0, 1, 2, 3)).assignment == parts(0, 1, 2, 3, 4, 5)
    play.join("n")
    reply = play.beat("m", 2, owned=parts(0, 1, 2, 3, 4, 5))
    assert reply.assignment is not None
    late = play.beat("m", 1, owned=reply.assignment & parts(0, 1, 2, 3))
    assert late.error is ErrorCode.fenced_member_epoch
    assert play.beat("n", 3).assignment is None


def test_new_partitions_are_assigned_and_deleted_ones_revoked() -> None:
    play = Play()
    play.join("m", names=frozenset({"t", "u"}))
    play.topics = {"t": topic(1, "t", 5), "u": topic(2, "u", 1)}
    grown = play.beat("m", 1)
    assert grown.assignment == parts(0, 1, 2, 3, 4) | parts(0, topic=2)
    assert grown.epoch == 2
    play.topics = {**play.topics, "other": topic(3, "other", 1)}
    assert play.beat("m", 2) == HeartbeatReply(NONE, "m", 2), "no member subscribes to it"
    play.topics = {"u": topic(4, "u", 2)}
    gone = play.beat("m", 2)
    assert gone.assignment == frozenset(), (
        "u is another topic now, and is assigned after the other partitions are revoked"
    )
    assert play.beat("m", gone.epoch, owned=frozenset()).assignment == parts(0, 1, topic=4)


def test_a_pattern_subscribes_to_matching_topics() -> None:
    play = Play()
    play.topics = {"t-1": topic(1, "t-1", 1), "not-t-1": topic(2, "not-t-1", 1)}
    assert play.join("m", names=None, pattern="t-.*").assignment == parts(0, topic=1)
    play.topics = {**play.topics, "t-2": topic(3, "t-2", 1)}
    assert play.beat("m", 1).assignment == parts(0, topic=1) | parts(0, topic=3)
    assert play.beat("m", 2, names=frozenset({"not-t-1"}), pattern="").assignment == frozenset()
    assert play.beat("m", 3, owned=frozenset()).assignment == parts(0, topic=2)


class Rights:
    """Lets callers describe topics."""

    def __init__(self) -> None:
        self.seen: dict[str, set[str]] = {"m": {"t-1"}, "n": {"t-1"}}

    def allows(self, caller: Caller, operation: Operation, type: ResourceType, name: str) -> bool:
        return operation is Operation.DESCRIBE and name in self.seen[caller.principal]

    def sight(self, member: str, version: int) -> Sight:
        rights: Any = self
        return Sight(Caller(member, "host"), version, rights)


def test_a_pattern_subscribes_each_member_to_topics_that_it_may_describe() -> None:
    play, rights = Play(), Rights()
    play.topics = {"t-1": topic(1, "t-1", 1), "t-2": topic(2, "t-2", 1)}
    assert play.join("m", names=None, pattern="t-.*", sight=rights.sight("m", 1)).assignment == parts(0, topic=1)
    rights.seen["n"] = {"t-2"}
    assert play.join("n", names=None, pattern="t-.*", sight=rights.sight("n", 1)).assignment == parts(0, topic=2)
    # Both see both topics: the topics of the group stay the same, but those of its members do not.
    rights.seen["m"] = rights.seen["n"] = {"t-1", "t-2"}
    epoch = play.group.epoch
    assert play.beat("m", 1, sight=rights.sight("m", 1)).epoch == epoch
    assert play.group.epoch == epoch
    assert play.beat("m", epoch, sight=rights.sight("m", 2)).epoch == epoch + 1
    assert play.group.epoch == epoch + 1
    assert play.group.members["m"].topics == {UUID(int=1), UUID(int=2)}


def test_a_loaded_member_keeps_its_topics_until_its_heartbeat() -> None:
    play, rights = Play(), Rights()
    play.topics = {"t-1": topic(1, "t-1", 1), "t-2": topic(2, "t-2", 1)}
    for member in ("m", "n"):
        play.join(member, names=None, pattern="t-.*", sight=rights.sight(member, 1))
    play.group, stored = Group("g", SESSION, max_members=10), play.group.snapshot()()
    play.group.load(stored, 0.0)
    play.topics = {**play.topics, "t-3": topic(3, "t-3", 1)}
    rights.seen["m"] = rights.seen["n"] = {"t-1", "t-3"}
    play.beat("m", play.group.members["m"].epoch, sight=rights.sight("m", 1))
    assert play.group.members["n"].topics == {UUID(int=1)}
    play.beat("n", play.group.members["n"].epoch, sight=rights.sight("n", 1))
    assert play.group.members["n"].topics == {UUID(int=1), UUID(int=3)}
    play.group.load(stored, 0.0)
    play.topics = {"t-2": play.topics["t-2"]}
    play.beat("m", play.group.members["m"].epoch, sight=rights.sight("m", 1))
    assert play.group.members["n"].topics == frozenset()


@pytest.mark.parametrize("pattern", ["(", "(?<=a)b", "a{2000}", "x" * 5000])
def test_an_invalid_pattern_is_rejected(pattern: str) -> None:
    play = Play()
    refused = play.join("m", pattern=pattern)
    assert refused.error is ErrorCode.invalid_regular_expression
    assert "SubscribedTopicRegex" in (refused.message or "")
    assert not play.group.members


def test_a_hostile_pattern_costs_little() -> None:
    """Backtracking would practically never end."""
    play = Play()
    play.topics = {name: topic(number, name, 1) for number, name in enumerate(["a" * 248 + "-", "a" * 249])}
    assert play.join("m", names=None, pattern="(a+)+").assignment == parts(0, topic=1)


def test_a_changed_subscription_changes_the_assignment() -> None:
    play = Play()
    play.topics["u"] = topic(2, "u", 2)
    play.join("m")
    reply = play.beat("m", 1, names=frozenset({"u"}))
    assert (reply.epoch, reply.assignment) == (2, frozenset())
    assert play.beat("m", 2, owned=frozenset()) == HeartbeatReply(NONE, "m", 2, parts(0, 1, topic=2))


def test_a_static_member_gets_its_partitions_back() -> None:
    play = Play()
    play.join("m", instance="i")
    play.join("n")
    left = play.beat("m", 1, instance="i").assignment
    assert left is not None
    play.beat("m", 2, instance="i", owned=left)
    assert play.beat("m", -2, instance="i") == HeartbeatReply(NONE, "m", -2)
    given = play.beat("n", 2).assignment
    assert given == parts(0, 1, 2, 3) - left, "no partition goes to others"
    assert play.join("m2", instance="i") == HeartbeatReply(NONE, "m2", 2, left)
    assert play.group.epoch == 2, "no other member notices"
    assert play.beat("m", 2, instance="i").error is ErrorCode.fenced_instance_id
    assert play.beat("m", 2).error is ErrorCode.unknown_member_id


def test_an_absent_static_member_is_removed_after_its_session() -> None:
    play = Play()
    play.join("m", instance="i")
    play.beat("m", -2, instance="i")
    assert play.beat("m", 1, instance="i").error is ErrorCode.fenced_member_epoch
    play.after(SESSION + 1)
    assert play.state() is State.EMPTY
    assert play.join("m2", instance="i").assignment == parts(0, 1, 2, 3)


def test_an_instance_id_has_one_member() -> None:
    play = Play()
    play.join("m", instance="i")
    assert play.join("n", instance="i").error is ErrorCode.unreleased_instance_id
    assert play.join("m").error is ErrorCode.fenced_instance_id
    assert play.beat("n", 1, instance="j").error is ErrorCode.unknown_member_id
    assert play.beat("m", 1, instance="i").error is NONE
    assert play.beat("m", -1, instance="i").error is NONE
    assert play.join("n", instance="i").error is NONE


def test_members_vote_for_the_assignor() -> None:
    play = Play()
    play.join("m", assignor="range")
    assert play.group.assignor == "range"
    play.join("n", assignor="uniform")
    play.join("o", assignor="range")
    reply = play.beat("m", 1)
    assert reply.assignment == parts(0, 1)
    refused = play.join("p", assignor="sticky")
    assert refused.error is ErrorCode.unsupported_assignor


@pytest.mark.parametrize(
    ("epoch", "fields"),
    [
        (0, {"rebalance_seconds": None}), (0, {"owned": parts(0)}), (0, {"owned": None}), (0, {"names": None}),
        (0, {"names": frozenset()}), (0, {"names": frozenset({"x" * 2_000_000})}), (0, {"instance": ""}), (0, {"rack": ""}), (-2, {}), (-3, {}),
    ],
)  # fmt: skip
def test_inconsistent_heartbeats_are_rejected(epoch: int, fields: dict[str, Any]) -> None:
    play = Play()
    base = {"rebalance_seconds": REBALANCE, "names": frozenset({"t"}), "owned": frozenset()}
    refused = play.beat("m", epoch, **{**base, **fields})
    assert (refused.error, bool(refused.message)) == (ErrorCode.invalid_request, True)
    assert play.beat("", 0, **base).error is ErrorCode.invalid_request
    assert not play.group.members
    assert play.group.version == 0


def test_the_number_of_members_is_bounded() -> None:
    play = Play(max_members=1)
    play.join("m")
    assert play.join("n").error is ErrorCode.group_max_size_reached
    assert play.join("m").error is NONE


def test_only_members_in_their_epoch_commit_offsets() -> None:
    play = Play()
    commit = play.group.may_commit
    assert commit("", None, -1, 0) is NONE, "a manual commit to an empty group"
    play.join("m")
    assert commit("m", None, 1, 0) is NONE
    assert commit("m", None, 0, 0) is ErrorCode.stale_member_epoch
    assert commit("n", None, 1, 0) is ErrorCode.unknown_member_id
    assert commit("", None, -1, 0) is ErrorCode.unknown_member_id
    read = play.group.may_read
    assert read(None, -1) is NONE
    assert read("m", 1) is NONE
    assert read("m", 2) is ErrorCode.stale_member_epoch
    assert read("n", 1) is ErrorCode.unknown_member_id


def test_every_reply_is_in_the_stored_state() -> None:
    play = Play()
    play.join("m", instance="i", rack="r", client="c", host="/h", assignor="range", pattern="t.*")
    play.join("n")
    play.beat("m", 1, instance="i", client="c", host="/h")
    version = play.group.version
    loaded = Group("g", SESSION, 10)
    loaded.load(play.group.snapshot()(), 100.0)
    assert loaded.snapshot()() == play.group.snapshot()()
    assert loaded.state is State.RECONCILING
    assert loaded.next_deadline() == 100 + SESSION
    play.beat("m", 1, instance="i", client="c", host="/h")
    assert play.group.version == version, "no reply was sent, so no state has to be stored"
    play.group = loaded
    play.now = 100.0
    left = loaded.members["m"].assigned
    assert play.beat("m", 2, instance="i", owned=left).epoch == 2
    assert play.beat("n", 2).assignment == parts(0, 1, 2, 3) - left
    assert loaded.epoch == 2, "another broker computes no new targets"
