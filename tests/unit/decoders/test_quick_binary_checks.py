"""Quick checks of Avro and Protobuf accept only values that the strict decoder accepts, and accept the usual ones."""

import json
import random
import sys
from itertools import pairwise
from types import FrameType
from typing import Any

import pytest

from firn.decoders.quick_checks.opening import quick_check_of
from firn.model.jobs import RecordSchema
from tests.unit.decoders.strict_verdicts import accepted, fits, opened
from tests.unit.spark import protobuf_values
from tests.unit.spark.avro_values import Schemas, Values
from tests.unit.spark.test_avro_decoders import damaged, schema_of, with_id
from tests.unit.spark.test_protobuf_records import schema_of as protobuf_schema

FRAME = b"\0\0\0\0\x07"


@pytest.mark.parametrize("seed", range(6))
def test_avro_values_are_accepted_only_if_they_fit(seed: int) -> None:
    pick = random.Random(seed)
    made = Values(pick)
    found = total = 0
    for _ in range(10):
        record, schema = schema_of(with_id(Schemas(pick).record()))
        inputs = [made.make(record)[1] for _ in range(20)]
        found += accepted(schema, inputs)
        total += len(inputs)
        values = [*inputs, *(damaged(pick, value) for value in inputs * 3), b"", None]
        accepted(schema, values)
        framed = schema.model_copy(update={"framing": "Registry"})
        accepted(framed, [value if value is None or pick.random() < 0.1 else FRAME + value for value in values])
    assert found > 0.2 * total


def avro_of(kind: Any) -> RecordSchema:
    return RecordSchema(
        format="Avro", text=json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})
    )


@pytest.mark.parametrize(
    "kind",
    [
        "int", "long", "boolean", "float", "double", "string", "bytes", ["null", "long"], ["int", "null"], ["null", "int", "string"],
        *({"type": kind, "logicalType": logical} for kind, logical in (
            ("int", "date"), ("int", "time-millis"), ("long", "time-micros"), ("long", "timestamp-millis"), ("long", "timestamp-micros"),
            ("string", "uuid"),
        )),
        {"type": "bytes", "logicalType": "decimal", "precision": 4}, {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "array", "items": "int"}, {"type": "map", "values": "boolean"},
        {"type": "array", "items": {"type": "record", "name": "S", "fields": [{"name": "s", "type": "string"}]}},
    ],
)  # fmt: skip
def test_any_short_avro_bytes_are_accepted_only_if_they_fit(kind: Any) -> None:
    pick, schema = random.Random(3), avro_of(kind)
    values: list[bytes | None] = [
        bytes([first, second]) for first in range(256) for second in (0, 1, 2, 0x7F, 0x80, 0xFF)
    ]
    numbers = [
        bytes(pick.choices((0x80, 0x81, 0xFE, 0xFF), k=size)) + bytes([last])
        for size in range(11)
        for last in (0, 1, 7, 8, 0x0F, 0x10, 0x7F)
    ]
    text = b"\x48" + b"0189a0f6-7f5b-7c3e-9a51-0123456789aB"
    texts = [
        text,
        b"\x02" + text,
        b"\x06\xff\xfe\xfd",
        b"\x06\xed\xa0\x80",
        b"\x06\xe2\x82\xac",
        b"\x03a",
        b"\x01\x02\x02\0",
    ]
    values += [
        *numbers,
        *(prefix + number for prefix in (b"\0", b"\x02", b"\x04") for number in numbers),
        *texts,
        b"",
        b"\0" * 8,
        None,
    ]
    assert accepted(schema, values) > 1


def test_an_array_with_many_items_is_left_to_the_strict_decoder() -> None:
    check = opened(avro_of({"type": "array", "items": "boolean"}))
    assert check.accepts([b"\xd0\x0f" + bytes(1000) + b"\0"])
    assert not check.accepts([b"\xd2\x0f" + bytes(1001) + b"\0"])


def test_fields_that_take_no_bytes_cost_nothing() -> None:
    nothing = {"type": "record", "name": "N", "fields": [{"name": "n", "type": "null"}]}
    empty = [{"name": "n", "type": nothing}, *({"name": f"n{place}", "type": "null"} for place in range(100))]
    item = {"type": "record", "name": "S", "fields": [{"name": "s", "type": "boolean"}, *empty]}
    schema = avro_of({"type": "array", "items": item})
    value = b"\xd0\x0f" + bytes(1000) + b"\0"
    check, calls = opened(schema), 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    assert fits(schema, [value]) == [True]
    sys.setprofile(count)
    try:
        found = check.accepts([value])
    finally:
        sys.setprofile(None)
    assert found
    assert calls < 3 * len(value)


@pytest.mark.parametrize("seed", range(6))
def test_protobuf_values_are_accepted_only_if_they_fit(seed: int) -> None:
    pick = random.Random(seed)
    schemas, made = protobuf_values.Schemas(pick, "proto2" if seed % 3 == 2 else "proto3"), protobuf_values.Values(pick)
    found = total = 0
    for _ in range(10):
        one = schemas.make()
        schema = one.record_schema().model_copy(update={"nanoseconds": seed % 2 == 1})
        if quick_check_of(schema) is None:
            continue
        inputs = [made.make(one) for _ in range(20)]
        found += accepted(schema, inputs)
        total += len(inputs)
        values = [
            *inputs,
            *(damaged(pick, value) for value in inputs * 3),
            *(a + b for a, b in pairwise(inputs)),
            b"",
            None,
        ]
        accepted(schema, values)
        framed = schema.model_copy(update={"framing": "Registry"})
        heads = (FRAME + b"\0", FRAME + b"\x02\0", FRAME + b"\x02\x02", FRAME, b"")
        accepted(framed, [value if value is None else pick.choice(heads) + value for value in values])
    assert found > 0.3 * total


@pytest.mark.parametrize(
    "field",
    [
        *(f"{kind} a = 1;" for kind in protobuf_values.KINDS), "E a = 1;", "repeated int32 a = 1;", "repeated E a = 1;", "repeated string a = 1;",
        "S a = 1;", "repeated S a = 1;", "map<int32, int32> a = 1;", "map<string, S> a = 1;", "int32 a = 16;", "string a = 3000;",
        "oneof o { int32 a = 1; S b = 2; }",
    ],
)  # fmt: skip
def test_any_short_protobuf_bytes_are_accepted_only_if_they_fit(field: str) -> None:
    pick = random.Random(3)
    schema = protobuf_schema(field, "enum E { Z = 0; Y = 1; } message S { int32 s = 1; string t = 2; }")
    numbers = [
        bytes(pick.choices((0x80, 0x81, 0xF8, 0xFE, 0xFF), k=size)) + bytes([last])
        for size in range(11)
        for last in (0, 1, 2, 7, 8, 0x0F, 0x10, 0x7F)
    ]
    numbers += [
        b"\xff\xff\xff\xff" + bytes([fifth]) + b"\xff\xff\xff\xff" + bytes([last])
        for fifth in (0x87, 0x88, 0xF7, 0xF8, 0xFF)
        for last in (0, 1, 2)
    ]
    bodies = [
        *numbers,
        b"\x02\x08\x01",
        b"\x02\x08",
        b"\x03\x08\x80\x01",
        b"\x04\x12\x02\xff\xfe",
        b"\x04\x12\x02ab",
        b"\x03\x12\x02ab",
        b"\x02ab",
    ]
    values = [bytes([tag]) + body for tag in (8, 9, 10, 13, 15, 16, 18, 11, 12, 0, 7) for body in bodies]
    values += [
        head + body for head in (b"\x80\x01", b"\x88\x00", b"\x82\xbb\x01", b"\xf8\xff\xff\xff\x0f") for body in bodies
    ]
    values += [bytes([first, second]) for first in range(256) for second in (0, 1, 0x80)]
    assert accepted(schema, [*values, b"", None]) > 1


def test_a_length_that_the_value_does_not_have_costs_nothing() -> None:
    assert accepted(protobuf_schema("repeated fixed32 a = 1;"), [b"\x0a" + b"\xfc" * 8 + b"\x7f"]) == 0


def test_messages_with_required_fields_have_no_quick_check() -> None:
    assert quick_check_of(protobuf_schema("required int32 a = 1;", syntax="proto2")) is None
    assert (
        quick_check_of(protobuf_schema("optional S s = 1;", "message S { required int32 a = 1; }", syntax="proto2"))
        is None
    )


def test_only_the_first_message_of_a_text_has_a_quick_check() -> None:
    first = protobuf_schema("int32 a = 1;", framing="Registry").model_copy(update={"schema_id": 7})
    assert (
        accepted(
            first, [FRAME + b"\0\x08\x05", FRAME + b"\x02\0\x08\x05", FRAME + b"\x02\x02\x08\x05", FRAME, FRAME + b"\0"]
        )
        == 2
    )
