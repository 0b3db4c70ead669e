"""The vocabulary of bad records, which every format shares: why a record cannot become a row, and where it failed."""

from enum import StrEnum

DETAIL_LIMIT = 200


class Stage(StrEnum):
    """Where a record failed: reading its bytes, fitting the schema, or on the way into the table."""

    DECODE = "Decode"
    SCHEMA = "Schema"
    WRITE = "Write"


class Code(StrEnum):
    """Why a record is a dead letter (``error_code``): a closed list."""

    EMPTY_PAYLOAD = "EmptyPayload"
    """Decode: the value has no bytes, or only white space."""
    INVALID_UTF8 = "InvalidUtf8"
    """Decode: the bytes are not UTF-8, or an escape makes half a surrogate pair."""
    INVALID_JSON = "InvalidJson"
    """Decode: not one JSON value (RFC 8259): truncated, trailing bytes, NaN, Infinity, ..."""
    TOO_DEEP = "TooDeep"
    """Decode: arrays and objects nest more levels than the format allows."""
    NOT_AN_OBJECT = "NotAnObject"
    """Schema: the record is JSON, but no object."""
    TOMBSTONE = "Tombstone"
    """Schema: the value is null and the schema has required fields."""
    MISSING_REQUIRED = "MissingRequired"
    """Schema: a required field is missing or null."""
    DUPLICATE_KEY = "DuplicateKey"
    """Schema: a field, member or map key comes twice."""
    UNKNOWN_FIELD = "UnknownField"
    """Schema: a field that the schema does not name, where unknownFields is DeadLetter."""
    WRONG_KIND = "WrongKind"
    """Schema: another kind of JSON value than the type takes."""
    OUT_OF_RANGE = "OutOfRange"
    """Schema: a number, date or length beyond what the type holds."""
    INEXACT = "Inexact"
    """Schema: the value would have to be rounded."""
    INVALID_FORMAT = "InvalidFormat"
    """Schema: a text that is no date, time, uuid, decimal or base64 as this page says."""
    SKIPPED = "Skipped"
    """Write: a user asked to skip this record at which the topic had halted."""


class BadRecordError(ValueError):
    """A record that does not fit. ``path`` is like ``$.a.b[3]``; ``detail`` is at most `DETAIL_LIMIT` characters."""

    def __init__(self, code: Code, stage: Stage, detail: str) -> None:
        self.code = code
        self.stage = stage
        self.detail = _bounded(detail, DETAIL_LIMIT)
        self._segments: list[str] = []
        super().__init__(self.detail)

    def within(self, segment: str) -> "BadRecordError":
        """The same error, seen from the container that has the value under ``segment``."""
        self._segments.append(segment)
        return self

    @property
    def path(self) -> str:
        """Where in the record."""
        return _bounded("$" + "".join(reversed(self._segments)), DETAIL_LIMIT)


def _bounded(text: str, limit: int) -> str:
    text = text.encode("utf-8", "replace").decode()  # half surrogate pairs cannot be stored
    return text if len(text) <= limit else text[: limit - 1] + "…"
