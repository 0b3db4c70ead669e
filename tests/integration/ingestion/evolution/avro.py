"""Avro schemas, in which a renamed field has its earlier names as aliases."""

import io
import random
from collections.abc import Mapping
from typing import Any

import fastavro

from tests.integration.ingestion.evolution.shape import Fields, Rendered, Shape

KINDS = {name: name for name in ("int", "long", "float", "double", "string", "boolean", "bytes")}


class Avro:
    """Implements `Format`."""

    name: str = "Avro"
    message: str = ""
    kinds: Mapping[str, str] = KINDS
    changes: tuple[str, ...] = ("add", "add", "drop", "alter", "order", "rename")

    def render(self, shape: Shape, columns: Mapping[str, int], pick: random.Random) -> Rendered:
        """Implement `Format.render`."""

        def record(name: str, place: str, *more: dict[str, Any]) -> dict[str, Any]:
            return {"type": "record", "name": name, "fields": [*declared(shape[place]), *more]}

        def declared(fields: Fields) -> list[dict[str, Any]]:
            return [
                {"name": name, "type": ["null", one.kind], "aliases": earlier(name)} for name, one in fields.items()
            ]

        def earlier(name: str) -> list[str]:
            return [each for each, column in columns.items() if column == columns[name] and each != name]

        whole = record(
            "Outer",
            "",
            {"name": "id", "type": "long"},
            {"name": "inner", "type": record("Inner", "inner", {"name": "deep", "type": record("Deep", "inner.deep")})},
            {"name": "items", "type": {"type": "array", "items": record("Item", "items")}},
            {"name": "by_name", "type": {"type": "map", "values": record("Named", "by_name")}},
        )
        parsed = fastavro.parse_schema(whole)
        return Rendered(whole, lambda content: encoded(parsed, content))


def encoded(schema: Any, content: dict[str, Any]) -> bytes:
    """Return a value as bytes."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, schema, content)
    return buffer.getvalue()


def framed(schema_id: int, schema: Any, content: dict[str, Any]) -> bytes:
    """Return a value with the id of its schema in front."""
    return b"\0" + schema_id.to_bytes(4) + encoded(schema, content)
