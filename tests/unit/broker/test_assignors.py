"""Assignments of partitions are even, sticky and within subscriptions."""

from random import Random
from uuid import UUID

import pytest

from firn_broker.groups.assignors import Assignment, Subscriber, preferred, range_, uniform
from firn_broker.log_types import Partition

A, B, C = UUID(int=1), UUID(int=2), UUID(int=3)


def member(id: str, *topics: UUID, before: frozenset[Partition] = frozenset()) -> Subscriber:
    return Subscriber(id, id, frozenset(topics), before)


def parts(topic: UUID, *indexes: int) -> frozenset[Partition]:
    return frozenset(Partition(topic, index) for index in indexes)


def after(members: list[Subscriber], assignment: Assignment) -> list[Subscriber]:
    """Return the members with the partitions of an assignment."""
    return [
        Subscriber(subscriber.id, subscriber.order, subscriber.topics, assignment[subscriber.id])
        for subscriber in members
    ]


def test_uniform_gives_everyone_the_same_number() -> None:
    assignment = uniform([member("m", A, B), member("n", A, B)], {A: 3, B: 4})
    assert sorted(map(len, assignment.values())) == [3, 4]
    assert assignment["m"] | assignment["n"] == parts(A, 0, 1, 2) | parts(B, 0, 1, 2, 3)


def test_uniform_moves_the_fewest_partitions() -> None:
    members = after(two := [member("m", A), member("n", A)], uniform(two, {A: 6}))
    assignment = uniform([*members, member("o", A)], {A: 6})
    assert [len(assignment[id]) for id in "mno"] == [2, 2, 2]
    assert all(assignment[subscriber.id] < subscriber.before for subscriber in members)
    left = uniform(after([*members, member("o", A)], assignment)[1:], {A: 6})
    assert all(assignment[id] < left[id] for id in "no")


def test_uniform_respects_subscriptions() -> None:
    assignment = uniform([member("m", A, B), member("n", B), member("o")], {A: 2, B: 4})
    assert (len(assignment["m"]), len(assignment["n"]), len(assignment["o"])) == (3, 3, 0)
    assert parts(A, 0, 1) < assignment["m"]
    assert assignment["n"] < parts(B, 0, 1, 2, 3)


def test_partitions_of_a_former_subscriber_go_to_others() -> None:
    assignment = uniform([member("m", A, before=parts(A, 0) | parts(B, 0)), member("n", A, B)], {A: 1, B: 1})
    assert assignment == {"m": parts(A, 0), "n": parts(B, 0)}


def test_partitions_that_no_longer_exist_are_not_assigned() -> None:
    assert uniform([member("m", A, B, before=parts(A, 5) | parts(B, 0))], {A: 1}) == {"m": parts(A, 0)}


def test_range_gives_the_same_numbers_of_each_topic_to_the_same_member() -> None:
    assignment = range_([member("n", A, B), member("m", A, B)], {A: 3, B: 3})
    assert assignment == {"m": parts(A, 0, 1) | parts(B, 0, 1), "n": parts(A, 2) | parts(B, 2)}


def test_range_leaves_members_without_partitions_if_it_must() -> None:
    assert range_([member("m", A), member("n", A)], {A: 1}) == {"m": parts(A, 0), "n": frozenset()}


def test_most_members_decide_and_uniform_is_the_default() -> None:
    assert preferred([]) == preferred([None]) == "uniform"
    assert preferred(["range", None, None]) == "range"
    assert preferred(["range", "uniform", "uniform"]) == "uniform"


@pytest.mark.parametrize("seed", range(100))
def test_any_assignment_is_complete_even_and_sticky(seed: int) -> None:
    chance = Random(seed)
    all_topics = [UUID(int=number) for number in range(1, 6)]
    same = chance.random() < 0.5
    members: list[Subscriber] = []
    topics: dict[UUID, int] = {}
    for _ in range(6):
        topics = {topic: chance.randrange(topics.get(topic, 0), 12) for topic in all_topics[: chance.randrange(1, 6)]}
        members = [subscriber for subscriber in members if chance.random() < 0.8]
        members += [
            member(f"m{chance.random()}", *(all_topics if same else chance.sample(all_topics, chance.randrange(6))))
            for _ in range(chance.randrange(4))
        ]
        if not members:
            continue
        for assign in (range_, uniform):
            assignment = assign(members, topics)
            owned = [partition for share in assignment.values() for partition in share]
            wanted = {topic for subscriber in members for topic in subscriber.topics}
            assert len(owned) == len(set(owned))
            assert set(owned) == {
                Partition(topic, n) for topic in topics if topic in wanted for n in range(topics[topic])
            }
            assert all(
                {partition.topic for partition in assignment[subscriber.id]} <= subscriber.topics
                for subscriber in members
            )
        counts = {subscriber.id: len(assignment[subscriber.id]) for subscriber in members}
        if same:
            assert max(counts.values()) - min(counts.values()) <= 1
        for giver in members:
            for taker in members:
                could = any(partition.topic in taker.topics for partition in assignment[giver.id])
                assert not could or counts[giver.id] - counts[taker.id] <= 1, (giver, taker)
        members = after(members, assignment)
        assert uniform(members, topics) == assignment, "without a change no partition moves"
