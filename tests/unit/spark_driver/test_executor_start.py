"""The image's entry point starts an executor from the environment variables that Spark's scheduler for Kubernetes
sets."""

import os
import subprocess
from pathlib import Path

ENTRYPOINT = Path(__file__).parents[3] / "hack/images/spark/bin/entrypoint"
ENVIRONMENT = {
    "SPARK_JAVA_OPT_0": "-Dspark.authenticate=true",
    "SPARK_JAVA_OPT_1": "-Dspark.x=two words",
    "_SPARK_AUTH_SECRET": "from the driver",
    "SPARK_EXECUTOR_MEMORY": "1g",
    "SPARK_HOME": "/opt/firn/spark",
    **{
        f"SPARK_{name}": name.lower()
        for name in (
            "DRIVER_URL",
            "EXECUTOR_ID",
            "EXECUTOR_CORES",
            "APPLICATION_ID",
            "EXECUTOR_POD_IP",
            "RESOURCE_PROFILE_ID",
            "EXECUTOR_POD_NAME",
        )
    },
}


def test_an_executor_gets_its_options_and_the_secret_of_its_driver(tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "secret: $_SPARK_AUTH_SECRET" "$@"\n')
    java.chmod(0o755)
    lines = subprocess.run(
        ["sh", str(ENTRYPOINT), "executor"],
        env={"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", **ENVIRONMENT},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert lines[:5] == [
        "secret: from the driver",
        "-Dspark.authenticate=true",
        "-Dspark.x=two words",
        "-Xms1g",
        "-Xmx1g",
    ]
    assert lines[lines.index("--driver-url") + 1] == "driver_url"
