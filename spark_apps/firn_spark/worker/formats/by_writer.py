"""Values of a topic with a schema registry: `ByWriterSchema` decodes each one with its own schema, into the columns of the table."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from firn.decoders.bad_records import BadRecordError, Stage
from firn.model.jobs import RecordSchema, SchemaFormat, WriterSchema
from firn.tables.rows import decoded_columns
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Fetched, Numbers
from firn_spark.worker.formats import header_ids
from firn_spark.worker.formats.format import UNBOUNDED, Columns, Format, Times, add_times
from firn_spark.worker.formats.writer_schemas import Reference, Refusal, SchemasNeededError, WriterSchemas


def _to_open(schema: RecordSchema, number: int, writer: WriterSchema) -> RecordSchema:
    """Return the schema with which to decode the values of a writer. JSON names its members, so all writers have the same, except
    those of which a field has another column."""
    if schema.format is not SchemaFormat.JSON:
        return schema.of_writer(number, writer)
    other = {each.field for each in schema.versions if each.schema_id == number}
    fields = tuple(field for field in schema.fields if field.name not in other)
    made = schema.model_copy(update={"fields": fields}).of_writer(number if other else 0, WriterSchema(text=""))
    return made.model_copy(update={"schema_id": 0})


class _WithoutFields:
    """A format that decodes some of the columns. The others are null."""

    def __init__(self, schema: RecordSchema, part: RecordSchema, one: Format) -> None:
        self._one = one
        names = [column.name for column in decoded_columns(part)]
        columns = decoded_columns(schema)
        self._places = [names.index(column.name) if column.name in names else None for column in columns]
        self._types = [field.type for field in arrow_types.arrow_schema(columns)]
        self.most_bytes, self.row_bytes = one.most_bytes, one.row_bytes

    def decode(self, records: Fetched) -> Columns:
        """Implement `Format.decode`."""
        found = self._one.decode(records)
        filled = [
            pa.nulls(len(records), kind) if place is None else found.arrays[place]
            for place, kind in zip(self._places, self._types, strict=True)
        ]
        return dataclasses.replace(found, arrays=filled)


class ByWriterSchema:
    """Decodes each value with its own schema."""

    def __init__(
        self,
        schema: RecordSchema,
        writer_schemas: WriterSchemas,
        open_one: Callable[[RecordSchema], Format],
        header: str = header_ids.VALUE,
    ) -> None:
        """Decode with the formats that ``open_one`` sets up, each at its first use. ``header`` may have the id of a value."""
        assert schema.subject is not None
        self._id_in, self._header = schema.subject.id_in, header
        if self._id_in == "None":
            schema = schema.model_copy(update={"framing": "None"})
        self._schema, self._known = schema, writer_schemas
        self._types = [field.type for field in arrow_types.arrow_schema(decoded_columns(schema))]
        self._open_one = open_one
        self._formats: dict[int, Format] = {}
        """The formats in use. A topic can have hundreds of schemas, and each format takes milliseconds."""
        self._readable = sum(isinstance(writer, WriterSchema) for writer in writer_schemas.values())

    def prepare(self, records: Fetched) -> None:
        """Set up the formats of the schemas that records name, so that `most_bytes` and `row_bytes` count them. Raises InvalidSpecError."""
        if len(self._formats) < self._readable:
            for number in self._named(records):
                self._format_of(number)

    @property
    def most_bytes(self) -> int:
        """Implement `Format.most_bytes`: the smallest value of all formats in use."""
        return min((each.most_bytes for each in self._formats.values()), default=UNBOUNDED)

    @property
    def row_bytes(self) -> int:
        """Implement `Format.row_bytes`: the most of all formats in use."""
        return max((each.row_bytes for each in self._formats.values()), default=0)

    def decode(self, records: Fetched) -> Columns:
        """Implement `Format.decode`. Raises SchemasNeededError, and InvalidSpecError for an invalid schema of a record."""
        records, ids, bad, missing = self._identified(records)
        found = np.unique(ids).tolist()
        missing += self._unknown(found)
        if missing:
            raise SchemasNeededError(missing)
        parts = [(np.flatnonzero(np.isin(ids, numbers)), numbers[0]) for numbers in self._alike(found)]
        decoded = [(places, self._decode(records, places, number)) for places, number in parts]
        if len(decoded) == 1:
            only = decoded[0][1]
            return dataclasses.replace(only, errors=only.errors | bad, schema_ids=ids)
        order = np.argsort(np.concatenate([places for places, _ in decoded])) if decoded else np.empty(0, np.int64)
        arrays = [
            pa.concat_arrays([columns.arrays[place] for _, columns in decoded]).take(pa.array(order))
            if decoded
            else pa.array([], kind)
            for place, kind in enumerate(self._types)
        ]
        errors = {int(places[at]): error for places, columns in decoded for at, error in columns.errors.items()}
        times: dict[str, Times] = {}
        for _, columns in decoded:
            add_times(times, columns.times)
        return Columns(arrays, errors | bad, times, ids)

    def missing(self, records: Fetched) -> list[Reference]:
        """Return the schemas that `decode` would need, without decoding anything."""
        _, ids, _, missing = self._identified(records)
        return missing + self._unknown(np.unique(ids).tolist())

    def _unknown(self, ids: list[int]) -> list[Reference]:
        return [number for number in ids if number >= 0 and number not in self._known]

    def _format_of(self, number: int) -> Format | None:
        """Return the format of the values with an id, None if they cannot be read. Raises InvalidSpecError."""
        writer = self._known.get(number)
        if number not in self._formats and isinstance(writer, WriterSchema):
            part = _to_open(self._schema, number, writer)
            one = self._open_one(part)
            whole = part.fields == self._schema.fields
            self._formats[number] = one if whole else _WithoutFields(self._schema, part, one)
        return self._formats.get(number)

    def _named(self, records: Fetched) -> set[int]:
        """Return the ids that records name."""
        if self._id_in == "None":
            assert self._schema.schema_id is not None
            return {self._schema.schema_id}
        in_header = self._id_in == "Header"
        return header_ids.named(records, self._header, self._schema.format, self._known, in_header=in_header)

    def _identified(self, records: Fetched) -> tuple[Fetched, Numbers, dict[int, BadRecordError], list[Reference]]:
        """Return the records with their ids before the values, the ids (-1 without one), the records whose header is wrong, and the
        GUIDs that are not known."""
        if self._id_in == "None":
            assert self._schema.schema_id is not None
            return records, np.where(records.values.present, self._schema.schema_id, -1), {}, []
        in_header = self._id_in == "Header"
        return header_ids.identified(records, self._header, self._schema.format, self._known, in_header=in_header)

    def _alike(self, ids: list[int]) -> list[list[int]]:
        """Return lists of ids whose values are decoded together, because they have the same format."""
        groups: dict[int, list[int]] = {}
        for number in ids:
            one = self._format_of(number)
            groups.setdefault(number if one is None else -2 - id(one), []).append(number)
        return list(groups.values())

    def _decode(self, records: Fetched, places: Numbers, number: int) -> Columns:
        """Decode the values with one id, or those without an id (-1)."""
        one = self._format_of(number)
        if one is not None:
            return one.decode(records if len(places) == len(records) else records.select(places))
        errors = {
            at: self._unreadable(number, int(records.values.ends[place] - records.values.firsts[place]))
            for at, place in enumerate(places.tolist())
            if records.values.present[place]
        }
        return Columns([pa.nulls(len(places), kind) for kind in self._types], errors)

    def _unreadable(self, number: int, size: int) -> BadRecordError:
        refusal = self._known.get(number)
        if isinstance(refusal, Refusal):
            return BadRecordError(refusal.code, Stage.DECODE, refusal.detail)
        return header_ids.unidentified(self._header, size, in_header=self._id_in == "Header")
