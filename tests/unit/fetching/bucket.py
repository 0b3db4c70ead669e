"""A bucket of diskless brokers on the local disk."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from firn_spark.worker.fetching.access import Bucket
from firn_spark.worker.fetching.objects import Objects
from firn_spark.worker.fetching.slices import ObjectRange, Slice
from tests.unit.fetching.log import Batch, Record

Place = tuple[str, int]


@dataclass
class Stored:
    """Objects in a directory as brokers write them, and the ranges of each partition by offset."""

    directory: Path
    ranges: dict[Place, list[ObjectRange]] = field(default_factory=dict)

    def put(self, key: str, contents: dict[Place, Sequence[Batch]], append_ms: int = -1) -> None:
        """Store an object with the next batches of partitions. The batches have the base offset 0, as producers send them."""
        data = bytearray(b"head")
        for place, batches in contents.items():
            own = self.ranges.setdefault(place, [])
            base = own[-1].last + 1 if own else 0
            encoded = b"".join(replace(batch, base=0).encode() for batch in batches)
            covered = sum((batch.last if batch.last is not None else len(batch.records) - 1) + 1 for batch in batches)
            own.append(ObjectRange(key, len(data), len(encoded), base, base + covered - 1, append_ms))
            data += encoded
        self.write(key, bytes(data) + b"index")

    def write(self, key: str, data: bytes) -> None:
        (self.directory / key).write_bytes(data)

    def slice(self, topic: str = "orders", partition: int = 0, start: int = 0, end: int | None = None) -> Slice:
        own = self.ranges[topic, partition]
        return Slice(topic, partition, start, own[-1].last + 1 if end is None else end, tuple(own))

    @property
    def access(self) -> Bucket:
        return Bucket(self.directory.as_uri(), {})

    def reader(self, *slices: Slice) -> Objects:
        return Objects(self.access, slices)


def batch(*values: bytes, codec: int = 0) -> Batch:
    return Batch(0, [Record(number, value) for number, value in enumerate(values)], codec=codec)


def numbered(first: int, count: int) -> Batch:
    return batch(*(b"%d" % number for number in range(first, first + count)))
