"""SQLite connections in two worker threads: one writes, the other one reads, so that commits wait for no reads.

Each call of a store is one transaction, durable when it returns (WAL mode, synchronous=FULL).
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from firn.model.clock import Clock
from firn.model.errors import InvalidSpecError, UnavailableError
from firn_broker.metadata_store.schema_version import mismatch, too_new
from firn_broker.metadata_store.sqlite.migrations import COMPATIBLE_FROM, MIGRATIONS

T = TypeVar("T")


class Inline(Executor):
    """Runs work at once in the caller's thread.

    Simulations use it: without a second thread, a seed always produces the same history.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        """Run ``fn`` and return a future that is done."""
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except Exception as error:
            done.set_exception(error)
        return done


class Database:
    """The connections that the stores of one process share."""

    def __init__(self, path: str, clock: Clock, executor: Executor | None = None, *, migrates: bool = True) -> None:
        self._path = path
        self._clock = clock
        self._writer = executor or ThreadPoolExecutor(1, thread_name_prefix="coordinator")
        self._reader = executor or ThreadPoolExecutor(1, thread_name_prefix="coordinator-read")
        self._migrates = migrates
        self._own = threading.local()

    async def start(self, new_cluster_id: str) -> None:
        """Open the file and migrate its schema. A new database gets ``new_cluster_id``."""
        await self.run(lambda: self._migrate(new_cluster_id), write=self._migrates)

    @property
    def connection(self) -> sqlite3.Connection:
        """Return the connection of the calling worker thread."""
        if not hasattr(self._own, "connection"):
            self._own.connection = self._connect()
        connection: sqlite3.Connection = self._own.connection
        return connection

    def _connect(self) -> sqlite3.Connection:
        if not self._migrates and not Path(self._path).is_file():
            raise InvalidSpecError(mismatch(self._path, 0, len(MIGRATIONS)))
        connection = sqlite3.connect(self._path, isolation_level=None, cached_statements=256)
        if self._migrates:
            connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA busy_timeout=5000")
        return connection

    def _migrate(self, new_cluster_id: str) -> None:
        (version,) = self.row("PRAGMA user_version")
        if not self._migrates:
            if version != len(MIGRATIONS):
                raise InvalidSpecError(mismatch(self._path, version, len(MIGRATIONS)))
            return
        for number, script in enumerate(MIGRATIONS[version:], version + 1):
            for statement in script.split(";"):
                self.connection.execute(statement)
            self.connection.execute(f"PRAGMA user_version={number}")
        if not self.row("SELECT 1 FROM cluster"):
            self.connection.execute("INSERT INTO cluster(id) VALUES (?)", (new_cluster_id,))
        if version < len(MIGRATIONS):
            # Table ranges may have raised it.
            self.connection.execute("UPDATE cluster SET compatible_from=max(compatible_from, ?)", (COMPATIBLE_FROM,))
        elif version > len(MIGRATIONS):
            (oldest,) = self.row("SELECT compatible_from FROM cluster")
            if oldest > len(MIGRATIONS):
                raise InvalidSpecError(too_new(self._path, version, oldest, len(MIGRATIONS)))

    def _disconnect(self) -> None:
        if hasattr(self._own, "connection"):
            self._own.connection.close()

    async def close(self) -> None:
        """Close the file and end the worker threads."""
        # The writer is the last one to close, because it then empties the write-ahead log.
        for worker in (self._reader, self._writer):
            await asyncio.wrap_future(worker.submit(self._disconnect))
            worker.shutdown()

    async def run(self, work: Callable[[], T], *, write: bool = True) -> T:
        """Run ``work`` in a worker thread, inside one transaction. Raises UnavailableError when SQLite fails."""

        def transaction() -> T:
            try:
                self.connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
                try:
                    result = work()
                except BaseException:
                    self.connection.execute("ROLLBACK")
                    raise
                self.connection.execute("COMMIT")
            except sqlite3.OperationalError as error:
                # Full disk, locked file, I/O error. A failed COMMIT has to be rolled back before the next transaction
                # begins.
                if self.connection.in_transaction:
                    self.connection.execute("ROLLBACK")
                raise UnavailableError(f"coordinator: {error}") from error
            return result

        worker = self._writer if write else self._reader
        if isinstance(worker, Inline):
            await asyncio.sleep(0)
            return transaction()
        return await asyncio.get_running_loop().run_in_executor(worker, transaction)

    # Parts of a transaction

    def now_ms(self) -> int:
        """Return the time of the store's clock."""
        return int(self._clock.now().timestamp() * 1000)

    def row(self, sql: str, *values: Any) -> Any:
        """Return the statement's first row, or None."""
        return self.connection.execute(sql, values).fetchone()

    def raise_counter(self, name: str, step: int = 1) -> int:
        """Raise a counter and return its value before."""
        row = self.row("SELECT value FROM counter WHERE name=?", name)
        value = int(row[0]) if row else 0
        self.connection.execute(
            "INSERT INTO counter VALUES (?1, ?2) ON CONFLICT(name) DO UPDATE SET value=?2", (name, value + step)
        )
        return value
