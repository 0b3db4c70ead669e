"""Changes of a schema wait for an approval, or are refused, if the evolution policy of a topic says so."""

from typing import Any

import pytest

from firn.model import names
from firn.model.progress import Proposal
from tests import gen
from tests.fakes.world import World

ID, NOTE = {"name": "id", "type": "int", "required": True}, {"name": "note", "type": "string"}


def schema_of(*fields: dict[str, Any], **evolution: str) -> dict[str, Any]:
    return {"format": "Json", "fields": list(fields), "evolution": evolution}


async def created(*fields: dict[str, Any], **evolution: str) -> World:
    live = World()
    live.cluster.create(gen.topic("flights", schema=schema_of(*fields, **evolution)))
    await live.settle()
    return live


async def change(live: World, schema: dict[str, Any]) -> None:
    live.cluster.edit("flights", lambda manifest: manifest["spec"].update(schema=schema))
    await live.settle()


async def approve(live: World, value: str) -> None:
    live.cluster.edit("flights", gen.annotated(names.APPROVE, value))
    await live.settle()


def status(live: World) -> dict[str, Any]:
    found: dict[str, Any] = live.cluster.resource("IcebergTopic", "flights")["status"]
    return found


def columns(live: World) -> list[str]:
    return [field.name for field in live.job().record_schema.fields]


async def test_proposed_changes_wait_for_the_approval_of_exactly_these() -> None:
    live = await created(ID, add="Propose")
    assert live.conditions()["SchemaCompatible"] == ("True", "Compatible")
    await change(live, schema_of(ID, NOTE, add="Propose"))
    for kind in ("SchemaCompatible", "TableReady", "Ready"):
        assert live.conditions()[kind] == ("False", "Proposed")
    (proposed,) = status(live)["schema"]["proposed"]
    assert proposed["change"] == "add column note: string"
    command = f"kubectl -n demo annotate --overwrite itopic flights firn.dev/approve={proposed['approve']}"
    assert command in live.message("SchemaCompatible")
    assert columns(live) == ["id"], "ingestion continues under the contract in force"
    await approve(live, "0123456789ab")
    assert live.conditions()["SchemaCompatible"] == ("False", "Proposed")
    await approve(live, proposed["approve"])
    assert live.conditions()["Ready"] == ("True", "AllReady")
    assert columns(live) == ["id", "note"]
    assert "schema" not in status(live)
    more = {"name": "more", "type": "long"}
    await change(live, schema_of(ID, NOTE, more, add="Propose"))
    assert live.conditions()["SchemaCompatible"] == ("False", "Proposed"), "an approval is for one set of changes"


async def test_a_change_back_ends_a_proposal() -> None:
    live = await created(ID, add="Propose")
    await change(live, schema_of(ID, NOTE, add="Propose"))
    await change(live, schema_of(ID, add="Propose"))
    assert live.conditions()["Ready"] == ("True", "AllReady")
    assert "schema" not in status(live)


@pytest.mark.parametrize(
    ("policy", "fields", "change_text"),
    [
        ({"add": "Refuse"}, (ID, NOTE), "add column note: string: spec.schema.evolution.add is Refuse"),
        ({"widen": "Refuse"}, (ID | {"type": "long"},), "widen column id: int to long"),
        ({"optional": "Refuse"}, (ID | {"required": False},), "make column id optional"),
    ],
)
async def test_refused_changes_leave_the_contract_in_force(
    policy: dict[str, str], fields: tuple[dict[str, Any], ...], change_text: str
) -> None:
    live = await created(ID, **policy)
    before = live.job()
    await change(live, schema_of(*fields, **policy))
    assert live.conditions()["SchemaCompatible"] == ("False", "IncompatibleSchema")
    assert live.conditions()["SpecValid"] == ("False", "IncompatibleSchema")
    assert change_text in live.message("SchemaCompatible")
    assert live.job() == before
    await change(live, schema_of(*fields))
    assert live.conditions()["Ready"] == ("True", "AllReady")


async def test_a_field_of_json_may_be_removed_if_the_policy_keeps_its_column() -> None:
    live = await created(ID, NOTE)
    await change(live, schema_of(ID))
    assert live.conditions()["SpecValid"] == ("False", "IncompatibleSchema")
    await change(live, schema_of(ID, drop="KeepNull"))
    assert live.conditions()["Ready"] == ("True", "AllReady")
    assert columns(live) == ["id"]


async def test_another_partitioning_waits_for_an_approval() -> None:
    live = await created(ID, partition="Propose", sort="Refuse")

    def lay_out(**terms: Any) -> Any:
        return lambda manifest: manifest["spec"].setdefault("table", {}).update(terms)

    live.cluster.edit("flights", lay_out(partitionBy=["bucket(8, id)"]))
    await live.settle()
    assert live.conditions()["SchemaCompatible"] == ("False", "Proposed")
    (proposed,) = status(live)["schema"]["proposed"]
    assert proposed["change"] == "partition by bucket(8, id)"
    assert live.job().table.partition_by is None
    await approve(live, proposed["approve"])
    assert live.conditions()["Ready"] == ("True", "AllReady")
    assert live.job().table.partition_by == ("bucket(8, id)",)
    live.cluster.edit("flights", lay_out(sortBy=["id"]))
    await live.settle()
    assert live.conditions()["SchemaCompatible"] == ("False", "IncompatibleSchema")
    assert "sort by id asc nulls first: spec.schema.evolution.sort is Refuse" in live.message("SchemaCompatible")


async def test_a_column_is_dropped_after_its_approval() -> None:
    live = await created(ID, NOTE, drop="DropColumn")
    await change(live, schema_of(ID, drop="DropColumn"))
    assert live.conditions()["Ready"] == ("True", "AllReady")
    (proposed,) = status(live)["schema"]["proposed"]
    assert proposed["change"] == "drop column note"
    assert f"firn.dev/approve={proposed['approve']}" in live.message("SchemaCompatible")
    schema = live.job().record_schema
    assert (columns(live), schema.gone, schema.evolution.approved) == (["id"], ("note",), "")
    await approve(live, proposed["approve"])
    assert "schema" not in status(live)
    schema = live.job().record_schema
    assert (schema.gone, schema.evolution.approved) == (("note",), proposed["approve"])
    await change(live, schema_of(ID, NOTE, drop="DropColumn"))
    assert (columns(live), live.job().record_schema.gone) == (["id", "note"], ())


async def test_a_topic_without_a_policy_has_no_condition_about_its_schema() -> None:
    live = World()
    live.cluster.create(gen.topic("flights"))
    await live.settle()
    assert "SchemaCompatible" not in live.conditions()


async def test_the_condition_names_columns_that_another_client_has_dropped() -> None:
    live = World()
    live.cluster.create(gen.topic("flights", schema={"format": "Json", "fields": [ID, NOTE]}))
    await live.settle()
    (table,) = live.tables.tables.values()
    table.dropped = ("note",)
    live.cluster.edit("flights", gen.annotated(names.RESTART, "now"))
    await live.settle()
    assert live.conditions()["SchemaCompatible"] == ("True", "Compatible")
    assert "another client dropped column note" in live.message("SchemaCompatible")
    assert live.conditions()["Ready"] == ("True", "AllReady")


async def test_proposals_of_the_driver_stand_in_the_status() -> None:
    live = await created(ID, add="Propose")
    proposal = Proposal(changes=("add column x: int", "add column y: int"), approve="0123456789ab")
    live.driver.report_fields["uid-demo-flights"] = {"proposed": proposal}
    await live.settle()
    assert live.conditions()["SchemaCompatible"] == ("False", "Proposed")
    assert status(live)["schema"]["proposed"] == [
        {"change": text, "approve": "0123456789ab"} for text in proposal.changes
    ]
    assert columns(live) == ["id"]
