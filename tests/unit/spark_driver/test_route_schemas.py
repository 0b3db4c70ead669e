"""All tables of a topic read the names of messages with the same schemas, so a record never gets two tables, or none."""

import pytest

from firn.decoders.bad_records import Code
from firn.model.errors import NotReadyError, UnavailableError
from firn.model.jobs import Route, SchemaFormat, WriterSchema
from firn.schemas.routes import message_schema
from firn_spark.ingestion.rounds.committing import empty_is_due
from firn_spark.ingestion.rounds.landing_job import let_routes_ask_again
from firn_spark.ingestion.topics.route_schemas import Answer, RouteSchemas, SharedRouteSchemas
from firn_spark.ingestion.topics.state import REFUSED_SECONDS
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.tables.commits import Landed
from firn_spark.worker.formats.writer_schemas import Reference, Refusal
from tests.unit.spark_driver.topic import job, topic

SCHEMA, MISSING = WriterSchema(text="{}"), Refusal(Code.UNKNOWN_SCHEMA, "missing")
VALUES = message_schema(SchemaFormat.AVRO, "main", "Payload")


class Answers:
    """A registry."""

    def __init__(self, **of: Answer | Exception) -> None:
        self.of: dict[str, Answer | Exception] = of
        self.asked: list[Reference] = []

    def find(self, reference: Reference) -> Answer:
        self.asked.append(reference)
        found = self.of[f"s{reference}"]
        if isinstance(found, Exception):
            raise found
        return found


def learned(answers: Answers, *references: Reference, now: float = 0) -> RouteSchemas:
    schemas = RouteSchemas()
    schemas.need(references)
    schemas.learn(answers.find, now)
    return schemas


def tables(schemas: RouteSchemas) -> list[Topic]:
    """Return the topics of two tables and of the topic itself."""
    routes = [Route(values=VALUES, match="a"), Route(values=VALUES, match="b", before=("a",))]
    made = [topic("events") for _ in range(3)]
    for each, route in zip(made, [*routes, Route(values=VALUES, before=("a", "b"))], strict=True):
        each.job, each.route_schemas = each.job.model_copy(update={"route": route}), schemas
    return made


def test_a_needed_schema_is_requested_once_and_a_guid_with_its_schema() -> None:
    answers = Answers(s1=SCHEMA, sguid=7, s7=SCHEMA)
    schemas = learned(answers, 1, "guid")
    assert schemas.known() == {1: SCHEMA, "guid": 7, 7: SCHEMA}
    schemas.learn(answers.find, 0)
    assert sorted(answers.asked, key=str) == [1, 7, "guid"]


def test_a_schema_that_may_be_new_is_requested_again_after_the_others() -> None:
    answers = Answers(s1=NotReadyError("new"), s2=SCHEMA)
    schemas = RouteSchemas()
    schemas.need([1, 2])
    with pytest.raises(NotReadyError):
        schemas.learn(answers.find, 0)
    assert schemas.known() == {2: SCHEMA}
    answers.of["s1"] = MISSING
    schemas.learn(answers.find, 0)
    assert schemas.known() == {1: MISSING, 2: SCHEMA}


def test_records_wait_while_the_registry_is_away() -> None:
    answers = Answers(s1=UnavailableError("away"))
    schemas = RouteSchemas()
    schemas.need([1])
    for _ in range(2):
        with pytest.raises(UnavailableError):
            schemas.learn(answers.find, 0)
    assert schemas.known() == {}


def test_the_first_answer_counts_if_two_tables_ask_at_the_same_time() -> None:
    schemas = RouteSchemas()
    schemas.need([1])

    def slow(_: Reference) -> Answer:
        schemas.learn(lambda _: MISSING, 0)
        return SCHEMA

    schemas.learn(slow, 0)
    assert schemas.known() == {1: MISSING}


def test_a_missing_schema_stays_missing_until_all_tables_read_the_same_records() -> None:
    schemas = learned(Answers(s1=MISSING, s2=SCHEMA), 1, 2)
    first, second, own = tables(schemas)
    late = REFUSED_SECONDS + 1
    for some in ([first, second], [first, own], [own], [first, second, topic("events")]):
        let_routes_ask_again({each: {0: (0, 1)} for each in some}, late)
        assert schemas.known() == {1: MISSING, 2: SCHEMA}
    together = {each: {0: (0, 1)} for each in (first, second, own)}
    let_routes_ask_again(together, REFUSED_SECONDS)
    assert schemas.known() == {1: MISSING, 2: SCHEMA}
    let_routes_ask_again(together, late)
    assert schemas.known() == {2: SCHEMA}


def test_a_missing_schema_stays_missing_while_its_record_is_a_dead_letter_of_the_round() -> None:
    schemas = learned(Answers(s1=MISSING), 1)
    every, late = tables(schemas), REFUSED_SECONDS + 1
    together = {each: {0: (0, 1)} for each in every}
    every[-1].letters.exclude = {0: {0: {bytes(16)}}}
    let_routes_ask_again(together, late)
    assert schemas.known() == {1: MISSING}
    every[-1].letters.exclude = {}
    let_routes_ask_again(together, late)
    assert schemas.known() == {}


@pytest.mark.parametrize(("found", "due"), [(MISSING, True), (SCHEMA, False)])
def test_tables_without_rows_commit_offsets_while_a_schema_is_missing(found: Answer, due: bool) -> None:
    for each in tables(learned(Answers(s1=found), 1)):
        each.table.landed = Landed("id-1", 1, {0: 5})
        assert empty_is_due(each, {0: (5, 9)}, {0: 9}) is due


def test_contracts_of_one_kafka_topic_share_their_schemas() -> None:
    shared, one = SharedRouteSchemas(), job("events", topic_id="id-1")
    found = shared.of(one)
    assert shared.of(one.model_copy(update={"uid": "other"})) is found
    assert shared.of(one.model_copy(update={"topic_id": "id-2"})) is not found
    assert shared.of(one.model_copy(update={"profile": "other"})) is not found
