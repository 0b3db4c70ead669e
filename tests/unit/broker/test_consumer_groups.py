"""The consumer group protocol of KIP-848, step by step, without a broker."""

from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

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
        """Time goes on, with every deadline on its way."""
        end = self.now + seconds
        while (deadline := self.group.next_deadline()) <= end:
            self.now = max(self.now, deadline)
            self.group.tick(self.now)
        self.now = end

    def state(self) -> State:
        """The state of the group. A call, because a type checker remembers what a property was."""
        return self.group.state

    def pair(self) -> tuple[Partitions, Partitions]:
        """Members m and n, who share t, in epoch 2."""
        self.join("m")
        self.join("n")
        left = self.beat("m", 1).assignment
        assert left is not None
        self.beat("m", 2, owned=left)
        given = self.beat("n", 2).assignment
        assert given is not None
        assert self.group.state is State.STABLE
        return left, given


def test_the_first_member_gets_everything() -> None:
    play = Play()
    assert play.state() is State.EMPTY
    reply = play.join("m")
    assert reply == HeartbeatReply(NONE, "m", 1, parts(0, 1, 2, 3))
    assert play.state() is State.STABLE
    assert play.beat("m", 1, owned=parts(0, 1, 2, 3)) == HeartbeatReply(NONE, "m", 1), "nothing is new"


def test_a_partition_goes_to_its_new_owner_when_the_old_one_gave_it_up() -> None:
    play = Play()
    play.join("m")
    assert play.join("n") == HeartbeatReply(NONE, "n", 2, frozenset()), "in the group, and waiting"
    assert play.state() is State.RECONCILING
    told = play.beat("m", 1)
    assert (told.epoch, len(told.assignment or ())) == (2, 2)
    assert told.assignment is not None
    rest = parts(0, 1, 2, 3) - told.assignment
    assert play.beat("n", 2).assignment is None
    assert play.beat("m", 2).assignment is None, "it says nothing of what it owns: it has not given anything up"
    assert play.beat("n", 2).assignment is None
    play.beat("m", 2, owned=told.assignment | set(list(rest)[:1]))
    assert play.beat("n", 2).assignment is None, "not all"
    play.beat("m", 1, owned=told.assignment)
    assert play.beat("n", 2).assignment is None, "in its epoch of before it has not heard of it"
    play.beat("m", 2, owned=told.assignment)
    assert play.beat("n", 2).assignment == rest
    assert play.state() is State.STABLE


def test_a_member_that_never_read_a_partition_learns_of_its_revocation_first() -> None:
    """It may have heard of it, and begin just when the answer is lost that takes it away."""
    play = Play()
    play.join("m")
    play.join("n")
    told = play.beat("m", 1, owned=frozenset())
    assert told.assignment is not None
    assert play.beat("n", 2).assignment is None
    begun = play.beat("m", 1, owned=parts(0, 1, 2, 3), names=frozenset({"t"}), rebalance_seconds=REBALANCE)
    assert begun == told, "the answer was lost, and it has begun"
    play.beat("m", 2, owned=told.assignment)
    assert play.beat("n", 2).assignment == parts(0, 1, 2, 3) - told.assignment


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


def test_a_member_that_missed_an_answer_goes_on() -> None:
    play = Play()
    play.join("m")
    told = play.beat("m", 1) if play.join("n").error is NONE else None
    assert told is not None
    assert told.assignment is not None
    again = play.beat("m", 1, owned=told.assignment, names=frozenset({"t"}), rebalance_seconds=REBALANCE)
    assert again == HeartbeatReply(NONE, "m", 2, told.assignment), "it says everything and is told everything"


def test_a_join_whose_answer_was_lost_is_answered_again() -> None:
    play = Play()
    assert play.join("m") == play.join("m") == HeartbeatReply(NONE, "m", 1, parts(0, 1, 2, 3))
    assert play.group.epoch == 1


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_member_that_starts_again_is_accepted_in_any_epoch(steps: int) -> None:
    """It was fenced, or some answers to its joins were lost."""
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
    assert len(given) == play.topics["t"].partitions, "nothing waits for what m has given up"


@pytest.mark.parametrize("epoch", [1, 4])
def test_a_member_in_another_epoch_is_fenced(epoch: int) -> None:
    play = Play()
    left, _ = play.pair()
    play.topics = {"t": topic(1, "t", 6)}
    assert play.beat("m", 2).epoch == 3
    owned = left if epoch == 4 else parts(0, 1, 2, 3)
    assert play.beat("m", epoch, owned=owned).error is ErrorCode.fenced_member_epoch
    assert play.beat("m", 3).error is NONE


def test_an_old_heartbeat_gives_nothing_up() -> None:
    play = Play()
    play.join("m", names=frozenset({"t"}))
    play.topics = {"t": topic(1, "t", 6)}
    assert play.beat("m", 1, owned=parts(0, 1, 2, 3)).assignment == parts(0, 1, 2, 3, 4, 5)
    play.join("n")
    told = play.beat("m", 2, owned=parts(0, 1, 2, 3, 4, 5))
    assert told.assignment is not None
    late = play.beat("m", 1, owned=told.assignment & parts(0, 1, 2, 3))
    assert late.error is ErrorCode.fenced_member_epoch
    assert play.beat("n", 3).assignment is None


def test_new_partitions_and_topics_are_assigned_and_deleted_ones_taken() -> None:
    play = Play()
    play.join("m", names=frozenset({"t", "u"}))
    play.topics = {"t": topic(1, "t", 5), "u": topic(2, "u", 1)}
    grown = play.beat("m", 1)
    assert grown.assignment == parts(0, 1, 2, 3, 4) | parts(0, topic=2)
    assert grown.epoch == 2
    play.topics = {**play.topics, "other": topic(3, "other", 1)}
    assert play.beat("m", 2) == HeartbeatReply(NONE, "m", 2), "nobody wants it"
    play.topics = {"u": topic(4, "u", 2)}
    gone = play.beat("m", 2)
    assert gone.assignment == frozenset(), "u is another topic now, and comes when the rest is given up"
    assert play.beat("m", gone.epoch, owned=frozenset()).assignment == parts(0, 1, topic=4)


def test_topics_by_pattern() -> None:
    play = Play()
    play.topics = {"t-1": topic(1, "t-1", 1), "not-t-1": topic(2, "not-t-1", 1)}
    assert play.join("m", names=None, pattern="t-.*").assignment == parts(0, topic=1)
    play.topics = {**play.topics, "t-2": topic(3, "t-2", 1)}
    assert play.beat("m", 1).assignment == parts(0, topic=1) | parts(0, topic=3)
    assert play.beat("m", 2, names=frozenset({"not-t-1"}), pattern="").assignment == frozenset()
    assert play.beat("m", 3, owned=frozenset()).assignment == parts(0, topic=2)


@pytest.mark.parametrize("pattern", ["(", "(?<=a)b", "a{2000}", "x" * 5000])
def test_a_pattern_that_is_none_is_refused(pattern: str) -> None:
    play = Play()
    refused = play.join("m", pattern=pattern)
    assert refused.error is ErrorCode.invalid_regular_expression
    assert "SubscribedTopicRegex" in (refused.message or "")
    assert not play.group.members


def test_a_hostile_pattern_costs_little() -> None:
    """Backtracking would take longer than the universe has."""
    play = Play()
    play.topics = {name: topic(number, name, 1) for number, name in enumerate(["a" * 248 + "-", "a" * 249])}
    assert play.join("m", names=None, pattern="(a+)+").assignment == parts(0, topic=1)


def test_a_subscription_that_changes_changes_the_assignment() -> None:
    play = Play()
    play.topics["u"] = topic(2, "u", 2)
    play.join("m")
    told = play.beat("m", 1, names=frozenset({"u"}))
    assert (told.epoch, told.assignment) == (2, frozenset())
    assert play.beat("m", 2, owned=frozenset()) == HeartbeatReply(NONE, "m", 2, parts(0, 1, topic=2))


def test_a_static_member_comes_back_to_its_partitions() -> None:
    play = Play()
    play.join("m", instance="i")
    play.join("n")
    left = play.beat("m", 1, instance="i").assignment
    assert left is not None
    play.beat("m", 2, instance="i", owned=left)
    assert play.beat("m", -2, instance="i") == HeartbeatReply(NONE, "m", -2)
    given = play.beat("n", 2).assignment
    assert given == parts(0, 1, 2, 3) - left, "nothing of it goes to others"
    assert play.join("m2", instance="i") == HeartbeatReply(NONE, "m2", 2, left)
    assert play.group.epoch == 2, "and nobody else notices"
    assert play.beat("m", 2, instance="i").error is ErrorCode.fenced_instance_id
    assert play.beat("m", 2).error is ErrorCode.unknown_member_id


def test_a_static_member_that_does_not_come_back_is_out_after_a_session() -> None:
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


def test_most_members_decide_on_the_assignor() -> None:
    play = Play()
    play.join("m", assignor="range")
    assert play.group.assignor == "range"
    play.join("n", assignor="uniform")
    play.join("o", assignor="range")
    told = play.beat("m", 1)
    assert told.assignment == parts(0, 1)
    refused = play.join("p", assignor="sticky")
    assert refused.error is ErrorCode.unsupported_assignor


@pytest.mark.parametrize(
    ("epoch", "fields"),
    [
        (0, {"rebalance_seconds": None}), (0, {"owned": parts(0)}), (0, {"owned": None}), (0, {"names": None}),
        (0, {"names": frozenset()}), (0, {"names": frozenset({"x" * 2_000_000})}), (0, {"instance": ""}), (0, {"rack": ""}), (-2, {}), (-3, {}),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(epoch: int, fields: dict[str, Any]) -> None:
    play = Play()
    base = {"rebalance_seconds": REBALANCE, "names": frozenset({"t"}), "owned": frozenset()}
    refused = play.beat("m", epoch, **{**base, **fields})
    assert (refused.error, bool(refused.message)) == (ErrorCode.invalid_request, True)
    assert play.beat("", 0, **base).error is ErrorCode.invalid_request
    assert not play.group.members
    assert play.group.version == 0


def test_members_are_bounded() -> None:
    play = Play(max_members=1)
    play.join("m")
    assert play.join("n").error is ErrorCode.group_max_size_reached
    assert play.join("m").error is NONE


def test_offsets_are_of_members_in_their_epoch() -> None:
    play = Play()
    commit = play.group.may_commit
    assert commit("", None, -1, 0) is NONE, "by hand, while nobody is in it"
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
    loaded.load(play.group.save(), 100.0)
    assert loaded.save() == play.group.save()
    assert loaded.state is State.RECONCILING
    assert loaded.next_deadline() == 100 + SESSION
    play.beat("m", 1, instance="i", client="c", host="/h")
    assert play.group.version == version, "nothing was told: nothing has to be kept"
    play.group = loaded
    play.now = 100.0
    left = loaded.members["m"].assigned
    assert play.beat("m", 2, instance="i", owned=left).epoch == 2
    assert play.beat("n", 2).assignment == parts(0, 1, 2, 3) - left
    assert loaded.epoch == 2, "another broker is no reason for new targets"
