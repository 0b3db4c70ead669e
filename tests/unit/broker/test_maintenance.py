"""Rounds of maintenance on whole brokers: a backlog shrinks, and a failing topic delays no other."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY

from firn.model.errors import UnavailableError
from firn_broker.log_types import MAX_TIMESTAMP, Partition
from firn_broker.metadata_store import time_marks
from firn_broker.metadata_store.sqlite.logs import log as sqlite_log
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import batch
from tests.unit.broker.test_compaction import batch as keyed
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Asked, Shared, broker, create

ROUND_SECONDS = 30
SETTINGS: dict[str, Any] = {"upkeep": {"interval_seconds": ROUND_SECONDS, "grace_seconds": 1, "round_runs": 5}}
PARTITIONS, RUNS = 6, 10


async def backlog(asked: Asked, name: str, bound: str = "retention_ms") -> list[Partition]:
    """Create partitions of many batch ranges, all of which are due to expire."""
    id = await create(asked, name, PARTITIONS, **{"retention_ms": "-1", bound: "1"})
    for _ in range(RUNS):
        await asyncio.gather(*(produce(asked, name, index, batch(time=1).data) for index in range(PARTITIONS)))
    return [Partition(id, index) for index in range(PARTITIONS)]


async def kept(shared: Shared, partitions: list[Partition]) -> int:
    """Return the bytes of all partitions together."""
    return sum(state.size for state in await shared.store.log.states(partitions) if state is not None)


def slow(work: Callable[..., Awaitable[Any]], seconds: float) -> Callable[..., Awaitable[Any]]:
    async def later(*values: Any) -> Any:
        await asyncio.sleep(seconds)
        return await work(*values)

    return later


@pytest.mark.parametrize("bound", ["retention_ms", "retention_bytes"])
def test_one_round_works_off_a_backlog_of_many_steps(bound: str) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **SETTINGS) as asked:
            partitions = await backlog(asked, "t", bound)
            assert await kept(shared, partitions) == PARTITIONS * RUNS * len(batch().data)
            await asyncio.sleep(ROUND_SECONDS - asyncio.get_running_loop().time() + 2)
            # The newest range of a partition always stays.
            left = 0 if bound == "retention_ms" else PARTITIONS * len(batch().data)
            assert await kept(shared, partitions) == left
            assert REGISTRY.get_sample_value("firn_broker_upkeep_behind") == 0

    run(story())


def test_a_search_by_time_reads_few_ranges_of_a_long_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **SETTINGS) as asked:
            id = await create(asked, "t", retention_ms="-1")
            # Rounds have 5 ranges each, so that marks have to be added in several steps.
            monkeypatch.setattr(time_marks, "SPACING", 4)
            monkeypatch.setattr(sqlite_log, "TIMED_RANGES", 2)
            for number in range(50):
                await produce(asked, "t", 0, batch(time=1000 + number).data)
            await asyncio.sleep(2.5 * ROUND_SECONDS)
            read, reads = shared.store.database.run, 0

            async def counted(work: Callable[[], Any], *, write: bool = True) -> Any:
                nonlocal reads
                reads += 1
                return await read(work, write=write)

            monkeypatch.setattr(shared.store.database, "run", counted)
            for timestamp, offset in ((1000, 0), (1030, 30), (1049, 49), (1050, None), (MAX_TIMESTAMP, 49)):
                reads = 0
                found = await shared.store.log.find_by_time(Partition(id, 0), timestamp)
                assert (found and found.base_offset) == offset
                assert reads <= 5, f"{reads} transactions to find {timestamp}"

    run(story())


@pytest.mark.slow
def test_a_backlog_of_expiry_is_reported_and_topics_share_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **SETTINGS) as asked:
            first, second = await backlog(asked, "a"), await backlog(asked, "b")
            for name in ("expire", "drop_ranges"):
                monkeypatch.setattr(shared.store.retention, name, slow(getattr(shared.store.retention, name), 5))
            before = [await kept(shared, topic) for topic in (first, second)]
            await asyncio.sleep(2.5 * ROUND_SECONDS)
            after = [await kept(shared, topic) for topic in (first, second)]
            assert all(0 < now < was for now, was in zip(after, before, strict=True)), (before, after)
            assert REGISTRY.get_sample_value("firn_broker_upkeep_behind") == 1
            await asyncio.sleep(50 * ROUND_SECONDS)
            assert await kept(shared, first + second) == 0
            assert REGISTRY.get_sample_value("firn_broker_upkeep_behind") == 0

    run(story())


@pytest.mark.slow
@pytest.mark.parametrize("error", [UnavailableError, RuntimeError])
@pytest.mark.parametrize(
    "broken",
    [
        "expire",
        "drop_ranges",
        "forget_replies",
        "stale_reservations",
        "forget_producers",
        "mark_times",
        "dead_objects",
        "rewrite",
    ],
)
def test_a_failing_task_delays_no_other(broken: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        done: set[str] = set()

        def recorded(name: str, work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
            async def call(*values: Any) -> Any:
                if name == broken:
                    raise error("broken")
                result = await work(*values)
                done.add(name)
                return result

            return call

        parts: dict[str, object] = dict.fromkeys(
            (
                "expire",
                "drop_ranges",
                "forget_replies",
                "stale_reservations",
                "forget_producers",
                "mark_times",
                "dead_objects",
            ),
            shared.store.retention,
        ) | {"rewrite": shared.store.log}
        async with broker(shared, **SETTINGS) as asked:
            await create(asked, "deletes")
            await create(asked, "compacts", cleanup_policy="compact")
            for _ in range(2):
                await produce(asked, "compacts", 0, keyed((b"k", b"v")))
            for name, port in parts.items():
                monkeypatch.setattr(port, name, recorded(name, getattr(port, name)))
            await asyncio.sleep(ROUND_SECONDS + 2)
            assert done == parts.keys() - {broken}
            assert asked.broker.healthy

    run(story())


@pytest.mark.slow
@pytest.mark.parametrize("error", [UnavailableError, RuntimeError])
@pytest.mark.parametrize("broken", ["b", "bc", "ab", "bcd"])
def test_failing_topics_delay_no_other(broken: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **SETTINGS) as asked:
            topics = {name: await backlog(asked, name) for name in "abcde"}
            true = shared.store.retention.expire

            async def expire(topic: Any, *values: Any) -> int:
                if topic in {topics[name][0].topic for name in broken}:
                    raise error("broken")
                return await true(topic, *values)

            monkeypatch.setattr(shared.store.retention, "expire", expire)
            await asyncio.sleep(5 * ROUND_SECONDS)
            assert {name for name, topic in topics.items() if await kept(shared, topic)} == set(broken)

    run(story())
