"""Equality deletes, as streaming upserts of other engines write them."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from firn_operator.adapters import secret_files
from firn_operator.adapters.iceberg.file_io import ObjectFileIO
from tests.integration.maintenance.lake import CATALOG, Topic


def delete_values(topic: Topic, ids: list[int], spec: int | None = None, partition: str | None = None) -> None:
    """Commit one equality delete file by column ``id``: for the whole table, or for a partition such as
    ``at_day=2024-05-01`` of a partition spec."""
    table = topic.fresh()
    field = table.schema().findField("id")
    number = int(field.fieldId())
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata={"PARQUET:field_id": str(number)})])
    content = io.BytesIO()
    pq.write_table(pa.table({"id": ids}, schema=schema), content)
    place = f"{table.location()}/data/values-{ids[0]}.parquet"
    connection = topic.lake.contract.catalogs[CATALOG]
    properties = secret_files.merged(connection.properties, connection.secret_properties, CATALOG)
    with ObjectFileIO(properties).new_output(place).create() as output:
        output.write(content.getvalue())
    jvm = topic.tables.jvm
    iceberg = jvm.org.apache.iceberg
    columns = topic.lake.spark.sparkContext._gateway.new_array(jvm.int, 1)
    columns[0] = number
    builder = (
        iceberg.FileMetadata.deleteFileBuilder(table.spec() if spec is None else table.specs()[spec])
        .ofEqualityDeletes(columns)
        .withPath(place)
        .withFormat("parquet")
        .withFileSizeInBytes(len(content.getvalue()))
        .withRecordCount(len(ids))
    )
    if partition is not None:
        builder = builder.withPartitionPath(partition)
    table.newRowDelta().addDeletes(builder.build()).commit()
