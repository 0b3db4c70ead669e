"""Orphans: files under a table's location that no metadata refers to.

Killed writers, refused commits and interrupted expiries leave them. A file is never deleted if

- it is younger than the minimum age, because a writer may be about to commit it;
- a snapshot, statistics entry or metadata log of the table refers to it, according to the metadata *after* the
  listing; paths are compared decoded and without scheme and authority, so that two spellings of a path are one file;
- it lies below a directory that is another table's (it has metadata files of its own); nothing is deleted if metadata
  files of another table lie among this table's;
- it is hidden: a name below the location begins with ``.`` or ``_`` and is not a partition (``_part=1``);
- its name has ``?`` or ``#``: Iceberg's S3FileIO takes the rest for a query or a fragment (``S3URI``), and would
  delete the file whose name ends there.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from firn.model.conditions import Reason
from firn.model.errors import ConflictError, InvalidSpecError
from firn.model.maintenance import Removed
from firn.tables import metadata_files as metadata_paths
from firn.tables.table_properties import PLACES
from firn_spark.jvm import elements
from firn_spark.maintenance.steps.reachable import Places, Reachable, place
from firn_spark.maintenance.steps.subject import SAMPLE, Subject
from firn_spark.tables.java_errors import JAVA_ERRORS, causes
from firn_spark.tables.swaps import short
from firn_spark.tables.vended import implements

log = structlog.get_logger()

PAGE = 10_000
"""Number of objects that cross from Java at once."""
DELETE_BATCH = 1_000
_NO_NAME = frozenset("?#")
_NO_METADATA = (
    "NotFoundException",
    "NoSuchKeyException",
    "FileNotFoundException",
    "IllegalArgumentException",
    "ValidationException",
    "JsonParseException",
    "MismatchedInputException",
    "JsonEOFException",
    "ZipException",
    "EOFException",
)
"""Java exceptions that show that a file is gone or is not the metadata of a table."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file in the store."""

    path: str
    bytes: int
    changed_ms: int


def location(table: Any) -> str:
    """Return the table's location, without a slash at the end."""
    return str(table.location()).rstrip("/")


def listed(subject: Subject, prefix: str) -> Iterator[Listed]:
    """Yield the files whose paths begin with ``prefix``. Raises InvalidSpecError if the catalog's file access cannot
    list."""
    iceberg = subject.jvm.org.apache.iceberg
    io = subject.table.io()
    if not implements(subject.jvm, io, "SupportsPrefixOperations"):
        raise InvalidSpecError(
            f"table {subject.name}: {io.getClass().getSimpleName()} cannot list files; set io-impl of the catalog to S3FileIO,"
            " GCSFileIO, ADLSFileIO or HadoopFileIO, or remove orphanFiles from the policy"
        )
    jackson = subject.jvm.com.fasterxml.jackson
    mapper = jackson.databind.ObjectMapper()
    mapper.setVisibility(
        jackson.annotation.PropertyAccessor.FIELD,
        getattr(subject.jvm, "com.fasterxml.jackson.annotation.JsonAutoDetect$Visibility").ANY,
    )
    listed_any = False
    try:
        pages = iceberg.relocated.com.google.common.collect.Iterables.partition(io.listPrefix(prefix), PAGE)
        for page in elements(pages.iterator()):
            for info in json.loads(mapper.writeValueAsString(page)):
                listed_any = True
                yield Listed(info["location"], int(info["size"]), int(info["createdAtMillis"]))
    except JAVA_ERRORS as error:
        # A directory that was never written to. A partial listing is useless: the metadata that protects files may be in the rest.
        if listed_any or "FileNotFoundException" not in short(error):
            raise


def remove(subject: Subject, min_age_ms: int, enforce: bool) -> Removed:
    """Delete, or only count, orphans older than ``min_age_ms``. Raises ConflictError if another table shares the
    location."""
    subject.guard.check()
    table = subject.table
    root = location(table)
    _note_other_locations(subject, root)
    cutoff = subject.now_ms() - min_age_ms
    before = table.operations().current()
    # Files that the table already refers to are not kept in memory during the listing: in a large table that is nearly all.
    referenced = Places(Reachable(subject.spark, table, before).paths())
    roots: set[str] = set()
    candidates: list[Listed] = []
    metadata_files: dict[str, int] = {}
    for info in listed(subject, root + "/"):
        home = metadata_paths.home(info.path)
        if home is not None:
            if place(home) == place(root):
                metadata_files[info.path] = info.changed_ms
            else:
                roots.add(place(home) + "/")
        if (
            info.changed_ms < cutoff
            and info.path not in referenced
            and not hidden(info.path, root)
            and _NO_NAME.isdisjoint(info.path)
        ):
            candidates.append(info)
    refuse_shared(subject, metadata_files)
    # Commits made during the listing count.
    table.refresh()
    subject.guard.check()
    if location(table) != root:
        raise ConflictError(
            f"table {subject.name}: its location changed while its files were listed; the next run lists them again"
        )
    after = table.operations().current()
    if candidates and str(after.metadataFileLocation()) != str(before.metadataFileLocation()):
        referenced = Places(Reachable(subject.spark, table, after).paths())
    orphan_files = [
        info
        for info in candidates
        if info.path not in referenced and not any(place(info.path).startswith(other) for other in roots)
    ]
    if enforce and orphan_files:
        subject.failpoints.reach("before-deletion")
        delete(subject, [info.path for info in orphan_files])
    return Removed(
        files=len(orphan_files),
        bytes=sum(info.bytes for info in orphan_files),
        items=len(orphan_files),
        sample=tuple(info.path for info in orphan_files[:SAMPLE]),
    )


def _note_other_locations(subject: Subject, root: str) -> None:
    """Add a note if the table writes files outside its location, which a listing does not see."""
    properties = dict(subject.table.properties())
    for key in PLACES:
        path = properties.get(key)
        if path is not None and not f"{place(path.rstrip('/'))}/".startswith(f"{place(root)}/"):
            subject.done.notes.append(
                f"table property {key} is a path outside the table's location; the run does not look for orphan files there"
            )


def hidden(path: str, root: str) -> bool:
    """Return True if a directory or the file below ``root`` has a hidden name."""
    below = place(path)[len(place(root)) :].strip("/").split("/")
    return any(part.startswith((".", "_")) and "=" not in part for part in below)


def refuse_kept(subject: Subject) -> None:
    """Raise ConflictError if the table's owner forbids the deletion of its files (``gc.enabled``), or if its catalog
    may need them."""
    if subject.own_references:
        raise ConflictError(
            f"table {subject.name}: catalog {subject.catalog} may have branches, tags or earlier versions of its own, which need the table's"
            " files; nothing is deleted. If it has none, set its ownReferences to false in the operator's configuration. Otherwise, remove"
            " snapshots, metadataFiles and orphanFiles from the policy",
            reason=Reason.NOT_ALLOWED,
        )
    if dict(subject.table.properties()).get("gc.enabled", "true").lower() != "true":
        raise ConflictError(
            f"table {subject.name}: gc.enabled is false, so other tables may use its files; nothing is deleted. "
            "Set it to true, or remove snapshots, metadataFiles and orphanFiles from the policy",
            reason=Reason.NOT_ALLOWED,
        )


def refuse_shared(subject: Subject, metadata_files: Mapping[str, int]) -> None:
    """Raise ConflictError if metadata files at the table's location belong to another table.

    That is checked for first metadata files of a table, and for the newest files that this table does not refer to.
    ``metadata_files``: path -> time of writing.
    """
    table = subject.table
    uuid = str(table.operations().current().uuid())
    referenced = Places(Reachable(subject.spark, table, table.operations().current()).metadata_files())
    unknown = (item for item in metadata_files.items() if item[0] not in referenced)
    for path in sorted(metadata_paths.first_and_newest(unknown)):
        other = _uuid(subject, path)
        if other is not None and other != uuid:
            raise ConflictError(
                f"table {subject.name}: {path} is metadata of another table ({other}) at the same location; nothing is deleted there. "
                "Drop the other table with its files, or move one of the two; if the other table was dropped already, delete the files that it left",
                reason=Reason.RESOURCE_CONFLICT,
            )


def _uuid(subject: Subject, path: str) -> str | None:
    """Return the uuid of a metadata file's table; None if the file is gone or is not metadata.

    Raises `JAVA_ERRORS` if the file cannot be read now: it may be metadata of another table.
    """
    try:
        parser = subject.jvm.org.apache.iceberg.TableMetadataParser
        return str(parser.read(subject.table.io(), path).uuid())
    except JAVA_ERRORS as error:
        if not any(cause.name.endswith(_NO_METADATA) for cause in causes(error)):
            raise
        log.info("metadata file not read", path=path, error=short(error))
        return None


def delete(subject: Subject, paths: Sequence[str]) -> None:
    """Delete files, and check regularly that the run may still do so. A file that cannot be deleted stays an orphan."""
    failed = 0
    for part in _batches(paths):
        subject.guard.check()
        subject.renew()
        io = subject.table.io()
        bulk = implements(subject.jvm, io, "SupportsBulkOperations")
        if bulk:
            try:
                io.deleteFiles(subject.jvm.java.util.ArrayList(list(part)))
            except JAVA_ERRORS as error:
                failed += len(part)
                log.warning("files could not be deleted", table=subject.name, error=short(error))
            continue
        for path in part:
            try:
                io.deleteFile(path)
            except JAVA_ERRORS as error:
                failed += 1
                log.warning("file could not be deleted", path=path, error=short(error))
    if failed:
        subject.done.notes.append(f"some of {failed} files could not be deleted; the next run retries")


def _batches(paths: Sequence[str]) -> Iterable[Sequence[str]]:
    return (paths[start : start + DELETE_BATCH] for start in range(0, len(paths), DELETE_BATCH))
