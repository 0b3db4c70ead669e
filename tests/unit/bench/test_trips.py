"""The generator of taxi trips, and the job that Flink gets for them."""

import json
from datetime import datetime

import pytest

from firn.decoders.json import RecordReader
from firn.model.jobs import Column
from hack.bench.peers import flink
from hack.bench.records.trips import COLUMNS, TEXTS, Generator

ROWS = 2_000


@pytest.fixture(scope="module")
def values() -> list[bytes]:
    """Generate some trips."""
    return Generator().generate(ROWS)


def test_the_same_seed_gives_the_same_trips(values: list[bytes]) -> None:
    assert Generator(seed=1).generate(ROWS) == values
    assert Generator(seed=2).generate(ROWS) != values


def test_trips_continue_over_calls() -> None:
    generator = Generator()
    trips = [json.loads(value) for size in (3, 0, 4) for value in generator.generate(size)]
    assert [trip["trip_id"] for trip in trips] == list(range(7))
    times = [trip["pickup_at"] for trip in trips]
    assert times == sorted(times)


def test_a_trip_has_a_value_for_each_of_29_columns(values: list[bytes]) -> None:
    assert len(COLUMNS) == 29
    names = [column.name for column in COLUMNS]
    assert all(list(json.loads(value)) == names for value in values)


@pytest.mark.parametrize("columns", [COLUMNS, TEXTS])
def test_trips_fit_their_columns(columns: tuple[Column, ...], values: list[bytes]) -> None:
    reader = RecordReader.for_schema(columns, refuse_unknown=True)
    for value in values:
        reader.read(value)


def test_columns_without_a_value_in_each_trip_are_null_in_some(values: list[bytes]) -> None:
    trips = [json.loads(value) for value in values]
    nulls = {name for trip in trips for name, value in trip.items() if value is None}
    assert nulls == {
        "store_and_fwd_flag",
        "passenger_count",
        "congestion_surcharge",
        "airport_fee",
        "trip_type",
        "dropoff_zone",
    }


def test_a_trip_ends_after_it_begins(values: list[bytes]) -> None:
    for value in values:
        trip = json.loads(value)
        assert datetime.fromisoformat(trip["pickup_at"]) < datetime.fromisoformat(trip["dropoff_at"])


def test_flink_declares_the_columns_of_the_table() -> None:
    fields = flink.fields(COLUMNS)
    assert "`trip_id` BIGINT" in fields
    assert "`pickup_at` TIMESTAMP_LTZ(6)" in fields
    assert "`pickup_at` STRING" in flink.fields(TEXTS)
    assert "`shared` BOOLEAN" in fields
