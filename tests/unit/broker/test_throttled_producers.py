"""The broker asks producers to pause while they fill the memory for requests, and no others."""

import pytest
from prometheus_client import REGISTRY

from firn_broker.network.budget import SHARES, Budget
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import batch
from tests.unit.broker.test_whole_brokers import produce_answer
from tests.unit.broker.whole import broker, create

SHARE = 1000
TOTAL = SHARE * SHARES


def filled(**held: int) -> Budget:
    budget = Budget(TOTAL)
    for address, size in held.items():
        assert budget.acquire(size, f"{address}:1", lambda _: None)
    return budget


@pytest.mark.parametrize(
    ("budget", "peer", "fullness"),
    [
        (filled(), "quiet:1", 0),
        # A connection beyond its share may fill six of eight shares.
        (filled(greedy=4800), "greedy:1", 0),
        (filled(greedy=5400), "greedy:1", 0.5),
        (filled(greedy=6000), "greedy:1", 1),
        (filled(greedy=5400, a=600), "greedy:1", 1),
        # The others of its address share one more.
        (filled(greedy=6000), "greedy:2", 0),
        (filled(greedy=6000, a=900), "greedy:2", 0.5),
        # All others have the last one to themselves.
        (filled(greedy=6000, a=1000), "quiet:1", 0),
        (filled(greedy=6000, a=1000), "a:1", 0),
        (filled(greedy=6000, a=1000, b=800), "quiet:1", 0),
        (filled(greedy=6000, a=1000, b=900), "quiet:1", 0.5),
        (filled(greedy=6000, a=1000, b=1000), "quiet:1", 1),
    ],
)
def test_a_budget_is_full_for_the_clients_that_fill_it(budget: Budget, peer: str, fullness: float) -> None:
    assert budget.fullness(peer) == pytest.approx(fullness)


def throttled() -> float:
    return REGISTRY.get_sample_value("firn_broker_throttled_requests_total") or 0


def test_an_answer_asks_a_producer_to_pause_while_it_fills_the_memory() -> None:
    async def story() -> None:
        async with broker() as asked:
            await create(asked, "t")
            before = throttled()
            for held, pause_ms in ((4800, 0), (5400, 50), (6000, 100)):
                asked.client.budget = filled(test=held)
                answer = await produce_answer(asked, "t", 0, batch().data)
                assert answer.throttle_time.total_seconds() * 1000 == pytest.approx(pause_ms, abs=1)
                assert not answer.responses[0].partition_responses[0].error_code
            assert throttled() == before + 2

    run(story())
