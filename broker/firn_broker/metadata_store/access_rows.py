"""Rows of credentials, ACLs and quotas, as both stores keep them.

The table ``access_change`` has the newest changes: a row for each changed user, principal and entity. Its version is the
value of the counter ``access`` after the change. One transaction may make several versions, of which brokers see only the
last one.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from typing import Any

from firn_broker.access_types import (
    Access,
    AccessVersion,
    Acl,
    CredentialKey,
    Entity,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    ScramCredential,
    ScramMechanism,
)

KEPT_CHANGES = 10_000
"""Newest changes that are stored. A broker that knows an older version loads everything."""

CREDENTIAL = "name, mechanism, iterations, salt, stored_key, server_key"
ACL = "principal, host, resource_type, name, pattern, operation, permission"
QUOTA = "entity, name, value"
"""Columns of the tables."""


class Kind(IntEnum):
    """The type of a change's key."""

    USER = 0
    PRINCIPAL = 1
    ENTITY = 2


Change = tuple[Kind, str]


def entity_key(entity: Entity) -> str:
    """Write an entity as the text that identifies its rows."""
    return json.dumps(entity, separators=(",", ":"))


def quota_rows(
    changes: Mapping[Entity, Mapping[str, float | None]],
) -> tuple[list[tuple[str, str, float]], list[tuple[str, str]]]:
    """Return the rows to store, as (entity, name, value), and the keys of the rows to delete."""
    put, delete = [], []
    for entity, quotas in changes.items():
        for name, value in quotas.items():
            if value is None:
                delete.append((entity_key(entity), name))
            else:
                put.append((entity_key(entity), name, value))
    return put, delete


def changes(kind: Kind, keys: Iterable[str]) -> list[Change]:
    """Return one change for each distinct key."""
    return [(kind, key) for key in dict.fromkeys(keys)]


class Loading:
    """Collects what a store loads. A changed key without rows has an empty value."""

    def __init__(self, changed: Sequence[Change] | None = None) -> None:
        """``changed`` has the keys that have changed; None loads everything."""
        self._whole = changed is None
        keys = changed or ()
        self._credentials: dict[str, list[ScramCredential]] = {key: [] for kind, key in keys if kind == Kind.USER}
        self._acls: dict[str, list[Acl]] = {key: [] for kind, key in keys if kind == Kind.PRINCIPAL}
        self._quotas: dict[Entity, dict[str, float]] = {_entity(key): {} for kind, key in keys if kind == Kind.ENTITY}

    def add_credentials(self, rows: Iterable[Any]) -> None:
        """Add rows of (name, mechanism, iterations, salt, stored key, server key)."""
        for name, mechanism, iterations, *secrets in rows:
            key = CredentialKey(name, ScramMechanism(mechanism))
            self._credentials.setdefault(name, []).append(ScramCredential(key, iterations, *secrets))

    def add_acls(self, rows: Iterable[Any]) -> None:
        """Add rows with the fields of an `Acl`."""
        for acl in _acls(rows):
            self._acls.setdefault(acl.principal, []).append(acl)

    def add_quotas(self, rows: Iterable[Any]) -> None:
        """Add rows of (entity, name, value)."""
        for key, name, value in rows:
            self._quotas.setdefault(_entity(key), {})[name] = value

    def result(self, version: AccessVersion) -> Access:
        """Return what was loaded."""
        return Access(version, self._credentials, self._acls, self._quotas, self._whole)


def _entity(key: str) -> Entity:
    return tuple((type, name) for type, name in json.loads(key))


def _acls(rows: Iterable[Any]) -> Iterator[Acl]:
    for principal, host, type, name, pattern, operation, permission in rows:
        # Thousands of ACLs name the same principals, hosts and resources.
        yield Acl(
            sys.intern(principal), sys.intern(host), ResourceType(type), sys.intern(name), PatternType(pattern),
            Operation(operation), Permission(permission),
        )  # fmt: skip
