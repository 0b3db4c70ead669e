"""Compare Firn and Iceberg's sink for Kafka Connect on records whose schema is in a schema registry.

The registry is Apicurio Registry. Values have the framing of Confluent's registry. The sink reads them with Apicurio's converter.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from firn.model.jobs import RecordSchema, SchemaFormat, Subject
from firn.schemas import avro as avro_schemas
from hack.bench.contestants.ingestion import class_archive, compiled
from hack.bench.contestants.lake import lake
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options
from hack.bench.peers.race import Workload, compared, prepare, race
from hack.bench.peers.sink import apicurio_converter
from hack.bench.records import avro
from hack.bench.records.measurements import create_topics, fill, read_through
from hack.support.progress import say, step
from tests.servers.apicurio import Apicurio, apicurio

TOPIC = "measurements-avro"
PARTITIONS = 4
PEERS = frozenset({"sink"})
REGISTRY = "main"


def measure(options: Options) -> Iterator[Figure]:
    """Fill a topic with the records of `ingest` in Avro, let the contestants land it in turn, and compare them."""
    peers = tuple(name for name in options.peers if name in PEERS)
    prepare(peers)
    compiled()
    class_archive()
    with lake(options.directory / "registry") as stores, apicurio(options.directory / "apicurio") as registry:
        bootstrap = stores.kafka.bootstrap
        subject = f"{TOPIC}-value"
        number = registry.register(subject, avro.SCHEMA)
        with step(f"producing {options.rows:,} records"):
            create_topics(bootstrap, [TOPIC], PARTITIONS)
            size = fill(bootstrap, TOPIC, options.rows, PARTITIONS, generate=avro.Encoder(number).generate)
        say(
            f"{size / options.rows:.0f} bytes per record; read once in {read_through(bootstrap, TOPIC, PARTITIONS):.1f} s"
        )
        text = json.dumps(avro.SCHEMA)
        schema = RecordSchema(
            format=SchemaFormat.AVRO,
            framing="Registry",
            subject=Subject(registry=REGISTRY, name=subject),
            text=text,
            schema_id=number,
            fields=avro_schemas.columns(avro_schemas.parse(text)),
        )
        yield from compared(
            "registry_avro", *race(stores, _workload(options, schema, registry), peers, options.repeats)
        )


def _workload(options: Options, schema: RecordSchema, registry: Apicurio) -> Workload:
    converter = apicurio_converter("Avro", f"http://127.0.0.1:{registry.port}/apis/registry/v2")
    return Workload(
        TOPIC,
        options.rows,
        schema.fields,
        schema,
        registries={REGISTRY: registry.connection},
        converter=converter,
    )
