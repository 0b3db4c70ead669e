"""A commit that fails again and again for an unexpected reason does not stop the commits behind it."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
import structlog
from kio.schema.errors import ErrorCode
from prometheus_client import REGISTRY

from firn.model.errors import FencedError
from firn_broker.log import writer
from firn_broker.log.writer import GIVEN_UP, TRIED_AGAIN_SECONDS, Append
from firn_broker.log_types import BatchOutcome, Commit, NodeLease
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import batch
from tests.unit.broker.rig import FIRST, SECOND, rig
from tests.unit.broker.test_many_elements import one_record
from tests.unit.broker.whole import Asked, broker, create

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


class Coordinator:
    """The commits of a whole broker, some of which fail."""

    def __init__(self, asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = asked
        self.with_batches: Exception | None = None
        self.without: Exception | None = None
        self._commit = asked.broker.metadata_store.log.commit
        monkeypatch.setattr(asked.broker.metadata_store.log, "commit", self.commit)

    async def commit(self, made: Commit) -> Sequence[BatchOutcome]:
        await asyncio.sleep(0.01)
        error = self.with_batches if made.batches else self.without
        if error is not None:
            raise error
        return await self._commit(made)

    async def produce(self, times: int = 1) -> None:
        for _ in range(times):
            await self.asked.raw(0, 9, one_record(0))

    @property
    def not_ready(self) -> str:
        return self.asked.broker.not_ready or ""


def test_a_broker_is_not_ready_while_all_commits_with_batches_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The empty commits of the abandoned keys succeed, and prove nothing."""

    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t")
            coordinator = Coordinator(asked, monkeypatch)
            coordinator.with_batches = RuntimeError("function commit_wal does not exist")
            for _ in range(GIVEN_UP):
                assert not coordinator.not_ready
                await coordinator.produce()
                await asyncio.sleep(5)
            assert "unexpected errors" in coordinator.not_ready
            coordinator.with_batches = None
            await coordinator.produce()
            assert not coordinator.not_ready

    run(story())


@pytest.mark.parametrize("settled", [None, FencedError("withdrawn"), RuntimeError("a fault")])
def test_a_broker_without_requests_is_ready_again_after_a_minute(
    settled: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker that is not ready gets no requests, so only time can make it ready. The next failure ends that again."""

    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t")
            coordinator = Coordinator(asked, monkeypatch)
            coordinator.with_batches = RuntimeError("function commit_wal does not exist")
            coordinator.without = settled
            await coordinator.produce(GIVEN_UP)
            await asyncio.sleep(TRIED_AGAIN_SECONDS - 1)
            assert coordinator.not_ready
            await asyncio.sleep(2)
            assert not coordinator.not_ready
            await coordinator.produce()
            assert coordinator.not_ready

    run(story())


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
