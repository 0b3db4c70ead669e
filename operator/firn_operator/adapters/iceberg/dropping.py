"""Drop the tables that a resource owns, with all their files. Runs in threads of its own.

The metadata does not name all files: ingestion removes old snapshots from it and keeps their files, and failed commits
leave files. A list of the table's folders finds these files.
"""

import contextlib
import gzip
import json
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

import obstore.exceptions
from pyiceberg import exceptions as iceberg_errors
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestFile, read_manifest_list
from pyiceberg.table import Table

from firn.model import names
from firn.tables import metadata_files
from firn.tables.table_properties import PLACES
from firn_controllers.ports import Dropped
from firn_operator.adapters.iceberg import file_io
from firn_operator.adapters.iceberg.catalogs import TableKey

OWNER = names.TABLE_OWNER
GC_ENABLED = "gc.enabled"


def drop_owned(
    catalog: Catalog, key: TableKey, dead: TableKey, owner: str, own_references: bool = False
) -> Dropped | None:
    """Drop the dead letters and then the table, if ``owner`` owns the table. Return None if it does not.

    ``own_references``: branches, earlier versions or dropped tables of the catalog may need the files. They stay.

    The table goes last, because it shows the owner when an interrupted drop is repeated. The dead letters may have been
    created for an earlier owner of the table. A table of their name without an owner is not Firn's, and stays.
    """
    table = existing(catalog, key)
    if table is None or table.metadata.properties.get(OWNER) != owner:
        return None
    letters = existing(catalog, dead)
    dropped: list[Dropped] = []
    if letters is not None and OWNER in letters.metadata.properties:
        dropped.append(_drop(catalog, dead, letters, own_references))
    dropped.append(_drop(catalog, key, table, own_references))
    return Dropped(
        files_kept=any(item.files_kept for item in dropped),
        left=tuple(path for item in dropped for path in item.left),
        problems=tuple(dict.fromkeys(problem for item in dropped for problem in item.problems)),
    )


def existing(catalog: Catalog, key: TableKey) -> Table | None:
    """Return the table, or None if it does not exist."""
    try:
        return catalog.load_table(key)
    except (iceberg_errors.NoSuchTableError, iceberg_errors.NoSuchNamespaceError):
        return None


def _drop(catalog: Catalog, key: TableKey, table: Table, own_references: bool) -> Dropped:
    """Delete the files of one table, then the table.

    Each step leaves what a repetition needs to find the other files: data files go before the manifests that name them,
    and manifests before their lists. The catalog has the table until only its newest metadata file is left.

    All files stay if ``own_references`` is true or if the table has ``gc.enabled=false``. Iceberg's procedure `snapshot`
    sets that property, because the files belong to another table (org.apache.iceberg.TableProperties.GC_ENABLED).
    """
    metadata = table.metadata
    if own_references or metadata.properties.get(GC_ENABLED, "true").lower() != "true":
        with contextlib.suppress(iceberg_errors.NoSuchTableError):
            catalog.drop_table(key)
        return Dropped(files_kept=True)
    io = file_io.ObjectFileIO(table.io.properties)
    _delete_named(io, table)
    problems = _delete_found(io, table)
    with contextlib.suppress(iceberg_errors.NoSuchTableError):
        catalog.drop_table(key)
    try:
        io.delete_all([table.metadata_location])
    except (OSError, obstore.exceptions.BaseError):  # no later call can find it
        return Dropped(left=(table.metadata_location,), problems=tuple(problems))
    return Dropped(problems=tuple(problems))


def _delete_named(io: file_io.ObjectFileIO, table: Table) -> None:
    """Delete the files that the metadata names, except the newest metadata file."""
    metadata = table.metadata
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


def _delete_found(io: file_io.ObjectFileIO, table: Table) -> list[str]:
    """Delete the files that a list of the table's folders finds, except the newest metadata file.

    Returns why files may stay. Directories of other tables stay, and so does everything if another table has metadata
    among this table's.
    """
    location = table.metadata.location.rstrip("/")
    folders, problems = _folders(location, table.metadata.properties)
    others: set[str] = set()

    def unknown() -> Iterator[tuple[str, float]]:
        for path, written in _listed(io, folders):
            home = metadata_files.home(path)
            if home is None or path == table.metadata_location:
                continue
            if file_io.same_file(home) == file_io.same_file(location):
                yield path, written
            else:
                others.add(file_io.same_file(home) + "/")

    for path in sorted(metadata_files.first_and_newest(unknown())):
        other = _uuid(io, path)
        if other not in (None, str(table.metadata.table_uuid)):
            problems.append(f"{path} is metadata of another table ({other}) at the same location")
            return problems
    kept = file_io.same_file(table.metadata_location)
    for folder in folders:
        for page in io.list_below(folder):
            files = {path: file_io.same_file(path) for path, _ in page}
            found = [path for path, file in files.items() if file != kept and not file.startswith(tuple(others))]
            if found:
                io.delete_all(found)
    return problems


def _folders(location: str, properties: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Return the folders of the table's files below its location, and a problem for each folder elsewhere.

    A folder elsewhere may have files of other tables.
    """
    folders, problems = [f"{location}/data", f"{location}/metadata"], list[str]()
    for key in PLACES:
        if key not in properties:
            continue
        folder = properties[key].rstrip("/")
        below = f"{file_io.same_file(folder)}/".startswith(f"{file_io.same_file(location)}/")
        # Schemes have aliases, such as s3 and s3a. Buckets have none.
        if below and urlsplit(folder).netloc == urlsplit(location).netloc:
            folders.append(folder)
        else:
            problems.append(f"table property {key} is a path outside the table's location, {folder}")
    return folders, problems


def _listed(io: file_io.ObjectFileIO, folders: list[str]) -> Iterator[tuple[str, float]]:
    return chain.from_iterable(page for folder in folders for page in io.list_below(folder))


def _uuid(io: file_io.ObjectFileIO, path: str) -> str | None:
    """Return the uuid of a metadata file's table; None if the file is gone or is not metadata."""
    try:
        with io.new_input(path).open() as stream:
            content = stream.read()
        document: Any = json.loads(gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content)
        return str(document["table-uuid"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, gzip.BadGzipFile):
        return None
