"""The formats that a schema can name."""

from collections.abc import Callable, Mapping

from firn.model.jobs import RecordSchema, SchemaFormat
from firn_spark.worker.formats.format import Format
from firn_spark.worker.formats.raw.passing import RawFormat


def _json(schema: RecordSchema) -> Format:
    # The compiler takes a second and 100 MB. The driver imports this module, too, and never decodes.
    from firn_spark.worker.formats.json.decoding import JsonFormat

    return JsonFormat(schema)


def _avro(schema: RecordSchema) -> Format:
    from firn_spark.worker.formats.avro.decoding import AvroFormat

    return AvroFormat(schema)


_FORMATS: Mapping[SchemaFormat, Callable[[RecordSchema], Format]] = {
    SchemaFormat.AVRO: _avro,
    SchemaFormat.JSON: _json,
    SchemaFormat.RAW: RawFormat,
}


def open_format(schema: RecordSchema) -> Format:
    """Set up the format that ``schema`` names. Raises InvalidSpecError for a column type that does not exist."""
    return _FORMATS[schema.format](schema)
