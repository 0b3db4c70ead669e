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

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType
from kio.static.primitive import i32Timedelta

from firn_broker.wire.cursor import MalformedError

Fields = Mapping[str, Any]
"""A message, or a part of one, by the names of kio's fields (Kafka's, in snake case)."""

NO_THROTTLE = i32Timedelta.parse(timedelta(0))


def decode(api: int, version: int, frame: memoryview, place: int) -> Any:
    """The request whose body begins at ``place``. Raises `MalformedError`."""
    try:
        reader = entity_reader(load_request_schema(api, version))
        message, _ = reader(bytes(frame[place:]), 0)
    except Exception as error:
        # kio's own errors and those of Python alike: whatever these bytes are, they are not this message.
        raise MalformedError(f"api {api} version {version}: {type(error).__name__}: {error}"[:300]) from error
    return message


def encode(api: int, version: int, fields: Fields) -> bytes:
    """The body of an answer."""
    schema = load_response_schema(api, version)
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
