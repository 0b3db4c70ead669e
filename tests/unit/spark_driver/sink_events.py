"""Events of the Iceberg sink as its version 1.12 encodes them."""

import io
import json
import uuid
from typing import Any

import fastavro

TABLE_UUID = uuid.UUID("0c0ffee0-0000-4000-8000-000000000001")
_UUID = {"type": "fixed", "name": "org.apache.iceberg.connect.events.uuid_fixed", "size": 16, "logicalType": "uuid"}
_EVENTS = "org.apache.iceberg.connect.events"


def field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind}


def optional(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": ["null", kind], "default": None}


def record(name: str, *fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def encoded(kind: int, group: str, payload: dict[str, Any], value: dict[str, Any]) -> bytes:
    """Return an event: magic bytes, schema with its length, value."""
    timestamp = {"type": "long", "logicalType": "timestamp-micros", "adjust-to-utc": True}
    schema = record(
        f"{_EVENTS}.Event",
        field("id", _UUID),
        field("type", "int"),
        field("timestamp", timestamp),
        field("group_id", "string"),
        field("payload", payload),
    )
    event = {
        "id": uuid.uuid4().bytes, "type": kind, "timestamp": 1_700_000_000_000_000, "group_id": group, "payload": value,
    }  # fmt: skip
    content = io.BytesIO()
    fastavro.schemaless_writer(content, fastavro.parse_schema(schema), event)
    text = json.dumps(schema).encode()
    return b"\xc2\x01" + len(text).to_bytes(2, "big") + text + content.getvalue()


def start_commit(group: str = "connect-orders") -> bytes:
    payload = record(f"{_EVENTS}.StartCommit", field("commit_id", f"{_EVENTS}.uuid_fixed"))
    return encoded(0, group, payload, {"commit_id": uuid.uuid4().bytes})


_TYPES = (
    record("org.apache.iceberg.PartitionData", optional("id_bucket", "int")),
    record("org.apache.iceberg.k117_v118", field("key", "int"), field("value", "long")),
    record("org.apache.iceberg.k126_v127", field("key", "int"), field("value", "bytes")),
)
"""Types of a file's partition and maps. Avro writes a type only once, and then its name."""
_NAMES = tuple(kind["name"] for kind in _TYPES)


def _file(name: str, partition: Any, sizes: Any, bounds: Any) -> dict[str, Any]:
    return record(
        f"org.apache.iceberg.{name}",
        field("content", "int"),
        field("file_path", "string"),
        field("partition", partition),
        field("record_count", "long"),
        optional("column_sizes", {"type": "array", "items": sizes, "logicalType": "map"}),
        optional("lower_bounds", {"type": "array", "items": bounds, "logicalType": "map"}),
    )


def data_written(
    group: str = "connect-orders",
    table: str = "orders",
    records: tuple[int, ...] = (5,),
    table_uuid: uuid.UUID | None = TABLE_UUID,
    namespace: str = "shop",
) -> bytes:
    """Return an event with a data file of so many records each. ``table_uuid`` None: version 1.10, which has no such field."""
    reference = [
        field("catalog", "string"), field("namespace", {"type": "array", "items": "string"}), field("name", "string"),
    ]  # fmt: skip
    if table_uuid is not None:
        reference.append(optional("table_uuid", f"{_EVENTS}.uuid_fixed"))
    payload = record(
        f"{_EVENTS}.DataWritten",
        field("commit_id", f"{_EVENTS}.uuid_fixed"),
        field("table_reference", record(f"{_EVENTS}.TableReference", *reference)),
        optional("data_files", {"type": "array", "items": _file("GenericDataFile", *_TYPES)}),
        optional("delete_files", {"type": "array", "items": _file("GenericDeleteFile", *_NAMES)}),
    )
    files = [
        {
            "content": 0,
            "file_path": f"file:/lake/{number}.parquet",
            "partition": {"id_bucket": number},
            "record_count": count,
            "column_sizes": [{"key": 1, "value": 40}],
            "lower_bounds": None,
        }
        for number, count in enumerate(records)
    ]
    named: dict[str, Any] = {"catalog": "lake", "namespace": [namespace], "name": table}
    if table_uuid is not None:
        named["table_uuid"] = table_uuid.bytes
    value = {
        "commit_id": uuid.uuid4().bytes, "table_reference": named, "data_files": files, "delete_files": None,
    }  # fmt: skip
    return encoded(1, group, payload, value)
