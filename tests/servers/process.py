"""Real servers for tests: started on loopback, awaited by their answers, stopped by process id."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def listens(port: int) -> bool:
    """Return True if a server accepts connections on 127.0.0.1:port."""
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex(("127.0.0.1", port)) == 0


PATIENCE = 4 if "FIRN_LONG" in os.environ else 1
"""Factor of all time limits. `make test-long` keeps a machine busy for hours, and some hosts give it less CPU time then."""


def await_true(description: str, check: Callable[[], bool], seconds: float = 240.0) -> None:
    """Wait until ``check`` returns True; fail with ``description``.

    The pauses between checks grow, because frequent checks take more CPU than the work that the test waits for. The time
    limit is generous. It ends tests that hang, and decides nothing else."""
    seconds *= PATIENCE
    deadline = time.monotonic() + seconds
    pause = 0.02
    while not check():
        if time.monotonic() > deadline:
            raise AssertionError(f"{description}: not within {seconds:.0f} s")
        time.sleep(pause)
        pause = min(0.5, pause * 1.2)


@contextmanager
def running(
    command: Sequence[str],
    ready: Callable[[], bool],
    log: Path,
    *,
    environment: Mapping[str, str] | None = None,
    user: str | None = None,
    seconds: float = 240.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``command`` until the end of the with block. It is ``ready`` inside the block, at most ``seconds`` after its
    start, and its output is in ``log``."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **(environment or {})},
            user=user,
            start_new_session=True,
        )
        try:

            def up() -> bool:
                assert process.poll() is None, f"{command[0]} ended with {process.returncode}: {tail(log)}"
                return ready()

            await_true(f"{command[0]} ready", up, seconds)
            yield process
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes], stop_signal: signal.Signals = signal.SIGTERM) -> None:
    """Stop the process, and kill it if it does not exit in time."""
    if process.poll() is not None:
        return
    process.send_signal(stop_signal)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(20)


def tail(log: Path, lines: int = 20) -> str:
    """Return the end of a log file."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def cache() -> Path:
    """Return the directory in which `make` caches jars and tools."""
    return Path(os.environ.get("FIRN_CACHE", str(Path.home() / ".cache" / "firn")))
