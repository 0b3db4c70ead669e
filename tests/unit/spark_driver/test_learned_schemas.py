"""The driver requests the schemas of records, and derives the columns of the table."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from firn import protoc
from firn.decoders.bad_records import Code
from firn.model.conditions import Reason
from firn.model.errors import ConflictError, FirnError, InvalidSpecError, NotReadyError, UnavailableError
from firn.model.jobs import (
    Column,
    Evolution,
    KeySchema,
    ProjectedColumn,
    Projection,
    RecordSchema,
    RegistryConnection,
    Subject,
    WriterSchema,
)
from firn.schema_registry import MissingReferenceError, Registered, RegistryAwayError, UnusableSchemaError
from firn.schemas import protobuf
from firn.schemas.columns import columns_of
from firn.tables import rows
from firn_spark.ingestion import writer_schemas
from firn_spark.ingestion.topics import state
from firn_spark.ingestion.topics.state import REFUSED_SECONDS, Writers
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.ingestion.writer_schemas import NO_TABLE, TableColumns, adapted, allowed, learn
from firn_spark.schemas import registries as registries_module
from firn_spark.schemas.registries import Registries
from firn_spark.worker.formats.writer_schemas import Refusal
from tests.unit.spark_driver.topic import job


def text(**fields: Any) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}
    )


class Answers:
    """A registry that answers by id, and counts requests."""

    def __init__(self) -> None:
        self.schemas: dict[int, Registered] = {}
        self.problem: FirnError | None = None
        self.too_large: set[int] = set()
        self.asked: list[int] = []
        self.subjects_of: dict[int, frozenset[str]] = {}
        """The subjects of schemas. Others belong to the topic's subject."""
        self.ids: dict[str, int] = {}
        """The ids of GUIDs."""

    def add(self, number: int, kind: str = "AVRO", **fields: Any) -> None:
        self.schemas[number] = Registered(number, kind, WriterSchema(text=text(**fields)))

    def by_id(self, number: int) -> Registered | None:
        self.asked.append(number)
        if self.problem is not None:
            raise self.problem
        if number in self.too_large:
            raise UnusableSchemaError("schema registry main: an answer has more than 8 MiB")
        return self.schemas.get(number)

    def id_of(self, guid: str) -> int | None:
        if self.problem is not None:
            raise self.problem
        return self.ids.get(guid)

    def subjects(self, number: int, *, deleted: bool) -> frozenset[str]:
        assert deleted, "the log may have records of deleted versions"
        if self.problem is not None:
            raise self.problem
        return self.subjects_of.get(number, frozenset({"orders-value"}))


MONEY = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'


def proto(body: str, **imports: str) -> Registered:
    text = f'syntax = "proto3"; package shop; {body}'
    return Registered(7, "PROTOBUF", WriterSchema(text=text, names=tuple(imports), references=tuple(imports.values())))


class Clock:
    """The monotonic time of the driver."""

    def __init__(self) -> None:
        self.now = 1000.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("time.monotonic", lambda: made.now)
    return made


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    made = Answers()
    monkeypatch.setattr(registries_module, "SchemaRegistry", lambda *_: made)
    return made


def registries(directory: Path | None = None) -> Registries:
    connections = {"main": RegistryConnection(url="http://registry")}
    return Registries(connections, str(directory) if directory is not None else None)


def wanted(registry: str = "main", **changes: Any) -> RecordSchema:
    """Return the schema of a topic."""
    subject = Subject(registry=registry, name="orders-value")
    return RecordSchema(**{"format": "Avro", "framing": "Registry", "subject": subject, **changes})


PROTOBUF = wanted(format="Protobuf")
WITHOUT_SUBJECT = wanted(subject=Subject(registry="main", name=""))
"""A schema may belong to any subject."""


def topic(*columns: tuple[str, str], **changes: Any) -> Topic:
    """Return a topic whose contract has these columns."""
    schema = wanted(fields=tuple(Column(name=name, type=kind) for name, kind in columns), **changes)
    return Topic(job().model_copy(update={"record_schema": schema}))


def fields(schema: RecordSchema) -> dict[str, str]:
    return {field.name: field.type for field in schema.fields}


def test_a_schema_is_asked_for_once_and_survives_the_process(answers: Answers, tmp_path: Path) -> None:
    answers.add(7, id="int")
    first = registries(tmp_path)
    assert first.schema(wanted(), 7) == first.schema(wanted(), 7) == WriterSchema(text=text(id="int"))
    answers.problem = UnavailableError("away")
    assert registries(tmp_path).schema(wanted(), 7) == WriterSchema(text=text(id="int"))
    assert answers.asked == [7]
    with pytest.raises(UnavailableError):
        registries().schema(wanted(), 7)


def test_a_schema_of_another_subject_is_refused_until_the_subject_has_it(
    answers: Answers, tmp_path: Path, clock: Clock
) -> None:
    answers.add(7, id="int")
    answers.subjects_of[7] = frozenset({"refunds-value", "audit-value"})
    asking = registries(tmp_path)
    with pytest.raises(NotReadyError, match="does not have schema 7 under subject orders-value"):
        asking.schema(wanted(), 7)
    clock.now += registries_module.MISSING_SECONDS
    found = asking.schema(wanted(), 7)
    assert found == Refusal(
        Code.UNKNOWN_SCHEMA,
        "schema 7 of schema registry main belongs to subject audit-value and 1 more, and the topic has subject orders-value",
    )
    other = wanted(subject=Subject(registry="main", name="refunds-value"))
    assert isinstance(asking.schema(other, 7), WriterSchema)
    answers.subjects_of[7] = frozenset({"refunds-value", "orders-value"})
    assert isinstance(asking.schema(wanted(), 7), WriterSchema)
    answers.problem = UnavailableError("away")
    for each in (wanted(), other):
        assert isinstance(registries(tmp_path).schema(each, 7), WriterSchema), "both subjects are on disk"
    with pytest.raises(UnavailableError):
        asking.schema(wanted(subject=Subject(registry="main", name="third")), 7)


def test_a_subject_may_get_a_known_schema_late(answers: Answers, clock: Clock) -> None:
    answers.add(7, id="int")
    answers.subjects_of[7] = frozenset({"refunds-value"})
    asking = registries()
    with pytest.raises(NotReadyError):
        asking.schema(wanted(), 7)
    answers.subjects_of[7] = frozenset({"refunds-value", "orders-value"})
    assert isinstance(asking.schema(wanted(), 7), WriterSchema)


def test_a_route_reads_the_schemas_of_all_subjects(answers: Answers) -> None:
    answers.add(7, id="int")
    answers.subjects_of[7] = frozenset({"refunds-value"})
    route = wanted(subject=Subject(registry="main", name=""))
    assert isinstance(registries().schema(route, 7), WriterSchema)


def test_a_registry_that_names_no_subject_refuses_no_schema(answers: Answers) -> None:
    answers.add(7, id="int")
    answers.subjects_of[7] = frozenset()
    assert isinstance(registries().schema(wanted(), 7), WriterSchema)


def test_a_damaged_file_is_asked_for_again(answers: Answers, tmp_path: Path) -> None:
    answers.add(7, id="int")
    registries(tmp_path).schema(wanted(), 7)
    (file,) = tmp_path.rglob("7.json")
    file.write_text("{")
    assert registries(tmp_path).schema(wanted(), 7) == WriterSchema(text=text(id="int"))


def test_files_of_another_registry_do_not_count(answers: Answers, tmp_path: Path) -> None:
    answers.add(7, id="int")
    registries(tmp_path).schema(wanted(), 7)
    answers.add(7, id="string")
    moved = Registries({"main": RegistryConnection(url="http://moved")}, str(tmp_path))
    assert moved.schema(wanted(), 7) == WriterSchema(text=text(id="string"))


def test_a_missing_schema_may_come_late(answers: Answers, clock: Clock) -> None:
    asking = registries()
    with pytest.raises(NotReadyError, match="does not have schema 9, which a record names"):
        asking.schema(wanted(), 9)
    answers.add(9, id="int")
    assert asking.schema(wanted(), 9) == WriterSchema(text=text(id="int"))


def test_a_schema_that_stays_missing_is_refused_and_asked_for_again(answers: Answers, clock: Clock) -> None:
    asking = registries()
    with pytest.raises(NotReadyError):
        asking.schema(wanted(), 9)
    clock.now += registries_module.MISSING_SECONDS
    found = asking.schema(wanted(), 9)
    assert isinstance(found, Refusal)
    assert found.code is Code.UNKNOWN_SCHEMA
    answers.add(9, id="int")
    assert asking.schema(wanted(), 9) == WriterSchema(text=text(id="int"))


def test_a_schema_whose_reference_stays_missing_cannot_be_used(answers: Answers, clock: Clock) -> None:
    asking = registries()
    answers.problem = MissingReferenceError("schema registry main: a schema refers to version 3 of subject money")
    with pytest.raises(NotReadyError, match="does not have all references of schema 9, which a record names"):
        asking.schema(WITHOUT_SUBJECT, 9)
    clock.now += registries_module.MISSING_SECONDS
    assert asking.schema(WITHOUT_SUBJECT, 9) == Refusal(
        Code.INCOMPATIBLE_SCHEMA,
        "schema 9 cannot be used: schema registry main: a schema refers to version 3 of subject money",
    )
    answers.problem = None
    answers.add(9, id="int")
    assert asking.schema(WITHOUT_SUBJECT, 9) == WriterSchema(text=text(id="int"))


def test_a_text_is_compiled_once_with_its_imports(answers: Answers, tmp_path: Path) -> None:
    answers.schemas[7] = proto('import "m.proto"; message Order { Money price = 1; }', **{"m.proto": MONEY})
    found = registries(tmp_path).schema(PROTOBUF, 7)
    assert isinstance(found, WriterSchema)
    assert columns_of(PROTOBUF.of_writer(7, found), "7") == (Column(name="price", type="struct<cents: long>"),)
    answers.problem = UnavailableError("away")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(protoc, "descriptors", None)
        assert registries(tmp_path).schema(PROTOBUF, 7) == found


def test_a_text_that_protoc_rejects_does_not_fit_the_table(answers: Answers) -> None:
    answers.schemas[7] = proto("message Order { Money price = 1; }")
    orders = Topic(job().model_copy(update={"record_schema": PROTOBUF}))
    orders.reading.writers.needed = {7}
    learn(orders, registries())
    with pytest.raises(
        ConflictError, match='schema 7 of schema registry main: protoc rejects the text: .*"Money"'
    ) as error:
        adapted(orders, {})
    assert error.value.reason == Reason.INCOMPATIBLE_SCHEMA


def test_values_of_a_text_without_the_message_are_bad_records(answers: Answers) -> None:
    answers.schemas = {
        7: proto("message Refund { int32 id = 1; }"),
        8: proto("message Refund { int32 x = 1; } message Order { int64 id = 2; }"),
    }
    schema = PROTOBUF.model_copy(update={"message": "shop.Order", "fields": (Column(name="id", type="int"),)})
    orders = Topic(job().model_copy(update={"record_schema": schema}))
    orders.reading.writers.needed = {7, 8}
    learn(orders, registries())
    found, left_out = adapted(orders, {})
    assert fields(found) == {"id": "long"}
    refusal = Refusal(Code.UNKNOWN_SCHEMA, "schema 7 of schema registry main has no message shop.Order")
    assert left_out == {7: refusal}


def of_message(name: str, body: str, **changes: Any) -> Topic:
    """Return a topic of a Protobuf message, whose contract does not say the name of it."""
    text = f'syntax = "proto3"; package shop; message {name} {{ {body} }}'
    content = base64.b64encode(protoc.descriptors(text, ())).decode()
    schema = PROTOBUF.model_copy(update={"text": text, "descriptors": content, **changes})
    schema = schema.model_copy(update={"fields": columns_of(schema, "the contract")})
    return Topic(job().model_copy(update={"record_schema": schema}))


def written(text: str) -> WriterSchema:
    whole = f'syntax = "proto3"; package shop; {text}'
    return WriterSchema(text=whole, descriptors=base64.b64encode(protoc.descriptors(whole, ())).decode())


def test_a_message_above_that_of_the_table_adds_no_column(answers: Answers) -> None:
    orders = of_message("Order", "int64 id = 1;")
    above = "message Buyer { string email = 1; } message Order { int64 id = 1; Buyer buyer = 2; }"
    answers.schemas = {7: proto(above), 8: proto("message Sale { int64 id = 1; string note = 2; }")}
    orders.reading.writers.needed = {7, 8}
    learn(orders, registries())
    found, left_out = adapted(orders, {"id": "long"})
    assert fields(found) == {"id": "long", "buyer": "struct<email: string>", "note": "string"}
    assert (found.found_message, left_out) == ("shop.Order", {})
    answers.schemas[9] = proto(above.replace("Order", "Sale"))
    orders.reading.writers.needed = {9}
    learn(orders, registries())
    with pytest.raises(
        ConflictError, match=r"schema 9 .* the text has no message shop\.Order, whose fields are the columns"
    ):
        adapted(orders, {"id": "long"})


def test_a_message_above_that_of_the_keys_adds_no_column(answers: Answers) -> None:
    subject = Subject(registry="main", name="orders-value")
    own = of_message("K", "int64 id = 1;").job.record_schema
    key = KeySchema(columns="Flat", fields=own.fields, decoding=own.model_copy(update={"fields": ()}))
    orders = topic(("v", "long"), key=key, subject=subject)
    answers.schemas[7] = proto("message J { string sku = 1; } message K { int64 id = 1; }")
    orders.reading.key_writers.needed = {7}
    learn(orders, registries())
    schema, *_ = allowed(orders, {"v": "long", "key_id": "long"}, NO_TABLE)
    assert schema.key is not None
    assert schema.key.decoding is not None
    assert ([field.name for field in schema.key.fields], schema.key.decoding.found_message) == (["id"], "shop.K")


def test_a_text_that_exchanges_the_names_of_fields_does_not_fit_the_table(answers: Answers) -> None:
    answers.schemas[7] = proto("message Order { string buyer = 2; string seller = 1; }")
    content = protoc.descriptors(
        'syntax = "proto3"; package shop; message Order { string buyer = 1; string seller = 2; }', ()
    )
    schema = PROTOBUF.model_copy(update={"descriptors": base64.b64encode(content).decode()})
    orders = Topic(job().model_copy(update={"record_schema": schema}))
    orders.reading.writers.needed = {7}
    learn(orders, registries())
    with pytest.raises(
        ConflictError, match="schema 7 of schema registry main: field buyer has the number 2 of field seller"
    ):
        adapted(orders, {"buyer": "string", "seller": "string"})


@pytest.mark.parametrize(
    ("latest", "earlier", "renames"),
    [
        ("string b = 1; string a = 2;", "string a = 1;", [("a", "b")]),
        ("string b = 1; string a = 2; string c = 3;", "string c = 2; string a = 1;", [("a", "b"), ("c", "a")]),
        (
            "I i = 3; message I { string b = 1; string a = 2; }",
            "I i = 3; message I { string a = 1; }",
            [("i.a", "i.b")],
        ),
        (
            "repeated I i = 3; string l = 4; message I { string b = 1; string a = 2; }",
            "repeated I l = 3; message I { string a = 1; }",
            [("l", "i"), ("i.element.a", "i.element.b")],
        ),
        (
            "map<string, I> i = 3; message I { string b = 1; string a = 2; }",
            "map<string, I> i = 3; message I { string a = 1; }",
            [("i.value.a", "i.value.b")],
        ),
        ("string a = 1; string b = 2;", "string b = 1; string c = 2;", [("b", "a"), ("c", "b")]),
        (
            "string a = 1; string b = 2; string c = 3;",
            "string d = 3; string c = 2; string b = 1;",
            [("b", "a"), ("c", "b"), ("d", "c")],
        ),
        (
            "I i = 3; message I { string a = 1; string b = 2; }",
            "I i = 3; message I { string b = 1; string c = 2; }",
            [("i.b", "i.a"), ("i.c", "i.b")],
        ),
        (
            "repeated I a = 1; map<string, I> b = 2; message I { string a = 1; string b = 2; }",
            "repeated I b = 1; map<string, I> c = 2; message I { string b = 1; string c = 2; }",
            [
                ("b", "a"), ("c", "b"), ("a.element.b", "a.element.a"), ("a.element.c", "a.element.b"),
                ("b.value.b", "b.value.a"), ("b.value.c", "b.value.b"),
            ],
        ),
    ],
)  # fmt: skip
def test_a_field_whose_name_another_number_has_reaches_the_column_of_its_number(
    answers: Answers, latest: str, earlier: str, renames: list[tuple[str, str]]
) -> None:
    orders = of_message("Order", latest)
    known = fields(orders.job.record_schema)
    answers.schemas[7] = proto(f"message Order {{ {earlier} }}")
    orders.reading.writers.needed = {7}
    learn(orders, registries())
    found, left_out = adapted(orders, known)
    assert (fields(found), left_out) == (known, {})
    assert [(each.schema_id, each.old, each.new) for each in found.writer_renames] == [(7, *each) for each in renames]
    # Keys have the same rule.
    own = of_message("Order", latest).job.record_schema
    key = KeySchema(columns="Struct", fields=own.fields, decoding=own.model_copy(update={"fields": ()}))
    keyed = topic(("v", "long"), key=key)
    keyed.reading.key_writers.schemas = orders.reading.writers.schemas
    of_keys = allowed(keyed, {"v": "long"}, NO_TABLE)[0].key
    assert of_keys is not None
    assert of_keys.decoding is not None
    assert of_keys.decoding.writer_renames == found.writer_renames


def column(number: int, name: str, kind: Any = "string") -> dict[str, Any]:
    return {"id": number, "name": name, "required": False, "type": kind}


@pytest.mark.parametrize("columns", ["ab", "abc"])
@pytest.mark.parametrize("both", [False, True], ids=["earlier-text", "both-texts"])
def test_a_field_follows_to_the_name_that_another_field_leaves(columns: str, both: bool) -> None:
    latest = "string a = 1; string b = 2;"
    orders = of_message("Order", latest, schema_id=8)
    texts = {7: "message Order { string b = 1; string c = 2; }"} | (
        {8: f"message Order {{ {latest} }}"} if both else {}
    )
    orders.reading.writers.schemas = {number: written(text) for number, text in texts.items()}
    table = TableColumns(tuple(column(number, name) for number, name in enumerate(columns, 1)))
    found, left_out = adapted(orders, dict.fromkeys(columns, "string"), table)
    assert (fields(found), left_out) == ({"a": "string", "b": "string"}, {})
    names = [each.name for each in protobuf.message_of(found.of_writer(7, written(texts[7]))).fields]
    assert names == ["a", "b"]


def test_members_follow_to_the_names_that_other_members_leave() -> None:
    inner = {"type": "struct", "fields": [column(2, "a"), column(3, "b")]}
    latest = "I i = 3; message I { string a = 1; string b = 2; }"
    orders = of_message("Order", latest, schema_id=8)
    texts = {7: "I i = 3; message I { string b = 1; string c = 2; }", 8: latest}
    orders.reading.writers.schemas = {number: written(f"message Order {{ {text} }}") for number, text in texts.items()}
    found, left_out = adapted(orders, {"i": "struct<a: string, b: string>"}, TableColumns((column(1, "i", inner),)))
    assert (fields(found), left_out) == ({"i": "struct<a: string, b: string>"}, {})


def test_a_field_of_another_type_does_not_follow_to_the_name_that_another_field_leaves() -> None:
    orders = of_message("Order", "string a = 1; string b = 2;")
    orders.reading.writers.schemas = {7: written("message Order { string b = 1; bool c = 2; }")}
    found, _ = adapted(orders, {"a": "string", "b": "string"})
    assert fields(found) == {"a": "string", "b": "string", "c": "boolean"}


@pytest.mark.parametrize(
    ("earlier", "renames"),
    [("string b = 1; string c = 2;", [("b", "a"), ("c", "b")]), ("string b = 1;", [("b", "a")]), ("string a = 1;", [])],
)
def test_a_text_with_another_name_for_the_message_lands_by_numbers(
    earlier: str, renames: list[tuple[str, str]]
) -> None:
    orders = of_message("Order", "string a = 1; string b = 2;")
    orders.reading.writers.schemas = {7: written(f"message Other {{ {earlier} }}")}
    found, _ = adapted(orders, {"a": "string", "b": "string"})
    assert fields(found) == {"a": "string", "b": "string"}
    assert [(each.old, each.new) for each in found.writer_renames] == renames
    orders.reading.writers.schemas = {7: written("message Other { string b = 1; string a = 2; }")}
    with pytest.raises(
        ConflictError, match="schema 7 of schema registry main: field b has the number 1 of field a, but a"
    ):
        adapted(orders, {"a": "string", "b": "string"})


def test_a_computed_column_reads_the_field_with_its_number(answers: Answers) -> None:
    for source, renames in (("$.a", 1), ("$.b", 1), ("$.c", 0)):
        column = ProjectedColumn(name="x", type="string", source=source)
        orders = of_message(
            "Order", "string b = 1; string a = 2; string c = 3;", projection=Projection(columns=(column,))
        )
        answers.schemas[7] = proto("message Order { string a = 1; }")
        orders.reading.writers.needed = {7}
        learn(orders, registries())
        found, _ = adapted(orders, {"x": "string"})
        assert len(found.writer_renames) == renames
        writer = orders.reading.writers.schemas[7]
        assert isinstance(writer, WriterSchema)
        names = [each.name for each in protobuf.message_of(found.of_writer(7, writer)).fields]
        # No column reads b for $.a.
        assert names == ([] if source == "$.c" else ["b"])


def test_json_schemas_add_columns(answers: Answers) -> None:
    members = [{"id": {"type": "integer"}}, {"id": {"type": ["integer", "null"]}, "at": {"$ref": "at.json"}}]
    for number, properties in enumerate(members, 1):
        schema = WriterSchema(text=json.dumps({"type": "object", "properties": properties}))
        if number == 2:
            reference = json.dumps({"type": "string", "format": "date-time"})
            schema = schema.model_copy(update={"names": ("at.json",), "references": (reference,)})
        answers.schemas[number] = Registered(number, "JSON", schema)
    answers.add(3, id="int")
    orders = Topic(job().model_copy(update={"record_schema": wanted(format="Json")}))
    orders.reading.writers.needed = {1, 2, 3}
    learn(orders, registries())
    found, left_out = adapted(orders, {"id": "long"})
    assert fields(found) == {"id": "long", "at": "timestamptz"}
    assert left_out == {}
    assert isinstance(orders.reading.writers.schemas[3], Refusal)


@pytest.mark.parametrize("incompatible", ["Hold", "DeadLetter", "NewColumn"])
def test_a_type_after_a_variant_is_incompatible(answers: Answers, incompatible: Any) -> None:
    for number, more in enumerate([{}, {"type": "string"}], 1):
        schema = WriterSchema(text=json.dumps({"properties": {"id": {"type": "integer"}, "more": more}}))
        answers.schemas[number] = Registered(number, "JSON", schema)
    of_topic = wanted(format="Json", variants=True, incompatible=incompatible)
    orders = Topic(job().model_copy(update={"record_schema": of_topic}))
    orders.reading.writers.needed = {1}
    learn(orders, registries())
    found, left_out = adapted(orders, {"id": "long"})
    assert (fields(found), left_out) == ({"id": "long", "more": "variant"}, {})
    orders.reading.writers.needed = {2}
    learn(orders, registries())
    if incompatible == "Hold":
        with pytest.raises(ConflictError, match="more"):
            adapted(orders, fields(found))
        return
    later, left_out = adapted(orders, fields(found))
    own_column = incompatible == "NewColumn"
    assert fields(later) == fields(found) | ({"more_v2": "string"} if own_column else {})
    assert list(left_out) == ([] if own_column else [2])


def test_an_id_beyond_31_bits_is_refused_without_a_request(answers: Answers) -> None:
    found = registries().schema(wanted(), 2**31)
    assert isinstance(found, Refusal)
    assert answers.asked == []


def test_a_schema_of_another_format_is_refused(answers: Answers) -> None:
    answers.add(9, kind="JSON", id="int")
    found = registries().schema(wanted(), 9)
    assert isinstance(found, Refusal)
    assert "has the type JSON" in found.detail


def test_while_the_registry_is_away_the_driver_sends_no_request_for_five_seconds(
    answers: Answers, clock: Clock
) -> None:
    asking, answers.problem = registries(), RegistryAwayError("away")
    for number in (1, 2, 3):
        with pytest.raises(UnavailableError, match="away"):
            asking.schema(wanted(), number)
    assert answers.asked == [1]
    clock.now += registries_module.QUIET_SECONDS
    answers.problem = UnavailableError("schema 2 has a circle")
    answers.add(3, id="int")
    with pytest.raises(UnavailableError, match="circle"):
        asking.schema(wanted(), 2)
    answers.problem = None
    assert asking.schema(wanted(), 3) == WriterSchema(text=text(id="int"))


def test_a_registry_without_settings_is_an_error() -> None:
    with pytest.raises(InvalidSpecError, match="schema registry other is not in the settings"):
        registries().schema(wanted("other"), 1)


def test_after_an_outage_only_the_missing_ids_are_requested(answers: Answers) -> None:
    answers.add(1, id="int")
    answers.add(2, id="int")
    asking, orders = registries(), topic(("id", "int"))
    orders.reading.writers.needed = {1, 2}
    learn(orders, asking)
    assert orders.reading.writers.needed == set()
    orders.reading.writers.needed, answers.problem = {1, 5}, UnavailableError("away")
    with pytest.raises(UnavailableError):
        learn(orders, asking)
    assert orders.reading.writers.needed == {5}
    assert isinstance(orders.reading.writers.schemas[1], WriterSchema)


def test_a_refusal_ends_a_while_after_its_first_use(answers: Answers, clock: Clock) -> None:
    answers.add(1, id="int")
    orders, asking = topic(("id", "int")), registries()
    orders.reading.writers.needed = {1, 9}
    with pytest.raises(NotReadyError):
        learn(orders, asking)
    assert orders.reading.writers.needed == {9}
    clock.now += registries_module.MISSING_SECONDS
    learn(orders, asking)
    clock.now += 100.0
    assert set(orders.reading.writers.known(clock.now)) == {1, 9}, "no round has used the answer yet"
    clock.now += REFUSED_SECONDS
    assert set(orders.reading.writers.known(clock.now)) == {1, 9}
    assert set(orders.reading.writers.known(clock.now + 1)) == {1}


def test_a_topic_keeps_the_schemas_that_it_learned_last(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_schemas, "MOST_OF_TOPIC", 3)
    asking, orders = registries(), topic(("id", "int"))
    for number in (5, 4, 3, 2, 5):
        answers.add(number, id="int")
        orders.reading.writers.needed = {number}
        learn(orders, asking)
    assert list(orders.reading.writers.schemas) == [4, 3, 2, 5], "a round may need more of them"
    learn(orders, asking)
    assert list(orders.reading.writers.schemas) == [3, 2, 5]


def test_a_topic_whose_rounds_need_schemas_again_and_again_keeps_the_newest(
    answers: Answers, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "MOST_SCHEMAS", 3)
    asking, orders = registries(), topic(("id", "int"))
    reading = orders.reading
    for number in range(1, 8):
        answers.add(number, id="int")
        reading.need({number}, {number + 10})
        learn(orders, asking)
        reading.writers.known(clock.now)
        reading.repeats = 0  # as a commit does
    assert list(reading.writers.schemas) == [4, 5, 6, 7]
    reading.need({1, 2}, set())
    learn(orders, asking)
    reading.need({3, 4}, set())
    learn(orders, asking)
    assert list(reading.writers.schemas) == [5, 6, 7, 1, 2, 3, 4], "the round has needed all of them"


def test_a_forgotten_refusal_leaves_nothing_behind(clock: Clock) -> None:
    writers = Writers(schemas={number: Refusal(Code.UNKNOWN_SCHEMA, "gone") for number in range(5)})
    writers.known(clock.now)
    writers.keep_newest(2)
    assert list(writers.schemas) == list(writers.refused_at) == [3, 4]


def test_the_schema_of_the_contract_stays(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_schemas, "MOST_OF_TOPIC", 2)
    asking, orders = registries(), topic(("id", "int"))
    schema = orders.job.record_schema.model_copy(update={"schema_id": 1, "text": text(id="int")})
    orders.job = orders.job.model_copy(update={"record_schema": schema})
    for number in (2, 3, 4):
        answers.add(number, id="int")
        orders.reading.writers.needed = {number}
        learn(orders, asking)
    learn(orders, asking)
    assert set(orders.reading.writers.schemas) == {1, 3, 4}


def test_columns_hold_the_values_of_all_schemas() -> None:
    orders = topic(("id", "int"), ("note", "string"))
    inner = {"type": "record", "name": "C", "fields": [{"name": "email", "type": "string"}]}
    orders.reading.writers.schemas = {
        1: WriterSchema(text=text(id="long", customer=inner)),
        2: WriterSchema(text=text(more="double")),
        3: Refusal(Code.UNKNOWN_SCHEMA, "gone"),
    }
    schema, left_out = adapted(orders, {"id": "int", "customer": "struct<name: string>", "foreign": "date"})
    assert fields(schema) == {
        "id": "long", "note": "string", "customer": "struct<name: string, email: string>", "more": "double",
    }  # fmt: skip
    assert left_out == {}


def projected(orders: Topic, *columns: ProjectedColumn, keeps_others: bool = False) -> Topic:
    projection = Projection(columns=columns, keeps_others=keeps_others)
    schema = orders.job.record_schema.model_copy(update={"projection": projection})
    orders.job = orders.job.model_copy(update={"record_schema": schema})
    return orders


def computed(schema: RecordSchema) -> dict[str, str]:
    return {column.name: column.type for column in rows.schema_columns(schema)}


@pytest.mark.parametrize("keeps_others", [False, True])
def test_new_fields_become_columns_only_if_the_projection_keeps_others(keeps_others: bool) -> None:
    columns = (ProjectedColumn(name="number", source="$.id"), ProjectedColumn(name="id", source="header:id"))
    orders = projected(topic(("id", "int")), *columns, keeps_others=keeps_others)
    orders.reading.writers.schemas = {1: WriterSchema(text=text(id="long", more="double"))}
    # The column id is a text. It has nothing to do with the field id.
    schema, _ = adapted(orders, {"number": "int", "id": "string"})
    assert computed(schema) == {"number": "long", "id": "string", **({"more": "double"} if keeps_others else {})}


def test_a_wider_computed_column_of_the_table_stays_wide() -> None:
    orders = projected(
        topic(("id", "int"), ("gone", "int")), ProjectedColumn(name="number", source="$.id"), keeps_others=True
    )
    assert computed(adapted(orders, {"number": "long", "gone": "long"})[0]) == {"number": "long", "gone": "long"}


def test_a_new_field_with_the_name_of_a_computed_column_waits() -> None:
    orders = projected(topic(("id", "int")), ProjectedColumn(name="region", source="header:region"), keeps_others=True)
    orders.reading.writers.schemas = {1: WriterSchema(text=text(id="int", Region="string"))}
    with pytest.raises(ConflictError, match="region: field Region becomes a column with this name"):
        adapted(orders, {})


def test_a_wider_column_of_the_table_stays_wide() -> None:
    orders = topic(("id", "int"))
    schema, _ = adapted(orders, {"id": "long"})
    assert fields(schema) == {"id": "long"}


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        (
            text(id="string"),
            "schema 4 of schema registry main: field id has the type string, but column id has the type long",
        ),
        (
            text(_kafka="int"),
            "schema 4 of schema registry main: field _kafka: names that start with _kafka are reserved",
        ),
        ("[", "schema 4 of schema registry main: the schema is not JSON"),
        (text(ID="long"), "schema 4 of schema registry main: field ID and column id differ only in case"),
        (
            text(**{f"f{n}": "int" for n in range(1000)}),
            "schema 4 of schema registry main: the table would have 1001 columns",
        ),
    ],
)
def test_incompatible_records_wait_or_become_dead_letters(schema: str, problem: str) -> None:
    holding = topic(("id", "long"))
    holding.reading.writers.schemas = {4: WriterSchema(text=schema)}
    with pytest.raises(ConflictError) as error:
        adapted(holding, {"id": "long"})
    assert str(error.value).startswith(problem)
    assert "incompatible: DeadLetter or NewColumn, or create" in str(error.value)
    assert error.value.reason == Reason.INCOMPATIBLE_SCHEMA
    passing = topic(("id", "long"), incompatible="DeadLetter")
    passing.reading.writers.schemas = {4: WriterSchema(text=schema), 5: WriterSchema(text=text(id="long", more="int"))}
    found, left_out = adapted(passing, {"id": "long"})
    assert fields(found) == {"id": "long", "more": "int"}
    assert left_out[4].code is Code.INCOMPATIBLE_SCHEMA
    assert left_out[4].detail.startswith(problem)


def test_records_of_a_schema_that_is_too_large_wait_or_become_dead_letters(answers: Answers) -> None:
    answers.too_large, answers.subjects_of = {4, 6}, {6: frozenset({"payments-value"})}
    problem = "schema 4 cannot be used: schema registry main: an answer has more than 8 MiB"
    holding, passing = topic(("id", "long")), topic(("id", "long"), incompatible="DeadLetter")
    source = registries()
    for each in (holding, passing):
        each.reading.writers.needed = {4}
        learn(each, source)
    with pytest.raises(ConflictError) as error:
        adapted(holding, {"id": "long"})
    assert str(error.value).startswith(f"{problem}; all records of the topic wait. Set ")
    assert "incompatible: DeadLetter, or create" in str(error.value)
    assert error.value.reason == Reason.INCOMPATIBLE_SCHEMA
    found, left_out = adapted(passing, {"id": "long"})
    assert fields(found) == {"id": "long"}
    assert left_out == {4: Refusal(Code.INCOMPATIBLE_SCHEMA, problem)}
    # A record with the schema of another topic stops nothing.
    with pytest.raises(NotReadyError):
        source.schema(wanted(), 6)
    assert Registries({"main": RegistryConnection(url="http://registry")}, None, missing_seconds=0).schema(
        wanted(), 6
    ) == Refusal(
        Code.UNKNOWN_SCHEMA,
        "schema 6 of schema registry main belongs to subject payments-value, and the topic has subject orders-value",
    )


def test_two_writers_whose_new_fields_contradict_each_other_wait_or_the_later_one_is_left_out() -> None:
    """Both schemas fit the table, and their values may be in one round."""
    schemas: dict[Any, Any] = {
        4: WriterSchema(text=text(id="long", more="string")),
        5: WriterSchema(text=text(id="long", more="int")),
    }
    problem = "schema 5 of schema registry main: field more has the type int, but column more has the type string"
    holding = topic(("id", "long"))
    holding.reading.writers.schemas = dict(schemas)
    with pytest.raises(ConflictError, match=problem):
        adapted(holding, {"id": "long"})
    passing = topic(("id", "long"), incompatible="DeadLetter")
    passing.reading.writers.schemas = dict(schemas)
    found, left_out = adapted(passing, {"id": "long"})
    assert fields(found) == {"id": "long", "more": "string"}
    assert {number: each.code for number, each in left_out.items()} == {5: Code.INCOMPATIBLE_SCHEMA}


def test_another_subject_forgets_the_schemas() -> None:
    orders = topic(("id", "int"))
    orders.reading.writers.schemas, orders.reading.writers.needed = {1: WriterSchema(text=text(id="int"))}, {2}
    same = orders.job.model_copy(update={"freshness_ms": 9})
    orders.accept(same)
    assert orders.reading.writers.schemas
    other = orders.job.record_schema.model_copy(update={"subject": Subject(registry="main", name="other")})
    orders.accept(orders.job.model_copy(update={"record_schema": other}))
    assert orders.reading.writers.schemas == {}
    assert orders.reading.writers.needed == set()


def test_another_schema_of_the_contract_replaces_the_adapted_one() -> None:
    orders = topic(("id", "int"))
    orders.reading.schema = wanted(fields=(Column(name="number", type="int"),))
    orders.accept(orders.job.model_copy(update={"freshness_ms": 9}))
    assert fields(orders.schema) == {"number": "int"}
    later = orders.job.record_schema.model_copy(update={"fields": (Column(name="more", type="int"),)})
    orders.accept(orders.job.model_copy(update={"record_schema": later}))
    assert fields(orders.adapted_job.record_schema) == {"more": "int"}


def test_a_renamed_field_keeps_its_computed_column_and_renames_no_other() -> None:
    columns = (
        ProjectedColumn(name="mail_hash", source="$.mail", function="Sha256"),
        ProjectedColumn(name="old", source="key"),
    )
    orders = projected(topic(("mail", "string"), ("old", "int")), *columns, keeps_others=False)
    aliased = {"type": "record", "name": "R", "fields": [
        {"name": "email", "type": "string", "aliases": ["mail"]}, {"name": "new", "type": "int", "aliases": ["old"]},
    ]}  # fmt: skip
    orders.reading.writers.schemas = {1: WriterSchema(text=json.dumps(aliased))}
    table = [{"id": 1, "name": "mail_hash", "type": "string"}, {"id": 2, "name": "old", "type": "string"}]
    present = {"mail_hash": "string", "old": "string"}
    schema, left_out = adapted(orders, present, TableColumns(table))
    assert (computed(schema), left_out) == (present, {})
    assert rows.column_renames(schema, schema.renames) == ()
    assert [field.name for field in schema.fields] == ["email", "new"]


def test_a_renamed_private_field_is_not_kept() -> None:
    orders = projected(
        topic(("mail", "string"), ("note", "string")),
        ProjectedColumn(name="mail_hash", source="$.mail", function="Sha256"),
        keeps_others=True,
    )
    aliased = {"type": "record", "name": "R", "fields": [
        {"name": "email", "type": "string", "aliases": ["mail"]}, {"name": "remark", "type": "string", "aliases": ["note"]},
    ]}  # fmt: skip
    orders.reading.writers.schemas = {1: WriterSchema(text=json.dumps(aliased))}
    table = [{"id": 1, "name": "mail_hash", "type": "string"}, {"id": 2, "name": "note", "type": "string"}]
    schema, _ = adapted(orders, {"mail_hash": "string", "note": "string"}, TableColumns(table))
    assert computed(schema) == {"mail_hash": "string", "remark": "string"}
    assert {(each.old, each.new) for each in rows.column_renames(schema, schema.renames)} == {("note", "remark")}


TABLE = TableColumns(({"id": 1, "name": "id", "required": False, "type": "int"},), {}, "uuid", 3)


def proposing(**changes: Any) -> Topic:
    """Return a topic whose records have a schema that fits, and one that needs another column."""
    orders = topic(("id", "int"), **{"evolution": Evolution(add="Propose"), **changes})
    orders.reading.writers.schemas = {
        1: WriterSchema(text=text(id="int")),
        2: WriterSchema(text=text(id="int", note="string")),
    }
    return orders


def test_records_wait_for_the_approval_of_a_column() -> None:
    orders = proposing()
    with pytest.raises(
        ConflictError, match="wait for an approval: add column note: string; set the annotation"
    ) as held:
        allowed(orders, {"id": "int"}, TABLE)
    assert held.value.reason == Reason.PROPOSED
    proposed = orders.table.proposed
    assert proposed is not None
    assert (proposed.changes, proposed.approve in str(held.value)) == (("add column note: string",), True)
    approved = proposing(evolution=Evolution(add="Propose", approved=proposed.approve))
    schema, left_out, _ = allowed(approved, {"id": "int"}, TABLE)
    assert (fields(schema), left_out, approved.table.proposed) == ({"id": "int", "note": "string"}, {}, None)


def test_records_that_need_a_column_without_approval_can_be_dead_letters() -> None:
    orders = proposing(incompatible="DeadLetter")
    schema, left_out, _ = allowed(orders, {"id": "int"}, TABLE)
    assert fields(schema) == {"id": "int"}
    assert [(number, each.code) for number, each in left_out.items()] == [(2, Code.INCOMPATIBLE_SCHEMA)]
    assert orders.table.proposed is not None, "the status shows the change all the same"


def test_a_column_of_the_contract_that_the_table_lost_waits_for_an_approval_too() -> None:
    orders = topic(("id", "int"), ("lost", "int"), evolution=Evolution(add="Propose"), incompatible="DeadLetter")
    with pytest.raises(ConflictError, match="wait for an approval: add column lost: int"):
        allowed(orders, {"id": "int"}, TABLE)


def test_a_refused_change_is_not_proposed() -> None:
    orders = proposing(evolution=Evolution(add="Refuse"))
    with pytest.raises(ConflictError, match="add column note: string: spec.schema.evolution.add is Refuse") as held:
        allowed(orders, {"id": "int"}, TABLE)
    assert held.value.reason == Reason.INCOMPATIBLE_SCHEMA
    assert orders.table.proposed is None


def test_aliases_rename_columns_and_the_fields_of_earlier_writers() -> None:
    aliased = {"type": "record", "name": "R", "fields": [{"name": "number", "type": "long", "aliases": ["id"]}]}
    orders = topic(("id", "int"))
    orders.reading.writers.schemas = {1: WriterSchema(text=text(id="int")), 2: WriterSchema(text=json.dumps(aliased))}
    schema, *_ = allowed(orders, {"id": "int"}, TABLE)
    assert fields(schema) == {"number": "long"}
    assert [(each.old, each.new) for each in schema.renames] == [("id", "number")]
    policy = Evolution(rename="Propose")
    waiting = topic(("id", "int"), evolution=policy)
    waiting.reading.writers.schemas = orders.reading.writers.schemas
    with pytest.raises(ConflictError, match="rename column id to number"):
        allowed(waiting, {"id": "int"}, TABLE)


def test_a_field_with_the_name_of_the_column_for_other_members_waits() -> None:
    def writer(*names: str) -> WriterSchema:
        return WriterSchema(
            text=json.dumps({"type": "object", "properties": {name: {"type": "string"} for name in names}})
        )

    orders = topic(("id", "string"), format="Json", unknown_column="rest")
    present = {"id": "string", "rest": "variant"}
    orders.reading.writers.schemas = {1: writer("id"), 2: writer("id", "more", "order-id")}
    schema, left_out = adapted(orders, present)
    assert left_out == {}
    assert [(each.name, each.type) for each in rows.schema_columns(schema)] == [
        ("id", "string"), ("more", "string"), ("rest", "variant"),
    ]  # fmt: skip
    orders.reading.writers.schemas[3] = writer("id", "Rest")
    with pytest.raises(ConflictError, match="field Rest: spec.schema.unknownFieldsColumn has this name"):
        adapted(orders, present)


def test_aliases_in_a_referenced_schema_rename_members() -> None:
    order = {"type": "record", "name": "R", "fields": [{"name": "price", "type": "shop.Money"}]}

    def writer(**money: Any) -> WriterSchema:
        field = {"type": "long", **money}
        referenced = {"type": "record", "name": "Money", "namespace": "shop", "fields": [field]}
        return WriterSchema(text=json.dumps(order), references=(json.dumps(referenced),), names=("shop.Money",))

    orders = topic(("price", "struct<cents: long>"))
    orders.reading.writers.schemas = {1: writer(name="cents"), 2: writer(name="minor", aliases=["cents"])}
    member = {"id": 2, "name": "cents", "required": False, "type": "long"}
    table = TableColumns(
        [{"id": 1, "name": "price", "required": False, "type": {"type": "struct", "fields": [member]}}]
    )
    schema, *_ = allowed(orders, {"price": "struct<cents: long>"}, table)
    assert fields(schema) == {"price": "struct<minor: long>"}
    assert [(each.old, each.new) for each in schema.renames] == [("price.cents", "price.minor")]


def test_a_new_field_with_the_earlier_name_of_a_column_waits() -> None:
    table = [{"id": 1, "name": "number", "required": False, "type": "int"}]
    orders = topic(("number", "int"))
    orders.reading.writers.schemas = {
        1: WriterSchema(text=text(id="int")),
        2: WriterSchema(text=text(id="int", number="int")),
    }
    with pytest.raises(ConflictError, match="schema 2 of .* field id is new, but column number had this name before"):
        adapted(orders, {"number": "int"}, TableColumns(table, {1: ("id",)}))
    del orders.reading.writers.schemas[2]
    schema, _ = adapted(orders, {"number": "int"}, TableColumns(table, {1: ("id",)}))
    assert fields(schema) == {"number": "int"}


def test_a_field_of_another_type_gets_a_column_of_its_own() -> None:
    orders = topic(("id", "int"), incompatible="NewColumn")
    orders.reading.writers.schemas = {
        1: WriterSchema(text=text(id="int")),
        2: WriterSchema(text=text(id="string")),
        3: WriterSchema(text=text(id="boolean", id_v2="int")),
    }
    schema, left_out = adapted(orders, {"id": "int"})
    assert left_out == {}
    assert fields(schema) == {"id": "int", "id_v3": "string", "id_v4": "boolean", "id_v2": "int"}
    assert [(each.schema_id, each.column) for each in schema.versions] == [(2, "id_v3"), (3, "id_v4")]
    # A driver that starts again may know only some of the schemas.
    table = TableColumns(
        tuple(
            {"id": n, "name": name, "required": False, "type": kind}
            for n, (name, kind) in enumerate(fields(schema).items())
        ),
        versions={1: "id", 2: "id"},
    )
    del orders.reading.writers.schemas[2]
    again, _ = adapted(orders, fields(schema), table)
    assert fields(again)["id_v4"] == "boolean"
    assert [(each.schema_id, each.column) for each in again.versions] == [(3, "id_v4")]


@pytest.mark.parametrize("incompatible", ["Hold", "NewColumn"])
def test_values_that_the_column_of_a_later_schema_holds_need_no_change(incompatible: Any) -> None:
    orders = topic(("id", "double"), ("items", "list<double>"), incompatible=incompatible)
    present = {"id": "double", "items": "list<double>"}
    orders.reading.writers.schemas = {1: WriterSchema(text=text(id="int", items={"type": "array", "items": "int"}))}
    schema, left_out = adapted(orders, present)
    assert (fields(schema), left_out, schema.versions) == (present, {}, ())


def test_values_that_may_not_fit_have_a_column_of_their_own_only_if_the_policy_says_so() -> None:
    present = {"id": "double", "name": "string"}
    known: Any = {1: WriterSchema(text=text(id="long", name="bytes"))}
    orders = topic(("id", "double"), ("name", "string"))
    orders.reading.writers.schemas = known
    assert fields(adapted(orders, present)[0]) == present
    apart = topic(("id", "double"), ("name", "string"), incompatible="NewColumn")
    apart.reading.writers.schemas = known
    assert fields(adapted(apart, present)[0]) == {**present, "id_v2": "long", "name_v2": "binary"}


@pytest.mark.parametrize("incompatible", ["Hold", "NewColumn"])
def test_a_column_of_floats_becomes_double_for_integers(incompatible: Any) -> None:
    orders = topic(("id", "float"), incompatible=incompatible)
    orders.reading.writers.schemas = {1: WriterSchema(text=text(id="int"))}
    assert fields(adapted(orders, {"id": "float"})[0]) == {"id": "double"}


def test_a_column_keeps_its_type_if_the_latest_schema_has_integers_again() -> None:
    orders = topic(("id", "int"))
    orders.reading.writers.schemas = {1: WriterSchema(text=text(id="double")), 2: WriterSchema(text=text(id="int"))}
    assert fields(adapted(orders, {"id": "double"})[0]) == {"id": "double"}


def test_a_column_of_integers_does_not_hold_fractions() -> None:
    orders = topic(("id", "int"))
    orders.reading.writers.schemas = {1: WriterSchema(text=text(id="double"))}
    with pytest.raises(
        ConflictError, match="field id has the type double, but column id has the type int, which cannot hold it"
    ):
        adapted(orders, {"id": "int"})


def test_a_json_number_holds_integers() -> None:
    def properties(kind: str) -> str:
        return json.dumps({"type": "object", "properties": {"id": {"type": kind}}})

    orders = topic(("id", "double"), format="Json")
    orders.reading.writers.schemas = {1: WriterSchema(text=properties("integer"))}
    assert fields(adapted(orders, {"id": "double"})[0]) == {"id": "double"}


def test_a_column_for_keys_holds_integers_of_an_earlier_schema() -> None:
    decoding = wanted(subject=Subject(registry="main", name="orders-key"))
    key = KeySchema(columns="Flat", fields=(Column(name="id", type="double"),), decoding=decoding)
    orders = topic(("total", "int"), key=key)
    orders.reading.key_writers.schemas = {1: WriterSchema(text=text(id="int"))}
    schema, _, left_out = allowed(orders, {"total": "int", "key_id": "double"}, TABLE)
    assert schema.key is not None
    assert [(field.name, field.type) for field in schema.key.fields] == [("id", "double")]
    assert left_out == {}


def test_a_new_column_for_another_type_may_need_an_approval() -> None:
    orders = topic(("id", "int"), incompatible="NewColumn", evolution=Evolution(add="Propose"))
    orders.reading.writers.schemas = {2: WriterSchema(text=text(id="string"))}
    with pytest.raises(ConflictError, match="add column id_v2: string"):
        allowed(orders, {"id": "int"}, TABLE)


def test_columns_read_members_of_json_schemas_whose_names_no_column_can_have(answers: Answers) -> None:
    members = [
        {
            "order-id": {"type": "integer"},
            "user": {"properties": {"e-mail": {"type": "string"}, "n-1": {"type": "string"}}},
        },
        {"order-id": {"type": "integer"}, "user": {"properties": {"x": {"type": "string"}}}, "a.b": {"type": "string"}},
    ]
    for number, properties in enumerate(members, 1):
        schema = WriterSchema(text=json.dumps({"type": "object", "properties": properties}))
        answers.schemas[number] = Registered(number, "JSON", schema)
    orders = Topic(job().model_copy(update={"record_schema": wanted(format="Json")}))
    columns = (
        ProjectedColumn(name="id", source="$['order-id']"),
        ProjectedColumn(name="mail", source="$.user['e-mail']"),
    )
    projected(orders, *columns)
    orders.reading.writers.needed = {1, 2}
    learn(orders, registries())
    found, left_out = adapted(orders, {"id": "long", "mail": "string"})
    assert (computed(found), left_out) == ({"id": "long", "mail": "string"}, {})
    assert fields(found) == {"order-id": "long", "user": "struct<'e-mail': string, x: string>"}
