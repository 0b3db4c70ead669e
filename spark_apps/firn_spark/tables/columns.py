"""Columns of a table by name: data files name their columns by field id, and a column that comes again has another id."""

import json
from collections.abc import Iterator, Mapping
from typing import Any


def replaced_column(written: str, current: str) -> str | None:
    """Return a column of the schema ``written`` that has another field id in the schema ``current``, else None.

    Both are Iceberg's JSON. A data file with the former id has no values for the column that has the name now. A
    column that was only dropped or renamed is not replaced.
    """
    present = dict(_ids(json.loads(current)))
    return next((name for name, field_id in _ids(json.loads(written)) if present.get(name, field_id) != field_id), None)


def _ids(node: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield the full name and the id of each field below a type of Iceberg's JSON."""
    if not isinstance(node, Mapping):
        return
    for field in node.get("fields", ()):
        name = f"{path}.{field['name']}" if path else field["name"]
        yield name, field["id"]
        yield from _ids(field["type"], name)
    for part in ("element", "key", "value"):
        if part in node:
            yield f"{path}.{part}", node[f"{part}-id"]
            yield from _ids(node[part], f"{path}.{part}")
