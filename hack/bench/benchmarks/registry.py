"""Compare Firn and Iceberg's sink for Kafka Connect on records whose schema is in a schema registry.

The registry is Apicurio Registry. Values have the framing of Confluent's registry. The sink reads Avro with Apicurio's
converter of version 2.6, which has none for Protobuf. So the peer of Firn's run with Protobuf is Firn's run with Avro.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator

from firn import protoc
from firn.model.jobs import RecordSchema, SchemaFormat, Subject
from firn.schemas.columns import columns_of
from hack.bench.contestants.ingestion import class_archive, compiled
from hack.bench.contestants.lake import Lake, lake
from hack.bench.measuring.figures import Figure
from hack.bench.measuring.repeats import median
from hack.bench.options import Options
from hack.bench.peers.race import BACKLOGGED, FIGURES, FIRN, LATER, Run, Workload, compared, prepare, race, run
from hack.bench.peers.sink import apicurio_converter
from hack.bench.records import avro, protobuf
from hack.bench.records.measurements import Generate, create_topics, fill, read_through
from hack.support.progress import say, step
from tests.servers.apicurio import Apicurio, apicurio

PARTITIONS = 4
PEERS = frozenset({"sink"})
REGISTRY = "main"
AVRO, PROTOBUF = "measurements-avro", "measurements-protobuf"


def measure(options: Options) -> Iterator[Figure]:
    """Land the records of `ingest` in Avro, by Firn and the sink in turn, and in Protobuf by Firn."""
    peers = tuple(name for name in options.peers if name in PEERS)
    prepare(peers)
    compiled()
    class_archive()
    with lake(options.directory / "registry") as stores, apicurio(options.directory / "apicurio") as registry:
        number = registry.register(f"{AVRO}-value", avro.SCHEMA)
        _fill(stores, AVRO, options.rows, avro.Encoder(number).generate)
        schema = _schema(AVRO, number, format=SchemaFormat.AVRO, text=json.dumps(avro.SCHEMA))
        ours, theirs = race(stores, _workload(AVRO, options, schema, registry), peers, options.repeats)
        yield from compared("registry_avro", ours, theirs)
        number = registry.register(f"{PROTOBUF}-value", protobuf.TEXT, "PROTOBUF")
        _fill(stores, PROTOBUF, options.rows, protobuf.Encoder(number).generate)
        descriptors = base64.b64encode(protoc.descriptors(protobuf.TEXT, ())).decode()
        schema = _schema(PROTOBUF, number, format=SchemaFormat.PROTOBUF, text=protobuf.TEXT, descriptors=descriptors)
        workload = _workload(PROTOBUF, options, schema, registry)
        yield from _beside_avro([run(stores, workload, FIRN) for _ in range(options.repeats)], ours)


def _fill(stores: Lake, topic: str, rows: int, generate: Generate) -> None:
    bootstrap = stores.kafka.bootstrap
    with step(f"producing {rows:,} records to {topic}"):
        create_topics(bootstrap, [topic], PARTITIONS)
        size = fill(bootstrap, topic, rows, PARTITIONS, generate=generate)
    say(f"{size / rows:.0f} bytes per record; read once in {read_through(bootstrap, topic, PARTITIONS):.1f} s")


def _schema(topic: str, number: int, **fields: object) -> RecordSchema:
    subject = Subject(registry=REGISTRY, name=f"{topic}-value")
    schema = RecordSchema.model_validate({"framing": "Registry", "subject": subject, "schema_id": number, **fields})
    return schema.model_copy(update={"fields": columns_of(schema, subject.name)})


def _workload(topic: str, options: Options, schema: RecordSchema, registry: Apicurio) -> Workload:
    converter = apicurio_converter(f"http://127.0.0.1:{registry.port}/apis/registry/v2")
    registries = {REGISTRY: registry.connection}
    return Workload(topic, options.rows, schema.fields, schema, registries=registries, converter=converter)


def _beside_avro(runs: list[Run], others: list[Run]) -> Iterator[Figure]:
    """Yield the medians of the runs with Protobuf, beside those with Avro."""
    for name in (BACKLOGGED, LATER):
        unit, better = FIGURES[name]
        value, other = (median([each.values()[name] for each in made]) for made in (runs, others))
        yield Figure(f"registry_protobuf_{name}", value, unit, better, "Firn with Avro", other)
