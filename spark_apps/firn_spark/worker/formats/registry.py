"""The formats that a schema can name."""

import functools
from collections.abc import Callable, Mapping

from firn.model.jobs import RecordSchema, SchemaFormat
from firn_spark.worker.formats.format import Format
from firn_spark.worker.formats.raw.passing import RawFormat
from firn_spark.worker.formats.writers import ByWriter, Writers

MOST_KEPT = 64
"""Most formats of writers that a process keeps from one task to the next."""


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
def _of_writer(schema: RecordSchema) -> Format:
    return _FORMATS[schema.format](schema)


def open_format(schema: RecordSchema, writers: Writers) -> Format:
    """Set up the format that ``schema`` names. ``writers`` are the known schemas of its registry.

    Raises InvalidSpecError for a column type that does not exist.
    """
    if schema.subject is not None:
        return ByWriter(schema, writers, _of_writer)
    return _FORMATS[schema.format](schema)
