"""Drop the tables that a resource owns, with every file that their snapshots name. Runs in a catalog's threads."""

import contextlib

from pyiceberg import exceptions as iceberg_errors
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestFile
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
    kept = False
    if letters is not None and OWNER in letters.metadata.properties:
        kept = _drop(catalog, dead, letters)
    return Dropped(files_kept=_drop(catalog, key, table) or kept)


def existing(catalog: Catalog, key: TableKey) -> Table | None:
    """Return the table, or None if it does not exist."""
    try:
        return catalog.load_table(key)
    except (iceberg_errors.NoSuchTableError, iceberg_errors.NoSuchNamespaceError):
        return None


def _drop(catalog: Catalog, key: TableKey, table: Table) -> bool:
    """Drop one table, then delete the files of its snapshots, so that no reader finds a table without some files.

    Returns True if the files stay. Iceberg's procedure `snapshot` sets ``gc.enabled=false``, because the files belong to
    another table (org.apache.iceberg.TableProperties.GC_ENABLED).
    """
    metadata = table.metadata
    if metadata.properties.get(GC_ENABLED, "true").lower() != "true":
        with contextlib.suppress(iceberg_errors.NoSuchTableError):
            catalog.drop_table(key)
        return True
    manifests: dict[str, ManifestFile] = {}
    files: set[str] = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    for snapshot in metadata.snapshots:
        manifests.update({manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)})
        files.add(snapshot.manifest_list)
    for manifest in manifests.values():
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        files.update(entry.data_file.file_path for entry in entries)
    files.update(manifests)
    try:
        catalog.drop_table(key)
    except iceberg_errors.NoSuchTableError:
        return False
    io = file_io.ObjectFileIO(table.io.properties)
    io.delete_all(sorted(files))
    return False
