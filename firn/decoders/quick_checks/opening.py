"""The quick check of a schema: the one of its format."""

from collections.abc import Sequence
from typing import Protocol

from firn.decoders import checks
from firn.decoders.quick_checks.avro import AvroCheck
from firn.decoders.quick_checks.json import JsonCheck
from firn.decoders.quick_checks.protobuf import ProtobufCheck, is_quick
from firn.model.jobs import RecordSchema, SchemaFormat
from firn.schemas import avro


class QuickCheck(Protocol):
    """Accepts values that are certainly valid."""

    @property
    def slice_bytes(self) -> int:
        """The bytes of values that the check sees at a time. They take about half a millisecond, and hostile ones up to 4 ms."""

    def accepts(self, values: Sequence[bytes | None]) -> bool:
        """Return True only if the strict decoder accepts each value."""

    def learn(self, values: Sequence[bytes | None]) -> None:
        """Learn from values that the strict decoder has accepted."""


def quick_check_of(schema: RecordSchema) -> QuickCheck | None:
    """Return the quick check for a schema of `checks.check_of`, or None if it has none. Raises InvalidSpecError as that does."""
    checks.check_of(schema)
    framed = schema.framing == "Registry"
    match schema.format:
        case SchemaFormat.JSON:
            return JsonCheck(
                checks.json_fields(schema),
                has_former=bool(schema.renames),
                keep_unknown=bool(schema.unknown_column),
                ignore_unknown=schema.unknown_fields != "DeadLetter",
                truncate_times=schema.truncate_times,
            )
        case SchemaFormat.AVRO:
            return AvroCheck(avro.parse(schema.text, schema.references), checks.FRAMING if framed else 0)
        case SchemaFormat.PROTOBUF:
            message = checks.message_with_columns(schema)
            if is_quick(message) and (not framed or tuple(checks.expected_indexes(schema)) in ((), (0,))):
                return ProtobufCheck(message, framed)
    return None
