"""All tables of a topic read the names of messages with the same schemas, so a record never gets two tables, or none."""

import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import pytest

from firn.decoders.bad_records import Code
from firn.model.errors import CommitUnknownError, NotReadyError, UnavailableError
from firn.model.jobs import Route, SchemaFormat, WriterSchema
from firn.schemas.routes import registry_schema
from firn_spark.ingestion.rounds.committing import empty_is_due
from firn_spark.ingestion.rounds.landing_job import let_routes_ask_again
from firn_spark.ingestion.topics.route_schemas import MOST_KEPT, Answer, RouteSchemas, SharedRouteSchemas
from firn_spark.ingestion.topics.state import REFUSED_SECONDS
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.tables.commits import Landed
from firn_spark.worker.formats.writer_schemas import Reference, Refusal
from tests.unit.spark_driver.topic import job, topic

SCHEMA, MISSING = WriterSchema(text="{}"), Refusal(Code.UNKNOWN_SCHEMA, "missing")
VALUES = registry_schema(SchemaFormat.AVRO, "main", "Payload")


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


class Kept:
    """The stored refused schemas of a topic, and the drivers that use them."""

    def __init__(self) -> None:
        self.schemas: frozenset[Reference] = frozenset()
        self.owner: object = None
        self.failure: Exception | None = None
        self.applied = False
        """True if the catalog makes a change although it reports an error."""

    def driver(self) -> "Driver":
        return Driver(self)


class Driver:
    """The stored schemas as one driver uses them."""

    def __init__(self, kept: Kept) -> None:
        self.kept = kept

    def take(self) -> frozenset[Reference]:
        self.kept.owner = self
        return self.kept.schemas

    def record(self, schemas: Collection[Reference]) -> None:
        if self.kept.applied:
            self.kept.schemas = frozenset(schemas)
        if self.kept.failure is not None:
            raise self.kept.failure
        if self.kept.owner is not self:
            raise NotReadyError("another driver decides")
        self.kept.schemas = frozenset(schemas)


def learn(schemas: RouteSchemas, answers: Answers, kept: Kept | None = None, now: float = 0) -> None:
    schemas.learn(answers.find, lambda _: MISSING, (kept or Kept()).driver, now)


def learned(answers: Answers, *references: Reference, kept: Kept | None = None) -> RouteSchemas:
    schemas = RouteSchemas()
    schemas.need(references)
    learn(schemas, answers, kept)
    return schemas


def tables(schemas: RouteSchemas) -> list[Topic]:
    """Return the topics of two tables and of the topic itself."""
    routes = [Route(values=VALUES, match="a"), Route(values=VALUES, match="b", before=("a",))]
    made = [topic("events") for _ in range(3)]
    for each, route in zip(made, [*routes, Route(values=VALUES, before=("a", "b"))], strict=True):
        each.job, each.route_schemas = each.job.model_copy(update={"route": route}), schemas
        each.epoch, each.table.landed = 1, Landed("id-1", 1, {0: 0})
    return made


def test_a_needed_schema_is_requested_once_and_a_guid_with_its_schema() -> None:
    answers = Answers(s1=SCHEMA, sguid=7, s7=SCHEMA)
    schemas = learned(answers, 1, "guid")
    assert schemas.known() == {1: SCHEMA, "guid": 7, 7: SCHEMA}
    learn(schemas, answers)
    assert sorted(answers.asked, key=str) == [1, 7, "guid"]


def test_a_schema_that_may_be_new_is_requested_again_after_the_others() -> None:
    answers = Answers(s1=NotReadyError("new"), s2=SCHEMA)
    schemas = RouteSchemas()
    schemas.need([1, 2])
    with pytest.raises(NotReadyError):
        learn(schemas, answers)
    assert schemas.known() == {2: SCHEMA}
    answers.of["s1"] = MISSING
    learn(schemas, answers)
    assert schemas.known() == {1: MISSING, 2: SCHEMA}


def test_records_wait_while_the_registry_is_away() -> None:
    answers = Answers(s1=UnavailableError("away"))
    schemas = RouteSchemas()
    schemas.need([1])
    for _ in range(2):
        with pytest.raises(UnavailableError):
            learn(schemas, answers)
    assert schemas.known() == {}


def test_two_tables_that_need_a_schema_at_the_same_time_get_one_answer() -> None:
    answers, kept = Answers(s1=MISSING), Kept()
    schemas = RouteSchemas()
    asked, go = threading.Event(), threading.Event()

    def slow(reference: Reference) -> Answer:
        asked.set()
        assert go.wait(10)
        return answers.find(reference)

    with ThreadPoolExecutor(2) as pool:
        schemas.need([1])
        first = pool.submit(schemas.learn, slow, lambda _: MISSING, kept.driver, 0)
        assert asked.wait(10)
        second = pool.submit(learn, schemas, Answers(s1=SCHEMA), kept)
        go.set()
        first.result(10), second.result(10)
    assert schemas.known() == {1: MISSING}


def test_the_next_driver_knows_what_was_missing_and_forgets_it_no_earlier_than_this_driver_would() -> None:
    kept = Kept()
    learned(Answers(s1=MISSING, s2=SCHEMA, sguid=MISSING), 1, 2, "guid", kept=kept)
    assert kept.schemas == {1, "guid"}
    answers = Answers(s2=SCHEMA)
    following = learned(answers, 1, 2, kept=kept)
    assert following.known() == {1: MISSING, 2: SCHEMA, "guid": MISSING}
    assert answers.asked == [2]
    late(following, Answers(s1=SCHEMA, sguid=1))
    let_routes_ask_again({each: {0: (0, 1)} for each in tables(following)})
    assert kept.schemas == frozenset()


def test_no_task_reads_with_an_answer_that_is_not_stored() -> None:
    kept, schemas = Kept(), RouteSchemas()
    kept.failure = UnavailableError("the catalog is away")
    schemas.need([1, 2])
    for _ in range(2):
        with pytest.raises(UnavailableError):
            learn(schemas, Answers(s1=MISSING, s2=SCHEMA), kept)
        assert (schemas.known(), schemas.refuses) == ({}, False)
    kept.failure = None
    learn(schemas, Answers(s1=SCHEMA, s2=SCHEMA), kept)
    assert (schemas.known(), kept.schemas) == ({1: SCHEMA, 2: SCHEMA}, frozenset())


def test_a_driver_forgets_its_answers_when_another_driver_decides() -> None:
    kept = Kept()
    older = learned(Answers(s1=SCHEMA), 1, kept=kept)
    learned(Answers(s2=MISSING), 2, kept=kept)
    older.need([2])
    with pytest.raises(NotReadyError, match="another driver decides"):
        learn(older, Answers(s2=SCHEMA), kept)
    assert older.known() == {}
    learn(older, Answers(s1=SCHEMA, s2=SCHEMA), kept)
    assert older.known() == {2: MISSING}


@pytest.mark.parametrize("applied", [False, True])
def test_a_driver_reads_the_property_again_if_its_change_has_no_answer(applied: bool) -> None:
    kept = Kept()
    schemas = learned(Answers(s1=MISSING), 1, kept=kept)
    late(schemas, Answers(s1=SCHEMA))
    kept.failure, kept.applied = CommitUnknownError("no answer"), applied
    let_routes_ask_again({each: {0: (0, 1)} for each in tables(schemas)})
    assert schemas.known() == {}
    kept.failure = None
    schemas.need([1])
    learn(schemas, Answers(s1=SCHEMA), kept)
    assert schemas.known() == {1: SCHEMA if applied else MISSING}


def test_a_driver_forgets_schemas_above_a_number_but_never_that_one_is_missing() -> None:
    schemas = learned(Answers(s0=MISSING, **{f"s{n}": SCHEMA for n in range(1, MOST_KEPT + 1)}), *range(MOST_KEPT + 1))
    assert len(schemas.known()) == MOST_KEPT + 1
    schemas.need([5000])
    schemas.learn(Answers(s5000=SCHEMA).find, lambda _: MISSING, Kept().driver, 0, again=True)
    assert len(schemas.known()) == MOST_KEPT + 2  # the same round may need the others, too
    schemas.need([5001])
    learn(schemas, Answers(s5001=SCHEMA))
    assert schemas.known() == {0: MISSING, 5001: SCHEMA}


def late(schemas: RouteSchemas, answers: Answers) -> None:
    """Let the driver find out what the registry has by now."""
    assert not schemas.search_due(REFUSED_SECONDS)
    assert schemas.search_due(REFUSED_SECONDS + 1)
    assert not schemas.search_due(REFUSED_SECONDS + 1)  # a slow registry never has two searches of one topic
    schemas.search(answers.find, REFUSED_SECONDS + 1)
    assert not schemas.search_due(REFUSED_SECONDS + 1)


def test_a_missing_schema_stays_missing_until_all_tables_read_the_same_records() -> None:
    schemas = learned(Answers(s1=MISSING, s2=SCHEMA), 1, 2)
    first, second, own = tables(schemas)
    together = {each: {0: (0, 1)} for each in (first, second, own)}
    let_routes_ask_again(together)
    assert schemas.known() == {1: MISSING, 2: SCHEMA}
    late(schemas, Answers(s1=SCHEMA))
    for some in ([first, second], [first, own], [own], [first, second, topic("events")]):
        let_routes_ask_again({each: {0: (0, 1)} for each in some})
        assert schemas.known() == {1: MISSING, 2: SCHEMA}
    let_routes_ask_again(together)
    assert schemas.known() == {2: SCHEMA}


def test_a_schema_that_stays_missing_changes_no_property() -> None:
    kept = Kept()
    schemas = learned(Answers(s1=MISSING), 1, kept=kept)
    kept.failure = AssertionError("a change")
    late(schemas, Answers(s1=MISSING))
    let_routes_ask_again({each: {0: (0, 1)} for each in tables(schemas)})
    assert schemas.known() == {1: MISSING}


def test_no_table_asks_again_at_offsets_that_an_earlier_driver_committed() -> None:
    schemas = learned(Answers(s1=MISSING), 1)
    every = tables(schemas)
    late(schemas, Answers(s1=SCHEMA))
    every[0].table.landed = Landed("id-1", 0, {0: 0})
    let_routes_ask_again({each: {0: (0, 1)} for each in every})
    assert schemas.known() == {1: MISSING}


def test_a_missing_schema_stays_missing_while_its_record_is_a_dead_letter_of_the_round() -> None:
    schemas = learned(Answers(s1=MISSING), 1)
    every = tables(schemas)
    late(schemas, Answers(s1=SCHEMA))
    together = {each: {0: (0, 1)} for each in every}
    every[-1].letters.exclude = {0: {0: {bytes(16)}}}
    let_routes_ask_again(together)
    assert schemas.known() == {1: MISSING}
    every[-1].letters.exclude = {}
    let_routes_ask_again(together)
    assert schemas.known() == {}


def test_a_schema_that_can_never_be_used_is_not_stored() -> None:
    kept, other = Kept(), Refusal(Code.UNKNOWN_SCHEMA, "another type", final=True)
    schemas = learned(Answers(s1=other), 1, kept=kept)
    assert (schemas.known(), schemas.refuses, kept.schemas) == ({1: other}, False, frozenset())


def test_a_schema_without_its_references_is_stored_because_it_may_get_them() -> None:
    kept = Kept()
    learned(Answers(s1=Refusal(Code.INCOMPATIBLE_SCHEMA, "a reference is missing")), 1, kept=kept)
    assert kept.schemas == {1}


def test_another_own_table_of_the_topic_has_its_own_refused_schemas() -> None:
    schemas = learned(Answers(s1=MISSING), 1)
    first = job("events").table
    for target, uuid, known in (
        (first, "a", {1: MISSING}),
        (first, "a", {1: MISSING}),
        (first, "b", {}),
    ):
        schemas.keep_in(target, uuid)
        assert schemas.known() == known


@pytest.mark.parametrize(("found", "due"), [(MISSING, True), (SCHEMA, False)])
def test_tables_without_rows_commit_offsets_while_a_schema_is_missing(found: Answer, due: bool) -> None:
    for each in tables(learned(Answers(s1=found), 1)):
        each.table.landed = Landed("id-1", 1, {0: 5})
        assert empty_is_due(each, {0: (5, 9)}, {0: 9}) is due


def test_contracts_of_one_kafka_topic_share_their_schemas() -> None:
    shared, one = SharedRouteSchemas(), job("events", topic_id="id-1")
    found = shared.of(one)
    assert shared.of(one.model_copy(update={"uid": "other"})) is found
    assert shared.of(one.model_copy(update={"topic_id": None})) is found
    assert shared.of(one.model_copy(update={"profile": "other"})) is not found
