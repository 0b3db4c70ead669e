"""The PostgreSQL store as a whole: one database and the seven stores over it."""

from firn_broker.metadata_store.postgres.access import PostgresAccess
from firn_broker.metadata_store.postgres.database import Database
from firn_broker.metadata_store.postgres.groups import PostgresGroups
from firn_broker.metadata_store.postgres.logs.log import PostgresLog
from firn_broker.metadata_store.postgres.logs.merges import PostgresMerges
from firn_broker.metadata_store.postgres.nodes import PostgresNodes
from firn_broker.metadata_store.postgres.retention import PostgresRetention
from firn_broker.metadata_store.postgres.topics import PostgresTopics
from firn_broker.settings import PostgresSettings


class PostgresStore:
    """`MetadataStore` over a schema that all brokers of a cluster share."""

    def __init__(self, settings: PostgresSettings, *, migrates: bool = True, requires_durable: bool = False) -> None:
        self.database = Database(settings, migrates=migrates, requires_durable=requires_durable)
        self.nodes = PostgresNodes(self.database)
        self.topics = PostgresTopics(self.database)
        self.log = PostgresLog(self.database)
        self.merges = PostgresMerges(self.database)
        self.retention = PostgresRetention(self.database)
        self.groups = PostgresGroups(self.database)
        self.access = PostgresAccess(self.database)

    async def start(self) -> None:
        await self.database.start()

    async def close(self) -> None:
        await self.database.close()

    async def cluster_id(self) -> str:
        return str(await self.database.value("SELECT id FROM cluster"))
