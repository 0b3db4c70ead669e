"""Which batches of an idempotent producer are new, known already, or out of order: Kafka's rules, without I/O.

- A producer id that we know nothing of may begin anywhere: its state may have expired.
- A lower epoch than the known one is fenced. A higher one has to begin at sequence 0.
- The next sequence is the last one plus one; after 2,147,483,647 comes 0.
- A batch equal (first and last sequence) to one of the five newest is a duplicate, and has that one's offset. Five, because a client has at
  most five requests in flight.

Source: ``ProducerAppendInfo.java``, ``ProducerStateEntry.java``. PostgreSQL's commit function has the same rules in SQL.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from firn.records.record_batch import following_sequence

KEPT = 5


class KnownBatch(NamedTuple):
    """One of a producer's newest batches."""

    first_sequence: int
    last_sequence: int
    base_offset: int
    append_ms: int


@dataclass(slots=True)
class ProducerState:
    """What is known of one producer in one partition; the newest batch comes last."""

    epoch: int
    batches: list[KnownBatch] = field(default_factory=list)


def judge(state: ProducerState | None, epoch: int, sequence: int, records: int) -> ErrorCode | KnownBatch | None:
    """None: append it. A batch: it is a duplicate of that. Otherwise the error to answer."""
    if state is None:
        return None
    if epoch < state.epoch:
        return ErrorCode.invalid_producer_epoch
    if epoch > state.epoch:
        return None if sequence == 0 else ErrorCode.out_of_order_sequence_number
    last = following_sequence(sequence, records - 1)
    for known in state.batches:
        if known.first_sequence == sequence and known.last_sequence == last:
            return known
    if state.batches and following_sequence(state.batches[-1].last_sequence, 1) != sequence:
        return ErrorCode.out_of_order_sequence_number
    return None


def remember(
    state: ProducerState | None, epoch: int, sequence: int, records: int, base_offset: int, append_ms: int
) -> ProducerState:
    """The state after this batch was appended."""
    if state is None or state.epoch != epoch:
        state = ProducerState(epoch)
    state.batches.append(KnownBatch(sequence, following_sequence(sequence, records - 1), base_offset, append_ms))
    del state.batches[:-KEPT]
    return state
