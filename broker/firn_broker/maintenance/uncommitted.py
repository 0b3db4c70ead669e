"""Objects without a commit, as the bucket has them: their batches, and the entries with which these can be committed."""

from collections.abc import Sequence

import structlog

from firn.model.errors import CorruptDataError
from firn_broker.log_types import BatchEntry
from firn_broker.ports import ObjectStore
from firn_broker.storage import wal

log = structlog.get_logger()


async def read_index(objects: ObjectStore, key: str) -> tuple[int, Sequence[wal.IndexedBatch]]:
    """Return the size and the batches of an object, from a second read if the first one is damaged.

    Raises CorruptDataError, KeyError, UnavailableError."""
    try:
        return await _read_once(objects, key)
    except CorruptDataError as error:
        log.warning("an object without a commit is damaged; reading it again", key=key, error=str(error))
        return await _read_once(objects, key)


async def _read_once(objects: ObjectStore, key: str) -> tuple[int, Sequence[wal.IndexedBatch]]:
    size = await objects.size(key)
    return size, await wal.read_batches(objects, key, size)


def entry(batch: wal.IndexedBatch, *, append_time: bool = False) -> BatchEntry:
    """Return the entry of a batch in a commit."""
    return BatchEntry(
        batch.partition, batch.position, batch.length, batch.records, batch.max_timestamp, append_time,
        batch.producer_id, batch.producer_epoch, batch.base_sequence,
    )  # fmt: skip
