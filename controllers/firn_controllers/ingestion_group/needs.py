"""The members of the configuration that a driver needs: profiles, catalogs, schema registries and salts, and their Secrets."""

from collections.abc import Collection, Mapping

from firn.model.config import (
    Authority,
    Config,
    DisklessProfile,
    HasNamespaces,
    KafkaProfile,
    allows,
    security_references,
    share_namespaces,
)
from firn.model.jobs import GroupSettings
from firn_controllers.cache.contracts import Need, Section

UNUSED_SECONDS = 600.0
"""Seconds for which a driver keeps a member that no topic of its group uses any more. So a topic that is created again restarts no driver."""


def allowed(config: Config, group: str) -> frozenset[Need]:
    """Return the members that topics of the group may use."""
    served = config.groups[group]
    return frozenset(
        (section, name)
        for section, members in _sections(config).items()
        for name, member in members.items()
        if share_namespaces(served, member)
    )


def allowed_to(config: Config, group: str, namespace: str, needs: Collection[Need]) -> frozenset[Need]:
    """Return those of the members that exist, and that topics of the group in this namespace may use."""
    sections = _sections(config)
    if not allows(config.groups[group], namespace):
        return frozenset()
    return frozenset(
        (section, name)
        for section, name in needs
        if name in sections[section] and allows(sections[section][name], namespace)
    )


def of_settings(settings: GroupSettings) -> frozenset[Need]:
    """Return the members that the settings of a driver have."""
    sections: dict[Section, Collection[str]] = {
        "profiles": settings.kafka,
        "catalogs": settings.catalogs,
        "registries": settings.registries,
        "salts": settings.salts,
    }
    return frozenset((section, name) for section, found in sections.items() for name in found)


def secret_names(config: Config, group: str, needs: Collection[Need]) -> list[str]:
    """Return the names of the Secrets that the driver of a group with these members mounts, sorted."""
    found: set[str] = set()
    for section, name in needs:
        match section:
            case "profiles":
                found |= _of_profile(config, group, name)
            case "catalogs":
                found |= {reference.secret for reference in config.catalogs[name].references()}
            case "registries":
                found |= {reference.secret for reference in config.registries[name].references()}
            case "salts":
                found.add(config.salts[name].value.secret)
    return sorted(found)


def authorities(config: Config, needs: Collection[Need]) -> list[Authority]:
    """Return the CA certificates that a driver with these members mounts."""
    found: list[Authority] = []
    for section, name in needs:
        if section == "catalogs":
            found += config.catalogs[name].authorities
        elif section == "registries":
            found += config.registries[name].authorities
        elif section == "profiles":
            profile = config.profiles[name]
            if isinstance(profile, DisklessProfile) and profile.direct_reads is not None:
                store = profile.object_store.tls
                found += [] if store is None else [store.ca]
    return found


def _of_profile(config: Config, group: str, name: str) -> set[str]:
    profile = config.profiles[name]
    if isinstance(profile, KafkaProfile):
        security = profile.security_with(config.driver_credential(name, group))
        return {reference.secret for reference in security_references(security)}
    token, reads = profile.token(name), profile.direct_reads
    if reads is None:
        return set()
    shared = set() if token is None else {token.secret}
    return {*shared, *(reference.secret for reference in reads.secret_properties.values())}


def _sections(config: Config) -> Mapping[Section, Mapping[str, HasNamespaces]]:
    return {
        "profiles": config.profiles,
        "catalogs": config.catalogs,
        "registries": config.registries,
        "salts": config.salts,
    }
