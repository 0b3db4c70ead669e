"""Fields that other clients added to our child objects, found in the API server's record of field managers.

Server-side apply leaves fields of other managers, and sees no need to change them. Before a second apply, the record names
us as the manager of these fields. Then the apply removes each field that our manifest does not have.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from firn.model import names

Fields = dict[str, Any]
"""Fields in the form of ``FieldsV1``: a nested map, in which an empty map is a field, and ``.`` the field of the map itself."""

RESTORED = frozenset({"StatefulSet", "Service"})
"""Kinds whose ``spec`` has only our fields and the defaults of the API server."""
_SPEC = "f:spec"
_RESTARTED_AT = ("f:template", "f:metadata", "f:annotations", "f:kubectl.kubernetes.io/restartedAt")
"""Set by ``kubectl rollout restart``. Its removal would restart the pods a second time."""


def added_by(manifest: Mapping[str, Any]) -> list[str]:
    """Return the managers other than ours that have fields of ``spec``."""
    return sorted({str(entry.get("manager")) for entry in _entries(manifest) if _foreign(entry) and _theirs(entry)})


def taken_over(manifest: Mapping[str, Any]) -> list[Fields]:
    """Return ``metadata.managedFields`` of a live object with us as the manager of every field of ``spec``."""
    entries = deepcopy(_entries(manifest))
    ours = next(entry for entry in entries if _ours(entry))
    kept = []
    for entry in entries:
        theirs = _theirs(entry) if _foreign(entry) else {}
        if theirs:
            ours["fieldsV1"][_SPEC] = _union(ours["fieldsV1"].get(_SPEC) or theirs, theirs)
            left = _left(entry["fieldsV1"])
            if not left:
                continue
            entry["fieldsV1"] = left
        kept.append(entry)
    return kept


def _entries(manifest: Mapping[str, Any]) -> list[Fields]:
    entries: list[Fields] = manifest["metadata"].get("managedFields") or []
    return entries


def _ours(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") == names.FIELD_MANAGER and entry.get("operation") == "Apply"


def _foreign(entry: Mapping[str, Any]) -> bool:
    return entry.get("manager") != names.FIELD_MANAGER and entry.get("subresource") != "status"


def _theirs(entry: Mapping[str, Any]) -> Fields:
    """Return the fields of ``spec`` to take over from an entry."""
    return _cut(deepcopy((entry.get("fieldsV1") or {}).get(_SPEC) or {}), _RESTARTED_AT)


def _cut(fields: Fields, path: tuple[str, ...]) -> Fields:
    """Return ``fields`` without the field at ``path``, and without maps of which nothing else is a field."""
    first, *rest = path
    if first not in fields:
        return fields
    inner = _cut(fields[first], tuple(rest)) if rest else {}
    if not inner or set(inner) == {"."}:
        return {key: value for key, value in fields.items() if key != first}
    return {**fields, first: inner}


def _left(fields: Fields) -> Fields:
    """Return the fields of an entry that stay with it, after we took over those of ``spec``."""
    left = {key: value for key, value in fields.items() if key != _SPEC}
    restarted = fields[_SPEC]
    for part in _RESTARTED_AT:
        restarted = restarted.get(part) if restarted else None
    if restarted is not None:
        kept: Fields = {}
        for part in reversed(_RESTARTED_AT):
            kept = {part: kept}
        left[_SPEC] = kept
    return left


def _union(one: Fields, other: Fields) -> Fields:
    if not one or not other:
        whole = one or other
        return {".": {}, **whole} if whole else {}
    return {
        key: _union(one[key], other[key]) if key in one and key in other else one.get(key, other.get(key))
        for key in {**one, **other}
    }
