"""Topics of which only some records land."""

from typing import Any

import pytest

from tests import gen
from tests.fakes.world import World

FIELDS = [{"name": "id", "type": "long"}, {"name": "place", "type": "struct<country: string>"}]


def spec(condition: str | None, **schema: Any) -> dict[str, Any]:
    given = {"format": "Json", "fields": FIELDS, **schema}
    return {"schema": given if condition is None else {**given, "filter": condition}}


async def created(given: dict[str, Any]) -> World:
    live = World(gen.config())
    live.cluster.create(gen.topic("flights", **given))
    await live.settle()
    return live


async def test_the_contract_has_the_condition_until_the_spec_removes_it() -> None:
    live = await created(spec("place.country = 'CH' and _kafka.partition >= 0"))
    assert live.conditions()["SpecValid"] == ("True", "Valid")
    assert live.job().filter == "place.country = 'CH' and _kafka.partition >= 0"
    live.cluster.edit("flights", lambda manifest: manifest.update(spec=spec(None)))
    await live.settle()
    assert live.job().filter == ""
    assert "filter" not in live.job().model_dump_json()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (spec("coutnry = 'CH'"), "'coutnry' is not a column of the table"),
        (spec("id >"), "spec.schema.filter: "),
        (spec("id"), "the check has type long and is not a condition"),
        (spec("place.country matches '('"), "is not a pattern of RE2"),
        (spec("id > 0", columns=[{"name": "number", "from": "$.id"}]), "'id' is not a column of the table"),
    ],
)
async def test_a_condition_that_does_not_fit_the_table_is_refused(given: dict[str, Any], message: str) -> None:
    live = await created(given)
    assert live.conditions()["SpecValid"] == ("False", "BadSchema")
    assert live.message("SpecValid").startswith("spec.schema.filter: ")
    assert message in live.message("SpecValid")


async def test_computed_columns_may_be_in_the_condition() -> None:
    live = await created(spec("kind = 'order'", columns=[{"name": "kind", "from": "header:kind"}]))
    assert live.conditions()["SpecValid"] == ("True", "Valid")
