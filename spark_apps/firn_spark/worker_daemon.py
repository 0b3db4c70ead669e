"""The process that Spark forks its Python workers from (``spark.python.daemon.module``). Importing here what every task needs makes a
worker ready in milliseconds, and its memory shared with its siblings."""

from pyspark import daemon

import firn_spark.landing  # noqa: F401  the import is the purpose

if __name__ == "__main__":
    daemon.manager()
