"""Contract between drivers and the internal listener of diskless brokers: offsets whose records a table has.

A driver posts `Unindexed` to `UNINDEXED_PATH`, and learns which batches the brokers have not compared with the table. It
then posts `Landed` to `LANDED_PATH`. The broker compares them later, and frees batches that it can rebuild from the data files.
Batches that the files do not give back stay as they came.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, NamedTuple
from uuid import UUID

from pydantic import Field

from firn.model.jobs import Contract

UNINDEXED_PATH, LANDED_PATH = "/v1/unindexed", "/v1/landed"
MAX_TOPICS = 1_000
MAX_FILES = 4_000
MAX_PARTITIONS = 4_000
MAX_TAGS = 1_000
MAX_MEMBERS = 16_000
RECORD = -1
"""The parent of the members of a record."""
MAX_REQUEST_BYTES = 2 << 20

_Number = Annotated[int, Field(ge=0, le=1 << 62)]
_Field = Annotated[int, Field(ge=0, lt=1 << 31)]
_Partition = Annotated[int, Field(ge=0, lt=1 << 31)]
_Generation = Annotated[int, Field(ge=1, le=1 << 62)]


class LandedRange(NamedTuple):
    """Offsets of a partition, from ``first`` to ``last``."""

    partition: _Partition
    first: _Number
    last: _Number


class DataFile(NamedTuple):
    """A data file, and its bytes."""

    path: Annotated[str, Field(max_length=1024)]
    size: _Number


class RecordFields(NamedTuple):
    """Iceberg's ids of the columns with the parts of a record. Names of columns may change, ids do not.

    ``value`` is None if the table has the members of values in columns of their own."""

    partition: _Field
    offset: _Field
    time: _Field
    key: _Field
    value: _Field | None
    headers: _Field


class MemberField(NamedTuple):
    """The id of the column for a member of an object in a JSON value.

    ``parent`` is the id of the column of the object: a struct, the element of a list, or the value of a map. For the value itself it is
    `RECORD`. A column that was renamed has several names.
    """

    parent: Annotated[int, Field(ge=RECORD, lt=1 << 31)]
    name: Annotated[str, Field(max_length=1024)]
    field: _Field


class Asked(NamedTuple):
    """A topic by Kafka's id, and the present generation of its data files."""

    topic: UUID
    generation: _Generation
    tagged: Annotated[tuple[_Generation, ...], Field(max_length=MAX_TAGS)]
    """The generations whose data files a tag of the table holds."""


class Unindexed(Contract):
    """A question about topics."""

    topics: Annotated[tuple[Asked, ...], Field(max_length=MAX_TOPICS)]


class FirstOffset(NamedTuple):
    """For one topic: the first offset of each partition with batches to name, or Kafka's name of the error that prevents the answer.

    Partitions without such batches are absent."""

    error: str
    waiting: Mapping[int, int]
    """Batches that brokers have not compared with the table."""
    older: Mapping[int, int]
    """Batches that data files of earlier generations give back."""
    untagged: Mapping[int, int]
    """Batches that data files give back which no tag holds."""


class FirstOffsets(Contract):
    """The answer to `Unindexed`, in the order of the question."""

    topics: tuple[FirstOffset, ...]


class Landed(Contract):
    """Offsets of a topic whose records a table has, and the data files that may have them.

    A tag of the table has to hold the files while brokers have batches of their ``generation``. A later generation has a greater number.
    Batches that files of an earlier generation give back move to these files.
    """

    topic: UUID
    generation: _Generation
    until_ms: _Number
    """Time in milliseconds since 1970 after which brokers do not begin to use these files. The tag stays until then."""
    ranges: Annotated[tuple[LandedRange, ...], Field(max_length=MAX_PARTITIONS)]
    files: Annotated[tuple[DataFile, ...], Field(max_length=MAX_FILES)]
    fields: RecordFields
    members: Annotated[tuple[MemberField, ...], Field(max_length=MAX_MEMBERS, exclude_if=lambda found: not found)] = ()
    """The columns of the members of JSON values, if ``fields`` has no column of values."""


class Refusal(StrEnum):
    """Why a broker will not compare offsets."""

    COPY = "Copy"
    """The topic has not ``firn.history=Single``."""
    NO_STORE = "NoStore"
    """The settings of the broker name no store of data files."""
    BUSY = "Busy"
    """Too many topics wait. The driver asks again later."""


class LandedAnswer(Contract):
    """The answer to `Landed`: why the broker will not compare these offsets, or None if it will."""

    refusal: Refusal | None
