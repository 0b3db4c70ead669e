"""Equality deletes, as streaming upserts of other engines write them."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from firn_operator.adapters import secret_files
from firn_operator.adapters.iceberg.file_io import ObjectFileIO
from tests.integration.maintenance.lake import CATALOG, Topic


def delete_values(topic: Topic, ids: list[int]) -> None:
    """Commit one equality delete file by column ``id``."""
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
    file = (
        iceberg.FileMetadata.deleteFileBuilder(table.spec())
        .ofEqualityDeletes(columns)
        .withPath(place)
        .withFormat("parquet")
        .withFileSizeInBytes(len(content.getvalue()))
        .withRecordCount(len(ids))
        .build()
    )
    table.newRowDelta().addDeletes(file).commit()
