"""The simplest form of the driver's work around a landing: read the table and commit the files."""

import json
from typing import Any

from firn_spark.worker.data_files import TableSpec
from firn_spark.worker.landing import Kind


def java_table(spark: Any, identifier: str) -> Any:
    return spark._jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(spark._jsparkSession, identifier)


def table_spec(spark: Any, identifier: str, **io: Any) -> Any:
    table, iceberg = java_table(spark, identifier), spark._jvm.org.apache.iceberg
    return TableSpec(
        schema=iceberg.SchemaParser.toJson(table.schema()),
        partition_spec=iceberg.PartitionSpecParser.toJson(table.spec()),
        sort_order=iceberg.SortOrderParser.toJson(table.sortOrder()),
        location=table.location(),
        properties=dict(table.properties()),
        io=io,
    )


def results(batches: Any) -> Any:
    return [(row["kind"], json.loads(row["json"])) for batch in batches for row in batch.to_pylist()]


def of_kind(output: Any, kind: str) -> Any:
    return [content for name, content in output if name == kind]


def commit(spark: Any, identifier: str, output: Any, kind: str = Kind.DATA) -> None:
    """Append the data files of ``output``."""
    table, iceberg = java_table(spark, identifier), spark._jvm.org.apache.iceberg
    append = table.newAppend()
    for descriptor in of_kind(output, kind):
        node = iceberg.util.JsonUtil.mapper().readTree(json.dumps(descriptor))
        append.appendFile(iceberg.ContentFileParser.fromJson(node, table.specs()))
    append.commit()
    spark.catalog.refreshTable(identifier)
