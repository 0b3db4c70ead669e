"""The meaning of a JSON record: decodes one value at a time, strictly.

This is the reference. `firn_spark.worker.formats.json.blocks` is faster, and may only answer if its answer is the same.

The decoder accepts:

====================  ==================================================================================================
boolean               ``true``, ``false``
int, long             a JSON number without fraction and exponent, within the type's range (``1.0`` and ``1e2`` are refused)
float, double         a JSON number; the nearest value of the type (a float: of the nearest double); overflow is refused
string                a JSON string
date                  ``YYYY-MM-DD``, years 0001 to 9999, as everywhere below
time                  ``hh:mm``, ``hh:mm:ss`` or ``hh:mm:ss.f``; digits below the microsecond have to be zeros, as below, unless
                      the schema truncates times
timestamp             date, ``T``, ``t`` or a space, time; no zone; or an integer since 1970 in the unit of the field's ``epoch``
timestamptz           the same with a zone (``Z``, ``z``, ``+hh``, ``+hhmm``, ``+hh:mm``; at most 18 h), or such an integer; in UTC, a text
                      has a year from 1 to 9999, too
timestamp_ns          as timestamp, with nine digits below the second, from 1677-09-21T00:12:43.145224193 to
                      2262-04-11T23:47:16.854775807; timestamptz_ns likewise
decimal(P, S)         a JSON number, or a string holding one, whose value needs no more than S places and P digits
binary, fixed[L]      base64 (RFC 4648 section 4, padded, canonical); a fixed of exactly L bytes
uuid                  ``8-4-4-4-12`` hexadecimal digits, either case
variant               any value
list                  an array; elements may be null
map                   an object, its keys read as texts of the key type; if the key is a list, map or struct, an array of
                      ``{"key": ..., "value": ...}``
struct                an object; missing members are null, unnamed members are treated as unknown fields of the record
====================  ==================================================================================================

``null`` and a missing field are null. A field, member or map key that occurs twice is refused, also
under its earlier name. Ignored fields only have to be
JSON. Arrays and objects of all kinds may nest up to `MAX_DEPTH` levels.
"""

import base64
import binascii
import datetime
import json
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, NamedTuple

from firn.decoders import defaults
from firn.decoders.bad_records import DETAIL_LIMIT, BadRecordError, Code, Stage
from firn.decoders.json_limits import (
    EPOCHS,
    EPOCHS_OF_NANOSECONDS,
    FIRST_MICROSECOND,
    LAST_MICROSECOND,
    MAX_DEPTH,
    MAX_MICROSECONDS,
    MAX_ZONE_MINUTES,
)
from firn.decoders.json_variants import Fraction as _Fraction
from firn.decoders.json_variants import Integer as _Integer
from firn.decoders.json_variants import Object as _Object
from firn.decoders.json_variants import encoded
from firn.member_paths import step
from firn.model.jobs import Column, Epoch
from firn.tables import renames, types
from firn.tables.renames import Former

_EXCERPT_LIMIT = 48


def _refuse_constant(name: str) -> Any:
    raise BadRecordError(Code.INVALID_JSON, Stage.DECODE, f"{name} is not a JSON number")


_PARSER = json.JSONDecoder(
    object_pairs_hook=_Object, parse_int=_Integer, parse_float=_Fraction, parse_constant=_refuse_constant, strict=True
)
_WHITE_SPACE = " \t\n\r"
_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[{]|[\]}]', re.DOTALL)


def parse(data: bytes) -> Any:
    """Parse a JSON value. Numbers stay texts, so that nothing is rounded. Raises BadRecordError (stage Decode)."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadRecordError(Code.INVALID_UTF8, Stage.DECODE, f"byte {error.start}: {error.reason}") from None
    text = text.strip(_WHITE_SPACE)
    if not text:
        raise BadRecordError(Code.EMPTY_PAYLOAD, Stage.DECODE, "the value is empty")
    if text.count("[") + text.count("{") > MAX_DEPTH:
        _check_depth(text)
    try:
        value, end = _PARSER.raw_decode(text)
    except json.JSONDecodeError as error:
        raise BadRecordError(Code.INVALID_JSON, Stage.DECODE, f"character {error.pos}: {error.msg}") from None
    if end != len(text):
        raise BadRecordError(Code.INVALID_JSON, Stage.DECODE, f"character {end}: text after the end of the value")
    return value


def _check_depth(text: str) -> None:
    depth = 0
    for token in _BRACKETS.finditer(text):
        sign = text[token.start()]
        if sign in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise BadRecordError(Code.TOO_DEEP, Stage.DECODE, f"nested more than {MAX_DEPTH} levels deep")
        elif sign != '"':
            depth -= 1


def _described(value: Any) -> str:
    if value is None:
        return "null"
    if value is True or value is False:
        return f"boolean {str(value).lower()}"
    if type(value) is _Object:
        return "an object"
    if type(value) is list:
        return "an array"
    excerpt = value if len(value) <= _EXCERPT_LIMIT else value[: _EXCERPT_LIMIT - 1] + "…"
    return (
        f"number {excerpt}"
        if type(value) in (_Integer, _Fraction)
        else f"string {json.dumps(excerpt, ensure_ascii=False)}"
    )


def _bad(code: Code, kind: types.Type, value: Any, problem: str = "") -> BadRecordError:
    text = f"expected {kind}, found {_described(value)}"
    return BadRecordError(code, Stage.SCHEMA, f"{text}: {problem}" if problem else text)


class Times(NamedTuple):
    """How values become times: the unit of integers, and whether digits below the microsecond are cut off."""

    epoch: Epoch
    truncate: bool = False


Converter = Callable[[Any], Any]
"""Converts a parsed value, not null, to the value that Arrow stores. Raises BadRecordError (stage Schema)."""


def _text(kind: types.Type, value: Any) -> str:
    if type(value) is not str:
        raise _bad(Code.WRONG_KIND, kind, value)
    return value


def _boolean(kind: types.Type) -> Converter:
    def convert(value: Any) -> bool:
        if value is not True and value is not False:
            raise _bad(Code.WRONG_KIND, kind, value)
        return bool(value)

    return convert


def _integer(kind: types.Type, bits: int) -> Converter:
    highest = (1 << (bits - 1)) - 1

    def convert(value: Any) -> int:
        if type(value) is not _Integer:
            if type(value) is _Fraction:
                raise _bad(Code.INEXACT, kind, value, "write it without fraction and exponent")
            raise _bad(Code.WRONG_KIND, kind, value)
        if len(value) > 20:  # JSON has no leading zeros
            raise _bad(Code.OUT_OF_RANGE, kind, value)
        number = int(value)
        if not -highest - 1 <= number <= highest:
            raise _bad(Code.OUT_OF_RANGE, kind, value)
        return number

    return convert


def _double(kind: types.Type) -> Converter:
    def convert(value: Any) -> float:
        if type(value) is not _Integer and type(value) is not _Fraction:
            raise _bad(Code.WRONG_KIND, kind, value)
        number = float(value)
        if number in (float("inf"), float("-inf")):
            raise _bad(Code.OUT_OF_RANGE, kind, value)
        return number

    return convert


def _float(kind: types.Type) -> Converter:
    double = _double(kind)
    single = struct.Struct("<f")  # packing raises on overflow

    def convert(value: Any) -> float:
        try:
            return float(single.unpack(single.pack(double(value)))[0])
        except OverflowError:
            raise _bad(Code.OUT_OF_RANGE, kind, value) from None

    return convert


def _string(kind: types.Type) -> Converter:
    def convert(value: Any) -> str:
        text = _text(kind, value)
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise BadRecordError(
                Code.INVALID_UTF8, Stage.DECODE, f"character {error.start}: half of a surrogate pair"
            ) from None
        return text

    return convert


_DATE = r"(\d{4})-(\d\d)-(\d\d)"
_TIME = r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d+))?)?"
_ZONE = r"(?:([Zz])|([+-])(\d\d)(?::?(\d\d))?)"
_DATE_TEXT = re.compile(_DATE, re.ASCII)
_TIME_TEXT = re.compile(_TIME, re.ASCII)
_TIMESTAMP_TEXT = re.compile(f"{_DATE}[Tt ]{_TIME}", re.ASCII)
_TIMESTAMPTZ_TEXT = re.compile(f"{_DATE}[Tt ]{_TIME}{_ZONE}", re.ASCII)
_EPOCH = datetime.date(1970, 1, 1).toordinal()
_NANOSECONDS = frozenset(types.NANOSECONDS)


def epochs(kind: types.Type) -> Mapping[str, tuple[int, int]]:
    """Return factor and divisor of integer times by their unit, for the resolution of a type of times."""
    return EPOCHS_OF_NANOSECONDS if _digits(kind) == 9 else EPOCHS


def _digits(kind: types.Type) -> int:
    """Return the number of digits below the second."""
    return 9 if isinstance(kind, types.Primitive) and kind.name in _NANOSECONDS else 6


def _bounded(kind: types.Type, value: str, moment: int) -> int:
    if _digits(kind) == 6:
        if not FIRST_MICROSECOND <= moment <= LAST_MICROSECOND:
            raise _bad(Code.OUT_OF_RANGE, kind, value, "in UTC, this time is not in the years 1 to 9999")
    elif abs(moment) > MAX_MICROSECONDS:
        raise _bad(Code.OUT_OF_RANGE, kind, value, "nanoseconds from 1970 exceed 64 bits")
    return moment


def _days(kind: types.Type, value: str, parts: Sequence[str | None]) -> int:
    try:
        return datetime.date(int(parts[0] or 0), int(parts[1] or 0), int(parts[2] or 0)).toordinal() - _EPOCH
    except ValueError:
        raise _bad(Code.OUT_OF_RANGE, kind, value, "this day does not exist") from None


def _too_fine(kind: types.Type, value: Any) -> BadRecordError:
    if _digits(kind) == 9:
        return _bad(Code.INEXACT, kind, value, "finer than a nanosecond")
    return _bad(
        Code.INEXACT, kind, value, "finer than a microsecond; schema.nanoseconds: Truncate cuts off these digits"
    )


def _of_day(kind: types.Type, value: str, parts: Sequence[str | None], truncate: bool) -> int:
    """Return a time of day in the resolution of the type."""
    digits = _digits(kind)
    hour, minute, second = int(parts[0] or 0), int(parts[1] or 0), int(parts[2] or 0)
    if hour > 23 or minute > 59 or second > 59:
        raise _bad(Code.OUT_OF_RANGE, kind, value, "this time of day does not exist")
    fraction = parts[3] or ""
    if fraction[digits:].strip("0") and not (truncate and digits == 6):
        raise _too_fine(kind, value)
    return ((hour * 60 + minute) * 60 + second) * (1_000_000 if digits == 6 else 1_000_000_000) + int(
        fraction[:digits].ljust(digits, "0")
    )


def _matched(pattern: re.Pattern[str], form: str, kind: types.Type, value: Any) -> tuple[str | None, ...]:
    match = pattern.fullmatch(_text(kind, value))
    if match is None:
        raise _bad(Code.INVALID_FORMAT, kind, value, f"write it as {form}")
    return match.groups()


def _date(kind: types.Type) -> Converter:
    return lambda value: _days(kind, value, _matched(_DATE_TEXT, "YYYY-MM-DD", kind, value))


def _time(kind: types.Type, truncate: bool) -> Converter:
    return lambda value: _of_day(kind, value, _matched(_TIME_TEXT, "hh:mm:ss.ffffff", kind, value), truncate)


def _since_1970(kind: types.Type, times: Times) -> Converter:
    integer, epoch = _integer(kind, 64), times.epoch
    factor, divisor = epochs(kind)[epoch]

    def convert(value: Any) -> int:
        number: int = integer(value)
        if abs(number) > MAX_MICROSECONDS // factor:
            error = _bad(
                Code.OUT_OF_RANGE, kind, value, f"too large for a time in epoch {epoch}; see epoch of the field"
            )
            error.instant = number
            raise error
        if number % divisor and not times.truncate:
            raise _too_fine(kind, value)
        return number // divisor * factor

    return convert


def _timestamp(kind: types.Type, times: Times, *, zoned: bool) -> Converter:
    since_1970, digits = _since_1970(kind, times), _digits(kind)
    day, minute = 86_400 * 10**digits, 60 * 10**digits
    pattern, zone = (_TIMESTAMPTZ_TEXT, " and a zone") if zoned else (_TIMESTAMP_TEXT, ", without a zone")
    form = f"YYYY-MM-DDThh:mm:ss.{'f' * digits}{zone}"

    def convert(value: Any) -> int:
        if type(value) is _Integer or type(value) is _Fraction:
            number: int = since_1970(value)
            return number
        parts = _matched(pattern, form, kind, value)
        moment = _days(kind, value, parts) * day + _of_day(kind, value, parts[3:], times.truncate)
        return _bounded(kind, value, moment - _zone_minutes(kind, value, parts[7:]) * minute if zoned else moment)

    return convert


def _zone_minutes(kind: types.Type, value: str, parts: Sequence[str | None]) -> int:
    """Return the minutes by which a zone is ahead of UTC."""
    if parts[0]:
        return 0
    minutes = int(parts[3] or 0)
    offset = int(parts[2] or 0) * 60 + minutes
    if offset > MAX_ZONE_MINUTES or minutes > 59:
        raise _bad(Code.OUT_OF_RANGE, kind, value, "this zone does not exist")
    return offset if parts[1] == "+" else -offset


_NUMBER_TEXT = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_EXACT = Context(prec=100)


def _decimal(kind: types.Decimal) -> Converter:
    unit = Decimal(1).scaleb(-kind.scale)

    def convert(value: Any) -> Decimal:
        if type(value) is str:
            if _NUMBER_TEXT.fullmatch(value) is None:
                raise _bad(Code.INVALID_FORMAT, kind, value, "write it as a JSON number")
        elif type(value) is not _Integer and type(value) is not _Fraction:
            raise _bad(Code.WRONG_KIND, kind, value)
        mantissa, _, power = value.replace("E", "e").partition("e")
        power = (
            power[:1].strip("0123456789") + power.lstrip("+-").lstrip("0")[:10]
        )  # more digits are as far from any decimal
        number = Decimal(f"{mantissa}e{power}0") if power in ("", "+", "-") else Decimal(f"{mantissa}e{power}")
        sign, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int)
        kept = len(digits)
        while kept and digits[kept - 1] == 0:
            kept -= 1
        if not kept:
            return Decimal(0).quantize(unit)
        exponent += len(digits) - kept
        if exponent < -kind.scale:
            raise _bad(Code.INEXACT, kind, value, f"more than {kind.scale} decimal places")
        if kept + exponent + kind.scale > kind.precision:
            raise _bad(Code.OUT_OF_RANGE, kind, value)
        return Decimal((sign, digits[:kept], exponent)).quantize(unit, context=_EXACT)

    return convert


def _binary(kind: types.Type) -> Converter:
    def convert(value: Any) -> bytes:
        text = _text(kind, value)
        try:
            data = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise _bad(Code.INVALID_FORMAT, kind, value, "not base64") from None
        if base64.b64encode(data).decode() != text:
            raise _bad(Code.INVALID_FORMAT, kind, value, "not canonical base64")
        return data

    return convert


def _fixed(kind: types.Fixed) -> Converter:
    binary = _binary(kind)

    def convert(value: Any) -> bytes:
        data: bytes = binary(value)
        if len(data) != kind.length:
            raise _bad(Code.OUT_OF_RANGE, kind, value, f"{len(data)} bytes")
        return data

    return convert


_UUID_TEXT = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def _uuid(kind: types.Type) -> Converter:
    def convert(value: Any) -> bytes:
        if _UUID_TEXT.fullmatch(_text(kind, value)) is None:
            raise _bad(Code.INVALID_FORMAT, kind, value, "write it as 8-4-4-4-12 hexadecimal digits")
        return bytes.fromhex(value.replace("-", ""))

    return convert


def _variant(kind: types.Type) -> Converter:
    return encoded


def _list(kind: types.ListOf, strict: bool, times: Times, former: Former) -> Converter:
    element = _converter(kind.element, strict, times, former.at("element"))

    def convert(value: Any) -> list[Any]:
        if type(value) is not list:
            raise _bad(Code.WRONG_KIND, kind, value)
        elements: list[Any] = []
        for position, item in enumerate(value):
            try:
                elements.append(None if item is None else element(item))
            except BadRecordError as error:
                raise error.within(f"[{position}]") from None
        return elements

    return convert


def _map(kind: types.MapOf, strict: bool, times: Times, former: Former) -> Converter:
    if isinstance(kind.key, types.ListOf | types.MapOf | types.Struct):
        return _entries(kind, times, former)
    to_key = _converter(kind.key, strict, times, renames.NONE)
    to_value = _converter(kind.value, strict, times, former.at("value"))

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if type(value) is not _Object:
            raise _bad(Code.WRONG_KIND, kind, value)
        entries: dict[Any, Any] = {}
        for name, item in value:
            try:
                key = to_key(_scalar(kind.key, name))
                if key in entries:
                    raise _repeated_key()
                entries[key] = None if item is None else to_value(item)
            except BadRecordError as error:
                raise error.within(f".{name[:DETAIL_LIMIT]}", from_record=True) from None
        return list(entries.items())

    return convert


def _entries(kind: types.MapOf, times: Times, former: Former) -> Converter:
    """Return a converter for maps whose keys are not texts in JSON: an array of entries with key and value."""
    key = Column(name="key", type=str(kind.key), required=True, epoch=times.epoch)
    member = Column(name="value", type=str(kind.value), epoch=times.epoch)
    entry = _members((key, member), True, former, truncate=times.truncate)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if type(value) is not list:
            raise _bad(Code.WRONG_KIND, kind, value, "write an array of entries with key and value")
        entries: list[tuple[Any, Any]] = []
        for position, item in enumerate(value):
            try:
                if type(item) is not _Object:
                    raise _bad(Code.WRONG_KIND, kind, item, "an entry is an object with key and value")
                key, member = entry(item)
                if any(key == earlier for earlier, _ in entries):
                    raise _repeated_key()
            except BadRecordError as error:
                raise error.within(f"[{position}]") from None
            entries.append((key, member))
        return entries

    return convert


def _repeated_key() -> BadRecordError:
    return BadRecordError(Code.DUPLICATE_KEY, Stage.SCHEMA, "the key occurs twice")


def _scalar(kind: types.Type, text: str) -> Any:
    """Return a map key's text as the JSON value that the key type takes."""
    if kind == types.Primitive("boolean") and text in ("true", "false"):
        return text == "true"
    if (
        isinstance(kind, types.Primitive)
        and kind.name in ("int", "long", "float", "double")
        and _NUMBER_TEXT.fullmatch(text)
    ):
        return _Integer(text) if text.lstrip("-").isdigit() else _Fraction(text)
    return text


def _struct(kind: types.Struct, strict: bool, times: Times, former: Former) -> Converter:
    names = [name for name, _ in kind.fields]
    columns = tuple(Column(name=name, type=str(member), epoch=times.epoch) for name, member in kind.fields)
    members = _members(columns, strict, former, truncate=times.truncate)

    def convert(value: Any) -> dict[str, Any]:
        if type(value) is not _Object:
            raise _bad(Code.WRONG_KIND, kind, value)
        return dict(zip(names, members(value), strict=True))

    return convert


def _members(
    columns: Sequence[Column], strict: bool, former: Former, *, truncate: bool, keep: bool = False
) -> Callable[[_Object], list[Any]]:
    """Return a reader of an object's members in the order of ``columns``.

    ``strict`` refuses other members, ``keep`` makes a variant of them, after the others. It is null if there are none.
    """
    places = {name: place for place, column in enumerate(columns) for name in (column.name, *former.of(column.name))}
    plan = [
        (
            column.name,
            column.required,
            _converter(types.parse(column.type), strict, Times(column.epoch, truncate), former.at(column.name)),
        )
        for column in columns
    ]
    given = {
        place: plan[place][2](parse(defaults.token(types.parse(column.type), column.default).encode()))
        for place, column in enumerate(columns)
        if column.default is not None
    }

    def read(value: _Object) -> list[Any]:
        values: list[Any] = [None] * len(plan)
        seen: set[int] = set()
        others = _Object()
        for name, item in value:
            place = places.get(name)
            if place is None:
                others.append((name, item))
                continue
            if place in seen:
                raise BadRecordError(Code.DUPLICATE_KEY, Stage.SCHEMA, "the field occurs twice").within(step(name))
            seen.add(place)
            values[place] = item
        if strict and others:
            raise BadRecordError(Code.UNKNOWN_FIELD, Stage.SCHEMA, "the schema does not name this field").within(
                f".{others[0][0][:DETAIL_LIMIT]}", from_record=True
            )
        for place, (name, required, convert) in enumerate(plan):
            item = values[place]
            if item is not None:
                try:
                    values[place] = convert(item)
                except BadRecordError as error:
                    raise error.within(step(name)) from None
            elif place in given and place not in seen:
                values[place] = given[place]
            elif required:
                state = "is null" if place in seen else "is missing"
                raise BadRecordError(Code.MISSING_REQUIRED, Stage.SCHEMA, f"a required field {state}").within(
                    step(name)
                )
        if keep:
            values.append(encoded(others) if others else None)
        return values

    return read


def _converter(kind: types.Type, strict: bool, times: Times, former: Former) -> Converter:
    match kind:
        case types.Decimal():
            return _decimal(kind)
        case types.Fixed():
            return _fixed(kind)
        case types.ListOf():
            return _list(kind, strict, times, former)
        case types.MapOf():
            return _map(kind, strict, times, former)
        case types.Struct():
            return _struct(kind, strict, times, former)
    match kind.name:
        case "int":
            return _integer(kind, 32)
        case "long":
            return _integer(kind, 64)
        case "time":
            return _time(kind, times.truncate)
        case "timestamp" | "timestamp_ns":
            return _timestamp(kind, times, zoned=False)
        case "timestamptz" | "timestamptz_ns":
            return _timestamp(kind, times, zoned=True)
    return {
        "variant": _variant, "boolean": _boolean, "float": _float, "double": _double, "string": _string, "date": _date, "uuid": _uuid,
        "binary": _binary,
    }[kind.name](kind)  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecordReader:
    """Reads record values by a schema's fields."""

    _read: Callable[[_Object], list[Any]]
    _width: int
    _has_required: bool

    @classmethod
    def for_schema(
        cls,
        fields: Sequence[Column],
        *,
        refuse_unknown: bool,
        keep_unknown: bool = False,
        truncate_times: bool = False,
        former: Former = renames.NONE,
    ) -> "RecordReader":
        """Make a reader of ``fields``, which may also have their earlier names. Raises InvalidSpecError for an invalid type.

        ``keep_unknown``: read all other members as one variant, after the fields. ``truncate_times``: cut off digits below the microsecond.
        """
        read = _members(fields, refuse_unknown, former, truncate=truncate_times, keep=keep_unknown)
        return cls(read, len(fields) + keep_unknown, any(field.required for field in fields))

    def read(self, value: bytes | None) -> list[Any]:
        """Return one value for each field, as Arrow stores it (times as integers). Raises BadRecordError."""
        if value is None:
            if self._has_required:
                raise BadRecordError(
                    Code.TOMBSTONE, Stage.SCHEMA, "the value is null and the schema has required fields"
                )
            return [None] * self._width
        record = parse(value)
        if type(record) is not _Object:
            raise BadRecordError(Code.NOT_AN_OBJECT, Stage.SCHEMA, f"expected an object, found {_described(record)}")
        return self._read(record)


@dataclass(frozen=True, slots=True)
class ValueReader:
    """Reads values of one type."""

    _convert: Converter

    @classmethod
    def for_type(
        cls, kind: types.Type, *, refuse_unknown: bool, times: Times, former: Former = renames.NONE
    ) -> "ValueReader":
        """Make a reader of ``kind``."""
        return cls(_converter(kind, refuse_unknown, times, former))

    def read(self, value: bytes) -> Any:
        """Return a JSON value, not null, as Arrow stores it. Raises BadRecordError."""
        return self._convert(parse(value))
