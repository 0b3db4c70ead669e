"""Compiles the kernels ahead of time: ``python -m firn_spark.worker.build DIRECTORY``.

The build of the Spark image runs this with no more of the project than the modules that the kernels import.
"""

import shutil
import sys

from firn_spark.worker import compiled
from firn_spark.worker.fetching import kernel as fetching
from firn_spark.worker.formats.avro import kernel as avro
from firn_spark.worker.formats.json import kernel as json
from firn_spark.worker.formats.json import variant_kernel
from firn_spark.worker.formats.protobuf import kernel as protobuf


def build(directory: str) -> None:
    """Compile every kernel function and copy the machine code to ``directory``."""
    avro.warm()
    json.warm()
    variant_kernel.warm()
    protobuf.warm()
    fetching.warm()
    shutil.copytree(compiled.DIRECTORY, directory, dirs_exist_ok=True)


if __name__ == "__main__":
    build(sys.argv[1])
