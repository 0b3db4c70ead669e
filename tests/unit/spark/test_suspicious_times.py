"""Integers in columns of times that are sensible only in another unit."""

import json
from typing import Any

import pyarrow as pa
import pytest

from firn.model.jobs import Column, RecordSchema
from firn_spark.worker.fetched import Places
from firn_spark.worker.formats.json.blocks import BlockDecoder
from firn_spark.worker.formats.json.decoding import JsonFormat
from firn_spark.worker.formats.json.times import read_times
from tests.unit.spark.records import fetched

NOW = 1_760_000_000


def times(kind: str, epoch: str, *values: Any) -> Any:
    fields = [Column.model_validate({"name": "at", "type": kind, "epoch": epoch})]
    records = pa.array([json.dumps({"at": value}).encode() for value in values], pa.binary())
    arrays, vouched = BlockDecoder(fields, refuse_unknown=False).decode(Places.from_arrow(records))
    assert vouched.all()
    return read_times(fields, arrays).get("at")


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
@pytest.mark.parametrize(
    ("epoch", "number", "better"),
    [
        ("ms", NOW, "s"),
        ("ms", NOW * 10**6, "us"),
        ("s", NOW * 1000, "ms"),
        ("us", NOW * 1000, "ms"),
        ("us", NOW, "s"),
        ("us", NOW * 10**9, "ns"),
        ("ns", NOW * 10**6, "us"),
    ],
)
def test_integers_of_another_unit_are_found(kind: str, epoch: str, number: int, better: str) -> None:
    found = times(kind, epoch, number, number + 1000)
    assert (found.values, found.wrong, found.epoch) == (2, 2, better)


@pytest.mark.parametrize(
    ("epoch", "values"),
    [
        ("ms", [NOW * 1000, 0, -1, 1, "1969-07-20T20:17:00Z", "2150-01-01T00:00:00Z"]),
        ("s", [NOW, 0, 946_684_800, 4_102_444_799]),
        ("ns", [NOW * 10**9, 0, 1000]),
    ],
)
def test_sensible_and_hopeless_times_are_not_found(epoch: str, values: Any) -> None:
    found = times("timestamptz", epoch, *values)
    assert (found.values, found.wrong) == (len(values), 0)


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz", "list<timestamptz>", "struct<at: timestamp>"])
@pytest.mark.parametrize(
    ("epoch", "number", "better"),
    [("ms", NOW * 10**9, "ns"), ("s", NOW * 10**6, "us"), ("s", NOW * 10**9, "ns")],
)
def test_integers_that_are_refused_count_too(kind: str, epoch: str, number: int, better: str) -> None:
    in_type: dict[str, Any] = {"list<timestamptz>": "[{}]", "struct<at: timestamp>": '{{"at": {}}}'}

    def wrap(value: int) -> Any:
        return json.loads(in_type.get(kind, "{}").format(value))

    fields = [Column.model_validate({"name": "at", "type": kind, "epoch": epoch})]
    values = [{"at": wrap(number)}, {"at": wrap(number + 1000)}, {"at": None}, {"at": "no time"}]
    found = JsonFormat(RecordSchema(format="Json", fields=fields)).decode(
        fetched([json.dumps(value).encode() for value in values])
    )
    assert {index: str(error.code) for index, error in found.errors.items() if index < 3} == dict.fromkeys(
        (0, 1), "OutOfRange"
    )
    times = found.times["at"]
    factor = {"ms": 1000, "s": 10**6}[epoch]
    assert (times.values, times.wrong, times.epoch, times.sample) == (2, 2, better, number * factor)


def test_refused_and_decoded_integers_of_one_column_are_counted_together() -> None:
    fields = [Column(name="at", type="timestamptz")]
    values = [{"at": number} for number in (NOW * 1000, NOW * 10**6, 3 * NOW * 10**6, NOW * 10**9, 9 * 10**18)]
    found = JsonFormat(RecordSchema(format="Json", fields=fields)).decode(
        fetched([json.dumps(value).encode() for value in values])
    )
    assert found.times["at"] == (5, 1, "us", NOW * 10**9), "3 * NOW and 9 * 10**18 are not sensible in any epoch"


def test_times_inside_other_types_are_counted() -> None:
    kind = "struct<a: list<timestamptz>, b: map<string, timestamp>>"
    found = times(kind, "ms", {"a": [NOW, None], "b": {"x": NOW * 1000}}, None)
    assert (found.values, found.wrong, found.epoch, found.sample) == (2, 1, "s", NOW * 1000)


def test_a_column_without_times_is_not_counted() -> None:
    assert times("long", "ms", NOW) is None
    assert times("timestamptz", "ms", None) is None
