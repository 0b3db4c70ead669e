"""The driver learns the schemas of writers, and the columns that a table needs for them."""

import json
from pathlib import Path
from typing import Any

import pytest

from firn.model.conditions import Reason
from firn.model.errors import ConflictError, InvalidSpecError, UnavailableError
from firn.model.jobs import Column, RecordSchema, RegistryConnection, Subject, WriterSchema
from firn.schema_registry import Registered
from firn_spark.ingestion import writers
from firn_spark.ingestion.topics.state import REFUSED_SECONDS
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.ingestion.writers import Registries, adapted, learn
from firn_spark.worker.bad_records import Code
from firn_spark.worker.formats.writers import Refusal
from tests.unit.spark_driver.topic import job


def text(**fields: Any) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}
    )


class Answers:
    """A registry that answers by id, and counts requests."""

    def __init__(self) -> None:
        self.schemas: dict[int, Registered] = {}
        self.problem: UnavailableError | None = None
        self.asked: list[int] = []

    def add(self, number: int, kind: str = "AVRO", **fields: Any) -> None:
        self.schemas[number] = Registered(number, kind, WriterSchema(text=text(**fields)))

    def by_id(self, number: int) -> Registered | None:
        self.asked.append(number)
        if self.problem is not None:
            raise self.problem
        return self.schemas.get(number)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    made = Answers()
    monkeypatch.setattr(writers, "SchemaRegistry", lambda *_: made)
    return made


def registries(directory: Path | None = None) -> Registries:
    connections = {"main": RegistryConnection(url="http://registry")}
    return Registries(connections, str(directory) if directory is not None else None)


def topic(*columns: tuple[str, str], **changes: Any) -> Topic:
    """Return a topic whose contract has these columns."""
    schema = RecordSchema(
        format="Avro",
        framing="Registry",
        subject=Subject(registry="main", name="orders-value"),
        fields=tuple(Column(name=name, type=kind) for name, kind in columns),
        **changes,
    )
    return Topic(job().model_copy(update={"record_schema": schema}))


def fields(schema: RecordSchema) -> dict[str, str]:
    return {field.name: field.type for field in schema.fields}


def test_a_schema_is_asked_for_once_and_survives_the_process(answers: Answers, tmp_path: Path) -> None:
    answers.add(7, id="int")
    first = registries(tmp_path)
    assert first.schema("main", 7) == first.schema("main", 7) == WriterSchema(text=text(id="int"))
    answers.problem = UnavailableError("away")
    assert registries(tmp_path).schema("main", 7) == WriterSchema(text=text(id="int"))
    assert answers.asked == [7]
    with pytest.raises(UnavailableError):
        registries().schema("main", 7)


def test_a_damaged_file_is_asked_for_again(answers: Answers, tmp_path: Path) -> None:
    answers.add(7, id="int")
    registries(tmp_path).schema("main", 7)
    (file,) = tmp_path.rglob("7.json")
    file.write_text("{")
    assert registries(tmp_path).schema("main", 7) == WriterSchema(text=text(id="int"))


def test_files_of_another_registry_do_not_count(answers: Answers, tmp_path: Path) -> None:
    answers.add(7, id="int")
    registries(tmp_path).schema("main", 7)
    answers.add(7, id="string")
    moved = Registries({"main": RegistryConnection(url="http://moved")}, str(tmp_path))
    assert moved.schema("main", 7) == WriterSchema(text=text(id="string"))


def test_an_unknown_id_is_refused_and_asked_for_again(answers: Answers) -> None:
    asking = registries()
    found = asking.schema("main", 9)
    assert isinstance(found, Refusal)
    assert found.code is Code.UNKNOWN_SCHEMA
    answers.add(9, id="int")
    assert asking.schema("main", 9) == WriterSchema(text=text(id="int"))


def test_a_schema_of_another_format_is_refused(answers: Answers) -> None:
    answers.add(9, kind="JSON", id="int")
    found = registries().schema("main", 9)
    assert isinstance(found, Refusal)
    assert "has the type JSON" in found.detail


def test_after_a_failure_the_registry_has_a_pause(answers: Answers) -> None:
    asking, answers.problem = registries(), UnavailableError("away")
    for number in (1, 2, 3):
        with pytest.raises(UnavailableError, match="away"):
            asking.schema("main", number)
    assert answers.asked == [1]


def test_a_registry_without_settings_is_an_error() -> None:
    with pytest.raises(InvalidSpecError, match="schema registry other is not in the settings"):
        registries().schema("other", 1)


def test_an_outage_leaves_the_ids_that_are_left_to_ask_for(answers: Answers) -> None:
    answers.add(1, id="int")
    asking, orders = registries(), topic(("id", "int"))
    orders.reading.unknown_schemas = {1, 2}
    learn(orders, asking)
    assert orders.reading.unknown_schemas == set()
    orders.reading.unknown_schemas, answers.problem = {1, 5}, UnavailableError("away")
    with pytest.raises(UnavailableError):
        learn(orders, asking)
    assert orders.reading.unknown_schemas == {5}
    assert isinstance(orders.reading.writers[1], WriterSchema)


def test_a_refusal_ends_after_a_while(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 1000.0)
    answers.add(1, id="int")
    orders = topic(("id", "int"))
    orders.reading.unknown_schemas = {1, 9}
    learn(orders, registries())
    assert set(orders.reading.known_writers(1000.0 + REFUSED_SECONDS)) == {1, 9}
    assert set(orders.reading.known_writers(1001.0 + REFUSED_SECONDS)) == {1}


def test_a_topic_keeps_the_schemas_that_it_learned_last(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "MOST_OF_TOPIC", 3)
    asking, orders = registries(), topic(("id", "int"))
    for number in (5, 4, 3, 2, 5):
        answers.add(number, id="int")
        orders.reading.unknown_schemas = {number}
        learn(orders, asking)
    assert list(orders.reading.writers) == [3, 2, 5]


def test_columns_hold_the_values_of_all_writers() -> None:
    orders = topic(("id", "int"), ("note", "string"))
    inner = {"type": "record", "name": "C", "fields": [{"name": "email", "type": "string"}]}
    orders.reading.writers = {
        1: WriterSchema(text=text(id="long", customer=inner)),
        2: WriterSchema(text=text(more="double")),
        3: Refusal(Code.UNKNOWN_SCHEMA, "gone"),
    }
    schema, left_out = adapted(orders, {"id": "int", "customer": "struct<name: string>", "foreign": "date"})
    assert fields(schema) == {
        "id": "long", "note": "string", "customer": "struct<name: string, email: string>", "more": "double",
    }  # fmt: skip
    assert left_out == {}


def test_a_wider_column_of_the_table_stays_wide() -> None:
    orders = topic(("id", "int"))
    schema, _ = adapted(orders, {"id": "long"})
    assert fields(schema) == {"id": "long"}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (text(id="string"), "schema 4 of registry main: field id has the type string, and its column has long"),
        (text(_kafka="int"), "schema 4 of registry main: field _kafka: names that start with _kafka are reserved"),
        ("[", "schema 4 of registry main: the schema is not JSON"),
    ],
)
def test_records_of_a_writer_that_the_table_cannot_hold_wait_or_are_dead_letters(schema: str, problem: str) -> None:
    holding = topic(("id", "long"))
    holding.reading.writers = {4: WriterSchema(text=schema)}
    with pytest.raises(ConflictError) as error:
        adapted(holding, {"id": "long"})
    assert str(error.value).startswith(problem)
    assert error.value.reason == Reason.INCOMPATIBLE_SCHEMA
    passing = topic(("id", "long"), incompatible="DeadLetter")
    passing.reading.writers = {4: WriterSchema(text=schema), 5: WriterSchema(text=text(id="long", more="int"))}
    found, left_out = adapted(passing, {"id": "long"})
    assert fields(found) == {"id": "long", "more": "int"}
    assert left_out[4].code is Code.INCOMPATIBLE_SCHEMA
    assert left_out[4].detail.startswith(problem)


def test_another_subject_forgets_the_schemas_of_writers() -> None:
    orders = topic(("id", "int"))
    orders.reading.writers, orders.reading.unknown_schemas = {1: WriterSchema(text=text(id="int"))}, {2}
    same = orders.job.model_copy(update={"freshness_ms": 9})
    orders.accept(same)
    assert orders.reading.writers
    other = orders.job.record_schema.model_copy(update={"subject": Subject(registry="main", name="other")})
    orders.accept(orders.job.model_copy(update={"record_schema": other}))
    assert orders.reading.writers == {}
    assert orders.reading.unknown_schemas == set()
