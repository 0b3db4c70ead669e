"""Types of tables that PyIceberg does not know, such as variant, and geometry with a coordinate system.

PyIceberg refuses the metadata of a table with such a type as a whole. The operator changes no table that can have one: their format
version is 3, and ingestion drivers change these tables.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import Field
from pydantic.functional_validators import ModelWrapValidatorHandler, model_validator
from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil
from pyiceberg.types import NestedField, PrimitiveType

from firn.tables import types


class ForeignType(PrimitiveType):
    """A type that PyIceberg does not know, by its name in the metadata."""

    root: str = Field()

    def __init__(self, name: str) -> None:
        super().__init__(root=name)

    @model_validator(mode="wrap")
    @classmethod
    def handle_primitive_type(cls, v: Any, handler: ModelWrapValidatorHandler[Any]) -> Any:
        """Validate any name, which PyIceberg's own validator refuses."""
        return handler(v)

    def __getnewargs__(self) -> tuple[str]:
        """Return the arguments to copy the type."""
        return (self.root,)

    def minimum_format_version(self) -> int:  # type: ignore[override]
        """Return the format version that has such types."""
        return 3


def metadata_of(document: Mapping[str, Any]) -> TableMetadata:
    """Return a table's metadata from its JSON."""
    schemas = [_readable(schema) for schema in document.get("schemas") or ()]
    return TableMetadataUtil.parse_obj({**document, "schemas": schemas} if schemas else dict(document))


def schema_of(document: Mapping[str, Any]) -> Schema:
    """Return a schema from its JSON."""
    return Schema.model_validate(_readable(document))


def _readable(kind: Any) -> Any:
    """Return a type in the JSON of Iceberg's specification (Appendix C), with PyIceberg's objects for types that it does not know."""
    if isinstance(kind, str):
        return kind if _is_known(kind) else ForeignType(kind)
    if "fields" in kind:
        return {**kind, "fields": [_field(field) for field in kind["fields"]]}
    parts = {part: _readable(kind[part]) for part in ("element", "key", "value") if part in kind}
    return {**kind, **parts}


def _field(field: Mapping[str, Any]) -> dict[str, Any]:
    readable = {**field, "type": _readable(field["type"])}
    if not isinstance(readable["type"], str) or readable["type"] in types.NANOSECONDS:
        # PyIceberg cannot read defaults of structs, lists, maps, and these types. The operator does not need them.
        return {key: value for key, value in readable.items() if key not in ("initial-default", "write-default")}
    return readable


def _is_known(name: str) -> bool:
    try:
        NestedField(field_id=1, name="", field_type=name)
    except (ValueError, ValidationError):
        return False
    return True
