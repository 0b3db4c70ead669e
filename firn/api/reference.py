"""The API reference (docs/reference/api.md) from the CRDs: every field with its type and its description."""

import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from firn.api.crds import Manifest


def markdown(crds: list[Manifest]) -> str:
    """Return the page."""
    parts = [
        "# API reference",
        "",
        "`make generate` writes this page from the models. The API server checks the rules.",
        "The rule of an object is in the row of the object.",
    ]
    for crd in crds:
        spec = crd["spec"]
        version = spec["versions"][0]
        schema = version["schema"]["openAPIV3Schema"]
        kind = spec["names"]["kind"]
        parts += ["", f"## {kind}", "", f"`apiVersion: {spec['group']}/{version['name']}`, short name "]
        parts[-1] += f"`{spec['names']['shortNames'][0]}`, category `{spec['names']['categories'][0]}`."
        parts += ["", *textwrap.wrap(schema["description"], 120)]
        for section in ("spec", "status"):
            if section not in schema["properties"]:
                continue
            parts += ["", f"### {kind} {section}", "", "| field | type | meaning |", "|---|---|---|"]
            for path, field in _fields(section, schema["properties"][section]):
                parts.append(f"| `{path}` | {_type(field)} | {_meaning(field)} |")
    return "\n".join(parts) + "\n"


def _fields(path: str, schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    required = schema.get("required", ())
    for name, member in schema.get("properties", {}).items():
        yield from _fields(f"{path}.{name}", {**member, "_required": name in required})
    if schema.get("items", {}).get("properties"):
        yield from ((p, f) for p, f in _fields(f"{path}[]", schema["items"]) if p != f"{path}[]")


def _type(field: Mapping[str, Any]) -> str:
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "type" not in field:
        return "string or object"
    if field["type"] == "array":
        return f"list of {_type(field['items'])}"
    if "additionalProperties" in field:
        return f"map of {_type(field['additionalProperties'])}"
    return str(field.get("format", field["type"])).replace("int64", "integer")


def _meaning(field: Mapping[str, Any]) -> str:
    words = [str(field.get("description", "")), "Required." if field.get("_required") else ""]
    return " ".join(word for word in words if word).replace("|", "\\|")
