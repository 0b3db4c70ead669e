"""JSON values as variants: a reader made from the specification returns the same values."""

import itertools
import json
import struct
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn.decoders.bad_records import BadRecordError, Code
from firn.decoders.json import parse
from firn.decoders.json_variants import encoded

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**30), 10**30) | st.text(max_size=80) | st.decimals(-(10**9), 10**9, places=3),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=30,
)  # fmt: skip


def number(data: bytes, place: int, size: int) -> int:
    return int.from_bytes(data[place : place + size], "little")


def names(metadata: bytes) -> list[str]:
    size = (metadata[0] >> 6) + 1
    assert metadata[0] & 0x0F == 1
    count = number(metadata, 1, size)
    ends = [number(metadata, 1 + size * (1 + place), size) for place in range(count + 1)]
    texts = metadata[1 + size * (count + 2) :]
    found = [texts[start:end] for start, end in itertools.pairwise(ends)]
    assert found == sorted(set(found))
    assert metadata[0] & 0x10
    assert len(texts) == ends[-1]
    return [text.decode() for text in found]


def decoded(data: bytes, known: list[str]) -> Any:
    kind, header = data[0] & 3, data[0] >> 2
    if kind == 0:
        return primitive(data, header)
    if kind == 1:
        assert len(data) == 1 + header
        return data[1:].decode()
    many = header >> (4 if kind == 2 else 2) & 1
    count, place = number(data, 1, 4 if many else 1), 5 if many else 2
    ids = []
    if kind == 2:
        width = (header >> 2 & 3) + 1
        ids = [number(data, place + width * each, width) for each in range(count)]
        place += width * count
    width = (header & 3) + 1
    ends = [number(data, place + width * each, width) for each in range(count + 1)]
    parts = data[place + width * (count + 1) :]
    assert len(parts) == ends[-1]
    values = [decoded(parts[start:end], known) for start, end in itertools.pairwise(ends)]
    if kind == 3:
        return values
    assert ids == sorted(set(ids))
    return dict(zip((known[each] for each in ids), values, strict=True))


def primitive(data: bytes, kind: int) -> Any:
    body = data[1:]
    if kind in (0, 1, 2):
        assert not body
        return (None, True, False)[kind]
    if kind in (3, 4, 5, 6):
        assert len(body) == 2 ** (kind - 3)
        return int.from_bytes(body, "little", signed=True)
    if kind == 7:
        return struct.unpack("<d", body)[0]
    if kind in (8, 9, 10):
        assert len(body) == 1 + 2 ** (kind - 6)
        return Decimal(f"{int.from_bytes(body[1:], 'little', signed=True)}e-{body[0]}")
    assert kind == 16
    assert len(body) == 4 + number(body, 0, 4)
    return body[4:].decode()


def read(text: str) -> Any:
    found = encoded(parse(text.encode()))
    return decoded(found["value"], names(found["metadata"]))


@given(json_values)
def test_a_variant_has_the_value_of_the_json(value: Any) -> None:
    text = json.dumps(value, default=lambda number: float(number))
    assert read(text) == json.loads(text, parse_float=Decimal)


@pytest.mark.parametrize(
    ("text", "value", "size"),
    [
        ("127", 127, 2), ("-128", -128, 2), ("128", 128, 3), ("-2147483648", -(2**31), 5), ("9223372036854775807", 2**63 - 1, 9),
        ("9223372036854775808", 2**63, 18), ("2.50", Decimal("2.50"), 6), ("0.1234567890", Decimal("0.1234567890"), 10),
        ("1" * 38, int("1" * 38), 18), ("1" * 39, float("1" * 39), 9), ("1e2", 100.0, 9), ("-0.0", Decimal("0.0"), 6), ("0.1e-5", 1e-6, 9),
        (json.dumps("a" * 63), "a" * 63, 64), (json.dumps("ä" * 32), "ä" * 32, 69),
        (json.dumps(list(range(256))), list(range(256)), None),
        (json.dumps({f"k{n:03}": n for n in range(300)}), {f"k{n:03}": n for n in range(300)}, None),
    ],
)  # fmt: skip
def test_a_value_takes_the_fewest_bytes(text: str, value: Any, size: int | None) -> None:
    assert read(text) == value
    assert size is None or len(encoded(parse(text.encode()))["value"]) == size


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        ('{"a": [{"b": 1, "b": 2}]}', Code.DUPLICATE_KEY, "$.a[0].b"),
        ('[1, {"x": 1e999}]', Code.OUT_OF_RANGE, "$[1].x"),
        ('{"a": "\\ud800"}', Code.INVALID_UTF8, "$"),
    ],
)
def test_a_value_that_is_no_variant_is_a_bad_record(text: str, code: Code, path: str) -> None:
    with pytest.raises(BadRecordError) as refused:
        encoded(parse(text.encode()))
    assert (refused.value.code, refused.value.path) == (code, path)
