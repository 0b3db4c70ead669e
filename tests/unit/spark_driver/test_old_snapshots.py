"""Old snapshots that an ingestion commit removes from a table's metadata."""

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from firn.model import names
from firn.model.progress import encode_offsets
from firn_spark.tables.commits import COMMIT_ID, SLOT_MS
from firn_spark.tables.old_snapshots import old_snapshots
from tests.fakes.lake.java import JavaMap

SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
NOW = 1_700_000_000_000 // DAY * DAY
WHOLE = '{"0":1}'
CHANGED = '{"since":"x","0":1}'


@dataclass
class Snapshot:
    """Iceberg's snapshot, as far as the removal uses it."""

    id: int
    at: int
    kind: str | None = "ingest"
    offsets: str = WHOLE
    topic: str = "t"
    parent: int | None = None

    def snapshotId(self) -> int:
        return self.id

    def timestampMillis(self) -> int:
        return self.at

    def parentId(self) -> int | None:
        return self.parent

    def summary(self) -> JavaMap:
        if self.kind is None:
            return JavaMap()
        return JavaMap(
            {
                names.SUMMARY_KIND: self.kind,
                names.SUMMARY_OFFSETS: self.offsets,
                names.SUMMARY_TOPIC_ID: self.topic,
                COMMIT_ID: "0" * 32,
            }
        )


@dataclass
class Metadata:
    """Iceberg's table metadata."""

    kept: list[Snapshot]
    props: dict[str, str] = field(default_factory=dict)
    tags: dict[str, int] = field(default_factory=dict)
    branches: dict[str, int] = field(default_factory=dict)
    statistics: list[int] = field(default_factory=list)

    def snapshots(self) -> list[Snapshot]:
        return self.kept

    def currentSnapshot(self) -> Snapshot:
        return self.kept[-1]

    def snapshot(self, id: int) -> Snapshot | None:
        return next((each for each in self.kept if each.id == id), None)

    def properties(self) -> dict[str, str]:
        return self.props

    def statisticsFiles(self) -> list[Any]:
        return [SimpleNamespace(snapshotId=lambda id=id: id) for id in self.statistics]

    def partitionStatisticsFiles(self) -> list[Any]:
        return []

    def refs(self) -> dict[str, Any]:
        def ref(id: int, branch: bool) -> Any:
            return SimpleNamespace(snapshotId=lambda: id, isBranch=lambda: branch)

        tags = {name: ref(id, branch=False) for name, id in self.tags.items()}
        return tags | {name: ref(id, branch=True) for name, id in {"main": self.kept[-1].id, **self.branches}.items()}


def chain(*ages: int, **changes: Any) -> list[Snapshot]:
    """Return snapshots 1, 2, ... each the parent of the next, with these ages."""
    return [Snapshot(n, NOW - age, parent=n - 1 or None, **changes) for n, age in enumerate(ages, 1)]


def gone(metadata: Metadata, age_ms: int = HOUR) -> list[int]:
    return sorted(each.id for each in old_snapshots(metadata, age_ms, NOW))


def test_age_counts_from_when_a_snapshot_was_superseded() -> None:
    table = Metadata(chain(3 * DAY, 3 * DAY - 1, 3 * DAY - 2, 61 * MINUTE, 59 * MINUTE, 1))
    assert gone(table) == [1, 2, 3]
    assert gone(table, 3 * DAY - 1) == []
    assert gone(Metadata(table.kept, {"history.expire.max-snapshot-age-ms": str(4 * DAY)})) == []
    assert gone(Metadata(table.kept, {"history.expire.min-snapshots-to-keep": "5"})) == [1]


def test_one_snapshot_of_each_hour_stays_for_a_day() -> None:
    table = Metadata(chain(*range(30 * HOUR, 0, -10 * MINUTE)))
    kept = {each.id for each in table.kept} - set(gone(table))
    ages = [NOW - each.at for each in table.kept if each.id in kept]
    assert [age for age in ages if age > 70 * MINUTE] == [hour * HOUR for hour in range(26, 1, -1)]
    assert [age for age in ages if age <= 70 * MINUTE] == [minutes * MINUTE for minutes in range(70, 0, -10)]


def test_older_snapshots_that_complete_the_offsets_of_kept_ones_stay() -> None:
    table = chain(*(3 * DAY - n for n in range(9)), 1)
    for each in table[5:]:
        each.offsets = CHANGED
    assert gone(Metadata(table)) == [1, 2, 3, 4]


def test_snapshots_with_references_or_statistics_and_of_others_and_of_deletions_stay() -> None:
    table = chain(*(3 * DAY - n for n in range(9)), 1)
    table[2].offsets = CHANGED
    table[5].kind = None
    table[6].kind = "retain"
    # Snapshot 5 has the offsets of the foreign one behind it.
    assert gone(Metadata(table)) == [1, 2, 3, 4, 8]
    assert gone(Metadata(table, tags={"a": 3})) == [1, 4, 8]
    assert gone(Metadata(table, tags={names.HISTORY_TAG: 3})) == [1, 2, 3, 4, 8]
    assert gone(Metadata(table, branches={"a": 4})) == [8]
    assert gone(Metadata(table, statistics=[4])) == [1, 2, 3, 8]
    assert gone(Metadata(table, {"gc.enabled": "false"})) == []


def test_invalid_numbers_of_other_engines_stop_the_removal_only() -> None:
    assert gone(Metadata(chain(3 * DAY, 3 * DAY - 1, 1), {"history.expire.max-snapshot-age-ms": "7d"})) == []


def test_the_snapshots_at_a_change_of_the_topic_stay() -> None:
    table = chain(*(3 * DAY - n for n in range(9)), 1)
    for each in table[4:]:
        each.topic = "re-created"
    table[4].kind = None
    assert gone(Metadata(table)) == [1, 2, 3, 7, 8]


@pytest.mark.parametrize("days", [2, pytest.param(30, marks=pytest.mark.long)])
def test_metadata_of_a_thousand_partitions_stays_small(days: int) -> None:
    """1,000 partitions that all move, and a commit each 10 s: below 10 MB, and a commit removes few snapshots."""
    whole = encode_offsets({partition: 10**9 + partition for partition in range(1_000)})
    counts = {"spark.app.id": "local-1", **{f"total-{n}": "1000000000" for n in range(14)}}
    document = {
        "summary": {**Snapshot(1, 0, offsets=whole).summary(), **counts, "firn.writer": "x" * 60},
        "id": 2**62,
        "x": "y" * 300,
    }
    each_bytes = len(json.dumps(document))
    table: list[Snapshot] = [Snapshot(0, NOW - days * DAY)]
    largest = most_read = 0
    for at in range(NOW - days * DAY + SLOT_MS, NOW, SLOT_MS):
        ours = [Snapshot(table[-1].id + n, at - SLOT_MS + 10 * SECOND * n) for n in range(1, SLOT_MS // (10 * SECOND))]
        table += ours
        largest = max(largest, len(table))
        removed = {each.id for each in old_snapshots(Metadata(table), HOUR, at)}
        most_read = max(most_read, len(removed))
        table = [each for each in table if each.id not in removed]
        table.append(Snapshot(table[-1].id + 1, at))
    assert largest * each_bytes + 200 * 100 + len(whole) < 10_000_000, (largest, each_bytes)
    assert most_read < 100
