"""All other messages, by kio's definitions: one class per message and version, from Kafka's own. The codecs of both are ours.

Handlers write an answer once, for the newest version, as nested dicts; `pieces` leaves out what an older version does not have. Requests are
kio's own objects, and a field that a version lacks is read with a default (`getattr`).
"""

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
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from firn.records.cursor import Cursor, MalformedError, array, string, varint

Fields = Mapping[str, Any]
"""A message, or a part of one, by the names of kio's fields (Kafka's, in snake case). A list of parts may be a function that makes it."""

REQUEST_LIMIT = 4 << 20
"""Bytes of a request that is made into objects, which are many times larger: of all but Produce."""
PIECE = 1 << 16
"""Bytes of an answer that are made without a break, and what the part that reaches it has beyond."""
NO_THROTTLE = timedelta(0)


# kio looks for the module each time. Who calls has checked that the version is one that is served, so there are few.
_request, _response = cache(load_request_schema), cache(load_response_schema)


def decode(api: int, version: int, frame: memoryview, place: int) -> Any:
    """The request whose body begins at ``place``. Raises `MalformedError`.

    The messages are kio's, their reader is ours: kio's own believes the lengths that a client writes, and takes the process down with it.
    """
    if len(frame) - place > REQUEST_LIMIT:
        raise MalformedError(f"api {api} version {version}: {len(frame) - place} bytes are too many for it")
    schema = _request(api, version)
    cursor = Cursor(frame, place, flexible=schema.__flexible__)
    # What is left over is ignored, as Kafka does: librdkafka leaves bytes behind some messages.
    return _reader(schema)(cursor)


def _null(read: Callable[[Cursor], Any], *, allowed: bool) -> Callable[[Cursor], Any]:
    """``read``, that takes null only where the protocol does."""

    def checked(cursor: Cursor) -> Any:
        value = read(cursor)
        if value is None:
            raise MalformedError("null where none may be")
        return value

    return read if allowed else checked


def _bytes(cursor: Cursor) -> bytes | None:
    view = cursor.view()
    return None if view is None else bytes(view)


def _error(cursor: Cursor) -> ErrorCode:
    try:
        return ErrorCode(cursor.i16())
    except ValueError as error:
        raise MalformedError(str(error)) from error


def _uuid(cursor: Cursor) -> UUID | None:
    value = cursor.uuid()
    return value if value.int else None


_PRIMITIVES: Mapping[str, Callable[[Cursor], Any]] = {
    "int8": Cursor.i8,
    "int16": Cursor.i16,
    "int32": Cursor.i32,
    "int64": Cursor.i64,
    "bool": lambda cursor: cursor.i8() != 0,
    "error_code": _error,
    "timedelta_i32": lambda cursor: timedelta(milliseconds=cursor.i32()),
    "timedelta_i64": lambda cursor: timedelta(milliseconds=max(min(cursor.i64(), _LONGEST), -_LONGEST)),
    "uuid": _uuid,
    "string": Cursor.string,
    "bytes": _bytes,
    "records": _bytes,
}
_LONGEST = 1 << 46
"""Milliseconds; longer ones do not fit Python's type, and nobody means them."""


@cache
def _reader(schema: type) -> Callable[[Cursor], Any]:
    """What reads a message, or a part of one: its fields in their order, then the tagged ones."""
    hints = get_type_hints(schema)
    plain: list[tuple[str, Callable[[Cursor], Any]]] = []
    tagged: dict[int, tuple[str, Callable[[Cursor], Any]]] = {}
    absent: dict[str, Any] = {}
    flexible: bool = schema.__flexible__  # type: ignore[attr-defined]
    for field in dataclasses.fields(schema):
        read = _field_reader(hints[field.name], field.metadata.get("kafka_type"))
        tag = field.metadata.get("tag")
        if tag is None:
            plain.append((field.name, read))
        else:
            tagged[tag] = field.name, read
            if field.default is dataclasses.MISSING:
                absent[field.name] = None

    def read_all(cursor: Cursor) -> Any:
        values = {name: read(cursor) for name, read in plain}
        if flexible:
            values.update(absent)
            for _ in range(cursor.tag_count()):
                tag, size = cursor.varint(), cursor.varint()
                end = cursor.place + size
                if tag in tagged:
                    name, read = tagged[tag]
                    values[name] = read(cursor)
                    if cursor.place != end:
                        raise MalformedError(f"tagged field {tag} is not of {size} bytes")
                else:
                    cursor.skip(size)
        return schema(**values)

    return read_all


def _field_reader(hint: Any, kafka_type: str | None) -> Callable[[Cursor], Any]:
    optional = type(None) in get_args(hint)
    inner = _nested(hint)
    one = _reader(inner) if inner is not None else _PRIMITIVES[kafka_type or ""]
    if "tuple" not in str(hint):
        if inner is not None and optional:
            return lambda cursor: None if cursor.i8() < 0 else one(cursor)
        return one if inner is not None else _null(one, allowed=optional or kafka_type == "uuid")
    element = one if inner is not None else _null(one, allowed=kafka_type == "uuid")

    def array(cursor: Cursor) -> Any:
        count = cursor.nullable_count()
        return None if count is None else tuple([element(cursor) for _ in range(count)])

    return _null(array, allowed=optional)


def encode(api: int, version: int, fields: Fields) -> bytes:
    """The body of an answer."""
    return b"".join(pieces(api, version, fields))


def pieces(api: int, version: int, fields: Fields) -> Iterator[bytes]:
    """The body of an answer, made as it is asked for: elsewhere something may be done between two pieces.

    A field that lists parts may be a function that makes the list, which is called when its turn comes: of a long answer there are never
    all parts at a time. Raises KeyError where a field is missing, TypeError where null is and may not be.
    """
    schema = _response(api, version)
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
    "int8": "b", "int16": "h", "int32": "i", "int64": "q", "bool": "?", "error_code": "h",
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
            raise TypeError(f"{name} is null where it may not be")
        write(out, value)

    return checked


_ABSENT = object()


@cache
def _plain(schema: type) -> Sequence[tuple[str, Any, Write, Write | None]]:
    """Of the fields that have no tag: name, default, what writes one, and what writes a part if it lists parts of several fields."""
    return [
        (field.name, _default(field), *_writers(schema, field))
        for field in dataclasses.fields(schema)
        if "tag" not in field.metadata
    ]


@cache
def _tagged(schema: type) -> Sequence[tuple[int, str, Any, Write]]:
    """Of those that have one: tag, name, default, what writes one."""
    return sorted(
        (
            (field.metadata["tag"], field.name, _default(field), _writers(schema, field)[0])
            for field in dataclasses.fields(schema)
            if "tag" in field.metadata
        ),
        key=lambda it: it[0],
    )


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.name == "throttle_time":
        return NO_THROTTLE
    return _ABSENT if field.default is dataclasses.MISSING else field.default


def _writers(schema: type, field: "dataclasses.Field[Any]") -> tuple[Write, Write | None]:
    flexible: bool = schema.__flexible__  # type: ignore[attr-defined]
    hint = get_type_hints(schema)[field.name]
    optional = type(None) in get_args(hint)
    kafka_type = field.metadata.get("kafka_type", "")
    inner = _nested(hint)
    many = "tuple" in str(hint)
    if inner is not None:
        one = _part(inner)
    elif kafka_type == "string":
        one = _write_string(flexible)
    elif kafka_type in ("bytes", "records"):
        one = _write_bytes(flexible)
    else:
        one = _FIXED[kafka_type]
    # What is packed says so itself.
    checked = inner is not None or kafka_type in _FIXED
    if not many and inner is not None and optional:

        def struct_or_null(out: bytearray, value: Any) -> None:
            out.append(0xFF if value is None else 1)
            if value is not None:
                one(out, value)

        return struct_or_null, None
    each = one if checked or (optional and not many) else _not_null(one, field.name)
    if not many:
        return each, None

    def write(out: bytearray, value: Any) -> None:
        if callable(value):
            value = value()
        if value is None and not optional:
            raise TypeError(f"{field.name} is null where it may not be")
        out += array(-1 if value is None else len(value), flexible=flexible)
        if form is not None and value:
            out += struct.pack(f">{len(value)}{form}", *value)
        else:
            for it in value or ():
                each(out, it)

    form = _NUMBERS.get(kafka_type)
    return write, each if inner is not None else None


@cache
def _part(schema: type) -> Write:
    tagged = _tagged(schema)
    flexible: bool = schema.__flexible__  # type: ignore[attr-defined]
    steps: list[Write] = []
    for numbers, group in groupby(_plain(schema), lambda it: it[1] is _ABSENT and it[0] in _numbers(schema)):
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
def _numbers(schema: type) -> Mapping[str, str]:
    """Fields that are a number, with its form."""
    return {
        field.name: _NUMBERS[field.metadata["kafka_type"]]
        for field in dataclasses.fields(schema)
        if field.metadata.get("kafka_type") in _NUMBERS and "tuple" not in str(get_type_hints(schema)[field.name])
    }


def _write_numbers(forms: Mapping[str, str]) -> Write:
    """Those that follow one another go together, as most of what is long are numbers."""
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
    there = [
        (tag, write, fields[name]) for tag, name, default, write in tagged if name in fields and fields[name] != default
    ]
    out += varint(len(there))
    for tag, write, value in there:
        data = bytearray()
        write(data, value)
        out += varint(tag) + varint(len(data)) + data


def _nested(hint: Any) -> type | None:
    """The message class inside a field's type, if it has one."""
    if isinstance(hint, type) and getattr(hint, "__type__", None) is EntityType.nested:
        return hint
    for argument in get_args(hint):
        if (found := _nested(argument)) is not None:
            return found
    return None
