"""Both Protobuf decoders read encoded records as google.protobuf does, and agree on all other bytes."""

import base64
import os
import random
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from firn import protoc
from firn.decoders.bad_records import BadRecordError, Code
from firn.decoders.protobuf import RecordReader
from firn.model.jobs import Column, RecordSchema
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Places
from firn_spark.worker.formats.protobuf.decoding import ProtobufFormat
from firn_spark.worker.formats.protobuf.rows import Rows
from tests.unit.spark.other_types import is_same, refusals, with_other_columns
from tests.unit.spark.protobuf_values import Schema, Schemas, Values, of_peer, tagged, varint
from tests.unit.spark.records import fetched

SCHEMAS, RECORDS = (600, 450) if os.environ.get("FIRN_LONG") else (30, 40)
each_syntax = pytest.mark.parametrize(
    ("syntax", "seed"), [("proto3", 0), ("proto3", 1), ("proto2", 2), ("proto2", 3), ("editions", 4), ("editions", 5)]
)


def plain(array: Any) -> list[Any]:
    """Return values that compare exactly: integers for times, the sign of zero, and maps in the order of their keys."""
    kind = array.type
    if pa.types.is_timestamp(kind):
        return [scalar.value for scalar in array]
    if pa.types.is_struct(kind):
        members = [plain(array.field(place)) for place in range(kind.num_fields)]
        valid = array.is_valid().to_pylist()
        return [[values[row] for values in members] if there else None for row, there in enumerate(valid)]
    if pa.types.is_nested(kind):
        made = [plain(scalar.values) if scalar.is_valid else None for scalar in array]
        return [entries and sorted(entries, key=str) for entries in made] if pa.types.is_map(kind) else made
    return [None if value is None else repr(value) for value in array.to_pylist()]


def fast(schema: Schema, inputs: list[bytes]) -> tuple[list[Any], Any]:
    """Return the columns of the compiled decoder, and which records it vouches for."""
    columns = arrow_types.arrow_schema(schema.record_schema().fields)
    rows = Rows(schema.message.fields, [field.type for field in columns])
    places = Places.from_arrow(pa.array(inputs, pa.binary()))
    return rows.read(places.data, places.firsts, places.ends, places.present)


@each_syntax
def test_both_decoders_read_what_google_protobuf_writes(syntax: str, seed: int) -> None:
    pick = random.Random(seed)
    schemas, values = Schemas(pick, syntax), Values(pick)
    for _ in range(SCHEMAS):
        schema = schemas.make()
        inputs = [values.make(schema) for _ in range(RECORDS)]
        want = [of_peer(schema.peer.FromString(content), schema.message) for content in inputs]
        found, vouched = fast(schema, inputs)
        assert vouched.all(), schema.file
        reader = RecordReader(schema.message)
        strict = [reader.read(content) for content in inputs]
        for array, field in zip(found, schema.record_schema().fields, strict=True):
            array.validate(full=True)
            expected = plain(pa.array([value[field.name] for value in want], array.type))
            assert plain(array) == expected, f"{field} of {schema.file}"
            assert plain(pa.array([value[field.name] for value in strict], array.type)) == expected


def strictly(reader: RecordReader, content: bytes) -> tuple[Any, BadRecordError | None]:
    try:
        return reader.read(content), None
    except BadRecordError as error:
        return {}, error


def fields_of(content: bytes) -> list[bytes]:
    """Return the fields of a valid message, with their tags. A group is one field."""
    found, at, groups, begun = [], 0, 0, 0
    while at < len(content):
        tag, at = number_at(content, at)
        match tag & 7:
            case 0:
                _, at = number_at(content, at)
            case 1 | 5:
                at += 8 if tag & 7 == 1 else 4
            case 2:
                size, at = number_at(content, at)
                at += size
            case 3:
                groups += 1
            case 4:
                groups -= 1
        if not groups:
            found.append(content[begun:at])
            begun = at
    return found


def number_at(content: bytes, at: int) -> tuple[int, int]:
    """Return a number of variable length, and the place behind it."""
    number = shift = 0
    while True:
        number |= (content[at] & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if content[at - 1] < 0x80:
            return number, at


def in_group(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 3) + content + varint(number << 3 | 4)


def within(*numbers: int) -> bytes:
    """Return groups inside each other, the first one outside."""
    content = b""
    for number in reversed(numbers):
        content = in_group(number, content)
    return content


GROUPS = """
syntax = "proto2"; package t;
message Record { optional group One = 1 { optional int32 a = 1; } repeated group More = 2 { optional string b = 1; } }
"""


@pytest.mark.parametrize(
    ("content", "want", "quick"),
    [
        (in_group(1, b""), ({"a": None}, []), True),
        (in_group(1, tagged(1, 0, b"\5")) + in_group(1, b""), ({"a": 5}, []), False),
        (in_group(2, tagged(1, 2, b"x")) + in_group(2, b""), (None, [{"b": "x"}, {"b": None}]), True),
        (in_group(1, in_group(9, in_group(1, b"")) + tagged(1, 0, b"\5")), ({"a": 5}, []), True),
        (in_group(1, within(9, 1, 7, 2**29 - 1) + tagged(1, 0, b"\5")), ({"a": 5}, []), True),
        (in_group(1, in_group(8, within(9, 1) + within(7, 1, 3))), ({"a": None}, []), True),
        (in_group(1, within(9, 1, 7, 1, 9)), ({"a": None}, []), False),
        (in_group(9, tagged(1, 2, b"x")), (None, []), True),
        (in_group(1, in_group(1, b"")), "wire type 3, and its type needs 0", False),
        (tagged(1, 2, b""), "wire type 2, and its type needs 3", False),
        (varint(1 << 3 | 3), "the value ends too early", False),
        (varint(1 << 3 | 3) + varint(2 << 3 | 4), "a group with the field number 2 ends, and did not begin", False),
        (varint(9 << 3 | 3) + in_group(8, b""), "the value ends too early", False),
        (
            in_group(1, within(9, 8, 7).replace(varint(8 << 3 | 4), varint(9 << 3 | 4))),
            "a group with the field number 9 ends",
            False,
        ),
        (in_group(2, varint(9 << 3 | 3)), "a group with the field number 2 ends, and did not begin", False),
        (varint(1 << 3 | 4), "wire type 4, and its type needs 3", False),
    ],
)
def test_groups_are_messages_that_end_with_a_tag(content: bytes, want: Any, quick: bool) -> None:
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(protoc.descriptors(GROUPS, ()))
    schema = Schema(descriptors.file[-1])
    found, vouched = fast(schema, [content])
    assert vouched[0] == quick
    value, error = strictly(RecordReader(schema.message), content)
    if isinstance(want, str):
        assert want in str(error)
        return
    assert (value["one"], value["more"]) == want
    assert of_peer(schema.peer.FromString(content), schema.message) == value
    if quick:
        assert [array[0].as_py() for array in found] == [*want]


UNKNOWN = (
    tagged(31, 0, varint(5)),
    tagged(31, 1, bytes(8)),
    tagged(4_000, 2, b"xyz"),
    tagged(31, 5, bytes(4)),
    varint(31 << 3 | 3) + tagged(2, 2, b"in") + varint(33 << 3 | 3) + varint(33 << 3 | 4) + varint(31 << 3 | 4),
)


@each_syntax
def test_fields_in_any_order_repeated_and_between_unknown_ones_are_read_as_google_protobuf_does(
    syntax: str, seed: int
) -> None:
    pick = random.Random(seed + 100)
    schemas, values = Schemas(pick, syntax), Values(pick)
    vouched_for = 0
    for _ in range(SCHEMAS):
        schema = schemas.make()
        inputs = []
        for _ in range(RECORDS):
            parts = fields_of(values.make(schema)) + (fields_of(values.make(schema)) if pick.random() < 0.5 else [])
            parts += pick.sample(UNKNOWN, pick.choice([0, 0, 1, 2]))
            if pick.random() < 0.7:
                pick.shuffle(parts)
            inputs.append(b"".join(parts))
        vouched_for += agree(schema, inputs, always=True)
    assert vouched_for > SCHEMAS * RECORDS // 4


def agree(schema: Schema, inputs: list[bytes], *, always: bool = False, with_peer: bool = True) -> int:
    """Check that the decoders agree on these bytes. Return how many records the fast one reads.

    ``always``: the strict one reads all. ``with_peer``: google.protobuf reads the same values.
    """
    found, vouched = fast(schema, inputs)
    reader = RecordReader(schema.message)
    columns = schema.record_schema().fields
    for index, content in enumerate(inputs):
        want, error = strictly(reader, content)
        assert error is None or not (vouched[index] or always), f"{content!r} of {schema.file}: {error}"
        if error is not None:
            continue
        peer = of_peer(schema.peer.FromString(content), schema.message) if with_peer else want
        for array, field in zip(found, columns, strict=True):
            expected = plain(pa.array([want[field.name]], array.type))
            assert expected == plain(pa.array([peer[field.name]], array.type)), f"{field}: {content!r} of {schema.file}"
            value = plain(array.slice(index, 1))
            assert value == (expected if vouched[index] else [None]), f"{field}: {content!r} of {schema.file}"
    return int(vouched.sum())


def damaged(pick: random.Random, content: bytes) -> bytes:
    """Return bytes that differ a little: changed, shorter or longer."""
    data = bytearray(content)
    for _ in range(pick.randint(1, 3)):
        match pick.randrange(4):
            case 0 if data:
                data[pick.randrange(len(data))] ^= 1 << pick.randrange(8)
            case 1 if data:
                del data[pick.randrange(len(data)) :]
            case 2:
                data += pick.randbytes(pick.randint(1, 4))
            case _ if data:
                data[pick.randrange(len(data))] = pick.choice([0, 1, 2, 0x7F, 0x80, 0xFF])
    return bytes(data)


@pytest.mark.parametrize("with_peer", [True, False])
@each_syntax
def test_all_decoders_agree_on_damaged_records(syntax: str, seed: int, with_peer: bool) -> None:
    pick = random.Random(seed + 200)
    schemas, values = Schemas(pick, syntax, known=with_peer), Values(pick)
    for _ in range(SCHEMAS):
        schema = schemas.make()
        agree(schema, [damaged(pick, values.make(schema)) for _ in range(RECORDS)], with_peer=with_peer)


@each_syntax
def test_both_decoders_read_values_into_columns_of_other_types(syntax: str, seed: int) -> None:
    pick = random.Random(seed)
    schemas, values = Schemas(pick, syntax), Values(pick)
    for _ in range(SCHEMAS):
        made = schemas.make()
        schema = made.record_schema()
        inputs = [values.make(made) for _ in range(RECORDS)]
        one = ProtobufFormat(with_other_columns(schema, pick))
        found, strict = one.decode(fetched(inputs)), one._strict(Places.from_arrow(pa.array(inputs, pa.binary())), None)
        assert found.errors == strict.errors == {}
        assert [plain(array) for array in found.arrays] == [plain(array) for array in strict.arrays]
        for before, after in zip(ProtobufFormat(schema).decode(fetched(inputs)).arrays, found.arrays, strict=True):
            assert is_same(before.to_pylist(), after.to_pylist()), made.file


@each_syntax
def test_both_decoders_refuse_bytes_that_are_no_text_for_a_column_of_texts(syntax: str, seed: int) -> None:
    pick = random.Random(seed)
    schemas, values = Schemas(pick, syntax), Values(pick)
    codes, texts = set[Code](), 0
    for _ in range(SCHEMAS):
        made = schemas.make()
        schema = made.record_schema()
        inputs = [values.make(made) for _ in range(RECORDS)]
        other = with_other_columns(schema, pick, all_values=False)
        texts += schema.fields != other.fields
        codes |= refusals(ProtobufFormat(other), ProtobufFormat(schema), inputs, plain)
    assert texts
    assert codes == {Code.INVALID_UTF8}


@pytest.mark.parametrize(("default", "landed"), [("a", ["a", "b"]), (r"\xff", [None, "b"])])
def test_the_default_of_bytes_is_a_text_in_a_column_of_texts(default: str, landed: list[str | None]) -> None:
    text = f'syntax = "proto2"; message R {{ optional bytes a = 1 [default = "{default}"]; }}'
    packed = base64.b64encode(protoc.descriptors(text, ())).decode()
    fields = (Column(name="a", type="string"),)
    schema = RecordSchema(format="Protobuf", text=text, descriptors=packed, message="R", fields=fields)
    found = ProtobufFormat(schema).decode(fetched([b"", tagged(1, 2, b"b")]))
    assert found.arrays[0].to_pylist() == landed
    assert [error.code for error in found.errors.values()] == [Code.MISSING_REQUIRED] * landed.count(None)
