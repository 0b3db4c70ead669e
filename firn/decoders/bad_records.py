"""The vocabulary of bad records, which every format shares: why a record cannot become a row, and where it failed."""

from enum import StrEnum

from firn import member_paths
from firn.texts import without_surrogates

DETAIL_LIMIT = 200


class Stage(StrEnum):
    """The stage at which a record failed: its bytes, the schema, the way into the table, a rule, or the choice of a table."""

    DECODE = "Decode"
    SCHEMA = "Schema"
    WRITE = "Write"
    QUALITY = "Quality"
    ROUTE = "Route"


class Code(StrEnum):
    """The reason why a record is a dead letter (``error_code``). The list is closed."""

    EMPTY_PAYLOAD = "EmptyPayload"
    """Decode: the value is empty, or has only white space."""
    INVALID_UTF8 = "InvalidUtf8"
    """Decode: the bytes are not UTF-8, or an escape is half of a surrogate pair."""
    INVALID_JSON = "InvalidJson"
    """Decode: the value is not exactly one JSON value (RFC 8259), because it is truncated, has trailing bytes, NaN,
    Infinity, ..."""
    INVALID_AVRO = "InvalidAvro"
    """Decode: the value is not exactly one Avro value of the schema, because it is truncated, has trailing bytes, a
    branch that does not exist, ..."""
    INVALID_PROTOBUF = "InvalidProtobuf"
    """Decode: the value is not a Protobuf message of the schema, because it is truncated, has a field with the wire type
    of another type, ..."""
    UNKNOWN_SCHEMA = "UnknownSchema"
    """Decode: the value has no framing, or its id is not that of a schema of the topic's format and subject in the schema registry."""
    INCOMPATIBLE_SCHEMA = "IncompatibleSchema"
    """Decode: the table cannot hold the values of the schema."""
    TOO_DEEP = "TooDeep"
    """Decode: arrays and objects nest more levels than the format allows."""
    NOT_AN_OBJECT = "NotAnObject"
    """Schema: the record is JSON, but not an object."""
    TOMBSTONE = "Tombstone"
    """Schema: the value is null and the schema has required fields."""
    MISSING_REQUIRED = "MissingRequired"
    """Schema: a required field is missing or null."""
    DUPLICATE_KEY = "DuplicateKey"
    """Schema: a field, member or map key occurs twice."""
    UNKNOWN_FIELD = "UnknownField"
    """Schema: the schema does not name the field, and unknownFields is DeadLetter."""
    WRONG_KIND = "WrongKind"
    """Schema: the value is of another JSON kind than the type takes."""
    OUT_OF_RANGE = "OutOfRange"
    """Schema: a number, date or length is beyond the type's range."""
    INEXACT = "Inexact"
    """Schema: the value fits only if it is rounded."""
    INVALID_FORMAT = "InvalidFormat"
    """Schema: the text is not a valid date, time, uuid, decimal or base64."""
    SKIPPED = "Skipped"
    """Write: the topic halted at this record, and a user skipped it."""
    FILTERED = "Filtered"
    """Quality: the filter of the topic leaves the record out. A replay reports it, and no dead letter has it."""
    QUALITY_RULE = "QualityRule"
    """Quality: the row does not satisfy a rule of the spec."""
    NO_ROUTE = "NoRoute"
    """Route: no route of the topic takes the record, and ``spec.routes.otherwise`` is DeadLetter."""
    OTHER_TABLE = "OtherTable"
    """Route: the registry has the schema by now, and the record belongs to another table of the topic. A replay reports it, and no dead
    letter has it."""


class BadRecordError(ValueError):
    """A record that cannot become a row. ``path`` is like ``$.a['b-c'][3]``; ``detail`` has at most `DETAIL_LIMIT`
    characters. ``schema_path`` is ``path`` with ``*`` for each name that comes from the record and not from the schema."""

    def __init__(self, code: Code, stage: Stage, detail: str) -> None:
        self.code = code
        self.stage = stage
        self.detail = _bounded(detail, DETAIL_LIMIT)
        self.instant: int | None = None
        """The integer time that is too large in the epoch of its field. It may be sensible in another epoch."""
        self._segments: list[str] = []
        self._named: list[str] = []
        super().__init__(self.detail)

    def within(self, segment: str, *, from_record: bool = False) -> "BadRecordError":
        """Return the same error with ``segment`` in front of its path. ``from_record``: the schema does not have the name."""
        self._segments.append(segment)
        self._named.append(".*" if from_record else segment)
        return self

    @property
    def field(self) -> str:
        """The field of the record with the error; empty if the error is the record's own."""
        return member_paths.step_name(self._segments[-1]) if self._segments else ""

    @property
    def path(self) -> str:
        """The place of the error in the record."""
        return _bounded("$" + "".join(reversed(self._segments)), DETAIL_LIMIT)

    @property
    def schema_steps(self) -> tuple[str, ...]:
        """The parts of `schema_path`, all of them."""
        return tuple(reversed(self._named))

    @property
    def schema_path(self) -> str:
        """The place of the error in the record, without any name or key of the record's own."""
        return _bounded("$" + "".join(reversed(self._named)), DETAIL_LIMIT)


def _bounded(text: str, limit: int) -> str:
    text = without_surrogates(text)
    return text if len(text) <= limit else text[: limit - 1] + "…"
