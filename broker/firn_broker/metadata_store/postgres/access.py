"""Credentials, ACLs and quotas in PostgreSQL.

Each change first raises the counter ``access``, which locks it until the change is visible. So changes do not overlap,
and a transaction that sees a version sees all earlier ones.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from firn_broker.access_types import Access, AccessVersion, Acl, CredentialKey, Entity, ScramCredential, ScramMechanism
from firn_broker.metadata_store import access_rows
from firn_broker.metadata_store.access_rows import (
    ACL,
    CREDENTIAL,
    QUOTA,
    Change,
    Kind,
    Loading,
    changes,
    entity_key,
    quota_rows,
)
from firn_broker.metadata_store.postgres.database import Database

T = TypeVar("T")

LOADED_ROWS = 5_000
"""Rows of ACLs that one step of a load reads, so that the event loop serves clients between the steps."""
ACLS = (
    "unnest($1::text[], $2::text[], $3::int[], $4::text[], $5::int[], $6::int[], $7::int[])"
    " AS it(principal, host, resource_type, name, pattern, operation, permission)"
)


class _TooMany(Exception):
    """The transaction would leave more ACLs than the cluster may have."""


class PostgresAccess:
    """`AccessStore` over PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load_access(self, known: AccessVersion | None = None) -> Access | None:
        async def work(db: Any) -> Access | None:
            async with db.transaction(isolation="repeatable_read", readonly=True):
                row = await db.fetchrow(
                    "SELECT value, coalesce(mark, '') FROM counter LEFT JOIN access_change ON version = value WHERE name = 'access'"
                )
                version = AccessVersion(*row) if row else AccessVersion(0, "")
                if version == known:
                    return None
                if known is None or not await db.fetchval(
                    "SELECT 1 FROM access_change WHERE version = $1 AND mark = $2", *known
                ):
                    return await _load(db, version)
                rows = await db.fetch("SELECT DISTINCT kind, key FROM access_change WHERE version > $1", known.number)
                return await _load(db, version, [(Kind(kind), key) for kind, key in rows])

        return await self._database.use(work)

    async def _change(self, changed: Sequence[Change], work: Callable[[Any], Awaitable[T]]) -> T:
        """Run ``work`` in a transaction that makes a new version with these changes."""

        async def transaction(db: Any) -> T:
            async with db.transaction():
                if changed:
                    before = await db.fetchval("SELECT raise_counter('access', $1)", len(changed))
                    await db.execute(
                        "INSERT INTO access_change SELECT $1 + n, kind, key, md5(random()::text || clock_timestamp()::text)"
                        " FROM unnest($2::int[], $3::text[]) WITH ORDINALITY AS it(kind, key, n)",
                        before, *_columns(changed, 2),
                    )  # fmt: skip
                    await db.execute(
                        "DELETE FROM access_change WHERE version <= $1",
                        before + len(changed) - access_rows.KEPT_CHANGES,
                    )
                return await work(db)

        return await self._database.use(transaction)

    async def change_credentials(
        self, put: Sequence[ScramCredential], delete: Sequence[CredentialKey] = ()
    ) -> Sequence[CredentialKey]:
        # One statement must not store a key twice.
        newest = {each.key: each for each in put}.values()

        async def work(db: Any) -> Sequence[CredentialKey]:
            rows = await db.fetch(
                "DELETE FROM credential USING unnest($1::text[], $2::int[]) AS it(name, mechanism)"
                " WHERE credential.name = it.name AND credential.mechanism = it.mechanism"
                " RETURNING credential.name, credential.mechanism",
                *_columns(delete, 2),
            )
            await db.execute(
                f"INSERT INTO credential({CREDENTIAL}) SELECT * FROM unnest($1::text[], $2::int[], $3::int[], $4::bytea[], $5::bytea[], $6::bytea[])"
                " ON CONFLICT (name, mechanism) DO UPDATE SET iterations = excluded.iterations, salt = excluded.salt,"
                " stored_key = excluded.stored_key, server_key = excluded.server_key",
                *_columns([(*it.key, it.iterations, it.salt, it.stored_key, it.server_key) for it in newest], 6),
            )
            await db.execute(
                "DELETE FROM credential_use USING unnest($1::text[], $2::int[]) AS it(name, mechanism)"
                " WHERE credential_use.name = it.name AND credential_use.mechanism = it.mechanism",
                *_columns(changed, 2),
            )
            deleted = {CredentialKey(name, ScramMechanism(mechanism)) for name, mechanism in rows}
            return [key for key in delete if key not in deleted]

        changed = (*delete, *(each.key for each in put))
        return await self._change(changes(Kind.USER, [key.user for key in changed]), work)

    async def note_uses(self, keys: Sequence[CredentialKey], used_ms: int) -> None:
        async def work(db: Any) -> None:
            # In one order, so that two brokers do not wait for each other.
            await db.execute(
                "INSERT INTO credential_use SELECT credential.name, credential.mechanism, $3::bigint"
                " FROM unnest($1::text[], $2::int[]) AS it(name, mechanism)"
                " JOIN credential ON credential.name = it.name AND credential.mechanism = it.mechanism ORDER BY 1, 2"
                " ON CONFLICT (name, mechanism) DO UPDATE SET used_ms = greatest(credential_use.used_ms, excluded.used_ms)",
                *_columns(list(dict.fromkeys(keys)), 2), used_ms,
            )  # fmt: skip

        await self._database.use(work)

    async def last_uses(self, users: Sequence[str]) -> Mapping[CredentialKey, int]:
        async def work(db: Any) -> Mapping[CredentialKey, int]:
            sql = "SELECT name, mechanism, used_ms FROM credential_use WHERE name = ANY($1::text[])"
            rows = await db.fetch(sql, list(users))
            return {CredentialKey(name, ScramMechanism(mechanism)): used_ms for name, mechanism, used_ms in rows}

        return await self._database.use(work)

    async def create_acls(self, acls: Sequence[Acl], most: int) -> bool:
        async def work(db: Any) -> None:
            await db.execute(f"INSERT INTO acl({ACL}) SELECT * FROM {ACLS} ON CONFLICT DO NOTHING", *_columns(acls, 7))
            if await db.fetchval("SELECT count(*) FROM acl") > most:
                raise _TooMany

        try:
            await self._change(changes(Kind.PRINCIPAL, [acl.principal for acl in acls]), work)
        except _TooMany:
            return False
        return True

    async def delete_acls(self, acls: Sequence[Acl]) -> None:
        async def work(db: Any) -> None:
            await db.execute(
                f"DELETE FROM acl USING {ACLS} WHERE acl.principal = it.principal AND acl.host = it.host"
                " AND acl.resource_type = it.resource_type AND acl.name = it.name AND acl.pattern = it.pattern"
                " AND acl.operation = it.operation AND acl.permission = it.permission",
                *_columns(acls, 7),
            )

        await self._change(changes(Kind.PRINCIPAL, [acl.principal for acl in acls]), work)

    async def change_quotas(self, changed: Mapping[Entity, Mapping[str, float | None]]) -> None:
        put, delete = quota_rows(changed)

        async def work(db: Any) -> None:
            await db.execute(
                "DELETE FROM quota USING unnest($1::text[], $2::text[]) AS it(entity, name)"
                " WHERE quota.entity = it.entity AND quota.name = it.name",
                *_columns(delete, 2),
            )
            await db.execute(
                f"INSERT INTO quota({QUOTA}) SELECT * FROM unnest($1::text[], $2::text[], $3::float8[])"
                " ON CONFLICT (entity, name) DO UPDATE SET value = excluded.value",
                *_columns(put, 3),
            )

        await self._change(changes(Kind.ENTITY, map(entity_key, changed)), work)

    async def secret(self, new: bytes) -> bytes:
        async def work(db: Any) -> bytes:
            # Two statements: one alone would not see the row that another broker inserts meanwhile.
            await db.execute("INSERT INTO access_secret VALUES (1, $1) ON CONFLICT DO NOTHING", new)
            return bytes(await db.fetchval("SELECT value FROM access_secret"))

        return await self._database.use(work)


async def _load(db: Any, version: AccessVersion, changed: Sequence[Change] | None = None) -> Access:
    """Load the rows of these keys; by default all rows."""
    loading = Loading(changed)

    def filtered(sql: str, column: str, kind: Kind) -> tuple[str, list[list[str]]]:
        if changed is None:
            return sql, []
        return f"{sql} WHERE {column} = ANY($1::text[])", [[key for each, key in changed if each is kind]]

    sql, keys = filtered(f"SELECT {CREDENTIAL} FROM credential", "name", Kind.USER)
    loading.add_credentials(await db.fetch(sql, *keys))
    sql, keys = filtered(f"SELECT {QUOTA} FROM quota", "entity", Kind.ENTITY)
    loading.add_quotas(await db.fetch(sql, *keys))
    sql, keys = filtered(f"SELECT {ACL} FROM acl", "principal", Kind.PRINCIPAL)
    cursor = await db.cursor(sql, *keys)
    while rows := await cursor.fetch(LOADED_ROWS):
        loading.add_acls(rows)
    return loading.result(version)


def _columns(rows: Iterable[Sequence[Any]], width: int) -> list[list[Any]]:
    """Transpose rows, for the arguments of ``unnest``."""
    columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
    return columns or [[] for _ in range(width)]
