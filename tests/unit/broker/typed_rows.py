"""Rows that a table has for JSON values, as drivers decode and write them."""

import io
import json
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from firn.decoders.json import RecordReader
from firn.model.jobs import Column, RecordSchema
from firn.records.values import FRAMING
from firn_broker.history.shapes.choosing import Chooser
from firn_broker.history.shapes.rendering import NO_SHAPE, render, struct_of
from firn_broker.history.shapes.shape import described, shapes_of
from firn_spark.ingestion.history.record_fields import member_fields
from firn_spark.tables.java_tables import schema_json
from firn_spark.worker.data_files import arrow_schema
from tests.unit.spark_driver.topic import job

FIRST_FIELD = 100
"""The columns of Kafka have the ids below."""


class Typed:
    """A table with these columns, as (name, type in the notation of a spec)."""

    def __init__(self, columns: Mapping[str, str], **options: Any) -> None:
        self.columns = tuple(Column(name=name, type=kind) for name, kind in columns.items())
        schema = _moved(json.loads(schema_json(self.columns)))
        tables: Any = SimpleNamespace(names=lambda _: (schema["fields"], {}))
        schema_of_records = RecordSchema(format="Json", fields=self.columns)
        self.members = member_fields(tables, None, job(record_schema=schema_of_records))
        self.names = {(each.parent, each.name): each.field for each in self.members}
        self.schema = arrow_schema(Schema.model_validate(schema))
        self._reader = RecordReader.for_schema(self.columns, refuse_unknown=False, **options)

    def columns_of(self, texts: Sequence[bytes | None]) -> list[pa.Array]:
        """Return the columns of the rows for JSON values."""
        rows = [
            self._reader.read(None if text is None else text[FRAMING if text[:1] == b"\0" else 0 :]) for text in texts
        ]
        return [_array([row[place] for row in rows], field.type) for place, field in enumerate(self.schema)]

    def rows(self, texts: Sequence[bytes | None]) -> pa.StructArray:
        """Return the rows of a data file as shapes take them."""
        file = io.BytesIO()
        pq.write_table(pa.table(self.columns_of(texts), schema=self.schema), file)
        read = pq.ParquetFile(file).read_row_group(0)
        ids = [int(field.metadata[b"PARQUET:field_id"]) for field in self.schema]
        return struct_of({id: column.chunk(0) for id, column in zip(ids, read.columns, strict=True)}, len(texts))

    def compared(self, texts: Sequence[bytes | None]) -> tuple[pa.StructArray, pa.Array]:
        """Return the rows of JSON values, and the values."""
        return self.rows(texts), pa.array(texts, pa.binary())

    def unshaped(self, texts: Sequence[bytes | None], chooser: Chooser | None = None) -> list[bytes]:
        """Return the texts to which no shape was found. All others have to come back from their rows."""
        chooser = Chooser(self.names) if chooser is None else chooser
        rows, wanted = self.compared(texts)
        numbers = chooser.numbers(rows, wanted)
        # Shapes lie in entries as JSON.
        shapes = shapes_of(json.loads(json.dumps(described(chooser.shapes))))
        assert shapes == tuple(chooser.shapes)
        rendered = render(shapes, numbers, rows).to_pylist()
        shaped = numbers != NO_SHAPE
        assert [text for text, is_shaped in zip(rendered, shaped.tolist(), strict=True) if is_shaped] == [
            text for text, is_shaped in zip(texts, shaped.tolist(), strict=True) if is_shaped
        ]
        return [texts[place] for place in np.flatnonzero(~shaped).tolist() if texts[place] is not None]


def _moved(schema: Any) -> Any:
    """Return a schema of Iceberg with ids that the columns of Kafka do not have."""
    if isinstance(schema, list):
        return [_moved(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    ids = ("id", "element-id", "key-id", "value-id")
    return {name: value + FIRST_FIELD if name in ids else _moved(value) for name, value in schema.items()}


def _array(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    return pa.array(values, kind)
