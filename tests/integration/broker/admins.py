"""Admin clients of librdkafka for the brokers of a test."""

from functools import cache

from confluent_kafka.admin import AdminClient

from tests.servers.firn_broker import FirnBroker


def admin(broker: FirnBroker) -> AdminClient:
    """Return the admin client of a broker. It stays referenced, because the futures of a collected client fail."""
    return _admin(broker.bootstrap)


def close_all() -> None:
    """Close all clients. A client of a stopped broker keeps connecting to its port, and another test may get this port."""
    _admin.cache_clear()


@cache
def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap})
