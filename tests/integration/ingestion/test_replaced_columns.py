"""A column is dropped and added again, or renamed, while a round writes. Its values land under the present column."""

import json
from typing import Any

import pytest

from firn.model.jobs import Rename
from firn.tables.renames import FORMER_NAMES
from tests.integration.ingestion.gates import gate_at
from tests.integration.ingestion.test_exactly_once import good, topic_with
from tests.integration.ingestion.world import WAIT, World, exactly, places, value
from tests.servers.process import PATIENCE


def test_a_column_replaced_during_a_round_keeps_the_values_of_the_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = gate_at("before-commit", monkeypatch)
    topic, job = topic_with(world, good(0, 5), freshness_ms=500)
    gate.closed.set()
    world.produce(topic, [value(number) for number in range(5, 10)])
    assert gate.held.wait(WAIT * PATIENCE)
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


def test_a_column_renamed_during_a_round_has_the_values_of_both_names(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator renames a column before it writes the contract. Producers may keep the earlier name."""
    gate = gate_at("before-commit", monkeypatch)
    topic, job = topic_with(world, good(0, 5), freshness_ms=500)
    gate.closed.set()
    world.produce(topic, [value(number) for number in range(5, 10)])
    assert gate.held.wait(WAIT * PATIENCE)
    rename(world.table(job))
    gate.open.set()
    world.await_rows(job, 10)
    world.produce(topic, [value(number) for number in range(10, 15)])
    world.await_rows(job, 15)
    fields = tuple(
        field.model_copy(update={"name": field.name.replace("name", "title")}) for field in job.record_schema.fields
    )
    schema = job.record_schema.model_copy(update={"fields": fields, "renames": (Rename(old="name", new="title"),)})
    later = job.model_copy(update={"record_schema": schema, "generation": job.generation + 1})
    world.apply(later)
    world.await_state(later, "CaughtUp", generation=later.generation)
    world.produce(topic, [value(number).replace(b'"name"', b'"title"') for number in range(15, 20)])
    world.produce(topic, [value(number) for number in range(20, 25)])
    rows = world.await_rows(later, 25)
    assert places(rows) == exactly({0: 25})
    assert [row["title"] for row in sorted(rows, key=lambda row: row["id"])] == [f"n{number}" for number in range(25)]
    assert "name" not in rows[0]


def rename(table: Any) -> None:
    """Rename a column as the operator does: with its earlier name in a property, in one commit."""
    number = table.schema().findField("name").fieldId()
    transaction = table.newTransaction()
    transaction.updateSchema().renameColumn("name", "title").commit()
    transaction.updateProperties().set(FORMER_NAMES, json.dumps({number: ["name"]})).commit()
    transaction.commitTransaction()
