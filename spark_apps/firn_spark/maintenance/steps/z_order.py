"""Z-order: orders rows along a space-filling curve through several columns, so that a filter on any of them reads few
files.

A value counts by its rank among values sampled from the group, 1,024 ranks a column, not by its bits. So columns with
few values, a common prefix or a narrow range weigh as much as any other. The bits of the ranks are interleaved
(Morton, 1966) to the key that orders the rows.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas
from pyspark.sql import functions
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import BinaryType

from firn.model.errors import InvalidSpecError

BITS = 10
SAMPLE = 20_000
KEY = "_firn_z_order"
_KINDS = (
    "bool",
    "byte",
    "short",
    "int",
    "bigint",
    "float",
    "double",
    "decimal",
    "string",
    "binary",
    "date",
    "timestamp",
)


def ranks(values: npt.NDArray[Any], bounds: npt.NDArray[Any], missing: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint16]:
    """Return the rank of each value among ``bounds`` (sorted), spread over all ranks; 0 for missing values."""
    spread = np.zeros(len(values), np.uint16)
    present = ~missing
    place = np.searchsorted(bounds, values[present], side="left") + 1
    # If few values filled only the low bits, the other columns alone would shape the curve.
    spread[present] = place * (2**BITS - 1) // (len(bounds) + 1)
    return spread


def interleave(columns: Sequence[npt.NDArray[np.uint16]]) -> list[bytes]:
    """Return keys from one array of ranks a column: bytes that sort along the curve, the first column's bits first."""
    if not len(columns[0]):
        return []
    bits = np.stack(
        [
            np.unpackbits(column.astype(">u2").view(np.uint8).reshape(-1, 2), axis=1)[:, 16 - BITS :]
            for column in columns
        ],
        axis=2,
    )
    keys = np.packbits(bits.reshape(len(columns[0]), -1), axis=1)
    return [key.tobytes() for key in keys]


def bounds(sample: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return sorted, distinct values that cut ``sample`` into about equal parts, at most 2**BITS - 2 of them."""
    ordered = np.sort(sample)
    most = 2**BITS - 2
    if len(ordered) > most:
        ordered = ordered[np.linspace(0, len(ordered) - 1, most).astype(int)]
    return np.unique(ordered)


def ordered(frame: Any, names: Sequence[str], outputs: int, table: str) -> Any:
    """Order ``frame`` along the curve through the columns ``names``, in ``outputs`` parts. Raises InvalidSpecError
    for unusable columns."""
    if not names:
        raise InvalidSpecError(f"table {table}: strategy ZOrder needs columns")
    paths = [".".join(f"`{part}`" for part in name.split(".")) for name in names]
    try:
        kinds = dict(frame.select(*(functions.col(path).alias(f"c{i}") for i, path in enumerate(paths))).dtypes)
    except Exception as error:
        raise InvalidSpecError(f"table {table}: ZOrder by {', '.join(names)}: {str(error)[:300]}") from error
    for i, name in enumerate(names):
        if not kinds[f"c{i}"].startswith(_KINDS):
            raise InvalidSpecError(f"table {table}: ZOrder cannot use column {name} of type {kinds[f'c{i}']}")
    columns = [_comparable(functions.col(path), kinds[f"c{i}"]) for i, path in enumerate(paths)]
    share = min(1.0, SAMPLE / max(frame.count(), 1))
    sample = frame.select(*(column.alias(f"c{i}") for i, column in enumerate(columns)))
    sample = (sample.sample(share, seed=1) if share < 1.0 else sample).toPandas()
    key = _key([bounds(sample[f"c{i}"].dropna().to_numpy()) for i in range(len(names))])
    keyed = frame.withColumn(KEY, key(*columns))
    return keyed.repartitionByRange(outputs, KEY).sortWithinPartitions(KEY).drop(KEY)


def _comparable(column: Any, kind: str) -> Any:
    """Return the column as doubles or strings whose order is close enough to that of its values."""
    if kind.startswith(("string", "char", "varchar")):
        return column
    if kind.startswith("binary"):
        return functions.hex(column)
    if kind.startswith("date"):
        return functions.unix_date(column).cast("double")
    if kind.startswith("timestamp_ntz"):
        return functions.unix_micros(column.cast("timestamp")).cast("double")
    if kind.startswith("timestamp"):
        return functions.unix_micros(column).cast("double")
    return column.cast("double")


def _key(cuts: Sequence[npt.NDArray[Any]]) -> Any:
    """Return the Spark function that computes the keys of rows."""

    def key(*columns: pandas.Series) -> pandas.Series:
        columns_ranks = []
        for values, cut in zip(columns, cuts, strict=True):
            columns_ranks.append(ranks(values.to_numpy(), cut, values.isna().to_numpy()))
        return pandas.Series(interleave(columns_ranks))

    make: Any = pandas_udf
    return make(key, returnType=BinaryType())
