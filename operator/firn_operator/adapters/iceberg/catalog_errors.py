"""Exceptions of PyIceberg, SQLAlchemy and object stores, translated into the errors of `firn.model.errors`."""

import re

import obstore.exceptions
import requests
from pyiceberg import exceptions as iceberg_errors
from sqlalchemy import exc as sql_errors

from firn import trust
from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, FirnError, UnavailableError, is_denial

_UNREACHABLE = Reason.CATALOG_UNREACHABLE
_REFUSED_CONNECTION = re.compile(
    'password authentication failed|permission denied|no pg_hba.conf entry|no password supplied|role ".*" does not exist'
    "|is not permitted to log in"
)
"""PostgreSQL's messages for rejected credentials. Its client has no SQLSTATE for a failed connection."""
_DENIED = (
    obstore.exceptions.PermissionDeniedError,
    obstore.exceptions.UnauthenticatedError,
    iceberg_errors.ForbiddenError,
    iceberg_errors.UnauthorizedError,
    iceberg_errors.AuthorizationExpiredError,
    iceberg_errors.OAuthError,
    PermissionError,
)
_UNAVAILABLE = (
    obstore.exceptions.BaseError,
    iceberg_errors.RESTError,
    iceberg_errors.ValidationException,
    requests.RequestException,
    sql_errors.SQLAlchemyError,
    OSError,
)


_STORAGE_NOISE = re.compile(
    r" in [\d.]+[nµm]?s|,? after \d+ retries, max_retries: \d+, retry_timeout: \S+|/\d+-[0-9a-f-]{36}[\w.-]*"
)
"""Parts of obstore's messages that differ from try to try: object names and times."""


def translated(subject: str, error: Exception) -> FirnError | None:
    """Translate a library's exception into a FirnError. Returns None for an exception that means a bug in Firn."""
    if isinstance(error, sql_errors.DBAPIError):
        text = str(error.orig).strip().splitlines()[0]
        state: str | None = getattr(error.orig, "sqlstate", None)
        denied = is_denial(state) if state else _REFUSED_CONNECTION.search(str(error.orig)) is not None
    else:
        text = _STORAGE_NOISE.sub("", str(error).strip().split("\n", 1)[0]) or repr(error)
        denied = isinstance(error, _DENIED)
    if denied:
        return AccessDeniedError(f"{subject}: access denied: {text}; check the catalog's credentials and grants")
    if isinstance(error, _UNAVAILABLE):
        advice = trust.hint(f"{error} {error.__cause__ or ''}")
        return UnavailableError(f"{subject}: {text}{f': {advice}' if advice else ''}", reason=_UNREACHABLE)
    return None
