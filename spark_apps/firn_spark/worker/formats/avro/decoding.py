"""Avro values to columns: compiled if the fast decoder vouches for its answer, else strictly, record by record."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from firn.decoders import avro_limits as limits
from firn.decoders.avro import RecordReader
from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.model.jobs import RecordSchema
from firn.schemas import avro
from firn.tables import rows, types
from firn.tables.types import Struct
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Fetched, Numbers, Places
from firn_spark.worker.formats import arrays
from firn_spark.worker.formats.avro.rows import fields_of
from firn_spark.worker.formats.format import Columns
from firn_spark.worker.formats.framing import BYTES, unframed


class AvroFormat:
    """Decodes record values by the schema of their writer."""

    row_bytes = 0

    def __init__(self, schema: RecordSchema) -> None:
        """Set up both decoders. Raises InvalidSpecError for an invalid schema."""
        self._columns = arrow_types.arrow_schema(schema.fields)
        read = rows.read_fields(schema)
        record = avro.renamed(
            avro.parse(
                schema.text,
                schema.references,
                nanoseconds=schema.nanoseconds,
                read=read,
                paths=rows.read_members(schema),
            ),
            schema.renames,
        )
        wanted = Struct(tuple((column.name, types.parse(column.type)) for column in schema.fields))
        marked = avro.read_as(record, wanted)
        assert isinstance(marked, avro.Record)
        record = marked
        columns = {field.name: field.type for field in self._columns}
        # Otherwise, bytes of a field without a column have to be valid, too.
        passed = frozenset(each.name for each in record.fields if each.name not in columns) if read is not None else ()
        self._rows, self._order = fields_of(record.fields, columns, passed)
        self._reader = RecordReader(record, passed)
        self._framed = schema.framing == "Registry"
        decoded = replace(record, fields=tuple(each for each in record.fields if each.name not in passed))
        self.most_bytes = limits.most_bytes(decoded)

    def decode(self, records: Fetched) -> Columns:
        """Decode values into one column for each field."""
        values, framed = unframed(records.values) if self._framed else (records.values, None)
        found, vouched = self._rows.read(values.data, values.firsts, values.ends, values.present)
        columns = [
            pa.nulls(len(values), field.type) if place is None else found[place]
            for field, place in zip(self._columns, self._order, strict=True)
        ]
        if framed is not None:
            vouched &= framed | ~values.present
        doubted = np.flatnonzero(~vouched)
        if not len(doubted):
            return Columns(columns, {})
        strict = self._strict(values.select(doubted), None if framed is None else framed[doubted])
        merged = arrays.replaced(columns, doubted, strict.arrays)
        return Columns(merged, {int(doubted[index]): error for index, error in strict.errors.items()})

    def _strict(self, values: Places, framed: Numbers | None) -> Columns:
        """Decode the values one by one. ``framed`` marks those with a framing. It is None if values need no framing."""
        errors: dict[int, BadRecordError] = {}
        records: list[Mapping[str, Any]] = []
        for index, value in enumerate(values.to_list()):
            try:
                if framed is not None and value and not framed[index]:
                    raise BadRecordError(
                        Code.INVALID_AVRO,
                        Stage.DECODE,
                        "the value does not begin with the five bytes of a schema registry; set framing: None, or let the producer write them",
                    )
                records.append(self._reader.read(value, 0 if framed is None else BYTES))
            except BadRecordError as error:
                errors[index] = error
                records.append({})
        columns = [
            pa.array((record.get(field.name) for record in records), field.type, size=len(records))
            for field in self._columns
        ]
        return Columns(columns, errors)
