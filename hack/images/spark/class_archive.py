"""Write an archive of the Java classes that a Spark application of Firn loads: class_archive.py FILE [JAR...]

A JVM that maps the archive at its start does not read, verify and link these classes again. That work is a large part of
the CPU time of a maintenance run and of a driver's start. The archive fits one Java version, one class path and
the current files on it. A JVM ignores the archive if one of them differs. `JAR...` come before Spark's own jars on the class path.
Source: JDK 17, "Application Class-Data Sharing", https://openjdk.org/jeps/350.
"""

import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

UNREACHABLE = "127.0.0.1:9"
LAKE = "spark.sql.catalog.lake"
CONF = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    LAKE: "org.apache.iceberg.spark.SparkCatalog",
    f"{LAKE}.type": "hadoop",
}


def use(spark: SparkSession) -> None:
    """Load the classes: write, read and maintain a table, run Python tasks, and open catalogs and a store that do not answer."""
    spark.sparkContext.setLogLevel("OFF")
    spark.sql("CREATE TABLE lake.a.t (id bigint, day date, v string) USING iceberg PARTITIONED BY (days(day))")
    spark.sql("INSERT INTO lake.a.t VALUES (1, date '2026-01-01', 'x'), (2, date '2026-01-02', 'x')")
    spark.sql("INSERT INTO lake.a.t VALUES (3, date '2026-01-01', 'y')")
    spark.sql("SELECT day, count(*), max(v) FROM lake.a.t GROUP BY day ORDER BY day").collect()
    spark.sql("CALL lake.system.rewrite_data_files(table => 'a.t', options => map('rewrite-all', 'true'))").collect()
    spark.sql("CALL lake.system.rewrite_manifests('a.t')").collect()
    spark.sql("CALL lake.system.expire_snapshots(table => 'a.t', retain_last => 1)").collect()
    spark.sql("CALL lake.system.remove_orphan_files(table => 'a.t', dry_run => true)").collect()
    spark.sparkContext.parallelize(range(2), 2).mapPartitions(lambda numbers: [sum(numbers)]).collect()

    java: Any = spark._jvm
    with contextlib.suppress(Py4JJavaError):
        database = {"uri": f"jdbc:postgresql://{UNREACHABLE}/lake", "warehouse": "s3://lake/warehouse"}
        java.org.apache.iceberg.jdbc.JdbcCatalog().initialize("lake", database)
    with contextlib.suppress(Py4JJavaError):
        java.org.apache.iceberg.rest.RESTCatalog().initialize("lake", {"uri": f"http://{UNREACHABLE}"})
    store = java.org.apache.iceberg.aws.s3.S3FileIO()
    store.initialize(
        {
            "s3.endpoint": f"http://{UNREACHABLE}",
            "s3.path-style-access": "true",
            "s3.access-key-id": "none",
            "s3.secret-access-key": "none",
            "client.region": "us-east-1",
        }
    )
    with contextlib.suppress(Py4JJavaError):
        store.newInputFile("s3://lake/file").exists()
    store.close()


def main() -> None:
    """Write the archive to the file that the first argument names."""
    file, *jars = sys.argv[1:]
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"  # the host name of an image's build has no address
    options = f"-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ArchiveClassesAtExit={file} -Xlog:disable"
    with tempfile.TemporaryDirectory() as warehouse:
        builder = SparkSession.builder.config("spark.driver.extraJavaOptions", options)
        for key, value in (CONF | {f"{LAKE}.warehouse": warehouse}).items():
            builder = builder.config(key, value)
        if jars:
            builder = builder.config("spark.driver.extraClassPath", ":".join(jars))
        spark = builder.getOrCreate()
        gateway: Any = SparkContext._gateway
        use(spark)
        spark.stop()
        # The JVM ends when its input does, and writes the archive as it ends.
        gateway.shutdown()
        gateway.proc.stdin.close()
        code = gateway.proc.wait()
    if code or not Path(file).exists():
        sys.exit(
            f"class_archive.py: {file} is missing or incomplete, because the JVM ended with code {code};"
            " remove -Xlog:disable from this program and run it again to see the cause"
        )


if __name__ == "__main__":
    main()
