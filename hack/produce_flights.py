"""Runs inside a pod: reads the zipped flights CSV from standard input and writes each flight as a JSON record, keyed by carrier,
with an ordinary Kafka client. Prints progress lines, then one JSON line with what the brokers acknowledged: how many records, and the
offset after the last of each partition.

    python produce_flights.py BOOTSTRAP TOPIC [LIMIT]

The variable ``KAFKA_USER`` may name a directory with the files of a TopicUser's Secret.
"""

import csv
import io
import json
import os
import sys
import time
import zipfile
from pathlib import Path

from confluent_kafka import Message, Producer

TEXTS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


def flight(row: dict[str, str]) -> dict[str, object]:
    """Return the JSON values of a CSV row: numbers as numbers, NA and empty as null."""
    return {
        name: None if text in ("", "NA") else text if name in TEXTS else float(text) if "." in text else int(text)
        for name, text in row.items()
    }


def main(bootstrap: str, topic: str, limit: int) -> int:
    """Produce at most ``limit`` flights. Returns 0 if the brokers acknowledged each of them."""
    acknowledged = failed = 0
    ends: dict[int, int] = {}

    def delivered(error: object, message: Message) -> None:
        nonlocal acknowledged, failed
        if error is None:
            acknowledged += 1
            part, offset = message.partition(), message.offset()
            assert part is not None
            assert offset is not None
            ends[part] = max(offset + 1, ends.get(part, 0))
        else:
            failed += 1

    directory = os.environ.get("KAFKA_USER")
    user = json.loads(Path(directory, "librdkafka.json").read_text()) if directory else {}
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 50, "compression.type": "lz4"} | user
    )
    archive = zipfile.ZipFile(io.BytesIO(sys.stdin.buffer.read()))
    started = time.monotonic()
    with archive.open(archive.namelist()[0]) as raw:
        for count, row in enumerate(csv.DictReader(io.TextIOWrapper(raw, "utf-8")), 1):
            if count > limit:
                break
            value = json.dumps(flight(row), separators=(",", ":"))
            while True:
                try:
                    producer.produce(topic, value, row["carrier"], on_delivery=delivered)
                    break
                except BufferError:
                    producer.poll(0.1)
            if count % 50_000 == 0:
                print(f"produced {count:,} flights, {acknowledged:,} acknowledged", flush=True)
    producer.flush(120)
    seconds = round(time.monotonic() - started, 1)
    print(json.dumps({"acknowledged": acknowledged, "failed": failed, "seconds": seconds, "ends": ends}), flush=True)
    return 0 if failed == 0 and len(producer) == 0 else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else sys.maxsize))
