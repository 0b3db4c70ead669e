"""From the JSON schema that pydantic writes to the structural schema that the API server asks of a CRD.

Source: Kubernetes, "Extend the Kubernetes API with CustomResourceDefinitions", section "Specifying a structural schema". One
function a rule; whatever no rule knows is refused, so that nothing is dropped or mistranslated in silence.
"""

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]

VALIDATIONS = "x-kubernetes-validations"
_AS_THEY_ARE = frozenset(
    {"type", "description", "format", "enum", "not", "required", "default", "pattern", "minLength", "maxLength"}
    | {"minItems", "maxItems", "minProperties", "maxProperties", "minimum", "maximum"}
)
_EMPTY: tuple[Any, ...] = (None, "", [], {})


class StructuralError(Exception):
    """A model says something that has no structural form. The message begins with the path of the field."""


def structural(schema: Mapping[str, Any]) -> Schema:
    """The structural form of a whole pydantic schema, ``$defs`` included. Raises StructuralError."""
    return _node({key: value for key, value in schema.items() if key != "$defs"}, schema.get("$defs", {}), "schema", ())


def _node(given: Mapping[str, Any], definitions: Mapping[str, Any], path: str, within: tuple[str, ...]) -> Schema:
    schema, within = _inlined(_optional(given, path), definitions, path, within)
    schema = _default(_constant(schema))
    result: Schema = {}
    for key, value in schema.items():
        if key in _AS_THEY_ARE or key.startswith("x-kubernetes-"):
            result[key] = value
        elif key == "properties":
            result[key] = {name: _node(member, definitions, f"{path}.{name}", within) for name, member in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, Mapping):
            result[key] = _node(value, definitions, f"{path}[]", within)
        elif key != "title":
            raise StructuralError(f"{path}: {key} {value!r} has no structural form that is known here")
    if "type" not in result and "x-kubernetes-preserve-unknown-fields" not in result:
        raise StructuralError(f"{path}: has no type")
    return result


def _optional(schema: Mapping[str, Any], path: str) -> Schema:
    """``anyOf [X, null]`` is X: a field that may be left out. Other unions have no structural form."""
    if "anyOf" not in schema:
        return dict(schema)
    branches = [branch for branch in schema["anyOf"] if branch != {"type": "null"}]
    if len(branches) != 1:
        raise StructuralError(f"{path}: a union; write optional members and a rule that exactly one is set")
    return _joined(branches[0], {key: value for key, value in schema.items() if key != "anyOf"})


def _inlined(
    schema: Schema, definitions: Mapping[str, Any], path: str, within: tuple[str, ...]
) -> tuple[Schema, tuple[str, ...]]:
    """``$ref`` is replaced by what it names; what stands beside it (description, default) wins. Recursion is refused."""
    if "$ref" not in schema:
        return schema, within
    name = str(schema["$ref"]).removeprefix("#/$defs/")
    if name in within:
        raise StructuralError(f"{path}: {name} contains itself, which a structural schema cannot say")
    beside = {key: value for key, value in schema.items() if key != "$ref"}
    return _joined(definitions[name], beside), (*within, name)


def _joined(schema: Mapping[str, Any], beside: Mapping[str, Any]) -> Schema:
    rules = [*schema.get(VALIDATIONS, ()), *beside.get(VALIDATIONS, ())]
    return {**schema, **beside, **({VALIDATIONS: rules} if rules else {})}


def _constant(schema: Schema) -> Schema:
    """``const`` is an enum of one."""
    if "const" not in schema:
        return schema
    return {**{key: value for key, value in schema.items() if key != "const"}, "enum": [schema["const"]]}


def _default(schema: Schema) -> Schema:
    """Null and empty defaults are left out, at the top and in an object: unset means the same.

    An object's default has its members' own in full, for the API server tries the object's rules on it as it stands.
    """
    if "default" not in schema:
        return schema
    without = {key: value for key, value in schema.items() if key != "default"}
    default = schema["default"]
    if isinstance(default, dict):
        default = {name: value for name, value in default.items() if value not in _EMPTY}
    return without if default in _EMPTY else {**without, "default": default}
