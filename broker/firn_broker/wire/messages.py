"""All other messages, through kio: one class per message and version, from Kafka's own definitions.

Handlers write an answer once, for the newest version, as nested dicts; `encode` leaves out what an older version does not have. Requests are
kio's own objects, and a field that a version lacks is read with a default (`getattr`).
"""

import dataclasses
import io
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from typing import Any, get_args, get_type_hints
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import i32Timedelta

from firn_broker.wire.cursor import Cursor, MalformedError

Fields = Mapping[str, Any]
"""A message, or a part of one, by the names of kio's fields (Kafka's, in snake case)."""

REQUEST_LIMIT = 4 << 20
"""Bytes of a request that is made into objects, which are many times larger: of all but Produce."""
NO_THROTTLE = i32Timedelta.parse(timedelta(0))


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
    schema = _response(api, version)
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, _builder(schema)(fields))
    return buffer.getvalue()


@cache
def _builder(schema: type) -> Callable[[Fields], Any]:
    hints = get_type_hints(schema)
    plain: list[str] = []
    nested: list[tuple[str, bool, Callable[[Fields], Any]]] = []
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        inner = _nested(hints[field.name])
        if inner is None:
            plain.append(field.name)
            if field.name == "throttle_time":
                defaults[field.name] = NO_THROTTLE
        else:
            nested.append((field.name, "tuple" in str(hints[field.name]), _builder(inner)))

    def build(fields: Fields) -> Any:
        values = dict(defaults)
        for name in plain:
            if name in fields:
                values[name] = fields[name]
        for name, many, builder in nested:
            if name in fields:
                value = fields[name]
                if value is None:
                    values[name] = None
                else:
                    values[name] = tuple(map(builder, value)) if many else builder(value)
        return schema(**values)

    return build


def _nested(hint: Any) -> type | None:
    """The message class inside a field's type, if it has one."""
    if isinstance(hint, type) and getattr(hint, "__type__", None) is EntityType.nested:
        return hint
    for argument in get_args(hint):
        if (found := _nested(argument)) is not None:
            return found
    return None
