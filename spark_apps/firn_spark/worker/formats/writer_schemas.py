"""Values that begin with the id of their schema in a schema registry.

`ByWriterSchema` decodes each value with its own schema into the columns of the table. The driver gives the schemas to
tasks. A task that needs another one stops (`SchemasNeededError`), and the driver requests it from the registry.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.model.jobs import RecordSchema, SchemaFormat, WriterSchema
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Fetched, Numbers
from firn_spark.worker.formats.format import UNBOUNDED, Columns, Format
from firn_spark.worker.formats.framing import schema_ids


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why values with the id of a schema are bad records."""

    code: Code
    detail: str


WriterSchemas = Mapping[int, WriterSchema | Refusal]
MOST_NEEDED = 200
"""Most ids that a task returns at a time."""


class SchemasNeededError(Exception):
    """A task read values whose schemas it does not have."""

    def __init__(self, ids: list[int]) -> None:
        super().__init__(f"the task needs the schemas {ids}")
        self.ids = ids


def _to_open(schema: RecordSchema, number: int, writer: WriterSchema) -> RecordSchema:
    """Return the schema with which to decode the values of a writer. JSON names its members, so all writers have the same."""
    if schema.format is SchemaFormat.JSON:
        return schema.of_writer(0, WriterSchema(text=""))
    return schema.of_writer(number, writer)


class ByWriterSchema:
    """Decodes each value with its own schema."""

    def __init__(
        self, schema: RecordSchema, writer_schemas: WriterSchemas, open_one: Callable[[RecordSchema], Format]
    ) -> None:
        """Set up the formats of all schemas. ``open_one`` sets up the format of one. Raises InvalidSpecError."""
        self._types = [field.type for field in arrow_types.arrow_schema(schema.fields)]
        self._formats: dict[int, Format] = {}
        self._refusals: dict[int, Refusal] = {}
        for number, writer in writer_schemas.items():
            if isinstance(writer, Refusal):
                self._refusals[number] = writer
                continue
            self._formats[number] = open_one(_to_open(schema, number, writer))

    @property
    def most_bytes(self) -> int:
        """Implement `Format.most_bytes`: the smallest value of all formats."""
        return min((each.most_bytes for each in self._formats.values()), default=UNBOUNDED)

    @property
    def row_bytes(self) -> int:
        """Implement `Format.row_bytes`: the most of all writers."""
        return max((each.row_bytes for each in self._formats.values()), default=0)

    def decode(self, records: Fetched) -> Columns:
        """Implement `Format.decode`. Raises SchemasNeededError."""
        ids = schema_ids(records.values)
        found = np.unique(ids).tolist()
        known = self._formats.keys() | self._refusals.keys()
        missing = [number for number in found if number >= 0 and number not in known]
        if missing:
            raise SchemasNeededError(missing[:MOST_NEEDED])
        parts = [(np.flatnonzero(np.isin(ids, numbers)), numbers[0]) for numbers in self._alike(found)]
        decoded = [(places, self._decode(records, places, number)) for places, number in parts]
        if len(decoded) == 1:
            return decoded[0][1]
        order = np.argsort(np.concatenate([places for places, _ in decoded])) if decoded else np.empty(0, np.int64)
        arrays = [
            pa.concat_arrays([columns.arrays[place] for _, columns in decoded]).take(pa.array(order))
            if decoded
            else pa.array([], kind)
            for place, kind in enumerate(self._types)
        ]
        errors = {int(places[at]): error for places, columns in decoded for at, error in columns.errors.items()}
        # JSON has times, and one format.
        times = next((columns.times for _, columns in decoded if columns.times), {})
        return Columns(arrays, errors, times)

    def _alike(self, ids: list[int]) -> list[list[int]]:
        """Return lists of ids whose values are decoded together, because they have the same format."""
        groups: dict[int, list[int]] = {}
        for number in ids:
            one = self._formats.get(number)
            groups.setdefault(number if one is None else -2 - id(one), []).append(number)
        return list(groups.values())

    def _decode(self, records: Fetched, places: Numbers, number: int) -> Columns:
        """Decode the values with one id, or those without an id (-1)."""
        one = self._formats.get(number)
        if one is not None:
            return one.decode(records if len(places) == len(records) else records.select(places))
        errors = {
            at: self._unreadable(number, int(records.values.ends[place] - records.values.firsts[place]))
            for at, place in enumerate(places.tolist())
            if records.values.present[place]
        }
        return Columns([pa.nulls(len(places), kind) for kind in self._types], errors)

    def _unreadable(self, number: int, size: int) -> BadRecordError:
        if number >= 0:
            return BadRecordError(self._refusals[number].code, Stage.DECODE, self._refusals[number].detail)
        if not size:
            return BadRecordError(Code.EMPTY_PAYLOAD, Stage.DECODE, "the value is empty")
        return BadRecordError(
            Code.UNKNOWN_SCHEMA,
            Stage.DECODE,
            "the value has no framing of a schema registry; let the producer use a serializer that writes a byte 0 and the schema id",
        )
