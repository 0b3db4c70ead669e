"""`python3 -m hack.localcluster.artifacts.wheels`: the PySpark wheel, for the Spark image and the Python environment."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from hack.support.command import run
from hack.support.content import locked
from hack.support.places import REPOSITORY, cache_directory
from hack.support.progress import Failure, step


def pyspark() -> Path:
    """Return the directory of the cache with the wheel. A build from the hashed source package takes minutes, so it is done once."""
    requirement = REPOSITORY / "requirements" / "pyspark.txt"
    version = requirement.read_text().partition("==")[2].split()[0]
    shelf = cache_directory("wheels")
    with locked(cache_directory() / "wheels.lock"):
        if not list(shelf.glob(f"pyspark-{version}-*.whl")):
            with step("building the PySpark wheel"), tempfile.TemporaryDirectory(dir=shelf) as scratch:
                run([sys.executable, "-m", "venv", f"{scratch}/venv"])
                pip = f"{scratch}/venv/bin/python -m pip wheel -q --disable-pip-version-check --no-deps --require-hashes".split()
                # The pip of Debian 12 otherwise builds with the package `wheel`, which new environments do not have.
                pip += ["--use-pep517"]
                # Most of the wheel consists of jars, which are already compressed.
                pip += ["--config-settings=--build-option=--compression=stored"]
                run([*pip, "-r", requirement, "-w", scratch], log=cache_directory("logs") / "pyspark.log")
                for wheel in Path(scratch).glob("pyspark-*.whl"):
                    wheel.rename(shelf / wheel.name)
    return shelf


def main() -> int:
    """Build the wheel if the cache lacks it."""
    try:
        pyspark()
    except Failure as failure:
        print(f"PySpark: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
