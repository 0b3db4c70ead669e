"""`firn dlq list` and `firn dlq show` on a real catalog. Bytes of records are shown on request only."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from firn.model.errors import InvalidSpecError
from firn_operator.cli import letters
from firn_operator.cli.lake import Lake
from firn_spark.worker.decoding import DEAD_LETTER_SCHEMA
from tests.unit.operator.test_sql import lake_of

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def topic(table: str = "lake.demo.orders") -> dict[str, Any]:
    return {"metadata": {"namespace": "shop", "name": "orders"}, "status": {"table": {"identifier": table}}}


def letter(offset: int, code: str, generation: int) -> dict[str, Any]:
    place = {"partition": 0, "offset": offset, "timestamp_ms": 0, "timestamp_type": 0}
    return {
        "error_code": code,
        "error_stage": "Schema",
        "error_path": "$.id",
        "error_detail": "quotes secret",
        "value": b"secret",
        "generation": generation,
        "ingested_at": NOON + timedelta(hours=offset),
        "_kafka": {**place, "timestamp": NOON, "key": None, "headers": None},
    }


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    opened = lake_of(
        {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    )
    catalog = opened.catalog("lake")
    catalog.create_namespace("demo")
    rows = [letter(0, "WrongKind", 1), letter(1, "WrongKind", 2), letter(2, "it's", 2)]
    table = pa.Table.from_pylist(rows, DEAD_LETTER_SCHEMA)
    catalog.create_table(("demo", "orders__dlq"), table.schema).append(table)
    return opened


def test_letters_are_counted_by_cause(lake: Lake) -> None:
    assert letters.counts(lake, topic()).to_pylist()[0] == {
        "code": "WrongKind",
        "letters": 2,
        "first": NOON,
        "last": NOON + timedelta(hours=1),
        "first generation": 1,
        "last generation": 2,
    }


def test_the_newest_letters_are_shown_without_any_byte_of_a_record(lake: Lake) -> None:
    shown = letters.letters(lake, topic(), (), 2, values=False).to_pylist()
    assert [row["offset"] for row in shown] == [2, 1]
    assert "secret" not in str(shown)


def test_bytes_are_shown_on_request(lake: Lake) -> None:
    (row,) = letters.letters(lake, topic(), ("it's",), 20, values=True).to_pylist()
    assert (row["offset"], row["value"], row["detail"]) == (2, b"secret", "quotes secret")


def test_a_topic_without_dead_letters_has_an_empty_list(lake: Lake) -> None:
    assert letters.counts(lake, topic("lake.demo.other")).num_rows == 0
    assert letters.letters(lake, topic("lake.demo.other"), (), 1, values=True).num_rows == 0


def test_a_topic_without_a_table_is_named(lake: Lake) -> None:
    with pytest.raises(InvalidSpecError, match="IcebergTopic shop/orders has no table yet"):
        letters.counts(lake, topic(""))


@pytest.mark.parametrize(
    ("value", "sources", "expected"),
    [
        (b'{"id": 1, "card": "4711"}', ["$.card"], b'{"id": 1, "card": "***"}'),
        (b'{"a": {"b": "4711"}, "card": "4711"}', ["$.a.b", "$.card"], b'{"a": {"b": "***"}, "card": "***"}'),
        (b'{"CARD": "4711"}', ["$.card"], b"***"),
        (b'{"card": "4711", "text": "\\ud800"}', ["$.card"], b"***"),
        (b'{"a": ["4711"]}', ["$.a.b"], b"***"),
        (
            b'{"user.name": "4711", "user": {"@id": "4711"}}',
            ["$['user.name']", "$.user['@id']"],
            b'{"user.name": "***", "user": {"@id": "***"}}',
        ),
        (b'{"user": {"name": "4711"}}', ["$['user.name']"], b"***"),
        (b'{"a": "4711"}', ['$["a"]'], b"***"),
        (b'["card", "4711"]', ["$.card"], b"***"),
        (b"\x00\x00\x00\x00\x074711", ["$.card"], b"***"),
        (b"4711", ["value"], b"***"),
        (b"4711", ["key"], b"4711"),
    ],
)
def test_fields_that_the_spec_masks_are_masked(lake: Lake, value: bytes, sources: list[str], expected: bytes) -> None:
    columns = [{"name": f"c{number}", "from": each, "with": "Mask"} for number, each in enumerate(sources)]
    shown = masked(lake, value, {"schema": {"columns": columns}})
    assert (shown["value"], shown["detail"]) == (expected, "***")
    assert shown["key"] == (b"***" if "key" in sources else b"k")


def test_fields_that_the_table_of_a_route_masks_are_masked(lake: Lake) -> None:
    columns = [{"name": "card", "from": "$.card", "with": "Sha256"}]
    spec = {"routes": {"tables": [{"name": "a"}, {"name": "b", "schema": {"columns": columns}}]}}
    assert masked(lake, b'{"card": "4711"}', spec)["value"] == b'{"card": "***"}'


def test_the_whole_value_is_masked_if_a_schema_renames_fields(lake: Lake) -> None:
    schema = {
        "columns": [{"name": "mail", "from": "$.mail", "with": "Mask"}],
        "renames": [{"from": "email", "to": "mail"}],
    }
    assert masked(lake, b'{"email": "4711", "mail": "4711"}', {"schema": schema})["value"] == b"***"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("$", "$"),
        ("$.mails", "$.mails"),
        ("$.mails.ann@shop", "$.mails.***"),
        ("$.mails.id", "$.mails.***"),
        ("$.mails['ann']", "$.mails.***"),
        ("$.items[2].price", "$.items[2].price"),
        ("$.items[2].ann", "$.items[2].***"),
        ("$.ann", "$.***"),
        ("$.[4711]", "$.***"),
        ("$.idann", "$.***"),
        ("$.customer.card", "$.customer.card"),
        ("$.customer.ann", "$.customer.***"),
        ("$.hidden", "$.hidden"),
        ("$['order-id']", "$['order-id']"),
        ("$['order-ann']", "$.***"),
        ("$.items[0]['it\\'s'].ann", "$.items[0]['it\\'s'].***"),
        ("$['user.name']['e-mail']", "$['user.name']['e-mail']"),
        ("$.user.name", "$.***"),
        ("$['user.name'].ann", "$['user.name'].***"),
        ("$key", "$key"),
        ("$key.id", "$key.***"),
        ("ann", "***"),
    ],
)
@pytest.mark.parametrize("values", [False, True])
def test_places_of_errors_show_only_names_of_a_spec_that_masks(
    lake: Lake, path: str, expected: str, values: bool
) -> None:
    fields = [
        {"name": "id", "type": "long"},
        {"name": "mails", "type": "map<string, long>"},
        {"name": "items", "type": "list<struct<price: long, 'it\\'s': struct<a: int>>>"},
        {"name": "order-id", "type": "long"},
        {"name": "wrong", "type": "nothing"},
    ]
    columns = [
        {"name": "hidden", "from": "$.customer.card", "with": "Mask"},
        {"name": "mail", "from": "$['user.name']['e-mail']", "with": "Mask"},
        {"name": "source", "constant": "web"},
    ]
    spec = {"schema": {"fields": fields, "columns": columns}}
    assert masked(lake, b"{}", spec, path=path, values=values)["path"] == expected


def test_places_of_errors_are_whole_if_the_spec_masks_nothing(lake: Lake) -> None:
    assert masked(lake, b"{}", {"schema": {"fields": []}}, path="$.ann")["path"] == "$.ann"


def masked(
    lake: Lake, value: bytes, spec: dict[str, Any], *, path: str = "$.id", values: bool = True
) -> dict[str, Any]:
    """Return the shown letter of a record with this value."""
    table = lake.catalog("lake").load_table(("demo", "orders__dlq"))
    row = letter(7, "Masked", 3) | {"value": value, "key": b"k", "error_path": path}
    table.append(pa.Table.from_pylist([row], DEAD_LETTER_SCHEMA))
    (shown,) = letters.letters(lake, topic() | {"spec": spec}, ("Masked",), 1, values=values).to_pylist()
    return dict(shown)
