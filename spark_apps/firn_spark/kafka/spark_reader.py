"""Records through Spark's own Kafka source, for much data. Its tasks get Arrow batches."""

import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import functions

from firn_spark.kafka.client_reader import Ranges

SMALL_RECORD_BYTES = 8 * 1024
"""Key and value of a record that is read by `small_records_session`."""
SMALL_BATCH_RECORDS = 512


def spark_records(spark: Any, options: Mapping[str, str], topics: Mapping[str, Ranges], tasks: int, split: bool) -> Any:
    """A DataFrame of the records in ``topics``' ranges, in about ``tasks`` partitions; a range is read by several tasks only where ``split``.
    Records without headers have an empty list of them."""
    starts = {topic: {str(p): start for p, (start, _) in ranges.items()} for topic, ranges in topics.items()}
    ends = {topic: {str(p): end for p, (_, end) in ranges.items()} for topic, ranges in topics.items()}
    count = sum(len(ranges) for ranges in topics.values())
    reader = (
        spark.read.format("kafka")
        .options(**options)
        .option("assign", json.dumps({topic: sorted(ranges) for topic, ranges in topics.items()}))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
    )
    if split and count < tasks:
        reader = reader.option("minPartitions", str(tasks))
    # Spark weighs an Arrow batch after every row, and for rows of null lists Arrow then goes through the whole batch again: with an empty
    # list in place of null, a million records cost 6 CPU seconds where they cost 80.
    frame = reader.load().withColumn("headers", functions.expr("coalesce(headers, array())"))
    return frame.coalesce(tasks) if count > tasks else frame


def small_records_session(spark: Any) -> Any:
    """A session of the same application that sends Arrow batches to Python by number of records and does not weigh them after every row,
    which costs a third of the JVM's time. For topics whose records were small so far: should large ones come after all, a batch is a few
    hundred of them at most."""
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(SMALL_BATCH_RECORDS))
    session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1))
    return session
