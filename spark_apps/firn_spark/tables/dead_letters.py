"""Dead-letter tables: every offset is in the topic's table or in its dead letters, exactly once, even after a crash
between the two commits.

A round commits its dead letters first, then the table's rows. After a crash in between, the dead-letter table is
ahead. The records that it holds beyond the table are read back, and left out of both tables when the range lands
again. Only the same record is left out: the log may have given the offset to another record after an unclean
election. That record lands, and the earlier dead letter stays.

A letter does not record its topic id, and a re-created topic has the offsets of the earlier topic again. Their times
differ: letters of a topic begin after all letters of the earlier one (`moment`), and every commit carries that time
(`Landed.letters`).

This table's own epoch fences dead-letter commits. A new writer claims it with an empty commit before it reads the
table. A table that does not exist cannot be claimed. So its first writer creates it, announces it with an empty
commit to the topic's table, and only then writes to it. A newer writer either refuses that announcement or sees it.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import structlog

from firn.model import names
from firn.model.errors import ConflictError, FencedError
from firn.model.jobs import IngestJob
from firn.model.progress import Offsets, decode_offsets
from firn.tables import rows, table_properties
from firn_spark.tables.commits import INGEST, Committer, Extras, Landed, read_landed
from firn_spark.tables.java_errors import JAVA_ERRORS, causes, translate
from firn_spark.tables.java_tables import Tables, quoted
from firn_spark.worker.fetched import IDENTITY_BYTES, Identities

log = structlog.get_logger()

IDENTITY = (
    "unhex(substring(sha2(concat(encode(concat(_kafka.timestamp_ms, ':', coalesce(string(length(key)), ''), ':', "
    "coalesce(string(length(value)), ''), ':'), 'UTF-8'), coalesce(key, X''), coalesce(value, X'')), 256), "
    f"1, {2 * IDENTITY_BYTES}))"
)
"""`Fetched.identity` of a dead letter's record, in SQL."""


def load(tables: Tables, job: IngestJob) -> Any | None:
    """Return the topic's dead-letter table; None if it never had a dead letter.

    Raises ConflictError if Firn did not create the table of that name.
    """
    table = tables.load(job.table.catalog, job.table.namespace, job.table.dead_letters, rare=True)
    if table is not None and table.properties().get(names.TABLE_OWNER) is None:
        raise ConflictError(
            f"table {job.table.dead_letters_identifier} has the name of the topic's dead letters, and Firn did not create it; "
            "rename it, or create this IcebergTopic again with another table.name"
        )
    return table


def create(tables: Tables, job: IngestJob) -> Any:
    """Create the topic's dead-letter table (always format 2), or return the one that another writer just created."""
    properties = table_properties.dead_letter_properties(job.table.properties)
    own = {
        "format_version": 2,
        "properties": properties,
        "partition_by": None,
        "sort_by": None,
        "shared_by": "",
        "history": names.COPY,
    }
    target = job.table.model_copy(update=own)
    return tables.create(
        target,
        job.table.dead_letters,
        rows.dead_letter_columns(),
        (rows.DEAD_LETTER_PARTITION,),
        (),
        replace(tables.claimant(job), shared=False),
    )


def count(table: Any) -> int:
    """Return the number of dead letters that the newest snapshot's summary states."""
    snapshot = table.currentSnapshot()
    return int(snapshot.summary().get("total-records") or 0) if snapshot is not None else 0


def now() -> int:
    """Return the current time in microseconds since 1970."""
    return int(time.time() * 1_000_000)


def claim(committer: Committer, table: Any, topic_id: str, epoch: int, commit_again: bool = False) -> Landed:
    """Claim the table's epoch for this topic with an empty commit.

    No older writer can add letters from here on, and the commit records where the topic's letters begin. ``commit_again``
    also commits if this writer has the claim already: an earlier request of its own, whose answer is missing, then fails. Raises
    the errors of `Committer.commit`.
    """
    base = read_landed(table)
    same = base if base is not None and base.topic_id == topic_id else None
    if same is not None and same.epoch == epoch and same.writer == committer.writer and not commit_again:
        return same
    if base is not None and base.epoch > epoch:
        raise FencedError(
            f"table {table.name()}: epoch {base.epoch} of another driver is newer than epoch {epoch} of this driver; "
            "make sure that only one installation of Firn serves this topic"
        )
    offsets = same.offsets if same is not None else {}
    return committer.commit(table, (), base, topic_id, epoch, offsets, Extras(letters(base, topic_id, now())))


def letters(base: Landed | None, topic_id: str, now: int) -> tuple[int, int]:
    """Return `Landed.letters` for a table that is claimed for ``topic_id`` on top of ``base``; ``now`` in
    microseconds."""
    if base is None:
        return now, 0
    since, until = base.letters
    return (since if base.topic_id == topic_id else max(now, until + 1)), until


def moment(dead: Iterable[Landed | None], now: int) -> int:
    """Return the ``ingested_at`` of a round over topics with these claimed dead letters.

    That is ``now``, unless earlier letters were written under a clock that was ahead.
    """
    return max([now, *(landed.letters[0] for landed in dead if landed is not None)])


def commit(
    committer: Committer,
    table: Any,
    descriptors: Sequence[str],
    base: Landed,
    epoch: int,
    offsets: Offsets,
    ingested_at: int,
    keep_ms: int | None = None,
) -> Landed:
    """Add letters of the topic that ``base`` claimed the table for; ``ingested_at`` is their `moment`, and ``keep_ms``
    as for `Committer.commit`.

    Raises the errors of `Committer.commit`.
    """
    reached = {part: max(offset, base.offsets.get(part, 0)) for part, offset in offsets.items()}
    since, until = base.letters
    times = (since, max(until, ingested_at))
    return committer.commit(table, descriptors, base, base.topic_id, epoch, reached, Extras(times, keep_ms))


def ahead(dead: Landed | None, topic_id: str, offsets: Offsets) -> Offsets:
    """Return partition -> offset up to which dead letters landed beyond ``offsets``, the offsets of the topic's
    table.

    The result is empty if no crash came between the two commits.
    """
    if dead is None or dead.topic_id != topic_id:
        return {}
    return {part: end for part, end in dead.offsets.items() if end > offsets.get(part, 0)}


def records_between(
    spark: Any, job: IngestJob, table: Any, dead: Landed, landed: Offsets, beyond: Offsets
) -> Identities:
    """Return the records of ``dead``'s letters in [``landed``, ``beyond``) by partition; ``table`` is what `load`
    returns for ``job``.

    Raises UnavailableError if the table cannot be read.
    """
    try:
        return _records_between(spark, job, table, dead, landed, beyond)
    except JAVA_ERRORS as error:
        if any(cause.token_expired for cause in causes(error)):
            # The session's catalog keeps a token that it could not renew. The next query opens the catalog again.
            spark._jsparkSession.sessionState().catalogManager().reset()
        raise translate(error, f"table {table.name()}") from error


def _records_between(
    spark: Any, job: IngestJob, table: Any, dead: Landed, landed: Offsets, beyond: Offsets
) -> Identities:
    # Read only the few commits that the topic's table does not know of, as far as the history goes.
    snapshot = table.currentSnapshot()
    last = snapshot.snapshotId() if snapshot is not None else None
    first: int | None = None
    while snapshot is not None:
        summary = dict(snapshot.summary())
        if summary.get(names.SUMMARY_KIND) == INGEST:
            mine = summary.get(names.SUMMARY_TOPIC_ID) == dead.topic_id
            ends = decode_offsets(summary[names.SUMMARY_OFFSETS]) if mine else {}
            if not any(ends.get(part, 0) > landed.get(part, 0) for part in beyond):
                first = snapshot.snapshotId()
                break
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)
    if last is None:
        return {}
    reader = spark.read.format("iceberg")
    if first is not None and first != last:
        reader = reader.option("start-snapshot-id", str(first)).option("end-snapshot-id", str(last))
    ranges = " or ".join(
        f"(_kafka.partition = {part} and _kafka.offset >= {landed.get(part, 0)} and _kafka.offset < {end})"
        for part, end in beyond.items()
    )
    condition = f"ingested_at >= timestamp_micros({dead.letters[0]}) and ({ranges})"
    excluded: dict[int, dict[int, tuple[bytes, ...]]] = {}
    name = quoted(job.table.catalog, job.table.namespace, job.table.dead_letters)
    columns = ("_kafka.partition", "_kafka.offset", IDENTITY)
    for part, offset, identity in reader.load(name).where(condition).selectExpr(*columns).collect():
        known = excluded.setdefault(part, {})
        known[offset] = (*known.get(offset, ()), bytes(identity))
    return excluded
