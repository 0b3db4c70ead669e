"""Row groups by Kafka partition, for tables from which brokers rebuild the log (`firn.model.names.HISTORY`).

A broker reads the records of one partition, and decodes whole row groups. So rows of other partitions in the same row group cost time."""

from collections.abc import Iterator, Mapping
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.model.names import HISTORY, SINGLE
from firn.tables import rows as columns
from firn_spark.worker.fetched import Numbers

LEAST_BYTES = 1 << 20
"""Bytes of a row group, in memory. Partitions with fewer share a row group, because each row group has costs of its own."""
MOST_BYTES = 8 << 20
"""Bytes of a row group, in memory, unless one row has more. A broker that serves many partitions in turn decodes some row groups again."""
_PARTITION = columns.METADATA[0][0]


def are_by_partition(properties: Mapping[str, str]) -> bool:
    """Return whether large Kafka partitions have row groups of their own in a table with these properties."""
    return properties.get(HISTORY) == SINGLE


def by_partition(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield the rows in parts for row groups. The rows of a partition keep their order. All rows have Kafka's columns."""
    partitions = _partitions(rows)
    if (partitions[1:] < partitions[:-1]).any():
        order = np.argsort(partitions, kind="stable")
        rows, partitions = rows.take(pa.array(order)), partitions[order]
    edges = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
    least, first = max(1, LEAST_BYTES * len(partitions) // max(1, rows.nbytes)), 0
    for end in edges[1:]:
        # The last part may be small, and joins the one before.
        if end - first >= least and (end == edges[-1] or edges[-1] - end >= least):
            yield from _bounded(rows.slice(first, end - first))
            first = end
    if first < edges[-1]:
        yield from _bounded(rows.slice(first))


def _bounded(rows: pa.Table) -> Iterator[pa.Table]:
    """Yield rows in equal parts of at most `MOST_BYTES` on average."""
    parts = max(1, min(len(rows), -(-rows.nbytes // MOST_BYTES)))
    edges = [len(rows) * number // parts for number in range(parts + 1)]
    for first, end in pairwise(edges):
        yield rows.slice(first, end - first)


def _partitions(rows: pa.Table) -> Numbers:
    if columns.METADATA_COLUMN in rows.column_names:
        struct = rows[columns.METADATA_COLUMN]
        found = pc.call_function("struct_field", [struct], pc.StructFieldOptions([_PARTITION]))
    else:
        found = rows[f"{columns.METADATA_COLUMN}_{_PARTITION}"]
    partitions: Numbers = found.fill_null(-1).to_numpy()
    return partitions
