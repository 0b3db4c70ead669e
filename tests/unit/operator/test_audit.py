"""The audit finds every way in which a table can differ from the log."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from firn.model.config import Config
from firn.model.errors import UnavailableError
from firn.model.progress import RANGES, AuditFrom, Cause, FilteredRange, Gap, Losses, SharedOffsets, TopicCommit
from firn_operator.cli import audit, main
from firn_operator.cli.lake import Lake


def offsets(*pairs: tuple[int, int]) -> pa.Table:
    return pa.table(
        {
            "partition": pa.array([partition for partition, _ in pairs], pa.int32()),
            "offset": pa.array([offset for _, offset in pairs], pa.int64()),
        }
    )


LOG = [(0, 0), (0, 1), (0, 3), (1, 0), (1, 1)]  # partition 0 has a gap at 2: an aborted transaction


def compare(good: list[tuple[int, int]], dead: list[tuple[int, int]], **kwargs: Any) -> list[audit.PartitionAudit]:
    rows = audit.Rows(iter([offsets(*good)]), iter([offsets(*dead)]))
    return audit.compare({0: 4, 1: 2}, {0: 0, 1: 0}, iter([offsets(*LOG)]), rows, **kwargs)


def test_rows_and_dead_letters_together_match_the_log() -> None:
    parts = compare(good=[(0, 0), (0, 3), (1, 0), (1, 1)], dead=[(0, 1)])
    assert [(part.partition, part.records, part.rows, part.dead_letters, part.exact) for part in parts] == [
        (0, 3, 2, 1, True),
        (1, 2, 2, 0, True),
    ]


@pytest.mark.parametrize(
    ("good", "dead", "field", "example"),
    [
        pytest.param([(0, 0), (0, 3)], [(1, 0), (1, 1)], "missing", (0, 1), id="a missing offset"),
        pytest.param([*LOG, (0, 1)], [], "doubled", (0, 1), id="an offset twice in the table"),
        pytest.param(LOG, [(1, 1)], "doubled", (1, 1), id="an offset in the table and in the dead letters"),
        pytest.param([*LOG, (0, 2)], [], "stray", (0, 2), id="a row whose offset is not in the log"),
    ],
)
def test_a_difference_is_reported_with_an_example(
    good: list[tuple[int, int]], dead: list[tuple[int, int]], field: str, example: tuple[int, int]
) -> None:
    wrong = [part for part in compare(good, dead) if not part.exact]
    assert [(part.partition, part.example, getattr(part, field)) for part in wrong] == [(*example, 1)]


def test_dead_letters_ahead_of_the_table_are_ignored() -> None:
    """They are committed first. The rows of the round follow, or were lost and land again."""
    parts = compare(good=[(0, 0), (0, 3), (1, 0), (1, 1)], dead=[(0, 1), (0, 4), (1, 2), (1, 2), (7, 0)])
    assert [(part.dead_letters, part.exact) for part in parts] == [(1, True), (0, True)]
    assert not compare(good=[*LOG, (0, 4)], dead=[])[0].exact, "only dead letters may be ahead of the table"


def test_records_before_a_later_start_are_not_missing() -> None:
    good = [(0, 3), (1, 1)]
    assert not all(part.exact for part in compare(good, []))
    assert all(part.exact for part in compare(good, [], from_earliest=False))


def test_rows_older_than_the_log_count_unless_they_are_duplicates() -> None:
    log = iter([offsets((0, 5))])
    rows = audit.Rows(iter([offsets((0, 3), (0, 4), (0, 4), (0, 5))]), iter([]))
    parts = audit.compare({0: 6}, {0: 5}, log, rows)
    assert [(part.missing, part.doubled, part.stray) for part in parts] == [(0, 1, 0)]


def test_offsets_before_the_log_start_without_a_row_are_noted() -> None:
    rows = audit.Rows(iter([offsets((0, 2), (0, 3), (0, 5))]), iter([offsets((0, 6))]))
    parts = audit.compare({0: 10, 1: 4}, {0: 9, 1: 0}, iter([offsets()]), rows)
    assert [(part.exact, part.gaps) for part in parts] == [(True, 3), (True, 0)]
    (note,) = audit.Audit(parts, compacted=False, skips=False, history=True).notes
    assert note.startswith("3 offsets before the log start have no row")


def test_rows_of_compacted_records_are_unproved() -> None:
    good = [*LOG, (0, 2)]
    parts = compare(good, [], compacted=True)
    assert [(part.stray, part.unproved, part.exact) for part in parts] == [(0, 1, True), (0, 0, True)]
    assert not compare([*good, (0, 2)], [], compacted=True)[0].exact, "a duplicate stays a duplicate"
    assert not compare(LOG[1:], [], compacted=True)[0].exact, "records that are in the log must be rows"


def test_records_that_may_have_been_skipped_are_unproved() -> None:
    parts = compare(LOG[1:], [], skips=True)
    assert [(part.missing, part.unproved, part.exact) for part in parts] == [(0, 1, True), (0, 0, True)]
    assert not compare([*LOG, (0, 2)], [], skips=True)[0].exact, "a row without a record was not skipped"


FEWER = [(0, 0), (0, 3), (1, 1)]
"""Rows without the records at (0, 1) and (1, 0)."""


@pytest.mark.parametrize(
    ("ranges", "expected", "filtered", "unproved", "missing"),
    [
        ({0: [(0, 4, 1)], 1: [(0, 2, 1)]}, True, 2, 0, 0),
        ({0: [(1, 2, 1)], 1: [(0, 1, 1)]}, True, 2, 0, 0),
        ({0: [(0, 1, 0), (1, 4, 1)], 1: [(0, 2, 1)]}, True, 2, 0, 0),
        ({0: [(0, 4, 1)]}, False, 1, 0, 1),
        ({0: [(2, 4, 1)], 1: [(0, 2, 1)]}, False, 1, 0, 1),
        ({0: [(0, 9, 1)], 1: [(0, 2, 1)]}, True, 1, 1, 0),
        ({0: [(0, 9, 0)], 1: [(0, 2, 1)]}, False, 1, 0, 1),
    ],
    ids=["whole", "exact", "several", "one more missing", "missing outside", "half a range", "more than half a range"],
)
def test_the_numbers_of_filtered_records_are_proved(
    ranges: Any, expected: bool, filtered: int, unproved: int, missing: int
) -> None:
    listed = {part: [FilteredRange(*each) for each in each_part] for part, each_part in ranges.items()}
    rows = audit.Rows(iter([offsets(*FEWER)]), iter([]), filtered=listed)
    parts = audit.compare({0: 4, 1: 2}, {0: 0, 1: 0}, iter([offsets(*LOG)]), rows)
    found = audit.Audit(parts, compacted=False, skips=False, history=True)
    assert found.exact == expected
    assert sum(part.filtered for part in parts) == filtered
    assert sum(part.unproved for part in parts) == unproved
    assert sum(part.missing for part in parts) == missing
    assert found.notes[0].startswith(f"the filter of the topic left out {filtered} records")


def test_a_row_of_a_filtered_record_is_stray_unless_the_log_is_compacted() -> None:
    ranges = {0: [FilteredRange(0, 4, 2)]}
    for compacted in (False, True):
        rows = audit.Rows(iter([offsets(*FEWER, (1, 0))]), iter([]), filtered=ranges)
        [part, _] = audit.compare({0: 4, 1: 2}, {0: 0, 1: 0}, iter([offsets(*LOG)]), rows, compacted=compacted)
        assert (part.filtered, part.missing, part.stray) == (1, 0, 0 if compacted else 1)


def test_filtered_records_before_the_log_and_the_decided_offsets_are_unproved() -> None:
    ranges = {0: [FilteredRange(0, 2, 1), FilteredRange(2, 6, 2), FilteredRange(6, 9, 1)]}
    log = [(0, offset) for offset in range(3, 9)]
    rows = audit.Rows(iter([offsets((0, 3), (0, 6), (0, 8))]), iter([]), filtered=ranges)
    [part] = audit.compare({0: 9}, {0: 3}, iter([offsets(*log)]), rows)
    assert (part.filtered, part.unproved, part.exact) == (1, 2, True)
    rows = audit.Rows(iter([offsets((0, 3), (0, 6), (0, 8))]), iter([]), filtered=ranges)
    [part] = audit.compare({0: 9}, {0: 3}, iter([offsets(*log)]), rows, decided=AuditFrom(topic_id="t", offsets={0: 8}))
    assert (part.filtered, part.unproved, part.exact) == (0, 3, True)


def test_lost_offsets_in_a_range_of_filtered_records_leave_its_number_open() -> None:
    ranges, lost = {0: [FilteredRange(0, 4, 1)]}, {0: [(1, 2)]}
    rows = audit.Rows(iter([offsets(*FEWER, (1, 0))]), iter([]), lost=lost, filtered=ranges)
    [part, _] = audit.compare({0: 4, 1: 2}, {0: 0, 1: 0}, iter([offsets(*LOG)]), rows)
    assert (part.filtered, part.unproved, part.exact) == (0, 0, True)


def test_records_before_the_adopted_offsets_are_unproved() -> None:
    adopted = AuditFrom(topic_id="new", offsets={0: 3})
    parts = compare(LOG[2:], [], decided=adopted)
    assert [(part.missing, part.unproved, part.exact) for part in parts] == [(0, 2, True), (0, 0, True)]
    assert (
        audit.Audit(parts, compacted=False, skips=False, history=True, decided=adopted)
        .notes[0]
        .startswith("an audit cannot decide about records without a row before these offsets (firn.audit-from): 0: 3")
    )
    wrong = compare([LOG[1], LOG[4]], [], decided=adopted)
    assert [(part.missing, part.unproved, part.example) for part in wrong] == [(1, 1, 3), (1, 0, 0)]
    assert compare([*LOG, LOG[0]], [], decided=adopted)[0].doubled == 1, "a duplicate stays a duplicate"


def test_surplus_rows_that_may_be_of_an_earlier_topic_are_unproved() -> None:
    mixed = AuditFrom(topic_id="new", mixed=True)
    parts = compare([*LOG, (0, 1), (0, 2)], [], decided=mixed)
    assert [(part.doubled, part.stray, part.unproved, part.exact) for part in parts] == [
        (0, 0, 2, True),
        (0, 0, 0, True),
    ]
    assert not compare(LOG[1:], [], decided=mixed)[0].exact, "a missing record is no row of an earlier topic"


@pytest.mark.parametrize(
    ("topic_id", "history", "expected"),
    [
        ("new", False, AuditFrom(topic_id="new", offsets={0: 7, 1: 2}, mixed=True)),
        ("new", True, AuditFrom(topic_id="new", offsets={0: 7, 1: 2})),
        ("newest", False, AuditFrom(topic_id="newest")),
    ],
    ids=["rows may be of an earlier topic", "the history shows rows of an earlier topic", "not of this topic"],
)
def test_the_table_says_from_where_an_audit_decides(topic_id: str, history: bool, expected: AuditFrom) -> None:
    table, dead = with_audit_from({0: 5, 1: 2}, mixed=True), with_audit_from({0: 7}, mixed=False)
    found = audit.decided_from(table, dead, topic_id, {0: 9, 1: 9}, has_history=history)
    assert found == expected


def test_an_audit_cannot_decide_about_the_commits_of_an_earlier_version() -> None:
    table = with_audit_from({0: 5}, mixed=False, last_commit="of-0.1.0")
    decided = audit.decided_from(table, None, "new", {0: 9, 1: 4}, has_history=True)
    assert decided.offsets == {0: 9, 1: 4}


def with_audit_from(offsets: dict[int, int], *, mixed: bool, last_commit: str = "c1") -> Table:
    value = AuditFrom(topic_id="new", offsets=offsets, mixed=mixed, commit="c1").model_dump_json()
    properties = {"firn.audit-from": value, "firn.commit-id": last_commit}
    return cast(Table, SimpleNamespace(properties=properties))


def test_offsets_that_the_table_records_as_lost_are_neither_missing_nor_stray() -> None:
    """After an unclean election, the log has a record where it had a marker, and the other way round."""
    good = [(0, 0), (0, 2), (0, 3), (1, 0)]

    def compared(lost: dict[int, list[tuple[int, int]]]) -> list[tuple[int, int, bool]]:
        rows = audit.Rows(iter([offsets(*good)]), iter([]), lost=lost)
        parts = audit.compare({0: 4, 1: 2}, {0: 0, 1: 0}, iter([offsets(*LOG)]), rows)
        return [(part.missing, part.stray, part.exact) for part in parts]

    assert compared({}) == [(1, 1, False), (1, 0, False)]
    assert compared({0: [(1, 3)]}) == [(0, 0, True), (1, 0, False)]
    assert compared({0: [(1, 2), (2, 3)], 1: [(1, 2)]}) == [(0, 0, True), (0, 0, True)]


def test_rows_of_an_earlier_topic_are_ignored() -> None:
    old, new = [(0, offset) for offset in range(6)], [(0, 0), (0, 1)]
    log = iter([offsets(*new, (0, 2))])
    rows = audit.Rows(
        iter([offsets(*old, *new)]),
        iter([offsets((0, 9), (0, 2))]),
        earlier_good=iter([offsets(*old)]),
        earlier_dead=iter([offsets((0, 9))]),
    )
    (part,) = audit.compare({0: 3}, {0: 0}, log, rows)
    assert (part.rows, part.dead_letters, part.exact) == (2, 1, True)


class History:
    """A table with snapshots only: (id, parent, topic id)."""

    def __init__(self, *snapshots: tuple[int, int | None, str | None], **properties: str) -> None:
        self.properties = properties
        self._found = {number: self._snapshot(number, parent, topic) for number, parent, topic in snapshots}

    def _snapshot(self, number: int, parent: int | None, topic: str | None) -> Snapshot:
        ours = {"firn.topic-id": topic, "firn.offsets": f'{{"0":{number}}}'} if topic else {}
        summary = Summary(Operation.APPEND, **ours)
        return Snapshot(
            snapshot_id=number, parent_snapshot_id=parent, sequence_number=number, timestamp_ms=number, manifest_list="",
            summary=summary,
        )  # fmt: skip

    @property
    def metadata(self) -> Any:
        return SimpleNamespace(snapshots=list(self._found.values()), refs={})

    def name(self) -> tuple[str, ...]:
        return ("demo", "orders")

    def current_snapshot(self) -> Snapshot | None:
        return self._found[max(self._found)] if self._found else None

    def snapshot_by_id(self, number: int) -> Snapshot | None:
        return self._found.get(number)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        pytest.param(History((1, None, "new"), (2, 1, "new")), (None, True), id="only this topic"),
        pytest.param(
            History((1, None, "old"), (2, 1, None), (3, 2, "new"), (4, 3, None), (5, 4, "new")),
            (2, True),
            id="re-created",
        ),
        pytest.param(History((4, 3, "new"), (5, 4, "new")), (None, False), id="expired"),
        pytest.param(
            History((2, 1, "old"), (3, 2, "new"), (7, 6, "new"), (9, 8, "new")), (2, True), id="removed in between"
        ),
    ],
)
def test_the_history_shows_where_an_earlier_topic_ends(history: History, expected: tuple[int | None, bool]) -> None:
    assert audit.before(cast(Table, history), "new") == expected


def test_offsets_of_another_topic_prove_nothing() -> None:
    history = cast(Table, History((1, None, "old"), (2, 1, None)))
    assert audit.landed_offsets(history, "old") == {0: 1}
    with pytest.raises(UnavailableError, match=r"demo\.orders: the topic was created again"):
        audit.landed_offsets(history, "new")
    assert audit.landed_offsets(cast(Table, History()), "new") == {}


def test_a_topic_of_a_shared_table_has_offsets_of_its_own() -> None:
    text = SharedOffsets.none()
    for topic, end in (("eu", 4), ("us", 9)):
        text = text.plus(topic, TopicCommit(resource=topic, epoch=1, commit=topic, offsets={0: end}))
    shared = cast(Table, History(**{"firn.owner": "shared", "firn.offsets": text.encode()}))
    assert [audit.landed_offsets(shared, topic) for topic in ("eu", "us")] == [{0: 4}, {0: 9}]
    assert audit.before(shared, "eu") == (None, True)
    with pytest.raises(UnavailableError, match="no record of the topic has landed yet"):
        audit.landed_offsets(shared, "jp")


def test_changed_offsets_are_completed() -> None:
    history = History((1, None, "t"), (2, 1, "t"))
    for number, text in ((1, '{"0":5,"1":6}'), (2, '{"since":"c1","1":7}')):
        summary = cast(Summary, history._found[number].summary)
        summary.additional_properties.update({"firn.offsets": text, "firn.commit-id": f"c{number}"})
    history.properties = {"firn.offsets": '{"0":90,"1":90}', "firn.commit-id": "rolled-back"}
    assert audit.landed_offsets(cast(Table, history), "t") == {0: 5, 1: 7}
    history.properties = {"firn.offsets": '{"0":5,"1":7}', "firn.commit-id": "c2"}
    assert audit.landed_offsets(cast(Table, history), "t") == {0: 5, 1: 7}


def test_a_failure_names_a_possible_explanation() -> None:
    partition = compare([*LOG, (0, 2)], [])[0]
    assert audit.Audit([partition], compacted=False, skips=False, history=True).notes == []
    (note,) = audit.Audit([partition], compacted=False, skips=False, history=False).notes
    assert "re-created" in note


def test_losses_of_the_table_are_notes_and_fail_no_audit() -> None:
    gaps = [
        Gap(partition=0, start=number * 10, end=number * 10 + 5, cause=Cause.DELETED) for number in range(RANGES + 2)
    ]
    losses = Losses().plus(gaps, "id-1", "3fa9c1d2", 0.0)
    report = audit.Audit(compare(LOG, []), compacted=False, skips=False, history=True, losses=losses)
    assert report.exact
    assert (
        report.notes[0]
        == "lost before it landed: partition 0, offsets 20 to 24, deleted from the log before they landed"
    )
    assert report.notes[-1] == "lost before they landed, and no longer listed: 10 earlier offsets"
    document = json.loads(audit.as_json(report))["losses"]
    assert document["offsets"] == 5 * (RANGES + 2)
    assert document["ranges"][0] == losses.ranges[0].model_dump(mode="json")


def test_the_result_is_about_landed_records_if_others_were_lost() -> None:
    assert main.exact_text(Losses()) == "every offset exactly once"
    gap = Gap(partition=0, start=0, end=1200, cause=Cause.DELETED)
    lost = Losses().plus([gap], "id-1", "3fa9c1d2", 0.0)
    assert main.exact_text(lost) == "every landed record exactly once; 1,200 offsets are lost"


class Live:
    """A topic with its own catalog. Rounds commit dead letters and then rows, as the driver does."""

    def __init__(self, directory: Path) -> None:
        image = {"image": "x"}
        catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/lake"}
        self.config = Config.model_validate(
            {
                "namespace": "firn-system",
                "images": {"spark": image, "kafka": image},
                "defaultProfile": "classic",
                "profiles": {"classic": {"bootstrapServers": "kafka:9092"}},
                "defaultCatalog": "lake",
                "catalogs": {"lake": catalog},
                "groups": {"default": {}},
            }
        )
        self.log: list[tuple[int, int]] = []
        self.end = 0
        self._catalog = Lake(self.config).catalog("lake")
        self._catalog.create_namespace("demo")
        self._create("orders")

    def _create(self, name: str) -> Table:
        place = pa.struct([("partition", pa.int32()), ("offset", pa.int64())])
        return self._catalog.create_table(("demo", name), pa.schema([("_kafka", place)]))

    def round(self, good: list[int], dead: list[int]) -> None:
        """Land offsets of partition 0."""
        self.dead_letters(dead)
        self.log += [(0, offset) for offset in (*good, *dead)]
        self._append(self._catalog.load_table(("demo", "orders")), good, max((*good, *dead)) + 1)

    def beside(self, name: str, good: list[int], end: int) -> tuple[Table, Table]:
        """Land offsets in another table, and return both."""
        self._append(self._create(name), good, end)
        return self._catalog.load_table(("demo", "orders")), self._catalog.load_table(("demo", name))

    def dead_letters(self, dead: list[int]) -> None:
        """Commit dead letters: the first half of a round."""
        if dead:
            name = ("demo", "orders__dlq")
            there = self._catalog.table_exists(name)
            self._append(self._catalog.load_table(name) if there else self._create(name[1]), dead, max(dead) + 1)

    def _append(self, table: Table, offsets: list[int], end: int) -> None:
        rows = pa.Table.from_pylist(
            [{"_kafka": {"partition": 0, "offset": offset}} for offset in offsets], table.schema().as_arrow()
        )
        table.append(rows, snapshot_properties={"firn.topic-id": "t", "firn.offsets": f'{{"0":{end}}}'})

    def replayed(self, offsets: list[int], marker: str | None = '{"replay":"uid","part":1}') -> None:
        """Land dead letters again, as a replay does before it removes them."""
        table = self._catalog.load_table(("demo", "orders"))
        ends = max((offset for _, offset in self.log), default=-1) + 1
        self._append(table, offsets, ends)
        if marker is not None:
            with self._catalog.load_table(("demo", "orders")).transaction() as change:
                change.set_properties({"firn.replay": marker})

    def remove_letters(self, offsets: list[int]) -> None:
        """Remove dead letters, as a replay does."""
        table = self._catalog.load_table(("demo", "orders__dlq"))
        table.delete(f"_kafka.offset in ({', '.join(map(str, offsets))})", snapshot_properties={"firn.kind": "replay"})
        with self._catalog.load_table(("demo", "orders__dlq")).transaction() as change:
            change.set_properties({"firn.replay": "removal-1"})

    def retain(self, below: int) -> None:
        """Delete rows, as a maintenance run does."""
        table = self._catalog.load_table(("demo", "orders"))
        table.delete(f"_kafka.offset < {below}", snapshot_properties={"firn.kind": "retain"})

    def audit(self, policy: dict[str, Any] | None = None) -> audit.Audit:
        """Run the audit with the status from before the first round."""
        status = {"profile": "classic", "topicName": "orders", "table": {"identifier": "lake.demo.orders"}}
        manifest = {"metadata": {"namespace": "demo", "name": "orders"}, "status": status}
        return audit.audit_resource(self.config, manifest, lambda _: None, policy)


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Live:
    made = Live(tmp_path)

    def log(client: Any, topic: str, landed: dict[int, int], report: Callable[[str], None]) -> Any:
        return (
            {0: 0, 1: 0},
            {0: made.end, 1: 0},
            iter([offsets(*((part, offset) for part, offset in made.log if offset < landed[part]))]),
        )

    monkeypatch.setattr(audit, "live_topic", lambda client, topic: audit.Topic("t", compacted=False))
    monkeypatch.setattr(audit, "log_offsets", log)
    return made


def test_the_first_dead_letters_are_found_before_status_names_them(live: Live) -> None:
    live.round([0], [1])
    (part,) = live.audit().partitions
    assert (part.rows, part.dead_letters, part.exact) == (1, 1, True)


def test_offsets_that_wait_behind_a_halt_are_counted(live: Live) -> None:
    live.round([0, 1], [])
    live.end = 5
    report = live.audit()
    assert (report.exact, report.waiting) == (True, 3)
    assert main.waiting_text(3, {"status": {"ingestion": {"haltedAt": {"partition": 0, "offset": 2}}}}) == (
        "; 3 more offsets wait to land behind the halt at partition 0, offset 2"
    )
    assert main.waiting_text(3, {}) == "; 3 more offsets wait to land"
    assert main.waiting_text(0, {}) == ""


def test_a_missing_dead_letter_table_is_no_failure(live: Live) -> None:
    live.round([0, 1], [])
    assert live.audit().exact


def test_rows_that_retention_may_have_removed_are_unproved(live: Live) -> None:
    live.round([0, 1, 2, 3], [4])
    assert live.audit().notes == []
    live.retain(2)
    report = live.audit()
    (part,) = report.partitions
    assert (part.rows, part.missing, part.unproved, part.exact) == (2, 0, 2, True)
    (note,) = report.notes
    assert "retention removes rows" in note


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "exact"),
    [
        ({"mode": "Enforce", "rows": {"column": "at", "maxAge": "30d"}}, True),
        ({"mode": "DryRun", "rows": {"column": "at", "maxAge": "30d"}}, False),
        ({"mode": "Enforce", "snapshots": {"maxAge": "7d"}}, False),
    ],
    ids=["rows", "dry run", "no rows"],
)
def test_a_note_names_a_policy_that_removes_rows(live: Live, spec: dict[str, Any], exact: bool) -> None:
    live.round([0, 1], [])
    live.log.append((0, 2))
    live.round([3], [])
    assert live.audit({"spec": spec}).exact is exact


def test_a_topic_that_lands_during_the_audit_is_exact(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round is committed between any two reads of the catalog, and one more commits its dead letters only."""
    live.round([0], [1])
    look_up = Lake.look_up

    def while_it_lands(lake: Lake, identifier: str) -> Table | None:
        table = look_up(lake, identifier)
        end = max(offset for _, offset in live.log) + 1
        live.round([end], [end + 1])
        live.dead_letters([end + 3])
        return table

    monkeypatch.setattr(Lake, "look_up", while_it_lands)
    report = live.audit()
    assert report.exact, report
    assert [(part.landed, part.rows, part.dead_letters) for part in report.partitions] == [(4, 2, 2)]


@pytest.mark.parametrize("marker", ['{"replay":"uid","part":1}', '{"replay":"uid","done":false}', "unreadable"])
def test_a_letter_that_a_replay_has_landed_and_not_yet_removed_is_its_row(live: Live, marker: str) -> None:
    live.round([0], [1, 2])
    live.replayed([1], marker)
    (part,) = live.audit().partitions
    assert (part.rows, part.dead_letters, part.doubled, part.exact) == (2, 1, 0, True)


@pytest.mark.parametrize("marker", [None, '{"replay":"uid","part":1,"done":true}'])
def test_without_the_mark_of_a_replay_such_a_letter_is_doubled(live: Live, marker: str | None) -> None:
    live.round([0], [1, 2])
    live.replayed([1], marker)
    (part,) = live.audit().partitions
    assert (part.doubled, part.exact) == (1, False)


def test_a_replay_that_ends_while_the_tables_are_loaded_is_exact(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The audit loads the table without the row of the letter, and then the dead letters without the letter."""
    live.round([0], [1, 2])
    look_up = Lake.look_up
    loads: list[str] = []

    def while_it_replays(lake: Lake, identifier: str) -> Table | None:
        if len(loads) == 2:
            live.replayed([1])
            live.remove_letters([1])
        loads.append(identifier)
        return look_up(lake, identifier)

    monkeypatch.setattr(Lake, "look_up", while_it_replays)
    (part,) = live.audit().partitions
    assert (part.rows, part.dead_letters, part.missing, part.exact) == (2, 1, 0, True)
    assert len(loads) > 3


@pytest.mark.parametrize(
    ("refunds", "later", "wrong"),
    [
        pytest.param([1], [3, 4], (0, 0, 0), id="each offset in one table"),
        pytest.param([1], [], (0, 0, 0), id="the other table has not landed the rest"),
        pytest.param([], [3, 4], (1, 0, 0), id="a missing offset"),
        pytest.param([1, 2], [3, 4], (0, 1, 0), id="an offset in both tables"),
    ],
)
def test_tables_of_a_topic_are_compared_below_the_offsets_of_the_slowest(
    live: Live, refunds: list[int], later: list[int], wrong: tuple[int, int, int]
) -> None:
    live.round([0, 2], [])
    tables = live.beside("refunds", [*refunds, *later], 5)
    live.log = [(0, offset) for offset in range(5)]
    (part,) = audit.audit_tables({}, "orders", [(table, None) for table in tables], lambda _: None).partitions
    assert (part.landed, part.missing, part.doubled, part.stray) == (3, *wrong)
    assert part.exact == (wrong == (0, 0, 0))
