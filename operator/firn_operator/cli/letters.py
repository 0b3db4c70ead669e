"""``firn dlq list`` and ``firn dlq show``: the dead letters of a topic, read from its dead-letter table.

Both read the catalog, so they run in the operator's pod.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from firn import member_paths
from firn.member_paths import Path
from firn.model import names
from firn.model.errors import InvalidSpecError
from firn.tables import types
from firn_operator.cli import query
from firn_operator.cli.lake import Lake

TOO_MUCH_MEMORY = (
    "the dead letters need more memory than the command has: lower --limit, or read the dead-letter table with an engine"
    " such as Spark or Trino"
)
_MASK = "***"
_ROOT = re.compile(r"\$(?:key\b)?")
_STEP = re.compile(rf"\.{member_paths.NAME.pattern}|\[{member_paths.QUOTED}\]|\[[0-9]+\]", re.ASCII)
"""A step of the place of an error: a name as the spec can have it, or a position in a list."""
_COUNTS = """
SELECT error_code AS code, count(*) AS letters, min(ingested_at) AS first, max(ingested_at) AS last,
  min(generation) AS "first generation", max(generation) AS "last generation"
FROM {table} GROUP BY error_code ORDER BY letters DESC, code
"""
_LETTERS = """
SELECT _kafka.partition AS partition, _kafka."offset" AS "offset", ingested_at, generation, error_code AS code, error_path AS path{values}
FROM {table} {where} ORDER BY ingested_at DESC, partition, "offset" LIMIT {limit}
"""
_VALUES = ", error_detail AS detail, key, value, _kafka.headers AS headers"


def counts(lake: Lake, topic: Mapping[str, Any]) -> pa.Table:
    """Return the number of dead letters by cause, with the times of the first and the last one. Raises the errors of `query.run`."""
    table = _table(lake, topic)
    return (
        query.run(lake, _COUNTS.format(table=table))
        if table is not None
        else pa.table({"code": pa.array([], pa.string())})
    )


def letters(lake: Lake, topic: Mapping[str, Any], codes: Sequence[str], limit: int, *, values: bool) -> pa.Table:
    """Return the newest dead letters. Keys, values, headers and details of errors, which may quote values, only with ``values``.

    If the spec masks or hashes a column, `_MASK` is in place of its values, and of names that come from the record.
    """
    table = _table(lake, topic)
    if table is None:
        return pa.table({"code": pa.array([], pa.string())})
    texts = ", ".join("'{}'".format(code.replace("'", "''")) for code in codes)
    where = f"WHERE error_code IN ({texts})" if codes else ""
    found = query.run(lake, _LETTERS.format(table=table, where=where, limit=limit, values=_VALUES if values else ""))
    sources = _protected(topic)
    if not sources:
        return found
    known = set(_places((topic.get("spec") or {}).get("schema") or {}))
    rows = [{**row, "path": row["path"] and _masked_path(row["path"], known)} for row in found.to_pylist()]
    if values:
        rows = [_masked(row, sources) for row in rows]
    return pa.Table.from_pylist(rows, found.schema)


def _protected(topic: Mapping[str, Any]) -> list[str]:
    """Return the sources of the columns that the spec masks or hashes, also for the tables of routes.

    If a schema renames fields, an earlier name can hold the value too, so the whole value is a source.
    """
    spec = topic.get("spec") or {}
    tables = (spec.get("routes") or {}).get("tables") or []
    sources: list[str] = []
    for schema in (each.get("schema") or {} for each in (spec, *tables)):
        columns = schema.get("columns") or []
        found = [column["from"] for column in columns if column.get("with") and column.get("from")]
        renamed = schema.get("renames") and any(source.startswith("$") for source in found)
        sources += [*found, *(["value"] if renamed else [])]
    return sources


def _places(schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the places of errors that the spec names, such as ``.items[].price``: of fields, columns and sources. None is in a map."""
    for field in schema.get("fields") or []:
        try:
            kind = types.parse(field["type"])
        except InvalidSpecError:
            continue
        yield from _inside(member_paths.step(field["name"]), kind)
    for column in schema.get("columns") or []:
        yield f".{column['name']}"
        steps = list(map(member_paths.step, _path(column.get("from") or "")))
        yield from ("".join(steps[:length]) for length in range(1, len(steps) + 1))


def _path(source: str) -> Path:
    """Return the path of a source in the value; an empty one if it has none, or a bad one."""
    try:
        return member_paths.parse(source) if source.startswith("$") else ()
    except member_paths.BadPathError:
        return ()


def _inside(place: str, kind: types.Type) -> Iterator[str]:
    yield place
    match kind:
        case types.Struct(fields):
            for name, member in fields:
                yield from _inside(place + member_paths.step(name), member)
        case types.ListOf(element):
            yield from _inside(f"{place}[]", element)


def _masked_path(path: str, known: Collection[str]) -> str:
    """Return the place of an error with `_MASK` from the first name on that the spec does not have: the record's own name or key."""
    root = _ROOT.match(path)
    if root is None:
        return _MASK
    # The fields of keys are no fields of values, so no place in a key is known.
    end, place = root.end(), root[0][1:]
    while end < len(path):
        step = _STEP.match(path, end)
        place += "" if step is None else "[]" if step[0][1].isdigit() else step[0]
        if step is None or place not in known:
            return f"{path[:end]}.{_MASK}"
        end = step.end()
    return path


def _masked(row: dict[str, Any], sources: Sequence[str]) -> dict[str, Any]:
    """Return a letter with `_MASK` in place of the values of sources, and of details of errors, which may quote these values."""
    masked = {**row, "detail": row["detail"] and _MASK, "value": _masked_value(row["value"], sources)}
    if "key" in sources:
        masked["key"] = row["key"] and _MASK.encode()
    masked["headers"] = row["headers"] and [
        {**header, "value": _MASK.encode()} if f"header:{header['key']}" in sources else header
        for header in row["headers"]
    ]
    return masked


def _masked_value(value: bytes | None, sources: Sequence[str]) -> bytes | None:
    """Mask the fields of a JSON object. Mask the whole value if it is no JSON object, or lacks one of the fields."""
    paths = [_path(source) for source in sources if source.startswith("$")]
    if value is None or not (paths or "value" in sources):
        return value
    if () in paths:  # A bad path says nothing about the place of the value.
        return _MASK.encode()
    try:
        document = json.loads(value)
        for *parents, last in paths:
            inner = document
            for name in parents:
                inner = inner[name]
            if last not in inner:
                return _MASK.encode()
            inner[last] = _MASK
        # Half of a surrogate pair has no UTF-8.
        shown = json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, LookupError, TypeError, RecursionError):
        return _MASK.encode()
    return _MASK.encode() if "value" in sources else shown


def _table(lake: Lake, topic: Mapping[str, Any]) -> str | None:
    """Return the dead-letter table as SQL names it; None if the topic never had a dead letter."""
    identifier = ((topic.get("status") or {}).get("table") or {}).get("identifier")
    if not identifier:
        name = f"{topic['metadata']['namespace']}/{topic['metadata']['name']}"
        raise InvalidSpecError(f"IcebergTopic {name} has no table yet; read its conditions")
    shared = ((topic.get("spec") or {}).get("table") or {}).get("shared") is True
    dead = names.dead_letters(identifier, topic["metadata"]["name"] if shared else "")
    if lake.look_up(dead) is None:
        return None
    return ".".join(query.quoted(part) for part in dead.split("."))
