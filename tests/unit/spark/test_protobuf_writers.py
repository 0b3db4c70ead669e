"""Protobuf values that name their schema are decoded with the message of their writer, into the columns of the table."""

import base64
from collections.abc import Sequence

import pytest

from firn import protoc
from firn.decoders.bad_records import Code
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, RecordSchema, Subject, WriterRename, WriterSchema
from firn_spark.worker.formats.format import Columns
from firn_spark.worker.formats.registry import open_format
from firn_spark.worker.formats.writer_schemas import WriterSchemas
from tests.unit.spark.protobuf_values import tagged, varint
from tests.unit.spark.records import fetched

FIRST = "message Order { int32 id = 1; string note = 2; }"
LATER = """
message Other { int64 id = 1; }
message Order {
  map<string, string> labels = 3;
  message Line { int64 id = 1; }
  message Item { int64 id = 1; }
  int64 id = 1;
}
"""


def writer(body: str) -> WriterSchema:
    text = f'syntax = "proto3"; package shop; {body}'
    return WriterSchema(text=text, descriptors=base64.b64encode(protoc.descriptors(text, ())).decode())


def schema(*columns: tuple[str, str], message: str = "") -> RecordSchema:
    return RecordSchema(
        format="Protobuf",
        framing="Registry",
        subject=Subject(registry="main", name="s"),
        message=message,
        fields=tuple(Column(name=name, type=kind) for name, kind in columns),
    )


def value(number: int, indexes: bytes, *fields: bytes) -> bytes:
    return b"\0" + number.to_bytes(4) + indexes + b"".join(fields)


def integer(field: int, number: int) -> bytes:
    return tagged(field, 0, varint(number))


def text(field: int, content: bytes) -> bytes:
    return tagged(field, 2, content)


def decoded(table: RecordSchema, *values: bytes | None, writers: Sequence[int] = (1, 2)) -> Columns:
    known: WriterSchemas = {number: writer(FIRST if number == 1 else LATER) for number in writers}
    return open_format(table, known).decode(fetched(list(values)))


def test_each_value_has_the_fields_of_its_writer() -> None:
    table = schema(("id", "long"), ("note", "string"), ("labels", "map<string, string>"), message="shop.Order")
    entry = text(1, b"k") + text(2, b"v")
    columns = decoded(
        table,
        value(1, b"\0", integer(1, 7), text(2, b"a")),
        value(2, b"\x02\x02", integer(1, 2**40), text(3, entry)),
        None,
        value(1, b"\0", integer(1, 8)),
    )
    assert columns.errors == {}
    assert [array.to_pylist() for array in columns.arrays] == [
        [7, 2**40, None, 8],
        ["a", None, None, ""],
        [None, [("k", "v")], None, None],
    ]


@pytest.mark.parametrize(
    ("message", "right", "wrong"),
    [
        ("", [0], [[1], [1, 0], [0, 0]]),
        ("shop.Order", [1], [[0], [1, 0], [2]]),
        ("shop.Order.Item", [1, 1], [[0], [1], [1, 0], [1, 1, 0]]),
    ],
)
def test_only_values_with_the_message_of_the_table_are_rows(
    message: str, right: list[int], wrong: list[list[int]]
) -> None:
    def indexed(indexes: list[int]) -> bytes:
        listed = bytes([2 * len(indexes), *(2 * index for index in indexes)])
        return value(2, listed, integer(1, 5))

    columns = decoded(schema(("id", "long"), message=message), indexed(right), *map(indexed, wrong), writers=[2])
    assert columns.arrays[0].to_pylist() == [5] + [None] * len(wrong)
    assert set(columns.errors) == set(range(1, 1 + len(wrong)))
    error = columns.errors[1]
    name = message or "shop.Other"
    assert error.code is Code.INVALID_PROTOBUF
    assert error.detail.startswith(f"byte 5: the message indexes are {wrong[0]}, and the table has columns for {name};")


def test_the_message_of_the_table_may_have_another_place_in_each_text() -> None:
    table = schema(("id", "long")).model_copy(update={"found_message": "shop.Order"})
    columns = decoded(table, value(1, b"\0", integer(1, 5)), value(2, b"\x02\x02", integer(1, 6)))
    assert (columns.arrays[0].to_pylist(), columns.errors) == ([5, 6], {})
    assert list(decoded(table, value(2, b"\0", integer(1, 5))).errors) == [0]


def test_a_field_reaches_the_column_of_its_number() -> None:
    moved = WriterRename(schema_id=1, old="a", new="b")
    table = schema(("b", "string"), ("a", "string")).model_copy(update={"writer_renames": (moved,)})
    known: WriterSchemas = {
        1: writer("message Order { string a = 1; }"),
        2: writer("message Order { string b = 1; string a = 2; }"),
    }
    values = [value(1, b"\0", text(1, b"one")), value(2, b"\0", text(1, b"one"), text(2, b"two"))]
    columns = open_format(table, known).decode(fetched(values))
    assert [array.to_pylist() for array in columns.arrays] == [["one", "one"], [None, "two"]]


def test_one_byte_names_the_first_message() -> None:
    table = schema(("id", "long"))
    columns = decoded(table, value(2, b"\0", integer(1, 5)), value(2, b"\x02\0", integer(1, 6)))
    assert (columns.arrays[0].to_pylist(), columns.errors) == ([5, 6], {})
    columns = decoded(schema(("id", "long"), message="shop.Order"), value(2, b"\0", integer(1, 5)))
    assert list(columns.errors) == [0]


def test_bad_values_are_errors_at_their_places() -> None:
    good = value(1, b"\0", integer(1, 7))
    columns = decoded(schema(("id", "long")), good, b"plain", b"", good[:-1], good[:5], value(1, b"\0"), good)
    assert columns.arrays[0].to_pylist() == [7, None, None, None, None, 0, 7]
    assert {place: error.code for place, error in sorted(columns.errors.items())} == {
        1: Code.UNKNOWN_SCHEMA, 2: Code.EMPTY_PAYLOAD, 3: Code.INVALID_PROTOBUF, 4: Code.INVALID_PROTOBUF,
    }  # fmt: skip


def test_a_writer_without_the_message_of_the_table_is_an_error() -> None:
    with pytest.raises(
        InvalidSpecError, match=r"the text has no message shop\.Ordr; set schema\.message to shop\.Order"
    ):
        decoded(schema(("id", "long"), message="shop.Ordr"), value(1, b"\0"))
