"""The part of a table's schema that data files have: the columns of types that Firn writes.

Other engines may add columns of types that Firn does not know, such as geometry. A data file may lack optional columns, which are then
null (Iceberg specification, "Column Projection"), so these stay out of the file.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field
from pydantic.functional_validators import ModelWrapValidatorHandler, model_validator
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType

from firn.tables import types


class VariantType(PrimitiveType):
    """The type variant, which PyIceberg does not have."""

    root: Literal["variant"] = Field(default="variant")

    @model_validator(mode="wrap")
    @classmethod
    def handle_primitive_type(cls, v: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        """Validate the name, which PyIceberg's own validator refuses."""
        return handler(v)


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """The columns of a table that Firn writes, without defaults, and the paths and types of those that it leaves out."""

    schema: Schema
    left_out: tuple[tuple[str, str], ...]
    defaults: Mapping[int, Any]
    """The JSON of write defaults by field id. PyIceberg cannot read those of structs, lists, maps, and times in nanoseconds."""


@dataclass(slots=True)
class _Found:
    left_out: list[tuple[str, str]] = field(default_factory=list)
    defaults: dict[int, Any] = field(default_factory=dict)


def written_schema(text: str) -> WrittenSchema:
    """Return the written part of a schema in Iceberg's JSON. Raises ValueError if a required column cannot be written."""
    document = json.loads(text)
    found = _Found()
    document["fields"] = list(_fields(document["fields"], "", found))
    return WrittenSchema(Schema.model_validate(document), tuple(found.left_out), found.defaults)


def _fields(columns: list[dict[str, Any]], path: str, found: _Found) -> Iterator[dict[str, Any]]:
    for column in columns:
        kind, unknown = _written(column["type"], f"{path}{column['name']}.", found)
        if kind is not None:
            if column.get("write-default") is not None:
                found.defaults[column["id"]] = column["write-default"]
            kept = {key: value for key, value in column.items() if key not in ("initial-default", "write-default")}
            yield {**kept, "type": kind}
        elif column["required"]:
            raise ValueError(
                f"column {path}{column['name']} has the type {unknown}, which Firn does not write, and it is required; make it optional"
            )
        else:
            found.left_out.append((path + column["name"], unknown))


def _written(kind: Any, path: str, found: _Found) -> tuple[Any, str]:
    """Return a type as PyIceberg takes it, or None and the name of the type that cannot be written."""
    if isinstance(kind, str):
        if kind == types.VARIANT:
            return VariantType(), ""
        known = kind in types.PRIMITIVES or kind.startswith(("decimal(", "fixed["))
        return (kind, "") if known else (None, kind)
    if kind["type"] == "struct":
        members = list(_fields(kind["fields"], path, found))
        return ({**kind, "fields": members}, "") if members else (None, "struct")
    parts: dict[str, Any] = {}
    for part in ("element", "key", "value"):
        if part in kind:
            parts[part], unknown = _written(kind[part], f"{path}{part}.", found)
            if parts[part] is None:
                return None, unknown
    return {**kind, **parts}, ""
