"""The process that Spark forks its Python workers from (``spark.python.daemon.module``). Importing here what every task needs makes a
worker ready in milliseconds, and its memory shared with its siblings."""

import pyarrow as pa
from pyspark import daemon

import firn_spark.worker.formats.json.blocks
import firn_spark.worker.landing  # noqa: F401  the imports are the purpose
from firn_spark.worker.formats.json import kernel

if __name__ == "__main__":
    kernel.warm()
    pa.set_cpu_count(1)  # a worker is one task, and has one core
    daemon.manager()  # type: ignore[no-untyped-call]
