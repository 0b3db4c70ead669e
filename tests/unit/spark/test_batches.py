"""Batches as tasks decode them."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from firn_spark.kafka.clients import POLL_BYTES
from firn_spark.kafka.tasks import TASK_BATCH_RECORDS, together


def batch(records: int, size: int = 1) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array([b"x" * size] * records, pa.binary())})


@given(st.lists(st.integers(0, 3 * TASK_BATCH_RECORDS), max_size=12))
def test_small_batches_are_decoded_together_and_none_is_lost(lengths: list[int]) -> None:
    found = [len(one) for one in together(batch(length) for length in lengths)]
    assert sum(found) == sum(lengths)
    assert all(length >= TASK_BATCH_RECORDS for length in found[:-1])
    assert all(length < TASK_BATCH_RECORDS + max(lengths) for length in found)


def test_batches_of_large_records_are_not_gathered() -> None:
    large = POLL_BYTES // 4
    assert [len(one) for one in together(batch(2, large) for _ in range(4))] == [4, 4]
