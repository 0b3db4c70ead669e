"""A column is dropped and added again while a round writes. Its values land under the new column."""

import pytest

from tests.integration.ingestion.gates import gate_at
from tests.integration.ingestion.world import WAIT, World, exactly, places, value


def test_a_column_replaced_during_a_round_keeps_the_values_of_the_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gate_at("before-commit", monkeypatch)
    topic = world.topic()
    job = world.job(topic, freshness_ms=500)
    world.produce(topic, [value(number) for number in range(5)])
    world.apply(job)
    world.start()
    world.await_rows(job, 5)
    gate.closed.set()
    world.produce(topic, [value(number) for number in range(5, 10)])
    assert gate.held.wait(WAIT)
    table = world.table(job)
    kind = table.schema().findType("name")
    table.updateSchema().deleteColumn("name").commit()
    table.updateSchema().addColumn("name", kind).commit()
    gate.open.set()
    rows = world.await_rows(job, 10)
    assert places(rows) == exactly({0: 10})
    assert [row["name"] for row in sorted(rows, key=lambda row: row["id"])[5:]] == [
        f"n{number}" for number in range(5, 10)
    ]
