"""The formats that a schema can name."""

import functools
from collections.abc import Callable, Mapping

import numpy as np

from firn.model.jobs import RecordSchema, SchemaFormat
from firn_spark.worker.fetched import Numbers, Places
from firn_spark.worker.formats import header_ids
from firn_spark.worker.formats.by_writer import ByWriterSchema
from firn_spark.worker.formats.format import Format
from firn_spark.worker.formats.raw.passing import RawFormat
from firn_spark.worker.formats.writer_schemas import WriterSchemas

MOST_KEPT = 64
"""Formats of schemas of a registry that a process keeps from one task to the next."""


def _json(schema: RecordSchema) -> Format:
    # The compiler takes a second and 100 MB. The driver imports this module, too, and never decodes.
    from firn_spark.worker.formats.json.decoding import JsonFormat

    return JsonFormat(schema)


def _avro(schema: RecordSchema) -> Format:
    from firn_spark.worker.formats.avro.decoding import AvroFormat

    return AvroFormat(schema)


def _protobuf(schema: RecordSchema) -> Format:
    from firn_spark.worker.formats.protobuf.decoding import ProtobufFormat

    return ProtobufFormat(schema)


_FORMATS: Mapping[SchemaFormat, Callable[[RecordSchema], Format]] = {
    SchemaFormat.AVRO: _avro,
    SchemaFormat.JSON: _json,
    SchemaFormat.PROTOBUF: _protobuf,
    SchemaFormat.RAW: RawFormat,
}


@functools.lru_cache(MOST_KEPT)
def _cached_format(schema: RecordSchema) -> Format:
    return _FORMATS[schema.format](schema)


def open_format(schema: RecordSchema, writer_schemas: WriterSchemas, header: str = header_ids.VALUE) -> Format:
    """Set up the format that ``schema`` names. ``writer_schemas`` are the known schemas of its registry.

    ``header`` is the one that may have the id of a value's schema. Raises InvalidSpecError for a column type that does not exist, and
    for an invalid schema of a topic without a registry.
    """
    if schema.subject is not None:
        return ByWriterSchema(schema, writer_schemas, _cached_format, header)
    return _FORMATS[schema.format](schema)


def index_ends(values: Places) -> tuple[Numbers, Numbers]:
    """Return the ends of the message indexes with which Protobuf values begin, and for which values these are known."""
    from firn_spark.worker.formats.protobuf.kernel import skip_indexes

    ends, sure = np.empty(len(values), np.int64), np.empty(len(values), bool)
    skip_indexes(values.data, values.firsts, values.ends, values.present, np.zeros(0, np.int64), ends, sure)
    return ends, sure
