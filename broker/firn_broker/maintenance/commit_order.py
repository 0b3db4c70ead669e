"""The order in which a recovery commits objects, without I/O.

The ids of objects show no common order of two brokers: a broker reserves keys ahead, and uses them much later. A
producer that moved to another broker shows one by its sequence numbers.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from firn_broker.storage.wal import IndexedBatch


class Written(NamedTuple):
    """An object with batches of producers."""

    node: int
    epoch: int
    """The epoch of the node that wrote the object."""
    id: UUID
    key: str
    size: int
    batches: Sequence[IndexedBatch]


def commit_order(objects: Sequence[Written]) -> list[Written]:
    """Order objects so that each broker and, as far as possible, each producer has its own order.

    Where the two contradict each other, or sequence numbers began again at 0, the order of the ids decides.
    """
    ordered = sorted(objects, key=lambda item: (item.node, item.epoch, item.id))
    later: list[set[int]] = [set() for _ in ordered]
    for first, second in _constraints(ordered):
        later[first].add(second)
    earlier = [0] * len(ordered)
    for seconds in later:
        for second in seconds:
            earlier[second] += 1
    by_id = sorted(range(len(ordered)), key=lambda number: ordered[number].id)
    free = [(ordered[number].id, number) for number in by_id if not earlier[number]]
    waiting = iter(by_id)
    done: dict[int, Written] = {}
    while len(done) < len(ordered):
        # Without a free object, the constraints contradict each other.
        number = heapq.heappop(free)[1] if free else next(number for number in waiting if number not in done)
        if number in done:
            continue
        done[number] = ordered[number]
        for second in later[number]:
            earlier[second] -= 1
            if not earlier[second] and second not in done:
                heapq.heappush(free, (ordered[second].id, second))
    return list(done.values())


def _constraints(ordered: Sequence[Written]) -> Iterator[tuple[int, int]]:
    """Yield pairs of objects, by position, of which the first comes before the second."""
    for number, (first, second) in enumerate(pairwise(ordered)):
        if first.node == second.node:
            yield number, number + 1
    producers: dict[tuple[object, int], list[tuple[int, int, UUID, int]]] = defaultdict(list)
    for number, item in enumerate(ordered):
        for batch in item.batches:
            if batch.producer_id >= 0:
                producers[batch.partition, batch.producer_id].append(
                    (batch.producer_epoch, batch.base_sequence, item.id, number)
                )
    for batches in producers.values():
        for (*_, one), (*_, two) in pairwise(sorted(batches)):
            if ordered[one].node != ordered[two].node:
                yield one, two
