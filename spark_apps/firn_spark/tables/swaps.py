"""Changes of a table's metadata, which count only after they were read back.

Iceberg builds the new metadata but does not commit it. Its own retries cannot tell a refusal from a commit whose
reply was lost, and then delete manifests of a snapshot that the table has. This module asks the catalog to replace
exactly the metadata that it read. It trusts no exception: it reads the table back, and the table decides. A request
that is still under way cannot land after the next one, because both replace the same metadata.

A SQL catalog replaces exactly that metadata. A REST catalog receives the changes and their requirements (Iceberg's
``UpdateRequirements``). A snapshot requires that the branch has not moved. Properties and expired snapshots only
require the same table: such a request may still land after other commits. If another writer points a reference to an
expired snapshot in that moment, the reference is removed with it.
"""

import json
import random
import time
from collections.abc import Mapping
from typing import Any, Protocol

import structlog

from firn.model.errors import CommitConflictError, CommitUnknownError, FirnError, NotReadyError
from firn_spark.failpoints import Failpoints
from firn_spark.tables.branches.landing import head_of
from firn_spark.tables.java_errors import JAVA_ERRORS, java_class, translate

log = structlog.get_logger()

ATTEMPTS = 12
"""Attempts of a change while other commits come first."""
PATIENT = 60
"""Attempts for changes that are expensive to prepare and may wait."""
SKEW_MS = 30_000
"""How far metadata may be ahead of this process's clock. Iceberg rejects changes that are over a minute older than the
metadata or its newest snapshot (constructor of TableMetadata)."""


class OutdatedError(CommitConflictError):
    """The change no longer fits the table. Another attempt is useless."""


class Change(Protocol):
    """A change of a table."""

    def done(self, table: Any) -> bool:
        """Return True if the metadata that ``table`` has just read holds the change. Raises FirnError if it must not
        be made."""
        ...

    def build(self, table: Any) -> tuple[Any, Any]:
        """Return the ``TableMetadata`` to replace and its replacement, built on what `done` read.

        Raises CommitConflictError if the table has moved since, and Java's exceptions if Iceberg refuses the change.
        """
        ...


def builder_on(jvm: Any, base: Any, now_ms: int) -> Any:
    """Return a ``TableMetadata.Builder`` for a change of ``base``. Its time does not go back.

    If ``base`` is ahead of ``now_ms``, because another process with a wrong clock has changed the table, the change
    takes the time of ``base``. Give snapshots their time with `in_order` or `with_summary`.
    """
    builder = jvm.org.apache.iceberg.TableMetadata.buildFrom(base)
    ahead = int(base.lastUpdatedMillis()) - now_ms
    if ahead <= SKEW_MS:
        return builder
    log.warning(
        "a clock is wrong: the table is ahead of this clock, so the change takes the time of the table",
        table=str(base.location()),
        seconds=ahead // 1000,
    )
    # The first call takes the time of ``base``, and drops the entry of its metadata log, which the second call restores.
    return builder.withMetadataLocation(None).setPreviousFileLocation(base.metadataFileLocation())


def in_order(jvm: Any, base: Any, snapshot: Any) -> Any:
    """Return ``snapshot`` (Java) for a commit on top of ``base``, with a time that is not before the newest snapshot's."""
    newest = head_of(base)
    if newest is None or snapshot.timestampMillis() >= newest.timestampMillis():
        return snapshot
    return with_summary(jvm, snapshot, {}, newest.timestampMillis())


def with_summary(jvm: Any, snapshot: Any, values: Mapping[str, str], not_before_ms: int) -> Any:
    """Return ``snapshot`` (Java) with ``values`` in its summary, and with a time of at least ``not_before_ms``."""
    parser = jvm.org.apache.iceberg.SnapshotParser
    fields = json.loads(parser.toJson(snapshot))
    fields["summary"] |= values
    fields["timestamp-ms"] = max(fields["timestamp-ms"], not_before_ms)
    return parser.fromJson(json.dumps(fields))


def swap(table: Any, change: Change, failpoints: Failpoints, attempts: int = ATTEMPTS) -> None:
    """Make the change. Raises

    - CommitUnknownError if the outcome could not be read back: read the table before anything else;
    - CommitConflictError if the change was certainly refused, in every attempt or because it no longer fits the
      table;
    - NotReadyError if the table no longer exists;
    - the errors of `translate` if a request failed and has not happened so far, and those of ``change.done``.
    """
    name = str(table.name())
    failure: Exception | None = None
    for attempt in range(attempts + 1):
        read_back(table, failure)
        try:
            done = change.done(table)
        except FirnError as error:
            raise error from failure
        if done:
            if failure is not None:
                log.warning(
                    "the catalog reported a failure, but the table has the commit", table=name, error=short(failure)
                )
            failpoints.reach("after-readback")
            return
        if attempt == attempts or (attempt and not refused(failure)):
            break
        if attempt:
            time.sleep(random.uniform(0, 0.05 * 2 ** min(attempt, 5)))
        failure = _attempt(table, change, failpoints)
    if failure is None:
        raise CommitConflictError(
            f"table {name}: the commit is no longer in the table's history; another engine may have rolled it back"
        )
    if isinstance(failure, OutdatedError):
        raise failure
    if refused(failure):
        raise CommitConflictError(
            f"table {name}: {attempts} attempts to commit failed, because other commits changed the table; the next attempt follows"
        ) from failure
    if isinstance(failure, JAVA_ERRORS):
        if invalid(failure):
            raise CommitConflictError(f"table {name}: {short(failure)}") from failure
        raise translate(failure, f"table {name}, commit") from failure
    raise failure


def _attempt(table: Any, change: Change, failpoints: Failpoints) -> Exception | None:
    """Send one request to the catalog. Return its exception, if any."""
    try:
        base, updated = change.build(table)
        failpoints.reach("in-commit")
        table.operations().commit(base, updated)
        failpoints.reach("after-commit")
    except Exception as error:
        return error
    return None


def read_back(table: Any, failure: Exception | None = None) -> None:
    """Refresh the table. Raises CommitUnknownError if it cannot be read, NotReadyError if it no longer exists."""
    try:
        table.refresh()
    except JAVA_ERRORS as error:
        if java_class(error).endswith("NoSuchTableException"):
            raise NotReadyError(f"table {table.name()}: it no longer exists") from failure or error
        raise CommitUnknownError(
            f"table {table.name()}: the commit's outcome cannot be read back: {short(error)}",
            reason="CatalogUnreachable",
        ) from failure or error


def refused(error: Exception | None) -> bool:
    """Return True if the catalog refused because the metadata has moved. Another attempt may succeed."""
    if isinstance(error, CommitConflictError):
        return not isinstance(error, OutdatedError)
    return isinstance(error, JAVA_ERRORS) and java_class(error).endswith("CommitFailedException")


def invalid(error: BaseException | None) -> bool:
    """Return True if Iceberg refused to build the change, because the table no longer has the files that it needs."""
    return isinstance(error, JAVA_ERRORS) and java_class(error).endswith("ValidationException")


def certain(error: FirnError) -> bool:
    """Return True if an error of `swap` proves that the change did not happen and will not: it was never requested,
    or only refused."""
    cause = error.__cause__
    return not isinstance(error, CommitUnknownError) and (
        cause is None or (isinstance(cause, Exception) and refused(cause))
    )


def short(error: Exception | None) -> str:
    """Return an exception as one line, with secrets masked."""
    if isinstance(error, JAVA_ERRORS):
        return str(translate(error, java_class(error).rpartition(".")[2] or "py4j"))[:400]
    return f"{type(error).__name__}: {error}"[:400]
