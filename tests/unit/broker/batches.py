"""Record batches for tests, as producers write them."""

import struct

from crc32c import crc32c

from firn.records import record_batch
from firn.records.record_batch import Batch


def raw(
    count: int = 1, *, body: bytes | None = None, producer: int = -1, epoch: int = -1, sequence: int = -1, time: int = 1000,
    attributes: int = 0, base: int = 0,
) -> memoryview:  # fmt: skip
    """Return a batch with a valid header. Its records are not decodable, and of minimal size unless ``body`` is
    given."""
    body = b"records" * count if body is None else body
    after = struct.pack(">hiqqqhii", attributes, count - 1, time, time, producer, epoch, sequence, count) + body
    head = struct.pack(">qiibI", base, len(after) + 9, -1, 2, crc32c(after))
    return memoryview(bytearray(head + after))


def batch(
    count: int = 1,
    *,
    body: bytes | None = None,
    producer: int = -1,
    epoch: int = -1,
    sequence: int = -1,
    time: int = 1000,
) -> Batch:
    return record_batch.parse(raw(count, body=body, producer=producer, epoch=epoch, sequence=sequence, time=time))
