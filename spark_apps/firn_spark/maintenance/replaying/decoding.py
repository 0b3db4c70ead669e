"""Decodes letters with the topic's current schema, by the code of ingestion, into data files that no table refers to yet."""

import base64
import functools
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from firn import protoc
from firn.model.errors import CorruptDataError, InvalidSpecError, NotReadyError
from firn.model.jobs import Column, IngestJob, RecordSchema, RegistryConnection, SchemaFormat, WriterSchema
from firn.schema_registry import MOST_ID, TYPES, SchemaRegistry, of_others
from firn.schemas.columns import columns_of
from firn.tables import evolution, renames, rows, types
from firn_spark.credentials import read_secret
from firn_spark.kafka.tasks import land_records
from firn_spark.maintenance.replaying import letters
from firn_spark.tables.java_tables import Tables
from firn_spark.worker.bad_records import Code
from firn_spark.worker.formats.writer_schemas import Refusal
from firn_spark.worker.landing import RESULT_DDL, Kind, LandingPlan, TopicLanding

log = structlog.get_logger()

LETTERS_PER_TASK = 50_000
MOST_REQUESTS = 10
"""Times that tasks may report schemas which they need. Each time, they report up to 200."""


@dataclass(slots=True)
class Result:
    """The results of all tasks. ``files`` are descriptors of data files. ``codes`` counts the letters without a row by cause."""

    files: list[str] = field(default_factory=list)
    rows: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    needed: set[int] = field(default_factory=set)
    """Ids of schemas that tasks do not have."""
    error: str = ""

    def add(self, kind: str, text: str) -> None:
        """Add one result row of a task."""
        match kind:
            case Kind.DATA:
                self.files.append(text)
            case Kind.STATS:
                stats = json.loads(text)
                self.rows += stats["rows"]
                self.codes.update(stats["codes"])
            case Kind.SCHEMAS_NEEDED:
                self.needed.update(json.loads(text)["ids"])
            case Kind.ERROR:
                problem = json.loads(text)
                self.error = f"{problem['type']}: {problem['message']}"


class Decoding:
    """Decodes the letters of one topic for one table."""

    def __init__(self, spark: Any, tables: Tables, table: Any, job: IngestJob, tasks: int) -> None:
        """Decode with at most ``tasks`` tasks. Raises NotReadyError if the table lacks columns of the schema."""
        self._spark = spark
        self._tables = tables
        self._tasks = tasks
        self._topic = job.topic
        # The table may have other names than the contract, because the operator renames columns before it writes the contract.
        following = tables.following(table)
        schema = renames.named(job.record_schema, following) if following else job.record_schema
        self._job = job.model_copy(update={"record_schema": schema})
        self._present = tables.columns(table)
        self._schemas: dict[int, WriterSchema | Refusal] = {}
        self._fit(str(table.name()))
        if schema.schema_id is not None:
            parts = {name: getattr(schema, name) for name in ("text", "references", "names", "descriptors")}
            self._learn(schema.schema_id, WriterSchema(**parts))

    def run(self, frame: Any, count: int, table: Any, registries: Mapping[str, RegistryConnection]) -> Result:
        """Decode ``count`` letters. Raises CorruptDataError, and the errors of the schema registry."""
        spec = self._tables.spec(table)
        records = letters.as_records(frame, self._topic)
        parts = max(1, min(self._tasks, -(-count // LETTERS_PER_TASK)))
        for _ in range(MOST_REQUESTS):
            # A letter that still fails makes no row, and stays where it is.
            landing = TopicLanding(self._job, spec, writer_schemas=dict(self._schemas), rows_only=True)
            plan = LandingPlan({self._topic: landing}, ingested_at=0)
            work = functools.partial(land_records, plan=plan)
            result = Result()
            for _topic, kind, text in records.coalesce(parts).mapInArrow(work, RESULT_DDL).collect():
                result.add(kind, text)
            if not result.needed and not result.error:
                return result
            self.discard(table, result)
            if result.error:
                raise CorruptDataError(
                    f"table {table.name()}: the dead letters could not be decoded: {result.error}; if the message stays, keep the log of"
                    " the run and report a bug"
                )
            self._ask(result.needed, registries)
        raise InvalidSpecError(
            f"table {table.name()}: the dead letters name more ids of schemas than one replay requests, so most of them are not ids;"
            " select other dead letters with where, for example all codes but UnknownSchema"
        )

    def discard(self, table: Any, result: Result) -> None:
        """Delete the files of a result that is not committed."""
        for text in result.files:
            table.io().deleteFile(json.loads(text)["file-path"])
        result.files.clear()

    def _fit(self, name: str) -> None:
        """Check that the table has the columns of the contract, which the operator or the driver gives it."""
        schema = self._job.record_schema
        for column in rows.table_columns(schema, self._job.table.metadata_columns):
            present = self._present.get(column.name)
            if present is None or not evolution.can_become(types.parse(column.type), types.parse(present)):
                raise NotReadyError(
                    f"table {name}: column {column.name} is {present or 'missing'}, and the schema of the topic wants {column.type}; the"
                    " replay waits until the table has changed"
                )
        self._set_fields(self._widened(schema))

    def _widened(self, schema: RecordSchema) -> tuple[Column, ...]:
        known = [
            Column(name=field.name, type=self._present[field.name])
            for field in schema.fields
            if field.name in self._present
        ]
        return evolution.merged_columns(known, schema.fields) if schema.subject is not None else schema.fields

    def _set_fields(self, fields: tuple[Column, ...]) -> None:
        schema = self._job.record_schema.model_copy(update={"fields": fields})
        self._job = self._job.model_copy(update={"record_schema": schema})

    def _ask(self, numbers: set[int], registries: Mapping[str, RegistryConnection]) -> None:
        subject = self._job.record_schema.subject
        if subject is None or subject.registry not in registries:
            raise InvalidSpecError(
                "the run does not have the schema registry of the topic; add it to registries in the operator's configuration"
            )
        client = SchemaRegistry(subject.registry, registries[subject.registry], read_secret)
        for number in sorted(numbers):
            found = requested(client, self._job.record_schema, number)
            if isinstance(found, Refusal):
                self._schemas[number] = found
            else:
                self._learn(number, found)

    def _learn(self, number: int, writer: WriterSchema) -> None:
        """Add a schema. Its values are bad records if it cannot be read, or if the table lacks a column or has a narrower one."""
        try:
            writer = _compiled(self._job.record_schema.format, writer)
            columns = columns_of(self._job.record_schema.of_writer(number, writer), f"schema {number}")
        except InvalidSpecError as error:
            self._schemas[number] = Refusal(Code.INCOMPATIBLE_SCHEMA, str(error))
            return
        fields = {field.name: field for field in self._job.record_schema.fields}
        for column in columns:
            present = self._present.get(column.name)
            if present is None or not evolution.can_become(types.parse(column.type), types.parse(present)):
                problem = f"schema {number}: field {column.name} has the type {column.type}, and the table has {present or 'no such column'}"
                self._schemas[number] = Refusal(Code.INCOMPATIBLE_SCHEMA, problem)
                return
            fields.setdefault(column.name, column.model_copy(update={"type": present}))
        self._schemas[number] = writer
        self._set_fields(tuple(fields.values()))


def requested(client: SchemaRegistry, wanted: RecordSchema, number: int) -> WriterSchema | Refusal:
    """Return the schema with an id, or why letters with this id stay, by the rules of ingestion. Raises the errors of the client.

    ``wanted`` is the topic's schema, which has a subject.
    """
    subject = wanted.subject
    assert subject is not None
    # Registries answer a request for a larger id as if they had failed.
    answer = client.by_id(number) if number <= MOST_ID else None
    problem: str | None = None
    if answer is None:
        problem = f"schema {number} of schema registry {subject.registry} does not exist"
    elif answer.kind != TYPES[wanted.format]:
        problem = f"schema {number} of schema registry {subject.registry} has the type {answer.kind}, not {TYPES[wanted.format]}"
    else:
        problem = of_others(subject.registry, number, client.subjects(number, deleted=True), subject.name)
    if problem is not None or answer is None:
        return Refusal(Code.UNKNOWN_SCHEMA, problem or "")
    return answer.schema


def _compiled(kind: SchemaFormat, writer: WriterSchema) -> WriterSchema:
    """Return a Protobuf schema with its descriptors. Raises InvalidSpecError if protoc rejects the text."""
    if kind is not SchemaFormat.PROTOBUF or writer.descriptors:
        return writer
    content = protoc.descriptors(writer.text, tuple(zip(writer.names, writer.references, strict=True)))
    return writer.model_copy(update={"descriptors": base64.b64encode(content).decode()})
