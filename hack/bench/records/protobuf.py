"""Encode the records of `measurements` in Protobuf."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from firn import protoc
from hack.bench.records.measurements import COLUMNS, Generator

_TYPES = {"timestamptz": "google.protobuf.Timestamp", "long": "int64", "int": "int32", "boolean": "bool"}
TEXT = "\n".join(
    (
        'syntax = "proto3";',
        'import "google/protobuf/timestamp.proto";',
        "message Measurement {",
        *(
            f"{'' if column.required else 'optional '}{_TYPES.get(column.type, column.type)} {column.name} = {number};"
            for number, column in enumerate(COLUMNS, 1)
        ),
        "}",
    )
)


def message_class(descriptors: bytes) -> Any:
    """Return the class of google.protobuf for the records."""
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(descriptors).file:
        pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Measurement"))


class Encoder:
    """A generator of the records of `measurements` as Protobuf with the bytes of a schema registry, the same ones for the
    same seed."""

    def __init__(self, schema_id: int, seed: int = 1) -> None:
        self._records = Generator(seed)
        # The last byte selects the first message of the text.
        self._framing = b"\0" + schema_id.to_bytes(4, "big") + b"\0"
        self._class = message_class(protoc.descriptors(TEXT, ()))

    def generate(self, count: int) -> list[bytes]:
        """Return the next ``count`` values."""
        times, others = self._records.draw(count)
        values = []
        for at, row in zip(times.astype(int).tolist(), others, strict=True):
            number, device, region, temperature, total, active, note = row
            record = self._class(
                id=number,
                at={"seconds": at // 1000, "nanos": at % 1000 * 1_000_000},
                device=f"sensor-{device:06d}",
                region=region,
                temperature=round(temperature, 3),
                count=total,
                active=active,
                note=note,
            )
            values.append(self._framing + record.SerializeToString())
        return values
