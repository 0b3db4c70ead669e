"""Requests are read as kio writes them, for every message and version that is advertised; anything else is malformed, at no cost."""

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

from firn.records import messages
from firn.records.cursor import MalformedError
from firn_broker import api_table
from firn_broker.wire import headers
from tests.unit.broker.whole import _nested

VERSIONS = [(api.KEY, version) for api in api_table.DECODED for version in range(api.VERSIONS[0], api.VERSIONS[1] + 1)]
SAMPLES: dict[str, Any] = {
    "int8": 1, "int16": 2, "int32": 3, "int64": 1 << 40, "bool": True, "string": "text", "bytes": b"bytes", "records": b"records",
    "uuid": UUID(int=5), "error_code": ErrorCode.none, "timedelta_i32": i32Timedelta.parse(timedelta(seconds=1)),
    "timedelta_i64": i64Timedelta.parse(timedelta(seconds=2)),
}  # fmt: skip


def sample(schema: Any, chance: Random) -> Any:
    """A message with something in every field, or nothing where that may be."""
    hints = get_type_hints(schema)
    values = {}
    for field in dataclasses.fields(schema):
        hint = hints[field.name]
        inner = _nested(hint)

        def one(inner: Any = inner, field: Any = field) -> Any:
            return sample(inner, chance) if inner is not None else SAMPLES[field.metadata["kafka_type"]]

        if type(None) in get_args(hint) and chance.random() < 0.3 and field.metadata.get("tag") is None:
            values[field.name] = None
        elif "tuple" in str(hint):
            values[field.name] = tuple(one() for _ in range(chance.randrange(3)))
        else:
            values[field.name] = one()
    return schema(**values)


def written(message: Any) -> bytes:
    buffer = io.BytesIO()
    entity_writer(type(message))(buffer, message)
    return buffer.getvalue()


@pytest.mark.parametrize(("api", "version"), VERSIONS)
def test_what_kio_writes_is_read(api: int, version: int) -> None:
    schema = load_request_schema(api, version)
    assert headers.is_flexible(api, version) == schema.__flexible__
    for seed in range(20):
        message = sample(schema, Random(seed))
        data = written(message)
        assert messages.decode(api, version, memoryview(b"head" + data), 4) == message
        if schema.__flexible__ and not any(it.metadata.get("tag") is not None for it in dataclasses.fields(schema)):
            unknown = data[:-1] + b"\x01\x63\x02hi"
            assert messages.decode(api, version, memoryview(unknown), 0) == message


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
            messages.decode(api, version, memoryview(data), 0)
        except MalformedError:
            pass
        except OverflowError as error:
            raise AssertionError((api, version, bytes(data))) from error
