"""Workers that authenticate: of Kafka Connect, and of Spark with its own source and sink for Kafka."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.integration.broker.secure_clients import RECORDS, Login, Run
from tests.servers.kafka import program
from tests.servers.process import free_port, running
from tests.servers.spark import spark_conf

STRINGS = "org.apache.kafka.connect.storage.StringConverter"
LINES = [str(number) for number in range(RECORDS)]
SPARK = """
import json, sys
from pyspark.sql import SparkSession
asked = json.load(sys.stdin)
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1")
for key, value in asked["conf"].items():
    builder = builder.config(key, value)
spark = builder.getOrCreate()
frame = spark.createDataFrame([(line,) for line in asked["lines"]], "value string")
frame.write.format("kafka").options(**asked["options"], topic=asked["topic"]).save()
reader = spark.read.format("kafka").options(**asked["options"], subscribe=asked["topic"], groupIdPrefix=asked["topic"])
print(json.dumps(sorted(row.value.decode() for row in reader.load().select("value").collect())))
"""


def settings(login: Login, directory: Path) -> dict[str, str]:
    """Return the settings of a Java client."""
    lines = login.java(directory).read_text().splitlines()
    return {key: value for key, _, value in (line.partition("=") for line in lines)}


def connect(login: Login, topic: str, directory: Path) -> None:
    source, sink = directory / "source.txt", directory / "sink.txt"
    source.write_text("".join(f"{line}\n" for line in LINES))
    secure = settings(login, directory)
    worker = {
        "bootstrap.servers": login.bootstrap, "key.converter": STRINGS, "value.converter": STRINGS,
        "offset.storage.file.filename": str(directory / "offsets"), "plugin.discovery": "service_load",
        "listeners": f"http://127.0.0.1:{free_port()}",
    }  # fmt: skip
    worker |= {f"{part}{key}": value for part in ("", "producer.", "consumer.") for key, value in secure.items()}
    connectors = {
        "source": {"connector.class": "FileStreamSource", "file": str(source), "topic": topic},
        "sink": {
            "connector.class": "FileStreamSink", "file": str(sink), "topics": topic, "consumer.override.group.id": topic,
        },
    }  # fmt: skip
    files = []
    for name, values in {"worker": worker, **connectors}.items():
        files.append(directory / f"{name}.properties")
        files[-1].write_text("".join(f"{key}={value}\n" for key, value in {"name": name, **values}.items()))
    flags = login.flags(directory)
    command = program("org.apache.kafka.connect.cli.ConnectStandalone", *map(str, files), jars="connect", flags=flags)

    def copied() -> bool:
        return sink.exists() and len(sink.read_text().splitlines()) >= RECORDS

    with running(command, copied, directory / "connect.log", seconds=120):
        pass
    assert sink.read_text().splitlines() == LINES


def spark(login: Login, topic: str, directory: Path) -> None:
    options = {f"kafka.{key}": value for key, value in settings(login, directory).items()}
    options["kafka.bootstrap.servers"] = login.bootstrap
    conf = spark_conf()
    conf["spark.driver.extraJavaOptions"] += "".join(f" {flag}" for flag in login.flags(directory) if "-D" in flag)
    asked = {"conf": conf, "options": options, "topic": topic, "lines": LINES}
    ended = subprocess.run(
        [sys.executable, "-c", SPARK],
        input=json.dumps(asked),
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == sorted(LINES)


WORKERS: dict[str, Run] = {"connect": connect, "spark": spark}
