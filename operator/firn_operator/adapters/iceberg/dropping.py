"""Drop the tables that a resource owns, with every file that their metadata names. Runs in threads of its own."""

import contextlib

import obstore.exceptions
from pyiceberg import exceptions as iceberg_errors
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table import Table

from firn.model import names
from firn_controllers.ports import Dropped
from firn_operator.adapters.iceberg import file_io
from firn_operator.adapters.iceberg.catalogs import TableKey

OWNER = names.TABLE_OWNER
GC_ENABLED = "gc.enabled"


def drop_owned(catalog: Catalog, key: TableKey, dead: TableKey, owner: str) -> Dropped | None:
    """Drop the dead letters and then the table, if ``owner`` owns the table. Return None if it does not.

    The table goes last, because it shows the owner when an interrupted drop is repeated. The dead letters may have been
    created for an earlier owner of the table. A table of their name without an owner is not Firn's, and stays.
    """
    table = existing(catalog, key)
    if table is None or table.metadata.properties.get(OWNER) != owner:
        return None
    letters = existing(catalog, dead)
    dropped = [_drop(catalog, dead, letters)] if letters is not None and OWNER in letters.metadata.properties else []
    dropped.append(_drop(catalog, key, table))
    left = tuple(path for item in dropped for path in item.left)
    return Dropped(files_kept=any(item.files_kept for item in dropped), left=left)


def existing(catalog: Catalog, key: TableKey) -> Table | None:
    """Return the table, or None if it does not exist."""
    try:
        return catalog.load_table(key)
    except (iceberg_errors.NoSuchTableError, iceberg_errors.NoSuchNamespaceError):
        return None


def _drop(catalog: Catalog, key: TableKey, table: Table) -> Dropped:
    """Delete the files of one table, then the table.

    Each step leaves what a repetition needs to find the other files: data files go before the manifests that name them,
    and manifests before their lists. The catalog has the table until only its newest metadata file is left.

    Iceberg's procedure `snapshot` sets ``gc.enabled=false``, because the files belong to another table
    (org.apache.iceberg.TableProperties.GC_ENABLED).
    """
    metadata = table.metadata
    if metadata.properties.get(GC_ENABLED, "true").lower() != "true":
        with contextlib.suppress(iceberg_errors.NoSuchTableError):
            catalog.drop_table(key)
        return Dropped(files_kept=True)
    io = file_io.ObjectFileIO(table.io.properties)
    manifests: dict[str, ManifestFile] = {}
    for snapshot in metadata.snapshots:
        with contextlib.suppress(FileNotFoundError):  # an earlier call deleted the list, and so all its manifests
            manifests.update(
                {item.manifest_path: item for item in read_manifest_list(io.new_input(snapshot.manifest_list))}
            )
    for manifest in manifests.values():
        # Only the paths of one manifest are in memory: a table may have millions of files.
        with contextlib.suppress(FileNotFoundError):  # deleted after the files that it names
            entries = manifest.fetch_manifest_entry(io, discard_deleted=False)
            io.delete_all(sorted({entry.data_file.file_path for entry in entries}))
    io.delete_all(sorted(manifests))
    statistics = [*metadata.statistics, *metadata.partition_statistics]
    io.delete_all(
        sorted(
            {snapshot.manifest_list for snapshot in metadata.snapshots}
            | {item.statistics_path for item in statistics}
            | {entry.metadata_file for entry in metadata.metadata_log} - {table.metadata_location}
        )
    )
    with contextlib.suppress(iceberg_errors.NoSuchTableError):
        catalog.drop_table(key)
    try:
        io.delete_all([table.metadata_location])
    except (OSError, obstore.exceptions.BaseError):  # no later call can find it
        return Dropped(left=(table.metadata_location,))
    return Dropped()
