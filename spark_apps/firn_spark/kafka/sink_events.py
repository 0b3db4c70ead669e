"""Events on the control topic of the Apache Iceberg sink of Kafka Connect.

An event is the bytes C2 01, its Avro schema as Java's ``writeUTF`` encodes a text, and the Avro value
(org.apache.iceberg.avro.AvroEncoderUtil). Its schema is that of org.apache.iceberg.connect.events.Event.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from firn.decoders.avro import Bytes, Decode, decoder
from firn.decoders.bad_records import BadRecordError
from firn.model.errors import CorruptDataError, InvalidSpecError
from firn.schemas import avro

MAGIC = b"\xc2\x01"
_DATA_WRITTEN = 1
"""Number of the type of events that name the files that a task has written (PayloadType)."""


@dataclass(frozen=True, slots=True)
class DataWritten:
    """Files that a task of the sink has written and that its coordinator has to commit to the table."""

    group: str
    """Consumer group of the connector."""
    namespace: tuple[str, ...]
    table: str
    table_uuid: str
    """UUID of the table in hexadecimal digits; empty if the event names none, as those of version 1.10."""
    files: int
    """Data files and delete files with at least one record. The coordinator commits no others."""


def data_written(value: bytes) -> DataWritten | None:
    """Return the event if it names written files; None for every other type. Raises CorruptDataError."""
    size = int.from_bytes(value[2:4], "big")
    text, body = value[4 : 4 + size], value[4 + size :]
    if value[:2] != MAGIC or len(text) < size:
        raise CorruptDataError(
            "a record is no event of the Iceberg sink, because it does not begin with the bytes C2 01"
        )
    try:
        event = _decoder(text)(Bytes(body))
        if event["type"] != _DATA_WRITTEN:
            return None
        payload = event["payload"]
        table = payload["table_reference"]
        uuid = table.get("table_uuid")
        return DataWritten(
            group=event["group_id"],
            namespace=tuple(table["namespace"]),
            table=table["name"],
            table_uuid=uuid.hex() if uuid is not None else "",
            files=_with_records(payload, "data_files") + _with_records(payload, "delete_files"),
        )
    except (InvalidSpecError, BadRecordError, KeyError, ValueError) as error:
        raise CorruptDataError(f"an event of the Iceberg sink cannot be read: {error}") from error


def _with_records(payload: Mapping[str, Any], field: str) -> int:
    return sum(file["record_count"] > 0 for file in payload[field] or ())


@lru_cache(64)
def _decoder(schema: bytes) -> Decode:
    # Java writes characters beyond 16 bits as two surrogates of three bytes each.
    return decoder(avro.parse(schema.decode("utf-8", "surrogatepass")))
