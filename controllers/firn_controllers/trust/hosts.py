"""The names for which certificates are valid: those of a profile's brokers, whatever its brokers are, and those of stores."""

from firn.model import names
from firn.model.config import Certificate, Profile, certificate_name
from firn.model.errors import InvalidSpecError


def hosts(namespace: str, profile: str, settings: Profile, certificate: Certificate) -> tuple[str, ...]:
    """Return the DNS names and IP addresses: of pods, of the bootstrap Service, of clients outside, and those configured, sorted.

    Raises InvalidSpecError if ``external`` has a name that no certificate can have.
    """
    fleet = names.fleet(profile)
    found = {f"*.{fleet}.{namespace}.svc", f"{names.bootstrap(profile)}.{namespace}.svc", *certificate.names}
    # Brokers at node ports without `host` advertise the addresses of their nodes, which only the user knows.
    try:
        found |= {certificate_name(host) for host in settings.outside_names}
    except ValueError as error:
        raise InvalidSpecError(f"configuration profiles.{profile}.external: {error}") from error
    return tuple(sorted(found))


def store_hosts(namespace: str, store: str) -> tuple[str, ...]:
    """Return the DNS names of a store of the quick start, sorted: of its Service, and ``localhost`` for a forwarded port."""
    service = names.store(store)
    inside = (
        service,
        f"{service}.{namespace}",
        f"{service}.{namespace}.svc",
        f"{service}.{namespace}.svc.cluster.local",
    )
    return tuple(sorted({*inside, "localhost"}))
