"""PostgreSQL on loopback, from the machine's own package."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from tests.servers.process import free_port, listens, running


@dataclass(frozen=True)
class Postgres:
    """A server that asks for a password."""

    port: int
    user: str = "firn"
    password: str = "correct horse"

    @property
    def uri(self) -> str:
        """As the configuration writes it: without credentials."""
        return f"postgresql://127.0.0.1:{self.port}/postgres"


def _binary(name: str) -> str:
    found = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    path = str(found[0]) if found else shutil.which(name)
    assert path, f"{name} is missing: install the package postgresql"
    return path


def _answers(server: Postgres) -> bool:
    """A server that listens may still be starting up, or recovering."""
    if not listens(server.port):
        return False
    try:
        with psycopg.connect(
            host="127.0.0.1",
            port=server.port,
            user=server.user,
            password=server.password,
            dbname="postgres",
            connect_timeout=5,
        ):
            return True
    except psycopg.OperationalError:
        return False


@contextmanager
def directory_for_postgres() -> Iterator[Path]:
    """A temporary directory that another user can reach."""
    with tempfile.TemporaryDirectory(prefix="firn-postgres-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "server"


@contextmanager
def postgres(directory: Path, port: int | None = None, *, durable: bool = False) -> Iterator[Postgres]:
    """A server with its data in ``directory`` (made, or gone on with). Where we are root, which initdb refuses, it runs as user postgres,
    to whom pytest's own temporary directories are closed: use `directory_for_postgres`. Only a ``durable`` one flushes what it commits."""
    server = Postgres(port or free_port())
    user = "postgres" if os.geteuid() == 0 else None
    data = directory / "data"
    if not data.exists():
        directory.mkdir(parents=True, exist_ok=True)
        secret = directory / "password"
        secret.write_text(server.password)
        if user is not None:
            account = pwd.getpwnam(user)
            for path in (directory, secret):
                os.chown(path, account.pw_uid, account.pw_gid)
        subprocess.run(
            [_binary("initdb"), "-D", data, "-U", server.user, "--pwfile", secret, "-A", "scram-sha-256", "-N"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=user,
            cwd="/",
        )
    command = [
        _binary("postgres"), "-D", str(data), "-p", str(server.port), "-c", "listen_addresses=127.0.0.1",
        "-c", f"unix_socket_directories={directory}", "-c", f"fsync={'on' if durable else 'off'}",
    ]  # fmt: skip
    log = directory.parent / f"{directory.name}.log"
    with running(command, lambda: _answers(server), log, user=user) as process:
        yield server
        process.send_signal(signal.SIGINT)  # fast shutdown: does not wait for clients
