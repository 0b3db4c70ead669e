"""The latest schema of the values of a connector: from a file, or from the schema registry of its converter."""

import base64
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firn import protoc
from firn.api.v1alpha1.iceberg_topic import with_columns
from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, InvalidSpecError, UnavailableError
from firn.model.jobs import RecordSchema, RegistryConnection, SchemaFormat, WriterSchema
from firn.schema_registry import TYPES, SchemaRegistry
from firn_operator.cli.adoption.connector import Connector


@dataclass(frozen=True, slots=True)
class Latest:
    """A schema, and its place in the words of messages."""

    place: str
    schema: WriterSchema
    kind: str = ""
    """The type of the schema in a registry, such as AVRO. Empty: that of the topic."""
    number: int | None = None

    def columns(self, found: RecordSchema) -> RecordSchema:
        """Return the schema of a topic with the columns of this text. Raises InvalidSpecError that names the place and the field."""
        if self.kind and self.kind != TYPES[found.format]:
            raise InvalidSpecError(
                f"{self.place} has the type {self.kind}, and the converter reads {found.format}; name the schema of the values with --schema",
                reason=Reason.BAD_SCHEMA,
            )
        update: dict[str, Any] = {"text": self.schema.text, "schema_id": self.number}
        if found.format is SchemaFormat.PROTOBUF:
            imports = tuple(sorted(zip(self.schema.names, self.schema.references, strict=True)))
            try:
                update["descriptors"] = base64.b64encode(protoc.descriptors(self.schema.text, imports)).decode()
            except InvalidSpecError as error:
                raise InvalidSpecError(f"{self.place}: {error}", reason=error.reason) from None
        else:
            update |= {"references": self.schema.references, "names": self.schema.names}
        return with_columns(found.model_copy(update=update), self.place)


def of_file(file: str) -> Latest:
    """Return the schema in a file: its text, or an answer of the registry with it. Raises InvalidSpecError."""
    try:
        text = Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSpecError(
            f"{file}: the schema cannot be read: {error}; save it from REGISTRY_URL/subjects/SUBJECT/versions/latest, and name the file with"
            " --schema"
        ) from error
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None  # A text of Protobuf.
    kind, number = "", None
    if isinstance(answer, dict) and isinstance(answer.get("schema"), str):
        if answer.get("references"):
            raise InvalidSpecError(
                f"{file}: the schema refers to other schemas, which the file does not have; run the command where the registry of the"
                " connector is reachable, without --schema"
            )
        text, kind, number = answer["schema"], str(answer.get("schemaType") or "AVRO"), answer.get("id")
    return Latest(f"the schema of {file}", WriterSchema(text=text), kind, number if isinstance(number, int) else None)


def of_registry(connector: Connector, subject: str) -> tuple[Latest | None, str]:
    """Return the latest schema of a subject. Return None and the cause if the registry of the connector gives none.

    The command has no credentials of the registry. Raises InvalidSpecError for a schema that no process of Firn can use.
    """
    url = connector.registry
    if not url:
        return None, "the connector's file names no address of a registry with Confluent's API"
    registry = SchemaRegistry(url, RegistryConnection(url=url), lambda path: path)
    try:
        found = registry.latest(subject)
    except AccessDeniedError:
        return None, f"the registry at {url} rejects requests without credentials"
    except UnavailableError:
        return None, f"the registry at {url} gives no usable answer"
    if found is None:
        return None, f"the registry at {url} has no schema of this subject"
    return Latest(f"schema {found.id} of subject {subject}", found.schema, found.kind, found.id), ""
