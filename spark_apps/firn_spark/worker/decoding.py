"""Kafka record batches to table rows and dead letters, for one topic.

The columns a record's value fills come from `firn_spark.worker.formats.json.blocks` where it vouches for them, from
`firn_spark.worker.formats.json.values` otherwise; both in the order of the records. Raw topics pass keys and values through as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from firn.model.jobs import IngestJob
from firn.tables import rows
from firn_spark.worker import arrow_types
from firn_spark.worker.bad_records import BadRecordError, Code, Stage
from firn_spark.worker.formats.json.limits import MAX_MILLISECONDS
from firn_spark.worker.formats.json.values import RecordReader

_Array = np.ndarray[Any, np.dtype[Any]]
_HEADERS = arrow_types.arrow_type(rows.HEADERS)
_TIMESTAMP = pa.timestamp("us", tz="UTC")
_NO_TIMESTAMP = -1


@dataclass(frozen=True, slots=True)
class Halt:
    """The first bad record of a partition, where the topic has to stop."""

    partition: int
    offset: int
    error: BadRecordError


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a batch became. ``rows`` has the table's columns, ``dead`` those of dead letters (None: there are none); counts are
    of records that were bad and skipped, or excluded; ``halts`` are new ones."""

    rows: pa.Table
    dead: pa.Table | None
    skipped: int
    excluded: int
    halts: tuple[Halt, ...]


class Decoder:
    """Decodes the batches of one topic in one task; partitions that it halted give no more rows."""

    def __init__(
        self,
        job: IngestJob,
        *,
        ingested_at: int,
        exclude: Mapping[int, frozenset[int]] | None = None,
        force_dead: Mapping[int, frozenset[int]] | None = None,
    ) -> None:
        """``ingested_at`` is microseconds since 1970. Raises InvalidSpecError for a schema that is none."""
        self._job = job
        self._ingested_at = ingested_at
        self._exclude = exclude or {}
        self._force_dead = force_dead or {}
        self._halted: dict[int, int] = {}
        self._columns = arrow_types.arrow_schema(rows.schema_columns(job.record_schema))
        self.schema = arrow_types.arrow_schema(rows.table_columns(job.record_schema, job.table.metadata_columns))
        """Of the rows."""
        schema = job.record_schema
        self._values: _JsonColumns | _RawColumns = (
            _RawColumns(self._columns) if schema.format == "Raw" else _JsonColumns(job, self._columns)
        )

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """Decodes one batch of Kafka records."""
        partitions = _numbers(batch["partition"], pa.int32())
        offsets = _numbers(batch["offset"], pa.int64())
        excluded = _listed(self._exclude, partitions, offsets)
        forced = _listed(self._force_dead, partitions, offsets) & ~excluded
        halted = self._beyond_halt(partitions, offsets)
        left_out = excluded | halted
        if left_out.any():
            kept = np.flatnonzero(~left_out)
            batch = batch.take(pa.array(kept))
            partitions, offsets, forced = partitions[kept], offsets[kept], forced[kept]

        columns, errors = self._values.decode(batch)
        for place in np.flatnonzero(forced).tolist():
            errors.setdefault(place, BadRecordError(Code.SKIPPED, Stage.WRITE, "skipped on request"))

        good = np.ones(len(batch), dtype=bool)
        dead: list[int] = []
        halts: list[Halt] = []
        skipped = 0
        for place in sorted(errors):
            if not good[place]:
                continue  # beyond a halt found in this batch
            good[place] = False
            if self._job.on_bad_record == "DeadLetter" or forced[place]:
                dead.append(place)
            elif self._job.on_bad_record == "Skip":
                skipped += 1
            else:
                partition, offset = int(partitions[place]), int(offsets[place])
                self._halted[partition] = offset
                halts.append(Halt(partition, offset, errors[place]))
                good &= ~((partitions == partition) & (offsets >= offset))

        kafka = _KafkaColumns.of(batch)
        table = pa.table([*columns, *kafka.arrays(self._job.table.metadata_columns)], schema=self.schema)
        if errors:
            table = table.filter(pa.array(good))
        letters = self._dead_letters(batch, kafka, dead, errors) if dead else None
        return Decoded(table, letters, skipped, int(np.count_nonzero(excluded & ~halted)), tuple(halts))

    def _beyond_halt(self, partitions: _Array, offsets: _Array) -> _Array:
        beyond = np.zeros(len(partitions), dtype=bool)
        for partition, offset in self._halted.items():
            beyond |= (partitions == partition) & (offsets >= offset)
        return beyond

    def _dead_letters(
        self, batch: pa.RecordBatch, kafka: "_KafkaColumns", places: Sequence[int], errors: Mapping[int, BadRecordError]
    ) -> pa.Table:
        indices = pa.array(places, pa.int64())
        found = [errors[place] for place in places]
        count = len(places)
        return pa.table(
            [
                pa.array([error.code.value for error in found], pa.string()),
                pa.array([error.stage.value for error in found], pa.string()),
                pa.array([error.path for error in found], pa.string()),
                pa.array([error.detail for error in found], pa.string()),
                _as(batch["key"], pa.binary()).take(indices),
                _as(batch["value"], pa.binary()).take(indices),
                pa.array([self._job.generation] * count, pa.int64()),
                pa.array([self._ingested_at] * count, _TIMESTAMP),
                *(array.take(indices) for array in kafka.arrays("Struct")),
            ],
            schema=DEAD_LETTER_SCHEMA,
        )


DEAD_LETTER_SCHEMA = arrow_types.arrow_schema(rows.dead_letter_columns())


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind)


def _numbers(array: pa.Array, kind: pa.DataType) -> _Array:
    numbers: _Array = _as(array, kind).to_numpy(zero_copy_only=False)
    return numbers


def payload_bytes(array: pa.Array) -> int:
    """How many bytes a binary array's values have."""
    return int(pc.call_function("sum", [pc.call_function("binary_length", [array])]).as_py() or 0)


def longest_payload(array: pa.Array) -> int:
    """How many bytes the longest of a binary array's values has."""
    return int(pc.call_function("max", [pc.call_function("binary_length", [array])]).as_py() or 0)


def _listed(offsets_by_partition: Mapping[int, frozenset[int]], partitions: _Array, offsets: _Array) -> _Array:
    listed = np.zeros(len(partitions), dtype=bool)
    for partition, wanted in offsets_by_partition.items():
        if wanted:
            listed |= (partitions == partition) & np.isin(
                offsets, np.fromiter(wanted, dtype=np.int64, count=len(wanted))
            )
    return listed


@dataclass(frozen=True, slots=True)
class _KafkaColumns:
    """What Kafka says of each record, in the order of `firn.tables.rows.METADATA`."""

    members: tuple[pa.Array, ...]

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> "_KafkaColumns":
        if "timestamp_ms" in batch.schema.names:
            milliseconds = _numbers(batch["timestamp_ms"], pa.int64())
            representable = (milliseconds <= MAX_MILLISECONDS) & (milliseconds >= -MAX_MILLISECONDS)
            micros = np.where(representable, milliseconds, 0) * 1000
        else:
            micros = _numbers(_as(batch["timestamp"], _TIMESTAMP).cast(pa.int64()), pa.int64())
            milliseconds = micros // 1000  # exact: these are Kafka's own milliseconds, times 1000
            representable = np.ones(len(micros), dtype=bool)
        unknown = (milliseconds == _NO_TIMESTAMP) | ~representable
        headers = _as(batch["headers"], _HEADERS) if "headers" in batch.schema.names else pa.nulls(len(batch), _HEADERS)
        return cls(
            (
                _as(batch["partition"], pa.int32()),
                _as(batch["offset"], pa.int64()),
                pa.array(micros, pa.int64(), mask=unknown).cast(_TIMESTAMP),
                pa.array(milliseconds, pa.int64()),
                _as(batch["timestampType"], pa.int32()),
                _as(batch["key"], pa.binary()),
                headers,
            )
        )

    def arrays(self, shape: str) -> list[pa.Array]:
        """One struct, or one array each."""
        if shape == "Flat":
            return list(self.members)
        return [pa.StructArray.from_arrays(list(self.members), type=_KAFKA_STRUCT)]


_KAFKA_STRUCT = arrow_types.arrow_schema(rows.metadata_columns("Struct")).field(0).type
_Columns = tuple[list[pa.Array], dict[int, BadRecordError]]
"""Arrays of the schema's columns, as long as the batch, and the bad records by place (their values are null)."""


class _JsonColumns:
    def __init__(self, job: IngestJob, columns: pa.Schema) -> None:
        from firn_spark.worker.formats.json.blocks import (
            BlockDecoder,  # brings the compiler, which a driver has no use for
        )

        schema = job.record_schema
        refuse_unknown = schema.unknown_fields == "DeadLetter"
        self._columns = columns
        self._blocks = BlockDecoder(schema.fields, refuse_unknown=refuse_unknown)
        self._reader = RecordReader.of(schema.fields, refuse_unknown=refuse_unknown)

    def decode(self, batch: pa.RecordBatch) -> _Columns:
        values = _as(batch["value"], pa.binary())
        fast, vouched = self._blocks.decode(values)
        doubted = np.flatnonzero(~vouched)
        if not len(doubted):
            return fast, {}
        strict, errors = self._strict(values.take(pa.array(doubted)))
        order = np.arange(len(values))
        order[doubted] = len(values) + np.arange(len(doubted))
        indices = pa.array(order)
        merged = [pa.concat_arrays([ours, theirs]).take(indices) for ours, theirs in zip(fast, strict, strict=True)]
        return merged, {int(doubted[place]): error for place, error in errors.items()}

    def _strict(self, values: pa.Array) -> _Columns:
        errors: dict[int, BadRecordError] = {}
        found: list[list[object]] = []
        nothing: list[object] = [None] * len(self._columns)
        for place, value in enumerate(values.to_pylist()):
            try:
                found.append(self._reader.read(value))
            except BadRecordError as error:
                errors[place] = error
                found.append(nothing)
        arrays = [
            pa.array((record[place] for record in found), field.type, size=len(found))
            for place, field in enumerate(self._columns)
        ]
        return arrays, errors


class _RawColumns:
    def __init__(self, columns: pa.Schema) -> None:
        self._type = columns.field("value").type

    def decode(self, batch: pa.RecordBatch) -> _Columns:
        errors: dict[int, BadRecordError] = {}
        return [self._column(batch, name, errors) for name in ("key", "value")], errors

    def _column(self, batch: pa.RecordBatch, name: str, errors: dict[int, BadRecordError]) -> pa.Array:
        array = _as(batch[name], pa.binary())
        if self._type == pa.binary():
            return array
        try:
            return array.cast(self._type)
        except pa.ArrowInvalid:  # some are not UTF-8: find them
            texts: list[str | None] = []
            for place, data in enumerate(array.to_pylist()):
                try:
                    texts.append(None if data is None else data.decode("utf-8"))
                except UnicodeDecodeError as problem:
                    error = BadRecordError(Code.INVALID_UTF8, Stage.DECODE, f"byte {problem.start}: {problem.reason}")
                    errors.setdefault(place, error.within(f".{name}"))
                    texts.append(None)
            return pa.array(texts, self._type)
