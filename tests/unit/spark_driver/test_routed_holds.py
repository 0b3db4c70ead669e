"""A table that holds records of an incompatible schema holds no other table of its topic, and loses and doubles no record."""

import functools
import io
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fastavro
import pytest

from firn.model.conditions import Reason
from firn.model.errors import ConflictError, FirnError
from firn.model.jobs import Column, RecordSchema, Route, SchemaFormat, Subject, WriterSchema
from firn.schemas.routes import registry_schema
from firn_spark.ingestion import writer_schemas
from firn_spark.ingestion.rounds.landing_job import TopicResult, parse_results
from firn_spark.ingestion.rounds.planning import plan
from firn_spark.ingestion.topics.route_schemas import RouteSchemas
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import LogEnd
from firn_spark.schemas.registries import refused_before
from firn_spark.worker.formats.writer_schemas import Reference
from firn_spark.worker.landing import LandingPlan, TopicLanding, land
from tests.unit.spark import tables
from tests.unit.spark.records import batch
from tests.unit.spark_driver.topic import topic

VALUES = registry_schema(SchemaFormat.AVRO, "main", "Payload")
MESSAGES = ("Order", "Refund")
ORDER, REFUND, VISIT, WRONG = 1, 2, 3, 4
"""Ids of schemas. The table of refunds cannot hold the values of the last one."""
RECORDS = {
    number: {"type": "record", "name": name, "fields": [{"name": "id", "type": kind}]}
    for number, (name, kind) in enumerate(
        [("Order", "long"), ("Refund", "long"), ("Visit", "long"), ("Refund", "string")], 1
    )
}
REGISTRY: Any = SimpleNamespace(find=lambda _, number: WriterSchema(text=json.dumps(RECORDS[number])))


class NothingRefused:
    """Stored refused schemas that stay empty."""

    def take(self) -> frozenset[Reference]:
        return frozenset()

    def record(self, schemas: Collection[Reference]) -> None:
        assert not schemas


def value(number: int, content: Any) -> bytes:
    buffer = io.BytesIO(b"\0" + number.to_bytes(4))
    buffer.seek(5)
    fastavro.schemaless_writer(buffer, RECORDS[number], {"id": content})
    return buffer.getvalue()


class Estate:
    """A topic with two routes, and its tables. Rounds are planned, read and learned by the code of the driver."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log: list[bytes] = []
        shared = RouteSchemas()
        self.topics = {name: self._topic(name, shared) for name in (*MESSAGES, "rest")}
        self.landed: dict[str, list[int]] = {name: [] for name in self.topics}
        """The offsets of rows and dead letters of each table."""

    def _topic(self, name: str, shared: RouteSchemas) -> Topic:
        made = topic("t", record_schema=RecordSchema(format=SchemaFormat.RAW))
        before = MESSAGES[: MESSAGES.index(name)] if name in MESSAGES else MESSAGES
        route = Route(values=VALUES, match=name if name in MESSAGES else "", before=before)
        update: dict[str, Any] = {"uid": name, "route": route}
        if name in MESSAGES:
            subject = Subject(registry="main", name=name)
            fields = (Column(name="id", type="long"),)
            update["record_schema"] = RecordSchema(format="Avro", framing="Registry", subject=subject, fields=fields)
        made.job, made.route_schemas = made.job.model_copy(update=update), shared
        return made

    # The brokers

    def starts(self, names: Any) -> Any:
        return {name: dict.fromkeys(parts, 0) for name, parts in names.items()}

    def log_ends(self, names: Any) -> Any:
        return {name: {part: LogEnd(len(self.log), None) for part in parts} for name, parts in names.items()}

    def divergences(self, names: Any) -> Any:
        return {name: {} for name in names}

    # The driver

    def prepare(self, each: Topic) -> None:
        """Request schemas and change the table as a preparation does. A failure is the topic's."""
        try:
            find = functools.partial(REGISTRY.find, VALUES)
            each.route_schemas.learn(find, functools.partial(refused_before, "main"), NothingRefused, 0)
            if each.job.record_schema.subject is not None:
                writer_schemas.learn(each, REGISTRY)
                allowed = writer_schemas.allowed(each, {"id": "long"}, writer_schemas.NO_TABLE)
                each.reading.schema, each.reading.writers.incompatible, _ = allowed
            each.attempts.error = None
        except FirnError as error:
            each.attempts.error = error

    def groups(self) -> Iterator[list[Topic]]:
        """Yield the ready topics in groups that share a round."""
        waiting = [each for each in self.topics.values() if each.attempts.error is None]
        while waiting:
            yield [each for each in waiting if each.reads_with(waiting[0])]
            waiting = [each for each in waiting if not each.reads_with(waiting[0])]

    def settle(self) -> None:
        """Run rounds until each table has landed the log or waits."""
        for _ in range(6):
            for each in self.topics.values():
                self.prepare(each)
            for group in [*self.groups()]:
                self.round(group)

    def round(self, group: list[Topic]) -> None:
        brokers: Any = self
        planned = plan(group, brokers, 10**6)
        if not planned:
            return
        start, end = next(iter(planned.values()))[0]
        landings = {
            each.landing: TopicLanding(
                each.adapted_job,
                tables.table_of(each.adapted_job, self.directory / each.job.uid),
                tables.dead_letters(self.directory / f"{each.job.uid}__dlq"),
                writer_schemas=each.reading.writers.known(0),
                route_schemas=each.route_schemas.known(),
            )
            for each in planned
        }
        offsets = list(range(start, end))
        records = batch(self.log[start:end], offset=offsets, topic=["t"] * len(offsets))
        outputs = land(iter([records]), LandingPlan(landings, ingested_at=1))
        results = parse_results((r["topic"], r["kind"], r["json"]) for out in outputs for r in out.to_pylist())
        for each in planned:
            self._commit(each, results[each.landing], end)

    def _commit(self, each: Topic, result: TopicResult, end: int) -> None:
        assert result.error is None
        each.reading.writers.needed |= result.schemas_needed
        each.route_schemas.need(result.route_schemas_needed)
        if not result.needs_schemas:
            files = [json.loads(text) for text in (*result.data, *result.dead)]
            self.landed[each.job.uid] += [row["_kafka"]["offset"] for row in tables.read(files)]
            each.reading.position = {0: end}


@pytest.fixture
def estate(tmp_path: Path) -> Estate:
    return Estate(tmp_path)


def test_the_other_tables_continue_and_the_held_one_catches_up_from_its_own_offsets(estate: Estate) -> None:
    estate.log = [value(number, n) for n, number in enumerate([ORDER, REFUND, VISIT] * 3)]
    estate.settle()
    assert estate.landed == {"Order": [0, 3, 6], "Refund": [1, 4, 7], "rest": [2, 5, 8]}
    assert [len(group) for group in estate.groups()] == [3], "the tables share the read of the log"

    refunds = estate.topics["Refund"]
    estate.log += [value(REFUND, 9), value(WRONG, "x"), value(ORDER, 11)]
    estate.settle()
    assert isinstance(refunds.attempts.error, ConflictError)
    assert refunds.attempts.error.reason is Reason.INCOMPATIBLE_SCHEMA
    estate.log += [value(REFUND, 12), value(ORDER, 13), value(VISIT, 14)]
    estate.settle()
    assert estate.landed["Order"] == [0, 3, 6, 11, 13]
    assert estate.landed["rest"] == [2, 5, 8, 14]
    assert refunds.reading.position == {0: 9}
    below = min(each.reading.position[0] for each in estate.topics.values())
    assert sorted(o for own in estate.landed.values() for o in own if o < below) == list(range(below)), (
        "as audits compare"
    )

    changed = refunds.job.record_schema.model_copy(update={"incompatible": "DeadLetter"})
    refunds.accept(refunds.job.model_copy(update={"record_schema": changed, "generation": 2}))
    estate.settle()
    assert estate.landed["Refund"] == [1, 4, 7, 9, 12, 10]
    assert sorted(offset for own in estate.landed.values() for offset in own) == list(range(len(estate.log)))
    assert [len(group) for group in estate.groups()] == [3]
