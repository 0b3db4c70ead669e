"""Arrow arrays of the values that compiled decoders store: numbers, texts, and members or items of nested values."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from firn_spark.worker.fetched import Numbers

STEP = 256
"""Rows that a kernel reads before it stores their values. Their bytes are still in the processor's cache then."""
CALL_BYTES = 2**20
"""Largest number of bytes of rows in one call to a kernel. A larger row has a call of its own."""
MOST_TEXT = 2**31 - 1
"""Largest number of bytes of text in a column: Arrow counts them in 32 bits."""
TOO_LARGE = "a batch has 2 GiB of text in one column: read smaller batches"


def numbers(type_: pa.DataType, values: Numbers, valid: Numbers) -> pa.Array:
    """Return an array of values of one width, as Arrow stores them."""
    bits, nulls = bitmap(valid)
    return pa.Array.from_buffers(type_, len(valid), [bits, pa.py_buffer(values)], nulls)


def texts(type_: pa.DataType, valid: Numbers, offsets: Numbers, content: Numbers | bytes) -> pa.Array:
    """Return an array of texts or bytes. ``offsets`` has the start of each, and the end of the last one."""
    bits, nulls = bitmap(valid)
    return pa.Array.from_buffers(type_, len(valid), [bits, pa.py_buffer(offsets), pa.py_buffer(content)], nulls)


def nested(type_: pa.DataType, present: Numbers, offsets: Sequence[Numbers], children: Sequence[pa.Array]) -> pa.Array:
    """Return an array of structs, lists or maps. Lists and maps have ``offsets`` in their child."""
    bits, nulls = bitmap(present)
    buffers = [bits, *(pa.py_buffer(column) for column in offsets)]
    return pa.Array.from_buffers(type_, len(present), buffers, nulls, children=list(children))


def bitmap(valid: Numbers) -> tuple[pa.Buffer | None, int]:
    """Return the bitmap of valid values, None if all are, and the number of nulls."""
    nulls = len(valid) - int(np.count_nonzero(valid))
    return pa.py_buffer(np.packbits(valid, bitorder="little")) if nulls else None, nulls


def portions(sizes: Numbers, most: int) -> Iterator[tuple[int, int]]:
    """Yield the begin and end of portions of at most ``most`` bytes, by the bytes of each value. A larger value is a portion
    of its own."""
    behind, begin = np.cumsum(sizes), 0
    while begin < len(sizes):
        before = int(behind[begin - 1]) if begin else 0
        end = max(begin + 1, int(np.searchsorted(behind, before + most, side="right")))
        yield begin, end
        begin = end


def gather(content: Numbers, pieces: Numbers, parts: list[list[bytes]]) -> None:
    """Copy the texts of each step from ``content`` to the parts of their columns."""
    start = 0
    for ends in pieces.tolist():
        for own, end in zip(parts, ends, strict=True):
            own.append(content[start:end].tobytes())
            start = end


def joined(parts: Sequence[list[bytes]]) -> list[bytes]:
    """Join the parts of each column, and empty them. Raises ValueError if a column is too large for Arrow."""
    if any(sum(map(len, own)) > MOST_TEXT for own in parts):
        raise ValueError(TOO_LARGE)
    columns = []
    for own in parts:
        columns.append(b"".join(own))
        own.clear()
    return columns


def replaced(columns: Sequence[pa.Array], places: Numbers, others: Sequence[pa.Array]) -> list[pa.Array]:
    """Return the columns with the values of ``others`` at ``places``, which ascend."""
    order = np.arange(len(columns[0]) if columns else 0)
    order[places] = len(order) + np.arange(len(places))
    indices = pa.array(order)
    return [pa.concat_arrays([ours, theirs]).take(indices) for ours, theirs in zip(columns, others, strict=True)]
