"""A replay decodes only letters whose schema ingestion would accept."""

from typing import Any

import pytest

from firn.decoders.bad_records import Code
from firn.model.jobs import RecordSchema, RegistryConnection, Subject, WriterSchema
from firn.schema_registry import MOST_ID, Registered
from firn_spark.schemas import registries
from firn_spark.schemas.registries import Registries
from firn_spark.worker.formats.writer_schemas import Refusal

WANTED = RecordSchema(format="Avro", framing="Registry", subject=Subject(registry="main", name="orders-value"))
WRITER = WriterSchema(text='"string"')


class Answers:
    """A registry with schemas 7 (Avro), 8 (Protobuf), 9 (Avro of another subject) and 10 (Avro of no subject), without GUIDs."""

    def by_id(self, number: int) -> Registered | None:
        assert number <= MOST_ID, "registries fail for such ids"
        return Registered(number, "PROTOBUF" if number == 8 else "AVRO", WRITER) if 7 <= number <= 10 else None

    def id_of(self, guid: str) -> int | None:
        return None

    def subjects(self, number: int, *, deleted: bool) -> frozenset[str]:
        assert deleted, "letters may be older than the deletion of a version"
        return {9: frozenset({"payments-value"}), 10: frozenset[str]()}.get(number, frozenset({"orders-value"}))


@pytest.fixture
def replaying(monkeypatch: pytest.MonkeyPatch) -> Registries:
    monkeypatch.setattr(registries, "SchemaRegistry", lambda *_: Answers())
    return Registries({"main": RegistryConnection(url="http://registry")}, None, missing_seconds=0)


@pytest.mark.parametrize("number", [7, 10])
def test_schemas_of_the_topics_subject_are_used(replaying: Registries, number: int) -> None:
    assert replaying.find(WANTED, number) == WRITER


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        (6, "the record names schema 6, which schema registry main does not have"),
        (2**32 - 1, "the record names schema 4294967295, which schema registry main does not have"),
        (8, "schema 8 of schema registry main has the type PROTOBUF, and the topic has format: Avro"),
        (
            9,
            "schema 9 of schema registry main belongs to subject payments-value, and the topic has subject orders-value",
        ),
        ("g", "the header names the schema with GUID g, which schema registry main does not have"),
    ],
)
def test_letters_of_other_schemas_stay_at_once(replaying: Registries, reference: Any, problem: str) -> None:
    assert replaying.find(WANTED, reference) == Refusal(Code.UNKNOWN_SCHEMA, problem)
