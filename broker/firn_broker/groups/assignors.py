"""Who of a consumer group gets which partitions: the two server-side assignors of KIP-848, as functions.

- ``uniform``: everyone the same number, plus or minus one, as far as subscriptions allow; nobody loses a partition without need.
- ``range``: of each topic a contiguous range, the first members one more, so that equal numbers of several topics go to one member.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from uuid import UUID

from firn_broker.log_types import Partition


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member: its id, the name that it sorts by, the topics it wants, and what it was meant to have before."""

    id: str
    order: str
    topics: frozenset[UUID]
    before: frozenset[Partition]


Assignment = dict[str, frozenset[Partition]]
Assignor = Callable[[Sequence[Subscriber], Mapping[UUID, int]], Assignment]
"""From members, and the numbers of partitions of their topics, to each one's partitions."""


def _pools(members: Sequence[Subscriber], topics: Mapping[UUID, int]) -> dict[tuple[str, ...], list[Partition]]:
    """Partitions by who may have them. Usually there is one pool."""
    wanting: dict[UUID, list[str]] = {}
    for member in members:
        for topic in member.topics:
            wanting.setdefault(topic, []).append(member.id)
    pools: dict[tuple[str, ...], list[Partition]] = {}
    for topic in sorted(wanting):
        pools.setdefault(tuple(wanting[topic]), []).extend(Partition(topic, it) for it in range(topics.get(topic, 0)))
    return pools


def uniform(members: Sequence[Subscriber], topics: Mapping[UUID, int]) -> Assignment:
    """Even, and sticky. The pools with the fewest takers choose first; then each pool evens out until none can."""
    members = sorted(members, key=lambda it: (it.order, it.id))
    before = {partition: member.id for member in members for partition in member.before}
    counts = dict.fromkeys((it.id for it in members), 0)
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
    for takers in sorted(free, key=lambda it: (len(it), it)):
        heap = [(counts[id], number, id) for number, id in enumerate(takers)]
        heapq.heapify(heap)
        for partition in free[takers]:
            count, number, id = heap[0]
            held[takers][id].append(partition)
            counts[id] += 1
            heapq.heapreplace(heap, (count + 1, number, id))
    while sum(_even_out(mine, counts) for mine in held.values()):
        pass
    found: dict[str, list[Partition]] = {it.id: [] for it in members}
    for mine in held.values():
        for id, partitions in mine.items():
            found[id] += partitions
    return {id: frozenset(partitions) for id, partitions in found.items()}


def _even_out(held: Mapping[str, list[Partition]], counts: dict[str, int]) -> bool:
    """Move partitions of one pool from those who have most to those who have least; whether any moved."""
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
    """A contiguous range of each topic, in the order of instance ids or member ids."""
    found: dict[str, list[Partition]] = {it.id: [] for it in members}
    by_topic: dict[UUID, list[str]] = {}
    for member in sorted(members, key=lambda it: (it.order, it.id)):
        for topic in member.topics:
            by_topic.setdefault(topic, []).append(member.id)
    for topic, ids in by_topic.items():
        each, more = divmod(topics.get(topic, 0), len(ids))
        start = 0
        for number, id in enumerate(ids):
            end = start + each + (number < more)
            found[id] += (Partition(topic, it) for it in range(start, end))
            start = end
    return {id: frozenset(partitions) for id, partitions in found.items()}


UNIFORM, RANGE = "uniform", "range"
ASSIGNORS: Mapping[str, Assignor] = {UNIFORM: uniform, RANGE: range_}


def preferred(wishes: Iterable[str | None]) -> str:
    """What most members ask for; ``uniform`` if none asks."""
    asked = sorted(it for it in wishes if it is not None)
    return max(dict.fromkeys(asked), key=asked.count, default=UNIFORM)
