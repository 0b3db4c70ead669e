"""Moves dead letters that fit the current schema into the table, exactly once.

For each part of the letters, the run

1. decodes them with the topic's current schema, and writes data files;
2. appends the files to the table, and sets the property `firn.model.names.REPLAY` in the same commit;
3. removes the letters that are rows now, in a commit to the dead-letter table.

At the end it marks the property as done. A crash in between leaves letters that are rows: the property says so to audits,
and survives the expiry of snapshots. The next attempt finds these letters by comparing them with the rows, and removes them
first. It decodes only letters whose offset has no row. So it lands no letter twice, whatever became of the snapshots.

The property has the counts of the finished parts, also of parts without a row. So the next attempt leaves these parts out,
keeps the limit, and reports the counts of all attempts. If the property is done, it only reports.

An append is refused if another replay has landed letters since this run read the table.
"""

import uuid
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import structlog

from firn.model import names
from firn.model.errors import CommitConflictError
from firn.model.jobs import RegistryConnection
from firn.model.maintenance import ReplayReport, ReplayWork
from firn.model.progress import Replaying
from firn_spark.maintenance.replaying import letters
from firn_spark.maintenance.replaying.decoding import Decoding, Result
from firn_spark.maintenance.replaying.letters import Part, Selection
from firn_spark.maintenance.steps.changes import Marks, NewMetadata
from firn_spark.maintenance.steps.rewriting import planned
from firn_spark.maintenance.steps.subject import Subject
from firn_spark.schemas.registries import Registries
from firn_spark.tables.branches.landing import head
from firn_spark.tables.columns import replaced_column
from firn_spark.tables.commits import Landed, key_of, newest, view_of
from firn_spark.tables.java_errors import JAVA_ERRORS, translate
from firn_spark.tables.java_tables import Tables, data_file
from firn_spark.tables.swaps import PATIENT, OutdatedError, swap

log = structlog.get_logger()

REPLAY = "replay"
"""``firn.kind`` of the snapshots of a replay, in both tables."""
OFFSET_TAKEN = "OffsetTaken"
"""The cause of letters that stay because the log gave their offset to another record, which is a row."""
TARGET_BYTES = 512 * 1024 * 1024


class Replay:
    """A replay of one topic: its table, and its dead-letter table."""

    def __init__(
        self,
        table: Subject,
        dead: Subject,
        work: ReplayWork,
        tables: Tables,
        tasks: int,
        registries: Mapping[str, RegistryConnection],
        salts: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._salts = salts
        self._table = table
        self._dead = dead
        self._work = work
        self._tables = tables
        self._tasks = tasks
        # Letters are old, so a schema that is missing now is not just registered.
        self._registries = Registries(registries, None, missing_seconds=0)
        self._flat = work.job.table.metadata_columns == "Flat"
        self._view = view_of(work.job)
        self._marker_key = key_of(names.REPLAY, self._view)
        self._expected: str | None = None
        """The property as this run knows it."""

    def run(self) -> ReplayReport:
        """Replay the letters. Raises FirnError."""
        try:
            return self._run()
        except JAVA_ERRORS as error:
            raise translate(error, f"table {self._table.name}, replay of dead letters") from error

    def _run(self) -> ReplayReport:
        selection = self._selection()
        self._expected = self._marker()
        before = self._own(self._expected)
        if before is not None and before.done and before.matched:
            return _report(before)
        if selection is None:
            # The letters that stay are of a topic that was created again since the earlier pod, so nothing identifies them.
            unknown = {"remaining": None} if before is not None and before.matched else {}
            return _report(before or self._begun({})).model_copy(update=unknown)
        if self._work.enforce and Replaying.under_way(self._expected):
            self._remove_landed(selection, None)
        chosen = self._chosen(selection)
        if chosen is None:
            return _report(before or self._begun({}))
        progress = before or self._begun(letters.by_code(chosen))
        if not progress.matched:
            return self._nothing(selection)
        progress = self._parts(selection, letters.after(chosen, progress.through), progress)
        everything = letters.of_topic(self._table.spark, self._dead.table, selection.since)
        remaining = int(everything.count()) if everything is not None else 0
        if not self._work.enforce:
            return _report(progress.model_copy(update={"remaining": remaining - progress.landed}))
        progress = progress.model_copy(update={"remaining": remaining, "done": True})
        self._keep(progress)
        self._table.failpoints.reach("after-replay-end")
        return _report(progress)

    def _begun(self, matched: Mapping[str, int]) -> Replaying:
        return Replaying(replay=self._work.uid, matched=dict(matched))

    def _nothing(self, selection: Selection) -> ReplayReport:
        """Return the report if no letter meets the conditions. It has the causes of all, because a condition may be misspelt."""
        if self._work.enforce and Replaying.under_way(self._expected):
            # Another replay ended early. The letters that it landed are removed now.
            self._keep(self._begun({}).model_copy(update={"done": True}))
        everything = letters.of_topic(self._table.spark, self._dead.table, selection.since)
        causes = letters.by_code(everything) if everything is not None else {}
        return ReplayReport(remaining=sum(causes.values()), causes=causes)

    def _parts(self, selection: Selection, chosen: Any, progress: Replaying) -> Replaying:
        """Replay the letters part by part, up to the limit."""
        decoding = Decoding(self._table.spark, self._tables, self._table.table, self._work.job, self._tasks)
        limit = self._work.records
        for part in letters.parts(chosen):
            count = part.letters if limit is None else min(limit - progress.decoded, part.letters)
            if count <= 0:
                break
            progress = self._part(selection, decoding, part, count, progress)
        return progress

    def _part(self, selection: Selection, decoding: Decoding, part: Part, count: int, progress: Replaying) -> Replaying:
        """Decode the letters of a part, move those that fit, and store the counts in the table."""
        self._table.guard.check()
        self._table.renew()
        self._dead.renew()
        self._table.table.refresh()
        base = head(self._table.table)
        self._check_alone(self._marker())
        frame, others = self._free(selection, part)
        if count < part.letters:
            # Spark's limit moves all letters to one task.
            frame = frame.limit(count)
        result = decoding.run(frame, count, self._table.table, self._registries, self._salts)
        # The limit also holds for letters that are not decoded.
        others = max(0, min(others, count - result.rows - result.codes.total()))
        after = progress.model_copy(
            update={
                "part": progress.part + (1 if result.rows else 0),
                "landed": progress.landed + result.rows,
                "decoded": progress.decoded + count,
                "failures": dict(Counter(progress.failures) + result.codes + Counter({OFFSET_TAKEN: others})),
                "through": part.last,
            }
        )
        if not self._work.enforce or not result.rows:
            decoding.discard(self._table.table, result)
            if self._work.enforce:
                self._keep(after)
            return after
        self._append(result, after, base)
        self._table.failpoints.reach("after-replay-append")
        self._remove_landed(selection, part)
        self._table.failpoints.reach("after-replay-deletion")
        return after

    def _free(self, selection: Selection, part: Part) -> tuple[Any, int]:
        """Return the letters of a part whose offset has no row, and the number of those whose offset has the row of another record.

        Remove those that are rows already.
        """
        frame = letters.within(self._current(selection), part)
        taken = letters.occupied(
            self._table.spark,
            frame,
            self._table.table,
            selection.topic_id,
            flat=self._flat,
            shared=self._view is not None,
        )
        if taken is None:
            return frame, 0
        same = taken.where("same")
        if self._work.enforce and same.head(1):
            self._remove(same, selection, part)
        return letters.without(frame, taken), int(taken.where("not same").count())

    def _selection(self) -> Selection | None:
        """Return the letters to select, or None if the tables have no records of the topic."""
        self._table.table.refresh()
        landed, dead = newest(self._table.table, view=self._view), self._dead_landed()
        topic_id = self._work.job.topic_id
        if landed is None or dead is None or dead.topic_id != landed.topic_id:
            return None
        if topic_id is not None and landed.topic_id != topic_id:
            return None
        return Selection(self._work, landed.topic_id, dead.letters[0], landed.offsets)

    def _dead_landed(self) -> Landed | None:
        self._dead.table.refresh()
        return newest(self._dead.table)

    def _chosen(self, selection: Selection) -> Any | None:
        self._dead.table.refresh()
        everything = letters.of_topic(self._table.spark, self._dead.table, selection.since)
        return letters.selected(everything, selection) if everything is not None else None

    def _current(self, selection: Selection) -> Any:
        chosen = self._chosen(selection)
        assert chosen is not None
        return chosen

    def _marker(self) -> str | None:
        return self._marker_of(self._table.table.properties())

    def _marker_of(self, properties: Any) -> str | None:
        value = properties.get(self._marker_key)
        return None if value is None else str(value)

    def _own(self, marker: str | None) -> Replaying | None:
        """Return the state of an earlier attempt of this replay."""
        found = Replaying.read(marker)
        return found if self._work.enforce and found is not None and found.replay == self._work.uid else None

    def _append(self, result: Result, progress: Replaying, base: Any | None) -> None:
        """Commit the files to the table."""
        jvm, table = self._table.jvm, self._table.table
        files = [data_file(jvm, table, text) for text in result.files]
        base_id = int(base.snapshotId()) if base is not None else None
        written = str(jvm.org.apache.iceberg.SchemaParser.toJson(table.schema()))
        text = progress.model_dump_json()

        def check(current: Any) -> None:
            self._check_overtaken(current, base_id)
            self._check_alone(self._marker_of(current.properties()))
            column = replaced_column(written, str(jvm.org.apache.iceberg.SchemaParser.toJson(current.schema())))
            if column is not None:
                raise CommitConflictError(
                    f"table {current.name()}: column {column} was dropped and added again while the replay wrote its files; the next"
                    " attempt decodes the dead letters again"
                )

        def produce(fresh: Any) -> Any:
            append = fresh.newAppend()
            for file in files:
                append.appendFile(file)
            return append

        marks = Marks(self._summary(progress), {self._marker_key: text}, check)
        self._table.snapshot(REPLAY, produce, files, marks=marks)
        self._expected = text
        log.info("dead letters landed", table=self._table.name, rows=result.rows, part=progress.part)

    def _check_alone(self, marker: str | None) -> None:
        """Raise OutdatedError if another replay has landed letters, which it has perhaps not removed yet, or counted others."""
        if self._work.enforce and marker != self._expected:
            raise OutdatedError(
                f"table {self._table.name}: another replay works on the dead letters; the next attempt reads them again"
            )

    def _check_overtaken(self, table: Any, base_id: int | None) -> None:
        """Raise CommitConflictError unless only commits that land no dead letters came after ``base_id``."""
        snapshot = head(table)
        while snapshot is not None and int(snapshot.snapshotId()) != base_id:
            if snapshot.summary().get(names.SUMMARY_KIND) == REPLAY:
                raise CommitConflictError(
                    f"table {table.name()}: another replay landed dead letters first; the next attempt reads them again"
                )
            parent = snapshot.parentId()
            snapshot = table.snapshot(parent) if parent is not None else None
        if snapshot is None and base_id is not None:
            raise CommitConflictError(
                f"table {table.name()}: the snapshot that the replay began with is no longer in the history; the next attempt reads the"
                " dead letters again"
            )

    def _summary(self, progress: Replaying) -> dict[str, str]:
        return {names.REPLAY: f"{self._work.uid}:{progress.part}"}

    def _remove_landed(self, selection: Selection, part: Part | None) -> None:
        """Remove the letters that are rows of the table: those of a part, or of the whole topic."""
        self._table.table.refresh()
        self._dead.table.refresh()
        spark = self._table.spark
        frame = letters.of_topic(spark, self._dead.table, selection.since)
        if frame is None:
            return
        frame = letters.within(frame, part) if part is not None else frame
        taken = letters.occupied(
            spark, frame, self._table.table, selection.topic_id, flat=self._flat, shared=self._view is not None
        )
        same = taken.where("same") if taken is not None else None
        if same is not None and same.head(1):
            self._remove(same, selection, part)

    def _remove(self, places: Any, selection: Selection, part: Part | None) -> None:
        """Remove the letters at ``places`` (`letters.identities`)."""
        spark = self._table.spark
        view = f"firn_replayed_{uuid.uuid4().hex}"
        places.createOrReplaceTempView(view)
        try:
            self._drop(letters.is_one_of(view, selection.since), part)
        finally:
            spark.catalog.dropTempView(view)

    def _drop(self, matching: str, part: Part | None) -> None:
        """Commit the dead-letter table without the letters that match."""
        table = self._dead.table
        snapshot_id = int(table.currentSnapshot().snapshotId())
        scan = table.newScan().useSnapshot(snapshot_id).includeColumnStats()
        if part is not None:
            expressions = self._dead.jvm.org.apache.iceberg.expressions.Expressions
            scan = scan.filter(expressions.greaterThanOrEqual("ingested_at", part.first))
            scan = scan.filter(expressions.lessThanOrEqual("ingested_at", part.last))
        tasks = list(planned(scan))
        counts = self._dead.rewriter.count_by_file(table, tasks, matching)
        groups: dict[tuple[int, str], list[Any]] = {}
        for task in tasks:
            place = int(task.spec().specId()), str(task.spec().partitionToPath(task.file().partition()))
            groups.setdefault(place, []).append(task)
        whole: list[Any] = []
        mixed: list[list[Any]] = []
        for group in groups.values():
            count = sum(counts.get(str(task.file().location()), 0) for task in group)
            if count == sum(int(task.file().recordCount()) for task in group):
                whole += group
            elif count:
                mixed.append(group)
        marker = Replaying.read(self._marker())
        marks = Marks(
            self._summary(marker) if marker is not None and not marker.done else {},
            {names.REPLAY: uuid.uuid4().hex},
        )
        self._dead.drop(REPLAY, snapshot_id, whole, mixed, f"NOT ({matching})", TARGET_BYTES, marks=marks)

    def _keep(self, progress: Replaying) -> None:
        """Set the property in a commit without rows. Raises OutdatedError if another replay has changed it."""
        text = progress.model_dump_json()

        def edit(builder: Any, base: Any) -> None:
            self._check_alone(self._marker_of(base.properties()))
            builder.setProperties({self._marker_key: text})

        def done(metadata: Any) -> bool:
            return self._marker_of(metadata.properties()) == text

        swap(self._table.table, NewMetadata(self._table.guard, edit, done), self._table.failpoints, PATIENT)
        self._expected = text


def _report(progress: Replaying) -> ReplayReport:
    return ReplayReport(
        matched=sum(progress.matched.values()),
        landed=progress.landed,
        failed=sum(progress.failures.values()),
        remaining=progress.remaining,
        codes=progress.matched,
        failures=progress.failures,
    )
