"""The metadata store that the settings name."""

from firn.model.clock import Clock
from firn_broker.metadata_store.postgres.store import PostgresStore
from firn_broker.metadata_store.sqlite.store import SqliteStore
from firn_broker.ports import MetadataStore
from firn_broker.settings import BrokerSettings, SqliteSettings


def open_store(settings: BrokerSettings, clock: Clock, new_cluster_id: str, *, migrates: bool = True) -> MetadataStore:
    """Return the store. One that ``migrates`` may create its schema, and needs a durable coordinator if the settings say so."""
    if isinstance(settings.coordinator, SqliteSettings):
        return SqliteStore(settings.coordinator.path, clock, new_cluster_id, migrates=migrates)
    return PostgresStore(
        settings.coordinator, migrates=migrates, requires_durable=migrates and settings.require_durable
    )
