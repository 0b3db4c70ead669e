"""Flights in JSON, and in Avro and Protobuf as in the samples and through a schema registry, give tables with equal rows."""

import csv
import io
import itertools
import json
import zipfile
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import fastavro
import yaml
from confluent_kafka import Producer
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from firn import protoc
from hack.quickstart import ROOT, Manifest, apply, flights_archive
from tests.e2e import registry
from tests.e2e.topics import LONG, await_ready, await_rows, rows, topic_manifest
from tests.servers.apicurio import Apicurio

COUNT = 336_776 if LONG else 12_000
FIELDS = [
    {"name": "carrier", "type": "string"},
    {"name": "flight", "type": "int"},
    {"name": "tailnum", "type": "string"},
    {"name": "time_hour", "type": "timestamptz"},
    {"name": "route", "type": "struct<origin: string, dest: string, distance: double>"},
    {"name": "delays", "type": "struct<departure: double, arrival: double>"},
]


def sample(name: str, namespace: str) -> Manifest:
    """Return the sample of a format, with another namespace and a topic of its own."""
    manifest: Manifest = yaml.safe_load((ROOT / "crds" / "samples" / f"flights-{name}.yaml").read_text())
    manifest["metadata"]["namespace"] = namespace
    manifest["spec"]["topicName"] = f"{namespace}.flights-{name}"
    return manifest


TEXTS = {name: sample(name, "")["spec"]["schema"]["text"] for name in ("avro", "protobuf")}
"""Schema of each sample. The topics with a schema registry have the same ones."""


def flights() -> Iterator[dict[str, Any]]:
    """Yield flights with nested fields. Unknown values are None."""

    def number(text: str) -> float | None:
        return float(text) if text not in ("", "NA") else None

    def word(text: str) -> str | None:
        return text if text not in ("", "NA") else None

    archive = zipfile.ZipFile(flights_archive())
    with archive.open(archive.namelist()[0]) as raw:
        for row in itertools.islice(csv.DictReader(io.TextIOWrapper(raw, "utf-8")), COUNT):
            yield {
                "carrier": word(row["carrier"]),
                "flight": int(row["flight"]),
                "tailnum": word(row["tailnum"]),
                "time_hour": datetime.fromisoformat(row["time_hour"]),
                "route": {"origin": row["origin"], "dest": row["dest"], "distance": number(row["distance"])},
                "delays": {"departure": number(row["dep_delay"]), "arrival": number(row["arr_delay"])},
            }


def as_json(flight: dict[str, Any]) -> bytes:
    return json.dumps({**flight, "time_hour": flight["time_hour"].isoformat()}).encode()


def as_avro(frame: bytes = b"") -> Callable[[dict[str, Any]], bytes]:
    schema = fastavro.parse_schema(json.loads(TEXTS["avro"]))

    def encode(flight: dict[str, Any]) -> bytes:
        buffer = io.BytesIO()
        buffer.write(frame)
        fastavro.schemaless_writer(buffer, schema, flight)
        return buffer.getvalue()

    return encode


def as_protobuf(frame: bytes = b"") -> Callable[[dict[str, Any]], bytes]:
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(protoc.descriptors(TEXTS["protobuf"], ())).file:
        pool.AddSerializedFile(file.SerializeToString())
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("demo.Flight"))

    def present(fields: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if value is not None}

    def encode(flight: dict[str, Any]) -> bytes:
        nested = {name: present(flight[name]) for name in ("route", "delays")}
        content: bytes = kind(**present({**flight, **nested})).SerializeToString()
        return frame + content

    return encode


def produce(topic: Any, values: Iterator[bytes]) -> None:
    producer = Producer(
        {"bootstrap.servers": "127.0.0.1:30010", "linger.ms": 20, "queue.buffering.max.messages": 500_000}
    )
    for value in values:
        producer.produce(topic["status"]["topicName"], value)
    assert producer.flush(120) == 0


def frame(schema_id: int) -> bytes:
    """Return the bytes before a value whose schema is in the registry."""
    return b"\0" + schema_id.to_bytes(4)


def test_all_formats_give_equal_rows(namespace: str, schemas: Apicurio) -> None:
    subjects = {name: f"{name}-{namespace}-value" for name in TEXTS}
    of_avro = frame(schemas.register(subjects["avro"], json.loads(TEXTS["avro"])))
    of_protobuf = frame(schemas.register(subjects["protobuf"], TEXTS["protobuf"], "PROTOBUF"))
    encoders = {
        "json": as_json,
        "flights-avro": as_avro(),
        "flights-protobuf": as_protobuf(),
        "avro": as_avro(of_avro),
        # The last byte selects the first message of the text.
        "protobuf": as_protobuf(of_protobuf + b"\0"),
    }
    apply(topic_manifest("json", namespace, schema={"format": "Json", "fields": FIELDS}))
    for name, subject in subjects.items():
        apply(sample(name, namespace))
        schema = {"format": name.capitalize(), "registry": {"name": "main", "subject": subject}}
        apply(topic_manifest(name, namespace, schema=schema))
    topics = {name: await_ready(name, namespace) for name in encoders}
    tables = {name: topic["status"]["table"]["identifier"] for name, topic in topics.items()}
    everything = list(flights())
    half = COUNT // 2
    for name, encode in encoders.items():
        produce(topics[name], map(encode, everything[:half]))
    for name in subjects:
        await_rows(tables[name], half)
    # The driver knows the schemas, so the second half lands without the registry.
    registry.stop()
    for name, encode in encoders.items():
        produce(topics[name], map(encode, everything[half:]))
    for table in tables.values():
        await_rows(table, COUNT, timeout=240)
    columns = "carrier, flight, tailnum, time_hour, route, delays"
    for other in set(tables) - {"json"}:
        for left, right in (("json", other), (other, "json")):
            difference = f"select {columns} from {tables[left]} except all select {columns} from {tables[right]}"
            assert rows(f"select count(*) as n from ({difference})") == [{"n": 0}]
