"""The layout of an Iceberg table that a spec describes, and the steps to it. Uses PyIceberg's types and does no I/O.

Allowed changes: rename a column, add an optional one, widen (int to long, float to double, decimal precision), required to optional,
doc, partitioning, sort order, properties. The same rules apply to an adopted table.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from types import MappingProxyType
from typing import Any, TypeVar

from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.transforms import Transform, VoidTransform, parse_transform

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, KeySchema, RecordSchema, Rename, SchemaFormat, TableTarget
from firn.schemas import changes, other_clients
from firn.schemas.changes import Change
from firn.schemas.other_clients import Followed
from firn.tables import renames, rows, table_properties, transforms, types
from firn.tables.evolution import is_read_as
from firn.tables.renames import Fields, FormerNames, Renaming
from firn.tables.transforms import PartitionTerm, SortTerm
from firn_operator.adapters.foreign_types import ForeignType, schema_of

Parsed = TypeVar("Parsed")
_PRIMITIVES: dict[str, iceberg.PrimitiveType] = {
    "boolean": iceberg.BooleanType(),
    "int": iceberg.IntegerType(),
    "long": iceberg.LongType(),
    "float": iceberg.FloatType(),
    "double": iceberg.DoubleType(),
    "date": iceberg.DateType(),
    "time": iceberg.TimeType(),
    "timestamp": iceberg.TimestampType(),
    "timestamptz": iceberg.TimestamptzType(),
    "timestamp_ns": iceberg.TimestampNanoType(),
    "timestamptz_ns": iceberg.TimestamptzNanoType(),
    "variant": ForeignType("variant"),
    "string": iceberg.StringType(),
    "uuid": iceberg.UUIDType(),
    "binary": iceberg.BinaryType(),
}
_TIME_TRANSFORMS = frozenset({"year", "month", "day", "hour"})


@dataclass(frozen=True, slots=True)
class Layout:
    """The parsed layout of a table that a spec describes. With None, a table keeps its own partitioning or order."""

    identifier: str
    columns: tuple[Column, ...]
    partition: tuple[PartitionTerm, ...] | None
    sort: tuple[SortTerm, ...] | None
    properties: Mapping[str, str]
    format: SchemaFormat
    """The format of values."""
    may_be_wider: bool = False
    """True if a column of values may be wider in the table than in the schema, because the driver may have widened it."""
    wider_keys: frozenset[str] = frozenset()
    """The columns of the key that may be wider."""
    as_written: frozenset[str] = frozenset()
    """The columns of values that are not computed. They may have another type that takes the values."""
    renames: tuple[Rename, ...] = ()
    of_values: frozenset[str] = frozenset()
    """The columns for values."""
    key: KeySchema | None = None


def layout(target: TableTarget, schema: RecordSchema) -> Layout:
    """Return the layout that ``target`` and ``schema`` describe. Raises InvalidSpecError (BadTransform)."""
    return Layout(
        identifier=target.identifier,
        columns=rows.columns_of_table(schema, target),
        partition=_parsed(transforms.parse, target.partition_by),
        sort=_parsed(transforms.parse_sort, target.sort_by),
        properties=target.properties,
        format=schema.format,
        may_be_wider=schema.subject is not None,
        wider_keys=frozenset(column.name for column in rows.key_columns(schema.key))
        if schema.subjects
        else frozenset(),
        as_written=frozenset(
            column.name
            for column in (rows.decoded_columns(schema) if schema.projection is None else rows.other_columns(schema))
        ),
        renames=rows.column_renames(schema, schema.renames),
        of_values=frozenset(column.name for column in rows.schema_columns(schema)),
        key=schema.key,
    )


def _parsed(parse: Callable[[str], Parsed], terms: Sequence[str] | None) -> tuple[Parsed, ...] | None:
    return None if terms is None else tuple(parse(term) for term in terms)


def followed(metadata: TableMetadata, layout: Layout, reason: Reason) -> Followed:
    """Return the names of a table after the changes of other clients. Raises InvalidSpecError with ``reason`` that names the table."""
    numbers = {str(metadata.current_schema_id), metadata.properties.get(other_clients.SCHEMA_ID)}
    schemas = {each.schema_id: schema_fields(each) for each in metadata.schemas if str(each.schema_id) in numbers}
    try:
        return other_clients.followed(
            schemas, metadata.current_schema_id, metadata.properties, layout.of_values, layout.key
        )
    except InvalidSpecError as error:
        raise InvalidSpecError(f"table {layout.identifier}: {error}", reason=reason) from None


def needed_ids(metadata: TableMetadata) -> set[int]:
    """Return the field ids that partitionings, sort orders and the identity of rows need, also earlier ones."""
    sources = {field.source_id for spec in metadata.partition_specs for field in spec.fields}
    sources |= {field.source_id for order in metadata.sort_orders for field in order.fields}
    return sources | set(metadata.schema().identifier_field_ids)


def schema_fields(schema: Schema) -> Fields:
    """Return the fields of a schema in the JSON of Iceberg's specification."""
    fields: Fields = json.loads(schema.model_dump_json())["fields"]
    return fields


def planned_renames(
    metadata: Schema, known: Followed, specs: Iterable[PartitionSpec], layout: Layout, reason: Reason
) -> Renaming:
    """Return the changes of names in a table with this schema. Raises InvalidSpecError with ``reason`` that names table and column."""
    fields = schema_fields(metadata)
    wanted = [each for each in layout.renames if not other_clients.is_dropped(each.new_path, fields, known.dropped)]
    change = renames.planned(fields, known.former, wanted)
    table = f"table {layout.identifier}"
    both = next((each for each in change.collisions if not each.by_schema), None)
    if both is not None:
        raise InvalidSpecError(
            f"{table}: column {both.old} cannot be renamed to {both.new}, because another column has or had this name; remove the rename from"
            " spec.schema.renames, or choose another name",
            reason=reason,
        )
    if (unknown := change.missing) is not None and not unknown.by_schema:
        raise InvalidSpecError(
            f"{table}: there is no column {unknown.old} to rename to {unknown.new}; correct the path in spec.schema.renames",
            reason=reason,
        )
    partitions = {field.name: field.source_id for spec in specs for field in spec.fields}
    for path, name in change.steps:
        if (
            "." not in path
            and partitions.get(name, metadata.find_field(path).field_id) != metadata.find_field(path).field_id
        ):
            raise InvalidSpecError(
                f"{table}: column {path} cannot be renamed to {name}, because a partition field has this name; choose another name",
                reason=reason,
            )
    return change


def layout_over(layout: Layout, properties: Mapping[str, str]) -> Layout:
    """Return the layout for a table with these properties: without the terms that only an earlier spec set."""
    return replace(
        layout,
        partition=table_properties.wanted_terms(table_properties.PARTITION_BY, layout.partition, properties),
        sort=table_properties.wanted_terms(table_properties.SORT_BY, layout.sort, properties),
    )


def layout_without(layout: Layout, fields: Fields, dropped: other_clients.Dropped) -> Layout:
    """Return the layout without columns that have been dropped from a table with these fields."""
    return replace(layout, columns=other_clients.without(layout.columns, fields, dropped))


def layout_named(layout: Layout, following: Sequence[Rename]) -> Layout:
    """Return the layout with the names of a table. ``following`` are the renames from all earlier names to them."""
    if not following:
        return layout
    partition, sort = layout.partition, layout.sort
    return replace(
        layout,
        columns=renames.renamed_columns(layout.columns, following),
        partition=None if partition is None else tuple(_term_named(term, following) for term in partition),
        sort=None if sort is None else tuple(replace(each, term=_term_named(each.term, following)) for each in sort),
    )


def _term_named(term: PartitionTerm, following: Sequence[Rename]) -> PartitionTerm:
    return replace(term, column=renames.destination(term.column, following))


def renamed_schema(schema: Schema, change: Renaming) -> Schema:
    """Return a schema with the names after a change."""
    return schema_of({**json.loads(schema.model_dump_json()), "fields": change.fields})


def iceberg_type(kind: types.Type, ids: Iterator[int]) -> iceberg.IcebergType:
    """Return PyIceberg's type for ``kind``; nested fields take their ids from ``ids``."""
    match kind:
        case types.Primitive(name):
            return _PRIMITIVES[name]
        case types.Decimal(precision, scale):
            return iceberg.DecimalType(precision, scale)
        case types.Fixed(length):
            return iceberg.FixedType(length)
        case types.ListOf(element):
            return iceberg.ListType(
                element_id=next(ids), element_type=iceberg_type(element, ids), element_required=False
            )
        case types.MapOf(key, value):
            return iceberg.MapType(
                key_id=next(ids),
                key_type=iceberg_type(key, ids),
                value_id=next(ids),
                value_type=iceberg_type(value, ids),
                value_required=False,
            )
        case types.Struct(fields):
            return iceberg.StructType(
                *(
                    iceberg.NestedField(
                        field_id=next(ids), name=name, field_type=iceberg_type(member, ids), required=False
                    )
                    for name, member in fields
                )
            )


def new_schema(columns: Sequence[Column]) -> Schema:
    """Return the schema of a new table with these columns; ids are provisional."""
    ids = count(1)
    return Schema(
        *(
            iceberg.NestedField(
                field_id=next(ids),
                name=column.name,
                field_type=iceberg_type(types.parse(column.type), ids),
                required=column.required,
                doc=column.doc,
            )
            for column in columns
        )
    )


def transform_of(term: PartitionTerm) -> Transform[Any, Any]:
    """Return PyIceberg's transform for ``term``."""
    return parse_transform(term.transform if term.argument is None else f"{term.transform}[{term.argument}]")


def _source(schema: Schema, term: PartitionTerm, identifier: str, use: str) -> int:
    """Return the id of the column that ``term`` reads. Raises InvalidSpecError (UnknownColumn, BadTransform)."""
    try:
        field = schema.find_field(term.column)
    except ValueError as error:
        columns = ", ".join(name.name for name in schema.fields)
        raise InvalidSpecError(
            f"table {identifier}, {use} {str(term)!r}: there is no column {term.column!r}; choose one of {columns}",
            reason=Reason.UNKNOWN_COLUMN,
        ) from error
    lists = {part for part in term.column.split(".") if part in ("element", "key", "value")}
    if not field.field_type.is_primitive or (lists and _inside_collection(schema, term.column)):
        raise InvalidSpecError(
            f"table {identifier}, {use} {str(term)!r}: column {term.column!r} is {field.field_type}; only columns of primitive type can be used;"
            " choose another column",
            reason=Reason.BAD_TRANSFORM,
        )
    if not transform_of(term).can_transform(field.field_type):
        raise InvalidSpecError(
            f"table {identifier}, {use} {str(term)!r}: {term.transform} does not apply to column {term.column!r} of type {field.field_type};"
            " choose another transform",
            reason=Reason.BAD_TRANSFORM,
        )
    return field.field_id


def _inside_collection(schema: Schema, path: str) -> bool:
    parts = path.split(".")
    return any(
        not isinstance(schema.find_field(".".join(parts[:end])).field_type, iceberg.StructType)
        for end in range(1, len(parts))
    )


PartitionKey = tuple[int, str]
"""The identity of a partition field: source column id and transform."""


def partition_keys(schema: Schema, layout: Layout) -> dict[PartitionKey, PartitionTerm]:
    """Return the partition fields of the layout, in order. Raises InvalidSpecError (UnknownColumn, BadTransform)."""
    keys: dict[PartitionKey, PartitionTerm] = {}
    timed: dict[int, PartitionTerm] = {}
    for term in layout.partition or ():
        source = _source(schema, term, layout.identifier, "partitionBy")
        key = (source, str(transform_of(term)))
        earlier = keys.get(key) or (timed.get(source) if term.transform in _TIME_TRANSFORMS else None)
        if earlier is not None:
            raise InvalidSpecError(
                f"table {layout.identifier}, partitionBy {str(term)!r} repeats {str(earlier)!r}; remove one of them",
                reason=Reason.BAD_TRANSFORM,
            )
        keys[key] = term
        if term.transform in _TIME_TRANSFORMS:
            timed[source] = term
    return keys


def _field_name(schema: Schema, term: PartitionTerm, taken: Iterable[str], identifier: str) -> str:
    """Return Iceberg's usual name for a partition field, with the argument if an earlier field has that name."""
    used = set(taken)
    name = term.field_name if term.field_name not in used else f"{term.field_name}_{term.argument or term.transform}"
    column = schema.find_column_name(_column_id(schema, name)) if _has_column(schema, name) else None
    if column is not None and (term.transform not in ("identity", "void") or column != term.column):
        raise InvalidSpecError(
            f"table {identifier}, partitionBy {str(term)!r}: its partition field would have the name of column {name!r};"
            " rename the column or choose another transform",
            reason=Reason.BAD_TRANSFORM,
        )
    return name


def _has_column(schema: Schema, name: str) -> bool:
    try:
        schema.find_field(name)
    except ValueError:
        return False
    return True


def _column_id(schema: Schema, name: str) -> int:
    return schema.find_field(name).field_id


def new_partition_spec(schema: Schema, layout: Layout) -> PartitionSpec:
    """Return the partition spec of a new table. Raises InvalidSpecError (UnknownColumn, BadTransform)."""
    fields: list[PartitionField] = []
    for (source, _), term in partition_keys(schema, layout).items():
        name = _field_name(schema, term, (field.name for field in fields), layout.identifier)
        fields.append(PartitionField(source, 1000 + len(fields), transform_of(term), name))
    return PartitionSpec(*fields)


@dataclass(frozen=True, slots=True)
class PartitionChange:
    """Names of partition fields to remove, and (column, transform, name) of those to add."""

    remove: tuple[str, ...]
    add: tuple[tuple[str, Transform[Any, Any], str], ...]

    def __bool__(self) -> bool:
        return bool(self.remove or self.add)


def partition_change(
    schema: Schema, current: PartitionSpec, history: Iterable[PartitionSpec], layout: Layout
) -> PartitionChange:
    """Return the change from ``current`` to the partitioning of the layout. The order of fields does not matter.

    Raises InvalidSpecError (UnknownColumn, BadTransform).
    """
    keys = partition_keys(schema, layout)
    present = {
        (field.source_id, str(field.transform)): field.name
        for field in current.fields
        if not isinstance(field.transform, VoidTransform)
    }
    # A name of an earlier field cannot be used again: metadata tables show old and new partitions together.
    used = {field.name: (field.source_id, str(field.transform)) for spec in history for field in spec.fields}
    add: list[tuple[str, Transform[Any, Any], str]] = []
    for key, term in keys.items():
        if key not in present:
            taken = [name for name, owner in used.items() if owner != key] + [name for _, _, name in add]
            add.append((term.column, transform_of(term), _field_name(schema, term, taken, layout.identifier)))
    return PartitionChange(tuple(name for key, name in present.items() if key not in keys), tuple(add))


def sort_order(schema: Schema, layout: Layout) -> SortOrder:
    """Return the sort order of the layout. Raises InvalidSpecError (UnknownColumn, BadTransform)."""
    return SortOrder(
        *(
            SortField(
                source_id=_source(schema, item.term, layout.identifier, "sortBy"),
                transform=transform_of(item.term),
                direction=_direction(item),
                null_order=_null_order(item),
            )
            for item in layout.sort or ()
        ),
        order_id=1 if layout.sort else 0,
    )


def layout_changes(metadata: TableMetadata, named: Schema, layout: Layout) -> tuple[Change, ...]:
    """Return the changes of partitioning and sort order. ``named`` is the schema of the table with the names of the layout."""
    found = []
    if layout.partition is not None:
        spec = {
            (named.find_column_name(field.source_id), str(field.transform))
            for field in metadata.spec().fields
            if not isinstance(field.transform, VoidTransform)
        }
        if spec != {(term.column, str(transform_of(term))) for term in layout.partition}:
            found.append(changes.partition_change(layout.partition, f" from spec {metadata.default_spec_id}"))
    if layout.sort is not None:
        order = metadata.sort_order_by_id(metadata.default_sort_order_id)
        present = [
            (named.find_column_name(field.source_id), str(field.transform), field.direction, field.null_order)
            for field in (order.fields if order is not None else [])
        ]
        wanted = [
            (each.term.column, str(transform_of(each.term)), _direction(each), _null_order(each))
            for each in layout.sort
        ]
        if present != wanted:
            found.append(changes.sort_change(layout.sort, f" from order {metadata.default_sort_order_id}"))
    return tuple(found)


def _direction(term: SortTerm) -> SortDirection:
    return SortDirection.DESC if term.descending else SortDirection.ASC


def _null_order(term: SortTerm) -> NullOrder:
    return NullOrder.NULLS_FIRST if term.nulls_first else NullOrder.NULLS_LAST


@dataclass(frozen=True, slots=True)
class SchemaStep:
    """A change of the schema: its text for users, and the PyIceberg action."""

    text: str
    act: Callable[[UpdateSchema], Any]


def schema_steps(
    current: Schema, layout: Layout, reason: Reason, former: FormerNames = MappingProxyType({})
) -> list[SchemaStep]:
    """Return the changes after which the table has the wanted columns. ``former`` has the earlier names of its columns.

    Raises InvalidSpecError with ``reason`` that names table and column if a change is not allowed.
    """
    return list(_Comparison(layout, reason, former).schema(current))


class _Comparison:
    def __init__(self, layout: Layout, reason: Reason, former: FormerNames) -> None:
        self._layout = layout
        self._reason = reason
        self._former = former
        self._identifiers: frozenset[int] = frozenset()

    def schema(self, current: Schema) -> Iterator[SchemaStep]:
        self._identifiers = frozenset(current.identifier_field_ids)
        present = {field.name: field for field in current.fields}
        folded = {field.name.lower(): field.name for field in current.fields}
        names = {column.name for column in self._layout.columns}
        for field in current.fields:
            if field.required and field.write_default is None and field.name not in names:
                raise self._refused(
                    (field.name,),
                    "is required in the table, but no field of the schema fills it; add the field, or make the column optional",
                )
        for column in self._layout.columns:
            path = (column.name,)
            kind = types.parse(column.type)
            field_found = present.get(column.name)
            if field_found is None:
                self._check_name(path, current.fields)
                other = folded.get(column.name.lower())
                if other is not None:
                    raise self._refused(path, f"differs only in case from the table's column {other!r}; use that name")
                if column.required:
                    raise self._refused(
                        path, "is new and required, but existing rows have no value; set required to false"
                    )
                yield self._addition(path, kind, column.doc)
                continue
            yield from self._type(path, field_found.field_type, kind)
            if column.required and not field_found.required:
                raise self._refused(path, "is optional in the table and cannot become required; set required to false")
            if field_found.required and not column.required:
                yield self._optional(path, field_found.field_id)
            if column.doc is not None and column.doc != field_found.doc:
                yield _documentation(path, column.doc)

    def _type(self, path: tuple[str, ...], current: iceberg.IcebergType, wanted: types.Type) -> Iterator[SchemaStep]:
        match current, wanted:
            case iceberg.ListType(), types.ListOf(element):
                yield from self._type((*path, "element"), current.element_type, element)
            case iceberg.MapType(), types.MapOf(key, value):
                if current.key_type != iceberg_type(key, count(1)):
                    raise self._refused(
                        (*path, "key"),
                        f"is {current.key_type} in the table and {key} in the schema; set the table's type in the schema, or create this"
                        " IcebergTopic again with another table.name",
                    )
                yield from self._type((*path, "value"), current.value_type, value)
            case iceberg.StructType(), types.Struct(members):
                yield from self._struct(path, current, members)
            case _:
                target = iceberg_type(wanted, count(1))
                if current == target or self._may_differ(path[0], current, target, wanted):
                    return
                if not _widens(current, target):
                    raise self._refused(
                        path,
                        f"is {current} in the table and {wanted} in the schema; set the table's type in the schema, or create this IcebergTopic again"
                        " with another table.name (a type can change from int to long, from float to double, or to a higher decimal precision)",
                    )
                yield SchemaStep(
                    f"column {'.'.join(path)}: {current} to {target}",
                    lambda update: update.update_column(path, field_type=target),
                )

    def _may_differ(
        self, column: str, current: iceberg.IcebergType, target: iceberg.IcebergType, wanted: types.Type
    ) -> bool:
        """Return whether a column of the table takes the values of the schema, because the driver may have made it for other schemas."""
        of_key = column in self._layout.wider_keys
        if not (self._layout.may_be_wider or of_key):
            return False
        decoding = self._layout.key.decoding if of_key and self._layout.key is not None else None
        form = decoding.format if decoding is not None else self._layout.format
        is_written = of_key or column in self._layout.as_written
        reads = is_written and is_read_as(wanted, types.of_table(str(current)), form)
        return reads or _widens(target, current)

    def _struct(
        self, path: tuple[str, ...], current: iceberg.StructType, members: Sequence[tuple[str, types.Type]]
    ) -> Iterator[SchemaStep]:
        present = {field.name: field for field in current.fields}
        names = {name for name, _ in members}
        for field in current.fields:
            if field.required and field.write_default is None and field.name not in names:
                raise self._refused(
                    (*path, field.name),
                    "is required in the table, but no member of the schema fills it; add the member",
                )
        for name, kind in members:
            member = present.get(name)
            if member is None:
                self._check_name((*path, name), current.fields)
                yield self._addition((*path, name), kind, None)
                continue
            yield from self._type((*path, name), member.field_type, kind)
            if member.required:
                yield self._optional((*path, name), member.field_id)

    def _check_name(self, path: tuple[str, ...], siblings: Iterable[iceberg.NestedField]) -> None:
        """Refuse a new column with the earlier name of another one, because records with this name could belong to either."""
        for field in siblings:
            if path[-1] in self._former.get(field.field_id, ()):
                raise self._refused(
                    path, f"is new, but column {field.name!r} had this name before it was renamed; choose another name"
                )

    @staticmethod
    def _addition(path: tuple[str, ...], kind: types.Type, doc: str | None) -> SchemaStep:
        # PyIceberg names the struct inside a list or map by the collection when it adds a member.
        parent = path[:-1]
        while parent and parent[-1] in ("element", "value"):
            parent = parent[:-1]
        place = (*parent, path[-1])
        return SchemaStep(
            f"column {'.'.join(path)} added: {kind}",
            lambda update: update.add_column(place, iceberg_type(kind, count(1)), doc=doc),
        )

    def _optional(self, path: tuple[str, ...], field_id: int) -> SchemaStep:
        if field_id in self._identifiers:
            raise self._refused(
                path,
                "is an identifier field of the table, so it cannot become optional; set required to true, or remove it from the identifier"
                " fields with the engine that set them, such as ALTER TABLE ... DROP IDENTIFIER FIELDS in Spark",
            )
        return SchemaStep(f"column {'.'.join(path)} made optional", lambda update: update.make_column_optional(path))

    def _refused(self, path: tuple[str, ...], problem: str) -> InvalidSpecError:
        return InvalidSpecError(
            f"table {self._layout.identifier}: column {'.'.join(path)!r} {problem}", reason=self._reason
        )


def _documentation(path: tuple[str, ...], doc: str) -> SchemaStep:
    return SchemaStep(f"column {'.'.join(path)} documented", lambda update: update.update_column(path, doc=doc))


def _widens(current: iceberg.IcebergType, wanted: iceberg.IcebergType) -> bool:
    match current, wanted:
        case (iceberg.IntegerType(), iceberg.LongType()) | (iceberg.FloatType(), iceberg.DoubleType()):
            return True
        case iceberg.DecimalType(), iceberg.DecimalType():
            return current.scale == wanted.scale and current.precision < wanted.precision
    return False
