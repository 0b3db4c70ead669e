"""Credentials for the files of a table that a REST catalog hands out with the table, and that expire.

A catalog sends them as properties of the table's FileIO, or as ``storage-credentials``, each for the locations below a
prefix (LoadTableResult in Iceberg's REST specification). Only Java's FileIO uses the latter. The driver's Python
workers need them as properties.
"""

import functools
from collections.abc import Mapping
from typing import Any

from firn_spark.jvm import texts

RENEW_MS = 600_000
"""Remaining time from which credentials are renewed before a round. Those with a shorter life are renewed for each round."""
_EXPIRES = ("s3.session-token-expires-at-ms", "gcs.oauth2.token-expires-at", "adls.sas-token-expires-at-ms.")


def implements(jvm: Any, io: Any, interface: str) -> bool:
    """Return True if a FileIO implements an interface of ``org.apache.iceberg.io``."""
    return bool(_loaded(jvm, f"org.apache.iceberg.io.{interface}").isInstance(io))


@functools.lru_cache(maxsize=16)
def _loaded(jvm: Any, name: str) -> Any:
    """Return a class. Only the session's class loader may know Iceberg's classes."""
    return jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass(name)


def io_properties(jvm: Any, io: Any, location: str) -> dict[str, str]:
    """Return the properties of a FileIO with its credentials for ``location``, those of the longest prefix."""
    properties = texts(io.properties())
    if not implements(jvm, io, "SupportsStorageCredentials"):
        return properties
    credentials = io.credentials()
    every = [credentials[place] for place in range(len(credentials))]
    fitting = [each for each in every if location.startswith(str(each.prefix()))]
    best = max(fitting, key=lambda each: len(str(each.prefix())), default=None)
    return properties if best is None else {**properties, **texts(best.config())}


def expires_ms(properties: Mapping[str, str]) -> int | None:
    """Return the time at which the first credential expires, in milliseconds since 1970; None if none does."""
    times = [int(value) for key, value in properties.items() if key.startswith(_EXPIRES) and value.isdigit()]
    return min(times, default=None)


def needs_renewal(properties: Mapping[str, str], now_ms: int) -> bool:
    """Return True if a credential expires soon."""
    expires = expires_ms(properties)
    return expires is not None and expires - now_ms < RENEW_MS
