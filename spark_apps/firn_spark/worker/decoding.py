"""Decodes the Kafka records of one topic into table rows and dead letters.

The format of the topic's schema decodes the values (`firn_spark.worker.formats`). This module treats bad records
as the contract says, and adds the columns that identify the Kafka record of a row.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.model.jobs import IngestJob
from firn.tables import rows
from firn.tables.renames import former_names
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Fetched, Identities, Numbers
from firn_spark.worker.formats import arrays
from firn_spark.worker.formats.by_writer import ByWriterSchema
from firn_spark.worker.formats.format import Times
from firn_spark.worker.formats.keys import KeyColumns
from firn_spark.worker.formats.registry import open_format
from firn_spark.worker.formats.writer_schemas import Readers, Reference, WriterSchemas
from firn_spark.worker.kafka_columns import id_column, kafka_columns, shaped
from firn_spark.worker.projections.projector import Projector
from firn_spark.worker.projections.routing import Router, RouteValues
from firn_spark.worker.quality.rules import FailedRule, Failures, Filter, Rules, first_errors

_TIMESTAMP = pa.timestamp("us", tz="UTC")


@dataclass(frozen=True, slots=True)
class Halt:
    """The first bad record of a partition, at which the topic has to stop."""

    partition: int
    offset: int
    error: BadRecordError


@dataclass(frozen=True, slots=True)
class Decoded:
    """The result of decoding a batch.

    ``rows`` has the table's columns, ``dead`` those of dead letters; it is None if there are none. ``skipped`` and
    ``excluded`` count records without a row, and ``unrouted`` those of other tables of the topic.
    ``halts`` are new halts. ``sample`` is the last of the errors that made a dead letter or a skipped record. ``codes`` counts these
    errors by cause. ``times`` are those of `Columns`. ``failed`` counts the records that failed each quality rule. ``filtered``
    counts the records that the filter left out, by partition.
    """

    rows: pa.Table
    dead: pa.Table | None
    skipped: int
    excluded: int
    halts: tuple[Halt, ...]
    sample: BadRecordError | None
    times: Mapping[str, Times]
    failed: Mapping[str, int]
    codes: Mapping[str, int]
    filtered: Mapping[int, int]
    unrouted: int = 0


@dataclass(frozen=True, slots=True)
class Known:
    """The known schemas of values in a registry, those of keys, the salts of digests by name, and the schemas that decide about
    routes."""

    writer_schemas: WriterSchemas = field(default_factory=dict)
    key_schemas: WriterSchemas = field(default_factory=dict)
    salts: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    route_schemas: WriterSchemas = field(default_factory=dict)


class Decoder:
    """Decodes the batches of one topic in one task. A partition that halted gives no more rows."""

    def __init__(
        self,
        job: IngestJob,
        *,
        ingested_at: int,
        exclude: Identities | None = None,
        force_dead: Mapping[int, frozenset[int]] | None = None,
        known: Known | None = None,
        rows_only: bool = False,
        route_values: RouteValues | None = None,
    ) -> None:
        """Set up the format. ``ingested_at`` is microseconds since 1970.

        ``rows_only`` skips bad records, whatever the contract says: they are dead letters already.
        ``route_values`` are those of the contracts that get the same records.

        Raises InvalidSpecError for an invalid schema or quality rule.
        """
        self._job = job
        self._ingested_at = ingested_at
        self._exclude = exclude or {}
        self._force_dead = force_dead or {}
        self._rows_only = rows_only
        self._halted: dict[int, int] = {}
        columns = rows.columns_of_table(job.record_schema, job.table)
        self.schema = arrow_types.arrow_schema(columns)
        """The schema of the rows."""
        known = known or Known()
        self._format = open_format(job.record_schema, known.writer_schemas)
        self._projector = None if job.record_schema.projection is None else Projector(job.record_schema, known.salts)
        self._router = None
        if job.route is not None:
            self._router = Router(job.route, route_values or RouteValues(), known.route_schemas)
        self._keys = KeyColumns(job.record_schema.key, known.key_schemas) if job.record_schema.key is not None else None
        # The rules of an earlier contract name a renamed column as it was before.
        earlier = former_names(columns, job.record_schema.renames)
        self._named = [
            (name, place) for place, each in enumerate(columns) for name in (each.name, *earlier.of(each.name))
        ]
        judged = [columns[place].model_copy(update={"name": name}) for name, place in self._named]
        renames = job.record_schema.renames
        self._rules = Rules(job.quality_rules, judged, renames) if job.quality_rules else None
        self._filter = Filter(job.filter, judged, renames) if job.filter else None

    def portions(self, records: Fetched) -> Iterator[Fetched]:
        """Yield the records in portions whose rows take little memory. A large record is a portion of its own.

        Raises InvalidSpecError for an invalid schema of a record.
        """
        if isinstance(self._format, ByWriterSchema):
            self._format.prepare(records)
        sizes, most = records.values.lengths() + self._format.row_bytes, self._format.most_bytes
        of_keys = self._keys.shares(records) if self._keys is not None else None
        if of_keys is not None:
            sizes, most = np.maximum(sizes / most, of_keys), 1
        for begin, end in arrays.portions(sizes, most):
            whole = end - begin == len(records)
            yield records if whole else records.select(np.arange(begin, end))

    def decode(self, records: Fetched) -> Decoded:
        """Decode records of the topic. Raises SchemasNeededError if a schema is missing."""
        records, forced, excluded = self._to_decode(records)
        records, forced, misrouted, unrouted = self._routed(records, forced)

        columns = self._format.decode(records)
        ids = columns.schema_ids
        if self._projector is not None:
            columns = self._projector.project(records, columns)
        errors = {**columns.errors, **misrouted}
        kafka = kafka_columns(records)
        members = [*kafka, *self._members(len(records), ids)]
        of_keys: list[pa.Array] = []
        if self._keys is not None:
            of_keys, bad_keys = self._keys.decode(records)
            for index, error in bad_keys.items():
                errors.setdefault(index, error)
        arrays = [
            *columns.arrays,
            *of_keys,
            *shaped(members, self._job.table.metadata_columns, shared=self._job.table.shared),
        ]
        filtered = self._filtered(arrays, errors, forced)
        out = records.select(np.flatnonzero(filtered))
        if len(out):
            kept = np.flatnonzero(~filtered)
            records, forced, errors = records.select(kept), forced[kept], _at(kept, errors)
            arrays, kafka = _taken(arrays, kept), _taken(kafka, kept)
        failures = self._judge(arrays, errors)
        errors.update(first_errors(failures))
        for index in np.flatnonzero(forced).tolist():
            errors.setdefault(index, BadRecordError(Code.SKIPPED, Stage.WRITE, "skipped by firn.dev/resume"))
        sorted_out = self._sort_out(records, forced, errors)

        if self._rows_only and unrouted:
            # The letter stays, so that its offset still has one place.
            sorted_out.codes[Code.OTHER_TABLE.value] += unrouted

        table = pa.table(arrays, schema=self.schema)
        if errors:
            table = table.filter(pa.array(sorted_out.good))
        dead = self._dead_letters(records, kafka, sorted_out.dead, errors) if sorted_out.dead else None
        sample = errors[sorted_out.rejected] if sorted_out.rejected is not None else None
        return Decoded(
            table,
            dead,
            sorted_out.skipped,
            excluded,
            tuple(sorted_out.halts),
            sample,
            columns.times,
            _counted(failures, records, sorted_out.halts),
            sorted_out.codes,
            _counted_by_partition(out, sorted_out.halts),
            unrouted,
        )

    def missing(self, records: Fetched) -> Mapping[Readers, list[Reference]]:
        """Return the schemas that `decode` would need. No value is decoded."""
        records, forced, _ = self._to_decode(records)
        if self._router is not None and (of_routes := self._router.missing(records)):
            return {"routes": of_routes}  # Other tables may have the records, and need other schemas.
        records, *_ = self._routed(records, forced)
        of_values = self._format.missing(records) if isinstance(self._format, ByWriterSchema) else []
        return {"values": of_values, "keys": self._keys.missing(records) if self._keys is not None else []}

    def _to_decode(self, records: Fetched) -> tuple[Fetched, Numbers, int]:
        """Return the records to decode, which of them are forced to be dead letters, and the number of records that are dead letters
        already."""
        excluded = _excluded(self._exclude, records)
        forced = _listed(self._force_dead, records) & ~excluded
        halted = self._beyond_halt(records)
        left_out = excluded | halted
        if left_out.any():
            kept = np.flatnonzero(~left_out)
            records, forced = records.select(kept), forced[kept]
        return records, forced, int(np.count_nonzero(excluded & ~halted))

    def _filtered(self, arrays: Sequence[pa.Array], errors: dict[int, BadRecordError], forced: Numbers) -> Numbers:
        """Return which records the filter leaves out. It decides about rows only, and not about bad records."""
        if self._filter is None:
            return np.zeros(len(forced), dtype=bool)
        mask = self._filter.left_out({name: arrays[place] for name, place in self._named})
        mask[np.fromiter(errors, np.int64, len(errors))] = False
        mask &= ~forced
        if self._rows_only and mask.any():
            # A letter without a row stays, so that each offset still has one of them.
            error = BadRecordError(Code.FILTERED, Stage.QUALITY, "the filter of the topic leaves the record out")
            errors.update(dict.fromkeys(np.flatnonzero(mask).tolist(), error))
            mask[:] = False
        return mask

    def _routed(self, records: Fetched, forced: Numbers) -> tuple[Fetched, Numbers, Mapping[int, BadRecordError], int]:
        """Return the records that go to this table, which of them are forced to be dead letters, the bad ones among them, and the
        number of the others."""
        if self._router is None:
            return records, forced, {}, 0
        mine, errors = self._router.sort(records)
        if mine.all():
            return records, forced, errors, 0
        kept = np.flatnonzero(mine)
        places = np.cumsum(mine) - 1
        misrouted = {int(places[index]): error for index, error in errors.items()}
        return records.select(kept), forced[kept], misrouted, len(records) - len(kept)

    def _members(self, count: int, ids: Numbers | None) -> list[pa.Array]:
        """Return the members of Kafka's columns that only some tables have, for ``count`` records with these ids of schemas."""
        of_ids = [] if ids is None else [id_column(ids)]
        if not self._job.table.shared:
            return of_ids
        texts = (self._job.topic, self._job.topic_id)
        return [
            *(of_ids or [pa.nulls(count, pa.int32())]),
            *(pa.repeat(pa.scalar(text, pa.string()), count) for text in texts),
        ]

    def _judge(self, arrays: Sequence[pa.Array], errors: Mapping[int, BadRecordError]) -> list[Failures]:
        if self._rules is None:
            return []
        return self._rules.judge({name: arrays[place] for name, place in self._named}, errors)

    def _sort_out(self, records: Fetched, forced: Numbers, errors: Mapping[int, BadRecordError]) -> "_SortedOut":
        """Turn each bad record into a dead letter, a skipped record, or the place where its partition stops."""
        sorted_out = _SortedOut(np.ones(len(records), dtype=bool))
        for index in sorted(errors):
            if not sorted_out.good[index]:
                continue  # beyond a halt found in this batch
            sorted_out.good[index] = False
            error = errors[index]
            action = error.on_fail if isinstance(error, FailedRule) else self._job.on_bad_record
            if self._rows_only:
                action = "Skip"
            if action == "DeadLetter" or forced[index]:
                sorted_out.dead.append(index)
                sorted_out.reject(index, error.code)
            elif action == "Skip":
                sorted_out.skipped += 1
                sorted_out.reject(index, error.code)
            else:
                partition, offset = int(records.partitions[index]), int(records.offsets[index])
                self._halted[partition] = offset
                sorted_out.halts.append(Halt(partition, offset, error))
                sorted_out.good &= ~((records.partitions == partition) & (records.offsets >= offset))
        return sorted_out

    def _beyond_halt(self, records: Fetched) -> Numbers:
        beyond = np.zeros(len(records), dtype=bool)
        for partition, offset in self._halted.items():
            beyond |= (records.partitions == partition) & (records.offsets >= offset)
        return beyond

    def _dead_letters(
        self,
        records: Fetched,
        kafka: Sequence[pa.Array],
        places: Sequence[int],
        errors: Mapping[int, BadRecordError],
    ) -> pa.Table:
        indices = np.array(places, np.int64)
        reasons = [errors[place] for place in places]
        count = len(places)
        return pa.table(
            [
                pa.array([error.code.value for error in reasons], pa.string()),
                pa.array([error.stage.value for error in reasons], pa.string()),
                pa.array([error.path for error in reasons], pa.string()),
                pa.array([error.detail for error in reasons], pa.string()),
                records.keys.select(indices).to_arrow(),
                records.values.select(indices).to_arrow(),
                pa.array([self._job.generation] * count, pa.int64()),
                pa.array([self._ingested_at] * count, _TIMESTAMP),
                *shaped([array.take(pa.array(indices)) for array in kafka], "Struct"),
            ],
            schema=DEAD_LETTER_SCHEMA,
        )


DEAD_LETTER_SCHEMA = arrow_types.arrow_schema(rows.dead_letter_columns())


@dataclass(slots=True)
class _SortedOut:
    """The treatment of a batch's records: ``good`` marks rows, ``dead`` lists indices of dead letters. ``rejected`` is
    the last index without a row, unless its partition halts there. ``codes`` counts such records by cause."""

    good: Numbers
    dead: list[int] = field(default_factory=list)
    halts: list[Halt] = field(default_factory=list)
    skipped: int = 0
    rejected: int | None = None
    codes: Counter[str] = field(default_factory=Counter)

    def reject(self, index: int, code: Code) -> None:
        """Note a record without a row."""
        self.rejected = index
        self.codes[code.value] += 1


def _counted(failures: Sequence[Failures], records: Fetched, halts: Sequence[Halt]) -> dict[str, int]:
    """Count the records that failed each rule, without those beyond a halt, which are read again."""
    counts = {}
    for each in failures:
        mask = each.mask.copy()
        for halt in halts:
            mask &= ~((records.partitions == halt.partition) & (records.offsets > halt.offset))
        counts[each.error.rule] = int(np.count_nonzero(mask))
    return counts


def _taken(arrays: Sequence[pa.Array], kept: Numbers) -> list[pa.Array]:
    return [array.take(pa.array(kept)) for array in arrays]


def _at(kept: Numbers, errors: Mapping[int, BadRecordError]) -> dict[int, BadRecordError]:
    """Return the errors by their places among the records that are kept, which are all those with errors."""
    indices = sorted(errors)
    places = np.searchsorted(kept, np.array(indices, np.int64)).tolist()
    return {place: errors[index] for place, index in zip(places, indices, strict=True)}


def _counted_by_partition(records: Fetched, halts: Sequence[Halt]) -> dict[int, int]:
    """Count records by partition, without those beyond a halt, which are read again."""
    kept = np.ones(len(records), dtype=bool)
    for halt in halts:
        kept &= ~((records.partitions == halt.partition) & (records.offsets > halt.offset))
    partitions, counts = np.unique(records.partitions[kept], return_counts=True)
    return dict(zip(partitions.tolist(), counts.tolist(), strict=True))


def _excluded(identities: Identities, records: Fetched) -> Numbers:
    """Return which records are excluded: those at a listed offset, unless the log gave it to another record."""
    excluded = _listed(identities, records)
    for index in np.flatnonzero(excluded).tolist():
        known = identities[int(records.partitions[index])][int(records.offsets[index])]
        excluded[index] = records.identity(index) in known
    return excluded


def _listed(offsets_by_partition: Mapping[int, Collection[int]], records: Fetched) -> Numbers:
    listed = np.zeros(len(records), dtype=bool)
    for partition, offsets in offsets_by_partition.items():
        if offsets:
            listed |= (records.partitions == partition) & np.isin(
                records.offsets, np.fromiter(offsets, dtype=np.int64, count=len(offsets))
            )
    return listed
