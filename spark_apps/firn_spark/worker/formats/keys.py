"""Record keys to columns: the bytes, or the members of a JSON object, decoded as values are."""

import dataclasses

import pyarrow as pa

from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.model.jobs import KeySchema, RecordSchema, SchemaFormat
from firn.tables import rows
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Fetched
from firn_spark.worker.formats.registry import open_format

PLACE = "key"
"""Begins the path of an error in a key: ``$key.a``."""


class KeyColumns:
    """Decodes the keys of a topic."""

    def __init__(self, key: KeySchema) -> None:
        """Set up the format of the keys. Raises InvalidSpecError for a column type that does not exist."""
        self._struct = key.columns == "Struct"
        self._schema = arrow_types.arrow_schema(rows.key_columns(key))
        self._format = None
        if key.columns != "Binary":
            self._format = open_format(RecordSchema(format=SchemaFormat.JSON, fields=key.fields), {})

    def decode(self, records: Fetched) -> tuple[list[pa.Array], dict[int, BadRecordError]]:
        """Return the arrays of `firn.tables.rows.key_columns`, and the bad keys by index."""
        if self._format is None:
            return [records.keys.to_arrow()], {}
        columns = self._format.decode(dataclasses.replace(records, values=records.keys))
        errors = {index: _of_key(error, records, index) for index, error in columns.errors.items()}
        if not self._struct:
            return columns.arrays, errors
        (kind,) = self._schema.types
        return [pa.StructArray.from_arrays(columns.arrays, type=kind, mask=pa.array(~records.keys.present))], errors


def _of_key(error: BadRecordError, records: Fetched, index: int) -> BadRecordError:
    if not records.keys.present[index]:
        error = BadRecordError(
            Code.MISSING_REQUIRED, Stage.SCHEMA, "the key is null, and spec.schema.key has required fields"
        )
    return error.within(PLACE)
