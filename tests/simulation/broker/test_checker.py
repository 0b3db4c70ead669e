"""The simulation finds brokers that break a promise within a few seeds. Otherwise it would prove nothing."""

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import FencedError, UnavailableError
from firn.records import record_batch
from firn_broker import broker
from firn_broker.cluster import guarded_store
from firn_broker.cluster.continuity import Continuity, Fallen
from firn_broker.groups.shards import Shard
from firn_broker.groups.storage import GroupStorage
from firn_broker.log.reader import Position, Reader
from firn_broker.log.watermarks import Waiter
from firn_broker.log.writer import WalWriter
from firn_broker.log_types import BatchEntry, BatchOutcome, Commit, LookupResult, StoredGroup
from firn_broker.metadata_store import idempotence
from firn_broker.metadata_store.sqlite.logs.log import SqliteLog
from tests.simulation.broker.losses import how_often
from tests.simulation.broker.story import run_story

SEEDS = range(12)
LOSING = [seed for seed in range(50, 110) if how_often(seed)]
"""Seeds of stories in which the coordinator loses commits. Only some of them show brokers that do not notice it."""
LOSS = re.compile("no broker repeated the lost commits|has the acknowledged offset")


def first_violation(seeds: Iterable[int] = SEEDS) -> str:
    """Return the violations of the first failing story, or an empty text."""
    for seed in seeds:
        if wrong := run_story(seed).wrong:
            return "\n".join(wrong)
    return ""


def test_the_checker_finds_a_coordinator_that_accepts_duplicates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotence, "judge", lambda *_: None)
    assert re.search("times, and was sent|follows number .* of its producer", first_violation())


def test_the_checker_finds_a_coordinator_that_lets_producers_begin_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    judge: Any = idempotence.judge

    def lenient(*batch: Any) -> Any:
        verdict = judge(*batch[:-1], lambda: True)
        return None if verdict is idempotence.HELD else verdict

    monkeypatch.setattr(idempotence, "judge", lenient)
    assert re.search("out of order after the last batch|was never appended", first_violation())


def test_the_checker_finds_a_coordinator_that_accepts_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    judge: Any = idempotence.judge

    def lenient(*batch: Any) -> Any:
        verdict = judge(*batch)
        return None if verdict is ErrorCode.out_of_order_sequence_number else verdict

    monkeypatch.setattr(idempotence, "judge", lenient)
    assert re.search("follows number|was never appended", first_violation())


def test_the_checker_finds_brokers_that_do_not_notice_lost_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(*_: Any) -> None:
        pass

    async def commit(self: Any, commit: Commit) -> Sequence[BatchOutcome]:
        return await plain(self, replace(commit, after=0))

    plain = SqliteLog.commit
    monkeypatch.setattr(Continuity, "check", check)
    monkeypatch.setattr(SqliteLog, "commit", commit)
    assert LOSS.search(first_violation(LOSING))


class ForgetfulContinuity(Continuity):
    """Reports lost commits as repeated."""

    async def _repair(self, fallen: Fallen) -> None:
        for name, (known, _) in fallen.items():
            await self._store.nodes.raise_counter(name, known)


def test_the_checker_finds_brokers_that_do_not_repeat_lost_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarded_store, "Continuity", ForgetfulContinuity)
    assert LOSS.search(first_violation(LOSING))


def test_producers_keep_their_order_although_the_coordinator_forgot_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    judge: Any = idempotence.judge
    held = 0

    def forgetful(*batch: Any) -> Any:
        nonlocal held
        verdict = judge(*batch[:-1], lambda: True)
        held += verdict is idempotence.HELD
        return verdict

    monkeypatch.setattr(idempotence, "judge", forgetful)
    assert not first_violation()
    assert held, "no batch overtook the first one"


def test_the_checker_finds_a_broker_that_does_not_look_at_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batch, "intact", lambda _: True)
    assert re.search("the checksum at|other bytes than sent", first_violation())


class HastyWriter(WalWriter):
    """A writer that acknowledges the batches of a commit that the coordinator has not answered."""

    async def _commit(self, file: Any, entries: Sequence[BatchEntry]) -> Sequence[BatchOutcome] | None:
        try:
            return await self._log_store.commit(Commit(self._membership.lease, file.key, len(file.data), entries))
        except FencedError:
            return None
        except UnavailableError:
            return [BatchOutcome(ErrorCode.none, 0)] * len(entries)


def test_the_checker_finds_a_writer_that_acknowledges_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "WalWriter", HastyWriter)
    # Detected by the batch's offset, or by the gap before the producer's next batch.
    assert first_violation()


def test_the_checker_finds_a_writer_that_commits_in_the_order_of_uploads(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(self: Any) -> None:
        under_way = set()
        while True:
            under_way.add(asyncio.create_task(self._finish(await self._queue.get())))

    monkeypatch.setattr(WalWriter, "run", run)
    # The coordinator rejects the later batch, and its producer fails with that error.
    assert f"error {ErrorCode.out_of_order_sequence_number.value} for" in first_violation()


class StaleReader(Reader):
    """A reader that answers from lookups of the last 5 seconds."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self._known: dict[tuple[Position, ...], tuple[float, bool, dict[Position, LookupResult]]] = {}

    async def _find(
        self,
        positions: Sequence[Position],
        max_bytes: int,
        ahead: int,
        results: dict[Position, LookupResult],
        watch: Waiter,
    ) -> bool:
        key, now = tuple(positions), asyncio.get_running_loop().time
        if key not in self._known or self._known[key][0] + 5 < now():
            full = await super()._find(positions, max_bytes, ahead, results, watch)
            self._known[key] = now(), full, {position: results[position] for position in positions}
        _, full, old = self._known[key]
        results.update(old)
        return full


def test_the_checker_finds_a_reader_that_answers_from_old_lookups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "Reader", StaleReader)
    assert "were reported" in first_violation()


class SkippingReader(Reader):
    """A reader that leaves out the first of several batch ranges."""

    async def _find(
        self,
        positions: Sequence[Position],
        max_bytes: int,
        ahead: int,
        results: dict[Position, LookupResult],
        watch: Waiter,
    ) -> bool:
        full = await super()._find(positions, max_bytes, ahead, results, watch)
        for position in positions:
            if len(ranges := results[position].ranges) > 1:
                results[position] = results[position]._replace(ranges=ranges[1:])
        return full


def test_the_checker_finds_a_reader_that_skips_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "Reader", SkippingReader)
    assert re.search(r"follower of .* got .* instead of offset", first_violation())


def test_the_checker_finds_a_coordinator_that_does_not_store_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keep(self: Any, shard: Shard, group: StoredGroup) -> bool:
        return True

    monkeypatch.setattr(GroupStorage, "save", keep)
    assert "partition" in first_violation()
