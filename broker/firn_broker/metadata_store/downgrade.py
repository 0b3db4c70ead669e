"""The way back to an earlier version of the schema: `firn-broker downgrade`.

Released versions insert rows without the names of columns, so they fail on tables with more columns. The way back
removes what their scripts did not make. A later upgrade runs the removed scripts again. In PostgreSQL, their statements
work with the schema as it is, unless it has table ranges.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from firn.model.errors import InvalidSpecError
from firn_broker.metadata_store.postgres import migrations as postgres
from firn_broker.metadata_store.postgres.database import MIGRATION_SECONDS, Database
from firn_broker.metadata_store.schema_version import in_tables, mismatch
from firn_broker.metadata_store.sqlite.migrations import MIGRATIONS
from firn_broker.settings import PostgresSettings

RELEASES = {"0.1.0": 4, "0.2.0": 4}
"""Versions of the schema by release."""


def downgrade(path: str, release: str) -> None:
    """Take the schema back to that of a release. Raises InvalidSpecError, and then changes nothing."""
    if not Path(path).is_file():
        raise InvalidSpecError(mismatch(path, 0, len(MIGRATIONS)))
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        _check(db, path, release)
        _restore(db, RELEASES[release])
        db.execute("COMMIT")


async def downgrade_postgres(settings: PostgresSettings, release: str) -> None:
    """Let programs of a release use the schema in PostgreSQL. Raises InvalidSpecError, and then changes nothing, and
    UnavailableError."""
    database = Database(settings, migrates=False)
    await database.start()

    async def allow(db: Any) -> None:
        async with db.transaction():
            # A rewrite that stores table ranges waits for the lock, and raises the value again.
            oldest = await db.fetchval("SELECT compatible_from FROM cluster FOR UPDATE")
            if oldest >= postgres.TABLE_RANGES and await db.fetchval(
                "SELECT 1 FROM run WHERE entry_len IS NOT NULL LIMIT 1", timeout=MIGRATION_SECONDS
            ):
                raise InvalidSpecError(in_tables(f"schema {settings.schema_name!r} at {settings.uri}", release))
            await db.execute("UPDATE cluster SET compatible_from = $1", postgres.COMPATIBLE_FROM)

    try:
        await database.use(allow)
    finally:
        await database.close()


def _check(db: sqlite3.Connection, path: str, release: str) -> None:
    """Raise InvalidSpecError unless the schema has this version, no broker is live, none is stopped, and all batches lie in
    WAL objects."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if version != len(MIGRATIONS):
        raise InvalidSpecError(mismatch(path, version, len(MIGRATIONS)))
    if db.execute("SELECT 1 FROM node WHERE expires_ms > ?", (time.time() * 1000,)).fetchone():
        raise InvalidSpecError(
            f"coordinator: a broker uses {path}. Stop it, wait for leaseSeconds, and repeat the command."
        )
    (stopped,) = db.execute("SELECT stopped FROM cluster").fetchone()
    if stopped:
        raise InvalidSpecError(
            f"coordinator: brokers are stopped: {stopped}. Version {release} would serve in spite of that. Repair the coordinator first"
            " (firn-broker fsck)."
        )
    if db.execute("SELECT 1 FROM run WHERE entry_len IS NOT NULL LIMIT 1").fetchone():
        raise InvalidSpecError(in_tables(path, release))


def _restore(db: sqlite3.Connection, version: int) -> None:
    """Remove the tables, indexes and columns that the first ``version`` scripts do not make."""
    with closing(sqlite3.connect(":memory:")) as earlier:
        for script in MIGRATIONS[:version]:
            earlier.executescript(script)
        for kind in ("index", "table"):
            kept = _names(earlier, kind)
            for name in sorted(_names(db, kind) - kept):
                db.execute(f"DROP {kind} {name}")
        for table in _names(earlier, "table"):
            columns = _columns(earlier, table)
            for column in _columns(db, table):
                if column not in columns:
                    db.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    db.execute(f"PRAGMA user_version={version}")


def _names(db: sqlite3.Connection, kind: str) -> set[str]:
    return {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type=? AND sql IS NOT NULL", (kind,))}


def _columns(db: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({table})")]
