"""The records of the benchmark `registry` are those of `ingest`, in other formats with the framing of a schema registry."""

import io
import json
from typing import Any

import fastavro

from firn import protoc
from hack.bench.records import avro, protobuf
from hack.bench.records.measurements import Generator


def test_avro_and_json_have_the_same_records() -> None:
    schema = fastavro.parse_schema(avro.SCHEMA)
    values, texts = avro.Encoder(7, seed=3).generate(50), Generator(seed=3).generate(50)
    for value, text in zip(values, texts, strict=True):
        assert value[:5] == b"\0\0\0\0\7"
        record: Any = fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None)
        at = record["at"].isoformat(timespec="milliseconds").replace("+00:00", "Z")
        assert {**record, "at": at} == json.loads(text)


def test_protobuf_and_json_have_the_same_records() -> None:
    kind = protobuf.message_class(protoc.descriptors(protobuf.TEXT, ()))
    values, texts = protobuf.Encoder(7, seed=3).generate(50), Generator(seed=3).generate(50)
    for value, text in zip(values, texts, strict=True):
        assert value[:6] == b"\0\0\0\0\7\0"
        record, expected = kind.FromString(value[6:]), json.loads(text)
        assert record.at.ToJsonString() == expected.pop("at")
        assert {name: getattr(record, name) for name in expected} == expected
