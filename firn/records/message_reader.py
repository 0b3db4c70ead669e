"""Requests and answers, read into typed records by Kafka's message definitions, which kio has as one class for each message
and version.

The caller gives a frozen dataclass whose field names are those of the newest version, in snake case. A version may have
fields that the record does not declare: the reader skips them. The record may declare fields that a version lacks: they
keep the record's defaults."""

import dataclasses
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar, get_args, get_type_hints
from uuid import UUID

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode

from firn.records.cursor import Cursor, MalformedError
from firn.records.definitions import is_array, nested_entity

REQUEST_LIMIT = 4 << 20
"""Bytes of a request that is read into records, which take many times its size. Produce is larger and is read by
hand."""

R = TypeVar("R")
Read = Callable[[Cursor], Any]

ANSWER_ELEMENTS = 4_000_000
"""Elements of all arrays of an answer, for example partitions and aborted transactions."""

_schema = cache(load_request_schema)
_answer_schema = cache(load_response_schema)
"""kio imports the module again at each call. Callers ask only for versions that they serve, so the cache stays
small."""


def decode(record: type[R], api: int, version: int, frame: memoryview, place: int) -> R:
    """Read the request whose body begins at ``place``. Raises `MalformedError`.

    kio's own reader trusts the lengths in a frame and can exhaust the memory of the process, so only its definitions
    are used."""
    if len(frame) - place > REQUEST_LIMIT:
        raise MalformedError(
            f"a request of API {api}, version {version}, has {len(frame) - place} bytes, more than {REQUEST_LIMIT}"
        )
    schema = _schema(api, version)
    cursor = Cursor(frame, place, flexible=schema.__flexible__)
    # Kafka ignores bytes after the message, and librdkafka leaves some behind several messages.
    request: R = _reader(schema, record)(cursor)
    return request


def decode_answer(record: type[R], api: int, version: int, frame: memoryview, place: int) -> R:
    """Read the answer whose body begins at ``place``. Records stay views of the frame. Raises `MalformedError`."""
    schema = _answer_schema(api, version)
    cursor = Cursor(frame, place, flexible=schema.__flexible__, limit=ANSWER_ELEMENTS)
    answer: R = _reader(schema, record)(cursor)
    return answer


def _not_null(read: Read) -> Read:
    def checked(cursor: Cursor) -> Any:
        value = read(cursor)
        if value is None:
            raise MalformedError("a field that is not nullable is null")
        return value

    return checked


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


_PRIMITIVES: Mapping[str, Read] = {
    "int8": Cursor.i8,
    "int16": Cursor.i16,
    "int32": Cursor.i32,
    "int64": Cursor.i64,
    "float64": Cursor.f64,
    "bool": lambda cursor: cursor.i8() != 0,
    "error_code": _error,
    "timedelta_i32": lambda cursor: timedelta(milliseconds=cursor.i32()),
    "timedelta_i64": lambda cursor: timedelta(milliseconds=max(min(cursor.i64(), _LONGEST), -_LONGEST)),
    "uuid": _uuid,
    "string": Cursor.string,
    "bytes": _bytes,
    "records": Cursor.view,
}
_LONGEST = 1 << 46
"""Longest time in milliseconds. A longer one does not fit `timedelta`, and no client means one."""


_UNDECLARED = ""
"""The key under which the values of all fields that a record does not declare are read and dropped."""


def _make_reader(schema: Any, record: type | None) -> Read:
    """Make the reader of a message or of a part of one: its fields in their order, then the tagged ones."""
    hints = get_type_hints(schema)
    parts = {} if record is None else {name: _part(hint) for name, hint in get_type_hints(record).items()}
    plain: list[tuple[str, Read]] = []
    tagged: dict[int, tuple[str, Read]] = {}
    for field in dataclasses.fields(schema):
        name = field.name if field.name in parts else _UNDECLARED
        read = _field_reader(hints[field.name], field.metadata.get("kafka_type"), parts.get(field.name))
        tag = field.metadata.get("tag")
        if tag is None:
            plain.append((name, read))
        elif name is not _UNDECLARED:
            tagged[tag] = name, read
    flexible: bool = schema.__flexible__
    skips = any(name == _UNDECLARED for name, _ in plain)

    def read_all(cursor: Cursor) -> Any:
        values = {name: read(cursor) for name, read in plain}
        if flexible and (tags := cursor.tag_count()):
            _read_tagged(cursor, tags, tagged, values)
        if record is None:
            return None
        if skips:
            del values[_UNDECLARED]
        return record(**values)

    return read_all


_reader: Callable[[Any, Any], Read] = cache(_make_reader)


def _read_tagged(cursor: Cursor, count: int, tagged: Mapping[int, tuple[str, Read]], values: dict[str, Any]) -> None:
    for _ in range(count):
        tag, size = cursor.varint(), cursor.varint()
        end = cursor.place + size
        if tag not in tagged:
            cursor.skip(size)
            continue
        name, read = tagged[tag]
        values[name] = read(cursor)
        if cursor.place != end:
            raise MalformedError(f"tagged field {tag} does not have {size} bytes")


def _part(hint: Any) -> type | None:
    """Find the record inside the type of a record's field, if it has one."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return hint
    return next((part for argument in get_args(hint) if (part := _part(argument)) is not None), None)


def _field_reader(hint: Any, kafka_type: str | None, part: type | None) -> Read:
    optional = type(None) in get_args(hint)
    entity = nested_entity(hint)
    if entity is not None:
        read = _reader(entity, part)
        if not is_array(hint):
            return (lambda cursor: None if cursor.i8() < 0 else read(cursor)) if optional else read
    else:
        read = _PRIMITIVES[kafka_type or ""]
        nullable = kafka_type == "uuid" or (optional and not is_array(hint))
        if not nullable:
            read = _not_null(read)
        if not is_array(hint):
            return read

    def read_array(cursor: Cursor) -> Any:
        count = cursor.nullable_count()
        return None if count is None else tuple([read(cursor) for _ in range(count)])

    return read_array if optional else _not_null(read_array)
