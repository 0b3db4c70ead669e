"""One change of a table's metadata, made by ourselves and believed only when it has been read back.

Iceberg builds the new metadata, but does not commit it: its own retries cannot tell a refusal from a commit that did happen and was not
answered, and then delete the manifests of a snapshot that the table has. Here the catalog is asked to replace exactly the metadata that was
looked at, and no exception is believed. Whatever it says, the table is read back, and what is found there decides. A request still under
way can no longer land beside the next one, because both ask the catalog to replace the same metadata.

A SQL catalog replaces exactly that metadata. A REST catalog is told the changes and what they require (Iceberg's ``UpdateRequirements``): for a
snapshot that the branch is where it was; for properties and expired snapshots no more than that it is the same table, so such a request may
still land after others' changes, and a reference that somebody sets in that moment to an expired snapshot goes with it.
"""

import random
import time
from typing import Any, Protocol

import structlog

from firn.model.errors import CommitConflictError, CommitUnknownError, FirnError, NotReadyError
from firn_spark.failpoints import Failpoints
from firn_spark.tables.java_errors import JAVA_ERRORS, java_class, translate

log = structlog.get_logger()

ATTEMPTS = 12
"""How often a change is tried while others get in first."""
PATIENT = 60
"""The same for changes that cost much to prepare and may wait."""


class OutdatedError(CommitConflictError):
    """The change no longer fits the table, and will not: trying it again is in vain."""


class Change(Protocol):
    """What is to become of a table."""

    def done(self, table: Any) -> bool:
        """Whether the metadata that ``table`` has just read holds the change. Raises FirnError where it must not be made any more."""
        ...

    def build(self, table: Any) -> tuple[Any, Any]:
        """The ``TableMetadata`` to replace and the one to put there, on top of what `done` looked at.

        Raises CommitConflictError where the table moved since, and as Java does where Iceberg will not have it."""
        ...


def swap(table: Any, change: Change, failpoints: Failpoints, attempts: int = ATTEMPTS) -> None:
    """Makes the change. Raises

    - CommitUnknownError where the outcome could not be read back: then the next thing to do with the table is to read it;
    - CommitConflictError where it was certainly refused, as often as it was tried or because it no longer fits the table;
    - NotReadyError where the table is gone;
    - FirnError as `translate` has it where a request failed and did not happen so far, and whatever ``change.done`` raises.
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
                log.warning("commit reported a failure, but the table has it", table=name, error=short(failure))
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
        raise CommitConflictError(f"table {name}: other commits came first {attempts} times") from failure
    if isinstance(failure, JAVA_ERRORS):
        if java_class(failure).endswith("ValidationException"):
            raise CommitConflictError(f"table {name}: {short(failure)}") from failure
        raise translate(failure, f"table {name}, commit") from failure
    raise failure


def _attempt(table: Any, change: Change, failpoints: Failpoints) -> Exception | None:
    """One request to the catalog. Returns what went wrong, if anything."""
    try:
        base, updated = change.build(table)
        failpoints.reach("in-commit")
        table.operations().commit(base, updated)
        failpoints.reach("after-commit")
    except Exception as error:
        return error
    return None


def read_back(table: Any, failure: Exception | None = None) -> None:
    """Refreshes the table. Raises CommitUnknownError where it cannot be read, NotReadyError where it no longer exists."""
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
    """True where the catalog said that the metadata is no longer the one to be replaced, and another try may fare better."""
    if isinstance(error, CommitConflictError):
        return not isinstance(error, OutdatedError)
    return isinstance(error, JAVA_ERRORS) and java_class(error).endswith("CommitFailedException")


def certain(error: FirnError) -> bool:
    """Whether an error of `swap` says for certain that the change is not there and will not be: it was never asked for, or only refused."""
    cause = error.__cause__
    return not isinstance(error, CommitUnknownError) and (
        cause is None or (isinstance(cause, Exception) and refused(cause))
    )


def short(error: Exception | None) -> str:
    """An exception in a line, secrets taken out."""
    if isinstance(error, JAVA_ERRORS):
        return str(translate(error, java_class(error).rpartition(".")[2] or "py4j"))[:400]
    return f"{type(error).__name__}: {error}"[:400]
