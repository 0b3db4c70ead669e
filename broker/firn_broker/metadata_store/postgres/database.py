"""A pool of PostgreSQL connections, the migration of the schema, and the meaning of errors."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar
from uuid import UUID, uuid4

import asyncpg
import structlog

from firn import trust
from firn.model.errors import FencedError, InvalidSpecError, UnavailableError
from firn_broker import metrics
from firn_broker.metadata_store.postgres.lanes import Lane, Lanes
from firn_broker.metadata_store.postgres.migrations import COMPATIBLE_FROM, FUNCTIONS, SCRIPTS
from firn_broker.metadata_store.schema_version import mismatch, too_new
from firn_broker.ports import WentBackError
from firn_broker.settings import PostgresSettings, secret

log = structlog.get_logger()
T = TypeVar("T")

RELEASE_SECONDS = 1.0
"""Seconds in which a connection has to become usable again after a cancelled call. Then the pool closes it."""

MIGRATION_SECONDS = 86_400.0
"""Seconds that one step of a migration may take. An index on a large table takes minutes."""

FENCED, WENT_BACK, NOT_IN_ORDER = "FN001", "FN002", "FN003"
TEMPORARY = ("08", "25", "28", "3D", "40", "42501", "53", "55", "57", "58", "XX")
"""Prefixes of the SQLSTATEs of errors that may pass: connection, a server that became read-only because another one
leads, a rotated password, a database or a right that is being restored, rollback (deadlock), resources, locks,
shutdown, I/O."""
READ_ONLY = "25006"


class NotInOrderError(Exception):
    """The batches of a commit are not in the order of a plan."""


class Database:
    """The connections that the stores of one process share."""

    def __init__(self, settings: PostgresSettings, *, migrates: bool = True, requires_durable: bool = False) -> None:
        self.settings = settings
        self._migrates = migrates
        self._requires_durable = requires_durable
        self._user = secret("coordinator.userFile", settings.user_file) if settings.user_file else settings.user
        self._password = secret("coordinator.passwordFile", settings.password_file) if settings.password_file else None
        self._pool: Any = None
        self.lanes = Lanes(settings.connections, settings.timeout_seconds)

    async def start(self) -> None:
        """Connect and migrate the schema."""
        settings = self.settings
        try:
            self._pool = await asyncpg.create_pool(
                settings.uri, connect=self._connect, user=self._user, password=self._password, min_size=2, max_size=self.lanes.connections,
                command_timeout=settings.timeout_seconds, timeout=settings.timeout_seconds,
                server_settings={"search_path": settings.schema_name, "application_name": "firn-broker", "jit": "off",
                                 # A role or database with "off" would lose acknowledged records in a crash.
                                 "synchronous_commit": "on",
                                 # For the trigger that refuses earlier programs.
                                 "firn_broker.schema": str(len(SCRIPTS))},
            )  # fmt: skip
        except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            raise UnavailableError(f"coordinator: {trust.with_hint(str(error))}") from error
        try:
            if self._requires_durable:
                await self.use(self._check_durable)
            await self.use(self._migrate if self._migrates else self._check)
        except BaseException:
            # The next attempt creates a pool of its own.
            self._pool.terminate()
            raise

    async def _connect(self, *place: Any, **options: Any) -> Any:
        """Open a connection with the present content of the certificates' files."""
        if self.settings.ca_file:
            options["ssl"] = _context(self.settings)
        return await asyncpg.connect(*place, **options)

    async def _check_durable(self, db: Any) -> None:
        """Refuse a server that loses commits in a crash, and warn of standbys that lack the newest commits."""
        for name in ("fsync", "full_page_writes"):
            if await db.fetchval(f"SHOW {name}") == "off":
                raise InvalidSpecError(
                    f"coordinator: PostgreSQL at {self.settings.uri} has {name}=off, so that it loses acknowledged records in a crash."
                    f" Set {name}=on. If its storage needs no such protection, set requireDurable to false."
                )
        standbys = await db.fetchval("SELECT count(*) FROM pg_stat_replication")
        behind = bool(standbys) and not await db.fetchval("SHOW synchronous_standby_names")
        metrics.ASYNCHRONOUS_STANDBYS.set(standbys if behind else 0)
        if behind:
            log.warning(
                "PostgreSQL has standbys, and none is synchronous: a failover may lose acknowledged records."
                " Set synchronous_standby_names.",
                standbys=standbys,
            )

    async def _migrate(self, db: Any) -> None:
        schema = self.settings.schema_name
        async with db.transaction():
            # Brokers of a fleet start at the same time: the first migrates, the others wait and find it done.
            await db.execute("SELECT pg_advisory_xact_lock(hashtext('firn_broker ' || $1))", schema)
            await db.execute("SET LOCAL lock_timeout = '5s'")
            await db.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
            await db.execute("CREATE TABLE IF NOT EXISTS schema_version(version int NOT NULL)")
            version = await db.fetchval("SELECT coalesce(max(version), 0) FROM schema_version")
            for number, script in enumerate(SCRIPTS[version:], version + 1):
                # Each broker would otherwise start a long migration again and again.
                await db.execute(script, timeout=MIGRATION_SECONDS)
                await db.execute("INSERT INTO schema_version VALUES ($1)", number)
            if version < len(SCRIPTS):
                await db.execute(FUNCTIONS)
            await db.execute("INSERT INTO cluster(id) VALUES ($1) ON CONFLICT DO NOTHING", str(uuid4()))
            if version < len(SCRIPTS):
                # Table ranges may have raised it.
                await db.execute("UPDATE cluster SET compatible_from = greatest(compatible_from, $1)", COMPATIBLE_FROM)
            elif version > len(SCRIPTS):
                oldest = await db.fetchval("SELECT compatible_from FROM cluster")
                if oldest > len(SCRIPTS):
                    raise InvalidSpecError(too_new(self._where, version, oldest, len(SCRIPTS)))

    async def _check(self, db: Any) -> None:
        schema = self.settings.schema_name
        exists = await db.fetchval("SELECT to_regclass($1) IS NOT NULL", f'"{schema}".schema_version')
        version = await db.fetchval("SELECT coalesce(max(version), 0) FROM schema_version") if exists else 0
        if version != len(SCRIPTS):
            raise InvalidSpecError(mismatch(self._where, version, len(SCRIPTS)))

    @property
    def _where(self) -> str:
        return f"schema {self.settings.schema_name!r} at {self.settings.uri}"

    async def close(self) -> None:
        """Close all connections."""
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                await self._pool.close()
        except TimeoutError:
            # Calls under way have failed by now; only a server that does not answer holds up the end.
            self._pool.terminate()

    async def expire_connections(self) -> None:
        """Replace every connection before its next use."""
        await self._pool.expire_connections()

    async def use(self, work: Callable[[Any], Awaitable[T]], lane: Lane | None = None) -> T:
        """Run ``work`` with a connection of ``lane``, by default of the others.

        Raises FencedError, and UnavailableError for an error that may pass.
        """
        async with (lane or self.lanes.others).enter():
            return await self._use(work)

    async def _use(self, work: Callable[[Any], Awaitable[T]]) -> T:
        try:
            db = await self._pool.acquire(timeout=self.settings.timeout_seconds)
            try:
                return await work(db)
            except TimeoutError:
                # The server's machine may be gone, and with it the other end of all connections.
                await self.expire_connections()
                raise
            finally:
                # The pool closes a connection that does not become usable again. A caller that has its reply is not
                # affected.
                with suppress(OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                    await self._pool.release(db, timeout=RELEASE_SECONDS)
        except asyncpg.PostgresError as error:
            state = error.sqlstate or ""
            if state == FENCED:
                raise FencedError(str(error)) from error
            if state == NOT_IN_ORDER:
                raise NotInOrderError(str(error)) from error
            if state == WENT_BACK:
                raise WentBackError(f"coordinator: {error}") from error
            if state == READ_ONLY:
                # Every connection may lead to the former primary.
                await self.expire_connections()
            if state.startswith(TEMPORARY):
                raise UnavailableError(f"coordinator: {error}") from error
            raise
        except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
            # asyncpg raises InternalClientError when the server ends a connection during its set-up.
            raise UnavailableError(f"coordinator: {type(error).__name__} {trust.with_hint(str(error))}") from error

    async def rows(self, sql: str, *values: Any, lane: Lane | None = None) -> Sequence[Any]:
        """Run one statement and return its rows."""

        async def work(db: Any) -> Sequence[Any]:
            rows: Sequence[Any] = await db.fetch(sql, *values)
            return rows

        return await self.use(work, lane)

    async def value(self, sql: str, *values: Any, lane: Lane | None = None) -> Any:
        """Run one statement and return the first column of its first row, or None."""
        rows = await self.rows(sql, *values, lane=lane)
        return rows[0][0] if rows else None


def _context(settings: PostgresSettings) -> ssl.SSLContext:
    """Return a context that checks the certificate of PostgreSQL and its name. Raises OSError for files that cannot be used."""
    try:
        context = ssl.create_default_context(cafile=settings.ca_file)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
    except OSError as error:
        files = ", ".join(file for file in (settings.ca_file, settings.cert_file, settings.key_file) if file)
        raise OSError(
            f"the certificates cannot be loaded: {error}; check the files {files}, which coordinator.tls names"
        ) from error
    return context


def plain_uuid(value: UUID) -> UUID:
    """Convert the driver's subclass of UUID, which equals ours but prints differently."""
    return UUID(int=value.int)
