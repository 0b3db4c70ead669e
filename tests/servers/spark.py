"""The jars and Java options of the Spark sessions that tests start on this machine."""

import os
import sys
from pathlib import Path

from firn_spark import session
from tests.servers.process import cache

JIT = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
"""A JVM of a test lives for a short time, so it uses the first compiler only. By default, it then has 48 MB for compiled code.
That fills up within minutes, and removing old code takes a quarter of the CPU time of the JVM."""
ARCHIVE = Path(sys.prefix) / "classes.jsa"
"""The archive that `make setup` writes for these jars with hack/images/spark/class_archive.py. Sessions start slower without it."""


def class_path() -> list[str]:
    """Return the jars that Spark's own jars need in tests, in the order that the archive was written for."""
    jars = [str(path) for kind in ("spark", "test") for path in sorted((cache() / "jars" / kind).glob("*.jar"))]
    assert jars, f"no jars in {cache() / 'jars'}: run make setup"
    return jars


def spark_conf() -> dict[str, str]:
    """Return the Spark configuration of a test's session."""
    environment = dict(os.environ)
    if ARCHIVE.exists():
        environment["FIRN_CLASS_ARCHIVE"] = str(ARCHIVE)
    return {
        "spark.driver.extraClassPath": ":".join(class_path()),
        "spark.driver.extraJavaOptions": f"{session.java_options(2, environment)} {JIT}",
    }


if __name__ == "__main__":
    print(*class_path())
