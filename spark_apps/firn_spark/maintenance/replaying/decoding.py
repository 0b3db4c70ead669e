"""Decodes letters with the topic's current schema, by the code of ingestion, into data files that no table refers to yet."""

import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import structlog

from firn.decoders.bad_records import Code
from firn.model.errors import CorruptDataError, InvalidSpecError, NotReadyError
from firn.model.jobs import Column, ColumnVersion, IngestJob, RecordSchema, SchemaFormat, WriterSchema
from firn.schemas import projections
from firn.schemas.columns import columns_of
from firn.schemas.other_clients import followed_schema, without
from firn.schemas.versions import Versions, read_versions
from firn.schemas.versions import named as named_versions
from firn.tables import evolution, rows, types
from firn_spark.credentials import read_salts
from firn_spark.jvm import texts
from firn_spark.kafka.tasks import land_records
from firn_spark.maintenance.replaying import letters
from firn_spark.schemas.field_numbers import NUMBERS, Belonging
from firn_spark.schemas.registries import Registries, schema_of_contract, with_descriptors
from firn_spark.tables.java_tables import Tables
from firn_spark.worker.formats.writer_schemas import Reference, Refusal
from firn_spark.worker.landing import RESULT_DDL, Kind, LandingPlan, NeededSchemas, TopicLanding

log = structlog.get_logger()

LETTERS_PER_TASK = 50_000
MOST_REQUESTS = 10
"""Times that tasks may report schemas which they need. Each time, they report up to `MOST_NEEDED` of values, of keys, and of routes."""


@dataclass(slots=True)
class Result:
    """The results of all tasks. ``files`` are descriptors of data files. ``codes`` counts the letters without a row by cause."""

    files: list[str] = field(default_factory=list)
    rows: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    needed: set[Reference] = field(default_factory=set)
    """Schemas of values that tasks do not have."""
    needed_of_keys: set[Reference] = field(default_factory=set)
    """Schemas of keys that tasks do not have."""
    needed_of_routes: set[Reference] = field(default_factory=set)
    """Schemas that decide about routes, and that tasks do not have."""
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
                needed: NeededSchemas = json.loads(text)
                readers = {"values": self.needed, "keys": self.needed_of_keys, "routes": self.needed_of_routes}
                readers[needed["reader"]].update(needed["ids"])
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
        self._topic, self._table = job.topic, job.table
        # The table may have other names than the contract, because the operator renames columns before it writes the contract.
        known = self._known = tables.followed(table, job)
        self._present, self._versions = tables.columns(table), read_versions(texts(table.properties()))
        self._schema = self._widened(followed_schema(job.record_schema, known))
        self._job = job
        kept = "" if job.table.shared else texts(table.properties()).get(NUMBERS, "")
        self._belonging = Belonging.of_table(self._schema, known.fields, kept, self._versions, fixed=True)
        if (problem := self._misfit(self._schema)) is not None:
            name, wanted, present = problem
            raise NotReadyError(
                f"table {table.name()}: column {name} is {present or 'missing'}, and the schema of the topic wants {wanted}; the replay"
                " waits until the table has changed"
            )
        self._writers: dict[Reference, WriterSchema | Refusal | int] = {}
        self._key_writers: dict[Reference, WriterSchema | Refusal | int] = {}
        self._route_schemas: dict[Reference, WriterSchema | Refusal | int] = {}
        self._learn(schema_of_contract(self._schema).items())
        if self._schema.key is not None:
            self._belonging_of_keys = Belonging.of_table(self._of_keys)
            self._learn(schema_of_contract(self._schema.key.record_schema).items(), of_keys=True)

    def run(
        self,
        frame: Any,
        count: int,
        table: Any,
        registries: Registries,
        salts: Mapping[str, str] = MappingProxyType({}),
    ) -> Result:
        """Decode ``count`` letters. ``salts`` are the files of salts by name. Raises CorruptDataError, and the errors of the schema registry."""
        spec = self._tables.spec(table)
        records = letters.as_records(frame, self._topic)
        parts = max(1, min(self._tasks, -(-count // LETTERS_PER_TASK)))
        for _ in range(MOST_REQUESTS):
            # A letter that still fails makes no row, and stays where it is.
            job = self._job.model_copy(update={"record_schema": self._schema})
            landing = TopicLanding(
                job,
                spec,
                writer_schemas=dict(self._writers),
                key_schemas=dict(self._key_writers),
                route_schemas=dict(self._route_schemas),
                rows_only=True,
                salts=read_salts(salts, self._schema.salts),
            )
            plan = LandingPlan({self._topic: landing}, ingested_at=0)
            work = functools.partial(land_records, plan=plan)
            result = Result()
            for _topic, kind, text in records.coalesce(parts).mapInArrow(work, RESULT_DDL).collect():
                result.add(kind, text)
            if not (result.needed or result.needed_of_keys or result.needed_of_routes or result.error):
                return result
            self.discard(table, result)
            if result.error:
                raise CorruptDataError(
                    f"table {table.name()}: the dead letters could not be decoded: {result.error}; if the message stays, keep the log of"
                    " the run and report a bug"
                )
            self._learn((number, registries.find(self._schema, number)) for number in result.needed)
            self._learn(
                ((number, registries.find(self._of_keys, number)) for number in result.needed_of_keys), of_keys=True
            )
            self._learn_routes(registries, result.needed_of_routes)
        raise InvalidSpecError(
            f"table {table.name()}: the dead letters name more ids of schemas than one replay requests, so most of them are not ids;"
            " select other dead letters with where, for example all codes but UnknownSchema"
        )

    def _learn_routes(self, registries: Registries, references: Iterable[Reference]) -> None:
        for reference in references:
            assert self._job.route is not None
            self._route_schemas[reference] = registries.find(self._job.route.values, reference)

    def discard(self, table: Any, result: Result) -> None:
        """Delete the files of a result that is not committed."""
        for text in result.files:
            table.io().deleteFile(json.loads(text)["file-path"])
        result.files.clear()

    @property
    def _of_keys(self) -> RecordSchema:
        assert self._schema.key is not None
        return self._schema.key.record_schema

    def _misfit(self, schema: RecordSchema) -> tuple[str, str, str | None] | None:
        """Return a column that the table lacks or cannot hold: its name, its type, and the table's type. None if there is none."""
        for column in rows.columns_of_table(schema, self._table):
            present = self._present.get(column.name)
            if present is None or not evolution.can_become(types.parse(column.type), types.of_table(present)):
                return column.name, column.type, present
        return None

    def _widened(self, schema: RecordSchema) -> RecordSchema:
        """Return the schema of a registry with columns as wide as those of the table."""
        if schema.key is not None and schema.key.decoding is not None:
            present = rows.fields_of_key(schema.key, self._present, rows.schema_columns(schema))
            of_key = _wider(schema.key.fields, present, schema.key.decoding.format)
            schema = schema.model_copy(update={"key": schema.key.model_copy(update={"fields": of_key})})
        if schema.subject is None:
            return schema
        schema = projections.resolved(schema)
        own = schema.fields if schema.projection is None else rows.other_columns(schema)
        known = {column.name: self._present[column.name] for column in own if column.name in self._present}
        fields = _wider(schema.fields, known, schema.format)
        whole = projections.resolved(schema.model_copy(update={"fields": fields}))
        if whole.projection is None:
            return whole
        computed = tuple(
            column.model_copy(update={"type": _wider_type(column.type, self._present.get(column.name))})
            for column in whole.projection.columns
        )
        return whole.model_copy(update={"projection": whole.projection.model_copy(update={"columns": computed})})

    def _learn(self, found: Iterable[tuple[Reference, WriterSchema | Refusal | int]], *, of_keys: bool = False) -> None:
        """Add schemas. Their values are bad records if they cannot be read, or if the table cannot hold their columns."""
        known = self._key_writers if of_keys else self._writers
        for reference, writer in found:
            known[reference] = writer
            if isinstance(writer, WriterSchema) and isinstance(reference, int):
                try:
                    compiled = with_descriptors(self._schema.format if not of_keys else self._of_keys.format, writer)
                    self._schema, known[reference] = self._with_writer(reference, compiled, of_keys=of_keys), compiled
                except InvalidSpecError as error:
                    known[reference] = Refusal(Code.INCOMPATIBLE_SCHEMA, str(error))

    def _other_columns(
        self, number: int, found: Sequence[Column]
    ) -> tuple[tuple[Column, ...], tuple[ColumnVersion, ...]]:
        """Return the columns of a writer, in which fields of other types have columns of their own, and these columns."""
        fields = {field.name: field.type for field in self._schema.fields}
        taken = {name.lower() for name in (*self._present, *fields)}
        versions = Versions.of_table(self._known.fields, self._versions, self._schema.renames)
        named = self._schema.renames
        chosen = versions.of_schema(number, found, {**self._present, **fields}, taken, self._schema.format, named)
        return named_versions(found, chosen, named), chosen

    def _with_writer(self, number: int, writer: WriterSchema, *, of_keys: bool) -> RecordSchema:
        """Return the schema with the columns of a writer. Raises InvalidSpecError if the table cannot hold them."""
        place, own = f"schema {number}", self._of_keys if of_keys else self._schema
        fields = {field.name: field for field in own.fields}
        belonging = self._belonging_of_keys if of_keys else self._belonging
        of_writer, moves = belonging.moved(own.of_writer(number, writer), place)
        found, made = columns_of(of_writer, place, of_key=of_keys), self._schema.versions
        if self._schema.incompatible == "NewColumn" and not of_keys:
            found, chosen = self._other_columns(number, found)
            made += chosen
        for column in found:
            known = fields.get(column.name)
            both = evolution.holding(types.parse((known or column).type), types.parse(column.type), own.format)
            if both is None:
                raise InvalidSpecError(
                    f"{place}: field {column.name} has the type {column.type}, which column {column.name} cannot hold"
                )
            fields[column.name] = (known or column).model_copy(update={"type": str(both)})
        update: dict[str, object] = {"fields": tuple(fields.values())}
        moved = (*own.writer_renames, *moves)
        if of_keys and self._schema.key is not None and self._schema.key.decoding is not None:
            update["decoding"] = self._schema.key.decoding.model_copy(update={"writer_renames": moved})
            update = {"key": self._schema.key.model_copy(update=update)}
        else:
            kept = without(tuple(fields.values()), self._known.fields, self._known.dropped)
            update = {"fields": kept, "versions": made, "writer_renames": moved}
        schema = self._widened(self._schema.model_copy(update=update))
        if (problem := self._misfit(schema)) is not None:
            name, wanted, present = problem
            raise InvalidSpecError(
                f"{place}: column {name} has the type {wanted}, and the table has {present or 'no such column'}"
            )
        belonging.learn(of_writer)
        return schema


def _wider(fields: Sequence[Column], present: Mapping[str, str], form: SchemaFormat) -> tuple[Column, ...]:
    known = [Column(name=field.name, type=present[field.name]) for field in fields if field.name in present]
    return evolution.merged_columns(known, fields, form)


def _wider_type(kind: str, present: str | None) -> str:
    """Return the type of a column that holds values of both types; the first one if there is none."""
    if present is None:
        return kind
    both = evolution.merged(types.parse(kind), types.of_table(present))
    return kind if both is None else str(both)
