"""Values of columns, which depend on the number of the row, on the column and on its kind only.

So a test needs no list of the values that it wrote, and compares millions of rows column by column.
"""

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from firn_spark.worker.fetched import Numbers

TEXTS = np.array(["", "größe", "größe" * 2, "größe" * 3], object)
BYTES = np.array([text.encode() for text in TEXTS], object)
SYMBOLS = np.array([f"C{number}" for number in range(4)], object)
"""The values of an enum. Their numbers are 0 to 3."""
FAMILIES = {
    "int": "integer",
    "uint": "integer",
    "long": "integer",
    "ulong": "decimal",
    "float": "real",
    "double": "real",
    "boolean": "boolean",
    "string": "text",
    "symbol": "text",
    "bytes": "bytes",
    "moment": "moment",
    "date": "date",
}
"""Kinds of values, and the family of the columns that can hold them."""
_ZEROS = {"integer": 0, "decimal": 0, "real": 0.0, "boolean": False, "bytes": b"", "moment": 0, "date": 0}


def generated(numbers: Numbers, column: int, kind: str) -> tuple[Numbers, Numbers]:
    """Return the values of a column in the rows with these numbers, and which of them are null instead: a fifth."""
    mixed = (numbers.astype(np.uint64) + np.uint64(column << 40)) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    nulls, part = mixed % np.uint64(5) == 0, (mixed >> np.uint64(8)).astype(np.int64)
    return _content(part, kind), nulls


def _content(part: Numbers, kind: str) -> Numbers:
    found: Numbers
    match kind:
        case "int":
            found = part % 2**32 - 2**31
        case "uint":
            found = part % 2**32
        case "long":
            found = (part - 2**55) * 100
        case "ulong":
            found = part.astype(np.uint64) * np.uint64(250)
        case "float":
            found = (part % 2001 - 1000) / 4  # exact in four bytes
        case "double":
            found = part / 2**56
        case "boolean":
            found = part % 2 == 1
        case "moment":
            found = part % 2**52  # microseconds since 1970
        case "date":
            found = part % 2**15  # days since 1970
        case "bytes":
            found = BYTES[part % len(BYTES)]
        case "symbol":
            found = SYMBOLS[part % len(SYMBOLS)]
        case _:
            found = TEXTS[part % len(TEXTS)]
    return found


def zero(kind: str) -> Any:
    """Return the value of an absent field without presence."""
    return {"string": "", "symbol": SYMBOLS[0]}.get(kind, _ZEROS.get(FAMILIES[kind]))


def listed(content: Numbers, nulls: Numbers) -> list[Any]:
    """Return values as a list."""
    items = content.astype(object)
    items[nulls] = None
    made: list[Any] = items.tolist()
    return made


def array(content: Numbers, nulls: Numbers, type_: pa.DataType) -> pa.Array:
    """Return values as Spark returns those of a column with this type."""
    if pa.types.is_decimal(type_):
        return pa.array(
            [None if gone else Decimal(int(value)) for value, gone in zip(content, nulls, strict=True)], type_
        )
    if pa.types.is_date(type_):
        return pa.array(content, pa.int32(), mask=nulls).cast(type_)
    if pa.types.is_timestamp(type_):
        return pa.array(content, pa.int64(), mask=nulls).cast(type_)
    return pa.array(content, type_, mask=nulls)


def family(type_: pa.DataType) -> str:
    """Return the family of a column."""
    checks = {
        "integer": pa.types.is_integer,
        "decimal": pa.types.is_decimal,
        "real": pa.types.is_floating,
        "boolean": pa.types.is_boolean,
        "text": pa.types.is_string,
        "bytes": pa.types.is_binary,
        "moment": pa.types.is_timestamp,
        "date": pa.types.is_date,
    }
    return next(name for name, check in checks.items() if check(type_))
