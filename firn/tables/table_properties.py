"""Properties of tables: defaults of new tables, properties that a spec may set, and those that an earlier spec set.

The operator (formats 1 and 2) and the driver (format 3, dead letters) use the same rules.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from firn.model import names
from firn.model.jobs import Column, TableTarget
from firn.tables import rows
from firn.tables.ownership import Claimant

Terms = TypeVar("Terms")
CLEAN = "write.metadata.delete-after-commit.enabled"
KEEP = "write.metadata.previous-versions-max"
CREATED_WITH = {CLEAN: "true", KEEP: "100"}
"""Default properties of the metadata of new tables. They suit commits every few seconds."""
CODEC = "write.parquet.compression-codec"
"""Property with the compression of Parquet files."""
_COMPRESSED = {CODEC: "zstd"}
"""Without this property, Iceberg's Java writers use gzip, which needs several times the CPU time."""
_BOUNDED = ("partition", "offset", "timestamp")
"""Columns of Kafka whose bounds every file has. Retention and queries skip files by them."""
MANAGED = "firn.properties"
"""Property that lists the properties set by the spec, so that Firn can remove them when a later spec omits them."""
LAYOUT = "firn.layout"
"""Property that lists which of `PARTITION_BY` and `SORT_BY` the spec set, for the same reason."""
APPLIED = "firn.layout-applied"
"""Property with the layout and the approval of the contract that the driver applied last, if changes of the layout need an approval.
While the contract stays, the driver keeps the layout of another client."""
PARTITION_BY, SORT_BY = "partitionBy", "sortBy"
RESERVED = ("firn.", "format-version")
"""Prefixes of properties that a spec must not set."""
_OF_COLUMNS = (".column.", "write.orc.bloom.filter.columns")
MAIN = "main"
"""The branch that readers get by default."""
PLACES = ("write.data.path", "write.metadata.path", "write.object-storage.path", "write.folder-storage.path")
"""Properties with a location for a table's files."""


def landing_branch(properties: Mapping[str, str]) -> str:
    """Return the branch on which rows land, by the properties of a table."""
    return properties.get(names.TABLE_BRANCH) or MAIN


def created_with(columns: Sequence[Column], own_references: bool) -> dict[str, str]:
    """Return the default properties of a new table with these columns.

    If the catalog has references of its own, it may need every metadata file.

    By default, Iceberg keeps bounds for the first 100 columns only, and Kafka's columns are the last.
    """
    struct = any(column.name == rows.METADATA_COLUMN for column in columns)
    separator = "." if struct else "_"
    bounded = (f"write.metadata.metrics.column.{rows.METADATA_COLUMN}{separator}{name}" for name in _BOUNDED)
    files = {} if own_references else CREATED_WITH
    return {**_COMPRESSED, **files, **dict.fromkeys(bounded, "full")}


def marks(
    claimant: Claimant, properties: Mapping[str, str], layout: Sequence[str] = (), history: str = names.COPY
) -> dict[str, str]:
    """Return Firn's own properties of a table.

    ``properties``, ``layout`` and ``history``: what the spec of ``claimant`` sets.
    """
    # No resource alone decides what a shared table loses.
    listed = {} if claimant.shared else {MANAGED: sorted(properties), LAYOUT: sorted(layout)}
    single = {names.HISTORY: history} if history != names.COPY else {}
    return {**claimant.marks(), **{key: ",".join(items) for key, items in listed.items() if items}, **single}


def layout_set_by(target: TableTarget) -> tuple[str, ...]:
    """Return which of `PARTITION_BY` and `SORT_BY` the spec sets. An empty list counts as set."""
    fields = {PARTITION_BY: target.partition_by, SORT_BY: target.sort_by}
    return tuple(field for field, terms in fields.items() if terms is not None)


def set_for(claimant: Claimant, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties of a table, in which no list names what the spec of another owner set.

    Adoption changes nothing, so the layout and properties of an earlier owner stay.
    """
    if not claimant.shared and properties.get(names.TABLE_OWNER) == claimant.uid:
        return dict(properties)
    return {key: "" if key in (MANAGED, LAYOUT) else value for key, value in properties.items()}


def wanted_terms(field: str, terms: tuple[Terms, ...] | None, current: Mapping[str, str]) -> tuple[Terms, ...] | None:
    """Return the terms that the table must have, or None if the table keeps its own.

    ``terms`` is None if the spec does not set ``field``. Terms that an earlier spec set are then removed. ``current``:
    `set_for` the resource.
    """
    return () if terms is None and field in _listed(current, LAYOUT) else terms


def dropped_by_spec(current: Mapping[str, str], wanted: Mapping[str, str]) -> frozenset[str]:
    """Return the properties that an earlier spec set and that are not in ``wanted`` (the spec's and `marks`).

    ``current``: `set_for` the resource.
    """
    managed = _listed(current, MANAGED)
    return frozenset(key for key in (managed | {MANAGED, LAYOUT, names.HISTORY}) - wanted.keys() if key in current)


def _listed(properties: Mapping[str, str], key: str) -> set[str]:
    return {item for item in properties.get(key, "").split(",") if item}


def dead_letter_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that the dead-letter table shares with its table.

    Properties that name columns are left out, because Iceberg rejects unknown columns. Places of files belong to one table only."""
    return {
        key: value
        for key, value in properties.items()
        if not any(part in key for part in _OF_COLUMNS) and key not in PLACES
    }
