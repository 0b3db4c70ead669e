"""Checks whether a policy fits the table of a topic: the columns that it names exist and have suitable types."""

from firn.api.v1alpha1 import CompactionPolicy, RetentionPolicy
from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, RecordSchema
from firn.tables import rows, transforms, types
from firn.tables.types import ListOf, MapOf, Primitive, Struct, Type
from firn_controllers.specs.columns import check_term, column_type
from firn_controllers.specs.terms import Policy

_TIMES = ("date", "timestamp", "timestamptz")


def misfit(policy: Policy, topic: IcebergTopic, registered: RecordSchema | None = None) -> InvalidSpecError | None:
    """Return why the policy does not fit the topic, or None.

    ``registered`` is the schema of a topic whose columns the operator has to find. None if it is not known yet.
    """
    try:
        schema = topic.row_schema()
    except InvalidSpecError:
        return None  # the topic's own SpecValid says what is wrong
    if schema.has_found_columns:
        if registered is None:
            return None
        schema = registered
    columns = rows.table_columns(schema, topic.spec.table.metadata_columns, shared=topic.spec.table.shared)
    try:
        if isinstance(policy, RetentionPolicy):
            _check_retention(policy, columns)
        else:
            _check_compaction(policy, topic, columns)
    except InvalidSpecError as error:
        return error
    return None


def _check_retention(policy: RetentionPolicy, columns: tuple[Column, ...]) -> None:
    if policy.spec.rows is None:
        return
    _check_readable("spec.rows", columns)
    column = policy.spec.rows.column
    kind = _type_of("spec.rows.column", column, columns)
    if not isinstance(kind, Primitive) or kind.name not in _TIMES:
        raise InvalidSpecError(f"spec.rows.column: {column} is {kind}; choose a timestamp, timestamptz or date")


def _check_compaction(policy: CompactionPolicy, topic: IcebergTopic, columns: tuple[Column, ...]) -> None:
    _check_readable("spec", columns)
    if policy.spec.strategy == "Sort" and not policy.spec.columns and not topic.spec.table.sort_by:
        raise InvalidSpecError(
            "spec.columns: strategy Sort needs columns; set spec.columns, or spec.table.sortBy of the topic"
        )
    for column in policy.spec.columns:
        try:
            if policy.spec.strategy == "Sort":
                check_term(transforms.parse_sort(column).term, columns)
            elif isinstance(_type_of("spec.columns", column, columns), Struct | ListOf | MapOf):
                raise InvalidSpecError(
                    f"{column} has no primitive type; strategy ZOrder needs columns of primitive types, so choose another column"
                )
        except InvalidSpecError as error:
            raise InvalidSpecError(f"spec.columns: {str(error).removeprefix('spec.columns: ')}") from error


def _check_readable(field: str, columns: tuple[Column, ...]) -> None:
    """Raise InvalidSpecError for a column that Spark cannot read. Spark rewrites files."""
    found = unreadable_column(columns)
    if found is not None:
        column, kind = found
        raise InvalidSpecError(
            f"{field}: column {column} has type {kind}, which Spark cannot read, so no run can rewrite files of the table;"
            " change the selector or the topic's labels, so that this policy does not govern the topic"
        )


def unreadable_column(columns: tuple[Column, ...]) -> tuple[str, str] | None:
    """Return the name of a column because of which Spark refuses the whole table, and the type in it; None without one."""
    found = ((column.name, types.unreadable(types.parse(column.type))) for column in columns)
    return next(((name, kind) for name, kind in found if kind), None)


def _type_of(field: str, column: str, columns: tuple[Column, ...]) -> Type:
    try:
        return column_type(column, columns)
    except InvalidSpecError as error:
        raise InvalidSpecError(f"{field}: {error}") from error
