"""A commit that is stored as a plan has the same result as one whose batches are judged one by one."""

from collections.abc import Sequence
from random import Random
from uuid import UUID

import pytest

from firn_broker.log_types import BatchEntry, BatchOutcome, Commit, Lookup, Partition, Topic
from firn_broker.metadata_store import commit_plan
from firn_broker.metadata_store.commit_plan import CommitPlan
from firn_broker.metadata_store.postgres.logs import log as postgres_log
from firn_broker.metadata_store.sqlite.logs import log as sqlite_log
from tests.contract.metadata_store.builders import Advance, Log, StoreContract, placed

COMMITS = 60
DELETED_AT = 45
PARTITIONS = [3, 2]
"""Partitions of each topic of a history. The last topic is deleted."""
WRAPPING = (1 << 31) - 3


class History:
    """A random history of commits, in which most batches are the next ones of their producers."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self._sent: dict[tuple[int, int, int], list[tuple[int, int, int]]] = {}
        """Epoch, first sequence and records of batches, by topic, partition and producer."""

    def commit(self) -> list[tuple[int, BatchEntry]]:
        """Return the batches of a commit, each with the number of its topic."""
        chance = self.random
        places = [(topic, part) for topic, count in enumerate(PARTITIONS) for part in range(count)]
        if chance.random() < 0.1:
            # Before the topic exists there is no such partition.
            places.append((0, 7))
        chosen = [place for place in places if chance.random() < 0.6]
        batches = [self._batch(*place) for place in chosen for _ in range(chance.choice((1, 1, 1, 2, 7)))]
        if chance.random() < 0.1:
            chance.shuffle(batches)
            batches.sort(key=lambda batch: (-batch[0], -batch[1].partition.index))
        return batches

    def note(self, batches: Sequence[tuple[int, BatchEntry]], outcomes: Sequence[BatchOutcome]) -> None:
        """Note the outcomes of a commit: producers send rejected batches again."""
        for (topic, entry), outcome in zip(batches, outcomes, strict=True):
            sent = self._sent.get((topic, entry.partition.index, entry.producer_id), [])
            batch = entry.producer_epoch, entry.base_sequence, entry.records
            if outcome.error and batch in sent:
                del sent[sent.index(batch) :]

    def _batch(self, topic: int, part: int) -> tuple[int, BatchEntry]:
        chance = self.random
        producer = chance.choice((-1, 1, 1, 2))
        epoch, sequence, records = -1, -1, chance.randint(1, 3)
        if producer >= 0:
            sent = self._sent.setdefault((topic, part, producer), [])
            epoch, sequence, records = self._sequence(sent, records)
        length = chance.choice((100, 200, 600_000))
        timestamp = chance.choice((-1, 1000, 2000))
        partition, append_time = Partition(UUID(int=0), part), chance.random() < 0.2
        entry = BatchEntry(partition, 0, length, records, timestamp, append_time, producer, epoch, sequence)
        return topic, entry

    def _sequence(self, sent: list[tuple[int, int, int]], records: int) -> tuple[int, int, int]:
        """Return epoch, sequence and records of the next batch of a producer, or of another one."""
        chance = self.random
        if not sent:
            begins = 0 if chance.random() < 0.9 else 5
            # The sequences of the second batch pass the greatest one.
            records = WRAPPING if chance.random() < 0.1 else records
            sent.append((0, begins, records))
            return sent[-1]
        epoch, first, before = sent[-1]
        what = chance.random()
        if what < 0.03:
            # The oldest batch that a store knows, or a later one.
            return sent[-5] if len(sent) > 5 and chance.random() < 0.7 else chance.choice(sent[-5:])
        if what < 0.04:
            return epoch, (first + before + 4) & 0x7FFFFFFF, records
        if what < 0.05:
            return epoch - 1, first, before
        if what < 0.06:
            return epoch + 1, 3, records
        sent.append((epoch + 1, 0, records) if what < 0.09 else (epoch, (first + before) & 0x7FFFFFFF, records))
        return sent[-1]


def of_twin(batches: Sequence[tuple[int, BatchEntry]], topics: Sequence[Topic]) -> list[BatchEntry]:
    entries = [entry._replace(partition=Partition(topics[topic].id, entry.partition.index)) for topic, entry in batches]
    return placed(entries)


def comparable(outcomes: Sequence[BatchOutcome]) -> list[BatchOutcome]:
    """Return outcomes without the time of their commits."""
    return [outcome._replace(append_ms=min(outcome.append_ms, 0)) for outcome in outcomes]


class HistoryContract(StoreContract):
    """The contract of `LogStore.commit`, for commits of all kinds in random order."""

    @pytest.mark.parametrize("seed", range(6))
    async def test_commits_with_and_without_a_plan_agree(
        self, log: Log, advance: Advance, monkeypatch: pytest.MonkeyPatch, seed: int
    ) -> None:
        monkeypatch.setattr(postgres_log, "PLANNED_PARTITIONS", 1)
        twins = [
            [Topic(UUID(int=100 * twin + number), f"{twin}-{number}", count) for number, count in enumerate(PARTITIONS)]
            for twin in (1, 2)
        ]
        for topic in (topic for topics in twins for topic in topics):
            await log.store.topics.create_topic(topic)
        history, planned = History(seed), 0

        def no_plan(_: Sequence[BatchEntry]) -> CommitPlan | None:
            return None

        for number in range(COMMITS):
            if number == DELETED_AT:
                for topics in twins:
                    await log.store.topics.delete_topic(topics[-1].id)
            if history.random.random() < 0.05:
                await advance(11)
                await log.store.retention.forget_producers(10_000, 1000)
            batches = history.commit()
            results = []
            for topics, plans in zip(twins, (True, False), strict=True):
                commit = Commit(log.lease, await log.key(), 1000, of_twin(batches, topics))
                with monkeypatch.context() as patched:
                    if not plans:
                        patched.setattr(sqlite_log, "plan_commit", no_plan)
                        patched.setattr(postgres_log, "plan_commit", no_plan)
                    outcomes = await log.store.log.commit(commit)
                assert await log.store.log.commit(commit) == outcomes, "it is repeated"
                settled = await log.store.log.commit(Commit(log.lease, commit.key, 1000, ()))
                assert any(each.changed for each in settled) == any(each.changed for each in outcomes)
                results.append(comparable(outcomes))
            assert results[0] == results[1]
            history.note(batches, results[0])
            in_order = all(not outcome.error and not outcome.duplicate for outcome in results[0])
            planned += in_order and commit_plan.plan_commit(of_twin(batches, twins[0])) is not None
            assert await self._stored(log, twins[0]) == await self._stored(log, twins[1])
        assert 5 < planned < COMMITS

    async def _stored(self, log: Log, topics: Sequence[Topic]) -> list[object]:
        """Return bounds and batch ranges of all partitions, without keys and append times."""
        partitions = [Partition(topic.id, index) for topic in topics for index in range(topic.partitions)]
        found = await log.store.log.find([Lookup(partition, 0, 1 << 40) for partition in partitions], 1000)
        return [
            await log.store.log.states(partitions),
            [
                [
                    (each.base_offset, each.last_offset, each.place[1:], min(each.append_ms, 0),
                     each.append_ms >= 0 or each.max_timestamp)
                    for each in result.ranges
                ]
                for result in found
            ],
        ]  # fmt: skip
