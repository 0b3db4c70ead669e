"""Kafka's rules for batches of an idempotent producer, without I/O: a batch is new, a duplicate, or out of order.

- A producer without stored state begins at sequence 0, unless its state may have been forgotten. Kafka lets it begin
  anywhere, because one leader orders its batches. Here a later batch may arrive first, through another broker.
- A forgotten producer may begin anywhere, at the second attempt. The first one is rejected with a retriable error, and
  its sequence is stored. No earlier batch is under way at another broker at the second attempt, because clients wait
  (see below). If an earlier batch comes in between, it takes the place of the later one.
- A lower epoch than the stored one is fenced. A higher one has to begin at sequence 0.
- The next sequence is the last one plus one; 0 follows 2,147,483,647.
- A batch with the first and last sequence of one of the five newest is a duplicate of that batch, and has its offset.
  Five, because a client has at most five requests in flight.

Before a client sends a batch again, each earlier batch of its partition has an answer, or is in front of it on the same
connection. Behind a batch that fails, the broker rejects the later ones of the connection (`firn_broker.apis.produce`).
Java has one batch under way while it retries (``RecordAccumulator.shouldStopDrainBatchesForPartition``), aiokafka and
kafka-python always (``muted``). librdkafka and franz-go wait for all answers before they produce to a new leader
(``rd_kafka_idemp_drain_toppar``, ``recBuf.inflightOnSink``). The order depends on this: neither the coordinator nor a
broker can know of an earlier batch at another broker that does not reach the coordinator.

Source: ``ProducerAppendInfo.java``, ``ProducerStateEntry.java``. The rule stands once here, for SQLite, and once in
PL/pgSQL (``commit_wal`` in `metadata_store.postgres.migrations`). Change both together: the contract suite runs against
both. `metadata_store.commit_plan` has the case in which each batch is the next one of its producer.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from firn.records.record_batch import following_sequence, precedes

HELD = ErrorCode.kafka_storage_error
"""The error for a batch of a forgotten producer that has to be sent again. Every client retries it with the same
sequence. OUT_OF_ORDER_SEQUENCE_NUMBER would be fatal for some."""
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

    @property
    def held(self) -> int | None:
        """Return the sequence at which a forgotten producer may begin; None if it has begun."""
        return self.batches[0].first_sequence if self.batches and self.batches[0].base_offset < 0 else None


def judge(
    state: ProducerState | None, epoch: int, sequence: int, records: int, forgotten: Callable[[], bool]
) -> ErrorCode | KnownBatch | None:
    """Judge a batch: None to append it, the known batch that it duplicates, or the error to answer. After `HELD`, the
    caller stores the result of `hold`.

    ``forgotten`` returns whether the state of the producer may have been forgotten.
    """
    if state is None:
        if sequence == 0:
            return None
        return HELD if forgotten() else ErrorCode.out_of_order_sequence_number
    if epoch < state.epoch:
        return ErrorCode.invalid_producer_epoch
    if epoch > state.epoch:
        return None if sequence == 0 else ErrorCode.out_of_order_sequence_number
    if state.held is not None:
        return None if sequence in (0, state.held) else HELD
    last = following_sequence(sequence, records - 1)
    for batch in state.batches:
        if batch.first_sequence == sequence and batch.last_sequence == last:
            return batch
    if state.batches and following_sequence(state.batches[-1].last_sequence, 1) != sequence:
        return ErrorCode.out_of_order_sequence_number
    return None


def contains(
    state: ProducerState | None, epoch: int, sequence: int, records: int, forgotten: Callable[[], bool]
) -> bool:
    """Return whether the log certainly has the records of a batch, perhaps in other batches.

    A producer that was never forgotten began at sequence 0, and has no gaps. Of another one, the log has the newest
    batches.
    """
    if state is None or state.epoch != epoch or state.held is not None or not state.batches:
        return False
    last, newest = following_sequence(sequence, records - 1), state.batches[-1].last_sequence
    if last != newest and not precedes(last, newest):
        return False
    oldest = state.batches[0].first_sequence
    return sequence == oldest or precedes(oldest, sequence) or not forgotten()


def hold(state: ProducerState | None, epoch: int, sequence: int) -> ProducerState:
    """Return the state of a forgotten producer that may begin at ``sequence``, or at an earlier one that it sent
    before."""
    if state is not None and state.held is not None and not precedes(sequence, state.held):
        return state
    # A batch that ends in front of its first sequence. Earlier versions of the program let that sequence follow it.
    return ProducerState(epoch, [KnownBatch(sequence, following_sequence(sequence, -1), -1, -1)])


def remember(
    state: ProducerState | None, epoch: int, sequence: int, records: int, base_offset: int, append_ms: int
) -> ProducerState:
    """Return the producer's state after this batch was appended."""
    if state is None or state.epoch != epoch or state.held is not None:
        state = ProducerState(epoch)
    state.batches.append(KnownBatch(sequence, following_sequence(sequence, records - 1), base_offset, append_ms))
    del state.batches[:-KEPT]
    return state
