"""Hours of writing that need several steps of retention in a round: stored data is bounded by retention, not time."""

import asyncio
from typing import Any

from prometheus_client import REGISTRY

from tests.fakes.virtual_time import run
from tests.unit.broker.batches import batch
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Asked, Shared, broker, create

HOURS = 2
PARTITIONS, RETENTION_SECONDS, REPLY_SECONDS, GRACE_SECONDS, ROUND_SECONDS, STEP_RUNS = 20, 600, 300, 60, 30, 5
SETTINGS: dict[str, Any] = {
    "upkeep": {
        "interval_seconds": ROUND_SECONDS, "grace_seconds": GRACE_SECONDS, "abandon_seconds": REPLY_SECONDS,
        "round_runs": STEP_RUNS, "producer_seconds": RETENTION_SECONDS,
    }
}  # fmt: skip
AHEAD = 2 * 64
"""Reserved keys and newest replies of two brokers."""


def counts(shared: Shared) -> dict[str, int]:
    """Return how many rows and objects exist, by kind."""
    tables = {
        "runs": "run", "objects known": "wal", "replies": "wal WHERE reply IS NOT NULL", "producers": "producer",
    }  # fmt: skip
    row = shared.store.database.row
    return {name: row(f"SELECT count(*) FROM {table}")[0] for name, table in tables.items()} | {
        "objects": len(shared.objects.objects)
    }


def test_stored_data_stays_within_bounds() -> None:
    async def write(asked: Asked, number: int) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        for count in range(HOURS * 3600 // 2):
            # Each producer writes ten batches, and then a new one replaces it.
            data = batch(producer=count // 10 * 2 + number, epoch=0, sequence=count % 10).data
            answer = await produce(asked, "t", (count // 10 + number) % PARTITIONS, data)
            assert not answer.error_code
            await asyncio.sleep(began + 2 * (count + 1) - loop.time())

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **SETTINGS) as first, broker(shared, 2, **SETTINGS) as second:
            await create(
                first,
                "t",
                PARTITIONS,
                retention_ms=f"{RETENTION_SECONDS * 1000}",
                message_timestamp_type="LogAppendTime",
            )
            await first.broker.topic_metadata.refresh()
            await second.broker.topic_metadata.refresh()
            writing = asyncio.gather(write(first, 0), write(second, 1))
            # One batch range per second, in an object of its own. Data may wait for two more rounds of retention.
            rounds = 3 * ROUND_SECONDS
            bounds = {
                "runs": RETENTION_SECONDS + rounds,
                "objects": RETENTION_SECONDS + GRACE_SECONDS + rounds,
                "objects known": RETENTION_SECONDS + GRACE_SECONDS + rounds + AHEAD,
                "replies": REPLY_SECONDS + rounds + AHEAD,
                "producers": RETENTION_SECONDS // 10 + rounds,
            }
            seen = []
            while not writing.done():
                await asyncio.sleep(1000)
                seen.append(counts(shared))
            await writing
            assert ROUND_SECONDS > STEP_RUNS, "one step is not enough"
            assert len(seen) == HOURS * 3600 // 1000 + 1
            for kept in seen:
                assert all(kept[name] <= bound for name, bound in bounds.items()), (kept, bounds)
            assert REGISTRY.get_sample_value("firn_broker_upkeep_behind") == 0

    run(story())
