"""Defaults of fields, in the spec and in the schema of the table."""

from typing import Any

import pytest

from firn.decoders import defaults
from firn.decoders.json import Times, ValueReader
from firn.model.errors import InvalidSpecError
from firn.tables import types


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("boolean", "true", True), ("int", "-7", -7), ("long", "9223372036854775807", 2**63 - 1), ("float", "1.5", 1.5), ("double", "1e300", 1e300),
        ("decimal(9, 2)", "1.5", "1.50"), ("decimal(38, 0)", "9" * 38, "9" * 38), ("string", "", ""), ("string", "7", "7"),
        ("date", "2020-02-29", "2020-02-29"), ("uuid", "F79C3E09-677C-4BBD-A479-3F349CB785E7", "f79c3e09-677c-4bbd-a479-3f349cb785e7"),
        ("decimal(5, 2)", "-0", "0.00"), ("decimal(5, 2)", "-0.5", "-0.50"),
    ],
)  # fmt: skip
def test_a_default_is_a_value_of_the_table_and_of_records(kind: str, text: str, value: Any) -> None:
    parsed = types.parse(kind)
    assert defaults.json_value(parsed, text) == value
    reader = ValueReader.for_type(parsed, refuse_unknown=False, times=Times("ms"))
    assert reader.read(defaults.token(parsed, text).encode()) is not None


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("boolean", "yes"), ("int", "2147483648"), ("int", "1.0"), ("int", " 1"), ("int", "01"), ("long", "x"), ("double", "NaN"), ("double", "true"),
        ("float", "1e39"), ("double", '"1"'), ("decimal(9, 2)", "1.555"), ("decimal(3, 2)", "10"), ("decimal(3, 2)", "x"), ("decimal(3, 2)", "NaN"),
        ("date", "2021-02-29"), ("date", "20210228"), ("uuid", "x"), ("uuid", "f79c3e09677c4bbda4793f349cb785e7"),
    ],
)  # fmt: skip
def test_a_default_that_is_no_value_of_the_type_is_refused(kind: str, text: str) -> None:
    with pytest.raises(InvalidSpecError, match="the default .* is not a value of the type"):
        defaults.json_value(types.parse(kind), text)


@pytest.mark.parametrize("kind", ["timestamptz", "variant", "binary", "list<int>", "struct<a: int>", "fixed[2]"])
def test_some_types_have_no_defaults(kind: str) -> None:
    with pytest.raises(InvalidSpecError, match=r"cannot have a default; choose one of boolean, int"):
        defaults.json_value(types.parse(kind), "x")


@pytest.mark.parametrize(
    ("kind", "text", "stored"),
    [
        ("float", "0.1", 0.1), ("float", "0.1000000001", 0.1), ("float", "16777217", 16777216.0), ("float", "1e-50", 0.0),
        ("float", "0.1", 0.10000000149011612), ("double", "0.1", 0.1), ("decimal(5, 2)", "-0", "0.00"), ("int", "7", 7),
    ],
)  # fmt: skip
def test_a_default_is_the_value_that_iceberg_keeps_of_it(kind: str, text: str, stored: Any) -> None:
    assert defaults.is_stored(types.parse(kind), text, stored)


@pytest.mark.parametrize(
    ("kind", "text", "stored"),
    [("float", "0.1", 0.2), ("float", "0.1", None), ("float", "0.1", 1e300), ("double", "0.1000000001", 0.1), ("int", "7", 8), ("string", "", None)],
)  # fmt: skip
def test_another_default_is_a_change(kind: str, text: str, stored: Any) -> None:
    assert not defaults.is_stored(types.parse(kind), text, stored)
