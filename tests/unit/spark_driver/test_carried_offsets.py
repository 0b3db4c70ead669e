"""Maintenance snapshots carry all keys of the newest ingestion commit."""

from types import SimpleNamespace
from typing import Any

import pytest

from firn.model import names
from firn.model.errors import CorruptDataError
from firn_spark.tables.commits import (
    COMMIT_ID,
    INGEST,
    LETTERS_SINCE,
    LETTERS_UNTIL,
    WRITER,
    Landed,
    carried,
    newest,
)
from tests.fakes.lake.java import JavaMap

SUMMARY = {
    names.SUMMARY_KIND: INGEST,
    names.SUMMARY_TOPIC_ID: "topic-id",
    names.SUMMARY_EPOCH: "3",
    names.SUMMARY_OFFSETS: '{"0":40,"1":7}',
    COMMIT_ID: "commit",
    WRITER: "writer",
    LETTERS_SINCE: "1700000000000000",
    LETTERS_UNTIL: "1700000009000000",
    names.SUMMARY_LANDED_AT: "1700000005000",
}


def table(summary: dict[str, str]) -> Any:
    """Return a table whose only snapshot has this summary."""
    snapshot = SimpleNamespace(
        summary=lambda: JavaMap(summary), snapshotId=lambda: 1, timestampMillis=lambda: 5, parentId=lambda: None
    )
    return SimpleNamespace(name=lambda: "lake.n.t", currentSnapshot=lambda: snapshot, properties=JavaMap)


def contents(landed: Landed | None) -> tuple[object, ...]:
    assert landed is not None
    return (
        landed.topic_id,
        landed.epoch,
        dict(landed.offsets),
        landed.commit_id,
        landed.writer,
        landed.landed_ms,
        landed.letters,
    )


def test_carried_offsets_survive_the_expiry_of_the_ingestion_commit() -> None:
    landed = newest(table(SUMMARY))
    assert carried(landed).keys() == SUMMARY.keys() - {names.SUMMARY_KIND}
    carrier = {names.SUMMARY_KIND: "compact", **carried(landed)}
    assert contents(newest(table(carrier))) == contents(landed)
    assert contents(landed)[-1] == (1_700_000_000_000_000, 1_700_000_009_000_000)


def test_a_known_history_is_not_read_again() -> None:
    landed = newest(table(SUMMARY))
    foreign = SimpleNamespace(summary=JavaMap, snapshotId=lambda: 2, parentId=lambda: 1)
    # The older snapshot may be asked for its id only.
    before = {1: SimpleNamespace(snapshotId=lambda: 1)}
    moved = SimpleNamespace(currentSnapshot=lambda: foreign, snapshot=before.__getitem__, properties=JavaMap)
    assert newest(moved, (1, landed)) is landed


def test_the_properties_do_not_count_if_their_commit_is_outside_the_history() -> None:
    """Another engine made a snapshot current whose ingestion commits are gone, and newer ones are kept."""
    foreign = SimpleNamespace(summary=JavaMap, snapshotId=lambda: 2, parentId=lambda: 1)
    newer = SimpleNamespace(summary=lambda: JavaMap(SUMMARY), snapshotId=lambda: 3, parentId=lambda: 2)
    moved = SimpleNamespace(
        name=lambda: "lake.n.t", currentSnapshot=lambda: foreign, snapshot=lambda _: None,
        properties=lambda: JavaMap(SUMMARY), snapshots=lambda: [foreign, newer],
    )  # fmt: skip
    with pytest.raises(CorruptDataError, match="the newest ingestion commit is not in its history"):
        newest(moved)
    moved.snapshots = lambda: [foreign]
    landed = newest(moved)
    assert landed is not None
    assert landed.offsets == {0: 40, 1: 7}


def test_the_history_counts_after_a_rollback() -> None:
    rolled_back = table(SUMMARY)
    assert contents(newest(rolled_back, (7, None))) == contents(newest(rolled_back))
