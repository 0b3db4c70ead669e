"""The process from which Spark forks the Python workers of a maintenance run (``spark.python.daemon.module``).

It imports what merges need, and not the compiler of `firn_spark.worker_daemon`, which takes seconds to start.
"""

from firn_spark.import_path import leave_archives_out

if __name__ == "__main__":
    leave_archives_out()

import pyarrow as pa
from pyspark import daemon

import firn_spark.worker.merging.merge  # noqa: F401  the import is the purpose

if __name__ == "__main__":
    pa.set_cpu_count(1)  # a worker runs one task on one core
    daemon.manager()  # type: ignore[no-untyped-call]
