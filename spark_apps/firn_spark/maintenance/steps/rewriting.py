"""Rewrites data files into new ones. It commits nothing.

Tasks merge files with Arrow if nothing else changes (`firn_spark.maintenance.merging`). For all other rewrites, the
files are staged as scan tasks of one snapshot, as Iceberg's own rewrite action does (``SparkDataFileRewriteRunner``).
That keeps the row lineage of format 3, and the new files follow the table's properties.
"""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from pyspark.sql import functions

from firn.model.errors import InvalidSpecError
from firn.tables import transforms
from firn_spark.failpoints import Failpoints
from firn_spark.jvm import JavaNames, elements
from firn_spark.maintenance.merging.eligibility import obstacle
from firn_spark.maintenance.merging.job import MergeJobs
from firn_spark.maintenance.steps import z_order
from firn_spark.tables.java_errors import JAVA_ERRORS
from firn_spark.tables.java_tables import sort_terms, staged
from firn_spark.tables.swaps import short

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The arrangement of rows in new files. ``strategy`` BinPack keeps their order."""

    strategy: str = "BinPack"
    columns: tuple[str, ...] = ()


def planned(scan: Any) -> Iterator[Any]:
    """Yield the scan tasks of a table scan."""
    tasks = scan.planFiles()
    try:
        yield from elements(tasks.iterator())
    finally:
        tasks.close()


class Rewriter:
    """Writes new data files on one Spark session."""

    def __init__(self, spark: Any, failpoints: Failpoints) -> None:
        self._spark = spark
        self._jvm = JavaNames(spark._jvm)
        self._failpoints = failpoints
        self._merges = MergeJobs(spark)

    def rewrite(
        self,
        table: Any,
        catalog: str,
        tasks: Sequence[Any],
        outputs: int,
        target_bytes: int,
        arrangement: Arrangement | None = None,
        keep: str | None = None,
    ) -> list[Any]:
        """Return the new data files (Java) with the rows of ``tasks`` that match ``keep`` (SQL; None: all). Raises
        `JAVA_ERRORS`."""
        arrangement = arrangement or Arrangement()
        group = uuid.uuid4().hex
        iceberg = self._jvm.org.apache.iceberg
        cache = iceberg.spark.SparkTableCache.get()
        task_sets = iceberg.spark.ScanTaskSetManager.get()
        coordinator = iceberg.spark.FileRewriteCoordinator.get()
        try:
            self._failpoints.reach("before-rewrite")
            merged = self._merged(table, tasks, outputs, arrangement, keep)
            if merged is not None:
                self._failpoints.reach("after-rewrite")
                return merged
            cache.add(group, table)
            task_sets.stageTasks(table, group, list(tasks))
            self._write(table, catalog, group, tasks, outputs, target_bytes, arrangement, keep)
            files = list(coordinator.fetchNewFiles(table, group))
            self._failpoints.reach("after-rewrite")
            return files
        finally:
            cache.remove(group)
            task_sets.removeTasks(table, group)
            coordinator.clearRewrite(table, group)

    def _merged(
        self, table: Any, tasks: Sequence[Any], outputs: int, arrangement: Arrangement, keep: str | None
    ) -> list[Any] | None:
        """Return the new data files of a plain merge; None if Spark has to rewrite the files."""
        reason = obstacle(
            self._merges.table_facts(table), self._merges.file_facts(tasks), arrangement.strategy, keep is not None
        )
        if reason:
            log.info("Spark rewrites the files", table=str(table.name()), reason=reason)
            return None
        return self._merges.merge(table, tasks, outputs)

    def _write(
        self,
        table: Any,
        catalog: str,
        group: str,
        tasks: Sequence[Any],
        outputs: int,
        target_bytes: int,
        arrangement: Arrangement,
        keep: str | None,
    ) -> None:
        total = sum(task.sizeBytes() for task in tasks)
        # Each split becomes a file. Bin-packing fills splits unevenly, so a tenth more room gives the planned number of files.
        split = max(total // outputs * 11 // 10, 1) if outputs > 1 else max(total * 2, 1)
        frame = self._spark.read.format("iceberg").option("split-size", split).option("file-open-cost", "0").load(group)
        if keep is not None:
            frame = frame.where(keep)
        spec, order = table.spec().specId(), table.sortOrder()
        # Files may become larger than planned. Cutting them would leave tiny files.
        options = {"output-spec-id": spec, "target-file-size-bytes": target_bytes * 3 // 2}
        moved = any(task.spec().specId() != spec for task in tasks)
        if arrangement.strategy == "BinPack":
            if moved:
                # Rows move to partitions of another spec, and are shuffled by them.
                options["distribution-mode"] = "hash"
            elif order.isSorted():
                options["distribution-mode"] = "none"
            else:
                options["use-table-distribution-and-ordering"] = "false"
        else:
            frame = arranged(frame, table, catalog, arrangement, outputs)
            options |= {"use-table-distribution-and-ordering": "false", "fanout-enabled": str(moved).lower()}
            if arrangement.strategy == "Sort" and not arrangement.columns:
                options["output-sort-order-id"] = order.orderId()
        frame.write.format("iceberg").options(**options).mode("append").save(group)

    def count(self, table: Any, tasks: Sequence[Any], matching: str) -> int:
        """Return the number of rows of ``tasks`` that match (SQL)."""
        with staged(self._spark, table, list(tasks)) as frame:
            return int(frame.where(matching).count())

    def count_by_file(self, table: Any, tasks: Sequence[Any], matching: str) -> dict[str, int]:
        """Return the number of rows of ``tasks`` that match (SQL), by the location of their file, with one Spark job."""
        with staged(self._spark, table, list(tasks)) as frame:
            return {str(path): int(count) for path, count in frame.where(matching).groupBy("_file").count().collect()}

    def discard(self, table: Any, files: Sequence[Any]) -> None:
        """Delete files whose commit was never tried, or was certainly refused. Best effort: orphan removal finds the
        rest."""
        try:
            io = table.io()
            for file in files:
                io.deleteFile(file.location())
        except JAVA_ERRORS as error:
            log.warning("files of a failed commit could not be deleted", table=str(table.name()), error=short(error))


def arranged(frame: Any, table: Any, catalog: str, arrangement: Arrangement, outputs: int) -> Any:
    """Return ``frame`` ordered by ``arrangement``, in ``outputs`` parts. Raises InvalidSpecError for unusable
    columns."""
    if arrangement.strategy == "ZOrder":
        return z_order.ordered(frame, arrangement.columns, outputs, str(table.name()))
    columns = sort_columns(table, catalog, arrangement.columns)
    # Parts are ranges, so the order holds across files too.
    return frame.repartitionByRange(outputs, *columns).sortWithinPartitions(*columns)


def sort_columns(table: Any, catalog: str, texts: Sequence[str]) -> list[Any]:
    """Return Spark's columns for sort terms as users write them; without terms, for the table's own order."""
    name = str(table.name())
    terms = [transforms.parse_sort(text) for text in (texts or sort_terms(table))]
    if not terms:
        raise InvalidSpecError(f"table {name}: strategy Sort needs columns, or a table with sortBy")
    return [_sort_column(table, catalog, term) for term in terms]


def _sort_column(table: Any, catalog: str, term: transforms.SortTerm) -> Any:
    if table.schema().findField(term.term.column) is None:
        raise InvalidSpecError(f"table {table.name()}: there is no column {term.term.column} to sort by")
    path = ".".join(f"`{part}`" for part in term.term.column.split("."))
    match term.term.transform:
        case "identity":
            column = functions.col(path)
        case "bucket" | "truncate" as function:
            column = functions.expr(f"`{catalog}`.system.{function}({term.term.argument}, {path})")
        case "year" | "month" | "day" | "hour" as function:
            column = functions.expr(f"`{catalog}`.system.{function}s({path})")
        case other:
            raise InvalidSpecError(
                f"table {table.name()}: sorting by {other}({term.term.column}) is not supported; use"
                " identity, bucket, truncate, year, month, day or hour"
            )
    if term.descending:
        return column.desc_nulls_first() if term.nulls_first else column.desc_nulls_last()
    return column.asc_nulls_first() if term.nulls_first else column.asc_nulls_last()
