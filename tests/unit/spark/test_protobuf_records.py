"""Protobuf records become columns by the rules of the specification, and bad records name cause and place."""

import base64
import struct
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from firn import protoc
from firn.decoders import protobuf_limits as limits
from firn.decoders.bad_records import Code
from firn.model.jobs import Column, RecordSchema
from firn.schemas.columns import columns_of
from firn_spark.worker.decoding import Decoder
from firn_spark.worker.formats import arrays
from firn_spark.worker.formats.format import Columns
from firn_spark.worker.formats.protobuf import kernel
from firn_spark.worker.formats.protobuf.decoding import ProtobufFormat
from tests.unit.spark.protobuf_values import tagged, varint
from tests.unit.spark.records import fetched, job

HEAD = 'import "google/protobuf/timestamp.proto"; import "google/protobuf/wrappers.proto"; package t;'


def schema_of(body: str, types: str = "", syntax: str = "proto3", **changes: Any) -> RecordSchema:
    """Return the schema of a message with the fields ``body``."""
    text = f'syntax = "{syntax}"; {HEAD} message R {{ {body} }} {types}'
    content = base64.b64encode(protoc.descriptors(text, ())).decode()
    bare = RecordSchema(format="Protobuf", text=text, descriptors=content, **changes)
    return bare.model_copy(update={"fields": columns_of(bare, "text")})


def decoded(schema: RecordSchema, *values: bytes | None) -> Columns:
    return ProtobufFormat(schema).decode(fetched(list(values)))


def lists(schema: RecordSchema, *values: bytes | None) -> list[Any]:
    """Return the columns of values that are all good."""
    columns = decoded(schema, *values)
    assert not columns.errors
    return [array.to_pylist() for array in columns.arrays]


def number(field: int, value: int) -> bytes:
    return tagged(field, 0, varint(value))


def text(field: int, content: bytes) -> bytes:
    return tagged(field, 2, content)


def test_an_absent_field_is_its_default_or_null() -> None:
    body = "int32 a = 1; optional int32 b = 2; string c = 3; E d = 4; repeated int32 e = 5; I f = 6; map<int32, I> g = 7; enum E { X = 0; }"
    schema = schema_of(body, "message I { bool x = 1; bytes y = 2; }")
    inner = {"x": False, "y": b""}
    assert lists(schema, b"", None, text(6, b"") + text(7, b"")) == [
        [0, None, 0],
        [None, None, None],
        ["", None, ""],
        ["X", None, "X"],
        [[], None, []],
        [None, None, inner],
        [[], None, [(0, inner)]],
    ]


def test_defaults_of_proto2_are_values() -> None:
    body = (
        'optional string a = 1 [default = "none"]; optional int64 b = 2 [default = -7]; optional double c = 3 [default = 2.5];'
        ' optional float d = 4 [default = 0.5]; optional uint64 e = 5 [default = 18446744073709551615]; optional bytes f = 6 [default = "\\001"];'
        " optional bool g = 7 [default = true]; optional E h = 8 [default = Y]; optional int32 i = 9; enum E { X = 1; Y = 2; }"
    )
    schema = schema_of(body, syntax="proto2")
    for number_of_rows in (1, 3):
        rows = [b"", text(1, b""), None][:number_of_rows]
        found = lists(schema, *rows)
        assert [column[0] for column in found] == ["none", -7, 2.5, 0.5, 2**64 - 1, b"\x01", True, "Y", None]
        assert found[0][1:] == ["", None][: number_of_rows - 1]


def test_the_last_value_counts_and_messages_are_merged() -> None:
    schema = schema_of(
        "int32 a = 1; I b = 2; map<string, int32> c = 3; string d = 4;",
        "message I { int32 x = 1; repeated int32 y = 2; int32 z = 3; }",
    )
    one, two = number(1, 5) + number(2, 1), number(2, 2) + number(3, 9) + number(1, 6)
    entries = [text(3, text(1, b"k") + number(2, value)) for value in (1, 2)]
    value = (
        number(1, 1)
        + text(2, one)
        + number(1, 2)
        + text(2, two)
        + b"".join(entries)
        + text(4, b"long text")
        + text(4, b"no")
    )
    assert lists(schema, value) == [[2], [{"x": 6, "y": [1, 2], "z": 9}], [[("k", 2)]], ["no"]]


def test_a_member_of_a_oneof_replaces_the_others() -> None:
    schema = schema_of("oneof o { int32 a = 1; string b = 2; I c = 3; }", "message I { int32 x = 1; int32 y = 2; }")
    first, second = text(3, number(1, 5)), text(3, number(2, 6))
    found = lists(schema, number(1, 0), number(1, 5) + text(2, b"x"), first + second, first + number(1, 1) + second)
    assert found == [
        [0, None, None, None],
        [None, "x", None, None],
        [None, None, {"x": 5, "y": 6}, {"x": 0, "y": 6}],
    ]


def test_repeated_numbers_are_packed_or_not() -> None:
    schema = schema_of(
        "repeated sint32 a = 1; repeated double b = 2 [packed = false]; repeated E c = 3; enum E { X = 0; Y = 1; }"
    )
    packed = text(1, bytes([1, 2])) + text(2, struct.pack("<2d", 1.5, -0.0)) + text(3, bytes([0, 1, 9]))
    single = number(1, 1) + number(1, 2) + tagged(2, 1, struct.pack("<d", 1.5)) + number(3, 1)
    assert lists(schema, packed, single, packed + single) == [
        [[-1, 1], [-1, 1], [-1, 1, -1, 1]],
        [[1.5, -0.0], [1.5], [1.5, -0.0, 1.5]],
        [["X", "Y", "9"], ["Y"], ["X", "Y", "9", "Y"]],
    ]


@pytest.mark.parametrize("kind", ["E", "optional E"])
def test_an_unknown_number_of_an_enum_is_text(kind: str) -> None:
    schema = schema_of(f"{kind} a = 1; enum E {{ X = 0; Z = -4; }}")
    assert lists(schema, number(1, 7), number(1, -4), number(1, -1), number(1, 0)) == [["7", "Z", "-1", "X"]]
    assert lists(schema_of(f"{kind.removeprefix('optional ')} b = 2; enum E {{ X = 0; }}"), number(1, 1)) == [["X"]]


def test_times_are_truncated_to_microseconds() -> None:
    schema = schema_of("google.protobuf.Timestamp a = 1;")
    rows = [text(1, number(1, seconds) + number(2, nanos)) for seconds, nanos in ((0, 1999), (-1, 999_999_999), (5, 0))]
    columns = decoded(
        schema, *rows, text(1, number(1, 253_402_300_800)), text(1, number(2, 10**9)), text(1, number(2, -1))
    )
    assert [scalar.value for scalar in columns.arrays[0]] == [1, -1, 5_000_000, None, None, None]
    assert [(error.code, error.path) for error in columns.errors.values()] == [(Code.OUT_OF_RANGE, "$.a")] * 3
    assert columns.errors[4].detail == "expected nanos from 0 to 999999999, found 1000000000"


def test_times_keep_their_nanoseconds_on_demand() -> None:
    schema = schema_of("google.protobuf.Timestamp a = 1; repeated google.protobuf.Timestamp b = 2;", nanoseconds=True)
    moments = (0, 1999, -1, 2**63 - 1, 1 - 2**63, 1_700_000_000_123_456_789)
    times = [number(1, moment // 10**9) + number(2, moment % 10**9) for moment in moments]
    columns = decoded(
        schema,
        *(text(1, each) + text(2, each) for each in times),
        text(1, number(1, 9_223_372_036) + number(2, 854_775_808)),
    )
    assert [str(array.type) for array in columns.arrays] == [
        "timestamp[ns, tz=UTC]",
        "list<element: timestamp[ns, tz=UTC]>",
    ]
    assert [scalar.value for scalar in columns.arrays[0]] == [*moments, None]
    assert [scalar.value for scalar in columns.arrays[1].flatten()] == [*moments]
    assert {row: (error.code, error.path) for row, error in columns.errors.items()} == {6: (Code.OUT_OF_RANGE, "$.a")}


@pytest.mark.parametrize(
    ("keep", "kind", "moment"), [(True, "timestamptz", 1_000_001), (False, "timestamptz_ns", 1_000_001_999)]
)
def test_times_have_the_resolution_of_their_columns(keep: bool, kind: str, moment: int) -> None:
    schema = schema_of("google.protobuf.Timestamp a = 1; repeated google.protobuf.Timestamp b = 2;", nanoseconds=keep)
    columns = (Column(name="a", type=kind), Column(name="b", type=f"list<{kind}>"))
    time = number(1, 1) + number(2, 1999)
    found = decoded(schema.model_copy(update={"fields": columns}), text(1, time) + text(2, time))
    assert [found.arrays[0][0].value, found.arrays[1].flatten()[0].value] == [moment, moment]


def test_wrappers_are_null_or_values() -> None:
    schema = schema_of("google.protobuf.Int32Value a = 1; repeated google.protobuf.StringValue b = 2;")
    assert lists(schema, b"", text(1, b"") + text(2, b""), text(1, number(1, 7)) + text(2, text(1, b"x"))) == [
        [None, 0, 7],
        [[], [""], ["x"]],
    ]


@pytest.mark.parametrize(
    ("value", "code", "path", "detail"),
    [
        (b"\x08", Code.INVALID_PROTOBUF, "$.a", "the value ends too early"),
        (b"\xff" * 11, Code.INVALID_PROTOBUF, "$", "byte 0: a number has more than 64 bits"),
        (b"\x00\x01", Code.INVALID_PROTOBUF, "$", "byte 0: the tag 0 has no field number"),
        (b"\x88\x80\x80\x80\x80\x00\x01", Code.INVALID_PROTOBUF, "$", "byte 0: the tag 8 has no field number"),
        (tagged(1, 5, bytes(4)), Code.INVALID_PROTOBUF, "$.a", "byte 1: the field has wire type 5, and its type needs 0"),
        (text(2, b"\x79") + number(1, 1), Code.INVALID_PROTOBUF, "$.b.x", "byte 3: a message or a packed field ends too early"),
        (number(1, 2**31), Code.OUT_OF_RANGE, "$.a", "expected int32, found 2147483648"),
        (text(3, b"a\xff"), Code.INVALID_UTF8, "$.c", "byte 3: invalid start byte"),
        (text(4, text(1, b"")) + text(4, text(1, b"\xc3")), Code.INVALID_UTF8, "$.d[1].y", "byte 8: unexpected end of data"),
        (text(5, text(1, b"k") + text(2, b"")), Code.INVALID_PROTOBUF, "$.e[0].value", "wire type 2"),
        (varint(9 << 3 | 3) + varint(8 << 3 | 4), Code.INVALID_PROTOBUF, "$", "a group with the field number 8 ends, and did not begin"),
        (varint(9 << 3 | 4), Code.INVALID_PROTOBUF, "$", "a group with the field number 9 ends, and did not begin"),
        (varint(9 << 3 | 3) * 101, Code.INVALID_PROTOBUF, "$", "byte 100: more than 100 groups are inside each other"),
        (varint(9 << 3 | 6), Code.INVALID_PROTOBUF, "$", "byte 0: the wire type 6 does not exist"),
        (tagged(9, 2, b"")[:1] + varint(2**63), Code.INVALID_PROTOBUF, "$", "the value ends too early"),
        (text(2, b"")[:1] + varint(2**62), Code.INVALID_PROTOBUF, "$.b", "the value ends too early"),
        (number(6, 2**32), Code.OUT_OF_RANGE, "$.f", "expected uint32, found 4294967296"),
    ],
)  # fmt: skip
def test_a_bad_record_names_cause_and_place(value: bytes, code: Code, path: str, detail: str) -> None:
    schema = schema_of(
        "int32 a = 1; I b = 2; string c = 3; repeated J d = 4; map<string, int32> e = 5; uint32 f = 6;",
        'message I { double x = 15; int32 z = 2; } message J { string y = 1; }',
    )  # fmt: skip
    columns = decoded(schema, number(1, 3), value, b"")
    assert list(columns.errors) == [1]
    error = columns.errors[1]
    assert (error.code, error.path) == (code, path)
    assert detail in error.detail
    assert columns.arrays[0].to_pylist() == [3, None, 0]


def test_a_missing_required_field_is_bad() -> None:
    schema = schema_of("optional I a = 1;", "message I { required int32 x = 1; optional int32 y = 2; }", "proto2")
    columns = decoded(schema, text(1, number(1, 0)), text(1, number(2, 5)), b"")
    assert columns.arrays[0].to_pylist() == [{"x": 0, "y": None}, None, None]
    assert [(error.code, error.path) for error in columns.errors.values()] == [(Code.MISSING_REQUIRED, "$.a.x")]


FRAME = b"\0\0\0\0\x07"


@pytest.mark.parametrize("message", ["", "t.R"])
def test_the_framing_of_a_registry_has_message_indexes(message: str) -> None:
    schema = schema_of("int32 a = 1;", "message S { int32 b = 1; }", framing="Registry", message=message)
    value = number(1, 5)
    good = [FRAME + b"\0" + value, FRAME + b"\x02\x00" + value, FRAME + b"\0", None]
    others = [FRAME + b"\x02\x02" + value, FRAME + b"\x04\x00\x00" + value]
    bad = [b"", value, FRAME, FRAME + b"\x04\x00", FRAME + b"\x01" + value, FRAME + varint(2**63)]
    columns = decoded(schema, *good, *others, *bad)
    assert columns.arrays[0].to_pylist()[:6] == [5, 5, 0, None, *([5, 5] if message else [None, None])]
    assert list(columns.errors) == list(range(6 if message else 4, 12))
    assert {error.code for error in columns.errors.values()} == {Code.INVALID_PROTOBUF}
    assert "does not begin with the five bytes of a schema registry" in columns.errors[7].detail
    if not message:
        assert columns.errors[4].detail == (
            "byte 5: the message indexes are [1], and the table has columns for t.R; schema.message chooses another message"
        )


def test_a_wrong_byte_of_a_framed_record_has_its_place_in_the_value() -> None:
    schema = schema_of("string a = 1;", framing="Registry")
    columns = decoded(schema, FRAME + b"\0" + text(1, b"\xff"))
    assert columns.errors[0].detail == "byte 8: invalid start byte"


def test_a_column_of_a_wider_type_takes_narrower_values_and_a_field_without_column_is_skipped() -> None:
    schema = schema_of(
        "int32 a = 1; float b = 2; repeated int32 c = 3; I d = 4; string e = 5;",
        "message I { int32 x = 1; string y = 2; }",
    )
    fields = [
        ("b", "double"),
        ("missing", "string"),
        ("a", "long"),
        ("c", "list<long>"),
        ("d", "struct<x: long, z: int>"),
    ]
    wider = schema.model_copy(update={"fields": RecordSchema.model_validate(
        {"format": "Json", "fields": [{"name": name, "type": kind} for name, kind in fields]}).fields})  # fmt: skip
    value = (
        number(1, 3)
        + tagged(2, 5, struct.pack("<f", 1.5))
        + text(3, b"\x07")
        + text(4, number(1, 4) + text(2, b"\xff"))
        + text(5, b"\xff")
    )
    assert lists(wider, value, value + varint(99 << 3 | 3) + varint(99 << 3 | 4)) == [
        [1.5, 1.5], [None, None], [3, 3], [[7], [7]], [{"x": 4, "z": None}] * 2,
    ]  # fmt: skip


def many(count: int, kind: str = "int64") -> str:
    return " ".join(f"{kind} f{place} = {place + 1};" for place in range(count))


def test_a_thousand_columns_in_any_order() -> None:
    schema = schema_of(many(1000))
    parts = [number(place + 1, place) for place in range(1000)]
    columns = decoded(schema, b"".join(parts), b"".join(reversed(parts)), number(1000, 5))
    assert not columns.errors
    assert [array.to_pylist() for array in columns.arrays[:999]] == [[place, place, 0] for place in range(999)]
    assert columns.arrays[999].to_pylist() == [999, 999, 5]


@pytest.mark.parametrize("body", ["repeated W a = 1;", "map<int32, W> a = 1;"])
def test_items_that_take_much_more_memory_than_bytes_are_bad(body: str) -> None:
    schema = schema_of(body, f"message W {{ {many(100)} }}")
    few, much = (b"".join(text(1, number(1, place)) for place in range(count)) for count in (1_000, 100_000))
    if body.startswith("repeated"):
        few, much = text(1, b"") * 1_000, text(1, b"") * 100_000
    columns = decoded(schema, much, few, much)
    assert [None if value is None else len(value) for value in columns.arrays[0].to_pylist()] == [None, 1_000, None]
    assert {error.code for error in columns.errors.values()} == {Code.OUT_OF_RANGE}
    assert "items in" in columns.errors[0].detail
    assert sum(array.nbytes for array in columns.arrays) < 2_000_000


@pytest.mark.parametrize(("body", "value"), [
    (many(1000), b""), (many(1000), number(1, 1)), ("repeated W a = 1;", text(1, b"") * 100),
])  # fmt: skip
def test_records_of_wide_rows_are_decoded_in_portions(body: str, value: bytes) -> None:
    schema = schema_of(body, f"message W {{ {many(100)} }}")
    decoder = Decoder(job(("a", "int")).model_copy(update={"record_schema": schema}), ingested_at=0)
    records = fetched([value] * 20_000)
    portions = list(decoder.portions(records))
    assert sum(map(len, portions)) == 20_000
    assert max(map(len, portions)) < 10_000
    assert np.concatenate([portion.offsets for portion in portions]).tolist() == list(range(20_000))
    assert decoder.decode(portions[0]).rows.nbytes < 2 * limits.CALL_MEMORY


def test_records_of_many_interleaved_fields_take_linear_time() -> None:
    schema = schema_of(many(300, "repeated int32"))
    once = b"".join(number(place + 1, 1) for place in range(300))
    started = time.process_time()
    columns = decoded(schema, once * 200)
    assert not columns.errors
    assert columns.arrays[7].to_pylist() == [[1] * 200]
    assert time.process_time() - started < 5


@pytest.mark.parametrize(("step", "call_bytes"), [(1, 1), (3, 100), (1000, 64)])
def test_rows_of_any_step_and_call_are_the_same(step: int, call_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = schema_of("string a = 1; map<string, bytes> b = 2; repeated string c = 3; uint64 d = 4;")
    inputs = [
        text(1, b"x" * (place % 11)) + text(2, text(1, b"%d" % place) + text(2, b"y" * (place % 7))) + text(3, b"z") * (place % 4) + number(4, place)
        for place in range(500)
    ]  # fmt: skip
    whole = decoded(schema, *inputs, None, b"\x08")
    monkeypatch.setattr(arrays, "STEP", step)
    monkeypatch.setattr(arrays, "CALL_BYTES", call_bytes)
    parts = decoded(schema, *inputs, None, b"\x08")
    assert [array.to_pylist() for array in parts.arrays] == [array.to_pylist() for array in whole.arrays]
    assert list(whole.errors) == list(parts.errors) == [501]


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ("string a = 1;", text(1, b"x" * 10)),
        ("repeated string a = 1;", text(1, b"x" * 10)),
        ("map<string, bool> a = 1;", text(1, text(1, b"x" * 10))),
    ],
    ids=["text", "texts", "keys"],
)  # fmt: skip
def test_a_block_with_too_much_text_for_arrow_is_refused(
    body: str, value: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    schema = schema_of(body)
    monkeypatch.setattr(arrays, "MOST_TEXT", 50)
    assert not decoded(schema, *[value] * 5).errors
    with pytest.raises(ValueError, match="read smaller batches"):
        decoded(schema, *[value] * 6)


def test_a_map_with_more_keys_than_are_compared_is_read_strictly() -> None:
    schema = schema_of("map<fixed32, bool> a = 1;")
    entries = [text(1, tagged(1, 5, struct.pack("<I", place))) for place in range(kernel.MAX_KEYS + 5)]
    found = lists(schema, b"".join(entries), b"".join([*entries, entries[0]]))
    assert [len(entries) for entries in found[0]] == [kernel.MAX_KEYS + 5] * 2


def test_bytes_are_never_read_beyond_a_record() -> None:
    schema = schema_of(
        "int32 a = 1; I b = 2; repeated int32 c = 3; repeated string d = 4; fixed64 e = 5;",
        "message I { string x = 1; }",
    )
    whole = (
        number(1, 300)
        + text(2, text(1, b"abc"))
        + text(3, varint(300) * 3)
        + text(4, b"xyz") * 2
        + tagged(5, 1, bytes(8))
    )
    inputs = [whole[:end] for end in range(len(whole))]
    alone = [decoded(schema, value) for value in inputs]
    together = decoded(schema, *inputs)
    for index, one in enumerate(alone):
        assert (index in together.errors) == bool(one.errors)
        assert [array[index].as_py() for array in together.arrays] == [array[0].as_py() for array in one.arrays]
    assert len(together.errors) > len(whole) // 2
    assert all(isinstance(array, pa.Array) for array in together.arrays)
