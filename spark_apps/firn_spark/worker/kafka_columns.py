"""The columns that every table has beside its schema's: what Kafka stores with each record (`firn.tables.rows.METADATA`)."""

import numpy as np
import pyarrow as pa

from firn.tables import rows
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import NO_TIME, Fetched, Numbers

_TIMESTAMP = pa.timestamp("us", tz="UTC")
_MOST_ID = 2**31 - 1
_MAX_MILLISECONDS = (2**63 - 1) // 1000
"""The latest time in milliseconds since 1970 that 64 bits of microseconds hold; the earliest is its negative."""


def kafka_columns(records: Fetched) -> list[pa.Array]:
    """Return one array for each member of `firn.tables.rows.METADATA`, in its order."""
    representable = (records.times <= _MAX_MILLISECONDS) & (records.times >= -_MAX_MILLISECONDS)
    unknown = (records.times == NO_TIME) | ~representable
    micros = np.where(representable, records.times, 0) * 1000
    return [
        pa.array(records.partitions, pa.int32()),
        pa.array(records.offsets, pa.int64()),
        pa.array(micros, pa.int64(), mask=unknown).cast(_TIMESTAMP),
        pa.array(records.times, pa.int64()),
        pa.array(records.time_types, pa.int32()),
        records.keys.to_arrow(),
        records.headers.to_arrow(),
    ]


def id_column(ids: Numbers) -> pa.Array:
    """Return the array of `firn.tables.rows.SCHEMA_ID`. ``ids`` are -1 for values without one."""
    # No registry has ids beyond 31 bits. Such values are no rows.
    return pa.array(ids, pa.int32(), mask=(ids < 0) | (ids > _MOST_ID))


def shaped(members: list[pa.Array], shape: str, *, shared: bool = False) -> list[pa.Array]:
    """Return the members as table columns: one struct (``Struct``), or as they are (``Flat``)."""
    if shape == "Flat":
        return members
    has_ids = len(members) > len(rows.METADATA)
    (column,) = arrow_types.arrow_schema(rows.metadata_columns(shape, schema_ids=has_ids, shared=shared))
    return [pa.StructArray.from_arrays(members, type=column.type)]
