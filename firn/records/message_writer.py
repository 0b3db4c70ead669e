"""Answers and requests, written by Kafka's message definitions, which kio has as one class for each message and version.

A handler writes an answer once, for the newest version, as nested mappings. The writer leaves out the fields that an
older version lacks."""

import dataclasses
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, get_args, get_type_hints
from uuid import UUID

from kio.index import load_request_schema, load_response_schema

from firn.records.cursor import array, string, varint
from firn.records.definitions import is_array, nested_entity
from firn.sasl.scram import LAST_USE_TAG

Fields = Mapping[str, Any]
"""A message, or a part of one, by the names of kio's fields (Kafka's, in snake case). A list of parts may be a function
that makes it."""

PIECE = 1 << 16
"""Bytes after which `pieces` ends a piece. The part that reaches this size belongs to the piece, whatever its own
size."""
NO_THROTTLE = timedelta(0)

_schema = cache(load_response_schema)
_request_schema = cache(load_request_schema)
"""kio imports the module again at each call. Callers ask only for versions that they serve, so the cache stays
small."""


def encode(api: int, version: int, fields: Fields) -> bytes:
    """Write the body of an answer."""
    return b"".join(pieces(api, version, fields))


def encode_request(api: int, version: int, fields: Fields) -> bytes:
    """Write the body of a request."""
    return b"".join(_pieces(_request_schema(api, version), fields))


def pieces(api: int, version: int, fields: Fields) -> Iterator[bytes]:
    """Write the body of an answer piece by piece, so that the caller can let others run between two pieces.

    A field that is an array of parts may be a function that makes the list. It is called when its turn comes, so that
    the parts of a long answer are never all in memory. Raises KeyError for a missing field, TypeError for null in a
    field that is not nullable."""
    return _pieces(_schema(api, version), fields)


def _pieces(schema: Any, fields: Fields) -> Iterator[bytes]:
    out = bytearray()
    for name, default, write, element in _plain(schema):
        value = fields[name] if default is _ABSENT else fields.get(name, default)
        if element is None or value is None:
            write(out, value)
            continue
        parts = value() if callable(value) else value
        out += array(len(parts), flexible=schema.__flexible__)
        for part in parts:
            element(out, part)
            if len(out) >= PIECE:
                yield bytes(out)
                out.clear()
    if schema.__flexible__:
        _write_tagged(_tagged(schema), out, fields)
    yield bytes(out)


Write = Callable[[bytearray, Any], None]


def _fixed(form: str) -> Write:
    pack = struct.Struct(form).pack

    def write(out: bytearray, value: Any) -> None:
        out += pack(value)

    return write


def _write_uuid(out: bytearray, value: UUID | None) -> None:
    out += value.bytes if value is not None else bytes(16)


def _time(form: str) -> Write:
    pack = struct.Struct(form).pack

    def write(out: bytearray, value: timedelta) -> None:
        out += pack(round(value.total_seconds() * 1000))

    return write


_NUMBERS: Mapping[str, str] = {
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "float64": "d", "bool": "?", "error_code": "h",
}  # fmt: skip
_FIXED: Mapping[str, Write] = {
    **{name: _fixed(">" + form) for name, form in _NUMBERS.items()},
    "uuid": _write_uuid,
    "timedelta_i32": _time(">i"),
    "timedelta_i64": _time(">q"),
}


def _write_string(flexible: bool) -> Write:
    def write(out: bytearray, value: str | None) -> None:
        out += string(value, flexible=flexible)

    return write


def _write_bytes(flexible: bool) -> Write:
    def write(out: bytearray, value: bytes | None) -> None:
        out += array(-1 if value is None else len(value), flexible=flexible)
        out += value or b""

    return write


def _not_null(write: Write, name: str) -> Write:
    def checked(out: bytearray, value: Any) -> None:
        if value is None:
            raise TypeError(f"{name} is null, but not nullable")
        write(out, value)

    return checked


_ABSENT = object()


@cache
def _plain(schema: Any) -> Sequence[tuple[str, Any, Write, Write | None]]:
    """List the fields without a tag: name, default, the writer of the field, and the writer of one part if it is an
    array of parts."""
    return [
        (field.name, _default(field), *_writers(schema, field))
        for field in dataclasses.fields(schema)
        if "tag" not in field.metadata
    ]


LAST_USE = "last_use_ms"
"""The last use of a SCRAM credential in milliseconds, which only Firn's brokers describe."""


@cache
def _tagged(schema: Any) -> Sequence[tuple[int, str, Any, Write]]:
    """List the tagged fields in the order of their tags: tag, name, default, and the writer of the field."""
    own = [(LAST_USE_TAG, LAST_USE, None, _fixed(">q"))] if schema.__name__ == "CredentialInfo" else []
    return (
        sorted(
            (
                (field.metadata["tag"], field.name, _default(field), _writers(schema, field)[0])
                for field in dataclasses.fields(schema)
                if "tag" in field.metadata
            ),
            key=lambda entry: entry[0],
        )
        + own
    )


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.name == "throttle_time":
        return NO_THROTTLE
    return _ABSENT if field.default is dataclasses.MISSING else field.default


def _writers(schema: Any, field: "dataclasses.Field[Any]") -> tuple[Write, Write | None]:
    """Make the writer of a field, and the writer of one part if the field is an array of parts."""
    hint = get_type_hints(schema)[field.name]
    optional = type(None) in get_args(hint)
    kafka_type = field.metadata.get("kafka_type", "")
    entity = nested_entity(hint)
    write = _part(entity) if entity is not None else _primitive(kafka_type, flexible=schema.__flexible__)
    if not is_array(hint):
        if entity is not None:
            return _part_or_null(write) if optional else write, None
        return write if optional or kafka_type in _FIXED else _not_null(write, field.name), None
    # A number that is None fails in struct, a part that is None fails at its first field.
    element = write if entity is not None or kafka_type in _FIXED else _not_null(write, field.name)
    form = _NUMBERS.get(kafka_type)
    write_array = _array(field.name, element, form, optional=optional, flexible=schema.__flexible__)
    return write_array, element if entity is not None else None


def _primitive(kafka_type: str, *, flexible: bool) -> Write:
    if kafka_type == "string":
        return _write_string(flexible)
    if kafka_type in ("bytes", "records"):
        return _write_bytes(flexible)
    return _FIXED[kafka_type]


def _part_or_null(write: Write) -> Write:
    def write_part_or_null(out: bytearray, value: Any) -> None:
        out.append(0xFF if value is None else 1)
        if value is not None:
            write(out, value)

    return write_part_or_null


def _array(name: str, write: Write, form: str | None, *, optional: bool, flexible: bool) -> Write:
    """Make the writer of an array, or of a function that makes the list; ``form`` is that of numbers in `struct`."""

    def write_array(out: bytearray, value: Any) -> None:
        if callable(value):
            value = value()
        if value is None and not optional:
            raise TypeError(f"{name} is null, but not nullable")
        out += array(-1 if value is None else len(value), flexible=flexible)
        if form is not None and value:
            out += struct.pack(f">{len(value)}{form}", *value)
        else:
            for element in value or ():
                write(out, element)

    return write_array


@cache
def _part(schema: Any) -> Write:
    tagged = _tagged(schema)
    flexible: bool = schema.__flexible__
    steps: list[Write] = []
    for numbers, group in groupby(_plain(schema), lambda entry: entry[1] is _ABSENT and entry[0] in _numbers(schema)):
        if numbers:
            steps.append(_write_numbers({name: _numbers(schema)[name] for name, *_ in group}))
        else:
            steps += (_write_field(name, default, write) for name, default, write, _ in group)

    def write(out: bytearray, fields: Fields) -> None:
        for step in steps:
            step(out, fields)
        if not flexible:
            return
        if tagged:
            _write_tagged(tagged, out, fields)
        else:
            out.append(0)

    return write


@cache
def _numbers(schema: Any) -> Mapping[str, str]:
    """List the fields that are one number, with its form in `struct`."""
    return {
        field.name: _NUMBERS[field.metadata["kafka_type"]]
        for field in dataclasses.fields(schema)
        if field.metadata.get("kafka_type") in _NUMBERS and not is_array(get_type_hints(schema)[field.name])
    }


def _write_numbers(forms: Mapping[str, str]) -> Write:
    """Make one writer for consecutive numbers, because most fields of long answers are numbers."""
    pack, get = struct.Struct(">" + "".join(forms.values())).pack, itemgetter(*forms)
    if len(forms) == 1:

        def write_one(out: bytearray, fields: Fields) -> None:
            out += pack(get(fields))

        return write_one

    def write(out: bytearray, fields: Fields) -> None:
        out += pack(*get(fields))

    return write


def _write_field(name: str, default: Any, write: Write) -> Write:
    def write_field(out: bytearray, fields: Fields) -> None:
        write(out, fields[name] if default is _ABSENT else fields.get(name, default))

    return write_field


def _write_tagged(tagged: Sequence[tuple[int, str, Any, Write]], out: bytearray, fields: Fields) -> None:
    present = [
        (tag, write, fields[name]) for tag, name, default, write in tagged if name in fields and fields[name] != default
    ]
    out += varint(len(present))
    for tag, write, value in present:
        data = bytearray()
        write(data, value)
        out += varint(tag) + varint(len(data)) + data
