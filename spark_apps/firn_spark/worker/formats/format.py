"""The seam between landing and the formats of record values.

A new format is a package beside `json` and `raw`, a value of `firn.model.jobs.SchemaFormat` with its spec fields, and an entry in
`firn_spark.worker.formats.registry`.
"""

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from firn_spark.worker.bad_records import BadRecordError
from firn_spark.worker.fetched import Fetched


@dataclass(frozen=True, slots=True)
class Columns:
    """Arrays of the schema's columns, as long as the records they were decoded from, and the bad records by index.

    The values of bad records are null.
    """

    arrays: list[pa.Array]
    errors: dict[int, BadRecordError]


class Format(Protocol):
    """A way to decode records of one topic, set up for its schema."""

    def decode(self, records: Fetched) -> Columns:
        """Decode records into the columns of `firn.tables.rows.schema_columns`, in the order of the records."""
        ...
