"""The Spark job of a round: tasks read the planned ranges and write data files. No table refers to them yet."""

import functools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from firn.model.jobs import DirectReads, IngestJob
from firn_spark.credentials import read_salts
from firn_spark.ingestion.rounds.planning import Plan, slices
from firn_spark.kafka.admin import Kafka
from firn_spark.kafka.clients import spark_options
from firn_spark.kafka.diskless.direct_reads import DirectReader
from firn_spark.kafka.spark_reader import spark_records
from firn_spark.kafka.tasks import land_records, land_slices
from firn_spark.tables import dead_letters
from firn_spark.worker.fetching.access import Bucket, access
from firn_spark.worker.fetching.slices import Slice
from firn_spark.worker.formats.format import Times
from firn_spark.worker.formats.writer_schemas import Readers, Reference
from firn_spark.worker.landing import (
    RESULT_DDL,
    Detour,
    HaltPlace,
    Kind,
    LandingPlan,
    NeededSchemas,
    TaskStats,
    TopicLanding,
)

OLD_FORMAT = "OldFormatError"
"""The error of a task that met messages in a format before record batches. Spark's own source reads them."""


@dataclass(slots=True)
class TopicResult:
    """The results of a job's tasks for one topic. ``data`` and ``dead`` are descriptors of data files."""

    data: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    halts: list[HaltPlace] = field(default_factory=list)
    rows: int = 0
    dead_rows: int = 0
    skipped: int = 0
    excluded: int = 0
    unrouted: int = 0
    """Records that go to other tables of the topic."""
    filtered: dict[int, int] = field(default_factory=dict)
    """Partition -> number of records that the filter left out."""
    bytes: int = 0
    records: int = 0
    partitions: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Partition -> number of records that the tasks read, and the first and the last of their offsets."""
    code: str = ""
    path: str = ""
    times: dict[str, Times] = field(default_factory=dict)
    rules: dict[str, int] = field(default_factory=dict)
    """Quality rule -> records that failed it."""
    detours: int = 0
    """Partitions that brokers served although the bucket has their batches and the profile has direct reads."""
    problem: str = ""
    """Why a task could not read the bucket."""
    unusable: bool = False
    """True if a task could read no object of the bucket any more."""
    dead_letters_missing: bool = False
    schemas_needed: set[Reference] = field(default_factory=set)
    """Schemas of values that tasks do not have."""
    key_schemas_needed: set[Reference] = field(default_factory=set)
    """Schemas of keys that tasks do not have."""
    route_schemas_needed: set[Reference] = field(default_factory=set)
    """Schemas that decide about routes, and that tasks do not have."""
    error: str | None = None
    ingested_at: int = 0
    """The time that the tasks wrote into dead letters; microseconds since 1970."""

    def add(self, kind: Kind, text: str) -> None:
        """Add one result row of a task."""
        match kind:
            case Kind.DATA:
                self.data.append(text)
            case Kind.DEAD:
                self.dead.append(text)
            case Kind.HALT:
                self.halts.append(json.loads(text))
            case Kind.DEAD_LETTERS_MISSING:
                self.dead_letters_missing = True
            case Kind.SCHEMAS_NEEDED:
                needed: NeededSchemas = json.loads(text)
                self._needed_by(needed["reader"]).update(needed["ids"])
            case Kind.STATS:
                self._add_stats(json.loads(text))
            case Kind.DETOUR:
                detour: Detour = json.loads(text)
                self.detours += detour["partitions"]
                self.problem = detour["problem"]
                self.unusable = self.unusable or detour["unusable"]
            case Kind.ERROR:
                problem = json.loads(text)
                self.error = f"{problem['type']}: {problem['message']}"

    def _needed_by(self, reader: Readers) -> set[Reference]:
        match reader:
            case "values":
                return self.schemas_needed
            case "keys":
                return self.key_schemas_needed
            case "routes":
                return self.route_schemas_needed

    def _add_stats(self, stats: TaskStats) -> None:
        self.rows += stats["rows"]
        self.dead_rows += stats["dead"]
        self.skipped += stats["skipped"]
        self.excluded += stats["excluded"]
        self.unrouted += stats["unrouted"]
        for text, filtered in stats["filtered"].items():
            self.filtered[int(text)] = self.filtered.get(int(text), 0) + filtered
        self.bytes += stats["bytes"]
        if stats["code"]:
            self.code, self.path = stats["code"], stats["path"]
        for name, counts in stats["times"].items():
            times = Times(*counts)  # JSON made a list of it
            self.times[name] = self.times[name].plus(times) if name in self.times else times
        for rule, failed in stats["rules"].items():
            self.rules[rule] = self.rules.get(rule, 0) + failed
        for text, (count, first, last) in stats["partitions"].items():
            before = self.partitions.get(int(text), (0, first, last))
            self.partitions[int(text)] = (before[0] + count, min(before[1], first), max(before[2], last))
            self.records += count

    @property
    def needs_schemas(self) -> bool:
        """True if tasks need schemas, and have written no files."""
        return bool(self.schemas_needed or self.key_schemas_needed or self.route_schemas_needed)

    @property
    def landed(self) -> bool:
        """True if the tasks found records of the table."""
        return bool(self.rows or self.dead_rows or self.skipped or self.excluded or self.filtered)


def parse_results(rows: Iterable[tuple[str, str, str]]) -> dict[str, TopicResult]:
    """Add up the result rows of all tasks, by topic."""
    results: dict[str, TopicResult] = {}
    for topic, kind, text in rows:
        results.setdefault(topic, TopicResult()).add(Kind(kind), text)
    return results


class LandingJobs:
    """Runs the Spark jobs of rounds."""

    def __init__(
        self,
        spark: Any,
        kafkas: Callable[[str], Kafka],
        *,
        tasks: int,
        buffer_bytes: int,
        direct: Mapping[str, DirectReads] = MappingProxyType({}),
        salts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Run jobs of at most ``tasks`` tasks. ``direct`` has the profiles whose bucket they read, ``salts`` the files of salts."""
        self._salts = salts
        self._spark = spark
        self._kafkas = kafkas
        self._tasks = tasks
        self._buffer_bytes = buffer_bytes
        self._readers = {profile: DirectReader(profile, reads) for profile, reads in direct.items()}

    def run(self, planned: Plan) -> dict[str, TopicResult]:
        """Read and write the planned ranges. Raises as Spark does, and NotReadyError for a salt that cannot be read."""
        let_routes_ask_again(planned)
        moment = dead_letters.moment((topic.letters.landed for topic in planned), dead_letters.now())
        landings: dict[str, TopicLanding] = {}
        for topic in planned:
            assert topic.table.spec is not None
            landings[topic.landing] = TopicLanding(
                job=topic.adapted_job,
                table=topic.table.spec,
                dead_letters=topic.letters.spec,
                exclude=topic.letters.exclude,
                force_dead=forced(topic.job),
                salts=read_salts(self._salts, topic.adapted_job.record_schema.salts),
                writer_schemas=topic.reading.writers.known(time.monotonic()),
                key_schemas=topic.reading.key_writers.known(time.monotonic()),
                route_schemas=topic.route_schemas.known(),
            )
        plan = LandingPlan(landings, moment, self._buffer_bytes)
        results = self._results(planned, plan)
        for result in results.values():
            result.ingested_at = moment
        return results

    def _results(self, planned: Plan, plan: LandingPlan) -> dict[str, TopicResult]:
        if needs_spark_source(planned):
            return parse_results(self._by_spark(planned, plan))
        reader = self._readers.get(next(iter(planned)).job.profile)
        if reader is None:
            return parse_results(self._by_tasks(planned, plan, slices(planned, self._tasks), None))
        return self._by_bucket(planned, plan, reader)

    def _by_bucket(self, planned: Plan, plan: LandingPlan, reader: DirectReader) -> dict[str, TopicResult]:
        groups, bucket = slices(planned, self._tasks), reader.bucket()
        if bucket is not None:
            groups = reader.locate(groups, {topic.job.topic: topic.topic_id for topic in planned})
        results = parse_results(self._by_tasks(planned, plan, groups, bucket))
        for part in (part for group in groups for part in group if not part.ranges and not part.rebuilt):
            results.setdefault(part.topic, TopicResult()).detours += 1
        for result in results.values():
            if result.problem:
                reader.warn(result.problem)
        if any(part.ranges for group in groups for part in group):
            reader.note(usable=not any(result.unusable for result in results.values()))
        return results

    def _by_tasks(
        self, planned: Plan, plan: LandingPlan, groups: Sequence[Sequence[Slice]], bucket: Bucket | None
    ) -> Iterable[tuple[str, str, str]]:
        work = functools.partial(land_slices, access(self._connection(planned)), bucket, plan)
        rows: Iterable[tuple[str, str, str]] = (
            self._spark.sparkContext.parallelize(groups, len(groups)).mapPartitions(work).collect()
        )
        return rows

    def _by_spark(self, planned: Plan, plan: LandingPlan) -> Iterable[tuple[str, str, str]]:
        split = not any(topic.job.halts for topic in planned)
        frame = spark_records(
            self._spark,
            spark_options(self._connection(planned)),
            {topic.job.topic: ranges for topic, ranges in planned.items()},
            self._tasks,
            split,
        )
        rows = frame.mapInArrow(functools.partial(land_records, plan=plan), RESULT_DDL).collect()
        return ((row[0], row[1], row[2]) for row in rows)

    def _connection(self, planned: Plan) -> Any:
        return self._kafkas(next(iter(planned)).job.profile).connection


def let_routes_ask_again(planned: Plan) -> None:
    """Let topics whose routes need schemas of writers ask again for refused schemas that the registry has by now.

    All tables of such a topic are in the round, and so at the same offsets. This driver has committed these offsets, so no earlier
    driver can change them any more. No record of the round is a dead letter of the topic already. Otherwise, another answer would
    make the record a row, too.
    """
    for topic in planned:
        route = topic.job.route
        if route is not None and not route.match:
            tables = [other for other in planned if other.route_schemas is topic.route_schemas]
            settled = all(other.landed is not None and other.landed.epoch == other.epoch for other in tables)
            if len(tables) == len(route.before) + 1 and settled and not topic.letters.exclude:
                topic.route_schemas.ask_again()


def needs_spark_source(planned: Plan) -> bool:
    """Return whether only Spark's own source reads these logs."""
    return any(topic.reading.spark_source for topic in planned)


def forced(job: IngestJob) -> dict[int, frozenset[int]]:
    """Return the record that ``resume`` sends to the dead letters, by partition."""
    if job.resume is None:
        return {}
    _, partition, offset = job.resume.split(":")
    return {int(partition): frozenset({int(offset)})}
