"""Java exceptions, translated into errors that show which party has to act."""

import re
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors.exceptions.captured import CapturedException

from firn import trust
from firn.model.conditions import Reason
from firn.model.errors import (
    AccessDeniedError,
    FirnError,
    InvalidSpecError,
    NotReadyError,
    UnavailableError,
    is_denial,
    table_is_ahead,
)
from firn.model.jobs import TableTarget
from firn_spark.credentials import without_secrets

JAVA_ERRORS = (Py4JError, CapturedException)
"""Exceptions that a Java call can raise.

PySpark turns illegal arguments, unsupported operations and query errors into exceptions of its own, even for calls
outside Spark. Those are not Py4JError.
"""


def _thrown(error: Exception) -> Any | None:
    """Return the Java exception behind one of `JAVA_ERRORS`; None if the JVM itself is gone."""
    if isinstance(error, CapturedException):
        return error._origin
    return error.java_exception if isinstance(error, Py4JJavaError) else None


def java_class(error: Exception) -> str:
    """Return the class of the Java exception behind ``error``; an empty text if the JVM itself is gone."""
    thrown = _thrown(error)
    return str(thrown.getClass().getName()) if thrown is not None else ""


@dataclass(frozen=True, slots=True)
class Cause:
    """A Java exception: its class, its message, and the SQLSTATE if a database raised it."""

    name: str
    message: str
    sqlstate: str = ""

    @property
    def denied(self) -> bool:
        """True if the exception refuses these credentials."""
        if self.sqlstate:
            return is_denial(self.sqlstate)
        signs = any(sign in self.message for sign in _DENIED_SIGNS)
        return self.token_expired or self.name.endswith(_DENIED_CLASSES) or signs

    @property
    def token_expired(self) -> bool:
        """True if a REST catalog does not accept the token (401), or says that it has expired (419)."""
        return self.name.endswith("NotAuthorizedException") or (
            self.name.endswith("RESTException") and "419" in self.message
        )

    @property
    def disconnected(self) -> bool:
        """True if there is no connection to the database (SQLSTATE class 08)."""
        return self.sqlstate.startswith("08")


def causes(error: Exception) -> list[Cause]:
    """Return the Java exception and its causes, outermost first."""
    chain: list[Cause] = []
    current = _thrown(error)
    while current is not None and len(chain) < 10:
        chain.append(Cause(str(current.getClass().getName()), str(current.getMessage() or ""), _sqlstate(current)))
        current = current.getCause()
    return chain


def _sqlstate(exception: Any) -> str:
    try:
        return str(exception.getSQLState() or "")
    except Py4JError:
        return ""  # no java.sql.SQLException


_DENIED_CLASSES = (
    "NotAuthorizedException",
    "ForbiddenException",
    "AccessDeniedException",
    "AccessControlException",
    "AuthorizationException",
    "AuthenticationException",
)
_DENIED_SIGNS = (
    "Status Code: 403",
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
)
_UNSUPPORTED = re.compile(r"(unsupported|not support|not allow|invalid|unknown).{0,40}format.?version", re.IGNORECASE)
"""Message of a catalog, or of its version of Iceberg, about a format version that it does not have."""
_AHEAD = "Invalid update timestamp"
"""Iceberg rejects a change that is over a minute older than the newest one (constructor of TableMetadata)."""


def translate_change(error: Exception, target: TableTarget, name: str = "") -> FirnError:
    """Translate one of `JAVA_ERRORS` of the creation or a change of a table: that of ``target``, or the table ``name`` beside it."""
    subject = f"table {target.catalog}.{target.namespace}.{name or target.name}"
    refused = next((cause.message for cause in causes(error) if _UNSUPPORTED.search(cause.message)), None)
    if refused is None:
        return translate(error, subject)
    return _format_refused(subject, target, without_secrets(refused)[:200])


def _format_refused(subject: str, target: TableTarget, cause: str) -> UnavailableError:
    return UnavailableError(
        f"{subject}: catalog {target.catalog} does not accept tables of format version {target.format_version}: {cause}; upgrade the"
        " catalog, or create this IcebergTopic again with spec.table.formatVersion: 2",
        reason=Reason.FORMAT_UNSUPPORTED,
    )


def translate(error: Exception, subject: str) -> FirnError:
    """Translate one of `JAVA_ERRORS` into an error that shows which party has to act. Secrets are masked."""
    chain = causes(error)
    text = (
        without_secrets("; ".join(f"{cause.name.rpartition('.')[2]}: {cause.message}" for cause in chain[:4])[:800])
        or "the JVM does not respond"
    )
    message = f"{subject}: {text}"
    if any(cause.denied for cause in chain):
        return AccessDeniedError(f"{message}; grant the driver's user access, or correct its credentials")
    if any(_AHEAD in cause.message for cause in chain):
        return NotReadyError(table_is_ahead(subject))
    if chain and chain[0].name.endswith(("ValidationException", "IllegalArgumentException")):
        return InvalidSpecError(message)
    return UnavailableError(trust.with_hint(message), reason=Reason.CATALOG_UNREACHABLE)
