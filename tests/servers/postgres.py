"""Run PostgreSQL on loopback from the package of the machine."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.authority import Pair
from tests.servers.process import free_port, listens, running

CERTIFIED = "certified"
"""User who authenticates with a client certificate, at a server that has a CA of clients."""


@dataclass(frozen=True)
class Postgres:
    """A server that requires a password."""

    port: int
    user: str = "firn"
    password: str = "correct horse"

    @property
    def uri(self) -> str:
        """Return the URI without credentials, as the configuration has it."""
        return f"postgresql://127.0.0.1:{self.port}/postgres"


def binary(name: str) -> str:
    """Return the path of a program of PostgreSQL."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    path = str(installed[0]) if installed else shutil.which(name)
    assert path, f"{name} is missing: install the package postgresql"
    return path


def _answers(server: Postgres) -> bool:
    """Return True if the server is ready. A server that listens may still be starting or recovering."""
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
    """Create a temporary directory that another user can access."""
    with tempfile.TemporaryDirectory(prefix="firn-postgres-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "server"


def copy(server: Postgres, directory: Path, *, follows: bool = False) -> None:
    """Copy a running server to ``directory``, as a standby.

    It gets later commits only if it ``follows``: then it streams them from the port of ``server`` until its promotion.
    """
    user = "postgres" if os.geteuid() == 0 else None
    directory.mkdir()
    if user is not None:
        account = pwd.getpwnam(user)
        os.chown(directory, account.pw_uid, account.pw_gid)
    address = ["--host=127.0.0.1", f"--port={server.port}", f"--username={server.user}"]
    more = ["--write-recovery-conf"] if follows else []
    subprocess.run(
        [binary("pg_basebackup"), "-D", str(directory / "data"), "--checkpoint=fast", "--no-sync", *address, *more],
        check=True,
        env={**os.environ, "PGPASSWORD": server.password},
        user=user,
        cwd="/",
    )


def _tls(directory: Path, tls: Pair, clients: Path | None, user: str | None) -> list[str]:
    """Write the files of a server with TLS, and return its options."""
    (directory / "data" / "pg_hba.conf").write_text(
        f"local all all scram-sha-256\nhostssl all {CERTIFIED} all cert\nhostssl all all all scram-sha-256\n"
    )
    options = ["-c", "ssl=on"]
    given = {"ssl_cert_file": tls.certificate, "ssl_key_file": tls.key, "ssl_ca_file": clients}
    for option, source in given.items():
        if source is None:
            continue
        target = directory / source.name
        target.write_bytes(source.read_bytes())
        target.chmod(0o600)
        if user is not None:
            account = pwd.getpwnam(user)
            os.chown(target, account.pw_uid, account.pw_gid)
        options += ["-c", f"{option}={target}"]
    return options


def crash(directory: Path) -> None:
    """Kill all processes of the server in ``directory``, which has no time to do anything."""
    main = int((directory / "data" / "postmaster.pid").read_text().split()[0])
    children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    for process in (main, *map(int, children)):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def query(server: Postgres, sql: str) -> Any:
    """Run a statement and return the first value of its answer; None if it has none."""
    with psycopg.connect(
        host="127.0.0.1",
        port=server.port,
        user=server.user,
        password=server.password,
        dbname="postgres",
        autocommit=True,
    ) as connection:
        cursor = connection.execute(sql)
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


@contextmanager
def postgres(
    directory: Path,
    port: int | None = None,
    *,
    durable: bool = False,
    tls: Pair | None = None,
    clients: Path | None = None,
) -> Iterator[Postgres]:
    """Run a server with its data in ``directory``, new or existing.

    With ``tls``, the certificate of the server, it accepts connections with TLS only. With ``clients``, a file of CAs, the users of
    `CERTIFIED` authenticate with a certificate.

    As root it runs as user postgres, because initdb rejects root. That user cannot access the temporary directories
    of pytest: use `directory_for_postgres`. Only a ``durable`` server flushes its commits."""
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
            [binary("initdb"), "-D", data, "-U", server.user, "--pwfile", secret, "-A", "scram-sha-256", "-N"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=user,
            cwd="/",
        )
    command = [
        binary("postgres"), "-D", str(data), "-p", str(server.port), "-c", "listen_addresses=127.0.0.1",
        "-c", f"unix_socket_directories={directory}", "-c", f"fsync={'on' if durable else 'off'}",
    ]  # fmt: skip
    if tls is not None:
        command += _tls(directory, tls, clients, user)
    log = directory.parent / f"{directory.name}.log"
    with running(command, lambda: _answers(server), log, user=user) as process:
        yield server
        process.send_signal(signal.SIGINT)  # fast shutdown, which does not wait for clients
