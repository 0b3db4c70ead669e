"""The errors of Firn, by who has to act.

::

    FirnError
    ├── InvalidSpecError       the author of the resource: a condition, no retry before a new spec
    ├── ConflictError          the author: another resource owns the topic or table
    ├── AccessDeniedError      the administrator: credentials or grants are wrong
    ├── NotReadyError          no action: a dependency is starting; short wait
    ├── UnavailableError       no action: a dependency is down or slow; back off
    ├── CommitConflictError    the caller: a race for the table was lost; plan again
    ├── CommitUnknownError     the caller: the outcome is unknown; read back before anything else
    ├── FencedError            the process: a newer writer exists; stop
    └── CorruptDataError       the administrator: the data that was read cannot be true

Adapters raise these, chained to the library's own exception. A class is added only if a caller acts differently on it.
Each error has the `reason` of the condition that reports it (``firn.model.conditions.Reason``).
"""

from enum import IntEnum


class FirnError(Exception):
    """Base of all. ``reason`` is the condition reason it leads to; the message names object, cause and way out."""

    default_reason = "NotReady"

    def __init__(self, message: str, *, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or self.default_reason


class InvalidSpecError(FirnError):
    """The manifest asks for something impossible; waits for a new spec."""

    default_reason = "InvalidSpec"


class ConflictError(FirnError):
    """Another resource, or a thing outside, already owns the name."""

    default_reason = "ResourceConflict"


class AccessDeniedError(FirnError):
    """The dependency answered that these credentials may not do this."""

    default_reason = "AccessDenied"


class NotReadyError(FirnError):
    """A dependency is on its way."""

    default_reason = "Pending"


class UnavailableError(FirnError):
    """A dependency does not answer, or answers that it cannot now."""

    default_reason = "NotReady"


class CommitConflictError(FirnError):
    """The table moved under us: plan again from its new state."""


class CommitUnknownError(FirnError):
    """A commit may or may not have happened: read the table back before doing anything else."""


class FencedError(FirnError):
    """A writer with a newer epoch exists; this one must stop."""

    default_reason = "Fenced"


class CorruptDataError(FirnError):
    """Data that was read contradicts everything that can have been written."""


def is_denial(sqlstate: str) -> bool:
    """Return True if a SQLSTATE means invalid authorization (class 28) or a missing privilege (42501)."""
    return sqlstate.startswith("28") or sqlstate == "42501"


class ExitCode(IntEnum):
    """Process exit codes of the Spark applications (part of the public surface)."""

    DONE = 0
    BUG = 1
    CONFIGURATION = 2
    FENCED = 3
    CORRUPT = 4
    TEMPORARY = 75
    OUT_OF_MEMORY = 76
    """The heap of Spark's JVM was exhausted, and that ended."""
