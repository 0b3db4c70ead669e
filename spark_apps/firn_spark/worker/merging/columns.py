"""Fits the columns of a data file to the current schema of its table, by field id.

Added, renamed, reordered and dropped columns and the promotions of Iceberg's specification (Schema evolution) are
handled here. Everything else raises `UnfitError`, so that Spark rewrites the file.
"""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping, parse_mapping_from_json

from firn_spark.worker.data_files import FIELD_ID, field_id
from firn_spark.worker.merging.plan import UnfitError
from firn_spark.worker.table_types.written import written_schema

ROW_ID = 2147483540
"""Field id of ``_row_id`` (Iceberg specification, reserved field ids)."""
LAST_UPDATED = 2147483539
"""Field id of ``_last_updated_sequence_number``."""
LINEAGE = (
    pa.field("_row_id", pa.int64(), metadata={FIELD_ID: str(ROW_ID)}),
    pa.field("_last_updated_sequence_number", pa.int64(), metadata={FIELD_ID: str(LAST_UPDATED)}),
)
NAME_MAPPING = "schema.name-mapping.default"


def merged_schema(text: str) -> Schema:
    """Return a table's schema from Iceberg's JSON. Raises UnfitError if a merge would lose the values of a column."""
    found = written_schema(text)
    if found.left_out:
        path, kind = found.left_out[0]
        raise UnfitError(f"column {path} has the type {kind}, which a merge would lose")
    return found.schema


def mapped_names(properties: Mapping[str, str]) -> dict[str, int]:
    """Return the ids of top-level columns in files without field ids, from the table's name mapping. Raises
    UnfitError if the mapping cannot be read."""
    text = properties.get(NAME_MAPPING)
    if text is None:
        return {}
    try:
        mapping: NameMapping = parse_mapping_from_json(text)
    except ValueError as error:
        raise UnfitError(f"the name mapping cannot be read: {error}") from error
    return {name: each.field_id for each in mapping.root if each.field_id is not None for name in each.names}


def identified(schema: pa.Schema, names: Mapping[str, int]) -> dict[int, int]:
    """Return the places of a file's columns by field id. Raises UnfitError for files without ids or names."""
    ids = [field_id(field) for field in schema]
    if all(number is None for number in ids):
        ids = [names.get(field.name) for field in schema]
    places = {number: place for place, number in enumerate(ids) if number is not None}
    if not places:
        raise UnfitError("the file has no field ids, and the table's name mapping has none of its columns")
    if len(places) != sum(number is not None for number in ids):
        raise UnfitError("two columns of the file have the same field id")
    return places


def fitted(field: pa.Field, column: pa.ChunkedArray, source: pa.Field) -> pa.ChunkedArray:
    """Return a file's column as ``field`` has it, perhaps dictionary-encoded. Raises UnfitError if the type differs
    in another way than by a promotion, or if a required column has nulls."""
    if not field.nullable and column.null_count:
        raise UnfitError(f"column {field.name} is required in the table, and has nulls in the file")
    if pa.types.is_dictionary(source.type) and source.type.value_type == field.type:
        return column
    if source.type == field.type and not pa.types.is_nested(field.type):
        return column
    if not _promotes(source.type, field.type) and not _same(source, field):
        raise UnfitError(f"column {field.name} is {source.type} in the file, and {field.type} in the table")
    try:
        return pc.cast(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UnfitError(f"column {field.name}: {error}") from error


def _promotes(old: pa.DataType, new: pa.DataType) -> bool:
    """Return whether a primitive type may be read as the other without a loss."""
    if pa.types.is_decimal128(old) and pa.types.is_decimal128(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    return (old, new) in _PROMOTIONS


_PROMOTIONS = frozenset(
    {
        (pa.int32(), pa.int64()),
        (pa.float32(), pa.float64()),
        (pa.large_string(), pa.string()),
        (pa.large_binary(), pa.binary()),
        (pa.binary(16), pa.uuid()),
    }
)


def _same(source: pa.Field, field: pa.Field) -> bool:
    """Return whether nested columns have the same members with the same ids and types. Names of elements of lists and
    maps do not matter."""
    old, new = source.type, field.type
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        before, after = list(old), list(new)
        return len(before) == len(after) and all(
            one.name == other.name and _identical(one, other) for one, other in zip(before, after, strict=True)
        )
    if pa.types.is_list(old) and pa.types.is_list(new):
        return _identical(old.value_field, new.value_field)
    if pa.types.is_map(old) and pa.types.is_map(new):
        return _identical(old.key_field, new.key_field) and _identical(old.item_field, new.item_field)
    return bool(old == new)


def _identical(source: pa.Field, field: pa.Field) -> bool:
    return field_id(source) == field_id(field) and _same(source, field)
