"""Columns that other clients rename keep their fields, and columns that they drop do not come again."""

import json
from typing import Any

import pytest

from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, KeySchema, ProjectedColumn, Projection, RecordSchema
from firn.schemas import other_clients
from firn.schemas.other_clients import DROPPED, REMOVED, SCHEMA_ID, Followed, followed, is_dropped, kept_schema, without
from firn.tables import renames, rows
from firn.tables.renames import FORMER_NAMES


def leaf(number: int, name: str, kind: Any = "string") -> dict[str, Any]:
    return {"id": number, "name": name, "required": False, "type": kind}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def listed(number: int, element: Any) -> dict[str, Any]:
    return {"type": "list", "element-id": number, "element-required": False, "element": element}


BEFORE = [
    leaf(1, "carrier"),
    leaf(2, "delay", "int"),
    leaf(3, "origin", struct(leaf(4, "code"), leaf(5, "city"))),
    leaf(6, "legs", listed(7, struct(leaf(8, "miles", "int"), leaf(9, "tail")))),
    leaf(10, "_kafka", struct(leaf(11, "offset", "long"))),
    leaf(12, "key_id", "int"),
]
AFTER = [
    leaf(1, "airline"),
    leaf(3, "start", struct(leaf(4, "airport"))),
    leaf(6, "legs", listed(7, struct(leaf(8, "miles", "int")))),
    leaf(13, "theirs"),
]
FIELDS = (
    Column(name="carrier", type="string"),
    Column(name="delay", type="int"),
    Column(name="origin", type="struct<code: string, city: string>"),
    Column(name="legs", type="list<struct<miles: int, tail: string>>"),
)


KEY = KeySchema(columns="Flat", fields=(Column(name="id", type="int"),))


def found(after: Any = AFTER, **properties: str) -> other_clients.Followed:
    return followed({3: BEFORE, 7: after}, 7, {SCHEMA_ID: "3", **properties}, key=KEY)


def test_columns_of_every_depth_are_followed_by_their_ids() -> None:
    known = found()
    assert known.former == {1: ("carrier",), 3: ("origin",), 4: ("code",)}
    assert known.dropped == {0: ("delay",), 3: ("city",), 7: ("tail",)}
    assert sorted(known.paths) == ["delay", "legs.element.tail", "start.city"]
    assert "column carrier was renamed to airline by another client, and its field follows" in known.texts
    assert not any("_kafka" in text or "key_id" in text for text in known.texts)
    named = without(renames.renamed_columns(FIELDS, known.following), AFTER, known.dropped)
    assert {column.name: column.type for column in named} == {
        "airline": "string",
        "start": "struct<airport: string>",
        "legs": "list<struct<miles: int>>",
    }


def test_what_was_followed_is_kept_in_properties() -> None:
    put = found().properties({})
    assert json.loads(put[FORMER_NAMES]) == {"1": ["carrier"], "3": ["origin"], "4": ["code"]}
    again = followed({7: AFTER}, 7, {SCHEMA_ID: "7", **put})
    assert (again.texts, again.properties(put)) == ((), {})
    assert again.dropped == found().dropped


@pytest.mark.parametrize("known", ["", "7", "5", "x"])
def test_without_the_earlier_schema_nothing_has_changed(known: str) -> None:
    assert followed({3: BEFORE, 7: AFTER}, 7, {SCHEMA_ID: known}).texts == ()


def test_a_column_that_another_client_adds_again_gets_its_field_back() -> None:
    put = found().properties({})
    back = [*AFTER, leaf(20, "delay", "int")]
    known = followed({7: AFTER, 8: back}, 8, {SCHEMA_ID: "7", **put})
    assert known.dropped == {3: ("city",), 7: ("tail",)}
    assert not is_dropped(("delay",), back, known.dropped)
    assert is_dropped(("start", "city"), back, known.dropped)


def test_a_column_that_firn_dropped_comes_again_only_if_the_contract_has_it() -> None:
    properties = {REMOVED: '["discount", "note"]', SCHEMA_ID: "3"}
    known = followed({3: BEFORE}, 3, properties, wanted=["note"])
    assert (known.dropped, known.listed, known.paths) == ({0: ("discount",)}, {}, ())
    assert known.properties(properties) == {}


def test_a_key_gets_a_column_that_was_dropped_before_it() -> None:
    properties = {DROPPED: '{"0": ["key_id", "key_note", "other"]}', SCHEMA_ID: "7"}
    known = followed({7: [leaf(1, "id")]}, 7, properties, wanted=["key_note"], key=KEY)
    assert known.dropped == {0: ("key_note", "other")}
    assert json.loads(known.properties(properties)[DROPPED]) == {"0": ["key_note", "other"]}


def test_members_of_the_column_of_the_key_keep_their_names() -> None:
    before = [leaf(1, "id"), leaf(2, "key", struct(leaf(3, "shop")))]
    after = [leaf(1, "id"), leaf(2, "key", struct(leaf(3, "store")))]
    key = KeySchema(columns="Struct", fields=(Column(name="shop", type="string"),))
    assert followed({0: before, 1: after}, 1, {SCHEMA_ID: "0"}, key=key).texts == ()
    assert len(followed({0: before, 1: after}, 1, {SCHEMA_ID: "0"}).texts) == 1


def test_the_earlier_names_of_a_dropped_column_are_dropped_too() -> None:
    known = found([leaf(2, "delay", "int")], **{FORMER_NAMES: '{"1": ["airline"]}'})
    assert known.dropped[0][:2] == ("airline", "carrier")


@pytest.mark.parametrize(
    ("after", "properties"),
    [
        ([leaf(1, "delay"), leaf(2, "carrier", "int")], {}),
        ([leaf(1, "delay")], {}),
        ([leaf(1, "carrier"), leaf(2, "airline", "int")], {FORMER_NAMES: '{"1": ["airline"]}'}),
        ([leaf(1, "carrier"), leaf(2, "note", "int")], {DROPPED: '{"0": ["note"]}'}),
    ],
)
def test_a_name_that_another_column_had_is_ambiguous(after: Any, properties: dict[str, str]) -> None:
    with pytest.raises(InvalidSpecError, match="which was the name of another column; .* remove the table property"):
        found(after, **properties)


def test_records_may_have_the_field_of_a_dropped_column() -> None:
    schema = RecordSchema(format="Json", fields=FIELDS, unknown_fields="DeadLetter")
    kept = kept_schema(schema, Followed(dropped={0: ("delay",)}, fields=[leaf(1, "carrier")]))
    assert [field.name for field in kept.fields] == ["carrier", "origin", "legs"]
    assert kept.unknown_fields == "Ignore"
    assert kept_schema(schema, Followed(fields=BEFORE)) is schema


def test_other_members_have_no_column_after_its_drop() -> None:
    schema = RecordSchema(format="Json", fields=FIELDS, unknown_column="others")
    kept = kept_schema(schema, Followed(dropped={0: ("others",)}, fields=BEFORE))
    assert (rows.decoded_columns(kept), kept.unknown_fields) == (FIELDS, "Ignore")
    back = kept_schema(schema, Followed(dropped={0: ("others",)}, fields=[*BEFORE, leaf(30, "others", "variant")]))
    assert back.unknown_column == "others"


def test_computed_columns_are_followed_too() -> None:
    columns = tuple(ProjectedColumn(name=name, type="string", source=f"$.{name}") for name in ("carrier", "delay"))
    schema = RecordSchema(format="Json", fields=FIELDS, projection=Projection(columns=columns))
    kept = kept_schema(schema, Followed({1: ("carrier",)}, {0: ("delay",)}, fields=[leaf(1, "airline")]))
    assert kept.projection is not None
    assert [(column.name, column.source) for column in kept.projection.columns] == [("airline", "$.carrier")]
