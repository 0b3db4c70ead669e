"""Requests are read as kio writes them, for every advertised message and version. Other bytes are malformed, at no cost."""

import dataclasses
import io
from datetime import timedelta
from random import Random
from typing import Any, get_args, get_type_hints
from uuid import UUID

import pytest
from kio.index import load_request_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer
from kio.static.primitive import i32Timedelta, i64Timedelta

from firn.records import message_reader
from firn.records.cursor import MalformedError
from firn_broker import api_table
from firn_broker.wire import headers
from tests.unit.broker.whole import nested_entity

REQUESTS = {api.key: api.request for api in api_table.APIS if api.request is not None}
VERSIONS = [
    (api.key, version)
    for api in api_table.APIS
    if api.request
    for version in range(api.versions[0], api.versions[1] + 1)
]
SAMPLES: dict[str, Any] = {
    "int8": 1, "int16": 2, "int32": 3, "int64": 1 << 40, "float64": 2.5, "bool": True, "string": "text", "bytes": b"bytes", "records": b"records",
    "uuid": UUID(int=5), "error_code": ErrorCode.none, "timedelta_i32": i32Timedelta.parse(timedelta(seconds=1)),
    "timedelta_i64": i64Timedelta.parse(timedelta(seconds=2)),
}  # fmt: skip


def sample(schema: Any, chance: Random) -> Any:
    """Return a message with a value in every field, or null in some nullable ones."""
    hints = get_type_hints(schema)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        hint = hints[field.name]
        inner = nested_entity(hint)

        def element(inner: Any = inner, field: Any = field) -> Any:
            return sample(inner, chance) if inner is not None else SAMPLES[field.metadata["kafka_type"]]

        if type(None) in get_args(hint) and chance.random() < 0.3 and field.metadata.get("tag") is None:
            values[field.name] = None
        elif "tuple" in str(hint):
            values[field.name] = tuple(element() for _ in range(chance.randrange(3)))
        else:
            values[field.name] = element()
    return schema(**values)


def written(message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


def expected(record: Any, message: Any) -> Any:
    """Return the record of a message: kio's values in the declared fields, and the record's defaults in fields that
    the version lacks."""
    there = {field.name for field in dataclasses.fields(message)}
    parts = {name: nested_record(hint) for name, hint in get_type_hints(record).items()}
    values = {}
    for field in dataclasses.fields(record):
        if field.name not in there:
            continue
        value, part = getattr(message, field.name), parts[field.name]
        if part is not None and value is not None:
            value = tuple(expected(part, element) for element in value)
        values[field.name] = value
    return record(**values)


def nested_record(hint: Any) -> Any:
    if dataclasses.is_dataclass(hint):
        return hint
    return next((part for argument in get_args(hint) if (part := nested_record(argument)) is not None), None)


def nullable(hint: Any) -> bool:
    return type(None) in get_args(hint)


def agrees(record: Any, schemas: list[Any], served: int) -> None:
    """Check a record against kio's classes for the versions that have the message, of all ``served`` versions."""
    declared = get_type_hints(record)
    for field in dataclasses.fields(record):
        definitions = [
            (get_type_hints(schema)[field.name], definition)
            for schema in schemas
            for definition in dataclasses.fields(schema)
            if definition.name == field.name
        ]
        assert definitions, f"{record.__name__}.{field.name} is in no version"
        hint = declared[field.name]
        assert nullable(hint) == any(nullable(annotation) for annotation, _ in definitions), (
            f"{record.__name__}.{field.name}"
        )
        if len(definitions) < served:
            assert field.default is not dataclasses.MISSING, f"{record.__name__}.{field.name} needs a default"
            kafkas = {definition.default for _, definition in definitions} - {dataclasses.MISSING}
            assert not kafkas or kafkas == {field.default}, f"{record.__name__}.{field.name}"
        if (part := nested_record(hint)) is not None:
            agrees(part, [nested_entity(annotation) for annotation, _ in definitions], len(definitions))


@pytest.mark.slow
@pytest.mark.parametrize("api", REQUESTS)
def test_a_request_record_declares_fields_as_kafka_defines_them(api: int) -> None:
    versions = [version for key, version in VERSIONS if key == api]
    agrees(REQUESTS[api], [load_request_schema(api, version) for version in versions], len(versions))


@pytest.mark.slow
@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_requests_written_by_kio_are_read(api: int, version: int) -> None:
    schema = load_request_schema(api, version)
    assert headers.is_flexible(api, version) == schema.__flexible__
    for seed in range(20):
        message = sample(schema, Random(seed))
        data = written(message)
        request: Any = message_reader.decode(REQUESTS[api], api, version, memoryview(b"head" + data), 4)
        assert request == expected(REQUESTS[api], message)
        if schema.__flexible__ and not any(
            field.metadata.get("tag") is not None for field in dataclasses.fields(schema)
        ):
            unknown = data[:-1] + b"\x01\x63\x02hi"
            assert message_reader.decode(REQUESTS[api], api, version, memoryview(unknown), 0) == request


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_a_mutated_request_is_read_or_malformed(seed: int) -> None:
    chance = Random(seed)
    for _ in range(40):
        api, version = chance.choice(VERSIONS)
        data = bytearray(written(sample(load_request_schema(api, version), chance)))
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(data) + 1)
            match chance.randrange(3):
                case 0:
                    data[place : place + 1] = chance.randbytes(1)
                case 1:
                    data[place : place + 4] = chance.choice((b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x0f", b""))
                case 2:
                    del data[place:]
        try:
            message_reader.decode(REQUESTS[api], api, version, memoryview(data), 0)
        except MalformedError:
            pass
        except OverflowError as error:
            raise AssertionError((api, version, bytes(data))) from error
