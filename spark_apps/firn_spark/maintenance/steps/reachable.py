"""Every file that a version of a table's metadata refers to: data and delete files, manifests, manifest lists,
statistics.
"""

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import unquote

import numpy as np
import numpy.typing as npt
from pyspark.sql import DataFrame

from firn_spark.tables.columns import unreadable_column

_PLACE = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//[^/]*)?")


class Reachable:
    """The files of one `TableMetadata`, which need not be stored."""

    def __init__(self, spark: Any, table: Any, metadata: Any) -> None:
        self._spark = spark
        self._jvm = spark._jvm
        self._io = table.io()
        self._metadata = metadata
        self._name = str(table.name())

    def content(self) -> Any:
        """Return data and delete files of all snapshots, a DataFrame of ``path, bytes``."""
        return (
            self._metadata_table("ALL_FILES").selectExpr("file_path as path", "file_size_in_bytes as bytes").distinct()
        )

    def manifests(self) -> dict[str, int]:
        """Return the manifests of all snapshots with their bytes."""
        frame = self._metadata_table("ALL_MANIFESTS").selectExpr("path", "length").distinct()
        return {row["path"]: int(row["length"]) for row in frame.collect()}

    def lists(self) -> set[str]:
        """Return the manifest lists of all snapshots."""
        locations = (snapshot.manifestListLocation() for snapshot in self._metadata.snapshots())
        return {str(location) for location in locations if location is not None}

    def statistics(self) -> dict[str, int]:
        """Return the statistics files with their bytes."""
        files = [*self._metadata.statisticsFiles(), *self._metadata.partitionStatisticsFiles()]
        return {str(file.path()): int(file.fileSizeInBytes()) for file in files}

    def metadata_files(self) -> set[str]:
        """Return the metadata file itself and those of its log."""
        here = self._metadata.metadataFileLocation()
        return {str(entry.file()) for entry in self._metadata.previousFiles()} | (
            {str(here)} if here is not None else set()
        )

    def paths(self) -> Iterator[str]:
        """Yield the paths of all files."""
        yield from self.metadata_files()
        yield from self.statistics()
        yield from self.lists()
        yield from self.manifests()
        for row in self.content().select("path").toLocalIterator():
            yield row["path"]

    def _metadata_table(self, kind: str) -> Any:
        iceberg = self._jvm.org.apache.iceberg
        metadata = self._readable(self._metadata)
        static = iceberg.BaseTable(iceberg.StaticTableOperations(metadata, self._io), self._name)
        java = iceberg.spark.SparkTableUtil.loadMetadataTable(
            self._spark._jsparkSession, static, iceberg.MetadataTableType.valueOf(kind)
        )
        return DataFrame(java, self._spark)

    def _readable(self, metadata: Any) -> Any:
        """Return metadata whose columns Spark can read: metadata tables have the bounds of all columns, which are not used here."""
        if unreadable_column(self._jvm, metadata) is None:
            return metadata
        iceberg = self._jvm.org.apache.iceberg
        schema = with_readable_types(json.loads(iceberg.SchemaParser.toJson(metadata.schema())))
        java = iceberg.SchemaParser.fromJson(json.dumps(schema))
        return iceberg.TableMetadata.buildFrom(metadata).setCurrentSchema(java, metadata.lastColumnId()).build()


_READABLE = {"time": "long", "timestamp_ns": "timestamp", "timestamptz_ns": "timestamptz"}


def with_readable_types(kind: Any) -> Any:
    """Return a type in Iceberg's JSON without defaults, and with other types in place of those that Spark may refuse."""
    if isinstance(kind, str):
        return "binary" if kind.startswith(("geometry", "geography")) else _READABLE.get(kind, kind)
    parts = {part: with_readable_types(kind[part]) for part in ("element", "key", "value") if part in kind}
    if "fields" in kind:
        fields = [{**field, "type": with_readable_types(field["type"])} for field in kind["fields"]]
        parts["fields"] = [
            {key: value for key, value in field.items() if not key.endswith("-default")} for field in fields
        ]
    return {**kind, **parts}


def place(path: str) -> str:
    """Return a path without scheme, authority and percent-encoding: equal for all spellings of one file's path."""
    return unquote("/" + _PLACE.sub("", path).lstrip("/"))


class Places:
    """A set of places in eight bytes each.

    A hash collision may report a place that is not in the set, about once in 10**15 times. A place in the set is
    always found.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._hashes: npt.NDArray[np.int64] = np.unique(np.fromiter((hash(place(path)) for path in paths), np.int64))

    def __contains__(self, path: str) -> bool:
        at = int(np.searchsorted(self._hashes, hash(place(path))))
        return at < len(self._hashes) and bool(self._hashes[at] == hash(place(path)))

    def __len__(self) -> int:
        return len(self._hashes)
