"""The process from which Spark forks its Python workers (``spark.python.daemon.module``).

It imports what every task needs, so that a worker is ready in milliseconds and shares this memory with its siblings.
"""

import gc

from firn_spark.import_path import leave_archives_out

if __name__ == "__main__":
    leave_archives_out()

import pyarrow as pa
from pyspark import daemon

import firn_spark.worker.formats.json.blocks
import firn_spark.worker.landing  # noqa: F401  the imports are the purpose
from firn_spark.worker.fetching import kernel as fetching_kernel
from firn_spark.worker.fetching import objects, source  # noqa: F401
from firn_spark.worker.formats.json import kernel

if __name__ == "__main__":
    kernel.warm()
    fetching_kernel.warm()
    pa.set_cpu_count(1)  # a worker runs one task on one core
    # A collection writes to all objects that it looks at, and a worker would then have its own copy of this memory.
    gc.collect()
    gc.freeze()
    daemon.manager()  # type: ignore[no-untyped-call]
