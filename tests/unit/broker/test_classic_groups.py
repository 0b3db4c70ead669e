"""The classic group protocol, step by step, without a broker."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from firn_broker.groups.classic import PENDING_SECONDS, Group, JoinReply, JoinRequest, State, SyncReply

NONE = ErrorCode.none


class Future(asyncio.Future[Any]):
    """A future without a loop. The state machine sets it, and tests read it."""

    def __init__(self) -> None:
        super().__init__(loop=_LOOP)


_LOOP = asyncio.new_event_loop()


class Play:
    """A group and its time."""

    def __init__(self, initial: float = 0.0, members: int = 10) -> None:
        numbers = itertools.count()
        self.group = Group("g", initial, members, lambda client: f"{client}{next(numbers)}")
        self.now = 0.0

    def join(self, member: str = "", *, instance: str | None = None, two_steps: bool = False, **more: Any) -> Future:
        fields: dict[str, Any] = {
            "client": "m", "host": "/h", "session_seconds": 10.0, "rebalance_seconds": 30.0, "protocol_type": "consumer",
            "protocols": [("range", b"x"), ("sticky", b"y")], "skips_assignment": True,
        }  # fmt: skip
        future = Future()
        self.group.join(
            JoinRequest(member=member, instance=instance, known_id_required=two_steps, **{**fields, **more}),
            self.now,
            future,
        )
        return future

    def sync(
        self, member: str, generation: int, assignments: dict[str, bytes] | None = None, instance: str | None = None
    ) -> Future:
        future = Future()
        if self.group.sync(member, instance, generation, None, None, self.now, future):
            self.group.propose(assignments or {})
            self.group.assigned(generation, self.now)
        return future

    def after(self, seconds: float) -> None:
        """Advance the time, and reach every deadline on the way."""
        end = self.now + seconds
        while (deadline := self.group.next_deadline()) <= end:
            self.now = max(self.now, deadline)
            self.group.tick(self.now)
        self.now = end

    def stable(self, count: int) -> list[str]:
        """Return the ids of ``count`` members that have their assignments."""
        first: JoinReply = self.join().result()
        ids = [first.member]
        while len(ids) < count:
            joining = [self.join(), *(self.join(id) for id in ids)]
            ids = [reply.result().member for reply in joining]
        replies = (
            {reply.member: reply for reply in (self.join(id).result() for id in ids)}
            if count > 1
            else {first.member: first}
        )
        generation = self.group.generation
        leader = next(iter(replies.values())).leader
        for id in sorted(ids, key=lambda id_: id_ == leader):
            self.sync(id, generation, {id_: id_.encode() for id_ in ids})
        assert self.group.state is State.STABLE
        return ids


def failed(future: Future) -> ErrorCode:
    error: ErrorCode = future.result().error
    return error


def test_the_first_member_leads_and_gets_its_assignment() -> None:
    play = Play()
    reply: JoinReply = play.join().result()
    assert (reply.error, reply.generation, reply.leader, reply.protocol) == (NONE, 1, reply.member, "range")
    assert reply.members == [(reply.member, None, b"x")]
    synced: SyncReply = play.sync(reply.member, 1, {reply.member: b"all"}).result()
    assert (synced.error, synced.assignment) == (NONE, b"all")
    assert play.group.state is State.STABLE


def test_an_empty_group_waits_for_more_members() -> None:
    play = Play(initial=3.0)
    first = play.join()
    play.after(2)
    assert not first.done()
    second = play.join()
    play.after(2)
    assert not first.done(), "another member joined: wait again"
    play.after(2)
    assert first.result().generation == second.result().generation == 1
    assert {first.result().leader, second.result().leader} == {first.result().member}
    assert len(first.result().members) == 2
    assert second.result().members == []


def test_a_new_member_first_gets_its_id() -> None:
    play = Play()
    reply: JoinReply = play.join(two_steps=True).result()
    assert reply.error is ErrorCode.member_id_required
    joined: JoinReply = play.join(reply.member, two_steps=True).result()
    assert (joined.error, joined.member) == (NONE, reply.member)


@pytest.mark.parametrize("initial", [0.0, 3.0])
def test_the_first_rebalance_does_not_wait_for_pending_ids(initial: float) -> None:
    play = Play(initial=initial)
    play.join(two_steps=True)
    joined = play.join(play.join(two_steps=True).result().member, two_steps=True)
    play.after(initial)
    assert len(joined.result().members) == 1


def test_later_rebalances_wait_for_pending_ids() -> None:
    play = Play()
    (first,) = play.stable(1)
    member = play.join(two_steps=True).result().member
    again = play.join(first, protocols=[("range", b"other")])
    assert not again.done()
    assert play.join(member, two_steps=True).result().generation == again.result().generation
    assert len(again.result().members) == 2


def test_pending_ids_leave_room_for_members() -> None:
    play = Play(members=2)
    oldest, *_, newest = [play.join(two_steps=True).result().member for _ in range(5)]
    joined: JoinReply = play.join(newest, two_steps=True).result()
    assert (joined.error, joined.member) == (NONE, newest)
    assert failed(play.join(oldest, two_steps=True)) is ErrorCode.unknown_member_id, "only the newest ids are kept"
    later = [play.join(two_steps=True).result().member for _ in range(2)]
    joins = [play.join(id, two_steps=True) for id in later]
    assert failed(joins[1]) is ErrorCode.group_max_size_reached
    assert len(play.group.members) == 2


def test_ids_of_clients_that_never_join_delay_a_rebalance_briefly() -> None:
    play = Play()
    (first,) = play.stable(1)
    again = play.join(first, protocols=[("range", b"other")], rebalance_seconds=300.0)
    play.join(two_steps=True)
    again = play.join(first, protocols=[("range", b"third")], rebalance_seconds=300.0)
    for _ in range(20):
        play.join(two_steps=True, session_seconds=1800.0)
        play.after(PENDING_SECONDS / 10)
    assert again.done()


def test_an_unused_member_id_expires() -> None:
    play = Play()
    reply: JoinReply = play.join(two_steps=True).result()
    play.after(11)
    assert failed(play.join(reply.member)) is ErrorCode.unknown_member_id


def test_a_second_member_makes_the_first_join_again() -> None:
    play = Play()
    (first,) = play.stable(1)
    second = play.join()
    assert play.group.state is State.PREPARING
    assert play.group.heartbeat(first, None, 1, play.now) is ErrorCode.rebalance_in_progress
    assert not second.done()
    again = play.join(first)
    assert again.result().generation == second.result().generation == 2
    waiting = play.sync(second.result().member, 2)
    assert not waiting.done()
    assert play.sync(first, 2, {first: b"1", second.result().member: b"2"}).result().assignment == b"1"
    assert waiting.result().assignment == b"2"


def test_a_member_that_does_not_rejoin_is_removed() -> None:
    play = Play()
    (first,) = play.stable(1)
    second = play.join()
    play.group.heartbeat(first, None, 1, play.now)
    for _ in range(4):
        play.after(7)
        play.group.heartbeat(first, None, 1, play.now)
    assert not second.done()
    play.after(5)
    reply = second.result()
    assert (reply.generation, reply.leader, len(reply.members)) == (2, reply.member, 1)
    assert play.group.heartbeat(first, None, 1, play.now) is ErrorCode.unknown_member_id


def test_a_member_without_heartbeats_is_removed() -> None:
    play = Play()
    first, second = play.stable(2)
    play.after(9)
    assert play.group.heartbeat(first, None, play.group.generation, play.now) is NONE
    play.after(2)
    assert second not in play.group.members
    assert play.group.heartbeat(first, None, play.group.generation, play.now) is ErrorCode.rebalance_in_progress
    play.after(10)
    assert (play.group.state, play.group.members) == (State.EMPTY, {})


def test_removing_a_member_may_remove_another() -> None:
    play = Play()
    first, second, third = play.stable(3)
    # All members are equally late. The removal of the first one starts a rebalance, which ends at once and removes the
    # others.
    play.group._rebalance_end = play.now
    for id in (first, second, third):
        play.group.members[id].deadline = play.now + 40
        play.group.members[id].rebalance_seconds = 0.0
    play.after(50)
    assert not play.group.members


def test_a_member_that_leaves_is_out_at_once() -> None:
    play = Play()
    first, second = play.stable(2)
    assert play.group.leave(second, None, play.now) is NONE
    assert play.group.leave(second, None, play.now) is ErrorCode.unknown_member_id
    reply: JoinReply = play.join(first).result()
    assert len(reply.members) == 1


def test_the_last_member_to_leave_empties_the_group() -> None:
    play = Play()
    (first,) = play.stable(1)
    generation = play.group.generation
    play.group.leave(first, None, play.now)
    assert play.group.state is State.EMPTY
    assert play.group.generation > generation


def test_a_member_that_missed_the_reply_gets_it_again() -> None:
    play = Play()
    first: JoinReply = play.join().result()
    again: JoinReply = play.join(first.member).result()
    assert again.generation == first.generation == 1


def test_a_changed_subscription_rebalances() -> None:
    play = Play()
    first, second = play.stable(2)
    generation = play.group.generation
    follower = second if play.group.leader == first else first
    assert play.join(follower).result().generation == generation, "nothing changed"
    play.join(follower, protocols=[("range", b"other")])
    assert play.group.state is State.PREPARING


def test_the_leader_may_ask_for_a_rebalance() -> None:
    play = Play()
    play.stable(2)
    play.join(play.group.leader or "")
    assert play.group.state is State.PREPARING


def test_members_vote_among_protocols_that_all_support() -> None:
    play = Play(initial=1.0)
    joining = [
        play.join(protocols=[("a", b""), ("b", b""), ("c", b"")]),
        play.join(protocols=[("c", b""), ("b", b"")]),
        play.join(protocols=[("c", b""), ("b", b"")]),
    ]
    play.after(3)
    assert {reply.result().protocol for reply in joining} == {"c"}
    assert failed(play.join(protocols=[("z", b"")])) is ErrorCode.inconsistent_group_protocol
    assert failed(play.join(protocol_type="connect")) is ErrorCode.inconsistent_group_protocol


def test_wrong_generations_and_unknown_members_are_rejected() -> None:
    play = Play()
    (first,) = play.stable(1)
    assert play.group.heartbeat(first, None, 7, play.now) is ErrorCode.illegal_generation
    assert play.group.heartbeat("nobody", None, 1, play.now) is ErrorCode.unknown_member_id
    assert failed(play.sync(first, 7)) is ErrorCode.illegal_generation
    assert failed(play.join("nobody")) is ErrorCode.unknown_member_id


def test_a_full_group_accepts_no_member() -> None:
    play = Play(members=1)
    play.stable(1)
    assert failed(play.join()) is ErrorCode.group_max_size_reached


def test_a_static_member_rejoins_without_a_rebalance() -> None:
    play = Play()
    first: JoinReply = play.join(instance="a").result()
    play.sync(first.member, 1, {first.member: b"all"})
    again: JoinReply = play.join(instance="a").result()
    assert again.member != first.member
    assert (again.generation, again.leader, again.skip_assignment) == (1, again.member, True)
    assert play.sync(again.member, 1, instance="a").result().assignment == b"all"
    assert play.group.heartbeat(first.member, "a", 1, play.now) is ErrorCode.fenced_instance_id
    assert failed(play.join(first.member, instance="a")) is ErrorCode.fenced_instance_id


def test_an_old_static_leader_learns_that_another_leads() -> None:
    play = Play()
    first: JoinReply = play.join(instance="a").result()
    play.sync(first.member, 1, {first.member: b"all"})
    again: JoinReply = play.join(instance="a", skips_assignment=False).result()
    assert (again.leader, again.members) == (first.member, ())


def test_a_rejoining_static_member_updates_its_metadata() -> None:
    play = Play()
    first: JoinReply = play.join(instance="a").result()
    play.sync(first.member, 1, {first.member: b"all"})
    again: JoinReply = play.join(instance="a", protocols=[("range", b"generation 7"), ("sticky", b"z")]).result()
    assert (again.error, again.generation, again.skip_assignment) == (NONE, 1, True)
    assert again.members == [(again.member, "a", b"generation 7")]
    assert play.sync(again.member, 1, instance="a").result().assignment == b"all"


def test_a_static_member_that_changes_the_protocol_rebalances() -> None:
    play = Play()
    first: JoinReply = play.join(instance="a").result()
    play.sync(first.member, 1, {first.member: b"all"})
    again: JoinReply = play.join(instance="a", protocols=[("sticky", b"y"), ("range", b"x")]).result()
    assert (again.error, again.generation, again.protocol) == (NONE, 2, "sticky")
    assert play.group.state is State.COMPLETING


def test_a_static_member_may_leave_by_its_instance() -> None:
    play = Play()
    play.join(instance="a")
    assert play.group.leave("", "a", play.now) is NONE
    assert play.group.leave("", "a", play.now) is ErrorCode.unknown_member_id


def test_assignments_that_could_not_be_stored_are_repeated() -> None:
    play = Play()
    first: JoinReply = play.join().result()
    future = Future()
    assert play.group.sync(first.member, None, 1, None, None, play.now, future)
    play.group.propose({first.member: b"all"})
    play.group.unassigned(1, ErrorCode.coordinator_not_available, play.now)
    assert failed(future) is ErrorCode.coordinator_not_available
    assert play.group.state is State.PREPARING
    assert play.join(first.member).result().generation == 2


def test_a_saved_group_continues_on_another_broker() -> None:
    play = Play()
    first, second = play.stable(2)
    generation = play.group.generation
    kept = play.group.snapshot()()
    other = Play()
    other.group.load(kept, 0.0)
    assert other.group.state is State.STABLE
    assert other.group.heartbeat(first, None, generation, 1.0) is NONE
    assert other.sync(second, generation).result().assignment == second.encode()
    assert other.group.snapshot()() == kept


def test_a_rebalance_starts_again_on_another_broker() -> None:
    play = Play()
    first, second = play.stable(2)
    generation = play.group.generation
    play.join(first, protocols=[("range", b"other")])
    other = Play()
    other.group.load(play.group.snapshot()(), 0.0)
    assert other.group.heartbeat(second, None, generation, 1.0) is ErrorCode.rebalance_in_progress
    joined = [other.join(first), other.join(second)]
    assert {reply.result().generation for reply in joined} == {generation + 1}


def test_a_moved_group_keeps_the_newest_assignment_of_its_leader() -> None:
    play = Play()
    first: JoinReply = play.join().result()
    without = play.group.snapshot()()
    play.group.sync(first.member, None, 1, None, None, play.now, Future())
    play.group.propose({first.member: b"all"})
    other, later = Play(), Play()
    other.group.load(without, 0.0)
    assert other.group.state is State.PREPARING
    later.group.load(play.group.snapshot()(), 0.0)
    assert later.sync(first.member, 1).result().assignment == b"all"


@pytest.mark.parametrize("act", [lambda play, id: play.join(id), lambda play, id: play.sync(id, 1)])
def test_a_group_that_moved_answers_waiting_members(act: Callable[[Play, str], Future]) -> None:
    play = Play()
    first: JoinReply = play.join().result()
    second = play.join()
    assert not second.done()
    play.group.disband(ErrorCode.not_coordinator)
    assert failed(second) is ErrorCode.not_coordinator
    assert play.group.heartbeat(first.member, None, 1, play.now) is ErrorCode.unknown_member_id
