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


def after(members: list[Subscriber], found: Assignment) -> list[Subscriber]:
    """Return the members with the partitions of an assignment."""
    return [Subscriber(it.id, it.order, it.topics, found[it.id]) for it in members]


def test_uniform_gives_everyone_the_same_number() -> None:
    found = uniform([member("m", A, B), member("n", A, B)], {A: 3, B: 4})
    assert sorted(map(len, found.values())) == [3, 4]
    assert found["m"] | found["n"] == parts(A, 0, 1, 2) | parts(B, 0, 1, 2, 3)


def test_uniform_takes_no_more_than_it_must() -> None:
    members = after(two := [member("m", A), member("n", A)], uniform(two, {A: 6}))
    found = uniform([*members, member("o", A)], {A: 6})
    assert [len(found[id]) for id in "mno"] == [2, 2, 2]
    assert all(found[it.id] < it.before for it in members)
    left = uniform(after([*members, member("o", A)], found)[1:], {A: 6})
    assert all(found[id] < left[id] for id in "no")


def test_uniform_respects_subscriptions() -> None:
    found = uniform([member("m", A, B), member("n", B), member("o")], {A: 2, B: 4})
    assert (len(found["m"]), len(found["n"]), len(found["o"])) == (3, 3, 0)
    assert parts(A, 0, 1) < found["m"]
    assert found["n"] < parts(B, 0, 1, 2, 3)


def test_what_is_not_subscribed_to_any_more_goes_to_others() -> None:
    found = uniform([member("m", A, before=parts(A, 0) | parts(B, 0)), member("n", A, B)], {A: 1, B: 1})
    assert found == {"m": parts(A, 0), "n": parts(B, 0)}


def test_partitions_of_a_topic_that_shrank_or_went_are_nobodys() -> None:
    assert uniform([member("m", A, B, before=parts(A, 5) | parts(B, 0))], {A: 1}) == {"m": parts(A, 0)}


def test_range_gives_the_same_numbers_of_each_topic_to_the_same_member() -> None:
    found = range_([member("n", A, B), member("m", A, B)], {A: 3, B: 3})
    assert found == {"m": parts(A, 0, 1) | parts(B, 0, 1), "n": parts(A, 2) | parts(B, 2)}


def test_range_with_more_members_than_partitions() -> None:
    assert range_([member("m", A), member("n", A)], {A: 1}) == {"m": parts(A, 0), "n": frozenset()}


def test_most_members_decide_and_uniform_is_the_default() -> None:
    assert preferred([]) == preferred([None]) == "uniform"
    assert preferred(["range", None, None]) == "range"
    assert preferred(["range", "uniform", "uniform"]) == "uniform"


@pytest.mark.parametrize("seed", range(100))
def test_any_group_is_whole_even_and_sticky(seed: int) -> None:
    chance = Random(seed)
    all_topics = [UUID(int=number) for number in range(1, 6)]
    same = chance.random() < 0.5
    members: list[Subscriber] = []
    topics: dict[UUID, int] = {}
    for _ in range(6):
        topics = {topic: chance.randrange(topics.get(topic, 0), 12) for topic in all_topics[: chance.randrange(1, 6)]}
        members = [it for it in members if chance.random() < 0.8]
        members += [
            member(f"m{chance.random()}", *(all_topics if same else chance.sample(all_topics, chance.randrange(6))))
            for _ in range(chance.randrange(4))
        ]
        if not members:
            continue
        for assign in (range_, uniform):
            found = assign(members, topics)
            owned = [partition for it in found.values() for partition in it]
            wanted = {topic for it in members for topic in it.topics}
            assert len(owned) == len(set(owned))
            assert set(owned) == {Partition(it, n) for it in topics if it in wanted for n in range(topics[it])}
            assert all({it.topic for it in found[one.id]} <= one.topics for one in members)
        counts = {it.id: len(found[it.id]) for it in members}
        if same:
            assert max(counts.values()) - min(counts.values()) <= 1
        for giver in members:
            for taker in members:
                could = any(it.topic in taker.topics for it in found[giver.id])
                assert not could or counts[giver.id] - counts[taker.id] <= 1, (giver, taker)
        members = after(members, found)
        assert uniform(members, topics) == found, "nothing has changed: nothing moves"
