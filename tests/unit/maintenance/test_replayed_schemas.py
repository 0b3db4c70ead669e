"""A replay decodes only letters whose schema ingestion would accept."""

from typing import Any, cast

import pytest

from firn.decoders.bad_records import Code
from firn.model.jobs import RecordSchema, Subject, WriterSchema
from firn.schema_registry import MOST_ID, Registered
from firn_spark.maintenance.replaying.decoding import requested
from firn_spark.worker.formats.writer_schemas import Refusal

WANTED = RecordSchema(format="Avro", framing="Registry", subject=Subject(registry="main", name="orders-value"))
WRITER = WriterSchema(text='"string"')


class Answers:
    """A registry with schemas 7 (Avro), 8 (Protobuf), 9 (Avro of another subject) and 10 (Avro of no subject)."""

    def by_id(self, number: int) -> Registered | None:
        assert number <= MOST_ID, "registries fail for such ids"
        return Registered(number, "PROTOBUF" if number == 8 else "AVRO", WRITER) if 7 <= number <= 10 else None

    def subjects(self, number: int, *, deleted: bool) -> frozenset[str]:
        assert deleted, "letters may be older than the deletion of a version"
        return {9: frozenset({"payments-value"}), 10: frozenset[str]()}.get(number, frozenset({"orders-value"}))


def found(number: int) -> Any:
    return requested(cast(Any, Answers()), WANTED, number)


@pytest.mark.parametrize("number", [7, 10])
def test_schemas_of_the_topics_subject_are_used(number: int) -> None:
    assert found(number) == WRITER


@pytest.mark.parametrize(
    ("number", "problem"),
    [
        (6, "schema 6 of schema registry main does not exist"),
        (2**32 - 1, "schema 4294967295 of schema registry main does not exist"),
        (8, "schema 8 of schema registry main has the type PROTOBUF, not AVRO"),
        (
            9,
            "schema 9 of schema registry main belongs to subject payments-value, and the topic has subject orders-value",
        ),
    ],
)
def test_letters_of_other_schemas_stay(number: int, problem: str) -> None:
    assert found(number) == Refusal(Code.UNKNOWN_SCHEMA, problem)
