"""The columns of a schema, whatever its format."""

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, RecordSchema, SchemaFormat
from firn.schemas import avro, json_schema, protobuf
from firn.tables import types


def columns_of(schema: RecordSchema, place: str) -> tuple[Column, ...]:
    """Return the columns of a schema's text. Raises InvalidSpecError (BadSchema) that names ``place``, cause and field."""
    try:
        found = _found(schema)
        for column in found:
            if column.name.startswith("_kafka"):
                problem = (
                    "names that start with _kafka are reserved for Kafka's columns; let producers rename the field"
                )
                raise _bad_schema(f"field {column.name}: {problem}")
        if len(found) > types.MOST_COLUMNS:
            raise _bad_schema(
                f"the schema has {len(found)} columns; a topic has at most {types.MOST_COLUMNS}; remove fields"
            )
    except InvalidSpecError as error:
        raise InvalidSpecError(f"{place}: {error}", reason=error.reason) from None
    return found


def _found(schema: RecordSchema) -> tuple[Column, ...]:
    if schema.format is SchemaFormat.PROTOBUF:
        return protobuf.columns(protobuf.message_of(schema))
    if schema.format is SchemaFormat.JSON:
        return json_schema.columns(schema.text, dict(zip(schema.names, schema.references, strict=True)))
    return avro.columns(avro.parse(schema.text, schema.references))


def _bad_schema(problem: str) -> InvalidSpecError:
    return InvalidSpecError(problem, reason=Reason.BAD_SCHEMA)
