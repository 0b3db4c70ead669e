"""Properties of Iceberg tables that Firn makes: what new ones have, what the spec may set, and what the spec set before.

Operator (formats 1 and 2) and driver (format 3, dead letters) follow the same rules, which are here.
"""

from collections.abc import Mapping

from firn.model import names

CLEAN = "write.metadata.delete-after-commit.enabled"
KEEP = "write.metadata.previous-versions-max"
CREATED_WITH = {CLEAN: "true", KEEP: "100"}
"""Properties of new tables where the spec does not say otherwise: an ingested table is committed to every few seconds."""
MANAGED = "firn.properties"
"""Property: which others the spec set, so that those can be taken back that it no longer names."""
RESERVED = ("firn.", "format-version")
"""Beginnings of properties that are not the spec's to set."""
_OF_COLUMNS = (".column.", "write.orc.bloom.filter.columns")
_PLACES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


def marks(owner: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Firn's own properties of a table of ``owner`` (uid of the IcebergTopic) whose spec sets ``properties``."""
    return {names.TABLE_OWNER: owner, **({MANAGED: ",".join(sorted(properties))} if properties else {})}


def taken_back(current: Mapping[str, str], wanted: Mapping[str, str]) -> frozenset[str]:
    """Properties of a table that the spec set once and are not ``wanted`` (the spec's and `marks`) any more."""
    managed = {key for key in current.get(MANAGED, "").split(",") if key}
    return frozenset(key for key in (managed | {MANAGED}) - wanted.keys() if key in current)


def of_dead_letters(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a table that its dead-letter table takes over.

    Properties that name columns are left out, because Iceberg rejects unknown columns. Locations belong to one table only.
    """
    return {
        key: value
        for key, value in properties.items()
        if not any(part in key for part in _OF_COLUMNS) and key not in _PLACES
    }
