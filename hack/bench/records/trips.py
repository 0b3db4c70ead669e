"""Generate records in the shape of taxi trips. A record is JSON of about 650 bytes with 29 typed values, some of them null."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.model.jobs import Column

COLUMNS = (
    Column(name="trip_id", type="long", required=True),
    Column(name="vendor_id", type="int"),
    Column(name="pickup_at", type="timestamptz"),
    Column(name="dropoff_at", type="timestamptz"),
    Column(name="store_and_fwd_flag", type="string"),
    Column(name="rate_code_id", type="int"),
    Column(name="pickup_longitude", type="double"),
    Column(name="pickup_latitude", type="double"),
    Column(name="dropoff_longitude", type="double"),
    Column(name="dropoff_latitude", type="double"),
    Column(name="passenger_count", type="int"),
    Column(name="trip_distance", type="double"),
    Column(name="fare_amount", type="double"),
    Column(name="extra", type="double"),
    Column(name="mta_tax", type="double"),
    Column(name="tip_amount", type="double"),
    Column(name="tolls_amount", type="double"),
    Column(name="improvement_surcharge", type="double"),
    Column(name="congestion_surcharge", type="double"),
    Column(name="airport_fee", type="double"),
    Column(name="total_amount", type="double"),
    Column(name="payment_type", type="string"),
    Column(name="trip_type", type="int"),
    Column(name="cab_type", type="string"),
    Column(name="pickup_location_id", type="int"),
    Column(name="dropoff_location_id", type="int"),
    Column(name="pickup_zone", type="string"),
    Column(name="dropoff_zone", type="string"),
    Column(name="shared", type="boolean"),
)
TEXTS = tuple(
    column.model_copy(update={"type": "string"}) if column.type == "timestamptz" else column for column in COLUMNS
)
"""Columns for the same records, with the timestamps as texts. Contestants do not parse them."""

_PLACES = (
    "Harbour",
    "Hill",
    "Park",
    "Market",
    "Garden",
    "Bridge",
    "Mill",
    "Station",
    "Field",
    "Cross",
    "Bay",
    "Heights",
    "Square",
)
_SIDES = ("North", "South", "East", "West", "Upper", "Lower", "Old", "New", "Inner", "Outer")
_ZONES = np.array(
    [f"{side} {place}" for place in _PLACES for side in _SIDES] + [f"{place} Airport" for place in _PLACES]
)
_PAYMENTS = np.array(["Credit card", "Cash", "No charge", "Dispute", "Unknown"])
_CABS = np.array(["yellow", "green", "hire"])
_FLAGS = np.array(["N", "Y"])
_EXTRAS = np.array([0, 50, 100, 250, 350, 600])
_TOLLS = np.array([694, 318, 1175, 2000])
_TIPS = np.array([0, 15, 20, 25])
_HUNDREDTHS = pa.array([f"{number / 100}" for number in range(50_000)])
"""The JSON texts of amounts by the number of hundredths."""
_START = np.datetime64("2026-01-01T00:00:00", "s")


class Generator:
    """A generator of trips with ids from 0 on, the same ones for the same seed and the same calls."""

    def __init__(self, seed: int = 1) -> None:
        self._random = np.random.default_rng(seed)
        self._next = 0
        self._time = _START

    def generate(self, count: int) -> list[bytes]:
        """Return the next ``count`` values."""
        tokens = self._tokens(count)
        parts: list[Any] = []
        for number, column in enumerate(COLUMNS):
            parts += [f'{"," if number else "{"}"{column.name}":', tokens[column.name]]
        joined = _joined(*parts, "}")
        values: list[bytes] = joined.cast(pa.binary()).to_pylist()
        return values

    def _tokens(self, count: int) -> dict[str, Any]:
        """Return the JSON texts of all columns of ``count`` rows by name."""
        pick = self._random
        ids = np.arange(self._next, self._next + count)
        pickups = self._time + np.cumsum(pick.integers(0, 2, count)).astype("timedelta64[s]")
        self._next += count
        self._time = pickups[-1] if count else self._time
        distance = np.minimum(pick.exponential(300.0, count), 7_000).astype(np.int32)
        dropoffs = pickups + (120 + distance * pick.uniform(2.0, 5.0, count)).astype("timedelta64[s]")
        fare = 300 + distance // 20 * 50
        tip = fare * pick.choice(_TIPS, count) // 100
        extra = pick.choice(_EXTRAS, count)
        tolls = np.where(pick.random(count) < 0.06, pick.choice(_TOLLS, count), 0)
        total = fare + extra + 50 + tip + tolls + 100
        start, end = pick.integers(0, len(_ZONES), count), pick.integers(0, len(_ZONES), count)
        return {
            "trip_id": _number(ids),
            "vendor_id": _number(pick.integers(1, 3, count)),
            "pickup_at": _time(pickups),
            "dropoff_at": _time(dropoffs),
            "store_and_fwd_flag": self._sparse(_text(_FLAGS, (pick.random(count) < 0.01).astype(int)), 0.3),
            "rate_code_id": _number(np.where(pick.random(count) < 0.05, pick.integers(2, 7, count), 1)),
            "pickup_longitude": self._coordinate(-73.97, count),
            "pickup_latitude": self._coordinate(40.75, count),
            "dropoff_longitude": self._coordinate(-73.97, count),
            "dropoff_latitude": self._coordinate(40.75, count),
            "passenger_count": self._sparse(_number(pick.integers(1, 7, count)), 0.05),
            "trip_distance": _amount(distance),
            "fare_amount": _amount(fare),
            "extra": _amount(extra),
            "mta_tax": pa.scalar("0.5"),
            "tip_amount": _amount(tip),
            "tolls_amount": _amount(tolls),
            "improvement_surcharge": pa.scalar("1.0"),
            "congestion_surcharge": self._sparse(_amount(np.where(pick.random(count) < 0.9, 250, 0)), 0.1),
            "airport_fee": self._sparse(_amount(np.where(pick.random(count) < 0.08, 175, 0)), 0.5),
            "total_amount": _amount(total),
            "payment_type": _text(_PAYMENTS, pick.choice(len(_PAYMENTS), count, p=[0.75, 0.2, 0.02, 0.01, 0.02])),
            "trip_type": self._sparse(_number(pick.integers(1, 3, count)), 0.8),
            "cab_type": _text(_CABS, pick.choice(len(_CABS), count, p=[0.8, 0.1, 0.1])),
            "pickup_location_id": _number(start + 1),
            "dropoff_location_id": _number(end + 1),
            "pickup_zone": _text(_ZONES, start),
            "dropoff_zone": self._sparse(_text(_ZONES, end), 0.05),
            "shared": _chosen(pick.random(count) < 0.1, "true", "false"),
        }

    def _sparse(self, tokens: pa.Array, share: float) -> pa.Array:
        """Return the tokens with ``share`` of them replaced by null."""
        return _chosen(self._random.random(len(tokens)) < share, "null", tokens)

    def _coordinate(self, middle: float, count: int) -> pa.Array:
        return _number(np.round(self._random.normal(middle, 0.04, count), 6))


def _joined(*parts: Any) -> pa.Array:
    return pc.call_function("binary_join_element_wise", [*map(_scalar, parts), pa.scalar("")])


def _chosen(condition: Any, chosen: Any, other: Any) -> pa.Array:
    return pc.call_function("if_else", [pa.array(condition), _scalar(chosen), _scalar(other)])


def _scalar(value: Any) -> Any:
    return pa.scalar(value) if isinstance(value, str) else value


def _number(values: Any) -> pa.Array:
    return pa.array(values).cast(pa.string())


def _amount(hundredths: Any) -> pa.Array:
    return _HUNDREDTHS.take(pa.array(hundredths))


def _text(names: Sequence[str] | Any, indices: Any) -> pa.Array:
    quoted = pa.array([f'"{name}"' for name in names])
    return quoted.take(pa.array(indices))


def _time(moments: Any) -> pa.Array:
    """Return times in ISO 8601 with T and Z."""
    days, seconds = moments.astype("datetime64[D]"), (moments - moments.astype("datetime64[D]")).astype(np.int32)
    date = pa.array(days).cast(pa.string())
    return _joined('"', date, "T", pa.array(seconds, pa.time32("s")).cast(pa.string()), 'Z"')
