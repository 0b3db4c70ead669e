"""The SQLite store as a whole: one database and the seven stores over it."""

from concurrent.futures import Executor

from firn.model.clock import Clock
from firn_broker.metadata_store.sqlite.access import SqliteAccess
from firn_broker.metadata_store.sqlite.database import Database
from firn_broker.metadata_store.sqlite.groups import SqliteGroups
from firn_broker.metadata_store.sqlite.logs.log import SqliteLog
from firn_broker.metadata_store.sqlite.logs.merges import SqliteMerges
from firn_broker.metadata_store.sqlite.nodes import SqliteNodes
from firn_broker.metadata_store.sqlite.retention import SqliteRetention
from firn_broker.metadata_store.sqlite.topics import SqliteTopics


class SqliteStore:
    """`MetadataStore` over one file, for one process at a time, or in memory (path ":memory:")."""

    def __init__(
        self, path: str, clock: Clock, new_cluster_id: str, executor: Executor | None = None, *, migrates: bool = True
    ) -> None:
        self._new_cluster_id = new_cluster_id
        self.database = Database(path, clock, executor, migrates=migrates)
        self.nodes = SqliteNodes(self.database)
        self.topics = SqliteTopics(self.database)
        self.log = SqliteLog(self.database)
        self.merges = SqliteMerges(self.database)
        self.retention = SqliteRetention(self.database)
        self.groups = SqliteGroups(self.database)
        self.access = SqliteAccess(self.database)

    async def start(self) -> None:
        await self.database.start(self._new_cluster_id)

    async def close(self) -> None:
        await self.database.close()

    async def cluster_id(self) -> str:
        return await self.database.run(lambda: str(self.database.row("SELECT id FROM cluster")[0]), write=False)
