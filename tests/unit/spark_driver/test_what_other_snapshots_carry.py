"""Maintenance snapshots carry all keys of the newest ingestion commit."""

from types import SimpleNamespace
from typing import Any

from firn.model import names
from firn_spark.tables.commits import (
    COMMIT_ID,
    INGEST,
    LETTERS_SINCE,
    LETTERS_UNTIL,
    SUMMARY_KEYS,
    WRITER,
    Landed,
    carried,
    newest,
)

SUMMARY = {
    names.SUMMARY_KIND: INGEST,
    names.SUMMARY_TOPIC_ID: "topic-id",
    names.SUMMARY_EPOCH: "3",
    names.SUMMARY_OFFSETS: '{"0":40,"1":7}',
    COMMIT_ID: "commit",
    WRITER: "writer",
    LETTERS_SINCE: "1700000000000000",
    LETTERS_UNTIL: "1700000009000000",
}


def table(summary: dict[str, str]) -> Any:
    """A table whose only snapshot has this summary."""
    snapshot = SimpleNamespace(
        summary=lambda: summary, snapshotId=lambda: 1, timestampMillis=lambda: 5, parentId=lambda: None
    )
    return SimpleNamespace(name=lambda: "lake.n.t", currentSnapshot=lambda: snapshot, properties=dict)


def known(landed: Landed | None) -> tuple[object, ...]:
    assert landed is not None
    return landed.topic_id, landed.epoch, dict(landed.offsets), landed.commit_id, landed.writer, landed.letters


def test_nothing_is_forgotten_when_the_ingestion_commit_has_expired() -> None:
    assert SUMMARY.keys() - {names.SUMMARY_KIND} == set(SUMMARY_KEYS)
    landed = newest(table(SUMMARY))
    carrier = {names.SUMMARY_KIND: "compact", **carried(landed)}
    assert known(newest(table(carrier))) == known(landed)
    assert known(landed)[-1] == (1_700_000_000_000_000, 1_700_000_009_000_000)


def test_a_history_that_was_read_is_not_read_again() -> None:
    landed = newest(table(SUMMARY))
    foreign = SimpleNamespace(summary=dict, snapshotId=lambda: 2, parentId=lambda: 1)
    # Of the snapshot before it nothing but its id may be asked for.
    before = {1: SimpleNamespace(snapshotId=lambda: 1)}
    moved = SimpleNamespace(currentSnapshot=lambda: foreign, snapshot=before.__getitem__)
    assert newest(moved, (1, landed)) is landed


def test_after_a_rollback_behind_what_was_read_the_history_counts() -> None:
    rolled_back = table(SUMMARY)
    assert known(newest(rolled_back, (7, None))) == known(newest(rolled_back))
