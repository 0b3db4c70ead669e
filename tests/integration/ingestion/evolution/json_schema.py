"""JSON schemas, which have no renames. A type, null and required members can be said in several ways."""

import json
import random
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

from tests.integration.ingestion.evolution.shape import Field, Fields, Rendered, Shape

TYPES: Mapping[str, dict[str, Any]] = {
    "integer": {"type": "integer"},
    "number": {"type": "number"},
    "boolean": {"type": "boolean"},
    "string": {"type": "string"},
    "moment": {"type": "string", "format": "date-time"},
    "date": {"type": "string", "format": "date"},
}
DRAFTS = (None, "http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2020-12/schema")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
KINDS = {
    "integer": "long",
    "number": "double",
    "boolean": "boolean",
    "string": "string",
    "moment": "moment",
    "date": "date",
}


class Json:
    """Implements `Format`."""

    name: str = "Json"
    message: str = ""
    kinds: Mapping[str, str] = KINDS
    changes: tuple[str, ...] = ("add", "add", "drop", "alter", "order")

    def render(self, shape: Shape, columns: Mapping[str, int], pick: random.Random) -> Rendered:
        """Implement `Format.render`."""
        closed = pick.random() < 0.3
        definitions = {f"{name}_or_null": {"oneOf": [{"type": "null"}, one]} for name, one in TYPES.items()}

        def declared(one: Field) -> dict[str, Any]:
            kind = TYPES[one.kind]
            ways: list[dict[str, Any]] = [
                kind,
                {**kind, "type": [kind["type"], "null"]},
                {"anyOf": [kind, {"type": "null"}]},
                {"$ref": f"#/$defs/{one.kind}_or_null"},
                {"allOf": [kind, {"title": "T"}]},
            ]
            return pick.choice(ways)

        def record(fields: Fields, **more: Any) -> dict[str, Any]:
            properties = {**{name: declared(one) for name, one in fields.items()}, **more}
            made: dict[str, Any] = {"type": "object", "title": f"T{pick.randrange(9)}", "properties": properties}
            if closed:
                made["additionalProperties"] = False
            elif pick.random() < 0.2:
                made["additionalProperties"] = {"type": "string"}
            if pick.random() < 0.3:
                made["required"] = pick.sample(sorted(properties), len(properties) // 2)
            return made

        whole = record(
            shape[""],
            id={"type": "integer"},
            inner=record(shape["inner"], deep=record(shape["inner.deep"])),
            items={"type": "array", "items": record(shape["items"])},
            by_name={"type": "object", "additionalProperties": record(shape["by_name"])},
        )
        whole["$defs"] = definitions
        draft = pick.choice(DRAFTS)
        if draft is not None:
            whole["$schema"] = draft
        moments = {place: {name: one.kind for name, one in fields.items()} for place, fields in shape.items()}
        absent = pick.random() < 0.5

        def encode(content: dict[str, Any]) -> bytes:
            made = _written(content, moments[""], absent)
            made["inner"] = _written(content["inner"], moments["inner"], absent)
            made["inner"]["deep"] = _written(content["inner"]["deep"], moments["inner.deep"], absent)
            made["items"] = [_written(one, moments["items"], absent) for one in content["items"]]
            made["by_name"] = {
                key: _written(one, moments["by_name"], absent) for key, one in content["by_name"].items()
            }
            if not closed:
                made["undeclared"] = {"id": 1}
            return json.dumps(made, ensure_ascii=False).encode()

        return Rendered(whole, encode)


def _written(content: dict[str, Any], kinds: Mapping[str, str], absent: bool) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for name, value in content.items():
        match kinds.get(name):
            case _ if value is None:
                if absent:
                    continue
                made[name] = None
            case "moment":
                made[name] = (EPOCH + timedelta(microseconds=value)).isoformat()
            case "date":
                made[name] = (date(1970, 1, 1) + timedelta(days=value)).isoformat()
            case _:
                made[name] = value
    return made
