"""The topics that a new coordinator gets: the file of `firn-broker fsck --recover --topics FILE`."""

import base64
import binascii
from collections import Counter
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from firn.driver_requests.landed_offsets import DataFile, RecordFields
from firn.model.errors import InvalidSpecError
from firn_broker.storage import wal

MADE = "0" * 12
"""First digits of the ids of objects that are made from the rows of a table. Those of other objects are the time."""
SEED = 10
"""Digits of the digest of a topic and its table in such an id."""
UUID_LENGTH = 36
"""Characters of a UUID in hexadecimal, with hyphens."""


def _uuid(value: object) -> object:
    """Return the id that Kafka writes in URL-safe base64. Raises ValueError."""
    if not isinstance(value, str) or len(value) == UUID_LENGTH:
        # `fsck` prints ids as UUIDs.
        return value
    try:
        return UUID(bytes=base64.urlsafe_b64decode(value + "=="))
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{value!r} is not the id of a Kafka topic") from error


class KnownTable(BaseModel):
    """A table whose rows are the records of a topic."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fields: RecordFields
    files: Sequence[DataFile]


class KnownTopic(BaseModel):
    """A topic that the new coordinator gets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    id: Annotated[UUID, BeforeValidator(_uuid)]
    """Kafka's id, in URL-safe base64 or as a UUID."""
    partitions: PositiveInt
    configs: Mapping[str, str] = Field(default_factory=dict)
    next: Mapping[NonNegativeInt, NonNegativeInt] = Field(default_factory=dict)
    """Partition -> the offset after the last one that landed in the table. New records get no offset before it."""
    table: KnownTable | None = None
    """The table from which the log is made, because the bucket has no records of the topic."""

    def question(self) -> dict[str, object]:
        """Return the question to the process that makes the log from the table."""
        assert self.table is not None
        return {
            "topic": str(self.id),
            **self.table.model_dump(),
            "partitions": self.partitions,
            "landed": self.next,
            "seed": self.seed,
        }

    def made(self, key: str) -> bool:
        """Return whether an object was made from these rows."""
        return wal.id_of(key).hex.startswith(self.seed)

    @property
    def seed(self) -> str:
        """Return the first digits of the ids of objects that are made from these rows: those of the time are 0."""
        return f"{MADE}{blake2b(self.model_dump_json(include={'id', 'table', 'next'}).encode(), digest_size=SEED // 2).hexdigest()}"


class KnownTopics(BaseModel):
    """The content of FILE."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topics: Sequence[KnownTopic]


def read_topics(file: Path) -> Sequence[KnownTopic]:
    """Read FILE. Raises InvalidSpecError."""
    try:
        known = KnownTopics.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise InvalidSpecError(f"{file}: {error}; write the file with `firn recovery-topics`") from error
    for key, values in (
        ("name", [topic.name for topic in known.topics]),
        ("id", [str(topic.id) for topic in known.topics]),
    ):
        for value, count in Counter(values).items():
            if count > 1:
                raise InvalidSpecError(
                    f"{file}: {count} topics have the {key} {value}; leave only one of them in the file"
                )
    return known.topics
