"""Iceberg catalogs (port `Tables`) with PyIceberg: SQL (the same two tables as Iceberg's JdbcCatalog) and REST.

Calls block, so they run on a small pool of threads. A table without changes is cheap: one query returns the metadata
locations of many tables of a SQL catalog, the metadata is read only if its location changed, and is compared with the
spec only if more than snapshots changed.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from firn.model import names
from firn.model.jobs import CatalogConnection, RecordSchema, TableTarget
from firn.model.progress import SharedOffsets
from firn.tables.ownership import Claimant, Ownership
from firn.tables.table_properties import landing_branch
from firn_controllers.ports import Dropped, FoundTable, TableState
from firn_operator.adapters.batches import Batch
from firn_operator.adapters.iceberg.agreement import Agreement
from firn_operator.adapters.iceberg.catalogs import TableKey, places
from firn_operator.adapters.iceberg.connections import Connection
from firn_operator.adapters.iceberg.dropping import drop_owned, existing

_BATCH = 500


class CatalogTables:
    """Port `Tables` over real catalogs. Made and used on one event loop; `close` ends its threads."""

    def __init__(self, connections: Mapping[str, CatalogConnection]) -> None:
        self._connections = {name: Connection(name, connection) for name, connection in connections.items()}
        # A drop may take long, and needs the files of all snapshots.
        self._dropping = {
            name: Connection(name, connection, threads=2, snapshots="all") for name, connection in connections.items()
        }
        self._drops: dict[tuple[str, str], asyncio.Future[Dropped | None]] = {}
        """Drops of tables that run, or whose result no reconcile has seen."""
        self._places: dict[str, Batch[TableKey, str | None]] = {
            name: Batch(self._place_reader(connection), _BATCH)
            for name, connection in self._connections.items()
            if connection.settings.type == "sql"
        }

    def close(self) -> None:
        """Let the threads end after their present calls."""
        for connection in (*self._connections.values(), *self._dropping.values()):
            connection.pool.shutdown(wait=False, cancel_futures=True)

    async def ensure(self, target: TableTarget, schema: RecordSchema, claimant: Claimant) -> TableState | None:
        """Create the table or bring it into agreement with the spec."""
        connection = self._connections[target.catalog]
        request = hashlib.blake2b(
            "\0".join((target.model_dump_json(), schema.model_dump_json(), repr(claimant))).encode(), digest_size=16
        ).digest()
        key = (target.namespace, target.name)
        place: str | None = None
        if (batch := self._places.get(target.catalog)) is not None:
            place = await batch.submit(key)
            seen = connection.seen.get(key)
            if seen is not None and seen.request == request and seen.place == place:
                return seen.state
        return await connection.call(
            f"table {target.identifier}", lambda: Agreement(connection, target, schema, claimant, request).run(place)
        )

    async def found(self, target: TableTarget) -> FoundTable | None:
        """Return the owner of a table that exists, and the topic whose records it has."""
        connection = self._connections[target.catalog]
        key = (target.namespace, target.name)
        batch = self._places.get(target.catalog)
        if batch is not None and await batch.submit(key) is None:
            return None
        return await connection.call(f"table {target.identifier}", lambda: _found(connection.catalog(), key))

    async def drop(self, target: TableTarget, owner: str) -> Dropped | None:
        """Drop the table and its dead letters if ``owner`` owns them.

        A drop continues after its caller was cancelled. The next call waits for it, and begins no other.
        """
        seen = self._connections[target.catalog].seen
        key = (target.namespace, target.name)
        dead = (target.namespace, target.dead_letters)
        seen.pop(key, None)
        seen.pop(dead, None)
        connection = self._dropping[target.catalog]
        name = (target.identifier, owner)
        if name not in self._drops:
            own_references = connection.settings.has_own_references
            call = connection.call(
                f"table {target.identifier}",
                lambda: drop_owned(connection.catalog(), key, dead, owner, own_references),
            )
            self._drops[name] = asyncio.ensure_future(call)
        running = self._drops[name]
        try:
            return await asyncio.shield(running)
        finally:
            if running.done():
                self._drops.pop(name, None)

    async def check(self, catalog: str) -> None:
        """Check that the catalog answers."""
        connection = self._connections[catalog]
        await connection.call(f"catalog {catalog}", lambda: connection.catalog().namespace_exists("firn"))

    def _place_reader(self, connection: Connection) -> Callable[[Sequence[TableKey]], Awaitable[Sequence[str | None]]]:
        async def read(keys: Sequence[TableKey]) -> Sequence[str | None]:
            return await connection.call(f"catalog {connection.name}", lambda: places(connection.catalog(), keys))

        return read


def landed_snapshot(table: Table) -> Snapshot | None:
    """Return the newest snapshot of the branch on which rows land."""
    branch = table.metadata.refs.get(landing_branch(table.properties))
    return table.snapshot_by_id(branch.snapshot_id) if branch is not None else table.current_snapshot()


def _found(catalog: Catalog, key: TableKey) -> FoundTable | None:
    table = existing(catalog, key)
    if table is None:
        return None
    ownership = Ownership.of(table.properties)
    snapshot = landed_snapshot(table)
    while snapshot is not None:
        summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if ownership.owner == names.SHARED and names.SUMMARY_OFFSETS in summary:
            return FoundTable(ownership, topic_ids=_topics(summary[names.SUMMARY_OFFSETS]))
        if names.SUMMARY_TOPIC_ID in summary:
            return FoundTable(ownership, str(summary[names.SUMMARY_TOPIC_ID]))
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    if ownership.owner == names.SHARED:
        return FoundTable(ownership, topic_ids=_topics(table.properties.get(names.SUMMARY_OFFSETS)))
    return FoundTable(ownership, table.properties.get(names.SUMMARY_TOPIC_ID, ""))


def _topics(text: str | None) -> frozenset[str]:
    """Return the topics in a value of ``firn.offsets``. The driver reports a value that is not valid."""
    try:
        return frozenset(SharedOffsets.read(text).topics) if text is not None else frozenset()
    except ValueError:
        return frozenset()
