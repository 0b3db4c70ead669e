"""Reads of a topic by clients other than librdkafka, as the digests of `tests.log_records`."""

import subprocess
from pathlib import Path
from typing import Any

from tests.log_records import LogRecord, digests
from tests.servers.kafka import program

_DIGEST = Path(__file__).parents[2] / "clients" / "digest" / "Digest.java"


def by_java(bootstrap: str, topic: str) -> dict[int, str]:
    """Read with Kafka's own client."""
    return _printed(program(str(_DIGEST), bootstrap, topic))


def by_franz_go(client: Path, bootstrap: str, topic: str) -> dict[int, str]:
    """Read with the program of tests/clients/franz."""
    return _printed([str(client), bootstrap, topic, "digest"])


def by_spark(spark: Any, bootstrap: str, topic: str) -> dict[int, str]:
    """Read with Spark's Kafka source."""
    options = {
        "kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest", "includeHeaders": "true"
    }  # fmt: skip
    frame = spark.read.format("kafka").options(**options).load()
    rows = frame.selectExpr("*", "cast(unix_millis(timestamp) as bigint) as milliseconds").collect()
    return digests(sorted(map(_record, rows), key=lambda record: record[:2]))


def _record(row: Any) -> LogRecord:
    headers = tuple((header["key"], _bytes(header["value"])) for header in row["headers"] or ())
    time = row["timestampType"] + 1, row["milliseconds"]
    return LogRecord(row["partition"], row["offset"], time, _bytes(row["key"]), _bytes(row["value"]), headers)


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def _printed(command: list[str]) -> dict[int, str]:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return {int(partition): digest for partition, digest in map(str.split, ended.stdout.splitlines())}
