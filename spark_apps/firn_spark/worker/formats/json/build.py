"""Compiles the JSON kernel ahead of time: ``python -m firn_spark.worker.formats.json.build DIRECTORY``.

The build of the Spark image runs this with no more of the project than the modules that the kernel imports.
"""

import shutil
import sys

from firn_spark.worker import compiled
from firn_spark.worker.formats.json import kernel


def build(directory: str) -> None:
    """Compile every kernel function and copy the machine code to ``directory``."""
    kernel.warm()
    shutil.copytree(compiled.DIRECTORY, directory, dirs_exist_ok=True)


if __name__ == "__main__":
    build(sys.argv[1])
