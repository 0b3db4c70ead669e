"""JSON values to columns: compiled where the block decoder vouches for its answer, else strictly, record by record."""

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from firn.decoders.bad_records import BadRecordError, Stage
from firn.decoders.json import RecordReader
from firn.model.jobs import RecordSchema
from firn.tables.renames import former_names
from firn.tables.rows import decoded_columns
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Fetched, Places
from firn_spark.worker.formats import arrays
from firn_spark.worker.formats.format import UNBOUNDED, Columns, Times
from firn_spark.worker.formats.framing import unframed
from firn_spark.worker.formats.json.blocks import BlockDecoder
from firn_spark.worker.formats.json.times import read_times


class JsonFormat:
    """Decodes record values by the fields of a schema."""

    most_bytes = UNBOUNDED
    row_bytes = 0

    def __init__(self, schema: RecordSchema) -> None:
        """Set up both decoders. Raises InvalidSpecError for a column type that does not exist."""
        refuse_unknown = schema.unknown_fields == "DeadLetter"
        keep_unknown = bool(schema.unknown_column)
        self._fields = schema.fields
        self._columns = arrow_types.arrow_schema(decoded_columns(schema))
        former = former_names(schema.fields, schema.renames)
        self._blocks = BlockDecoder(
            schema.fields,
            refuse_unknown=refuse_unknown,
            keep_unknown=keep_unknown,
            truncate_times=schema.truncate_times,
            former=former,
        )
        self._reader = RecordReader.for_schema(
            schema.fields,
            refuse_unknown=refuse_unknown,
            keep_unknown=keep_unknown,
            truncate_times=schema.truncate_times,
            former=former,
        )
        # A value that names a JSON schema is not Avro.
        self._hints = schema.framing == "None"

    def decode(self, records: Fetched) -> Columns:
        """Decode values into one column for each field."""
        # No JSON begins with byte 0.
        values, framed = unframed(records.values)
        fast, vouched = self._blocks.decode(values)
        doubted = np.flatnonzero(~vouched)
        if not len(doubted):
            return Columns(fast, {}, self._times(fast))
        strict = self._strict(values.select(doubted))
        merged = arrays.replaced(fast, doubted, strict.arrays)
        errors = {
            int(doubted[index]): _hinted(error) if self._hints and framed[doubted[index]] else error
            for index, error in strict.errors.items()
        }
        return Columns(merged, errors, self._times(merged, _refused_times(strict.errors)))

    def _times(
        self, arrays: list[pa.Array], refused: Mapping[str, list[int]] = MappingProxyType({})
    ) -> Mapping[str, Times]:
        return read_times(self._fields, arrays[: len(self._fields)], refused)

    def _strict(self, values: Places) -> Columns:
        errors: dict[int, BadRecordError] = {}
        records: list[list[object]] = []
        nothing: list[object] = [None] * len(self._columns)
        for index, value in enumerate(values.to_list()):
            try:
                records.append(self._reader.read(value))
            except BadRecordError as error:
                errors[index] = error
                records.append(nothing)
        columns = [
            pa.array((record[place] for record in records), field.type, size=len(records))
            for place, field in enumerate(self._columns)
        ]
        return Columns(columns, errors)


def _hinted(error: BadRecordError) -> BadRecordError:
    """Return the error of a value that follows the framing of a schema registry, with a hint if the value is not JSON."""
    if error.stage is not Stage.DECODE or error.field:
        return error
    hint = "the value has the framing of a schema registry; if it is Avro, use format: Avro"
    return BadRecordError(error.code, error.stage, f"{error.detail}; {hint}")


def _refused_times(errors: Mapping[int, BadRecordError]) -> dict[str, list[int]]:
    """Return the integers, by field, that are no times because their field has another epoch."""
    refused: dict[str, list[int]] = {}
    for error in errors.values():
        if error.instant is not None:
            refused.setdefault(error.field, []).append(error.instant)
    return refused
