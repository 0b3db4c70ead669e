"""Computes the projected columns of a table from decoded records, with Arrow."""

import hashlib
import hmac
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.member_paths import step
from firn.model.errors import NotReadyError
from firn.model.jobs import ProjectedColumn, RecordSchema, SchemaFormat
from firn.schemas import projections
from firn.tables import rows, types
from firn.tables.types import Primitive, Type
from firn_spark.worker.fetched import Fetched
from firn_spark.worker.formats.format import Columns
from firn_spark.worker.projections.casts import Cast

SHOWN = 4
"""Characters at the end of a masked text that stay."""
SHORTEST_SHOWN = 8
"""Characters of the shortest text of which a mask shows the end. Shorter texts are masked whole."""
_EXCERPT = 48


class Projector:
    """Computes the columns of `firn.tables.rows.schema_columns` from those that a format decodes."""

    def __init__(self, schema: RecordSchema, salts: Mapping[str, bytes] = MappingProxyType({})) -> None:
        """Plan the columns. ``salts`` are the salts of digests by name.

        Raises InvalidSpecError for a source that the schema does not have, and NotReadyError for a missing salt.
        """
        assert schema.projection is not None
        places = {column.name: place for place, column in enumerate(rows.decoded_columns(schema))}
        self._columns = [
            _Column.of(column, schema, places, _salt(column, salts)) for column in schema.projection.columns
        ]
        self._others = [places[column.name] for column in rows.other_columns(schema)]
        self._private = [
            tuple(map(step, projections.source_path(column, schema)))
            for column in schema.projection.columns
            if column.function is not None and column.path
        ]

    def project(self, records: Fetched, decoded: Columns) -> Columns:
        """Return the columns of the table. A record of which a value does not fit its column is bad."""
        errors = dict(decoded.errors)
        if self._private:
            for error in errors.values():
                self._redact(error)
        arrays = [column.compute(records, decoded, errors) for column in self._columns]
        return Columns([*arrays, *(decoded.arrays[place] for place in self._others)], errors, decoded.times)

    def _redact(self, error: BadRecordError) -> None:
        """Remove the value from the message of an error, if a column masks or hashes the value or a part of it."""
        place = error.schema_steps
        if any(all(map(operator.eq, place, path)) for path in self._private):
            error.detail = error.detail.partition(", found ")[0]


def _constant(text: str, cast: Cast) -> pa.Scalar:
    """Return a constant of the spec, which the operator has checked."""
    (value,), bad = cast.apply(pa.array([text], pa.string()))
    assert not bad, f"the constant {text} is no {cast.after}"
    return value


def _value(found: pa.Scalar) -> object:
    try:
        return found.as_py()
    except OverflowError:  # Python has only times of the years 1 to 9999.
        return f"{found.cast(pa.int64())} microseconds since 1970"


@dataclass(frozen=True, slots=True)
class _Column:
    """A projected column: ``place`` and ``members`` lead to the decoded values, unless it reads Kafka's bytes."""

    column: ProjectedColumn
    place: int
    members: tuple[str, ...]
    cast: Cast
    """The conversion to the type of the column, or to the type that its function takes."""
    constant: pa.Scalar | None
    can_truncate: bool
    """True if the schema can cut off digits of times."""
    salt: bytes = field(default=b"", repr=False)

    @classmethod
    def of(cls, column: ProjectedColumn, schema: RecordSchema, places: dict[str, int], salt: bytes = b"") -> "_Column":
        kind = projections.source_type(column, schema)
        field, *members = projections.source_path(column, schema) if column.path else [""]
        place = places[field] if column.path else -1
        cast = Cast(kind, _taken(column, kind), column.epoch or "ms", schema.truncate_times)
        constant = _constant(column.constant, cast) if column.constant is not None else None
        can_truncate = schema.format is SchemaFormat.JSON
        return cls(column, place, tuple(members), cast, constant, can_truncate, salt)

    def compute(self, records: Fetched, decoded: Columns, errors: dict[int, BadRecordError]) -> pa.Array:
        """Return the values of the column, and add the records whose value does not fit to ``errors``."""
        if self.constant is not None:
            return pa.repeat(self.constant, len(records))
        values = self._values(records, decoded)
        array, bad = self.cast.apply(values)
        for index, code in bad.items():
            errors.setdefault(index, self._error(code, _value(values[index])))
        if self.column.function == "Mask":
            array = masked(array)
        elif self.column.function == "Sha256":
            array = hashed(array, self.salt)
        if self.column.required and array.null_count:
            for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
                problem = f"column {self.column.name} is required, and {self.column.source} has no value"
                errors.setdefault(index, self._located(BadRecordError(Code.MISSING_REQUIRED, Stage.SCHEMA, problem)))
        return array

    def _values(self, records: Fetched, decoded: Columns) -> pa.Array:
        column = self.column
        if column.source == "key":
            return records.keys.to_arrow()
        if column.source == "value":
            return records.values.to_arrow()
        if column.source.startswith(projections.HEADER):
            return records.headers.last(column.source.removeprefix(projections.HEADER))
        array = decoded.arrays[self.place]
        for member in self.members:
            array = pc.call_function("struct_field", [array], pc.StructFieldOptions([member]))
        return array

    def _error(self, code: Code, value: object) -> BadRecordError:
        problem = f"column {self.column.name}: {self.column.source} cannot become {self.cast.after}"
        if self.column.function is None:  # A value that a column masks or hashes must not be in a message.
            text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
            problem += f", found {text if len(text) <= _EXCERPT else f'{text[: _EXCERPT - 1]}…'}"
        if code is Code.INEXACT and self.can_truncate and "time" in str(self.cast.after):
            problem += ": finer than a microsecond; schema.nanoseconds: Truncate cuts off these digits"
        return self._located(BadRecordError(code, Stage.SCHEMA, problem))

    def _located(self, error: BadRecordError) -> BadRecordError:
        if not self.column.path:
            return error
        for member in reversed(self.members):
            error = error.within(step(member))
        return error.within(step(self.column.field))


def _salt(column: ProjectedColumn, salts: Mapping[str, bytes]) -> bytes:
    """Return the salt of a column; empty for a column without one."""
    if not column.salt:
        return b""
    salt = salts.get(column.salt)
    if not salt:  # A digest without its salt would show guessed values to readers of the table.
        raise NotReadyError(
            f"column {column.name}: the task did not get salt {column.salt}; check the Secret of salts.{column.salt} in the operator's"
            " configuration"
        )
    return salt


def _taken(column: ProjectedColumn, kind: Type) -> Type:
    """Return the type to which values are converted first."""
    if column.function == "Sha256" and kind == Primitive("binary"):
        return kind  # the bytes themselves, which need not be text
    return Primitive("string") if column.function is not None else types.parse(column.type)


def masked(array: pa.Array) -> pa.Array:
    """Return texts with ``*`` for each character, except the last `SHOWN` of a text that is long enough."""
    lengths = pc.call_function("utf8_length", [array])
    long = pc.call_function("greater_equal", [lengths, pa.scalar(SHORTEST_SHOWN)])
    shown = pc.call_function("if_else", [long, pa.scalar(SHOWN), pa.scalar(0)])
    stars = pc.call_function("binary_repeat", [pa.scalar("*"), pc.call_function("subtract", [lengths, shown])])
    last = pc.call_function("utf8_slice_codeunits", [array], pc.SliceOptions(start=-SHOWN))
    ends = pc.call_function("if_else", [long, last, pa.scalar("")])
    return pc.call_function("binary_join_element_wise", [stars, ends, pa.scalar("")])


def hashed(array: pa.Array, salt: bytes = b"") -> pa.Array:
    """Return the SHA-256 digests of texts or bytes in hexadecimal; with a salt, HMAC-SHA-256 (RFC 2104) with the salt as its key.

    Equal values are computed once.
    """
    encoded = array.dictionary_encode()
    values = (value.encode() if isinstance(value, str) else value for value in encoded.dictionary.to_pylist())
    digests = [
        (hmac.digest(salt, value, "sha256") if salt else hashlib.sha256(value).digest()).hex() for value in values
    ]
    return pa.array(digests, pa.string()).take(encoded.indices)
