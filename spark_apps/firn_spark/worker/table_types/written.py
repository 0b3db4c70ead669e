"""The part of a table's schema that data files have: the columns of types that Firn writes.

Other engines may add columns of types that Firn does not know, such as geometry. A data file may lack optional columns, which are then
null (Iceberg specification, "Column Projection"), so these stay out of the file.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from pydantic import Field
from pydantic.functional_validators import ModelWrapValidatorHandler, model_validator
from pyiceberg.conversions import from_json
from pyiceberg.schema import Schema
from pyiceberg.types import PrimitiveType, TimestampNanoType, TimestamptzNanoType

from firn.tables import types


class VariantType(PrimitiveType):
    """The type variant, which PyIceberg does not have."""

    root: Literal["variant"] = Field(default="variant")

    @model_validator(mode="wrap")
    @classmethod
    def handle_primitive_type(cls, v: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        """Validate the name, which PyIceberg's own validator refuses."""
        return handler(v)


@from_json.register(TimestampNanoType)
@from_json.register(TimestamptzNanoType)
def _nanoseconds(_: PrimitiveType, text: str) -> int:
    """Return a default in the JSON of a schema as nanoseconds from 1970, which PyIceberg does not read."""
    return int(np.datetime64(text.removesuffix("+00:00"), "ns").astype(np.int64))


@dataclass(frozen=True, slots=True)
class WrittenSchema:
    """The columns of a table that Firn writes, and the paths and types of those that it leaves out."""

    schema: Schema
    left_out: tuple[tuple[str, str], ...]


def written_schema(text: str) -> WrittenSchema:
    """Return the written part of a schema in Iceberg's JSON. Raises ValueError if a required column cannot be written."""
    document = json.loads(text)
    left_out: list[tuple[str, str]] = []
    document["fields"] = list(_fields(document["fields"], "", left_out))
    return WrittenSchema(Schema.model_validate(document), tuple(left_out))


def _fields(fields: list[dict[str, Any]], path: str, left_out: list[tuple[str, str]]) -> Iterator[dict[str, Any]]:
    for field in fields:
        kind, unknown = _written(field["type"], f"{path}{field['name']}.", left_out)
        if kind is not None:
            yield {**field, "type": kind}
        elif field["required"]:
            raise ValueError(
                f"column {path}{field['name']} has the type {unknown}, which Firn does not write, and it is required; make it optional"
            )
        else:
            left_out.append((path + field["name"], unknown))


def _written(kind: Any, path: str, left_out: list[tuple[str, str]]) -> tuple[Any, str]:
    """Return a type as PyIceberg takes it, or None and the name of the type that cannot be written."""
    if isinstance(kind, str):
        if kind == types.VARIANT:
            return VariantType(), ""
        known = kind in types.PRIMITIVES or kind.startswith(("decimal(", "fixed["))
        return (kind, "") if known else (None, kind)
    if kind["type"] == "struct":
        members = list(_fields(kind["fields"], path, left_out))
        return ({**kind, "fields": members}, "") if members else (None, "struct")
    parts: dict[str, Any] = {}
    for part in ("element", "key", "value"):
        if part in kind:
            parts[part], unknown = _written(kind[part], f"{path}{part}.", left_out)
            if parts[part] is None:
                return None, unknown
    return {**kind, **parts}, ""
