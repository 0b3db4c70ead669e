"""The end of a round for one topic: dead letters are committed, then the table, then the topic's state follows."""

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol

import structlog

from firn.model.errors import CorruptDataError
from firn.model.progress import FilteredRange, Gap, HaltedAt, Offsets
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion import takeover
from firn_spark.ingestion.rounds import auditing
from firn_spark.ingestion.rounds.landing_job import TopicResult
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.tables import dead_letters
from firn_spark.tables.commits import Committer, Extras, Landed, read_losses
from firn_spark.tables.java_tables import Tables
from firn_spark.worker.fetching.slices import Ranges
from firn_spark.worker.landing import HaltPlace

log = structlog.get_logger()

EMPTY_RECORDS = 100_000
EMPTY_SECONDS = 600.0
"""Ranges without records to land are committed on their own only when they are this long or this old."""


class Meter(Protocol):
    """Counts commits."""

    def landed(self, topic: Topic, result: TopicResult, seconds: float) -> None:
        """Count a commit of ``topic``, ``seconds`` after the start of its round."""
        ...

    def lost(self, topic: Topic, offsets: int) -> None:
        """Count offsets of ``topic`` that did not land."""
        ...

    def audited(self, topic: Topic, empty: int, *, agrees: bool) -> None:
        """Count the audit of a round that passed ``empty`` offsets without a record."""
        ...


@dataclass(frozen=True, slots=True)
class _Asked:
    """A commit that was asked for, and what to count if it happened."""

    base: str
    """Id of the commit before it."""
    topic_id: str
    offsets: Offsets
    result: TopicResult
    lost: int
    started: float

    def made(self, landed: Landed) -> bool:
        """Return True if ``landed``, of the same writer, is this commit."""
        return landed.commit_id != self.base and (landed.topic_id, landed.offsets) == (self.topic_id, self.offsets)


class TopicCommits:
    """Commits the results of rounds, one topic at a time."""

    def __init__(
        self, tables: Tables, committer: Committer, preparation: Preparation, failpoints: Failpoints, meter: Meter
    ) -> None:
        self._tables = tables
        self._committer = committer
        self._preparation = preparation
        self._failpoints = failpoints
        self._meter = meter
        self._unanswered: dict[str, _Asked] = {}
        """Resource (uid) -> its newest commit, if that has no answer."""

    def create_dead_letters(self, topic: Topic) -> None:
        """Create the dead-letter table and announce it in the topic's table; `firn_spark.tables.dead_letters` says why. Raises FirnError."""
        assert topic.epoch is not None
        self._failpoints.reach("before-dlq-create")
        if topic.letters.java is None:
            topic.letters.java = dead_letters.create(self._tables, topic.job)
        # The epochs that the table has: a later one would hide a gap that this commit does not record.
        epochs = topic.landed.leader_epochs if topic.landed is not None else {}
        # With the positions of partitions that have not landed: the log may delete their records before the next commit.
        offsets = {**topic.reading.position, **topic.landed_offsets}
        # Partitions that have landed stay where they are: the next plan finds their gaps again.
        gaps = [gap for gap in topic.gaps if gap.partition not in topic.landed_offsets]
        topic.table.landed = self._committer.commit(
            topic.table.java,
            (),
            topic.table.landed,
            topic.topic_id,
            topic.epoch,
            offsets,
            Extras.of(topic.job, leader_epochs=epochs, gaps=gaps),
        )
        self._count_lost(topic, gaps)
        self._failpoints.reach("after-dlq-create")
        topic.letters.claimed = False
        self._preparation.begin(topic)

    def commit(self, topic: Topic, ranges: Ranges, result: TopicResult, started: float) -> None:
        """Commit what the tasks wrote of ``ranges`` in the round that began at ``started`` (monotonic seconds). Raises FirnError."""
        halts = first_halts(result.halts)
        reached = {part: halts[part]["offset"] if part in halts else end for part, (_, end) in ranges.items()}
        empty = self._audit(topic, ranges, reached, result)
        offsets = {**topic.landed_offsets, **topic.reading.position, **reached}
        if result.dead:
            try:
                self._commit_dead(topic, result, offsets)
            except Exception:
                # No commit of these files was requested.
                if result.data:
                    self._committer.discard(topic.table.java, result.data)
                raise
        if result.landed or topic.gaps or empty_is_due(topic, ranges, reached):
            passed = {
                part: FilteredRange(start, reached[part], result.filtered[part])
                for part, (start, _) in ranges.items()
                if part in result.filtered
            }
            self._commit_rows(topic, result, offsets, reached if result.skipped else {}, started, passed)
        self._meter.audited(topic, empty, agrees=True)
        self._preparation.follow_table(topic)
        topic.reading.position.update(reached)
        self._count(topic, result, started)
        if halts:
            halt(topic, *min(halts.items()))

    def _count(self, topic: Topic, result: TopicResult, started: float) -> None:
        topic.totals.rows += result.rows
        topic.totals.dead += result.dead_rows
        topic.totals.skipped += result.skipped
        topic.totals.filtered += sum(result.filtered.values())
        topic.recent.add(result.rows, result.dead_rows + result.skipped, result.code, result.path)
        topic.recent.add_times(result.times)
        topic.count_failed(result.rules)
        if result.landed:
            topic.totals.last_commit = time.time()
            self._meter.landed(topic, result, time.monotonic() - started)

    def settle(self, topic: Topic) -> None:
        """Count a commit whose outcome was unknown, if the table that was read since then has it."""
        asked, landed = self._unanswered.get(topic.job.uid), topic.table.landed
        if asked is None or landed is None or not topic.prepared:
            return
        if landed.writer == self._committer.writer and asked.made(landed):
            del self._unanswered[topic.job.uid]
            if asked.lost:
                self._meter.lost(topic, asked.lost)
            self._count(topic, asked.result, asked.started)

    def _audit(self, topic: Topic, ranges: Ranges, reached: Offsets, result: TopicResult) -> int:
        """Refuse to commit files that do not agree with the offsets of the round. Raises CorruptDataError.

        Returns the number of offsets without a record.
        """
        passed = {part: (start, reached[part]) for part, (start, _) in ranges.items()}
        schemas = [spec.schema if spec is not None else "" for spec in (topic.table.spec, topic.letters.spec)]
        problem = auditing.disagreement(ranges, passed, result, *schemas)
        if not problem:
            return auditing.empty_offsets(passed, result)
        self._meter.audited(topic, 0, agrees=False)
        self.discard(topic, result)
        log.error(
            "a round does not agree with its offsets",
            topic=topic.job.topic,
            namespace=topic.job.namespace,
            problem=problem,
        )
        raise CorruptDataError(
            f"topic {topic.job.topic}: the audit of a round failed, and the driver commits nothing of it: {problem}; the driver reads"
            " the records again; if the message stays, keep the log of the driver and report a bug"
        )

    def record_gaps(self, topic: Topic) -> None:
        """Commit the gaps of a topic that has no records to land. Raises FirnError."""
        offsets = {**topic.landed_offsets, **topic.reading.position}
        self._commit_rows(topic, TopicResult(), offsets, {}, time.monotonic())

    def _commit_dead(self, topic: Topic, result: TopicResult, offsets: Offsets) -> None:
        self._failpoints.reach("before-dlq-commit")
        assert topic.letters.landed is not None
        assert topic.epoch is not None
        topic.letters.unsettled = True
        topic.letters.landed = dead_letters.commit(
            self._committer,
            topic.letters.java,
            result.dead,
            topic.letters.landed,
            topic.epoch,
            offsets,
            result.ingested_at,
            topic.job.keep_snapshots_ms,
        )
        topic.letters.unsettled = False
        self._failpoints.reach("after-dlq-commit")

    def _commit_rows(
        self,
        topic: Topic,
        result: TopicResult,
        offsets: Offsets,
        skipped: Offsets,
        started: float,
        filtered: Mapping[int, FilteredRange] = MappingProxyType({}),
    ) -> None:
        assert topic.epoch is not None
        gaps = topic.gaps
        lost = sum(gap.end - gap.start for gap in gaps)
        base = topic.table.landed.commit_id if topic.table.landed is not None else ""
        # It stays if the commit has no answer.
        self._unanswered[topic.job.uid] = _Asked(base, topic.topic_id, offsets, result, lost, started)
        topic.table.landed = self._committer.commit(
            topic.table.java,
            result.data,
            topic.table.landed,
            topic.topic_id,
            topic.epoch,
            offsets,
            Extras.of(
                topic.job,
                keep_ms=topic.job.keep_snapshots_ms,
                gaps=gaps,
                skipped=skipped,
                filtered=filtered,
                log_starts=topic.reading.log_starts,
                records=result.landed,
                leader_epochs=topic.reading.leader_epochs,
                other_key=takeover.key_of(topic.job),
                look=topic.table.look,
                schema=topic.table.spec.schema if result.data and topic.table.spec is not None else "",
            ),
        )
        del self._unanswered[topic.job.uid]
        topic.table.look = None
        # The table records all of it now. A range that stays would become one with that of a later loss.
        topic.log.told |= topic.log.cut_back
        topic.reading.deleted, topic.log.cut_back = {}, {}
        self._count_lost(topic, gaps)
        topic.reading.empty_since, topic.reading.empty_records = None, 0
        topic.letters.exclude = {
            part: left
            for part, gone in topic.letters.exclude.items()
            if (left := {offset: known for offset, known in gone.items() if offset >= offsets.get(part, 0)})
        }

    def _count_lost(self, topic: Topic, gaps: Sequence[Gap]) -> None:
        if gaps:
            topic.table.losses = read_losses(topic.table.java, topic.view)
            self._meter.lost(topic, sum(gap.end - gap.start for gap in gaps))

    def discard(self, topic: Topic, result: TopicResult) -> None:
        """Delete the files of a result that is not committed."""
        self.discard_from((topic.table.java, topic.letters.java), result)

    def discard_from(self, tables: tuple[Any, Any], result: TopicResult) -> None:
        """Delete the files of a result from the tables of its rows and of its dead letters, as far as these are there."""
        for table, files in zip(tables, (result.data, result.dead), strict=True):
            if table is not None:
                self._committer.discard(table, files)


def halt(topic: Topic, partition: int, place: HaltPlace) -> None:
    """Stop the topic at the record of ``place``."""
    topic.halted = HaltedAt(
        partition=partition,
        offset=place["offset"],
        code=place["code"],
        column=_column(topic, place["path"]),
        rule=place["rule"],
    )
    log.warning(
        "the topic halted at a record",
        topic=topic.job.topic,
        namespace=topic.job.namespace,
        partition=partition,
        offset=place["offset"],
        code=place["code"],
    )


def empty_is_due(topic: Topic, ranges: Ranges, reached: Offsets) -> bool:
    """Return whether the offsets of a round without records for the table are committed now, and not with a later round."""
    if topic.job.route is not None and not topic.landed_offsets:
        return True  # an audit of the topic needs offsets of all its tables
    if topic.route_schemas.refuses:
        return True  # the driver asks again for refused schemas only if all tables have landed the same offsets
    now = time.monotonic()
    topic.reading.empty_since = topic.reading.empty_since or now
    topic.reading.empty_records += sum(reached[part] - start for part, (start, _) in ranges.items())
    return topic.reading.empty_records >= EMPTY_RECORDS or now - topic.reading.empty_since >= EMPTY_SECONDS


def first_halts(halts: Iterable[HaltPlace]) -> dict[int, HaltPlace]:
    """Return the first place of each partition."""
    first: dict[int, HaltPlace] = {}
    for place in halts:
        earlier = first.get(place["partition"])
        if earlier is None or place["offset"] < earlier["offset"]:
            first[place["partition"]] = place
    return first


def _column(topic: Topic, path: str) -> str:
    """Return the column of the schema that a path such as ``$.a.b[3]`` begins with. Other parts may be data of the record."""
    columns = {field.name for field in topic.schema.fields}
    found = re.match(r"\$\.(\w+)", path)
    return found[1] if found is not None and found[1] in columns else ""
