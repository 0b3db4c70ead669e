"""Encode the records of `measurements` in Avro, with the five bytes of a schema registry before each value."""

from __future__ import annotations

import io
from typing import Any

import fastavro

from hack.bench.records.measurements import COLUMNS, Generator

_TYPES: dict[str, Any] = {"timestamptz": {"type": "long", "logicalType": "timestamp-millis"}}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "Measurement",
    "namespace": "bench",
    "fields": [
        {"name": column.name, "type": _TYPES.get(column.type, column.type)}
        if column.required
        else {"name": column.name, "type": ["null", _TYPES.get(column.type, column.type)], "default": None}
        for column in COLUMNS
    ],
}
"""Times have milliseconds, because the converters of Kafka Connect make no timestamps of microseconds."""


class Encoder:
    """A generator of the records of `measurements` as Avro, the same ones for the same seed."""

    def __init__(self, schema_id: int, seed: int = 1) -> None:
        self._records = Generator(seed)
        self._framing = b"\0" + schema_id.to_bytes(4, "big")
        self._schema = fastavro.parse_schema(SCHEMA)

    def generate(self, count: int) -> list[bytes]:
        """Return the next ``count`` values."""
        times, others = self._records.draw(count)
        values = []
        for at, row in zip(times.astype(int).tolist(), others, strict=True):
            number, device, region, temperature, total, active, note = row
            buffer = io.BytesIO()
            buffer.write(self._framing)
            record = {
                "id": number,
                "at": at,
                "device": f"sensor-{device:06d}",
                "region": region,
                "temperature": round(temperature, 3),
                "count": total,
                "active": active,
                "note": note,
            }
            fastavro.schemaless_writer(buffer, self._schema, record)
            values.append(buffer.getvalue())
        return values
