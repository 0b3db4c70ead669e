"""Request the schemas of records, and derive the columns of the table from them."""

import dataclasses
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from firn.decoders.bad_records import Code
from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import ConflictError, InvalidSpecError, NotReadyError
from firn.model.jobs import (
    Column,
    ColumnVersion,
    GroupSettings,
    RecordSchema,
    Rename,
    SchemaFormat,
    WriterRename,
    WriterSchema,
)
from firn.model.progress import Proposal
from firn.schemas import changes, columns, projections, protobuf
from firn.schemas.changes import Judgement
from firn.schemas.other_clients import Dropped, Followed, followed_schema, kept_schema, without
from firn.schemas.versions import Versions
from firn.schemas.versions import named as named_versions
from firn.tables import evolution, rows, types
from firn.tables.renames import Fields, FormerNames, Renaming, planned, renamed_columns, reused
from firn_spark.ingestion.topics.state import Writers
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.schemas import field_numbers
from firn_spark.schemas.field_numbers import Belonging
from firn_spark.schemas.registries import Registries, schema_of_contract, with_descriptors
from firn_spark.worker.formats.writer_schemas import Reference, Refusal, WriterSchemas

MOST_OF_TOPIC = 64
"""Schemas of a topic that the driver keeps when it prepares the topic, and no round waits for schemas. If a task needs another one,
the driver adds it and repeats the round."""


def learn(topic: Topic, registries: Registries) -> None:
    """Request the schemas of values and keys that tasks have reported. Raises as `Registries.schema`."""
    schema = topic.job.record_schema
    of_keys = schema.key.decoding if schema.key is not None else None
    _learn(schema, topic.reading.writers, registries)
    if of_keys is not None:
        _learn(of_keys, topic.reading.key_writers, registries)


def _learn(schema: RecordSchema, writers: Writers, registries: Registries) -> None:
    if schema.subject is None:
        return
    if schema.subject.id_in == "None":
        writers.clear()  # Only the schema of the contract reads values.
    if not writers.needed:
        # A round that waits for schemas may need more of them than that.
        writers.keep_newest(MOST_OF_TOPIC)
    writers.schemas |= schema_of_contract(schema)
    pending, queue = None, sorted(writers.needed, key=str)
    while queue:
        reference = queue.pop(0)
        writers.schemas.pop(reference, None)
        writers.refused_at.pop(reference, None)
        try:
            found = writers.schemas[reference] = registries.find(schema, reference)
        except NotReadyError as error:
            pending = error
            continue
        writers.needed.discard(reference)
        if isinstance(found, int) and found not in writers.schemas:
            writers.needed.add(found)
            queue.append(found)
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
    versions: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """The fields of columns that are versions, by field id."""
    numbers: str = ""
    """The value of `field_numbers.NUMBERS`."""

    @property
    def followed(self) -> Followed:
        """The names of the table after the changes of other clients."""
        return Followed(self.former, self.dropped, fields=self.fields)


NO_TABLE = TableColumns()


def allowed(
    topic: Topic, present: Mapping[str, str], table: TableColumns
) -> tuple[RecordSchema, dict[Reference, Refusal], dict[Reference, Refusal]]:
    """Return the topic's schema with the columns of all known schemas, as far as its policy allows the changes of the table.

    Also returns the schemas of values, and of keys, that the table cannot hold. ``present`` is that of `adapted`. The topic reports
    changes that wait for an approval. Raises ConflictError (Proposed, IncompatibleSchema) for changes that the policy does not
    allow, unless the contract has ``incompatible: DeadLetter``, and as `adapted`.
    """
    schema, of_values, of_keys = _with_writers(topic, present, table)
    topic.table.proposed = None
    judgement = _judgement(schema, table)
    if not judgement.blocked:
        return schema, of_values, of_keys
    if judgement.proposed:
        texts = tuple(each.text for each in judgement.proposed)
        topic.table.proposed = Proposal(changes=texts, approve=judgement.approve)
    name = topic.job.table.identifier
    if schema.incompatible != "DeadLetter":
        raise _not_allowed(f"table {name}", judgement)
    values = _numbers(topic.reading.writers.schemas) - of_values.keys()
    keys = _numbers(topic.reading.key_writers.schemas) - of_keys.keys()
    for left_out, numbers in ((of_values, values), (of_keys, keys)):
        for number in numbers:
            only = {number} if left_out is of_values else set(), {number} if left_out is of_keys else set()
            own = _judgement(_with_writers(topic, present, table, *only)[0], table)
            if own.blocked:
                left_out[number] = Refusal(Code.INCOMPATIBLE_SCHEMA, str(_not_allowed(f"table {name}", own)))
    kept, *_ = _with_writers(topic, present, table, values - of_values.keys(), keys - of_keys.keys())
    rest = _judgement(kept, table)
    if rest.blocked:  # The contract itself needs the change, for example because another client has dropped a column.
        raise _not_allowed(f"table {name}", rest)
    return kept, of_values, of_keys


def _with_writers(
    topic: Topic,
    present: Mapping[str, str],
    table: TableColumns,
    values: Collection[Reference] | None = None,
    keys: Collection[Reference] | None = None,
) -> tuple[RecordSchema, dict[Reference, Refusal], dict[Reference, Refusal]]:
    """Return what `adapted` and `with_keys` return together, with these schemas of values and of keys."""
    schema = topic.job.record_schema
    of_values: dict[Reference, Refusal] = {}
    if schema.subject is not None:
        schema, of_values = adapted(topic, present, table, values)
    else:
        schema = followed_schema(schema, table.followed)
    schema, of_keys = with_keys(topic, schema, present, keys)
    return schema, of_values, of_keys


def _numbers(schemas: WriterSchemas) -> set[Reference]:
    return {number for number, _ in _of_writers(schemas)}


def _judgement(schema: RecordSchema, table: TableColumns) -> Judgement:
    if not table.fields:
        return Judgement()
    renaming = planned(table.fields, table.former, rows.column_renames(schema, schema.renames))
    wanted = rows.schema_columns(schema) + rows.key_columns(schema.key)
    return changes.judged(changes.of_table(renaming, wanted), schema.evolution, table.uuid, table.schema_id)


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
    topic: Topic, present: Mapping[str, str], table: TableColumns = NO_TABLE, only: Collection[Reference] | None = None
) -> tuple[RecordSchema, dict[Reference, Refusal]]:
    """Return the topic's schema with the columns of all known schemas, and the schemas that the table cannot hold.

    ``present`` are the columns of the table with their types, in the notation of `firn.tables.types`. Schemas that are not in
    ``only`` are left out, if it is set. Raises ConflictError (IncompatibleSchema) for a schema that the
    table cannot hold, unless the contract has ``incompatible: DeadLetter``.
    """
    schema, subject = topic.job.record_schema, topic.job.record_schema.subject
    assert subject is not None
    schema = kept_schema(_with_message(schema), table.followed)
    known = {number: each for number, each in topic.reading.writers.schemas.items() if only is None or number in only}
    renaming = _renaming(schema, known, table)
    named = _named(renaming)
    own = _of_fields(schema, present)
    if named:
        own = {each.name: each.type for each in renamed_columns(_as_columns(own), named)}
    fields = _widened(renamed_columns(schema.fields, named), own, schema.format)
    named_schema = schema.model_copy(update={"renames": named})
    belonging = Belonging.of_table(named_schema, renaming.fields, table.numbers, table.versions)
    left_out = _unusable(schema, known)
    versions = Versions.of_table(table.fields, table.versions, named)
    taken = {name.lower() for name in (*own, *(column.name for column in fields))}
    taken |= _field_names(named_schema, known) if schema.incompatible == "NewColumn" else set()
    chosen: tuple[ColumnVersion, ...] = ()
    moved: tuple[WriterRename, ...] = ()
    for number, writer in _in_order(schema, known):
        place = f"schema {number} of schema registry {subject.registry}"
        of_writer = named_schema.of_writer(number, writer)
        try:
            _check_text(of_writer, writer, place)
            if (lacking := _lacking(of_writer, place)) is not None:
                left_out[number] = lacking
                continue
            of_writer, moves = belonging.moved(of_writer, place)
            moved += moves
            found = columns.columns_of(of_writer, place)
            if schema.incompatible == "NewColumn":
                names = {column.name: column.type for column in fields}
                made = versions.of_schema(number, found, {**own, **names}, taken, schema.format, named)
                chosen += made
                found = named_versions(found, made, named)
            _check_former(renaming, found, place)
            _check_apart(found, rows.key_columns(schema.key), place)
            more = _with_schema(fields, own, place, found, schema.format)
            _check_projection(named_schema.model_copy(update={"fields": more}), place)
            fields = more
            belonging.learn(of_writer)
        except InvalidSpecError as error:
            left_out[number] = _left_out(schema, error)
    kept = without(fields, table.fields, table.dropped)
    return _projected(
        schema.model_copy(update={"fields": kept, "renames": named, "versions": chosen, "writer_renames": moved}),
        present,
    ), left_out


def _with_message(schema: RecordSchema) -> RecordSchema:
    """Return the schema of a contract with the name of its message, which contracts of earlier releases lack."""
    return schema if schema.found_message or not schema.descriptors else protobuf.with_found_message(schema)


def _field_names(schema: RecordSchema, known: WriterSchemas) -> set[str]:
    """Return the names of all fields of the known schemas, in lower case."""
    found: set[str] = set()
    for number, writer in _of_writers(known):
        try:
            found |= {column.name.lower() for column in columns.columns_of(schema.of_writer(number, writer), "")}
        except InvalidSpecError:
            continue  # The columns of this schema have the same error.
    return found


def with_keys(
    topic: Topic, schema: RecordSchema, present: Mapping[str, str], only: Collection[Reference] | None = None
) -> tuple[RecordSchema, dict[Reference, Refusal]]:
    """Return the schema with the columns of all known schemas of keys, and those of them that the table cannot hold.

    ``schema`` is that of `adapted`. Schemas of keys that are not in ``only`` are left out, if it is set. Raises as `adapted`.
    """
    key = schema.key
    if key is None or key.decoding is None or key.decoding.subject is None:
        return schema, {}
    of_values, decoding = rows.schema_columns(schema), key.decoding
    decoding = _with_message(decoding)
    own = rows.fields_of_key(key, present, of_values)
    fields = _widened(key.fields, own, decoding.format)
    left_out = _unusable(schema, topic.reading.key_writers.schemas)
    moved: tuple[WriterRename, ...] = ()
    belonging = Belonging.of_table(decoding)
    for number, writer in _in_order(decoding, topic.reading.key_writers.schemas):
        if only is not None and number not in only:
            continue
        place = f"key schema {number} of schema registry {key.decoding.subject.registry}"
        of_writer = decoding.of_writer(number, writer)
        try:
            _check_text(of_writer, writer, place)
            if (lacking := _lacking(of_writer, place)) is not None:
                left_out[number] = lacking
                continue
            of_writer, moves = belonging.moved(of_writer, place)
            moved += moves
            more = _with_schema(fields, own, place, columns.columns_of(of_writer, place, of_key=True), decoding.format)
            _check_apart(of_values, rows.key_columns(key.model_copy(update={"fields": more})), place)
            fields = more
            belonging.learn(of_writer)
        except InvalidSpecError as error:
            left_out[number] = _left_out(schema, error, own_column=False)
    decoding = decoding.model_copy(update={"writer_renames": moved})
    whole = key.model_copy(update={"fields": fields, "decoding": decoding})
    return schema.model_copy(update={"key": whole}), left_out


def _check_apart(of_values: Sequence[Column], of_keys: Sequence[Column], place: str) -> None:
    """Raise InvalidSpecError that names ``place`` if a field of values has the name of a column of the key."""
    names = {column.name.lower(): column.name for column in of_values}
    for column in of_keys:
        if column.name.lower() in names:
            raise InvalidSpecError(
                f"{place}: field {names[column.name.lower()]} of the values has the name of column {column.name} of the key"
            )


def _of_writers(known: WriterSchemas) -> Iterator[tuple[int, WriterSchema]]:
    """Yield the schemas among the answers of a registry."""
    for reference, each in known.items():
        if isinstance(reference, int) and isinstance(each, WriterSchema):
            yield reference, each


def _in_order(schema: RecordSchema, known: WriterSchemas) -> list[tuple[int, WriterSchema]]:
    """Return these schemas with that of the contract first, so that the columns do not depend on the order of the records."""
    return sorted(_of_writers(known), key=lambda item: (item[0] != schema.schema_id, item[0]))


def _lacking(of_writer: RecordSchema, place: str) -> Refusal | None:
    """Return why values of a writer are bad records if its text lacks the message of the topic."""
    if of_writer.format is SchemaFormat.PROTOBUF and protobuf.lacks_message(of_writer):
        return Refusal(Code.UNKNOWN_SCHEMA, f"{place} has no message {of_writer.message}")
    return None


def _unusable(schema: RecordSchema, known: WriterSchemas) -> dict[Reference, Refusal]:
    """Return the schemas that no process can use, for example because they are too large. Raises as `_left_out`."""
    return {
        reference: _left_out(schema, InvalidSpecError(each.detail), own_column=False)
        for reference, each in known.items()
        if isinstance(each, Refusal) and each.code is Code.INCOMPATIBLE_SCHEMA
    }


def _left_out(schema: RecordSchema, error: InvalidSpecError, *, own_column: bool = True) -> Refusal:
    """Return why values of a writer are bad records. Raises ConflictError if the topic has to wait for them.

    ``own_column``: NewColumn can be the way out.
    """
    if schema.incompatible == "DeadLetter":
        return Refusal(Code.INCOMPATIBLE_SCHEMA, str(error))
    # A field of a key gets no column of its own, and NewColumn is no help if it is set already.
    ways = "DeadLetter" if not own_column or schema.incompatible == "NewColumn" else "DeadLetter or NewColumn"
    raise ConflictError(
        f"{error}; all records of the topic wait. Set spec.schema.evolution.incompatible: {ways}, or create this"
        " IcebergTopic again with another topicName and table.name",
        reason=Reason.INCOMPATIBLE_SCHEMA,
    ) from error


def _as_columns(present: Mapping[str, str]) -> list[Column]:
    return [Column(name=name, type=kind) for name, kind in present.items()]


def _renaming(schema: RecordSchema, known: WriterSchemas, table: TableColumns) -> Renaming:
    """Return the changes of names that schemas, the contract and the table name."""
    fields = field_numbers.columns_of_fields(schema.projection, table.fields)
    return planned(fields, table.former, schema.renames, tuple(_implied(schema, known, table)))


def _named(change: Renaming) -> tuple[Rename, ...]:
    """Return the renames from all earlier names, without those that the table cannot follow."""
    every = (*change.followed, *change.following)
    steps = [next(same) for _, same in itertools.groupby(every, key=lambda each: (each.old, each.new))]
    # A field can get an earlier name back, and a new name later. Without the first of equal renames, a rename of its
    # members could come too early. Without the last one, the field could keep a name that is not the latest.
    last = {(each.old, each.new): place for place, each in enumerate(steps)}
    first = {(each.old, each.new): place for place, each in reversed(list(enumerate(steps)))}
    return tuple(steps[place] for place in sorted({*first.values(), *last.values()}))


def _implied(schema: RecordSchema, known: WriterSchemas, table: TableColumns) -> Iterator[Rename]:
    """Yield the renames that the known schemas name, in the order of their ids: by aliases, or by the numbers of fields."""
    explicit = schema.model_copy(update={"renames": tuple(each for each in schema.renames if not each.by_schema)})
    messages: list[tuple[int, protobuf.Message]] = []
    for number, writer in sorted(_of_writers(known), key=lambda item: item[0]):
        try:
            one = explicit.of_writer(number, writer)
            if schema.format is SchemaFormat.PROTOBUF:
                messages.append((number, protobuf.message_of(one, whole=True)))
            else:
                yield from columns.aliases(one)
        except InvalidSpecError:
            continue  # The columns of this schema have the same error.
    latest = field_numbers.message_of(schema)
    name = latest.name if latest is not None else messages[0][1].name if messages else ""
    fields = field_numbers.columns_of_fields(schema.projection, table.fields)
    bases = field_numbers.bases_of(fields, table.versions, table.former)
    # Without a message in the contract, the first message of another text may be another one.
    same = [(number, message) for number, message in messages if latest is not None or message.name == name]
    yield from field_numbers.implied(same, fields, field_numbers.read(table.numbers, name, schema), bases)


def numbered(topic: Topic, schema: RecordSchema) -> Belonging | None:
    """Return the numbers of the fields of all schemas that a table follows, under the names of columns.

    ``schema`` is that of `allowed`. None without a Protobuf message, and for a table that other topics share, with other messages.
    """
    latest = field_numbers.message_of(topic.job.record_schema)
    if latest is None or topic.job.table.shared:
        return None
    found = Belonging(latest.name, topic.job.record_schema)
    for number, writer in _of_writers(topic.reading.writers.schemas):
        if number in topic.reading.writers.incompatible:
            continue
        try:
            found.learn(schema.of_writer(number, writer))
        except InvalidSpecError:
            continue  # Values with this schema are bad records.
    return found


def _of_fields(schema: RecordSchema, present: Mapping[str, str]) -> Mapping[str, str]:
    """Return the types that columns of the table require of the fields with their names."""
    if schema.projection is None:
        return present
    if not schema.projection.keeps_others:
        return {}
    # Other columns are computed. Their names and types are not those of fields.
    computed = projections.reads(schema) | {column.name for column in schema.projection.columns}
    return {name: kind for name, kind in present.items() if name not in computed}


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
        and (both := evolution.merged(types.parse(column.type), types.of_table(present[column.name]))) is not None
        else column
        for column in whole.projection.columns
    )
    return whole.model_copy(update={"projection": whole.projection.model_copy(update={"columns": wide})})


def _check_text(schema: RecordSchema, writer: WriterSchema, place: str) -> None:
    """Raise the error of protoc for a .proto text without descriptors: InvalidSpecError that names ``place``."""
    try:
        with_descriptors(schema.format, writer)
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


def _widened(fields: Sequence[Column], present: Mapping[str, str], form: SchemaFormat) -> tuple[Column, ...]:
    known = [Column(name=field.name, type=present[field.name]) for field in fields if field.name in present]
    return evolution.merged_columns(known, fields, form)


def _with_schema(
    fields: Sequence[Column], present: Mapping[str, str], place: str, found: Sequence[Column], form: SchemaFormat
) -> tuple[Column, ...]:
    """Return the columns with those of a schema: ``found``. Raises InvalidSpecError that names ``place`` and the field."""
    merged = {field.name: field for field in fields}
    for column in found:
        known = merged.get(column.name)
        before = known.type if known is not None else present.get(column.name)
        if before is None:
            merged[column.name] = column
            continue
        both = evolution.holding(types.of_table(before), types.parse(column.type), form)
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
