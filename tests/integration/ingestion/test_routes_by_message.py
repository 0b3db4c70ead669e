"""Records of one topic land in the table of their message, or of a field, by the schemas of a real registry."""

from collections import Counter
from typing import Any

import pytest

from firn.model.jobs import IngestJob, RecordSchema, Route, SchemaFormat
from firn.model.maintenance import AuditReport
from firn.schemas.routes import MESSAGE, registry_schema
from firn_spark.ingestion.topics import route_schemas
from tests.integration.ingestion.contracts import schema_of
from tests.integration.ingestion.test_routes import counts, full_audit, together
from tests.integration.ingestion.test_schema_registries import framed
from tests.integration.ingestion.world import WAIT, Record, World, exactly
from tests.servers.apicurio import Apicurio
from tests.servers.process import await_true


def record(name: str, *more: dict[str, Any], kind: str = "long") -> dict[str, Any]:
    fields = [{"name": "id", "type": kind}, *more]
    return {"type": "record", "name": name, "namespace": "shop", "fields": fields}


ORDER, REFUND, VISIT = record("Order"), record("Refund"), record("Visit")
LATER = record("Order", {"name": "note", "type": ["null", "string"], "default": None})
WRONG = record("Refund", kind="string")


def routed(
    world: World, topic: str, form: SchemaFormat, schemas: dict[str, RecordSchema], by: str = MESSAGE
) -> dict[str, IngestJob]:
    """Return the contract of a table for each value, and one of the topic itself, whose table has bytes."""
    values = registry_schema(form, "main", "Payload", by)
    messages = [f"shop.{name}" if by == MESSAGE else name for name in schemas]
    routes = {
        name: (schema, Route(values=values, match=messages[place], before=tuple(messages[:place])))
        for place, (name, schema) in enumerate(schemas.items())
    }
    routes["rest"] = RecordSchema(format=SchemaFormat.RAW), Route(values=values, before=tuple(messages))
    jobs = {}
    for name, (schema, route) in routes.items():
        job = world.job(topic, record_schema=schema, topic_created=True)
        table = job.table.model_copy(update={"name": f"{job.table.name}_{name.lower()}"})
        jobs[name] = job.model_copy(update={"uid": f"{job.uid}-{name}", "table": table, "route": route})
    return jobs


def test_each_record_is_in_the_table_of_its_message_although_a_table_waits_and_the_driver_is_killed(
    served: World, registry: Apicurio
) -> None:
    topic = served.topic(partitions=2)
    order, refund, visit = (
        registry.register(f"{topic}-shop.{schema['name']}", schema) for schema in (ORDER, REFUND, VISIT)
    )
    schemas = {name: schema_of(registry, f"{topic}-shop.{name}") for name in ("Order", "Refund")}
    jobs = routed(served, topic, SchemaFormat.AVRO, schemas)
    kinds = [(order, ORDER), (refund, REFUND), (visit, VISIT)]

    def values(first: int, count: int) -> list[Record]:
        return [Record(framed(*kinds[n % 3], id=n), partition=n % 2) for n in range(first, first + count)]

    served.produce(topic, values(0, 60))
    served.apply(*jobs.values())
    served.run_until_killed("after-commit=kill:2")
    assert not together(served, jobs) - exactly({0: 30, 1: 30})

    later = registry.register(f"{topic}-shop.Order", LATER)
    served.produce(topic, [framed(later, LATER, id=60, note="n"), framed(999_999, ORDER, id=61), b"no framing", None])
    served.start()
    await_true("all", lambda: counts(served, jobs) == {"Order": (21, 0), "Refund": (20, 0), "rest": (0, 23)}, WAIT)
    assert [row["id"] for row in served.rows(jobs["Order"]) if row["note"] == "n"] == [60]
    reasons = Counter(row["error_code"] for row in served.dead(jobs["rest"]))
    assert reasons == {"NoRoute": 21, "UnknownSchema": 2}

    wrong = registry.register(f"{topic}-shop.Refund", WRONG)
    served.produce(topic, [framed(wrong, WRONG, id="x"), *values(64, 30)])
    await_true("rows", lambda: len(served.rows(jobs["Order"])) == 31 and len(served.dead(jobs["rest"])) == 33, WAIT)
    state = served.await_state(jobs["Refund"], "BackingOff", reason="IncompatibleSchema")
    assert f"schema {wrong} of schema registry main: field id has the type string" in state.message
    assert len(served.rows(jobs["Refund"])) == 20
    changed = schemas["Refund"].model_copy(update={"incompatible": "DeadLetter"})
    jobs["Refund"] = jobs["Refund"].model_copy(update={"record_schema": changed, "generation": 2})
    served.apply(jobs["Refund"])
    await_true("all", lambda: counts(served, jobs) == {"Order": (31, 0), "Refund": (30, 1), "rest": (0, 33)}, WAIT)
    assert together(served, jobs) == exactly({0: 50, 1: 45})
    served.stop()
    found = full_audit(served, jobs)
    assert found is not None
    assert found.model_copy(update={"offsets": 0}) == AuditReport(topic_id=served.topic_id(topic))


def test_the_indexes_of_protobuf_messages_choose_the_table(served: World, registry: Apicurio) -> None:
    topic = served.topic()
    text = 'syntax = "proto3"; package shop; message Order { int32 id = 1; } message Refund { int32 id = 1; }'
    number = registry.register(f"{topic}-value", text, "PROTOBUF")
    schemas = {
        name: schema_of(registry, f"{topic}-value", "Protobuf", message=f"shop.{name}") for name in ("Order", "Refund")
    }
    jobs = routed(served, topic, SchemaFormat.PROTOBUF, schemas)
    served.apply(*jobs.values())
    served.start()
    head = b"\0" + number.to_bytes(4)
    served.produce(
        topic, [head + b"\0\x08\x01", head + b"\2\2\x08\x02", head + b"\2\4\x08\x03", head + b"\2\0\x08\x04"]
    )
    await_true("all", lambda: counts(served, jobs) == {"Order": (2, 0), "Refund": (1, 0), "rest": (0, 1)}, WAIT)
    assert [row["id"] for job in jobs.values() for row in served.rows(job) if "id" in row] == [1, 4, 2]
    assert [row["error_code"] for row in served.dead(jobs["rest"])] == ["InvalidProtobuf"]


def test_a_field_chooses_the_table_whatever_type_it_has_in_the_schema_of_the_writer(
    served: World, registry: Apicurio
) -> None:
    topic = served.topic(partitions=2)
    kinds: list[Any] = ["string", {"type": "enum", "name": "Kind", "symbols": ["Order"]}, "double"]
    text, enum, wrong = (record("Order", {"name": "type", "type": kind}) for kind in kinds)
    refund = record("Refund", {"name": "type", "type": ["null", "string"]})
    ids = [registry.register(f"{topic}-Order", schema) for schema in (text, enum, wrong, VISIT)]
    of_refund = registry.register(f"{topic}-Refund", refund)
    schemas = {name: schema_of(registry, f"{topic}-{name}") for name in ("Order", "Refund")}
    # The latest schema of the subject lacks the field.
    order = schemas["Order"].model_copy(update={"fields": schemas["Refund"].fields})
    jobs = routed(served, topic, SchemaFormat.AVRO, schemas | {"Order": order}, "$.type")

    def values(first: int) -> list[Record]:
        made = [
            framed(ids[0], text, id=first, type="Order"),
            framed(ids[1], enum, id=first + 1, type="Order"),
            framed(of_refund, refund, id=first + 2, type="Refund"),
            framed(of_refund, refund, id=first + 3, type=None),
            framed(ids[2], wrong, id=first + 4, type=1.0),
            framed(ids[3], VISIT, id=first + 5),
            framed(999_999, text, id=first + 6, type="Order"),
        ]
        return [Record(value, partition=place % 2) for place, value in enumerate(made)]

    served.produce(topic, values(0))
    served.apply(*jobs.values())
    served.run_until_killed("after-commit=kill:2")
    served.produce(topic, values(10))
    served.start()
    await_true("all", lambda: counts(served, jobs) == {"Order": (4, 0), "Refund": (2, 0), "rest": (0, 8)}, WAIT)
    assert sorted(row["id"] for row in served.rows(jobs["Order"])) == [0, 1, 10, 11]
    reasons = Counter(row["error_code"] for row in served.dead(jobs["rest"]))
    assert reasons == {"NoRoute": 4, "IncompatibleSchema": 2, "UnknownSchema": 2}
    assert together(served, jobs) == exactly({0: 8, 1: 6})
    served.stop()


@pytest.mark.long
@pytest.mark.parametrize("late", ["Order", "rest"])
def test_a_record_is_in_one_table_although_its_schema_comes_while_a_table_is_behind_and_no_driver_runs(
    served: World, registry: Apicurio, monkeypatch: pytest.MonkeyPatch, late: str
) -> None:
    monkeypatch.setattr(route_schemas, "REFUSED_SECONDS", 0.0)
    topic = served.topic()
    order, later = (schema | {"doc": topic} for schema in (ORDER, LATER))  # no other test has registered them
    known = registry.register(f"{topic}-shop.Order", order)
    jobs = routed(served, topic, SchemaFormat.AVRO, {"Order": schema_of(registry, f"{topic}-shop.Order")})
    served.apply(*jobs.values())
    served.start()
    served.produce(topic, [framed(known, ORDER, id=0)])
    served.await_rows(jobs["Order"], 1)
    served.stop()

    early = next(name for name in jobs if name != late)
    served.apply(jobs[late].model_copy(update={"suspended": True, "generation": 2}))
    unknown = range(known + 1, known + 9)  # the registry gives one of them to its next schema
    served.produce(topic, [*(framed(number, LATER, id=number) for number in unknown), framed(known, ORDER, id=2)])
    if early == "rest":
        served.run_until_killed("after-dlq-commit=kill")
    else:
        served.start()
        served.await_rows(jobs["Order"], 2)
        served.stop()
    served.apply(jobs[late].model_copy(update={"generation": 3}))
    following = registry.register(f"{topic}-shop.Order", later)
    assert following in unknown

    served.start()
    await_true("all", lambda: counts(served, jobs) == {"Order": (2, 0), "rest": (0, 8)}, WAIT)

    def taken() -> bool:
        """Return whether a further record is a row. The driver asks again in a round of both tables."""
        served.produce(topic, [framed(following, LATER, id=3, note="n")])
        end = served.end(topic)
        await_true("the record", lambda: sum(together(served, jobs).values()) == end, WAIT)
        return len(served.rows(jobs["Order"])) > 2

    await_true("a row", taken, WAIT)
    assert together(served, jobs) == exactly({0: served.end(topic)})
    assert {row["error_code"] for row in served.dead(jobs["rest"])} == {"UnknownSchema"}
