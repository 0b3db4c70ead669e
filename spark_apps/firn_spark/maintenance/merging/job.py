"""Runs merges as Spark jobs, and describes tables and files (Java) for them."""

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import structlog

from firn_spark.jvm import texts
from firn_spark.maintenance.merging.eligibility import FileFacts, TableFacts
from firn_spark.maintenance.scans import Columns
from firn_spark.tables.java_errors import JAVA_ERRORS
from firn_spark.tables.java_tables import data_file, table_spec
from firn_spark.tables.vended import io_properties
from firn_spark.worker.merging.merge import merge
from firn_spark.worker.merging.plan import Kind, MergePlan, SourceFile

log = structlog.get_logger()


class MergeJobs:
    """Merges files of one partition on one Spark session."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._jvm = spark._jvm

    def table_facts(self, table: Any) -> TableFacts:
        """Describe a table for the decision."""
        return TableFacts(
            format_version=int(table.operations().current().formatVersion()),
            spec_id=int(table.spec().specId()),
            sorted=bool(table.sortOrder().isSorted()),
            schema=str(self._jvm.org.apache.iceberg.SchemaParser.toJson(table.schema())),
            properties=texts(table.properties()),
            file_settings=frozenset(io_properties(self._jvm, table.io(), str(table.location()))),
            void_partition=not table.spec().isPartitioned() and bool(table.spec().fields().size()),
        )

    def file_facts(self, tasks: Sequence[Any]) -> list[FileFacts]:
        """Describe the files of scan tasks for the decision."""
        columns, listed = self._columns(tasks)
        files = columns.files(listed)
        return [
            FileFacts(form, spec_id, deletes, bool(key), bool(first))
            for form, spec_id, deletes, key, first in zip(
                columns.values(files, "format"),
                columns.numbers(files, "specId"),
                columns.delete_counts(listed),
                columns.values(files, "keyMetadata"),
                columns.values(files, "firstRowId"),
                strict=True,
            )
        ]

    def merge(self, table: Any, tasks: Sequence[Any], outputs: int) -> list[Any] | None:
        """Return the new data files (Java) with the rows of ``tasks``; None if Spark has to rewrite them.

        Raises as Spark does if all attempts of the task fail.
        """
        plan = self._plan(table, tasks, outputs)
        rows = self._spark.sparkContext.parallelize([plan], 1).mapPartitions(merge).collect()
        reasons = [text for kind, text in rows if kind == Kind.UNFIT]
        if reasons:
            log.warning(
                "a task cannot merge the files; Spark rewrites them", table=str(table.name()), reason=reasons[0]
            )
            return None
        try:
            return [data_file(self._jvm, table, text) for _, text in rows]
        except JAVA_ERRORS:
            # No commit will name these files.
            for _, text in rows:
                with contextlib.suppress(*JAVA_ERRORS):
                    table.io().deleteFile(json.loads(text)["file-path"])
            raise

    def _plan(self, table: Any, tasks: Sequence[Any], outputs: int) -> MergePlan:
        columns, listed = self._columns(tasks)
        data_files = columns.files(listed)
        spec, first = table.spec(), tasks[0].file()
        described = json.loads(self._jvm.org.apache.iceberg.ContentFileParser.toJson(first, spec))
        partitioned = bool(spec.isPartitioned())
        files = tuple(
            SourceFile(path, size, records, sequence, int(row_id) if row_id else None)
            for path, size, records, sequence, row_id in zip(
                columns.values(data_files, "location"),
                columns.numbers(data_files, "fileSizeInBytes"),
                columns.numbers(data_files, "recordCount"),
                columns.numbers(data_files, "dataSequenceNumber"),
                columns.values(data_files, "firstRowId"),
                strict=True,
            )
        )
        return MergePlan(
            table=table_spec(self._jvm, table),
            files=files,
            outputs=outputs,
            partition=tuple(described["partition"]) if partitioned else (),
            partition_path=str(spec.partitionToPath(first.partition())) if partitioned else "",
            lineage=int(table.operations().current().formatVersion()) >= 3,
        )

    def _columns(self, tasks: Sequence[Any]) -> tuple[Columns, Any]:
        listed = self._jvm.java.util.ArrayList()
        for task in tasks:
            listed.add(task)
        return Columns(self._jvm), listed
