"""Reads one field of each record as text, with the schema of its writer. So the text of a value is the same for all tables at all times."""

import functools
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, RecordSchema, SchemaFormat, WriterSchema
from firn.schemas.routes import field_schema, message_names
from firn_spark.worker.fetched import Fetched, Numbers
from firn_spark.worker.formats.by_writer import ByWriterSchema
from firn_spark.worker.formats.format import UNBOUNDED, Columns, Format
from firn_spark.worker.formats.registry import MOST_KEPT, open_format
from firn_spark.worker.formats.writer_schemas import Reference, SchemasNeededError, WriterSchemas
from firn_spark.worker.projections.messages import message_indexes, without_message
from firn_spark.worker.projections.projector import Projector

_TEXT = (Column(name="route", type="string"),)


class Fields:
    """The texts of a field in Avro or Protobuf values, by the schemas of a registry."""

    def __init__(self, schema: RecordSchema, known: WriterSchemas) -> None:
        """Read records as ``schema`` says, which is that of `firn.schemas.routes.registry_schema`."""
        self._values = ByWriterSchema(schema.model_copy(update={"fields": _TEXT}), known, _opened)

    def of(self, records: Fetched) -> tuple[pa.Array, dict[int, BadRecordError]]:
        """Return the texts, and the records whose value cannot be read. Raises SchemasNeededError.

        A text is null if the value or the field is null, or if the schema of the writer lacks the field.
        """
        try:
            found = self._values.decode(records)
        except SchemasNeededError as error:
            raise SchemasNeededError(error.ids, "routes") from None
        return found.arrays[0], dict(found.errors)

    def missing(self, records: Fetched) -> list[Reference]:
        """Return the schemas that `of` would need."""
        return self._values.missing(records)


@functools.lru_cache(MOST_KEPT)
def _opened(writer: RecordSchema) -> Format:
    """Return what reads the values of one writer. The tasks of a process meet the same writers again."""
    return _OfMessages(writer) if writer.format is SchemaFormat.PROTOBUF else _OfRecord(writer)


class _OfRecord:
    """Reads the field of Avro records, or of one message of Protobuf, of one writer."""

    most_bytes, row_bytes = UNBOUNDED, 0

    def __init__(self, writer: RecordSchema) -> None:
        self._format: Format | None = None
        self._problem = ""
        try:
            schema = field_schema(writer)
            if schema is not None:
                self._format, self._projector = open_format(schema, {}), Projector(schema)
        except InvalidSpecError as error:
            self._problem = str(error)

    def decode(self, records: Fetched) -> Columns:
        """Implement `Format.decode`."""
        if self._format is not None:
            return self._projector.project(records, self._format.decode(records))
        bad = range(len(records)) if self._problem else ()
        errors = {index: BadRecordError(Code.INCOMPATIBLE_SCHEMA, Stage.DECODE, self._problem) for index in bad}
        return Columns([pa.nulls(len(records), pa.string())], errors)


class _OfMessages:
    """Reads the field of the Protobuf messages of one writer. The message indexes choose the message of each value."""

    most_bytes, row_bytes = UNBOUNDED, 0

    def __init__(self, writer: RecordSchema) -> None:
        self._writer = writer
        self._names = message_names(writer.format, WriterSchema(text=writer.text, descriptors=writer.descriptors))
        self._messages: dict[str, _OfRecord] = {}

    def decode(self, records: Fetched) -> Columns:
        """Implement `Format.decode`."""
        codes, lists, errors = message_indexes(records.values)
        parts = [(np.flatnonzero(codes == code), indexes) for code, indexes in enumerate(lists)]
        parts.append((np.flatnonzero(codes == len(lists)), ()))
        decoded = [(places, self._decode(records.select(places), indexes)) for places, indexes in parts]
        for places, columns in decoded:
            for at, error in columns.errors.items():
                errors.setdefault(int(places[at]), error)
        return Columns([_in_order(decoded)], errors)

    def _decode(self, records: Fetched, indexes: tuple[int, ...]) -> Columns:
        """Read the values with these message indexes; nothing of those without."""
        name = self._names.get(indexes)
        if name is not None:
            if name not in self._messages:
                self._messages[name] = _OfRecord(self._writer.model_copy(update={"message": name}))
            return self._messages[name].decode(records)
        assert self._writer.schema_id is not None
        error = functools.partial(without_message, indexes, self._writer.schema_id)
        return Columns(
            [pa.nulls(len(records), pa.string())], {at: error() for at in range(len(records))} if indexes else {}
        )


def _in_order(decoded: Sequence[tuple[Numbers, Columns]]) -> pa.Array:
    order = np.argsort(np.concatenate([places for places, _ in decoded]))
    return pa.concat_arrays([columns.arrays[0] for _, columns in decoded]).take(pa.array(order))
