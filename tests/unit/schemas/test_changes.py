"""The changes of a table that a schema needs, and which of them the evolution policy allows."""

from typing import Any

import pytest

from firn.model.jobs import Column, Evolution, KeySchema, RecordSchema, Rename, TableTarget
from firn.schemas import changes
from firn.tables import renames

FIELDS: list[dict[str, Any]] = [
    {"id": 1, "name": "id", "required": True, "type": "int"},
    {"id": 2, "name": "customer", "required": False, "type": {"type": "struct", "fields": [
        {"id": 3, "name": "mail", "required": False, "type": "string"},
    ]}},
    {"id": 4, "name": "legs", "required": False, "type": {
        "type": "list", "element-id": 5, "element-required": False, "element": {"type": "struct", "fields": [
            {"id": 6, "name": "miles", "required": False, "type": "float"},
        ]}}},
    {"id": 7, "name": "foreign", "required": False, "type": "variant"},
    {"id": 8, "name": "_kafka", "required": False, "type": {"type": "struct", "fields": []}},
]  # fmt: skip
SCHEMA = [
    Column(name="id", type="long"),
    Column(name="client", type="struct<mail: string, age: int>"),
    Column(name="legs", type="list<struct<miles: double>>"),
    Column(name="note", type="string"),
    Column(name="_kafka", type="struct<partition: int, schema_id: int>"),
]
RENAMES = (Rename(old="customer", new="client"),)
WANTED = [
    ("rename", "rename column customer to client"),
    ("optional", "make column id optional"),
    ("widen", "widen column id: int to long"),
    ("add", "add column client.age: int"),
    ("widen", "widen column legs.element.miles: float to double"),
    ("add", "add column note: string"),
]


def test_a_table_has_the_changes_of_every_depth() -> None:
    renaming = renames.planned(FIELDS, {}, RENAMES)
    assert [(each.kind, each.text) for each in changes.of_table(renaming, SCHEMA)] == WANTED


def test_a_schema_in_force_has_the_same_changes() -> None:
    before = [
        Column(name="id", type="int", required=True),
        Column(name="customer", type="struct<mail: string>"),
        Column(name="legs", type="list<struct<miles: float>>"),
        Column(name="gone", type="int"),
    ]
    old, new = RecordSchema(format="Json", fields=before), RecordSchema(format="Json", fields=SCHEMA, renames=RENAMES)
    found = [(each.kind, each.text) for each in changes.between(old, new)]
    assert found == [*WANTED, ("drop", "drop column gone")]


def test_columns_of_keys_have_changes_too() -> None:
    fields = (Column(name="id", type="int"),)
    flat, struct = (
        KeySchema(columns="Flat", fields=(Column(name="id", type="int", required=True),)),
        KeySchema(columns="Flat", fields=(Column(name="id", type="long"), Column(name="shop", type="string"))),
    )
    old, new = (
        RecordSchema(format="Json", fields=fields, key=flat),
        RecordSchema(format="Json", fields=fields, key=struct),
    )
    assert [(each.kind, each.text) for each in changes.between(old, new)] == [
        ("optional", "make column key_id optional"),
        ("widen", "widen column key_id: int to long"),
        ("add", "add column key_shop: string"),
    ]


def test_another_partitioning_and_sort_order_are_changes() -> None:
    before = TableTarget(catalog="lake", namespace="shop", name="orders", partition_by=("days(at)",))
    same = before.model_copy(update={"partition_by": ("day(at)",)})
    assert changes.of_layout(before, same) == ()
    after = before.model_copy(update={"partition_by": ("month(at)", "bucket(8, id)"), "sort_by": ("at desc", "id")})
    assert [(each.kind, each.text) for each in changes.of_layout(before, after)] == [
        ("partition", "partition by month(at), bucket(8, id)"),
        ("sort", "sort by at desc nulls last, id asc nulls first"),
    ]
    (gone,) = changes.of_layout(before, before.model_copy(update={"partition_by": None}))
    assert gone.text == "partition by no column"


def test_a_table_that_fits_has_no_changes() -> None:
    fitting = [Column(name="id", type="int", required=True), Column(name="customer", type="struct<mail: string>")]
    assert changes.of_table(renames.planned(FIELDS, {}, ()), fitting) == ()


CHANGES = tuple(changes.Change(changes.ChangeKind(kind), text) for kind, text in WANTED)


@pytest.mark.parametrize(
    ("policy", "refused", "proposed"),
    [
        ({}, [], []),
        ({"add": "Propose"}, [], ["add", "add"]),
        ({"widen": "Refuse", "rename": "Propose"}, ["widen", "widen"], ["rename"]),
        ({"optional": "Refuse"}, ["optional"], []),
    ],
)
def test_the_policy_judges_each_kind(policy: dict[str, Any], refused: list[str], proposed: list[str]) -> None:
    found = changes.judged(CHANGES, Evolution(**policy), "uuid", 3)
    assert [each.kind for each in found.refused] == refused
    assert [each.kind for each in found.proposed] == proposed
    assert found.blocked is bool(refused or proposed)
    assert bool(found.approve) is bool(proposed)


def test_an_approval_is_for_these_changes_of_this_table_only() -> None:
    policy = Evolution(add="Propose")
    approve = changes.judged(CHANGES, policy, "uuid", 3).approve
    approved = policy.model_copy(update={"approved": approve})
    assert not changes.judged(CHANGES, approved, "uuid", 3).blocked
    for given, uuid, schema_id in ((CHANGES[:-1], "uuid", 3), (CHANGES, "other", 3), (CHANGES, "uuid", 4)):
        assert changes.judged(given, approved, uuid, schema_id).approve != approve
    stricter = approved.model_copy(update={"rename": "Refuse"})
    assert [each.kind for each in changes.judged(CHANGES, stricter, "uuid", 3).refused] == ["rename"]


DROPS = Evolution(drop="DropColumn")


@pytest.mark.parametrize(
    ("policy", "gone", "kept", "wanted"),
    [
        (DROPS, ("customer", "id"), frozenset(), ("customer", "id")),
        (DROPS, ("customer", "id"), frozenset({3}), ("id",)),
        (DROPS, ("customer", "other", "legs"), frozenset(), ("customer",)),
        (Evolution(drop="KeepNull"), ("customer", "id"), frozenset(), ()),
        (Evolution(), ("customer", "id"), frozenset(), ()),
    ],
    ids=["all", "a partition needs a member", "missing or wanted again", "they stay", "no policy"],
)
def test_columns_that_the_schema_no_longer_has_are_dropped_by_its_policy_only(
    policy: Evolution, gone: tuple[str, ...], kept: frozenset[int], wanted: tuple[str, ...]
) -> None:
    schema = RecordSchema(format="Json", fields=(Column(name="legs", type="string"),), gone=gone, evolution=policy)
    assert changes.drops(schema, FIELDS, kept) == wanted


def test_a_drop_needs_an_approval_of_these_columns_of_this_table() -> None:
    found = changes.proposed_drops(("note", "id"), DROPS, "uuid", 3)
    assert [each.text for each in found.proposed] == ["drop column note", "drop column id"]
    approved = DROPS.model_copy(update={"approved": found.approve})
    assert not changes.proposed_drops(("note", "id"), approved, "uuid", 3).blocked
    for columns, uuid, schema_id in ((("note",), "uuid", 3), (("note", "id"), "other", 3), (("note", "id"), "uuid", 4)):
        assert changes.proposed_drops(columns, approved, uuid, schema_id).blocked
    assert not changes.proposed_drops((), DROPS, "uuid", 3).blocked
