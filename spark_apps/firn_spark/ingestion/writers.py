"""The schemas of writers: asked of registries, kept on disk, and the columns that a table needs for them.

A schema with an id never changes. So the driver asks for each id once, and starts again while its registry is away.
"""

import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog

from firn.model.conditions import Reason
from firn.model.errors import ConflictError, FirnError, InvalidSpecError
from firn.model.jobs import Column, GroupSettings, RecordSchema, RegistryConnection, WriterSchema
from firn.schema_registry import AVRO, Registered, SchemaRegistry
from firn.schemas import avro
from firn.tables import evolution, types
from firn_spark.credentials import read_secret
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.worker.bad_records import Code
from firn_spark.worker.formats.writers import Refusal

log = structlog.get_logger()

MOST_KEPT = 1000
"""Schemas in memory, and files of a registry on disk."""
MOST_OF_TOPIC = 64
"""Schemas that a topic gives its tasks. A task asks again for one that is no longer among them."""
QUIET_SECONDS = 5.0
"""Seconds after a failure in which the driver sends the registry no request."""


class Registries:
    """The schema registries of a driver. Threads share it."""

    def __init__(self, connections: Mapping[str, RegistryConnection], directory: str | None) -> None:
        """Keep schemas in ``directory``, in memory only if that is None."""
        self._connections = connections
        self._directory = Path(directory) if directory is not None else None
        self._clients = {name: SchemaRegistry(name, each, read_secret) for name, each in connections.items()}
        self._known: OrderedDict[tuple[str, int], WriterSchema | Refusal] = OrderedDict()
        self._failures: dict[str, tuple[float, FirnError]] = {}
        self._lock = threading.Lock()

    def schema(self, registry: str, number: int) -> WriterSchema | Refusal:
        """Return the schema with an id, or why values with this id are bad records.

        Raises InvalidSpecError if the settings lack the registry, AccessDeniedError, and UnavailableError.
        """
        key = registry, number
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        if registry not in self._clients:
            raise InvalidSpecError(
                f"schema registry {registry} is not in the settings of the driver; the operator adds it with the next change"
                " of the settings"
            )
        file = self._file(registry, number)
        found = _read(file) or self._ask(registry, number)
        if isinstance(found, WriterSchema):
            _write(file, found)
            with self._lock:
                self._known[key] = found
                while len(self._known) > MOST_KEPT:
                    self._known.popitem(last=False)
        return found

    def _ask(self, registry: str, number: int) -> WriterSchema | Refusal:
        with self._lock:
            failed_at, failure = self._failures.get(registry, (0.0, None))
        if failure is not None and time.monotonic() - failed_at < QUIET_SECONDS:
            raise failure.with_traceback(None)
        try:
            answer = self._clients[registry].by_id(number)
        except FirnError as error:
            with self._lock:
                self._failures[registry] = time.monotonic(), error
            raise
        return _usable(registry, number, answer)

    def _file(self, registry: str, number: int) -> Path | None:
        if self._directory is None:
            return None
        # A name may refer to another registry after a change of the settings.
        url = hashlib.sha256(self._connections[registry].url.encode()).hexdigest()[:16]
        return self._directory / url / f"{number}.json"


def _usable(registry: str, number: int, answer: Registered | None) -> WriterSchema | Refusal:
    if answer is None:
        problem = f"schema registry {registry} has no schema with the id {number}, with which the value begins"
        return Refusal(Code.UNKNOWN_SCHEMA, problem)
    if answer.kind != AVRO:
        problem = f"schema {number} of registry {registry} has the type {answer.kind}, and the topic has format: Avro"
        return Refusal(Code.UNKNOWN_SCHEMA, problem)
    return answer.schema


def _read(file: Path | None) -> WriterSchema | None:
    if file is None:
        return None
    try:
        return WriterSchema.model_validate_json(file.read_text())
    except (OSError, ValueError):
        return None


def _write(file: Path | None, schema: WriterSchema) -> None:
    """Keep a schema on disk if there is room. It can be asked for again, so a failure is no error."""
    if file is None or file.exists():
        return
    unfinished = file.with_name(f".{file.name}.{threading.get_ident()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if len(os.listdir(file.parent)) >= MOST_KEPT:
            return
        unfinished.write_text(schema.model_dump_json())
        unfinished.replace(file)
    except OSError as error:
        log.warning("a schema cannot be kept on disk", file=str(file), error=str(error))


def learn(topic: Topic, registries: Registries) -> None:
    """Ask for the schemas that records of the topic name. Raises as `Registries.schema`."""
    subject = topic.job.record_schema.subject
    if subject is None:
        return
    reading = topic.reading
    for number in sorted(reading.unknown_schemas):
        reading.writers.pop(number, None)
        found = reading.writers[number] = registries.schema(subject.registry, number)
        reading.unknown_schemas.discard(number)
        if isinstance(found, Refusal):
            reading.refused_at = time.monotonic()
    surplus = len(reading.writers) - MOST_OF_TOPIC
    for number in list(reading.writers)[: max(0, surplus)]:
        del reading.writers[number]


def adapted(topic: Topic, present: Mapping[str, str]) -> tuple[RecordSchema, dict[int, Refusal]]:
    """Return the topic's schema with columns for the values of all known writers, and the writers that are left out.

    ``present`` are the columns of the table with their types. A writer is left out if the table cannot hold its values, and the
    contract makes dead letters of them. Otherwise this raises ConflictError (IncompatibleSchema).
    """
    schema, subject = topic.job.record_schema, topic.job.record_schema.subject
    assert subject is not None
    fields = _widened(schema.fields, present)
    left_out: dict[int, Refusal] = {}
    for number, writer in topic.reading.writers.items():
        if not isinstance(writer, WriterSchema):
            continue
        try:
            fields = _with_writer(fields, present, f"schema {number} of registry {subject.registry}", writer)
        except InvalidSpecError as error:
            if schema.incompatible == "DeadLetter":
                left_out[number] = Refusal(Code.INCOMPATIBLE_SCHEMA, str(error))
                continue
            raise ConflictError(
                f"{error}; the records of the topic wait. Create this IcebergTopic again with another table.name, or set"
                " spec.schema.evolution.incompatible: DeadLetter",
                reason=Reason.INCOMPATIBLE_SCHEMA,
            ) from error
    return schema.model_copy(update={"fields": fields}), left_out


def _widened(fields: Sequence[Column], present: Mapping[str, str]) -> tuple[Column, ...]:
    known = [Column(name=field.name, type=present[field.name]) for field in fields if field.name in present]
    return evolution.merged_columns(known, fields)


def _with_writer(
    fields: Sequence[Column], present: Mapping[str, str], place: str, writer: WriterSchema
) -> tuple[Column, ...]:
    """Return the columns with those for a writer. Raises InvalidSpecError that names ``place`` and the field."""
    columns = avro.columns_of(writer, place)
    merged = {field.name: field for field in fields}
    for column in columns:
        known = merged.get(column.name)
        before = known.type if known is not None else present.get(column.name)
        if before is None:
            merged[column.name] = column
            continue
        both = evolution.merged(types.parse(before), types.parse(column.type))
        if both is None:
            raise InvalidSpecError(
                f"{place}: field {column.name} has the type {column.type}, and its column has {before}"
            )
        merged[column.name] = (known or column).model_copy(update={"type": str(both)})
    return tuple(merged.values())


NO_REGISTRIES = Registries({}, None)


def registries(settings: GroupSettings) -> Registries:
    """Return the schema registries that the settings name."""
    return Registries(settings.registries, settings.schema_directory)


def first_schema(schema: RecordSchema) -> dict[int, WriterSchema | Refusal]:
    """Return the schema that a contract has, by its id."""
    if schema.schema_id is None:
        return {}
    return {schema.schema_id: WriterSchema(text=schema.text, references=schema.references)}
