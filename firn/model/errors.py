"""Errors by the party that has to act.

::

    FirnError
    ├── InvalidSpecError       the author of the resource: a condition, and no retry before a new spec
    ├── ConflictError          the author: another owner has the topic or table
    ├── AccessDeniedError      the administrator: credentials or grants are wrong
    ├── NotReadyError          no action: a dependency is starting; retry soon
    ├── UnavailableError       no action: a dependency is down or slow; back off
    ├── CommitConflictError    the caller: another writer committed first; plan again
    ├── CommitUnknownError     the caller: the outcome is unknown; read the table back first
    ├── FencedError            the process: a newer writer exists; stop
    └── CorruptDataError       the administrator: the data read cannot be true

Adapters raise these errors, chained to the library's own exception. Add a class only if a caller acts differently on it.
Each error has the `reason` of the condition that reports it (``firn.model.conditions.Reason``).
"""

from enum import IntEnum


class FirnError(Exception):
    """Base of all errors. ``reason`` is that of the condition; the message names object, cause and next step."""

    default_reason = "NotReady"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or self.default_reason


class InvalidSpecError(FirnError):
    """The spec cannot be followed until its author changes it."""

    default_reason = "InvalidSpec"


class ConflictError(FirnError):
    """Another resource, or another system, already uses the name."""

    default_reason = "ResourceConflict"


class AccessDeniedError(FirnError):
    """A dependency rejected the credentials or the operation."""

    default_reason = "AccessDenied"


class NotReadyError(FirnError):
    """A dependency is starting."""

    default_reason = "Pending"


def table_is_ahead(subject: str) -> str:
    """Return why a change of a table waits. It names no times, which would change the status each time."""
    return (
        f"{subject}: its newest change is ahead of the clock, because the clock of a node is wrong; the change of the table "
        "waits until the clock reaches that time; correct the clocks of the nodes"
    )


class UnavailableError(FirnError):
    """A dependency does not answer, or cannot serve the request now."""

    default_reason = "NotReady"


class CommitConflictError(FirnError):
    """Another writer committed to the table first. Plan again from its new state."""


class CommitUnknownError(FirnError):
    """The outcome of a commit is unknown. Read the table back before any other step."""


class FencedError(FirnError):
    """A writer with a newer epoch exists. This writer has to stop."""

    default_reason = "Fenced"


class CorruptDataError(FirnError):
    """Data that was read contradicts every possible write."""


def is_denial(sqlstate: str) -> bool:
    """Return True if a database's SQLSTATE rejects the credentials (class 28) or the privilege (42501)."""
    return sqlstate.startswith("28") or sqlstate == "42501"


class ExitCode(IntEnum):
    """Exit codes of all processes (part of the public interface)."""

    DONE = 0
    BUG = 1
    CONFIGURATION = 2
    CORRUPT = 4
    TEMPORARY = 75
    OUT_OF_MEMORY = 76
    """Spark's JVM ended because its heap was exhausted."""
