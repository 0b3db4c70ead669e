"""The transforms of a connector that change which rows it writes. Ingestion lands records as they are in the topic. No I/O."""

import re
from collections.abc import Iterator, Mapping

_KAFKA = "org.apache.kafka.connect.transforms."
_ICEBERG = "org.apache.iceberg.connect.transforms."
_METADATA = f"{_ICEBERG}KafkaMetadataTransform"
_KEEPS_VALUES = frozenset(
    {_METADATA, *(f"{_KAFKA}{name}" for name in ("DropHeaders", "InsertHeader", "SetSchemaMetadata$Value", "ValueToKey"))}
)  # fmt: skip
"""Transforms after which the sink writes the same row. Those whose names end with $Key are also harmless, because the sink writes no keys."""
_EVENTS = (
    "turns change events into rows, and Firn does not apply updates and deletes: ingestion would append a row for each event."
    " Keep the connector for this topic. If all events are inserts, list columns such as {name: id, from: $.after.id}"
)
_NAME = "the sink may commit offsets of another topic name, so ingestion could land all records again"
_ADVICE = {
    **dict.fromkeys(
        (
            "DebeziumTransform",
            "MongoDebeziumTransform",
            "DmsTransform",
            "EnvelopeTransform",
            "ExtractNewRecordState",
            "ExtractNewDocumentState",
        ),
        _EVENTS,
    ),
    "ReplaceField$Value": "renames or leaves out fields: list each renamed field, such as {name: NEW, from: $.OLD}, and set otherFields: Keep",
    "ExtractField$Value": "lands one field as the whole record: list its members, such as {name: id, from: $.FIELD.id}",
    "Flatten$Value": "lands members of structs as columns: list each member, such as {name: customer_id, from: $.customer.id}",
    "HoistField$Value": "puts the record into a struct, which no column of Firn does: list its members as columns of the table, or let producers"
    " write the struct first",
    "MaskField$Value": "masks fields, which would land as they are: list each of them with a constant, such as {name: card, constant: '***'}, or"
    " with Sha256 or Mask",
    "InsertField$Value": "adds fields: list each fixed value, such as {name: source, constant: web}. Topic, partition, offset and timestamp are in"
    " the column _kafka",
    "Cast$Value": "converts fields: give the field the type of the values, and list the column, such as {name: total, from: $.total, type: long}",
    "TimestampConverter$Value": "converts times: give the field the type of the values, and list the column, such as"
    " {name: at, from: $.at, type: timestamptz, epoch: s}",
    "HeaderFrom$Value": "moves fields to headers: list the columns without these fields",
    "CopyValue": "copies a field: list the copy, such as {name: COPY, from: $.FIELD}, and set otherFields: Keep",
    "Filter": "leaves out records: write the condition in spec.schema.filter",
    "RegexRouter": f"renames topics: {_NAME}. List first offsets in spec.ingestion.adopt.offsets",
    "TimestampRouter": f"renames topics: {_NAME}. List first offsets in spec.ingestion.adopt.offsets",
}
"""Names of classes, without their packages, and the next step."""
_UNKNOWN = (
    "may change records: find out which columns it fills, and list those that differ, such as {name: NEW, from: $.OLD}"
)


def changes(values: Mapping[str, str]) -> Iterator[str]:
    """Return what each transform does that changes rows, with the next step. ``values`` is the configuration of the connector."""
    for name, kind in _transforms(values):
        if kind in _KEEPS_VALUES or kind.endswith("$Key"):
            continue
        if kind == f"{_KAFKA}HeaderFrom$Value" and values.get(f"transforms.{name}.operation") == "copy":
            continue
        found = _ADVICE.get(re.sub(r"^.*\.", "", kind), _UNKNOWN)
        yield f"transform {name} ({kind or 'without a type'}) {found}"


def warnings(values: Mapping[str, str]) -> Iterator[str]:
    """Warn of transforms whose columns get null."""
    for name, kind in _transforms(values):
        if kind == _METADATA:
            yield f"transform {name} ({kind}): its columns get null, and column _kafka has partition, offset and timestamp of each record"


def _transforms(values: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in (each.strip() for each in values.get("transforms", "").split(",")):
        if name:
            yield name, values.get(f"transforms.{name}.type", "")
