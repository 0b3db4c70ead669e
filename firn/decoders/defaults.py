"""Defaults of fields: the value of a record without the field, and of the rows before the column (Iceberg specification, "Default values")."""

import ctypes
import json
import uuid
from datetime import date
from decimal import Context, Decimal, InvalidOperation
from typing import Any

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.tables import types
from firn.tables.types import Primitive, Type

TYPES = ("boolean", "int", "long", "float", "double", "decimal(P,S)", "string", "date", "uuid")
_EXACT = Context(prec=80)


def json_value(kind: Type, text: str) -> Any:
    """Return the default in Iceberg's JSON single-value serialization. Raises InvalidSpecError (BadSchema)."""
    try:
        return _value(kind, text)
    except (KeyError, ValueError, InvalidOperation):
        raise InvalidSpecError(
            f"the default {text[:50]!r} is not a value of the type {kind}; correct it", reason=Reason.BAD_SCHEMA
        ) from None


def is_stored(kind: Type, text: str, stored: Any) -> bool:
    """Return whether ``stored``, in the schema of a table, is the default of a column of the type ``kind``.

    Iceberg keeps the nearest number with 32 bits of a float. A column that has become double keeps this number.
    """
    value = json_value(kind, text)
    if kind == Primitive("float") and isinstance(stored, float):
        return ctypes.c_float(value).value == ctypes.c_float(stored).value
    return bool(value == stored)


def token(kind: Type, text: str) -> str:
    """Return the default as a record in JSON has it."""
    quoted = isinstance(kind, types.Decimal) or kind in (Primitive("string"), Primitive("date"), Primitive("uuid"))
    return json.dumps(text) if quoted else text


def _value(kind: Type, text: str) -> Any:
    if isinstance(kind, types.Decimal):
        return _decimal(kind, text)
    match kind:
        case Primitive("boolean"):
            return {"true": True, "false": False}[text]
        case Primitive("int" | "long" as name):
            whole = int(text)
            highest = 2 ** (31 if name == "int" else 63)
            if str(whole) != text or not -highest <= whole < highest:
                raise ValueError(text)
            return whole
        case Primitive("float" | "double" as name):
            return _float(text, 3.4e38 if name == "float" else 1.7e308)
        case Primitive("string"):
            return text
        case Primitive("date"):
            day = date.fromisoformat(text).isoformat()
            if day != text:
                raise ValueError(text)
            return day
        case Primitive("uuid"):
            found = str(uuid.UUID(text))
            if found != text.lower():
                raise ValueError(text)
            return found
    raise InvalidSpecError(
        f"a field of type {kind} cannot have a default; choose one of {', '.join(TYPES)}, or remove default",
        reason=Reason.BAD_SCHEMA,
    )


def _decimal(kind: types.Decimal, text: str) -> str:
    number = Decimal(text)
    exact = number.quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    if exact != number or exact.copy_abs() >= Decimal(10) ** (kind.precision - kind.scale):
        raise ValueError(text)
    return format(exact or exact.copy_abs(), "f")  # Iceberg has no negative zero of decimals.


def _float(text: str, highest: float) -> float:
    value = json.loads(text)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= highest:
        raise ValueError(text)
    return float(value)
