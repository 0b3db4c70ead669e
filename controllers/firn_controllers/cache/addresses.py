"""Addresses of a profile's brokers, as clients inside the cluster use them."""

from firn.model import names
from firn.model.config import KafkaProfile, Profile, access_of

CLIENT_PORT = 9092
INTERNAL_PORT = 9095
"""Port of the internal listener of diskless brokers."""
SECURE_PORT = 9096
"""Port of the listener with TLS and authentication."""
CERTIFICATE_PORT = 9097
"""Port of the listener for clients with certificates of Apache Kafka. Diskless brokers accept them at `SECURE_PORT`."""


def bootstrap_servers(profile_name: str, profile: Profile, namespace: str) -> str:
    """Return the addresses that identify the brokers of a profile. They do not change with ``access``."""
    if isinstance(profile, KafkaProfile) and profile.bootstrap_servers:
        return profile.bootstrap_servers
    return f"{names.bootstrap(profile_name)}.{namespace}.svc:{CLIENT_PORT}"


def client_servers(profile_name: str, profile: Profile, namespace: str) -> str:
    """Return the addresses by which clients inside the cluster connect to a profile's brokers."""
    access = access_of(profile)
    if access is not None and access.plaintext == "Close":
        return secure_servers(profile_name, namespace)
    return bootstrap_servers(profile_name, profile, namespace)


def secure_servers(profile_name: str, namespace: str) -> str:
    """Return the address of the secure listener of a profile's brokers."""
    return f"{names.bootstrap(profile_name)}.{namespace}.svc:{SECURE_PORT}"


def internal_listener(profile_name: str, namespace: str, *, tls: bool = False) -> str:
    """Return the URL of the internal listener of a profile's diskless brokers."""
    return f"{'https' if tls else 'http'}://{names.bootstrap(profile_name)}.{namespace}.svc:{INTERNAL_PORT}"
