"""The meaning of JSON records, type by type. The rules are in `firn.decoders.json`."""

import datetime
import json
from decimal import Decimal
from typing import Any

import pytest

from firn.decoders.bad_records import DETAIL_LIMIT, BadRecordError, Code, Stage
from firn.decoders.json import RecordReader
from firn.decoders.json_limits import MAX_DEPTH
from firn.model.jobs import Column


def read(kind: str, text: str, **column: Any) -> Any:
    fields = [Column(name="x", type=kind, **column)]
    return RecordReader.for_schema(fields, refuse_unknown=False).read(
        f'{{"x": {text}}}'.encode("utf-8", "surrogatepass")
    )[0]


def refusal(value: Any, *fields: Any, refuse_unknown: bool = False) -> Any:
    reader = RecordReader.for_schema(
        [Column(name=name, type=kind) for name, kind in fields], refuse_unknown=refuse_unknown
    )
    with pytest.raises(BadRecordError) as caught:
        reader.read(value)
    return caught.value


def micros(text: str) -> Any:
    moment = datetime.datetime.fromisoformat(text)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    return (moment - datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)) // datetime.timedelta(microseconds=1)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("boolean", "true", True),
        ("int", "-2147483648", -(2**31)),
        ("int", "-0", 0),
        ("long", "9223372036854775807", 2**63 - 1),
        ("double", "1", 1.0),
        ("double", "1e308", 1e308),
        ("double", "1e-999", 0.0),
        ("double", "0." + "1" * 5000, float("0." + "1" * 5000)),
        ("float", "16777217", 16777216.0),
        ("string", r'"a\u00e9\n\ud83d\ude00"', "aé\n😀"),
        ("date", '"2024-02-29"', 19782),
        ("date", '"0001-01-01"', -719162),
        ("time", '"23:59:59.999999"', 86_399_999_999),
        ("time", '"12:30"', 45_000_000_000),
        ("timestamp", '"2024-01-01 00:00:00.5"', micros("2024-01-01T00:00:00.5")),
        ("timestamp", '"2024-01-01T00:00:00.123456000"', micros("2024-01-01T00:00:00.123456")),
        ("timestamptz", '"2024-01-01T00:00:00Z"', micros("2024-01-01")),
        ("timestamptz", '"2024-01-01t00:00:00z"', micros("2024-01-01")),
        ("timestamptz", '"2024-01-01T00:00:00.123456000Z"', micros("2024-01-01T00:00:00.123456")),
        ("timestamptz", '"2024-01-01T00:00:00+05:30"', micros("2024-01-01T00:00:00+05:30")),
        ("timestamptz", '"2024-01-01T00:00:00-0330"', micros("2024-01-01T00:00:00-03:30")),
        ("timestamptz", '"0001-01-01T00:00-18"', micros("0001-01-01T18:00:00")),
        ("timestamptz", '"9999-12-31T23:59:59.999999Z"', 253_402_300_799_999_999),
        ("timestamptz", "253402300800000", 253_402_300_800_000_000),
        ("timestamptz", '"2024-01-01T00:00-08"', micros("2024-01-01T00:00:00-08:00")),
        ("timestamptz", "1704067200123", micros("2024-01-01T00:00:00.123")),
        ("timestamptz", "-9223372036854775", -9223372036854775000),
        ("timestamp", "1704067200123", micros("2024-01-01T00:00:00.123")),
        ("timestamp_ns", '"2024-01-01T00:00:00.123456789"', 1000 * micros("2024-01-01T00:00:00.123456") + 789),
        ("timestamp_ns", '"1677-09-21T00:12:43.145224193"', -(2**63) + 1),
        ("timestamptz_ns", '"2262-04-12T00:47:16.854775807+01:00"', 2**63 - 1),
        ("timestamptz_ns", "1704067200123", 1000 * micros("2024-01-01T00:00:00.123")),
        ("decimal(9, 2)", "1234567.89", Decimal("1234567.89")),
        ("decimal(9, 2)", '"-1.5e3"', Decimal("-1500.00")),
        ("decimal(9, 2)", "1.230000", Decimal("1.23")),
        ("decimal(9, 2)", "0e999999999999", Decimal("0.00")),
        ("decimal(9, 2)", "1e+0000000000000000005", Decimal("100000.00")),
        ("decimal(38, 0)", "9" * 38, Decimal("9" * 38)),
        ("binary", '"AAH/"', b"\x00\x01\xff"),
        ("fixed[2]", '"AAE="', b"\x00\x01"),
        ("uuid", '"00112233-4455-6677-8899-AABBCCDDEEFF"', bytes.fromhex("00112233445566778899aabbccddeeff")),
        ("list<int>", "[1, null]", [1, None]),
        ("map<string, int>", '{"a": 1, "": null}', [("a", 1), ("", None)]),
        ("map<int, string>", '{"-5": "x"}', [(-5, "x")]),
        ("map<boolean, date>", '{"true": "1970-01-02"}', [(True, 1)]),
        ("map<struct<a: int>, string>", '[{"key": {"a": 1}, "value": "x"}]', [({"a": 1}, "x")]),
        ("struct<a: int, b: struct<c: string>>", '{"b": {"c": "x", "more": 1}}', {"a": None, "b": {"c": "x"}}),
        ("string", "null", None),
    ],
)
def test_a_value_that_fits_is_converted(kind: str, text: str, value: Any) -> None:
    decoded = read(kind, text)
    assert decoded == value
    assert type(decoded) is type(value)


@pytest.mark.parametrize(
    ("kind", "text", "code"),
    [
        ("boolean", "1", Code.WRONG_KIND),
        ("boolean", '"true"', Code.WRONG_KIND),
        ("int", "2147483648", Code.OUT_OF_RANGE),
        ("int", "9" * 100_000, Code.OUT_OF_RANGE),
        ("int", "1.0", Code.INEXACT),
        ("int", "1e2", Code.INEXACT),
        ("int", "1.5", Code.INEXACT),
        ("int", '"1"', Code.WRONG_KIND),
        ("int", "true", Code.WRONG_KIND),
        ("long", "-9223372036854775809", Code.OUT_OF_RANGE),
        ("double", "1e309", Code.OUT_OF_RANGE),
        ("double", "-" + "9" * 400, Code.OUT_OF_RANGE),
        ("double", '"1.5"', Code.WRONG_KIND),
        ("float", "1e39", Code.OUT_OF_RANGE),
        ("string", "1", Code.WRONG_KIND),
        ("string", r'"\ud83d"', Code.INVALID_UTF8),
        ("date", '"2023-02-29"', Code.OUT_OF_RANGE),
        ("date", '"0000-01-01"', Code.OUT_OF_RANGE),
        ("date", '"2023-2-9"', Code.INVALID_FORMAT),
        ("date", '"٢٠٢٣-٠١-٠١"', Code.INVALID_FORMAT),
        ("date", "19000", Code.WRONG_KIND),
        ("time", '"24:00:00"', Code.OUT_OF_RANGE),
        ("time", '"23:59:60"', Code.OUT_OF_RANGE),
        ("time", '"12:00:00Z"', Code.INVALID_FORMAT),
        ("timestamp", '"2024-01-01T00:00:00Z"', Code.INVALID_FORMAT),
        ("timestamp", '"2024-01-01T00:00:00.1234567"', Code.INEXACT),
        ("timestamp", "true", Code.WRONG_KIND),
        ("timestamp_ns", '"2024-01-01T00:00:00.1234567891"', Code.INEXACT),
        ("timestamp_ns", '"2262-04-11T23:47:16.854775808"', Code.OUT_OF_RANGE),
        ("timestamptz_ns", '"0001-01-01T00:00:00Z"', Code.OUT_OF_RANGE),
        ("timestamptz_ns", "9223372036855", Code.OUT_OF_RANGE),
        ("timestamp", "1704067200000.5", Code.INEXACT),
        ("timestamptz", '"2024-01-01T00:00:00"', Code.INVALID_FORMAT),
        ("timestamptz", '"2024-01-01T00:00:00+19:00"', Code.OUT_OF_RANGE),
        ("timestamp", '"0000-12-31T23:59:59"', Code.OUT_OF_RANGE),
        ("timestamptz", '"0001-01-01T00:00:00+00:01"', Code.OUT_OF_RANGE),
        ("timestamptz", '"9999-12-31T23:59:59-0001"', Code.OUT_OF_RANGE),
        ("timestamptz", '"2024-01-01"', Code.INVALID_FORMAT),
        ("timestamptz", "1.5", Code.INEXACT),
        ("timestamptz", "9223372036854776", Code.OUT_OF_RANGE),
        ("decimal(9, 2)", "1.234", Code.INEXACT),
        ("decimal(9, 2)", "12345678.9", Code.OUT_OF_RANGE),
        ("decimal(9, 2)", "1e999999999999999999999", Code.OUT_OF_RANGE),
        ("decimal(9, 2)", "1e-999999999999999999999", Code.INEXACT),
        ("decimal(9, 2)", '"1,5"', Code.INVALID_FORMAT),
        ("decimal(9, 2)", '"NaN"', Code.INVALID_FORMAT),
        ("binary", '"AA"', Code.INVALID_FORMAT),
        ("binary", '"QR=="', Code.INVALID_FORMAT),
        ("binary", '"_-8="', Code.INVALID_FORMAT),
        ("fixed[2]", '"AA=="', Code.OUT_OF_RANGE),
        ("uuid", '"00112233445566778899aabbccddeeff"', Code.INVALID_FORMAT),
        ("list<int>", "{}", Code.WRONG_KIND),
        ("map<string, int>", "[]", Code.WRONG_KIND),
        ("map<string, int>", '{"a": 1, "a": 1}', Code.DUPLICATE_KEY),
        ("map<int, int>", "[1]", Code.WRONG_KIND),
        ("struct<a: int>", '{"a": 1, "a": 1}', Code.DUPLICATE_KEY),
        ("struct<a: int>", "[1]", Code.WRONG_KIND),
    ],
)
def test_a_value_that_does_not_fit_is_rejected(kind: str, text: str, code: Code) -> None:
    with pytest.raises(BadRecordError) as caught:
        read(kind, text)
    assert caught.value.code == code
    assert caught.value.path == "$.x" or code == Code.DUPLICATE_KEY
    assert caught.value.stage == (Stage.DECODE if code == Code.INVALID_UTF8 else Stage.SCHEMA)


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (b"", Code.EMPTY_PAYLOAD),
        (b" \n", Code.EMPTY_PAYLOAD),
        (b"\xff{}", Code.INVALID_UTF8),
        (b'{"a": "\xed\xa0\x80"}', Code.INVALID_UTF8),
        (b'{"other": "\xc0\x80"}', Code.INVALID_UTF8),
        (b'{"a": 1', Code.INVALID_JSON),
        (b'{"a": 1}}', Code.INVALID_JSON),
        (b'{"a": 1} {}', Code.INVALID_JSON),
        (b'{"a": NaN}', Code.INVALID_JSON),
        (b'{"other": -Infinity}', Code.INVALID_JSON),
        (b'{"a": 01}', Code.INVALID_JSON),
        (b'{"a": 1,}', Code.INVALID_JSON),
        (b"{'a': 1}", Code.INVALID_JSON),
        (b'{"a": "\n"}', Code.INVALID_JSON),
        (b"\xef\xbb\xbf{}", Code.INVALID_JSON),
        (b"garbage", Code.INVALID_JSON),
        (b"[" * 1_000_000, Code.TOO_DEEP),
        (b'{"other":' * (MAX_DEPTH + 1) + b"1" + b"}" * (MAX_DEPTH + 1), Code.TOO_DEEP),
        (b"[]", Code.NOT_AN_OBJECT),
        (b"null", Code.NOT_AN_OBJECT),
        (b'"text"', Code.NOT_AN_OBJECT),
        (b'{"a": 1, "a": 2}', Code.DUPLICATE_KEY),
        (b'{"a": 1, "\\u0061": 2}', Code.DUPLICATE_KEY),
    ],
)
def test_an_invalid_record_is_rejected(value: Any, code: Code) -> None:
    assert refusal(value, ("a", "long")).code == code


def test_brackets_in_texts_are_not_nesting() -> None:
    text = json.dumps({"a": "[{" * 1000 + '"\\'}).encode()
    assert RecordReader.for_schema([Column(name="a", type="string")], refuse_unknown=False).read(text) == [
        "[{" * 1000 + '"\\'
    ]


def test_an_error_has_the_path_of_the_value() -> None:
    error = refusal(b'{"a": {"b": [0, {"c": {"k": "x"}}]}}', ("a", "struct<b: list<struct<c: map<string, int>>>>"))
    assert (error.path, error.code) == ("$.a.b[0]", Code.WRONG_KIND)
    error = refusal(b'{"a": {"b": [null, {"c": {"k": "x"}}]}}', ("a", "struct<b: list<struct<c: map<string, int>>>>"))
    assert (error.path, error.detail) == ("$.a.b[1].c.k", 'expected int, found string "x"')


def test_a_required_value_may_be_neither_missing_nor_null() -> None:
    fields = [Column(name="a", type="int", required=True), Column(name="b", type="int")]
    reader = RecordReader.for_schema(fields, refuse_unknown=False)
    for value in (b"{}", b'{"a": null}', b'{"A": 1}'):
        with pytest.raises(BadRecordError) as caught:
            reader.read(value)
        assert (caught.value.code, caught.value.path) == (Code.MISSING_REQUIRED, "$.a")
    assert reader.read(b'{"a": 1}') == [1, None]
    with pytest.raises(BadRecordError) as caught:
        reader.read(None)
    assert caught.value.code == Code.TOMBSTONE


def test_a_tombstone_is_a_row_of_nulls_if_no_value_is_required() -> None:
    assert RecordReader.for_schema([Column(name="a", type="int")], refuse_unknown=True).read(None) == [None]


def test_unknown_fields_are_rejected_on_request_at_any_level() -> None:
    fields = ("a", "struct<b: int>")
    assert refusal(b'{"a": {"b": 1}, "c": 2}', fields, refuse_unknown=True).path == "$.c"
    error = refusal(b'{"a": {"b": 1, "c": 2}}', fields, refuse_unknown=True)
    assert (error.path, error.code) == ("$.a.c", Code.UNKNOWN_FIELD)


@pytest.mark.parametrize(
    "value",
    [
        b'{"a": "' + b"x" * 2_000_000 + b'"}',
        b'{"' + b"k" * 2_000_000 + b'": 1}',
        b'{"a": ' + b"9" * 2_000_000 + b"}",
        b'{"a": {"' + b"k" * 2_000_000 + b'": []}}',
    ],
)
def test_errors_are_short_for_any_record(value: Any) -> None:
    error = refusal(value, ("a", "int"), refuse_unknown=True)
    assert len(error.detail) <= DETAIL_LIMIT
    assert len(error.path) <= DETAIL_LIMIT


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
@pytest.mark.parametrize(
    ("epoch", "number", "expected"),
    [
        ("s", 1704067200, micros("2024-01-01")),
        ("s", -1, -1_000_000),
        ("s", 9223372036854, 9223372036854_000_000),
        ("s", 9223372036855, Code.OUT_OF_RANGE),
        ("ms", 1704067200123, micros("2024-01-01T00:00:00.123")),
        ("us", 1704067200123456, micros("2024-01-01T00:00:00.123456")),
        ("us", 2**63 - 1, 2**63 - 1),
        ("us", -(2**63), Code.OUT_OF_RANGE),
        ("ns", 1704067200123456000, micros("2024-01-01T00:00:00.123456")),
        ("ns", -1000, -1),
        ("ns", 1704067200123456789, Code.INEXACT),
    ],
)
def test_integers_count_from_1970_in_the_unit_of_the_field(kind: str, epoch: str, number: int, expected: Any) -> None:
    for outer, text in ((kind, f"{number}"), (f"struct<a: list<{kind}>>", f'{{"a": [{number}]}}')):
        if isinstance(expected, Code):
            with pytest.raises(BadRecordError) as caught:
                read(outer, text, epoch=epoch)
            assert caught.value.code is expected
        else:
            value = read(outer, text, epoch=epoch)
            assert (value if outer == kind else value["a"][0]) == expected


@pytest.mark.parametrize("kind", ["int", "double", "decimal(9, 2)", "timestamptz"])
def test_megabytes_of_digits_are_rejected_fast(kind: str) -> None:
    with pytest.raises(BadRecordError):
        read(kind, "9" * 1_000_000)
    with pytest.raises(BadRecordError):
        read(kind, "1e" + "9" * 1_000_000)
