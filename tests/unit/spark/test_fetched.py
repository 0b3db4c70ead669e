"""Arrow batches and places in bytes hold the same records."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn_spark.worker.fetched import NO_TIME, Fetched, HeaderPlaces, Places
from tests.unit.spark.records import HEADERS, NOON, batch

VALUES = st.lists(st.none() | st.binary(max_size=9), max_size=12)
HEADER_LISTS = st.lists(
    st.none()
    | st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": st.none() | st.binary(max_size=3)}), max_size=3),
    max_size=8,
)  # fmt: skip
CUT = st.integers(0, 12)


@given(VALUES, CUT, CUT)
def test_places_hold_the_values_of_a_slice(values: list[bytes | None], start: int, length: int) -> None:
    array = pa.array(values, pa.binary()).slice(start, length)
    places = Places.from_arrow(array)
    assert len(places) == len(array)
    assert places.to_list() == array.to_pylist()
    assert places.to_arrow().equals(array)
    assert places.lengths().tolist() == [len(value or b"") for value in array.to_pylist()]


@given(VALUES, st.data())
def test_places_can_be_taken_of_some_values(values: list[bytes | None], data: st.DataObject) -> None:
    kept = [index for index in range(len(values)) if data.draw(st.booleans())]
    places = Places.from_arrow(pa.array(values, pa.binary())).select(np.array(kept, np.int64))
    wanted = [values[index] for index in kept]
    assert places.to_list() == wanted
    array = places.to_arrow()
    array.validate(full=True)
    assert array.to_pylist() == wanted


def test_values_are_not_copied() -> None:
    array = pa.array([b"ab", None, b"cde"], pa.binary())
    places = Places.from_arrow(array)
    assert np.shares_memory(places.data, np.frombuffer(array.buffers()[2], np.uint8))
    again = places.to_arrow()
    assert again.buffers()[2].address == array.buffers()[2].address
    assert not places.data.flags.writeable


def test_bytes_behind_a_null_are_not_part_of_the_value() -> None:
    offsets = pa.py_buffer(np.array([0, 2, 4, 6], np.int32))
    bitmap = pa.py_buffer(np.packbits([True, False, True], bitorder="little"))
    array = pa.Array.from_buffers(pa.binary(), 3, [bitmap, offsets, pa.py_buffer(b"aabbcc")])
    places = Places.from_arrow(array)
    assert places.to_list() == [b"aa", None, b"cc"]
    assert places.lengths().tolist() == [2, 0, 2]
    assert places.to_arrow().to_pylist() == [b"aa", None, b"cc"]


@given(HEADER_LISTS, CUT, CUT, st.data())
def test_headers_are_equal_in_both_forms(lists: list[Any], start: int, length: int, data: st.DataObject) -> None:
    array = pa.array(lists, HEADERS).slice(start, length)
    places = HeaderPlaces.from_arrow(array)
    whole = places.to_arrow()
    whole.validate(full=True)
    assert whole.to_pylist() == array.to_pylist()
    kept = [index for index in range(len(array)) if data.draw(st.booleans())]
    some = places.select(np.array(kept, np.int64)).to_arrow()
    some.validate(full=True)
    assert some.to_pylist() == [array.to_pylist()[index] for index in kept]


@pytest.mark.parametrize("start", [0, 1])
def test_a_batch_becomes_records(start: int) -> None:
    given_batch = batch(
        [b"a", None, b"c"], key=[None, b"k", b""], partition=[1, 2, 1], offset=[5, 6, 7], timestampType=[0, 1, -1],
        timestamp=[NOON * 1000, -1000, 0], headers=[[{"key": "h", "value": None}], [], None],
    ).slice(start)  # fmt: skip
    records = Fetched.from_arrow("t", given_batch)
    assert (records.topic, len(records)) == ("t", 3 - start)
    assert records.keys.to_list() == [None, b"k", b""][start:]
    assert records.values.to_list() == [b"a", None, b"c"][start:]
    assert records.partitions.tolist() == [1, 2, 1][start:]
    assert records.offsets.tolist() == [5, 6, 7][start:]
    assert records.times.tolist() == [NOON, NO_TIME, 0][start:]
    assert records.time_types.tolist() == [0, 1, -1][start:]
    assert records.headers.to_arrow().to_pylist() == [[{"key": "h", "value": None}], [], None][start:]
    assert records.select(np.array([1 - start])).offsets.tolist() == [6]


def test_a_batch_may_have_millisecond_times_and_no_headers() -> None:
    given_batch = batch([b"a"], timestamp_ms=[2**62]).drop_columns(["headers"])
    records = Fetched.from_arrow("t", given_batch)
    assert records.times.tolist() == [2**62]
    assert records.headers.to_arrow().to_pylist() == [None]
