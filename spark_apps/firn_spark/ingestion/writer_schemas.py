"""Request the schemas of records from registries, keep them on disk, and derive the columns of the table.

A schema id never gets another schema. So a driver can restart without the registry.
"""

import base64
import dataclasses
import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import structlog

from firn import protoc
from firn.decoders.bad_records import Code
from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import ConflictError, FirnError, InvalidSpecError, NotReadyError
from firn.model.jobs import (
    Column,
    Contract,
    GroupSettings,
    Projection,
    RecordSchema,
    RegistryConnection,
    Rename,
    SchemaFormat,
    WriterSchema,
)
from firn.model.progress import Proposal
from firn.schema_registry import MOST_ID, TYPES, RegistryAwayError, SchemaRegistry, of_others
from firn.schemas import changes, columns, projections, protobuf
from firn.schemas.changes import Judgement
from firn.schemas.other_clients import Dropped, Followed, kept_schema, without
from firn.tables import evolution, rows, types
from firn.tables.renames import Fields, FormerNames, Renaming, planned, renamed_columns, reused
from firn_spark.credentials import read_secret
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.worker.formats.writer_schemas import Refusal

log = structlog.get_logger()
T = TypeVar("T")

MOST_MISSING = 10_000
"""Ids that a registry does not have, in memory."""
MOST_KEPT = 1000
"""Schemas in memory, and files of a registry on disk."""
MOST_OF_TOPIC = 64
"""Schemas of a topic that the driver keeps from one preparation to the next. If a task needs another one, the driver adds it
and repeats the round."""
MISSING_SECONDS = 5.0
"""Seconds between two answers after which a schema counts as missing. A registry may learn of a new schema with a delay."""
QUIET_SECONDS = 5.0
"""Seconds after a failure in which the driver sends no request to the registry."""


class _Kept(Contract):
    """A schema of a registry with its type, and subjects that have it."""

    kind: str
    writer: WriterSchema
    subjects: frozenset[str] = frozenset()


class Registries:
    """The schema registries of a driver. Threads share it."""

    def __init__(self, connections: Mapping[str, RegistryConnection], directory: str | None) -> None:
        """Keep schemas in ``directory``, in memory only if that is None."""
        self._connections = connections
        self._directory = Path(directory) if directory is not None else None
        self._clients = {name: SchemaRegistry(name, each, read_secret) for name, each in connections.items()}
        self._known: OrderedDict[tuple[str, int], _Kept] = OrderedDict()
        self._missing: OrderedDict[tuple[str, int, str], float] = OrderedDict()
        """When a registry first answered that it does not have a schema, or not under a subject (monotonic seconds)."""
        self._failures: dict[str, tuple[float, FirnError]] = {}
        self._lock = threading.Lock()
        self._compiling = threading.Lock()

    def schema(self, wanted: RecordSchema, number: int) -> WriterSchema | Refusal:
        """Return the schema with an id, or why values of the topic with this id are bad records. ``wanted`` is the topic's schema.

        Raises InvalidSpecError if the settings lack the registry, NotReadyError if the registry does not have the schema yet,
        AccessDeniedError, and UnavailableError.
        """
        assert wanted.subject is not None
        registry, subject = wanted.subject.registry, wanted.subject.name
        if number > MOST_ID:
            return _refusal(registry, number)
        found = self._kept(registry, number)
        if isinstance(found, _Kept) and found.kind != TYPES[wanted.format]:
            problem = f"schema {number} of schema registry {registry} has the type {found.kind}, and the topic has format: {wanted.format}"
            return Refusal(Code.UNKNOWN_SCHEMA, problem)
        if isinstance(found, _Kept) and subject not in found.subjects:
            subjects = self._request(registry, lambda client: client.subjects(number, deleted=True))
            foreign = of_others(registry, number, subjects, subject)
            if foreign is not None:
                self._check_again(registry, number, subject)
                return Refusal(Code.UNKNOWN_SCHEMA, foreign)
            found = found.model_copy(update={"subjects": found.subjects | {subject}})
            self._keep(registry, number, found)
        return found.writer if isinstance(found, _Kept) else found

    def _kept(self, registry: str, number: int) -> _Kept | Refusal:
        key = registry, number
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        if registry not in self._clients:
            raise InvalidSpecError(
                f"schema registry {registry} is not in the settings of the driver; add it to registries in the operator's"
                " configuration. If it is there, the driver restarts with it"
            )
        found = _read(self._file(registry, number)) or self._ask(registry, number)
        if isinstance(found, _Kept):
            self._keep(registry, number, found)
        return found

    def _keep(self, registry: str, number: int, schema: _Kept) -> None:
        _write(self._file(registry, number), schema)
        with self._lock:
            self._known[registry, number] = schema
            while len(self._known) > MOST_KEPT:
                self._known.popitem(last=False)

    def _request(self, registry: str, request: Callable[[SchemaRegistry], T]) -> T:
        """Return the answer of a registry, unless it failed a moment ago. Raises FirnError."""
        with self._lock:
            failed_at, failure = self._failures.get(registry, (0.0, None))
        if failure is not None and time.monotonic() - failed_at < QUIET_SECONDS:
            raise failure.with_traceback(None)
        try:
            return request(self._clients[registry])
        except RegistryAwayError as error:
            with self._lock:
                self._failures[registry] = time.monotonic(), error
            raise

    def _ask(self, registry: str, number: int) -> _Kept | Refusal:
        answer = self._request(registry, lambda client: client.by_id(number))
        if answer is None:
            self._check_again(registry, number)
            return _refusal(registry, number)
        writer = answer.schema
        if answer.kind == TYPES[SchemaFormat.PROTOBUF]:
            writer = self._compiled(writer)
        return _Kept(kind=answer.kind, writer=writer)

    def _compiled(self, writer: WriterSchema) -> WriterSchema:
        """Return a Protobuf schema with its descriptors; without them if protoc rejects the text. Raises NotReadyError."""
        try:
            with self._compiling:  # A small pod has memory for one process of protoc.
                content = _descriptors(writer)
        except InvalidSpecError:
            return writer
        return writer.model_copy(update={"descriptors": base64.b64encode(content).decode()})

    def _check_again(self, registry: str, number: int, subject: str = "") -> None:
        """Raise NotReadyError for a schema that is missing, or missing under a subject, unless it was missing some seconds ago."""
        now = time.monotonic()
        with self._lock:
            first = self._missing.setdefault((registry, number, subject), now)
            while len(self._missing) > MOST_MISSING:
                self._missing.popitem(last=False)
        if now - first < MISSING_SECONDS:
            place = f"schema {number} under subject {subject}" if subject else f"schema {number}"
            raise NotReadyError(
                f"schema registry {registry} does not have {place}, which a value names; the driver asks again, because the"
                " schema may be new"
            )

    def _file(self, registry: str, number: int) -> Path | None:
        if self._directory is None:
            return None
        # A name may refer to another registry after a change of the settings.
        url = hashlib.sha256(self._connections[registry].url.encode()).hexdigest()[:16]
        return self._directory / url / f"{number}.json"


def _refusal(registry: str, number: int) -> Refusal:
    problem = f"the value names schema {number}, which schema registry {registry} does not have"
    return Refusal(Code.UNKNOWN_SCHEMA, problem)


def _descriptors(writer: WriterSchema) -> bytes:
    return protoc.descriptors(writer.text, tuple(zip(writer.names, writer.references, strict=True)))


def _read(file: Path | None) -> _Kept | None:
    if file is None:
        return None
    try:
        return _Kept.model_validate_json(file.read_text())
    except (OSError, ValueError):
        return None


def _write(file: Path | None, schema: _Kept) -> None:
    """Keep a schema on disk if there is room. The driver can request it again, so it only logs a failure."""
    if file is None:
        return
    unfinished = file.with_name(f".{file.name}.{threading.get_ident()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() and len(os.listdir(file.parent)) >= MOST_KEPT:
            return
        unfinished.write_text(schema.model_dump_json())
        unfinished.replace(file)
    except OSError as error:
        log.warning("a schema cannot be kept on disk", file=str(file), error=str(error))


def learn(topic: Topic, registries: Registries) -> None:
    """Request the schemas whose ids tasks have reported. Raises as `Registries.schema`."""
    subject = topic.job.record_schema.subject
    if subject is None:
        return
    reading, pending = topic.reading, None
    if not reading.needed_schemas:
        # A round that waits for schemas may need more of them than that.
        for number in list(reading.schemas)[:-MOST_OF_TOPIC]:
            del reading.schemas[number]
    for number in sorted(reading.needed_schemas):
        reading.schemas.pop(number, None)
        reading.refused_at.pop(number, None)
        try:
            reading.schemas[number] = registries.schema(topic.job.record_schema, number)
        except NotReadyError as error:
            pending = error
            continue
        reading.needed_schemas.discard(number)
    if pending is not None:
        raise pending


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a table in Iceberg's JSON, their earlier names, and the identity of this version of them."""

    fields: Fields = ()
    former: FormerNames = dataclasses.field(default_factory=dict)
    uuid: str = ""
    schema_id: int = 0
    dropped: Dropped = dataclasses.field(default_factory=dict)


NO_TABLE = TableColumns()


def allowed(topic: Topic, present: Mapping[str, str], table: TableColumns) -> tuple[RecordSchema, dict[int, Refusal]]:
    """Return what `adapted` returns, as far as the policy of the topic allows the changes of the table.

    The topic reports changes that wait for an approval. Raises ConflictError (Proposed, IncompatibleSchema) for changes that the
    policy does not allow, unless the contract has ``incompatible: DeadLetter``, and as `adapted`.
    """
    schema, left_out = adapted(topic, present, table)
    topic.table.proposed = None
    judgement = _judgement(schema, table)
    if not judgement.blocked:
        return schema, left_out
    if judgement.proposed:
        texts = tuple(each.text for each in judgement.proposed)
        topic.table.proposed = Proposal(changes=texts, approve=judgement.approve)
    name = topic.job.table.identifier
    if schema.incompatible != "DeadLetter":
        raise _not_allowed(f"table {name}", judgement)
    numbers = {number for number, writer in topic.reading.schemas.items() if isinstance(writer, WriterSchema)}
    for number in numbers - left_out.keys():
        own = _judgement(adapted(topic, present, table, only={number})[0], table)
        if own.blocked:
            left_out[number] = Refusal(Code.INCOMPATIBLE_SCHEMA, str(_not_allowed(f"table {name}", own)))
    kept, _ = adapted(topic, present, table, only=numbers - left_out.keys())
    rest = _judgement(kept, table)
    if rest.blocked:  # The contract itself needs the change, for example because another client has dropped a column.
        raise _not_allowed(f"table {name}", rest)
    return kept, left_out


def _judgement(schema: RecordSchema, table: TableColumns) -> Judgement:
    if not table.fields:
        return Judgement()
    renaming = planned(table.fields, table.former, rows.column_renames(schema, schema.renames))
    return changes.judged(
        changes.of_table(renaming, rows.schema_columns(schema)), schema.evolution, table.uuid, table.schema_id
    )


def _not_allowed(table: str, judgement: Judgement) -> ConflictError:
    if judgement.refused:
        return ConflictError(
            f"{table}: schemas of records need a change: {changes.refusal(judgement.refused)}",
            reason=Reason.INCOMPATIBLE_SCHEMA,
        )
    texts = ", ".join(each.text for each in judgement.proposed)
    return ConflictError(
        f"{table}: schemas of records need changes that wait for an approval: {texts}; set the annotation {names.APPROVE} to"
        f" {judgement.approve}",
        reason=Reason.PROPOSED,
    )


def adapted(
    topic: Topic, present: Mapping[str, str], table: TableColumns = NO_TABLE, only: Collection[int] | None = None
) -> tuple[RecordSchema, dict[int, Refusal]]:
    """Return the topic's schema with the columns of all known schemas, and the schemas that the table cannot hold.

    ``present`` are the columns of the table with their types, in the notation of `firn.tables.types`. Schemas that are not in
    ``only`` are left out, if it is set. Raises ConflictError (IncompatibleSchema) for a schema that the
    table cannot hold, unless the contract has ``incompatible: DeadLetter``.
    """
    schema, subject = topic.job.record_schema, topic.job.record_schema.subject
    assert subject is not None
    schema = kept_schema(schema, Followed(table.former, table.dropped, fields=table.fields))
    known = {number: each for number, each in topic.reading.schemas.items() if only is None or number in only}
    renaming = _renaming(schema, known, table)
    named = _named(renaming)
    own = _of_fields(schema, present)
    if named:
        own = {each.name: each.type for each in renamed_columns(_as_columns(own), named)}
    fields = _widened(renamed_columns(schema.fields, named), own)
    named_schema = schema.model_copy(update={"renames": named})
    left_out: dict[int, Refusal] = {}
    for number, writer in known.items():
        if not isinstance(writer, WriterSchema):
            continue
        place = f"schema {number} of schema registry {subject.registry}"
        of_writer = named_schema.of_writer(number, writer)
        try:
            _check_text(of_writer, writer, place)
            if schema.format is SchemaFormat.PROTOBUF and protobuf.lacks_message(of_writer):
                left_out[number] = Refusal(Code.UNKNOWN_SCHEMA, f"{place} has no message {schema.message}")
                continue
            if schema.format is SchemaFormat.PROTOBUF and schema.descriptors:
                protobuf.check_names(protobuf.message_of(named_schema), protobuf.message_of(of_writer), place)
            found = columns.columns_of(of_writer, place)
            _check_former(renaming, found, place)
            more = _with_schema(fields, own, place, found)
            _check_projection(named_schema.model_copy(update={"fields": more}), place)
            fields = more
        except InvalidSpecError as error:
            if schema.incompatible == "DeadLetter":
                left_out[number] = Refusal(Code.INCOMPATIBLE_SCHEMA, str(error))
                continue
            raise ConflictError(
                f"{error}; all records of the topic wait. Set spec.schema.evolution.incompatible: DeadLetter, or create this"
                " IcebergTopic again with another topicName and table.name",
                reason=Reason.INCOMPATIBLE_SCHEMA,
            ) from error
    kept = without(fields, table.fields, table.dropped)
    return _projected(schema.model_copy(update={"fields": kept, "renames": named}), present), left_out


def _as_columns(present: Mapping[str, str]) -> list[Column]:
    return [Column(name=name, type=kind) for name, kind in present.items()]


_Known = Mapping[int, WriterSchema | Refusal]


def _renaming(schema: RecordSchema, known: _Known, table: TableColumns) -> Renaming:
    """Return the changes of names that schemas, the contract and the table name."""
    fields = _of_renames(schema.projection, table.fields)
    return planned(fields, table.former, schema.renames, tuple(_implied(schema, known)))


def _named(change: Renaming) -> tuple[Rename, ...]:
    """Return the renames from all earlier names, without those that the table cannot follow."""
    return tuple({(each.old, each.new): each for each in (*change.followed, *change.following)}.values())


def _implied(schema: RecordSchema, known: _Known) -> Iterator[Rename]:
    """Yield the renames that the known schemas name, in the order of their ids: by aliases, or by the numbers of fields."""
    explicit = tuple(each for each in schema.renames if not each.by_schema)
    before: protobuf.Message | None = None
    for number, writer in sorted(known.items(), key=lambda item: item[0]):
        if not isinstance(writer, WriterSchema):
            continue
        try:
            one = schema.model_copy(update={"renames": explicit}).of_writer(number, writer)
            if schema.format is SchemaFormat.PROTOBUF:
                message = protobuf.message_of(one)
                yield from () if before is None else protobuf.renames(before, message)
                before = message
            else:
                yield from columns.aliases(one)
        except InvalidSpecError:
            continue  # The columns of this schema have the same error.


def _of_fields(schema: RecordSchema, present: Mapping[str, str]) -> Mapping[str, str]:
    """Return the types that columns of the table require of the fields with their names."""
    if schema.projection is None:
        return present
    if not schema.projection.keeps_others:
        return {}
    # Other columns are computed. Their names and types are not those of fields.
    computed = projections.reads(schema) | {column.name for column in schema.projection.columns}
    return {name: kind for name, kind in present.items() if name not in computed}


def _of_renames(projection: Projection | None, table: Fields) -> Fields:
    """Return the columns of the table that a renamed field renames: those that are not computed."""
    if projection is None:
        return table
    if not projection.keeps_others:
        return ()
    computed = {column.name for column in projection.columns}
    return [field for field in table if field["name"] not in computed]


def _check_former(table: Renaming, found: Sequence[Column], place: str) -> None:
    """Refuse a new column with the earlier name of another one. Values of earlier schemas with this name belong to the other one.

    Raises InvalidSpecError that names ``place`` and the columns.
    """
    both = reused(table.fields, table.former, found)
    if both is not None:
        raise InvalidSpecError(
            f"{place}: field {both[0]} is new, but column {both[1]} had this name before it was renamed; let producers choose another name"
        )


def _check_projection(schema: RecordSchema, place: str) -> None:
    """Check that the columns can be computed from these fields. Raises InvalidSpecError that names ``place`` and the column."""
    try:
        projections.resolved(schema)
    except InvalidSpecError as error:
        raise InvalidSpecError(f"{place}: {error}", reason=error.reason) from None


def _projected(schema: RecordSchema, present: Mapping[str, str]) -> RecordSchema:
    """Return the schema with projected columns that are at least as wide as those of the table."""
    whole = projections.resolved(schema)
    if whole.projection is None:
        return schema
    wide = tuple(
        column.model_copy(update={"type": str(both)})
        if column.name in present
        and (both := evolution.merged(types.parse(column.type), types.parse(present[column.name]))) is not None
        else column
        for column in whole.projection.columns
    )
    return whole.model_copy(update={"projection": whole.projection.model_copy(update={"columns": wide})})


def _check_text(schema: RecordSchema, writer: WriterSchema, place: str) -> None:
    """Raise the error of protoc for a .proto text without descriptors: InvalidSpecError that names ``place``."""
    if schema.format is not SchemaFormat.PROTOBUF or writer.descriptors:
        return
    try:
        _descriptors(writer)
    except InvalidSpecError as error:
        raise InvalidSpecError(f"{place}: {error}", reason=error.reason) from None


def _check_names(place: str, fields: Sequence[Column], present: Iterable[str]) -> None:
    """Check the columns of a table. Raises InvalidSpecError that names ``place`` and the columns."""
    names = {field.name for field in fields} | set(present)
    folded = {name.lower(): name for name in present}
    for field in fields:
        other = folded.setdefault(field.name.lower(), field.name)
        if other != field.name and field.name not in present:
            raise InvalidSpecError(
                f"{place}: field {field.name} and column {other} differ only in case, which query engines ignore"
            )
    if len(names) > types.MOST_COLUMNS:
        raise InvalidSpecError(f"{place}: the table would have {len(names)} columns, more than {types.MOST_COLUMNS}")


def _widened(fields: Sequence[Column], present: Mapping[str, str]) -> tuple[Column, ...]:
    known = [Column(name=field.name, type=present[field.name]) for field in fields if field.name in present]
    return evolution.merged_columns(known, fields)


def _with_schema(
    fields: Sequence[Column], present: Mapping[str, str], place: str, found: Sequence[Column]
) -> tuple[Column, ...]:
    """Return the columns with those of a schema: ``found``. Raises InvalidSpecError that names ``place`` and the field."""
    merged = {field.name: field for field in fields}
    for column in found:
        known = merged.get(column.name)
        before = known.type if known is not None else present.get(column.name)
        if before is None:
            merged[column.name] = column
            continue
        both = evolution.merged(types.parse(before), types.parse(column.type))
        if both is None:
            raise InvalidSpecError(
                f"{place}: field {column.name} has the type {column.type}, but column {column.name} has the type {before},"
                " which cannot hold it"
            )
        merged[column.name] = (known or column).model_copy(update={"type": str(both)})
    _check_names(place, tuple(merged.values()), present)
    return tuple(merged.values())


NO_REGISTRIES = Registries({}, None)


def registries(settings: GroupSettings) -> Registries:
    """Return the schema registries that the settings name."""
    return Registries(settings.registries, settings.schema_directory)


def schema_of_contract(schema: RecordSchema) -> dict[int, WriterSchema | Refusal]:
    """Return the schema that a contract has, by its id."""
    if schema.schema_id is None:
        return {}
    parts = {name: getattr(schema, name) for name in ("text", "references", "names", "descriptors")}
    writer = WriterSchema(**parts)
    return {schema.schema_id: writer}
