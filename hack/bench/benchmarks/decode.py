"""Measure the CPU time of decoding and landing in one task on one core, without Spark and Kafka.

The figures are CPU seconds per million records. For flat records, the peer is pyarrow's JSON reader. It is not strict: one bad record
fails its whole block. For strict decoding, the peer is Python's ``json.loads``. For the same records in Avro, it is fastavro,
which makes Python objects. In Protobuf, it is google.protobuf, with a Python object for each field.
"""

from __future__ import annotations

import base64
import datetime
import io
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import fastavro
import google.protobuf
import pyarrow as pa
import pyarrow.json as pa_json

from firn import protoc
from firn.decoders.bad_records import BadRecordError
from firn.decoders.checks import Check, check_of
from firn.decoders.json import RecordReader
from firn.decoders.quick_checks.opening import QuickCheck, quick_check_of
from firn.model.jobs import Column, IngestJob, QualityRule, RecordSchema, Subject, TableTarget, WriterSchema
from firn.schemas import avro, protobuf
from firn_spark.worker import arrow_types
from firn_spark.worker.decoding import Decoder
from firn_spark.worker.fetched import Fetched, Places
from firn_spark.worker.formats.avro.rows import fields_of
from firn_spark.worker.formats.json.blocks import BlockDecoder
from firn_spark.worker.formats.protobuf.rows import Rows
from firn_spark.worker.formats.registry import open_format
from firn_spark.worker.formats.writer_schemas import WriterSchemas
from firn_spark.worker.landing import LandingPlan, TopicLanding, land
from firn_spark.worker.quality.rules import Rules
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options
from hack.bench.records import avro as avro_records
from hack.bench.records import measurements as records
from hack.bench.records import protobuf as protobuf_records
from hack.bench.records import trips
from tests.unit.spark.tables import table_of

_COUNT = 200_000
_BATCH = 50_000
_SMALL = 50
"""Records of a small batch of a producer."""
_REPEATS = 5
_NESTED = (
    *records.COLUMNS,
    Column(name="tags", type="list<string>"),
    Column(name="place", type="struct<lat: double, lon: double>"),
)
_PLACE = {"lat": 0.0, "lon": 8.5417, "name": "Zürich HB", "floor": 0}
_UNIT = "CPU s per million records"


def _batches(values: list[bytes]) -> list[pa.RecordBatch]:
    """Return the values in batches, as from Spark."""
    batches = []
    for start in range(0, len(values), _BATCH):
        part = values[start : start + _BATCH]
        count = len(part)
        batches.append(
            pa.RecordBatch.from_pydict(
                {
                    "key": pa.array([b"key"] * count, pa.binary()),
                    "value": pa.array(part, pa.binary()),
                    "topic": pa.array(["t"] * count),
                    "partition": pa.array([0] * count, pa.int32()),
                    "offset": pa.array(range(start, start + count), pa.int64()),
                    "timestamp": pa.array([1_700_000_000_000_000] * count, pa.timestamp("us", tz="UTC")),
                    "timestampType": pa.array([0] * count, pa.int32()),
                    "headers": pa.nulls(count, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
                }
            )
        )
    return batches


def _job(columns: tuple[Column, ...]) -> IngestJob:
    return IngestJob(
        uid="bench", namespace="bench", name="t", generation=1, group="bench", profile="bench", topic="t", freshness_ms=60_000,
        record_schema=RecordSchema(format="Json", fields=columns), table=TableTarget(catalog="bench", namespace="bench", name="t"),
    )  # fmt: skip


def _cost(run: Callable[[], object], count: int) -> float:
    """Return the median over some runs, after a run for warm-up."""
    run()
    costs = []
    for _ in range(_REPEATS):
        start = time.process_time()
        run()
        costs.append((time.process_time() - start) / count * 1e6)
    return statistics.median(costs)


def _strictly(reader: RecordReader, values: list[bytes]) -> None:
    for value in values:
        try:
            reader.read(value)
        except BadRecordError:
            continue


def _nested(values: list[bytes]) -> list[bytes]:
    more = b',"tags":["a","bc",null],"place":{"lat":47.37,"lon":8.54}}'
    return [value[:-1] + more for value in values]


def _loose() -> Iterator[Figure]:
    """Yield the costs of an object of four members: as a variant and as members that no field has, both compared with a struct."""
    chance = random.Random(1)
    values = [
        json.dumps({"id": number, "place": {**_PLACE, "lat": round(chance.uniform(-90, 90), 4), "floor": number % 40}})
        for number in range(_COUNT)
    ]
    places = [Places.from_arrow(batch["value"]) for batch in _batches([value.encode() for value in values])]
    number = Column(name="id", type="long")
    struct = Column(name="place", type="struct<lat: double, lon: double, name: string, floor: int>")
    decoders = {
        "struct": BlockDecoder([number, struct], refuse_unknown=False),
        "variant": BlockDecoder([number, Column(name="place", type="variant")], refuse_unknown=False),
        "unknown": BlockDecoder([number], refuse_unknown=False, keep_unknown=True),
    }
    costs = {}
    for name, decoder in decoders.items():
        assert all(decoder.decode(part)[1].all() for part in places), "the decoder refused a record of the benchmark"
        costs[name] = _cost(partial(_decoded, decoder, places), _COUNT)
    for name in ("variant", "unknown"):
        yield Figure(f"decode_{name}", costs[name], _UNIT, "lower", "a struct", costs["struct"])


def _decoded(decoder: BlockDecoder, places: list[Places]) -> None:
    for part in places:
        decoder.decode(part)


def _in_avro(values: list[bytes]) -> list[bytes]:
    schema, encoded = fastavro.parse_schema(avro_records.SCHEMA), []
    for value in values:
        record = json.loads(value)
        record["at"] = datetime.datetime.fromisoformat(record["at"])
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, schema, record)
        encoded.append(buffer.getvalue())
    return encoded


def _avro(values: list[bytes]) -> Figure:
    encoded, text = _in_avro(values), json.dumps(avro_records.SCHEMA)
    places = [Places.from_arrow(batch["value"]) for batch in _batches(encoded)]
    record = avro.parse(text)
    types = {field.name: field.type for field in arrow_types.arrow_schema(avro.columns(record))}
    rows, _ = fields_of(record.fields, types)

    def decode() -> None:
        for part in places:
            assert rows.read(part.data, part.firsts, part.ends, part.present)[1].all(), "the decoder refused a record"

    schema, few = fastavro.parse_schema(avro_records.SCHEMA), encoded[: _COUNT // 20]
    peer = _cost(lambda: [fastavro.schemaless_reader(io.BytesIO(value), schema, None) for value in few], len(few))
    return Figure("decode_avro", _cost(decode, _COUNT), _UNIT, "lower", f"fastavro {fastavro.__version__}", peer)


def _avro_of_registry(values: list[bytes], ids: int) -> float:
    """Return the cost of values with the framing of a schema registry, with this number of schemas in turns."""
    record = avro.parse(json.dumps(avro_records.SCHEMA))
    framed = [b"\0" + (number % ids + 1).to_bytes(4) + value for number, value in enumerate(_in_avro(values))]
    records = [Fetched.from_arrow("t", batch) for batch in _batches(framed)]
    subject = Subject(registry="bench", name="bench")
    schema = RecordSchema(format="Avro", framing="Registry", subject=subject, fields=avro.columns(record))
    known: WriterSchemas = {
        number: WriterSchema(text=json.dumps({**avro_records.SCHEMA, "doc": str(number)}))
        for number in range(1, ids + 1)
    }
    decoder = open_format(schema, known)

    def decode() -> None:
        for part in records:
            assert not decoder.decode(part).errors, "the decoder refused a record"

    return _cost(decode, _COUNT)


def _in_protobuf(values: list[bytes], kind: Any) -> list[bytes]:
    encoded = []
    for value in values:
        record = json.loads(value)
        record["at"] = datetime.datetime.fromisoformat(record["at"])
        present = {name: member for name, member in record.items() if member is not None}
        encoded.append(kind(**present).SerializeToString())
    return encoded


def _protobuf(values: list[bytes]) -> Figure:
    descriptors = protoc.descriptors(protobuf_records.TEXT, ())
    kind = protobuf_records.message_class(descriptors)
    encoded = _in_protobuf(values, kind)
    places = [Places.from_arrow(batch["value"]) for batch in _batches(encoded)]
    message = protobuf.parse(descriptors)
    rows = Rows(message.fields, arrow_types.arrow_schema(protobuf.columns(message)).types)

    def decode() -> None:
        for part in places:
            assert rows.read(part.data, part.firsts, part.ends, part.present)[1].all(), "the decoder refused a record"

    names, few = [field.name for field in message.fields], encoded[: _COUNT // 20]

    def peer() -> None:
        for value in few:
            record = kind.FromString(value)
            [getattr(record, name) for name in names]

    version = f"google.protobuf {google.protobuf.__version__}"
    return Figure("decode_protobuf", _cost(decode, _COUNT), _UNIT, "lower", version, _cost(peer, len(few)))


def _gate() -> Iterator[Figure]:
    """Yield the costs of strict and of quick checks, as the gate of a diskless topic makes them."""
    count = _COUNT // 20
    descriptors = base64.b64encode(protoc.descriptors(protobuf_records.TEXT, ())).decode()
    checked: dict[str, tuple[RecordSchema, list[bytes]]] = {
        "avro": (
            RecordSchema(format="Avro", text=json.dumps(avro_records.SCHEMA), framing="Registry"),
            avro_records.Encoder(1).generate(count),
        ),
        "protobuf": (
            RecordSchema(format="Protobuf", descriptors=descriptors, framing="Registry"),
            protobuf_records.Encoder(1).generate(count),
        ),
        "json": (records.SCHEMA, records.Generator().generate(count)),
        "wide": (RecordSchema(format="Json", fields=trips.COLUMNS), trips.Generator().generate(count)),
    }
    for name, (schema, values) in checked.items():
        strict = _cost(partial(_checked, check_of(schema), values), count)
        yield Figure(f"decode_gate_{name}", strict, _UNIT, "lower")
        quick = quick_check_of(schema)
        assert quick is not None
        yield Figure(f"decode_gate_{name}_quick", _cost(partial(_accepted, quick, values), count), _UNIT, "lower")


def _checked(check: Check, values: list[bytes]) -> None:
    for value in values:
        check(value)


def _accepted(check: QuickCheck, values: list[bytes]) -> None:
    for start in range(0, len(values), _SMALL):
        assert check.accepts(values[start : start + _SMALL]), "the check is in doubt about a value of the benchmark"


_RULES = (
    QualityRule(name="plausible", check="temperature between -90 and 60"),
    QualityRule(name="region-known", check="region is not null and region matches '^[a-z]+(-[a-z0-9]+)*$'"),
    QualityRule(name="recent", check="at >= timestamp '2020-01-01 00:00:00Z'"),
    QualityRule(name="note-short", check="note is null or length(note) < 1000"),
)


def _judged(job: IngestJob, batches: list[pa.RecordBatch]) -> float:
    """Return the cost of the rules alone."""
    decoder, rules = Decoder(job, ingested_at=0), Rules(_RULES, job.record_schema.fields)
    tables = [decoder.decode(Fetched.from_arrow("t", batch)).rows for batch in batches]
    arrays = [{name: table[name].combine_chunks() for name in table.column_names} for table in tables]

    def judge() -> None:
        for part in arrays:
            assert not rules.judge(part, ()), "a record of the benchmark fails a rule"

    return _cost(judge, _COUNT)


def measure(options: Options) -> Iterator[Figure]:
    """Measure decoding of flat records, strict decoding, records with nested fields, and a whole task."""
    values = records.Generator().generate(_COUNT)
    yield Figure("decode_record_bytes", sum(map(len, values)) / _COUNT, "bytes", "lower")
    places = [Places.from_arrow(batch["value"]) for batch in _batches(values)]
    blocks = BlockDecoder(records.COLUMNS, refuse_unknown=False)
    assert all(blocks.decode(part)[1].all() for part in places), "the decoder refused a record of the benchmark"
    lines, schema = b"\n".join(values), arrow_types.arrow_schema(records.COLUMNS)
    settings = {
        "parse_options": pa_json.ParseOptions(explicit_schema=schema),
        "read_options": pa_json.ReadOptions(use_threads=False),
    }
    peer = _cost(lambda: pa_json.read_json(io.BytesIO(lines), **settings), _COUNT)
    ours = _cost(lambda: [blocks.decode(part) for part in places], _COUNT)
    yield Figure("decode_flat", ours, _UNIT, "lower", "pyarrow.json", peer)

    few = values[: _COUNT // 20]
    reader = RecordReader.for_schema(records.COLUMNS, refuse_unknown=False)
    loads = _cost(lambda: [json.loads(value) for value in few], len(few))
    yield Figure("decode_strict", _cost(lambda: _strictly(reader, few), len(few)), _UNIT, "lower", "json.loads", loads)

    nested = [Places.from_arrow(batch["value"]) for batch in _batches(_nested(values))]
    decoder = BlockDecoder(_NESTED, refuse_unknown=False)
    yield Figure("decode_nested", _cost(lambda: [decoder.decode(part) for part in nested], _COUNT), _UNIT, "lower")

    yield from _loose()
    yield _avro(values)
    yield Figure("decode_avro_registry", _avro_of_registry(values, 1), _UNIT, "lower")
    yield Figure("decode_avro_two_schemas", _avro_of_registry(values, 2), _UNIT, "lower")
    yield _protobuf(values)
    yield from _gate()

    batches, job = _batches(values), _job(records.COLUMNS)
    rows = Decoder(job, ingested_at=0)
    yield Figure(
        "decode_to_rows",
        _cost(lambda: [rows.decode(Fetched.from_arrow("t", batch)) for batch in batches], _COUNT),
        _UNIT,
        "lower",
    )

    yield Figure("quality_rules", _judged(job, batches), _UNIT, "lower")
    plan = LandingPlan({"t": TopicLanding(job, table_of(job, options.directory / "decode"))}, ingested_at=0)
    yield Figure("land", _cost(lambda: list(land(iter(batches), plan)), _COUNT), _UNIT, "lower")
