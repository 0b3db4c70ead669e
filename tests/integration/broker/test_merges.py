"""Brokers merge objects in a process of their own, over PostgreSQL and S3 and over a directory."""

import os
import signal
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.integration.broker.test_librdkafka import create, produce, read
from tests.servers.firn_broker import FirnBroker, embedded, fleet_settings, of_fleet
from tests.servers.postgres import Postgres
from tests.servers.process import await_true, free_port
from tests.servers.s3 import S3

PARTITIONS = 5
ROUNDS = 6
UPKEEP = {"intervalSeconds": 0.5, "graceSeconds": 2, "mergeSeconds": 1, "mergedBytes": 10_000_000}


def counted(port: int, what: str) -> float:
    """Return a count of maintenance."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        name = f'firn_broker_upkeep_total{{what="{what}"}} '
        return sum(
            float(line.removeprefix(name)) for line in answer.read().decode().splitlines() if line.startswith(name)
        )


def fill(broker: FirnBroker, topic: str) -> list[bytes]:
    """Produce records in several rounds, each of which is an object at least."""
    values = []
    for number in range(ROUNDS):
        some = [b"%d-%d" % (number, each) for each in range(50)]
        produce(broker, topic, [{"value": value, "partition": each % PARTITIONS} for each, value in enumerate(some)])
        values += some
    return values


def check_merged(broker: FirnBroker, topic: str, metrics: int) -> None:
    """Check that a new reader gets all records after a merge, in order."""
    values = fill(broker, topic)
    await_true("objects are merged", lambda: counted(metrics, "merged objects") >= ROUNDS)
    await_true("the small objects are deleted", lambda: counted(metrics, "deleted objects") >= ROUNDS)
    messages = read(broker, topic, len(values))
    assert sorted(message.value() or b"" for message in messages) == sorted(values)
    for partition in range(PARTITIONS):
        offsets = [message.offset() for message in messages if message.partition() == partition]
        assert offsets == list(range(len(offsets)))


def test_a_broker_with_a_directory_merges_objects(tmp_path: Path, name: str) -> None:
    metrics = free_port()
    environment = {
        "FIRN_BROKER_METRICS_LISTEN": f"127.0.0.1:{metrics}", "FIRN_BROKER_UPKEEP__INTERVAL_SECONDS": "0.5",
        "FIRN_BROKER_UPKEEP__GRACE_SECONDS": "2", "FIRN_BROKER_UPKEEP__MERGE_SECONDS": "1",
    }  # fmt: skip
    with embedded(tmp_path / "data", **environment) as broker:
        create(broker, name, PARTITIONS)
        check_merged(broker, name, metrics)


@pytest.fixture
def fleet(tmp_path: Path, database: Postgres, storage: S3, name: str) -> Iterator[tuple[FirnBroker, int]]:
    """Run a broker of a fleet. Return it with the port of its metrics."""
    metrics = free_port()
    settings = fleet_settings(tmp_path, database, storage, f"merges-{name}")
    broker = of_fleet(tmp_path, "merges", {**settings, "upkeep": UPKEEP, "metricsListen": f"127.0.0.1:{metrics}"})
    broker.start()
    yield broker, metrics
    broker.stop()


def merging(broker: FirnBroker) -> list[int]:
    """Return the ids of the broker's processes that merge."""
    assert broker.process is not None
    children = Path(f"/proc/{broker.process.pid}/task/{broker.process.pid}/children").read_text().split()
    found = []
    for child in children:
        command = Path(f"/proc/{child}/cmdline")
        if command.exists() and b"merges.process" in command.read_bytes():
            found.append(int(child))
    return found


def test_a_fleet_merges_objects(fleet: tuple[FirnBroker, int], name: str) -> None:
    broker, metrics = fleet
    create(broker, name, PARTITIONS)
    check_merged(broker, name, metrics)


def test_a_killed_process_is_followed_by_another(fleet: tuple[FirnBroker, int], name: str) -> None:
    broker, metrics = fleet
    create(broker, name, PARTITIONS)
    fill(broker, name)
    killed: list[int] = []

    def kill() -> bool:
        for process in merging(broker):
            os.kill(process, signal.SIGKILL)
            killed.append(process)
        return bool(killed)

    await_true("a process merges", kill)
    create(broker, f"{name}-after", PARTITIONS)
    check_merged(broker, f"{name}-after", metrics)
    assert len(read(broker, name, 50 * ROUNDS)) == 50 * ROUNDS
    assert "the process that merges objects ended with" in broker.log.read_text()


def ignores_sigterm(process: int) -> bool:
    """Return whether a process has begun its work. Before it ignores the signal, it asks for its end with the broker."""
    status = Path(f"/proc/{process}/status").read_text()
    (mask,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigIgn")]
    return bool(int(mask, 16) >> signal.SIGTERM - 1 & 1)


def test_no_process_outlives_its_broker(fleet: tuple[FirnBroker, int], name: str) -> None:
    broker, _ = fleet
    create(broker, name, PARTITIONS)
    fill(broker, name)
    found: list[int] = []

    def merges() -> bool:
        found.extend(merging(broker))
        return bool(found)

    await_true("a process merges", merges)
    (process,) = found
    while not ignores_sigterm(process):
        # It works for a moment only. A stopped process does not end by itself.
        os.kill(process, signal.SIGCONT)
        time.sleep(0.01)
        os.kill(process, signal.SIGSTOP)
    os.kill(process, signal.SIGSTOP)
    try:
        broker.kill()
        await_true("it ended", lambda: not Path(f"/proc/{process}").exists(), 20)
    finally:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    broker.start()
    assert len(read(broker, name, 50 * ROUNDS)) == 50 * ROUNDS
