"""Dead-letter tables: every offset is in the topic's table or here, exactly once, across a crash between the two commits.

A round commits its dead letters first, then the table's rows. After a crash between the two, this table is ahead of the other; the offsets
it holds there are read back and left out of both tables when the range is landed again.

Letters do not say which topic they are of, and a re-created topic has the offsets of the one before. Their times do: they begin after
all of the topic before (`moment`), and every commit carries where that is (`Landed.letters`).

Two writers: a dead-letter commit is fenced by this table's own epoch, which a new writer claims with an empty commit before it reads what
this table holds. A table that does not exist cannot be claimed, so its first writer announces it with an empty commit to the topic's
table, after creating it and before writing to it: a newer writer either refuses that announcement or sees it.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import structlog

from firn.model import names
from firn.model.errors import ConflictError, FencedError
from firn.model.jobs import IngestJob
from firn.model.progress import Offsets, decode_offsets
from firn.tables import rows, table_properties
from firn_spark.tables.commits import INGEST, Committer, Landed, read_landed
from firn_spark.tables.java_errors import JAVA_ERRORS, translate
from firn_spark.tables.java_tables import Tables, quoted

log = structlog.get_logger()


def load(tables: Tables, job: IngestJob) -> Any | None:
    """The topic's dead-letter table; None where it never had a dead letter. Raises ConflictError where a table of that name is not Firn's."""
    found = tables.load(job.table.catalog, job.table.namespace, names.dead_letters(job.table.name))
    if found is not None and found.properties().get(names.TABLE_OWNER) is None:
        raise ConflictError(
            f"table {job.table.identifier}{names.DEAD_LETTER_SUFFIX} has the name of the topic's dead letters, and Firn did not create it; "
            "rename it, or give the topic's table another name"
        )
    return found


def create(tables: Tables, job: IngestJob) -> Any:
    """Creates the topic's dead-letter table (always of format 2), or finds the one that somebody else just made."""
    properties = table_properties.of_dead_letters(job.table.properties)
    target = job.table.model_copy(update={"format_version": 2, "properties": properties})
    return tables.create(
        target,
        names.dead_letters(job.table.name),
        rows.dead_letter_columns(),
        (rows.DEAD_LETTER_PARTITION,),
        (),
        job.uid,
    )


def count(table: Any) -> int:
    """Dead letters in the table, as its newest snapshot says."""
    snapshot = table.currentSnapshot()
    return int(dict(snapshot.summary()).get("total-records", 0)) if snapshot is not None else 0


def now() -> int:
    """Microseconds since 1970."""
    return int(time.time() * 1_000_000)


def claim(committer: Committer, table: Any, topic_id: str, epoch: int) -> Landed:
    """Takes the table's epoch for this topic with an empty commit, so that no older writer can add to it from here on, and says where the
    topic's letters begin. Raises as `Committer.commit`."""
    base = read_landed(table)
    same = base if base is not None and base.topic_id == topic_id else None
    if same is not None and same.epoch == epoch and same.writer == committer.writer:
        return same
    if base is not None and base.epoch > epoch:
        raise FencedError(
            f"table {table.name()}: epoch {base.epoch} is newer than ours, {epoch}; another driver serves this topic"
        )
    offsets = same.offsets if same is not None else {}
    return committer.commit(table, (), base, topic_id, epoch, offsets, letters(base, topic_id, now()))


def letters(base: Landed | None, topic_id: str, now: int) -> tuple[int, int]:
    """`Landed.letters` of a table that is claimed for ``topic_id`` on top of ``base``; ``now`` in microseconds."""
    if base is None:
        return now, 0
    since, until = base.letters
    return (since if base.topic_id == topic_id else max(now, until + 1)), until


def moment(dead: Iterable[Landed | None], now: int) -> int:
    """The ``ingested_at`` of a round over topics with these (claimed) dead letters: ``now``, unless a clock that was ahead has written some."""
    return max([now, *(one.letters[0] for one in dead if one is not None)])


def commit(
    committer: Committer,
    table: Any,
    descriptors: Sequence[str],
    base: Landed,
    epoch: int,
    offsets: Offsets,
    ingested_at: int,
) -> Landed:
    """Adds letters of the topic that ``base`` claimed the table for; ``ingested_at`` is their `moment`. Raises as `Committer.commit`."""
    reached = {part: max(offset, base.offsets.get(part, 0)) for part, offset in offsets.items()}
    since, until = base.letters
    return committer.commit(table, descriptors, base, base.topic_id, epoch, reached, (since, max(until, ingested_at)))


def ahead(dead: Landed | None, topic_id: str, offsets: Offsets) -> Offsets:
    """Partition -> offset up to which dead letters landed beyond ``offsets``, those of the topic's table. Empty where nothing was lost."""
    if dead is None or dead.topic_id != topic_id:
        return {}
    return {part: end for part, end in dead.offsets.items() if end > offsets.get(part, 0)}


def offsets_between(
    spark: Any, job: IngestJob, table: Any, dead: Landed, landed: Offsets, beyond: Offsets
) -> Mapping[int, frozenset[int]]:
    """The offsets of ``dead``'s letters in [``landed``, ``beyond``) by partition; ``table`` is the one that `load` finds for ``job``.
    Raises UnavailableError where it cannot be read."""
    try:
        return _offsets_between(spark, job, table, dead, landed, beyond)
    except JAVA_ERRORS as error:
        raise translate(error, f"table {table.name()}") from error


def _offsets_between(
    spark: Any, job: IngestJob, table: Any, dead: Landed, landed: Offsets, beyond: Offsets
) -> Mapping[int, frozenset[int]]:
    # Only what was added by commits that the topic's table does not know of, as far as the history goes: that is little to read.
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
    found: dict[int, set[int]] = {}
    name = quoted(job.table.catalog, job.table.namespace, names.dead_letters(job.table.name))
    for row in reader.load(name).where(condition).selectExpr("_kafka.partition", "_kafka.offset").collect():
        found.setdefault(row[0], set()).add(row[1])
    return {part: frozenset(offsets) for part, offsets in found.items()}
