"""A recovery commits the objects of each broker, and the batches of each producer, in the order of their writers."""

from random import Random
from uuid import UUID

import pytest

from firn_broker.log_types import Partition
from firn_broker.maintenance.commit_order import Written, commit_order
from firn_broker.storage.wal import IndexedBatch

LOGS = [Partition(UUID(int=7), index) for index in range(2)]


def batch(producer: int, sequence: int, *, epoch: int = 0, partition: Partition = LOGS[0]) -> IndexedBatch:
    return IndexedBatch(partition, 32, 100, 1, 1000, producer, epoch, sequence)


def written(node: int, id: int, *batches: IndexedBatch, epoch: int = 1) -> Written:
    return Written(node, epoch, UUID(int=id), f"wal/{id}", 1000, batches)


def order(*objects: Written) -> list[int]:
    return [item.id.int for item in commit_order(objects)]


def test_a_broker_that_used_an_old_key_comes_after_the_batches_before_its_own() -> None:
    """The second broker reserved its keys long ago."""
    assert order(written(0, 5, batch(9, 0)), written(1, 1, batch(9, 1)), written(0, 6, batch(9, 2))) == [5, 1, 6]


def test_a_later_epoch_of_a_node_comes_after_an_earlier_one() -> None:
    assert order(written(0, 1, epoch=2), written(0, 2, epoch=1)) == [2, 1]


def test_a_later_epoch_of_a_producer_comes_after_an_earlier_one() -> None:
    assert order(written(0, 1, batch(9, 0, epoch=1)), written(1, 2, batch(9, 7))) == [2, 1]


def test_objects_without_a_common_producer_have_the_order_of_their_ids() -> None:
    other = batch(9, 0, partition=LOGS[1])
    assert order(written(0, 3, batch(9, 1)), written(1, 2, other), written(2, 4, batch(8, 0))) == [2, 3, 4]


def test_contradictions_lose_no_object() -> None:
    first = written(0, 1, batch(9, 1), batch(8, 0))
    second = written(1, 2, batch(9, 0), batch(8, 1))
    assert order(first, second, written(0, 3), written(1, 4)) == [1, 2, 3, 4]


def test_a_batch_that_was_sent_again_does_not_change_the_order_of_its_broker() -> None:
    assert order(*(written(0, id, batch(9, sequence)) for id, sequence in ((1, 0), (2, 2), (3, 1), (4, 2)))) == [
        1,
        2,
        3,
        4,
    ]


@pytest.mark.parametrize("seed", range(20))
def test_all_producers_have_their_order_if_the_brokers_allow_it(seed: int) -> None:
    """Producers move between brokers, whose keys have no common order."""
    chance = Random(seed)
    ids = {node: iter(sorted(chance.sample(range(10_000), 200))) for node in range(3)}
    sequences = {(producer, log): 0 for producer in range(4) for log in LOGS}
    objects = []
    for _ in range(100):
        node = chance.randrange(3)
        batches = []
        for (producer, log), sequence in sorted(sequences.items()):
            if chance.random() < 0.3:
                batches.append(batch(producer, sequence, partition=log))
                sequences[producer, log] += 1
        objects.append(written(node, next(ids[node]) * 4 + node, *batches))
    seen = dict.fromkeys(sequences, 0)
    chance.shuffle(objects)
    for item in commit_order(objects):
        for found in item.batches:
            assert found.base_sequence == seen[found.producer_id, found.partition]
            seen[found.producer_id, found.partition] += 1
    assert seen == sequences
