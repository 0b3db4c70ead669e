"""Descriptions of fields with default, limits, form and rules, for ``kubectl explain``, which shows descriptions only."""

from typing import Any

from firn.api.structural import VALIDATIONS, Schema

_BOUNDS = {
    "minimum": "At least {}",
    "maximum": "At most {}",
    "maxLength": "At most {} characters",
    "minItems": "Items: at least {}",
    "maxItems": "At most {} items",
    "maxProperties": "At most {} entries",
}


def explained(schema: Schema) -> Schema:
    """Return the schema with full descriptions, for it and for all fields inside it."""
    result = dict(schema)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            result[key] = explained(schema[key])
    if "properties" in schema:
        result["properties"] = {name: explained(member) for name, member in schema["properties"].items()}
    if "description" in schema:
        result["description"] = " ".join([schema["description"], *_facts(schema)])
    return result


def _facts(schema: Schema) -> list[str]:
    facts = []
    default: Any = schema.get("default")
    if default is not None and not isinstance(default, dict):
        facts.append(f"Default: {str(default).lower() if isinstance(default, bool) else default}")
    if "type" in schema:
        facts += [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
        facts += [f"Pattern `{schema['pattern']}`"] if "pattern" in schema else []
    # The description of a field says how it may change.
    rules = (rule for rule in schema.get(VALIDATIONS, ()) if "oldSelf" not in rule["rule"])
    facts += [f"Rule: {rule['message']}" for rule in rules]
    return [f"{fact}." for fact in facts]
