"""Schemas of contracts, as the operator makes them from a subject of a schema registry."""

import base64
from pathlib import Path
from typing import Any

from firn import protoc
from firn.model.jobs import RecordSchema, SchemaFormat, Subject
from firn.schema_registry import SchemaRegistry
from firn.schemas.columns import columns_of
from tests.servers.apicurio import Apicurio


def schema_of(
    registry: Apicurio, subject: str, kind: str = "Avro", message: str = "", id_in: Any = "Payload"
) -> RecordSchema:
    """Return the schema of a contract with the latest schema of a subject."""
    latest = SchemaRegistry("main", registry.connection, Path.read_text).latest(subject)  # type: ignore[arg-type]
    assert latest is not None
    schema, writer = RecordSchema(format=SchemaFormat(kind), framing="Registry", message=message), latest.schema
    if schema.format is SchemaFormat.PROTOBUF:
        imports = tuple(zip(writer.names, writer.references, strict=True))
        content = base64.b64encode(protoc.descriptors(writer.text, imports)).decode()
        writer = writer.model_copy(update={"references": (), "descriptors": content})
    whole = schema.of_writer(latest.id, writer).model_copy(
        update={"subject": Subject(registry="main", name=subject, id_in=id_in)}
    )
    return whole.model_copy(update={"fields": columns_of(whole, subject)})
