"""Several brokers in one pod: their ports and node ids, and the restart of a process that ended."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from firn.model.errors import ExitCode, InvalidSpecError
from firn_broker.cluster.processes import Supervisor, environments
from firn_broker.settings import BrokerSettings, load

FLEET: dict[str, Any] = {
    "coordinator": {"type": "postgres", "uri": "postgresql://db/firn", "user": "firn"},
    "objects": {"type": "bucket", "url": "s3://bucket"},
    "listener": {"bind": "0.0.0.0:9092", "advertised": "broker-0.example.org:9092"},
    "external": {"bind": "[::]:9200", "advertised": "kafka.example.org:31000"},
    "metricsListen": "0.0.0.0:9300",
}


def settings(**changes: Any) -> BrokerSettings:
    return BrokerSettings.model_validate({**FLEET, **changes})


def test_each_process_has_the_next_ports_and_node_id(tmp_path: Path) -> None:
    internal = {"bind": "0.0.0.0:9400", "tokenFile": "/token"}
    file = tmp_path / "broker.yaml"
    file.write_text(json.dumps({**FLEET, "internal": internal, "nodeId": 3}))
    first, second = (load(file, variables) for variables in environments(load(file, {}), 2))
    assert (first.node_id, second.node_id) == (6, 7)
    assert (second.listener.bind, second.listener.advertised) == ("0.0.0.0:9093", "broker-0.example.org:9093")
    assert second.external is not None
    assert (second.external.bind, second.external.advertised) == ("[::]:9201", "kafka.example.org:31001")
    assert second.internal is not None
    assert (second.internal.bind, second.metrics_listen) == ("0.0.0.0:9401", "0.0.0.0:9301")


def test_the_kernel_chooses_ports_and_the_coordinator_ids_if_none_are_set() -> None:
    chosen = settings(listener={"bind": "127.0.0.1:0"}, external=None, metricsListen="")
    assert environments(chosen, 2) == [{"FIRN_BROKER_LISTENER__BIND": '"127.0.0.1:0"'}] * 2


def test_one_process_may_use_a_port_at_two_addresses() -> None:
    assert len(environments(settings(external={"bind": "127.0.0.2:9092"}), 1)) == 1


SQLITE = {"type": "sqlite", "path": "/data/coordinator.db"}


@pytest.mark.parametrize(
    ("changes", "count", "message"),
    [
        ({}, 0, "must be 1 to 64"),
        ({"coordinator": SQLITE}, 2, "a broker with a directory and SQLite is a single process"),
        ({"external": {"bind": "0.0.0.0:9094"}}, 3, "two listeners would use port 9094"),
        ({"listener": {"bind": "0.0.0.0:65535"}}, 2, "is not HOST:PORT with a port to which 1 can be added"),
        ({"metricsListen": "9090"}, 1, "'9090' is not HOST:PORT"),
    ],
)
def test_impossible_processes_are_refused(changes: dict[str, Any], count: int, message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        environments(settings(**changes), count)


CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with open(os.environ["LOG"], "a") as file:
    print(os.environ["NUMBER"], os.getpid(), file=file)
time.sleep(0 if os.environ["CODE"] else 600)
sys.exit(int(os.environ["CODE"]))
"""


def children(directory: Path, *codes: str) -> Supervisor:
    """Return a supervisor of children that end with a code, or on SIGTERM if it is empty."""
    log = str(directory / "log")
    variables = [{"LOG": log, "NUMBER": str(number), "CODE": code} for number, code in enumerate(codes)]
    return Supervisor([sys.executable, "-I", "-S", "-c", CHILD], variables)


async def starts(directory: Path, count: int) -> list[tuple[int, int]]:
    """Wait for so many starts, and return number and process id of each."""
    log = directory / "log"
    async with asyncio.timeout(20):
        while not log.exists() or log.read_text().count("\n") < count:
            await asyncio.sleep(0.01)
    return [(int(number), int(pid)) for number, pid in (line.split() for line in log.read_text().splitlines())]


async def test_a_killed_process_starts_again_and_the_others_stay(tmp_path: Path) -> None:
    running = asyncio.create_task(children(tmp_path, "", "").run())
    pids = dict(await starts(tmp_path, 2))
    os.kill(pids[1], signal.SIGKILL)
    number, pid = (await starts(tmp_path, 3))[-1]
    assert (number, pid != pids[1]) == (1, True)
    os.kill(pids[0], 0)
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == ExitCode.DONE


async def test_a_wrong_configuration_ends_all_processes(tmp_path: Path) -> None:
    assert await children(tmp_path, "", str(int(ExitCode.CONFIGURATION))).run() == ExitCode.CONFIGURATION
