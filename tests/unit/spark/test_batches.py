"""The size of the batches that tasks decode."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from firn_spark.kafka.clients import POLL_BYTES
from firn_spark.kafka.tasks import TASK_BATCH_RECORDS, together


def batch(records: int, size: int = 1) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([b"x" * size] * records, pa.binary())})


@given(st.lists(st.integers(0, 3 * TASK_BATCH_RECORDS), max_size=12))
def test_small_batches_are_decoded_together_and_none_is_lost(lengths: list[int]) -> None:
    lengths_out = [len(gathered) for gathered in together(batch(length) for length in lengths)]
    assert sum(lengths_out) == sum(lengths)
    assert all(length >= TASK_BATCH_RECORDS for length in lengths_out[:-1])
    assert all(length < TASK_BATCH_RECORDS + max(lengths) for length in lengths_out)


def test_batches_of_large_records_stay_apart() -> None:
    large = POLL_BYTES // 4
    assert [len(gathered) for gathered in together(batch(2, large) for _ in range(4))] == [4, 4]
