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
from firn.decoders.bad_records import Code
from firn.model.errors import CorruptDataError, InvalidSpecError, NotReadyError
from firn.model.jobs import Column, IngestJob, RecordSchema, RegistryConnection, SchemaFormat, WriterSchema
from firn.schema_registry import MOST_ID, TYPES, SchemaRegistry, of_others
from firn.schemas import projections
from firn.schemas.columns import columns_of
from firn.schemas.other_clients import kept_schema, without
from firn.tables import evolution, renames, rows, types
from firn_spark.credentials import read_secret
from firn_spark.kafka.tasks import land_records
from firn_spark.maintenance.replaying import letters
from firn_spark.tables.java_tables import Tables
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
        self._topic, self._shape = job.topic, job.table.metadata_columns
        # The table may have other names than the contract, because the operator renames columns before it writes the contract.
        known = self._known = tables.followed(table, job)
        self._present = tables.columns(table)
        following = rows.column_renames(job.record_schema, known.following)
        self._schema = self._widened(kept_schema(renames.named(job.record_schema, following), known))
        self._job = job
        if (problem := self._misfit(self._schema)) is not None:
            name, wanted, present = problem
            raise NotReadyError(
                f"table {table.name()}: column {name} is {present or 'missing'}, and the schema of the topic wants {wanted}; the replay"
                " waits until the table has changed"
            )
        self._writers: dict[int, WriterSchema | Refusal] = {}
        schema = self._schema
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
            job = self._job.model_copy(update={"record_schema": self._schema})
            landing = TopicLanding(job, spec, writer_schemas=dict(self._writers), rows_only=True)
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

    def _ask(self, numbers: set[int], registries: Mapping[str, RegistryConnection]) -> None:
        subject = self._schema.subject
        if subject is None or subject.registry not in registries:
            raise InvalidSpecError(
                "the run does not have the schema registry of the topic; add it to registries in the operator's configuration"
            )
        client = SchemaRegistry(subject.registry, registries[subject.registry], read_secret)
        for number in sorted(numbers):
            self._learn(number, requested(client, self._schema, number))

    def _misfit(self, schema: RecordSchema) -> tuple[str, str, str | None] | None:
        """Return a column that the table lacks or cannot hold: its name, its type, and the table's type. None if there is none."""
        for column in rows.table_columns(schema, self._shape):
            present = self._present.get(column.name)
            if present is None or not evolution.can_become(types.parse(column.type), types.parse(present)):
                return column.name, column.type, present
        return None

    def _widened(self, schema: RecordSchema) -> RecordSchema:
        """Return the schema of a registry with columns as wide as those of the table."""
        if schema.subject is None:
            return schema
        schema = projections.resolved(schema)
        own = schema.fields if schema.projection is None else rows.other_columns(schema)
        known = {column.name: self._present[column.name] for column in own if column.name in self._present}
        fields = tuple(_wider(field, known.get(field.name)) for field in schema.fields)
        whole = projections.resolved(schema.model_copy(update={"fields": fields}))
        if whole.projection is None:
            return whole
        computed = tuple(
            column.model_copy(update={"type": _wider_type(column.type, self._present.get(column.name))})
            for column in whole.projection.columns
        )
        return whole.model_copy(update={"projection": whole.projection.model_copy(update={"columns": computed})})

    def _learn(self, number: int, writer: WriterSchema | Refusal) -> None:
        """Add a schema. Its values are bad records if it cannot be read, or if the table cannot hold their columns."""
        if isinstance(writer, WriterSchema):
            try:
                writer = _compiled(self._schema.format, writer)
                self._schema, self._writers[number] = self._with_writer(number, writer), writer
                return
            except InvalidSpecError as error:
                writer = Refusal(Code.INCOMPATIBLE_SCHEMA, str(error))
        self._writers[number] = writer

    def _with_writer(self, number: int, writer: WriterSchema) -> RecordSchema:
        """Return the schema with the columns of a writer. Raises InvalidSpecError if the table cannot hold them."""
        place = f"schema {number}"
        fields = {field.name: field for field in self._schema.fields}
        for column in columns_of(self._schema.of_writer(number, writer), place):
            known = fields.get(column.name)
            both = evolution.merged(types.parse((known or column).type), types.parse(column.type))
            if both is None:
                raise InvalidSpecError(
                    f"{place}: field {column.name} has the type {column.type}, which column {column.name} cannot hold"
                )
            fields[column.name] = (known or column).model_copy(update={"type": str(both)})
        kept = without(tuple(fields.values()), self._known.fields, self._known.dropped)
        schema = self._widened(self._schema.model_copy(update={"fields": kept}))
        if (problem := self._misfit(schema)) is not None:
            name, wanted, present = problem
            raise InvalidSpecError(
                f"{place}: column {name} has the type {wanted}, and the table has {present or 'no such column'}"
            )
        return schema


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


def _wider(field: Column, present: str | None) -> Column:
    return field.model_copy(update={"type": _wider_type(field.type, present)})


def _wider_type(kind: str, present: str | None) -> str:
    """Return the type of a column that holds values of both types; the first one if there is none."""
    if present is None:
        return kind
    both = evolution.merged(types.parse(kind), types.parse(present))
    return kind if both is None else str(both)
