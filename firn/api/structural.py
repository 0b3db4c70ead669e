"""Translation of pydantic's JSON schemas to the structural schemas that the API server requires of a CRD.

Source: Kubernetes, "Extend the Kubernetes API with CustomResourceDefinitions", section "Specifying a structural schema". Each
rule has a function. A keyword without a rule raises StructuralError, so that no part of a model is silently dropped.
"""

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

VALIDATIONS = "x-kubernetes-validations"
_UNCHANGED = frozenset(
    {"type", "description", "format", "enum", "not", "required", "default", "pattern", "minLength", "maxLength"}
    | {"minItems", "maxItems", "minProperties", "maxProperties", "minimum", "maximum"}
)
_OF_TEXTS = ("pattern", "format")
"""Keywords that a text with placeholders does not meet."""
_EMPTY: tuple[Any, ...] = (None, "", [], {})


class StructuralError(Exception):
    """A model that has no structural form. The message begins with the path of the field."""


def structural(schema: Mapping[str, Any]) -> Schema:
    """Translate a pydantic schema with its ``$defs``. Raises StructuralError."""
    return _node({key: value for key, value in schema.items() if key != "$defs"}, schema.get("$defs", {}), "schema", ())


def _node(given: Mapping[str, Any], definitions: Mapping[str, Any], path: str, within: tuple[str, ...]) -> Schema:
    schema, within = _inlined(_optional(given, path), definitions, path, within)
    schema = _default(_constant(schema))
    result: Schema = {}
    for key, value in schema.items():
        if key in _UNCHANGED or key.startswith("x-kubernetes-"):
            result[key] = value
        elif key == "properties":
            result[key] = {name: _node(member, definitions, f"{path}.{name}", within) for name, member in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, Mapping):
            result[key] = _node(value, definitions, f"{path}[]", within)
        elif key != "title":
            raise StructuralError(
                f"{path}: the keyword {key} ({value!r}) has no rule; add one to firn/api/structural.py, or change the model"
            )
    if "type" not in result and "x-kubernetes-preserve-unknown-fields" not in result:
        raise StructuralError(f"{path}: the field has no type; annotate it with one")
    return result


def _optional(schema: Mapping[str, Any], path: str) -> Schema:
    """Replace ``anyOf [X, null]``, an optional field, with X. Other unions have no structural form."""
    if "anyOf" not in schema:
        return dict(schema)
    branches = [branch for branch in schema["anyOf"] if branch != {"type": "null"}]
    if len(branches) != 1:
        raise StructuralError(
            f"{path}: a union has no structural form; write optional members, and a rule that exactly one is set"
        )
    return _joined(branches[0], {key: value for key, value in schema.items() if key != "anyOf"})


def _inlined(
    schema: Schema, definitions: Mapping[str, Any], path: str, within: tuple[str, ...]
) -> tuple[Schema, tuple[str, ...]]:
    """Replace ``$ref`` with its definition. Keywords beside it, such as a description or a default, take precedence."""
    if "$ref" not in schema:
        return schema, within
    name = str(schema["$ref"]).removeprefix("#/$defs/")
    if name in within:
        raise StructuralError(f"{path}: {name} contains itself; a structural schema has no recursion")
    beside = {key: value for key, value in schema.items() if key != "$ref"}
    return _joined(definitions[name], beside), (*within, name)


def _joined(schema: Mapping[str, Any], beside: Mapping[str, Any]) -> Schema:
    rules = [*schema.get(VALIDATIONS, ()), *beside.get(VALIDATIONS, ())]
    return {**schema, **beside, **({VALIDATIONS: rules} if rules else {})}


def _constant(schema: Schema) -> Schema:
    """Replace ``const`` with an enum of one value."""
    if "const" not in schema:
        return schema
    return {**{key: value for key, value in schema.items() if key != "const"}, "enum": [schema["const"]]}


def _default(schema: Schema) -> Schema:
    """Leave out null and empty defaults, of the field and inside an object: an unset field means the same.

    The default of an object has the defaults of all members, because the API server checks the object's rules on it.
    """
    if "default" not in schema:
        return schema
    without = {key: value for key, value in schema.items() if key != "default"}
    default = schema["default"]
    if isinstance(default, dict):
        default = {name: value for name, value in default.items() if value not in _EMPTY}
    return without if default in _EMPTY else {**without, "default": default}


def unchecked(schema: Schema) -> Schema:
    """Return a structural schema without rules, defaults and forms of texts, which may have placeholders.

    The API server checks and completes the IcebergTopics that the operator makes of it.
    """
    if "type" not in schema:
        return schema  # a union, whose texts are fixed words
    dropped = {VALIDATIONS, "default", *(_OF_TEXTS if schema["type"] == "string" else ())}
    result = {key: value for key, value in schema.items() if key not in dropped}
    if "properties" in schema:
        result["properties"] = {name: unchecked(each) for name, each in schema["properties"].items()}
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            result[key] = unchecked(schema[key])
    return result
