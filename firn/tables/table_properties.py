"""Properties of tables: defaults of new tables, properties that a spec may set, and those that an earlier spec set.

The operator (formats 1 and 2) and the driver (format 3, dead letters) use the same rules.
"""

from collections.abc import Mapping

from firn.model import names

CLEAN = "write.metadata.delete-after-commit.enabled"
KEEP = "write.metadata.previous-versions-max"
CREATED_WITH = {CLEAN: "true", KEEP: "100"}
"""Default properties of new tables. They suit commits every few seconds."""
MANAGED = "firn.properties"
"""Property that lists the properties set by the spec, so that Firn can remove them when a later spec omits them."""
RESERVED = ("firn.", "format-version")
"""Prefixes of properties that a spec must not set."""
_OF_COLUMNS = (".column.", "write.orc.bloom.filter.columns")
_PLACES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


def marks(owner: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return Firn's own properties of a table. ``owner``: UID of the IcebergTopic. ``properties``: those of its spec."""
    return {names.TABLE_OWNER: owner, **({MANAGED: ",".join(sorted(properties))} if properties else {})}


def dropped_by_spec(current: Mapping[str, str], wanted: Mapping[str, str]) -> frozenset[str]:
    """Return the properties that an earlier spec set and that are not in ``wanted`` (the spec's and `marks`)."""
    managed = {key for key in current.get(MANAGED, "").split(",") if key}
    return frozenset(key for key in (managed | {MANAGED}) - wanted.keys() if key in current)


def dead_letter_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that the dead-letter table shares with its table.

    Properties that name columns are left out, because Iceberg rejects unknown columns. Places of files belong to one table only."""
    return {
        key: value
        for key, value in properties.items()
        if not any(part in key for part in _OF_COLUMNS) and key not in _PLACES
    }
