"""Run firn-broker as a process on loopback."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.postgres import Postgres
from tests.servers.process import await_true, free_port, stop, tail
from tests.servers.s3 import S3


@dataclass
class FirnBroker:
    """A broker that can be stopped, killed and started again on its port."""

    arguments: list[str]
    port: int
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    bootstrap_servers: str = ""

    @property
    def bootstrap(self) -> str:
        return self.bootstrap_servers or f"127.0.0.1:{self.port}"

    def start(self) -> None:
        ready = self.log.with_suffix(".out")
        with self.log.open("ab") as errors, ready.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "firn_broker", *self.arguments, "--listen", self.bootstrap],
                stdout=output, stderr=errors, stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, **self.environment},
            )  # fmt: skip

        def up() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, f"the broker ended with {self.process.returncode}: {tail(self.log)}"
            # Each of several processes prints a line.
            return f"ready {self.bootstrap}\n" in ready.read_text()

        await_true("broker ready", up)

    def stop(self) -> int:
        """Send SIGTERM and return the exit code."""
        assert self.process is not None
        stop(self.process)
        code: int = self.process.returncode
        return code

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(20)


@contextmanager
def embedded(directory: Path, **environment: str) -> Iterator[FirnBroker]:
    """Run one broker with its data in ``directory``."""
    broker = FirnBroker(["--data-dir", str(directory)], free_port(), directory.with_suffix(".log"), environment)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def of_fleet(directory: Path, name: str, settings: Mapping[str, Any]) -> FirnBroker:
    """Return a broker of a fleet that has not started."""
    config = directory / f"{name}.yaml"
    config.write_text(json.dumps(settings))
    return FirnBroker(["--config", str(config)], free_port(), directory / f"{name}.log")


def fleet_settings(directory: Path, database: Postgres, storage: S3, name: str = "fleet") -> dict[str, Any]:
    """Return settings of brokers of a fleet with its own schema and its own part of the bucket. Secrets are in
    ``directory``."""
    password, secret = directory / "password", directory / "secret"
    password.write_text(database.password)
    secret.write_text(storage.secret_key)
    return {
        # The server of the tests does not flush.
        "requireDurable": False,
        "coordinator": {
            "type": "postgres", "uri": database.uri, "user": database.user, "passwordFile": str(password),
            "schemaName": name.replace("-", "_"),
        },
        "objects": {
            "type": "bucket", "url": f"s3://{storage.bucket}/{name}",
            "config": {
                "aws_endpoint": storage.endpoint, "aws_region": "us-east-1", "aws_access_key_id": storage.access_key,
                "aws_virtual_hosted_style_request": "false",
            },
            "secretConfig": {"aws_secret_access_key": str(secret)},
        },
    }  # fmt: skip
