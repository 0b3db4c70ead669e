"""Records whose values name their schemas in a schema registry: Apicurio Registry."""

import io
from pathlib import Path
from typing import Any

import fastavro

from firn.model.conditions import Reason
from firn.model.jobs import RegistryConnection
from tests.integration.ingestion.contracts import schema_of
from tests.integration.ingestion.world import World
from tests.servers.apicurio import Apicurio, apicurio
from tests.servers.process import await_true
from tests.servers.proxies.http import Answer, HttpProxy

ORDER: tuple[dict[str, Any], ...] = (
    {"name": "id", "type": "int"},
    {
        "name": "customer",
        "type": {"type": "record", "name": "Customer", "fields": [{"name": "name", "type": "string"}]},
    },
)
LATER: tuple[dict[str, Any], ...] = (
    {"name": "note", "type": ["null", "string"]},
    {"name": "id", "type": "long"},
    {
        "name": "customer",
        "type": {
            "type": "record",
            "name": "Customer",
            "fields": [{"name": "email", "type": "string"}, {"name": "name", "type": "string"}],
        },
    },
)


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Order", "namespace": "shop", "fields": list(fields)}


def framed(number: int, schema: Any, **values: Any) -> bytes:
    buffer = io.BytesIO(b"\0" + number.to_bytes(4))
    buffer.seek(5)
    fastavro.schemaless_writer(buffer, schema, values)
    return buffer.getvalue()


def test_each_value_is_read_with_the_schema_of_its_writer(served: World, registry: Apicurio) -> None:
    topic = served.topic(partitions=2)
    subject = f"{topic}-value"
    first = registry.register(subject, record(*ORDER))
    job = served.job(topic, record_schema=schema_of(registry, subject))
    served.apply(job)
    served.produce(topic, [framed(first, record(*ORDER), id=n, customer={"name": f"c{n}"}) for n in range(10)])
    served.start()
    served.await_rows(job, 10)
    second = registry.register(subject, record(*LATER))
    served.produce(
        topic,
        [
            framed(second, record(*LATER), id=2**40, note="new", customer={"name": "c", "email": "c@x"}),
            framed(first, record(*ORDER), id=11, customer={"name": "old"}),
            framed(second, record(*LATER), id=12, note=None, customer={"name": "d", "email": "d@x"}),
            None,
        ],
    )
    rows = served.await_rows(job, 14)
    assert [row["id"] for row in rows] == [*range(10), 2**40, 11, 12, None]
    assert [row["note"] for row in rows[9:]] == [None, "new", None, None, None]
    assert [row["customer"] and dict(row["customer"]) for row in rows[9:]] == [
        {"name": "c9", "email": None},
        {"name": "c", "email": "c@x"},
        {"name": "old", "email": None},
        {"name": "d", "email": "d@x"},
        None,
    ]
    assert [row["_kafka"]["schema_id"] for row in rows] == [first] * 10 + [second, first, second, None]
    assert served.dead(job) == []


def test_an_id_that_the_registry_does_not_know_is_a_dead_letter(served: World, registry: Apicurio) -> None:
    topic = served.topic()
    subject = f"{topic}-value"
    number = registry.register(subject, record(*ORDER))
    job = served.job(topic, record_schema=schema_of(registry, subject))
    good = framed(number, record(*ORDER), id=1, customer={"name": "a"})
    served.produce(topic, [good, framed(999_999, record(*ORDER), id=2, customer={"name": "b"}), b"{}", b"", good[:-1]])
    served.apply(job)
    served.start()
    served.await_rows(job, 1)
    await_true("four dead letters", lambda: len(served.dead(job)) == 4)
    assert [row["error_code"] for row in served.dead(job)] == [
        "UnknownSchema", "UnknownSchema", "EmptyPayload", "InvalidAvro",
    ]  # fmt: skip


def test_types_of_other_subjects_are_found(served: World, registry: Apicurio) -> None:
    topic = served.topic()
    subject = f"{topic}-value"
    money = {"type": "record", "name": "Money", "namespace": "shop", "fields": [{"name": "cents", "type": "long"}]}
    registry.register(f"{topic}-money", money)
    payment = record({"name": "price", "type": "shop.Money"})
    number = registry.register(subject, payment, references=[("shop.Money", f"{topic}-money")])
    job = served.job(topic, record_schema=schema_of(registry, subject))
    types: dict[str, Any] = {}
    fastavro.parse_schema(money, named_schemas=types)
    whole = fastavro.parse_schema(payment, named_schemas=types)
    served.apply(job)
    served.produce(topic, [framed(number, whole, price={"cents": 199})])
    served.start()
    assert served.await_rows(job, 1)[0]["price"] == {"cents": 199}


def test_records_wait_while_the_registry_is_away_and_none_becomes_a_dead_letter(served: World, tmp_path: Path) -> None:
    topic = served.topic()
    subject = f"{topic}-value"
    with apicurio(tmp_path / "first") as registry:
        served.settings = served.settings.model_copy(update={"registries": {"main": registry.connection}})
        first = registry.register(subject, record(*ORDER))
        job = served.job(topic, record_schema=schema_of(registry, subject))
        second = registry.register(subject, record(*LATER))
        third = registry.register(subject, record(*ORDER, {"name": "more", "type": "string"}))
        served.apply(job)
        served.start()
        served.produce(topic, [framed(second, record(*LATER), id=1, note="a", customer={"name": "c", "email": "e"})])
        served.await_rows(job, 1)
        served.stop()
    # A driver starts without the registry, with the schemas that the one before kept on disk.
    served.start()
    known = [
        framed(first, record(*ORDER), id=2, customer={"name": "c"}),
        framed(second, record(*LATER), id=3, note="b", customer={"name": "c", "email": "e"}),
    ]
    served.produce(topic, known)
    served.await_rows(job, 3)
    more = record(*ORDER, {"name": "more", "type": "string"})
    served.produce(topic, [framed(third, more, id=4, customer={"name": "c"}, more="m")])
    state = served.await_state(job, "BackingOff", reason="RegistryUnreachable")
    assert "schema registry main: no answer" in state.message
    with apicurio(tmp_path / "second", registry.port) as back:
        for schema in (record(*ORDER), record(*LATER), more):
            back.register(subject, schema)
        assert [row["more"] for row in served.await_rows(job, 4)] == [None, None, None, "m"]
    assert served.dead(job) == []


def test_records_wait_while_the_registry_answers_wrongly_and_none_becomes_a_dead_letter(
    served: World, registry: Apicurio
) -> None:
    page = Answer(200, {"content-type": "text/html"}, b"<html>log in</html>")
    answers = {"HTTP 429": Answer.of(429, {"error_code": 429}), "is not a schema": page}
    given: list[Answer | None] = [None]
    topic = served.topic()
    subject = f"{topic}-value"
    first = registry.register(subject, record(*ORDER))
    with HttpProxy(registry.port, lambda _: given[-1]) as proxy:
        behind = RegistryConnection(url=f"{proxy.url}/apis/ccompat/v7")
        served.settings = served.settings.model_copy(update={"registries": {"main": behind}})
        job = served.job(topic, record_schema=schema_of(registry, subject))
        served.apply(job)
        served.start()
        second = registry.register(subject, record(*LATER))
        known = framed(first, record(*ORDER), id=1, customer={"name": "a"})
        unknown = framed(second, record(*LATER), id=2, note="b", customer={"name": "b", "email": "e"})
        given.append(answers["HTTP 429"])
        served.produce(topic, [known, unknown])
        for problem, answer in answers.items():
            given.append(answer)

            def reported(problem: str = problem) -> bool:
                found = served.progress(job)
                return found is not None and found.reason == Reason.REGISTRY_UNREACHABLE and problem in found.message

            served.await_offsets(reported, problem, job)
            assert served.dead(job) == []
        given.append(None)
        rows = served.await_rows(job, 2)
    assert [row["note"] for row in rows] == [None, "b"]
    assert served.dead(job) == []


def test_records_of_an_incompatible_schema_wait(served: World, registry: Apicurio) -> None:
    topic = served.topic()
    subject = f"{topic}-value"
    registry.register(subject, record(*ORDER))
    job = served.job(topic, record_schema=schema_of(registry, subject))
    changed = record({"name": "id", "type": "string"})
    number = registry.register(subject, changed)
    served.apply(job)
    served.start()
    served.produce(topic, [framed(number, changed, id="x")])
    state = served.await_state(job, "BackingOff", reason="IncompatibleSchema")
    assert (
        f"schema {number} of schema registry main: field id has the type string, but column id has the type int"
        in state.message
    )
    assert served.rows(job) == []
