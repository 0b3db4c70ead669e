"""Kafka's rules for batches of an idempotent producer, without I/O: a batch is new, a duplicate, or out of order.

- A producer without stored state begins at sequence 0, unless its state may have been forgotten. Kafka lets it begin
  anywhere, because one leader orders its batches. Here a later batch may arrive first, through another broker.
- A lower epoch than the stored one is fenced. A higher one has to begin at sequence 0.
- The next sequence is the last one plus one; 0 follows 2,147,483,647.
- A batch with the first and last sequence of one of the five newest is a duplicate of that batch, and has its offset.
  Five, because a client has at most five requests in flight.

Source: ``ProducerAppendInfo.java``, ``ProducerStateEntry.java``. The rule stands once here, for SQLite, and once in
PL/pgSQL (``commit_wal`` in `metadata_store.postgres.migrations`). Change both together: the contract suite runs against
both.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from firn.records.record_batch import following_sequence

KEPT = 5
"""Newest batches of each producer that are stored for a partition."""


class KnownBatch(NamedTuple):
    """A batch among the newest of a producer."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    append_ms: int


@dataclass(slots=True)
class ProducerState:
    """Stored state of one producer in one partition; the newest batch comes last."""

    epoch: int
    batches: list[KnownBatch] = field(default_factory=list)


def judge(
    state: ProducerState | None, epoch: int, sequence: int, records: int, forgotten: Callable[[], bool]
) -> ErrorCode | KnownBatch | None:
    """Judge a batch: None to append it, the known batch that it duplicates, or the error to answer.

    ``forgotten`` returns whether the state of the producer may have been forgotten.
    """
    if state is None:
        return None if sequence == 0 or forgotten() else ErrorCode.out_of_order_sequence_number
    if epoch < state.epoch:
        return ErrorCode.invalid_producer_epoch
    if epoch > state.epoch:
        return None if sequence == 0 else ErrorCode.out_of_order_sequence_number
    last = following_sequence(sequence, records - 1)
    for batch in state.batches:
        if batch.first_sequence == sequence and batch.last_sequence == last:
            return batch
    if state.batches and following_sequence(state.batches[-1].last_sequence, 1) != sequence:
        return ErrorCode.out_of_order_sequence_number
    return None


def remember(
    state: ProducerState | None, epoch: int, sequence: int, records: int, base_offset: int, append_ms: int
) -> ProducerState:
    """Return the producer's state after this batch was appended."""
    if state is None or state.epoch != epoch:
        state = ProducerState(epoch)
    state.batches.append(KnownBatch(sequence, following_sequence(sequence, records - 1), base_offset, append_ms))
    del state.batches[:-KEPT]
    return state
