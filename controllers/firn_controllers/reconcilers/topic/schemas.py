"""The record schemas of topics. The latest schema of a subject comes from its schema registry, and protoc compiles texts."""

import base64
from collections.abc import Mapping, Sequence

from firn.api.v1alpha1.iceberg_topic import KEY_TEXT, IcebergTopic, key_with_columns, projected, with_columns
from firn.model.conditions import Reason
from firn.model.errors import FirnError, InvalidSpecError, NotReadyError
from firn.model.jobs import Column, RecordSchema, SchemaFormat, Subject
from firn.schema_registry import TYPES, Registered
from firn.schemas import columns, projections, protobuf
from firn.tables import evolution, renames, rows, types
from firn_controllers.iceberg_topic.observed import LiveJob, schema_of
from firn_controllers.reconcilers.context import Context

_TEXT = "spec.schema.text"
_SUBJECTS = {_TEXT: "spec.schema.registry.subject", KEY_TEXT: "spec.schema.key.registry.subject"}
"""Fields with subjects, beside the fields with texts."""


class TopicSchemas:
    """Finds the schema of a topic: in its spec, in a schema registry, or in its contract."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._found: dict[str, tuple[object, RecordSchema]] = {}
        """Uid of a topic -> what its schema was found from, and the schema. To parse a schema takes up to 0.2 s."""

    def forget(self, uid: str) -> None:
        """Forget a deleted topic."""
        self._found.pop(uid, None)
        self._found.pop(f"{uid}/key", None)

    async def find(
        self, uid: str, resource: IcebergTopic, job: LiveJob | None, parent: RecordSchema | None = None
    ) -> RecordSchema | FirnError:
        """Return the schema of a topic with its columns, or the error of the spec, the text or the registry.

        ``parent``: the schema of the topic of which the table is a route. Without a contract, the route reads the same message.
        A topic keeps the schema of its contract while the registry does not answer, or if the subject has no schema any more. If
        the registry is not configured, the schema has no columns.
        """
        schema = schema_of(resource)
        if not isinstance(schema, RecordSchema):
            return schema
        in_force = job.job.record_schema if job is not None else None
        first = in_force or (parent if parent is not None and _is_alike(parent, schema) else None)
        found = await self._find(uid, schema, in_force, _TEXT, first)
        if not isinstance(found, RecordSchema):
            return found
        try:
            found = projected(found, schema.projection)
            found = found if in_force is None else _with_gone(found, in_force)
            if schema.key is None or schema.key.decoding is None or not schema.key.decoding.has_found_columns:
                return found.model_copy(update={"key": schema.key})
            before = in_force.key.record_schema if in_force is not None and in_force.key is not None else None
            first = before or (first.key.record_schema if first is not None and first.key is not None else None)
            of_key = await self._find(f"{uid}/key", schema.key.decoding, before, KEY_TEXT, first)
            if not isinstance(of_key, RecordSchema):
                return of_key
            # A column of the table stays, and is null in rows of later keys.
            names = {field.name for field in of_key.fields}
            dropped = tuple(field for field in (before.fields if before is not None else ()) if field.name not in names)
            whole = of_key.model_copy(update={"fields": (*of_key.fields, *dropped)})
            return found.model_copy(update={"key": key_with_columns(schema.key, whole)})
        except InvalidSpecError as error:
            return error

    async def _find(
        self, uid: str, schema: RecordSchema, in_force: RecordSchema | None, place: str, first: RecordSchema | None
    ) -> RecordSchema | FirnError:
        """Return a schema of values or keys. ``place`` is the field of the spec with its text.

        ``first`` has the Protobuf message of all texts, also those of another subject.
        """
        if not schema.has_found_columns:
            return schema
        if schema.subject is None:
            return await self._compiled(uid, schema, in_force, place, first)
        if schema.subject.registry not in self._context.config.registries:
            return schema
        if in_force is not None and (in_force.subject is None or in_force.subject.place != schema.subject.place):
            in_force = None
        if in_force is not None:
            of_spec = {name: getattr(schema, name) for name in ("subject", "incompatible", "evolution", "variants")}
            in_force = in_force.model_copy(update=of_spec)
        try:
            latest = await self._context.ports.schemas.latest(schema.subject.registry, schema.subject.name)
            if latest is None:
                return in_force or _missing(schema.subject, _SUBJECTS[place])
            source = (schema, latest, in_force, first)
            known = self._found.get(uid)
            if known is None or known[0] != source:
                described = await self._described(schema, latest, in_force)
                whole = _with_message(described, first, _place(schema))
                known = self._found[uid] = source, _with_columns(whole, in_force, of_key=place == KEY_TEXT)
            return known[1]
        except InvalidSpecError as error:
            return error
        except FirnError as error:
            return in_force or error

    async def _compiled(
        self, uid: str, schema: RecordSchema, in_force: RecordSchema | None, place: str, first: RecordSchema | None
    ) -> RecordSchema | FirnError:
        """Return the schema with descriptors of its text. The contract in force has them, unless the text is new."""
        try:
            if in_force is not None and in_force.text == schema.text and _is_readable(in_force):
                descriptors = in_force.descriptors
            else:
                descriptors = await self._descriptors(schema.text, {}, place)
            source = (schema, descriptors, in_force, first)
            known = self._found.get(uid)
            if known is None or known[0] != source:
                whole = schema.model_copy(update={"descriptors": descriptors})
                whole = with_columns(_with_message(whole, first, place), place)
                if place == KEY_TEXT and in_force is not None and _is_readable(in_force):
                    # `checks.schema_evolves` compares texts of values.
                    _check_names(in_force, whole, place)
                    for problem in protobuf.changed_indexes(in_force, whole, "spec.schema.key.message"):
                        raise InvalidSpecError(f"{place}: {problem}", reason=Reason.INCOMPATIBLE_SCHEMA)
                known = self._found[uid] = source, _with_numbers(whole, in_force, place)
            return known[1]
        except FirnError as error:
            return error

    async def _described(self, schema: RecordSchema, latest: Registered, in_force: RecordSchema | None) -> RecordSchema:
        """Return the schema with the latest text of its subject, and with descriptors if it is Protobuf. Raises FirnError."""
        place = _place(schema)
        if latest.kind != TYPES[schema.format]:
            raise InvalidSpecError(
                f"{place}: the latest schema has the type {latest.kind}, and the topic has format: {schema.format}; set"
                f" spec.schema.registry.subject to a subject with {schema.format} schemas",
                reason=Reason.BAD_SCHEMA,
            )
        update = {"text": latest.schema.text, "schema_id": latest.id}
        if schema.format is not SchemaFormat.PROTOBUF:
            more = {"references": latest.schema.references, "names": latest.schema.names}
            return schema.model_copy(update=update | more)
        if in_force is not None and in_force.schema_id == latest.id and in_force.text == latest.schema.text:
            descriptors = in_force.descriptors
            if _is_readable(in_force):
                return schema.model_copy(update=update | {"descriptors": descriptors})
        imports = dict(zip(latest.schema.names, latest.schema.references, strict=True))
        descriptors = await self._descriptors(latest.schema.text, imports, place)
        return schema.model_copy(update=update | {"descriptors": descriptors})

    async def _descriptors(self, text: str, imports: Mapping[str, str], place: str) -> str:
        """Return the descriptors of a text in base64. Raises InvalidSpecError that names ``place``, and NotReadyError."""
        try:
            return base64.b64encode(await self._context.ports.schemas.descriptors(text, imports)).decode()
        except InvalidSpecError as error:
            raise InvalidSpecError(f"{place}: {error}", reason=error.reason) from None


def _is_alike(one: RecordSchema, other: RecordSchema) -> bool:
    """Return whether two schemas have the same text, or the same subject."""
    return (one.format, one.subject) == (other.format, other.subject) and (
        one.subject is not None or one.text == other.text
    )


def _with_message(schema: RecordSchema, first: RecordSchema | None, place: str) -> RecordSchema:
    """Return the schema with the Protobuf message of ``first``. Raises InvalidSpecError that names ``place``."""
    try:
        return protobuf.with_found_message(schema, first if first is not None and _is_readable(first) else None)
    except InvalidSpecError as error:
        raise InvalidSpecError(f"{place}: {error}", reason=error.reason) from None


def _with_numbers(schema: RecordSchema, in_force: RecordSchema | None, place: str) -> RecordSchema:
    """Return the schema with the renames that the numbers of fields name. The contract keeps them while the text is the same."""
    if schema.format is not SchemaFormat.PROTOBUF or in_force is None or not _is_readable(in_force):
        return schema
    found = tuple(each for each in in_force.renames if each.by_schema)
    if (in_force.text, in_force.message) != (schema.text, schema.message):
        before, after = (protobuf.message_of(each, whole=True) for each in (in_force, schema))
        # The spec may name another message, whose fields have numbers of their own.
        found = () if schema.message and before.name != after.name else protobuf.renames(before, after)
    # A rename of the spec stays after its removal, as in the other formats.
    named = {(each.old, each.new) for each in schema.renames} | {(each.new, each.old) for each in in_force.renames}
    more = tuple(each for each in found if (each.old, each.new) not in named)
    whole = schema.model_copy(update={"renames": (*schema.renames, *more)})
    if not more or rows.read_fields(whole) == rows.read_fields(schema):
        return whole
    # A column may read a field by its earlier name.
    return whole.model_copy(update={"fields": columns.columns_of(whole, place)})


def _is_readable(schema: RecordSchema) -> bool:
    """Return whether a contract has descriptors that can be read."""
    try:
        protobuf.message_of(schema)
    except InvalidSpecError:
        return False
    return True


def _place(schema: RecordSchema) -> str:
    """Return the subject of a schema in the words of messages."""
    assert schema.subject is not None
    return f"subject {schema.subject.name} of schema registry {schema.subject.registry}"


def _with_columns(schema: RecordSchema, in_force: RecordSchema | None, *, of_key: bool) -> RecordSchema:
    """Return the latest schema with its columns. Their types also hold the values of the schema in force.

    Raises InvalidSpecError if it has no columns, or exchanges the names of fields.
    """
    found = with_columns(schema, _place(schema), of_key=of_key)
    if in_force is None:
        return found
    if found.format is SchemaFormat.PROTOBUF and _is_readable(in_force):
        _check_names(in_force, found, _place(schema))
    found = _with_numbers(found, in_force, _place(schema))
    before = renames.renamed_columns(in_force.fields, found.renames)
    fields = evolution.merged_columns(before, found.fields, found.format)
    if schema.incompatible == "NewColumn":
        fields = _held(before, fields, found.format)
    names = {field.name for field in fields}
    # Spark cannot read a table with a column of some types. The contract names it, so that the operator plans no run for the
    # table. A column of the projection is null if producers no longer write its field.
    read = projections.reads(schema)
    kept = (f for f in before if f.name not in names and (f.name in read or types.unreadable(types.parse(f.type))))
    return found.model_copy(update={"fields": (*fields, *kept)})


def _check_names(in_force: RecordSchema, found: RecordSchema, place: str) -> None:
    before, after = (protobuf.message_of(each, whole=True) for each in (in_force, found))
    protobuf.check_names(before, after, place, rows.read_fields(found))


def _with_gone(schema: RecordSchema, in_force: RecordSchema) -> RecordSchema:
    """Return the schema with the columns that it no longer has, if the policy drops them."""
    if schema.evolution.drop != "DropColumn":
        return schema
    named = rows.column_renames(schema, schema.renames)
    before = renames.renamed_columns(rows.schema_columns(in_force), named)
    wanted = {column.name for column in rows.schema_columns(schema)}
    names = dict.fromkeys((*in_force.gone, *(column.name for column in before)))
    return schema.model_copy(update={"gone": tuple(name for name in names if name not in wanted)})


def _held(before: Sequence[Column], after: Sequence[Column], form: SchemaFormat) -> tuple[Column, ...]:
    """Return the columns, of which those that cannot change keep their types. The driver gives their fields another column."""
    known = {column.name: column for column in before}
    return tuple(
        known[column.name]
        if column.name in known
        and evolution.holding(types.parse(known[column.name].type), types.parse(column.type), form) is None
        else column
        for column in after
    )


def _missing(subject: Subject, field: str) -> NotReadyError:
    return NotReadyError(
        f"subject {subject.name} of schema registry {subject.registry} has no schema; let a producer register one, or correct"
        f" {field}",
        reason=Reason.SCHEMA_MISSING,
    )
