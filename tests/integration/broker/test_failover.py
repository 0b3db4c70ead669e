"""PostgreSQL fails over to a standby that lacks the newest commits: no acknowledged record is lost."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from firn.model.errors import ExitCode
from tests.integration.broker.test_fleet import fleet_of
from tests.integration.broker.test_librdkafka import create, produce, read
from tests.servers.postgres import Postgres, copy, directory_for_postgres, postgres
from tests.servers.process import await_true, free_port
from tests.servers.s3 import S3


@contextmanager
def primary_and_standby() -> Iterator[tuple[Postgres, ExitStack, Path]]:
    """Run a primary. Its exit stack ends it, and a standby may follow at the same port from the directory."""
    with directory_for_postgres() as directory, ExitStack() as running:
        yield running.enter_context(postgres(directory, free_port())), running, directory.parent / "standby"


def numbered(start: int, end: int) -> list[dict[str, Any]]:
    return [{"value": b"%d" % number} for number in range(start, end)]


def values(records: list[Any]) -> list[int]:
    return [int(record.value()) for record in records]


def test_the_broker_repeats_the_commits_that_the_standby_lacks(tmp_path: Path, storage: S3, name: str) -> None:
    with primary_and_standby() as (primary, running, standby), fleet_of(1, tmp_path, primary, storage) as (broker,):
        create(broker, name)
        produce(broker, name, numbered(0, 50))
        copy(primary, standby)
        for start in range(50, 100, 10):
            produce(broker, name, numbered(start, start + 10))
        running.close()
        with postgres(standby, primary.port):
            produce(broker, name, numbered(100, 150), **{"enable.idempotence": True})
            records = read(broker, name, 150)
            assert values(records) == [record.offset() for record in records] == list(range(150))
            assert b"the coordinator has all acknowledged commits again" in broker.log.read_bytes()
            broker.stop()


@pytest.mark.long
@pytest.mark.parametrize("decision", ["--recover", "--accept"])
def test_an_administrator_decides_after_the_loss_of_commits_and_broker(
    tmp_path: Path, storage: S3, name: str, decision: str
) -> None:
    with primary_and_standby() as (primary, running, standby), fleet_of(1, tmp_path, primary, storage) as (broker,):
        create(broker, name)
        produce(broker, name, numbered(0, 50))
        copy(primary, standby)
        produce(broker, name, numbered(50, 100))
        broker.kill()
        running.close()
        with postgres(standby, primary.port):
            done: list[subprocess.CompletedProcess[str]] = []

            def decided() -> bool:
                command = [
                    sys.executable,
                    "-m",
                    "firn_broker",
                    "fsck",
                    decision,
                    "--config",
                    str(tmp_path / "broker-0.yaml"),
                ]
                done.append(subprocess.run(command, capture_output=True, text=True, timeout=60))
                return done[-1].returncode != ExitCode.TEMPORARY

            await_true("the lease of the broker is over", decided)
            report = json.loads(done[-1].stdout)
            assert done[-1].returncode == ExitCode.DONE, done[-1].stderr
            assert sum(report["newer_records"].values()) + len(report["uncommitted"]) > 0
            broker.start()
            produce(broker, name, numbered(100, 110))
            if decision == "--recover":
                assert report["recovered"]["records"] == 50
                assert values(read(broker, name, 110)) == list(range(110))
            else:
                assert values(read(broker, name, 60)) == [*range(50), *range(100, 110)]
            broker.stop()
