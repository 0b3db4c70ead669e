"""Credentials, ACLs and quotas in SQLite."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from firn_broker.access_types import Access, AccessVersion, Acl, CredentialKey, Entity, ScramCredential, ScramMechanism
from firn_broker.metadata_store import access_rows
from firn_broker.metadata_store.access_rows import ACL, CREDENTIAL, QUOTA, Change, Kind, Loading, changes
from firn_broker.metadata_store.sqlite.database import Database


class _TooMany(Exception):
    """The transaction would leave more ACLs than the cluster may have."""


class SqliteAccess:
    """`AccessStore` over SQLite."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load_access(self, known: AccessVersion | None = None) -> Access | None:
        database = self._database

        def work() -> Access | None:
            row = database.row(
                "SELECT value, coalesce(mark, '') FROM counter LEFT JOIN access_change ON version=value WHERE name='access'"
            )
            version = AccessVersion(*row) if row else AccessVersion(0, "")
            if version == known:
                return None
            if known is None or not database.row("SELECT 1 FROM access_change WHERE version=? AND mark=?", *known):
                return self._load(version)
            return self._load(version, known.number)

        return await database.run(work, write=False)

    def _load(self, version: AccessVersion, since: int | None = None) -> Access:
        """Load what has changed since the version with this number; by default everything."""
        execute = self._database.connection.execute

        def rows(table: str, columns: str, key: str, kind: Kind) -> Iterable[Any]:
            if since is None:
                return execute(f"SELECT {columns} FROM {table}")
            return execute(
                f"SELECT {columns} FROM {table} WHERE {key} IN (SELECT key FROM access_change WHERE version>? AND kind=?)",
                (since, kind),
            )

        loading = Loading()
        if since is not None:
            changed = execute("SELECT DISTINCT kind, key FROM access_change WHERE version>?", (since,))
            loading = Loading([(Kind(kind), key) for kind, key in changed])
        loading.add_credentials(rows("credential", CREDENTIAL, "name", Kind.USER))
        loading.add_acls(rows("acl", ACL, "principal", Kind.PRINCIPAL))
        loading.add_quotas(rows("quota", QUOTA, "entity", Kind.ENTITY))
        return loading.result(version)

    def _note(self, changed: Sequence[Change]) -> None:
        if not changed:
            return
        before = self._database.raise_counter("access", len(changed))
        self._database.connection.executemany(
            "INSERT INTO access_change VALUES (?, ?, ?, hex(randomblob(16)))",
            [(version, kind, key) for version, (kind, key) in enumerate(changed, before + 1)],
        )
        self._database.connection.execute(
            "DELETE FROM access_change WHERE version<=?", (before + len(changed) - access_rows.KEPT_CHANGES,)
        )

    async def change_credentials(
        self, put: Sequence[ScramCredential], delete: Sequence[CredentialKey] = ()
    ) -> Sequence[CredentialKey]:
        def work() -> Sequence[CredentialKey]:
            missing = [
                key
                for key in delete
                if not self._database.row("DELETE FROM credential WHERE name=? AND mechanism=? RETURNING 1", *key)
            ]
            self._database.connection.executemany(
                f"INSERT OR REPLACE INTO credential({CREDENTIAL}) VALUES (?, ?, ?, ?, ?, ?)",
                [(*each.key, each.iterations, each.salt, each.stored_key, each.server_key) for each in put],
            )
            changed = (*delete, *(each.key for each in put))
            self._database.connection.executemany("DELETE FROM credential_use WHERE name=? AND mechanism=?", changed)
            self._note(changes(Kind.USER, [key.user for key in changed]))
            return missing

        return await self._database.run(work)

    async def note_uses(self, keys: Sequence[CredentialKey], used_ms: int) -> None:
        def work() -> None:
            self._database.connection.executemany(
                "INSERT INTO credential_use SELECT name, mechanism, ? FROM credential WHERE name=? AND mechanism=?"
                " ON CONFLICT(name, mechanism) DO UPDATE SET used_ms=max(used_ms, excluded.used_ms)",
                [(used_ms, *key) for key in keys],
            )

        await self._database.run(work)

    async def last_uses(self, users: Sequence[str]) -> Mapping[CredentialKey, int]:
        def work() -> Mapping[CredentialKey, int]:
            rows = self._database.connection.execute(
                "SELECT name, mechanism, used_ms FROM credential_use WHERE name IN (SELECT value FROM json_each(?))",
                (json.dumps(users),),
            )
            return {CredentialKey(name, ScramMechanism(mechanism)): used_ms for name, mechanism, used_ms in rows}

        return await self._database.run(work, write=False)

    async def create_acls(self, acls: Sequence[Acl], most: int) -> bool:
        def work() -> None:
            self._database.connection.executemany(
                f"INSERT OR IGNORE INTO acl({ACL}) VALUES (?, ?, ?, ?, ?, ?, ?)", acls
            )
            if self._database.row("SELECT count(*) FROM acl")[0] > most:
                raise _TooMany
            self._note(changes(Kind.PRINCIPAL, [acl.principal for acl in acls]))

        try:
            await self._database.run(work)
        except _TooMany:
            return False
        return True

    async def delete_acls(self, acls: Sequence[Acl]) -> None:
        def work() -> None:
            self._database.connection.executemany(
                "DELETE FROM acl WHERE principal=? AND host=? AND resource_type=? AND name=? AND pattern=? AND operation=? AND permission=?",
                acls,
            )
            self._note(changes(Kind.PRINCIPAL, [acl.principal for acl in acls]))

        await self._database.run(work)

    async def change_quotas(self, changed: Mapping[Entity, Mapping[str, float | None]]) -> None:
        put, delete = access_rows.quota_rows(changed)

        def work() -> None:
            self._database.connection.executemany("DELETE FROM quota WHERE entity=? AND name=?", delete)
            self._database.connection.executemany(f"INSERT OR REPLACE INTO quota({QUOTA}) VALUES (?, ?, ?)", put)
            self._note(changes(Kind.ENTITY, map(access_rows.entity_key, changed)))

        await self._database.run(work)

    async def secret(self, new: bytes) -> bytes:
        def work() -> bytes:
            self._database.connection.execute("INSERT OR IGNORE INTO access_secret VALUES (1, ?)", (new,))
            (stored,) = self._database.row("SELECT value FROM access_secret")
            return bytes(stored)

        return await self._database.run(work)
