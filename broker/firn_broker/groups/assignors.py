"""The two server-side assignors of KIP-848 as functions.

- ``uniform``: each member gets the same number of partitions, plus or minus one, as far as subscriptions allow. Members
  keep their partitions where possible.
- ``range``: each member gets a contiguous range of each topic; the first members get one more. So one member gets the
  same partitions of several topics."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from firn_broker.log_types import Partition


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member: its id, its sort name, its subscribed topics, and its previous target."""

    id: str
    order: str
    topics: frozenset[UUID]
    before: frozenset[Partition]


Assignment = dict[str, frozenset[Partition]]
Assignor = Callable[[Sequence[Subscriber], Mapping[UUID, int]], Assignment]
"""Computes the partitions of each member from the members and the numbers of partitions of their topics."""


def _pools(members: Sequence[Subscriber], topics: Mapping[UUID, int]) -> dict[tuple[str, ...], list[Partition]]:
    """Group partitions by the members that may own them. Usually there is one pool."""
    subscribers: dict[UUID, list[str]] = {}
    for member in members:
        for topic in member.topics:
            subscribers.setdefault(topic, []).append(member.id)
    pools: dict[tuple[str, ...], list[Partition]] = {}
    for topic in sorted(subscribers):
        pools.setdefault(tuple(subscribers[topic]), []).extend(
            Partition(topic, index) for index in range(topics.get(topic, 0))
        )
    return pools


def uniform(members: Sequence[Subscriber], topics: Mapping[UUID, int]) -> Assignment:
    """Assign evenly and keep owners where possible.

    The pools with the fewest members are assigned first. Then partitions move inside pools until no move makes the
    numbers more even."""
    members = sorted(members, key=lambda member: (member.order, member.id))
    before = {partition: member.id for member in members for partition in member.before}
    counts = dict.fromkeys((member.id for member in members), 0)
    held: dict[tuple[str, ...], dict[str, list[Partition]]] = {}
    free: dict[tuple[str, ...], list[Partition]] = {}
    for takers, partitions in _pools(members, topics).items():
        mine: dict[str, list[Partition]] = {id: [] for id in takers}
        held[takers], free[takers] = mine, []
        for partition in partitions:
            owner = before.get(partition)
            if owner in mine:
                mine[owner].append(partition)
                counts[owner] += 1
            else:
                free[takers].append(partition)
    for takers in sorted(free, key=lambda ids: (len(ids), ids)):
        heap = [(counts[id], number, id) for number, id in enumerate(takers)]
        heapq.heapify(heap)
        for partition in free[takers]:
            count, number, id = heap[0]
            held[takers][id].append(partition)
            counts[id] += 1
            heapq.heapreplace(heap, (count + 1, number, id))
    while sum(_even_out(mine, counts) for mine in held.values()):
        pass
    assigned: dict[str, list[Partition]] = {member.id: [] for member in members}
    for mine in held.values():
        for id, partitions in mine.items():
            assigned[id] += partitions
    return {id: frozenset(partitions) for id, partitions in assigned.items()}


def _even_out(held: Mapping[str, list[Partition]], counts: dict[str, int]) -> bool:
    """Move partitions of one pool from the members with most to those with fewest; return whether any moved."""
    poor = [(counts[id], number, id) for number, id in enumerate(held)]
    rich = [(-counts[id], number, id) for number, id in enumerate(held) if held[id]]
    heapq.heapify(poor)
    heapq.heapify(rich)
    moved = False
    while rich and -rich[0][0] - poor[0][0] >= 2:
        most, rich_number, giver = rich[0]
        least, poor_number, taker = poor[0]
        held[taker].append(held[giver].pop())
        counts[giver] -= 1
        counts[taker] += 1
        moved = True
        if held[giver]:
            heapq.heapreplace(rich, (most + 1, rich_number, giver))
        else:
            heapq.heappop(rich)
        heapq.heapreplace(poor, (least + 1, poor_number, taker))
    return moved


def range_(members: Sequence[Subscriber], topics: Mapping[UUID, int]) -> Assignment:
    """Assign a contiguous range of each topic, in the order of instance ids or member ids."""
    assigned: dict[str, list[Partition]] = {member.id: [] for member in members}
    by_topic: dict[UUID, list[str]] = {}
    for member in sorted(members, key=lambda member: (member.order, member.id)):
        for topic in member.topics:
            by_topic.setdefault(topic, []).append(member.id)
    for topic, ids in by_topic.items():
        each, more = divmod(topics.get(topic, 0), len(ids))
        start = 0
        for number, id in enumerate(ids):
            end = start + each + (number < more)
            assigned[id] += (Partition(topic, index) for index in range(start, end))
            start = end
    return {id: frozenset(partitions) for id, partitions in assigned.items()}


UNIFORM, RANGE = "uniform", "range"
ASSIGNORS: Mapping[str, Assignor] = {UNIFORM: uniform, RANGE: range_}


def preferred(wishes: Iterable[str | None]) -> str:
    """Return the assignor that most members name; ``uniform`` if none names one."""
    named = sorted(wish for wish in wishes if wish is not None)
    return max(dict.fromkeys(named), key=named.count, default=UNIFORM)
