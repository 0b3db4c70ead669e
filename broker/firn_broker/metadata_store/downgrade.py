"""The way back to an earlier version of the schema: `firn-broker downgrade`.

Released versions insert rows without the names of columns, so they fail on tables with more columns. The way back
removes what their scripts did not make. A later upgrade runs the removed scripts again.
"""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

from firn.model.errors import InvalidSpecError
from firn_broker.metadata_store.schema_version import mismatch
from firn_broker.metadata_store.sqlite.migrations import MIGRATIONS

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


def _check(db: sqlite3.Connection, path: str, release: str) -> None:
    """Raise InvalidSpecError unless the schema has this version, no broker is live, and none is stopped."""
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
