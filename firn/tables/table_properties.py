"""Properties of tables: defaults of new tables, properties that a spec may set, and those that an earlier spec set.

The operator (formats 1 and 2) and the driver (format 3, dead letters) use the same rules.
"""

from collections.abc import Mapping, Sequence

from firn.model import names
from firn.model.jobs import Column
from firn.tables import rows

CLEAN = "write.metadata.delete-after-commit.enabled"
KEEP = "write.metadata.previous-versions-max"
CREATED_WITH = {CLEAN: "true", KEEP: "100"}
"""Default properties of every new table. They suit commits every few seconds."""
_BOUNDED = ("partition", "offset", "timestamp")
"""Columns of Kafka whose bounds every file has. Retention and queries skip files by them."""
MANAGED = "firn.properties"
"""Property that lists the properties set by the spec, so that Firn can remove them when a later spec omits them."""
RESERVED = ("firn.", "format-version")
"""Prefixes of properties that a spec must not set."""
_OF_COLUMNS = (".column.", "write.orc.bloom.filter.columns")
_PLACES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")


def created_with(columns: Sequence[Column]) -> dict[str, str]:
    """Return the default properties of a new table with these columns.

    By default, Iceberg keeps bounds for the first 100 columns only, and Kafka's columns are the last.
    """
    struct = any(column.name == rows.METADATA_COLUMN for column in columns)
    separator = "." if struct else "_"
    bounded = (f"write.metadata.metrics.column.{rows.METADATA_COLUMN}{separator}{name}" for name in _BOUNDED)
    return {**CREATED_WITH, **dict.fromkeys(bounded, "full")}


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
