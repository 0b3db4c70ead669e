"""Tables across versions: this version continues tables of 0.1.0, and 0.1.0 reads tables of this version or stops.

``tests/unit/model/released/0.1.0/table.json`` and ``dead-letter-table.json`` have the properties and snapshots that the
code of 0.1.0 (the parent of commit 7877d5c) wrote: its ``Committer``, ``dead_letters.claim`` and ``dead_letters.commit``,
and ``NewSnapshot`` for the compaction. A script ran them on a small stand-in for Iceberg's Java.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from firn.model import names
from firn.model.jobs import CatalogConnection, GroupSettings
from firn.model.progress import AuditFrom, Offsets
from firn_spark.failpoints import Failpoints
from firn_spark.tables import commits
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.commits import Committer, Extras, Landed, carried, newest, read_landed
from firn_spark.tables.java_tables import Tables
from tests.fakes.lake.java import DirectGateway, JavaTable, Session, spark
from tests.fakes.lake.memory import MAIN, Lake, Metadata, Snapshot

RELEASED = Path(__file__).parents[1] / "model" / "released" / "0.1.0"
NAME, TOPIC_ID, WRITER = "shop.orders", "Zm9vYmFyLXRvcGljLWlkMQ", "default/firn-ingest-default-0/1"
LANDED: Offsets = {0: 25, 1: 4, 2: 7}


def released(name: str) -> Metadata:
    document = json.loads((RELEASED / f"{name}.json").read_text())
    snapshots = tuple(
        Snapshot(
            item["snapshot-id"],
            item.get("parent-snapshot-id"),
            item["timestamp-ms"],
            item["summary"]["operation"],
            item["summary"],
            (),
        )
        for item in document["snapshots"]
    )
    head = {MAIN: document["current-snapshot-id"]}
    return Metadata("uuid", NAME, "s3://firn", '{"fields":[]}', document["properties"], snapshots, head)


def without_snapshots(metadata: Metadata, keep: int) -> Metadata:
    kept = metadata.all_snapshots[-keep:] if keep else ()
    return replace(metadata, all_snapshots=kept, references=dict(metadata.references) if kept else {})


class Stage(DirectGateway):
    """A lake with one table, and a committer of this version."""

    def __init__(self, metadata: Metadata | None = None) -> None:
        self.lake = Lake()
        if metadata is None:
            metadata = self.lake.create(NAME, '{"fields":[]}', {})
        self.lake.tables[NAME] = metadata
        settings = GroupSettings(
            group="default",
            kafka={},
            catalogs={"lake": CatalogConnection(type="sql", uri="postgresql://db/lake", warehouse="s3://firn/lake")},
        )
        tables = Tables(Catalogs(spark(self.lake, self), settings))
        self.now = 1_767_226_000_000
        self.committer = Committer(tables, "default/new", Failpoints(), self.now_ms)

    def now_ms(self) -> int:
        return self.now

    @property
    def metadata(self) -> Metadata:
        return self.lake.tables[NAME]

    def table(self) -> Any:
        return JavaTable(Session(self.lake, self, "lake"), NAME, self.metadata)

    def commit(self, offsets: Offsets, extras: Extras = commits.NO_EXTRAS) -> Landed:
        table = self.table()
        return self.committer.commit(table, (), read_landed(table), TOPIC_ID, 2, offsets, extras)

    def commit_of_0_1_0(self, offsets: Offsets) -> None:
        """Commit as 0.1.0 does: all of its keys in the summary and in the properties, and no others."""
        table = self.table()
        values = carried(newest(table)) | {
            names.SUMMARY_OFFSETS: json.dumps({str(part): offset for part, offset in offsets.items()}),
            names.SUMMARY_COMMIT_ID: "of-0.1.0",
            names.TABLE_WRITER: WRITER,
        }
        append = table.newAppend()
        for key, value in {**values, names.SUMMARY_KIND: "ingest"}.items():
            append.set(key, value)
        append.commit()
        self.lake.update(NAME, lambda live: replace(live, properties={**live.properties, **values}))

    @property
    def audit_from(self) -> AuditFrom:
        found = AuditFrom.read(self.metadata.properties.get(names.TABLE_AUDIT_FROM))
        assert found is not None
        return found


@pytest.mark.parametrize("snapshots", [3, 1, 0], ids=["all snapshots", "only the compaction", "only properties"])
def test_a_table_of_0_1_0_is_read_with_all_its_values(snapshots: int) -> None:
    landed = newest(Stage(without_snapshots(released("table"), snapshots)).table())
    assert landed is not None
    assert (landed.topic_id, landed.epoch, landed.offsets) == (TOPIC_ID, 1, LANDED)
    assert (landed.commit_id, landed.writer) == ("000000000000000000000000fe000002", WRITER)
    assert landed.committed_ms == (1_767_225_660_000 if snapshots == 3 else None)
    assert landed.leader_epochs == {}


@pytest.mark.parametrize("snapshots", [2, 0], ids=["all snapshots", "only properties"])
def test_a_dead_letter_table_of_0_1_0_is_read_with_all_its_values(snapshots: int) -> None:
    landed = newest(Stage(without_snapshots(released("dead-letter-table"), snapshots)).table())
    assert landed is not None
    assert (landed.topic_id, landed.epoch, landed.offsets, landed.writer) == (TOPIC_ID, 1, LANDED, WRITER)
    assert landed.letters == (1_767_225_600_000_000, 1_767_225_660_000_000)


def test_this_version_continues_a_table_of_0_1_0() -> None:
    stage = Stage(released("table"))
    stage.commit({**LANDED, 0: 30}, Extras(leader_epochs={0: 3}))
    landed = stage.commit({**LANDED, 0: 31}, Extras(leader_epochs={0: 3}))
    assert landed.offsets == {**LANDED, 0: 31}
    assert landed.leader_epochs == {0: 3}
    known = stage.audit_from
    assert (known.offsets, known.mixed, known.commit) == (LANDED, True, landed.commit_id)
    properties = stage.metadata.properties
    assert properties[names.TABLE_OWNER] == "6f0f1c1e-7c52-4f2b-8a93-000000000001"
    assert properties["firn.properties"] == "write.target-file-size-bytes"


def test_audits_cannot_decide_about_commits_that_0_1_0_made_in_between() -> None:
    stage = Stage()
    stage.commit({0: 5, 1: 2}, Extras(leader_epochs={0: 1}))
    stage.commit({0: 6, 1: 2}, Extras(leader_epochs={0: 1}))
    decided = stage.audit_from.offsets
    stage.commit_of_0_1_0({0: 9, 1: 3})
    landed = newest(stage.table())
    assert landed is not None
    assert landed.leader_epochs == {}, "the epochs are those of an earlier commit"
    stage.commit({0: 12, 1: 3})
    assert decided != {0: 9, 1: 3}
    assert stage.audit_from.offsets == {0: 9, 1: 3}
    stage.commit({0: 13, 1: 3})
    assert stage.audit_from.offsets == {0: 9, 1: 3}


def test_a_rollback_does_not_count_as_a_commit_of_another_version() -> None:
    stage = Stage()
    for end in (5, 6, 7):
        stage.commit({0: end})
    before = stage.audit_from.offsets
    back = stage.metadata.all_snapshots[1].id
    stage.lake.update(NAME, lambda live: replace(live, references={MAIN: back}))
    stage.commit({0: 8})
    assert stage.audit_from.offsets == before


# The way back


def offsets_for_0_1_0(metadata: Metadata) -> Offsets:
    """Return the landed offsets by the rules of 0.1.0: ``newest`` and ``decode_offsets``. Raises ValueError where it stops."""
    bearer: Mapping[str, str] | None = None
    for snapshot in metadata.history():
        if snapshot.properties.get("firn.kind") == "ingest":
            bearer = snapshot.properties
            break
        if bearer is None and "firn.offsets" in snapshot.properties:
            bearer = snapshot.properties
    value = json.loads((bearer or metadata.properties)["firn.offsets"])
    if not isinstance(value, dict) or not all(
        re.fullmatch(r"0|[1-9][0-9]{0,9}", part) and type(offset) is int and offset >= 0
        for part, offset in value.items()
    ):
        raise ValueError("firn.offsets is not an object of partitions and offsets")
    return {int(part): offset for part, offset in value.items()}


def with_compaction(metadata: Metadata) -> Metadata:
    head = metadata.head
    assert head is not None
    landed = newest(JavaTable(Session(Lake(), DirectGateway(), "lake"), NAME, metadata))
    summary = {names.SUMMARY_KIND: "compact", **carried(landed)}
    return metadata.with_snapshot(Snapshot(900, head.id, head.at_ms, "replace", summary, ()))


def written(partitions: int, changed: int, **options: Any) -> Metadata:
    """Return a table of this version whose newest commit changed the offsets of some partitions."""
    stage = Stage()
    stage.commit(dict.fromkeys(range(partitions), 5))
    if options.get("new_slot"):
        stage.now += commits.SLOT_MS
    extras = Extras(letters=(1, 2)) if options.get("dead_letters") else Extras(leader_epochs={0: 1})
    stage.commit({part: 6 if part < changed else 5 for part in range(partitions)}, extras)
    metadata = stage.metadata
    if options.get("compacted"):
        metadata = with_compaction(metadata)
    if (keep := options.get("keep")) is not None:
        metadata = without_snapshots(metadata, keep)
    return metadata


@pytest.mark.parametrize(
    ("metadata", "continues"),
    [
        pytest.param(written(1, 1), True, id="one partition"),
        pytest.param(written(3, 2), True, id="more than half of the partitions changed"),
        pytest.param(written(2, 1), False, id="half of the partitions changed"),
        pytest.param(written(8, 1), False, id="one of many partitions changed"),
        pytest.param(written(8, 1, new_slot=True), True, id="first commit of five minutes"),
        pytest.param(written(8, 1, compacted=True), False, id="compacted since"),
        pytest.param(written(8, 1, compacted=True, keep=1), True, id="only the compaction is left"),
        pytest.param(written(8, 1, keep=0), True, id="only properties are left"),
        pytest.param(written(8, 1, dead_letters=True), True, id="dead-letter table"),
    ],
)
def test_0_1_0_continues_a_table_of_this_version_or_stops(metadata: Metadata, continues: bool) -> None:
    landed = newest(JavaTable(Session(Lake(), DirectGateway(), "lake"), NAME, metadata))
    assert landed is not None
    if continues:
        assert offsets_for_0_1_0(metadata) == landed.offsets, "no record lands twice, and none is left out"
    else:
        with pytest.raises(ValueError, match=r"firn\.offsets"):
            offsets_for_0_1_0(metadata)


def test_the_rules_of_0_1_0_read_its_own_tables() -> None:
    assert offsets_for_0_1_0(released("table")) == LANDED
    assert offsets_for_0_1_0(released("dead-letter-table")) == LANDED
