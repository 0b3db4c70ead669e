"""The seam between landing and the formats of record values.

A new format is a package beside `json` and `raw`, a value of `firn.model.jobs.SchemaFormat` with its spec fields, and an entry in
`firn_spark.worker.formats.registry`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import pyarrow as pa

from firn.decoders.bad_records import BadRecordError
from firn.model.jobs import Epoch
from firn_spark.worker.fetched import Fetched, Numbers


class Times(NamedTuple):
    """Times of one field: how many there are, and how many are sensible only if integers count in ``epoch``.

    ``sample`` is one of these, in microseconds since 1970 as it was decoded.
    """

    values: int
    wrong: int
    epoch: Epoch
    sample: int

    def plus(self, other: "Times") -> "Times":
        """Return the times of both. If they are wrong in two ways, only the more frequent way counts."""
        more = max(self, other, key=lambda times: times.wrong)
        wrong = self.wrong + other.wrong if self.epoch == other.epoch else more.wrong
        return Times(self.values + other.values, wrong, more.epoch, more.sample)


def add_times(counted: dict[str, Times], more: Mapping[str, Times]) -> None:
    """Add the times of further records to ``counted``, by field."""
    for name, times in more.items():
        counted[name] = counted[name].plus(times) if name in counted else times


@dataclass(frozen=True, slots=True)
class Columns:
    """Arrays of the schema's columns, as long as the records they were decoded from, and the bad records by index.

    The values of bad records are null. ``times`` has the fields with times, by name. ``schema_ids`` are those of a schema
    registry, -1 for a value without one; None without a registry.
    """

    arrays: list[pa.Array]
    errors: dict[int, BadRecordError]
    times: Mapping[str, Times] = field(default_factory=dict)
    schema_ids: Numbers | None = None


UNBOUNDED = 2**62
"""The value of `Format.most_bytes` if decoded values take memory in proportion to their bytes."""


class Format(Protocol):
    """A way to decode records of one topic, set up for its schema."""

    @property
    def most_bytes(self) -> int:
        """Return the bytes of values in one call of `decode`, so that the columns take little memory. A larger value has a
        call of its own."""
        ...

    @property
    def row_bytes(self) -> int:
        """Return the bytes that each value counts in addition to its own, for the memory of a row with few bytes."""
        ...

    def decode(self, records: Fetched) -> Columns:
        """Decode records into the columns of `firn.tables.rows.decoded_columns`, in the order of the records."""
        ...
