"""Record keys to columns: the bytes, or fields, decoded by the formats of values."""

import dataclasses

import pyarrow as pa

from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.model.jobs import KeySchema
from firn.tables import rows
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Fetched, Numbers
from firn_spark.worker.formats import header_ids
from firn_spark.worker.formats.by_writer import ByWriterSchema
from firn_spark.worker.formats.format import UNBOUNDED
from firn_spark.worker.formats.registry import open_format
from firn_spark.worker.formats.writer_schemas import Reference, SchemasNeededError, WriterSchemas

PLACE = "key"
"""Begins the path of an error in a key: ``$key.a``."""


class KeyColumns:
    """Decodes the keys of a topic."""

    def __init__(self, key: KeySchema, writer_schemas: WriterSchemas) -> None:
        """Set up the format of the keys. ``writer_schemas`` are the known schemas of keys. Raises InvalidSpecError for a column type
        that does not exist."""
        self._struct = key.columns == "Struct"
        self._schema = arrow_types.arrow_schema(rows.key_columns(key))
        self._format = None
        if key.columns != "Binary":
            self._format = open_format(key.record_schema, writer_schemas, header_ids.KEY)

    def shares(self, records: Fetched) -> Numbers | None:
        """Return the part of the bytes that one call of `decode` may take, for each key; None if all keys fit.

        Raises InvalidSpecError for an invalid schema of a key.
        """
        if isinstance(self._format, ByWriterSchema):
            self._format.prepare(_as_values(records))
        if self._format is None or self._format.most_bytes == UNBOUNDED:
            return None
        found: Numbers = (records.keys.lengths() + self._format.row_bytes) / self._format.most_bytes
        return found

    def missing(self, records: Fetched) -> list[Reference]:
        """Return the schemas that `decode` would need."""
        return self._format.missing(_as_values(records)) if isinstance(self._format, ByWriterSchema) else []

    def decode(self, records: Fetched) -> tuple[list[pa.Array], dict[int, BadRecordError]]:
        """Return the arrays of `firn.tables.rows.key_columns`, and the bad keys by index. Raises SchemasNeededError."""
        if self._format is None:
            return [records.keys.to_arrow()], {}
        try:
            columns = self._format.decode(_as_values(records))
        except SchemasNeededError as error:
            raise SchemasNeededError(error.ids, "keys") from None
        errors = {index: _of_key(error, records, index) for index, error in columns.errors.items()}
        if not self._struct:
            return columns.arrays, errors
        (kind,) = self._schema.types
        return [pa.StructArray.from_arrays(columns.arrays, type=kind, mask=pa.array(~records.keys.present))], errors


def _as_values(records: Fetched) -> Fetched:
    """Return the records with their keys in place of values."""
    return dataclasses.replace(records, values=records.keys)


def _of_key(error: BadRecordError, records: Fetched, index: int) -> BadRecordError:
    if not records.keys.present[index]:
        error = BadRecordError(
            Code.MISSING_REQUIRED, Stage.SCHEMA, "the key is null, and spec.schema.key has required fields"
        )
    return error.within(PLACE)
