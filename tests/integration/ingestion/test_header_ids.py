"""Records that name their schemas in headers, or nowhere, and keys with schemas of their own: Apicurio Registry."""

import io
from typing import Any

import fastavro

from firn.model.jobs import KeySchema
from tests.integration.ingestion.contracts import schema_of
from tests.integration.ingestion.world import Record, World
from tests.servers.apicurio import Apicurio
from tests.servers.process import await_true


def record(*fields: tuple[str, str]) -> dict[str, Any]:
    return {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [{"name": name, "type": kind} for name, kind in fields],
    }


def encoded(schema: Any, **values: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, values)
    return buffer.getvalue()


def headers(**ids: int | bytes) -> list[tuple[str, bytes | None]]:
    return [
        (f"__{part}_schema_id", each if isinstance(each, bytes) else b"\0" + each.to_bytes(4))
        for part, each in ids.items()
    ]


KEY, LATER_KEY = record(("region", "string")), record(("region", "string"), ("store", "int"))
ORDER, LATER = record(("id", "int")), record(("id", "long"), ("note", "string"))


def test_headers_name_the_schemas_of_values_and_keys(served: World, registry: Apicurio) -> None:
    topic = served.topic()
    subject, of_key = f"{topic}-value", f"{topic}-key"
    first, first_key = registry.register(subject, ORDER), registry.register(of_key, KEY)
    schema = schema_of(registry, subject, id_in="Header")
    decoding = schema_of(registry, of_key, id_in="Header")
    key = KeySchema(columns="Flat", fields=decoding.fields, decoding=decoding.model_copy(update={"fields": ()}))
    job = served.job(topic, record_schema=schema.model_copy(update={"key": key}))
    served.apply(job)
    later, later_key = registry.register(subject, LATER), registry.register(of_key, LATER_KEY)
    good = Record(encoded(ORDER, id=1), key=encoded(KEY, region="eu"), headers=headers(value=first, key=first_key))
    served.produce(
        topic,
        [
            good,
            Record(
                encoded(LATER, id=2**40, note="n"),
                key=encoded(LATER_KEY, region="us", store=7),
                headers=headers(value=later, key=later_key),
            ),
            # Without a header, the id is before the value.
            Record(b"\0" + first.to_bytes(4) + encoded(ORDER, id=3), headers=headers(key=first_key)),
            Record(encoded(ORDER, id=4), key=good.key, headers=headers(key=first_key)),
            Record(good.value, key=good.key, headers=headers(value=first, key=b"\0\1")),
            Record(good.value, key=good.key, headers=headers(value=first, key=first)),
        ],
    )
    served.start()
    rows = served.await_rows(job, 3)
    assert [(row["id"], row["note"], row["key_region"], row["key_store"]) for row in rows] == [
        (1, None, "eu", None), (2**40, "n", "us", 7), (3, None, None, None),
    ]  # fmt: skip
    assert [row["_kafka"]["schema_id"] for row in rows] == [first, later, first]
    await_true("three dead letters", lambda: len(served.dead(job)) == 3)
    assert [(row["error_code"], row["error_path"]) for row in served.dead(job)] == [
        ("UnknownSchema", "$"), ("UnknownSchema", "$key"), ("UnknownSchema", "$key"),
    ]  # fmt: skip
    # Apicurio does not resolve GUIDs, which is no fault of the record.
    served.produce(topic, [Record(good.value, key=good.key, headers=headers(value=b"\1" + bytes(16), key=first_key))])
    state = served.await_state(job, "BackingOff", reason="RegistryUnreachable")
    assert "does not resolve the GUIDs of schemas" in state.message
    assert len(served.dead(job)) == 3


def test_the_latest_schema_reads_values_without_ids(served: World, registry: Apicurio) -> None:
    topic = served.topic()
    subject = f"{topic}-value"
    number = registry.register(subject, ORDER)
    job = served.job(topic, record_schema=schema_of(registry, subject, id_in="None"))
    served.apply(job)
    served.produce(topic, [encoded(ORDER, id=1), None])
    served.start()
    rows = served.await_rows(job, 2)
    assert [(row["id"], row["_kafka"]["schema_id"]) for row in rows] == [(1, number), (None, None)]
    later = registry.register(subject, LATER)
    following = schema_of(registry, subject, id_in="None")
    served.apply(job.model_copy(update={"record_schema": following, "generation": job.generation + 1}))
    await_true("the column", lambda: "note" in str(served.table(job).schema()))
    served.produce(topic, [encoded(LATER, id=2, note="n")])
    rows = served.await_rows(job, 3)
    assert [(row["id"], row["note"], row["_kafka"]["schema_id"]) for row in rows[2:]] == [(2, "n", later)]
