"""A commit that fails again and again for an unexpected reason does not stop the commits behind it."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
import structlog
from kio.schema.errors import ErrorCode
from prometheus_client import REGISTRY

from firn_broker.broker import GIVEN_UP
from firn_broker.log import writer
from firn_broker.log.writer import Append
from firn_broker.log_types import BatchOutcome, Commit, NodeLease
from tests.unit.broker.batches import batch
from tests.unit.broker.rig import FIRST, SECOND, rig
from tests.unit.broker.test_many_elements import one_record
from tests.unit.broker.whole import broker, create

pytestmark = pytest.mark.usefixtures("_no_pauses")


@pytest.fixture
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(writer, "RETRY_SECONDS", (0.0,))
    # Printing a traceback with its variables takes a second.
    with structlog.testing.capture_logs():
        yield


def given_up() -> float:
    return REGISTRY.get_sample_value("firn_broker_abandoned_commits_total") or 0.0


async def test_a_commit_with_an_unexpected_error_is_given_up_after_some_attempts() -> None:
    async with rig() as parts:
        before = given_up()
        parts.store.trouble = [RuntimeError("function commit_wal does not exist")] * writer.UNEXPECTED_ATTEMPTS
        (failed,) = await parts.writer.append([Append(FIRST, batch(), False)])
        assert (failed.error, given_up()) == (ErrorCode.kafka_storage_error, before + 1)
        (taken,) = await parts.writer.append([Append(SECOND, batch(), False)])
        assert (taken.error, taken.base_offset) == (ErrorCode.none, 0)
        (again,) = await parts.writer.append([Append(FIRST, batch(), False)])
        assert (again.error, again.base_offset) == (ErrorCode.none, 0), "the abandoned key has no batches"


async def test_a_commit_with_a_few_unexpected_errors_is_repeated() -> None:
    async with rig() as parts:
        before = given_up()
        parts.store.trouble = [RuntimeError("a fault")] * (writer.UNEXPECTED_ATTEMPTS - 1)
        (taken,) = await parts.writer.append([Append(FIRST, batch(), False)])
        assert (taken.error, taken.base_offset, given_up()) == (ErrorCode.none, 0, before)


async def test_a_broker_whose_commits_fail_is_not_ready_until_one_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker() as asked:
        await create(asked, "t")
        served = asked.broker
        assert served.not_ready is None
        commit, broken = served.metadata_store.log.commit, True

        async def failing(made: Commit) -> Sequence[BatchOutcome]:
            if broken:
                raise RuntimeError("function commit_wal does not exist")
            return await commit(made)

        monkeypatch.setattr(served.metadata_store.log, "commit", failing)
        for _ in range(GIVEN_UP):
            assert served.not_ready is None
            await asked.raw(0, 9, one_record(0))
        assert "unexpected errors" in (served.not_ready or "")
        broken = False
        async with asyncio.timeout(5):
            while served.not_ready:
                await asyncio.sleep(0.01)


async def test_a_key_that_cannot_be_committed_holds_up_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as parts:
        commit, tried, settled = parts.store.log.commit, list[str](), set[str]()

        async def partly(made: Commit) -> Sequence[BatchOutcome]:
            tried.append(made.key)
            if made.batches or made.key == tried[0]:
                raise RuntimeError("a fault")
            settled.add(made.key)
            return await commit(made)

        monkeypatch.setattr(parts.store.log, "commit", partly)
        for place in (FIRST, SECOND):
            await parts.writer.append([Append(place, batch(), False)])
        async with asyncio.timeout(5):
            while not settled:
                await asyncio.sleep(0)
        assert tried[0] not in settled


async def test_an_abandoned_commit_keeps_the_lease_of_its_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt may have happened, and then counts for that lease. The broker has another lease meanwhile."""
    async with rig() as parts:
        first, tried = parts.membership.lease, list[NodeLease]()
        commit = parts.store.log.commit

        async def joined_again(made: Commit) -> Sequence[BatchOutcome]:
            if not tried:
                await parts.membership.join()
            tried.append(made.lease)
            if len(tried) <= writer.UNEXPECTED_ATTEMPTS:
                raise RuntimeError("a fault")
            return await commit(made)

        monkeypatch.setattr(parts.store.log, "commit", joined_again)
        await parts.writer.append([Append(FIRST, batch(), False)])
        async with asyncio.timeout(5):
            while len(tried) <= writer.UNEXPECTED_ATTEMPTS:
                await asyncio.sleep(0)
        assert parts.membership.lease != first
        assert set(tried) == {first}
