"""WAL objects are readable without a coordinator."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn.model.errors import CorruptDataError
from firn_broker.log_types import Partition
from firn_broker.storage import wal
from firn_broker.storage.memory import whole_pages
from tests.unit.broker.batches import batch

ID = UUID(int=3)
BATCHES = st.builds(
    batch,
    st.integers(1, 8),
    body=st.binary(min_size=56, max_size=120),
    producer=st.just(5),
    epoch=st.integers(0, 9),
    sequence=st.integers(0, 99),
)
SEGMENTS = st.dictionaries(
    st.builds(Partition, st.integers(0, 3).map(lambda number: UUID(int=number)), st.integers(0, 5)),
    st.lists(BATCHES, min_size=1, max_size=4),
    min_size=1,
    max_size=6,
)


def index_of(data: memoryview) -> list[wal.IndexedBatch]:
    start, end = wal.index_range(data[-wal.TAIL :], len(data))
    return wal.read_index(data[start:end], data[-wal.TAIL :])


@given(SEGMENTS)
def test_the_index_lists_all_batches(segments: dict[Partition, list]) -> None:  # type: ignore[type-arg]
    ordered = sorted(segments.items())
    view, positions = wal.assemble(ID, 3, 4, ordered)
    index = index_of(view)
    made = [(partition, source) for partition, batches in ordered for source in batches]
    assert [entry.position for entry in index] == positions
    assert [
        (
            entry.partition,
            entry.records,
            entry.producer_id,
            entry.producer_epoch,
            entry.base_sequence,
            entry.max_timestamp,
        )
        for entry in index
    ] == [
        (
            partition,
            source.records,
            source.producer_id,
            source.producer_epoch,
            source.base_sequence,
            source.max_timestamp,
        )
        for partition, source in made
    ]
    assert [view[entry.position : entry.position + entry.length] for entry in index] == [
        source.data for _, source in made
    ]
    wal.check_segments(view)


@given(SEGMENTS, st.data())
def test_a_changed_bit_is_detected(segments: dict[Partition, list], data: st.DataObject) -> None:  # type: ignore[type-arg]
    made, _ = wal.assemble(ID, 3, 4, sorted(segments.items()))
    made[data.draw(st.integers(wal.HEAD, len(made) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptDataError):  # noqa: PT012
        index_of(made)
        wal.check_segments(made)


def test_a_truncated_object_is_rejected() -> None:
    made, _ = wal.assemble(ID, 3, 4, [(Partition(ID, 0), [batch()])])
    with pytest.raises(CorruptDataError):
        index_of(made[:-1])


def test_a_key_contains_the_id_of_its_object() -> None:
    assert wal.id_of(wal.key(ID)) == ID
    assert wal.key(ID).startswith(wal.PREFIX)


@given(SEGMENTS)
def test_a_directory_can_write_an_object_without_a_copy(segments: dict[Partition, list]) -> None:  # type: ignore[type-arg]
    made, _ = wal.assemble(ID, 3, 4, sorted(segments.items()))
    pages = whole_pages(made)
    assert pages is not None
    assert pages[: len(made)] == made
