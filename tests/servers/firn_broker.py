"""Our own broker as a process on loopback."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.process import await_true, free_port, stop, tail


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
            return ready.read_text() == f"ready {self.bootstrap}\n"

        await_true("broker ready", up)

    def stop(self) -> int:
        """Ask it to end; its exit code."""
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
    """A broker on its own, with its data in ``directory``."""
    broker = FirnBroker(["--data-dir", str(directory)], free_port(), directory.with_suffix(".log"), environment)
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def of_fleet(directory: Path, name: str, settings: Mapping[str, Any]) -> FirnBroker:
    """One broker of a fleet, not started."""
    config = directory / f"{name}.yaml"
    config.write_text(json.dumps(settings))
    return FirnBroker(["--config", str(config)], free_port(), directory / f"{name}.log")
