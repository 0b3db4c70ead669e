"""The stores of the quick start with TLS: the commands of their pods start the real servers, with the certificates of the signer."""

import asyncio
import os
import pwd
import shutil
import signal
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from firn.model.clock import SystemClock
from firn_operator.signer import process
from firn_operator.signer.keeper import STORES, Keeper
from tests.chart import find_object, manifests, render
from tests.fakes.users.certificate_secrets import FakeCertificateSecrets
from tests.servers.postgres import binary, directory_for_postgres
from tests.servers.process import await_true, free_port, listens, running, tail
from tests.servers.s3 import binary as s3_binary

ENTRYPOINT = Path(__file__).resolve().parents[3] / "hack" / "images" / "postgres" / "docker-entrypoint.sh"
PASSWORD = "generated"


@dataclass(frozen=True)
class Server:
    port: int
    process: subprocess.Popen[bytes]
    files: Path
    """Directory with the certificate, as it is mounted."""
    log: Path

    @property
    def served(self) -> str:
        return ssl.get_server_certificate(("127.0.0.1", self.port))


def certified(store: str) -> dict[str, str]:
    """Return a new Secret of the signer for a store."""
    secrets = FakeCertificateSecrets()
    (terms,) = process.store_subjects("firn-system", [store]).values()
    asyncio.run(Keeper(secrets, SystemClock(), STORES).keep(store, terms))
    return dict(secrets.secrets[f"firn-{store}-tls"].data)


def mount(files: Path, data: Mapping[str, str], user: str | None) -> None:
    """Replace the files at once, as the kubelet does."""
    files.mkdir(exist_ok=True)
    for key in ("ca.crt", "tls.key", "tls.crt"):
        new = files / f".{key}"
        new.write_text(data[key])
        new.chmod(0o600)
        if user is not None:
            account = pwd.getpwnam(user)
            os.chown(new, account.pw_uid, account.pw_gid)
        new.rename(files / key)


@contextmanager
def started(
    store: str, directory: Path, places: Mapping[str, str], environment: Mapping[str, str], user: str | None, port: int
) -> Iterator[Server]:
    """Run the command of a store's container, with paths and addresses of this machine."""
    objects = manifests(render({"images": {"registry": "registry.example.com"}}))
    (container,) = find_object(objects, "StatefulSet", f"firn-{store}")["spec"]["template"]["spec"]["containers"]
    shell, options, script = container["command"]
    for inside, here in {**places, "/etc/firn/certificate": str(directory / "tls"), "sleep 30": "sleep 0.05"}.items():
        assert inside in script
        script = script.replace(inside, here)
    log = directory / "log"
    with running([shell, options, script], lambda: listens(port), log, environment=environment, user=user) as child:
        yield Server(port, child, directory / "tls", log)


def end(server: Server) -> None:
    """Stop the container. Its server ends with it, though clients are connected, and reports no error."""
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0, tail(server.log)
    assert not listens(server.port)


def test_postgresql_requires_tls_and_uses_a_renewed_certificate_without_a_restart() -> None:
    user = "postgres" if os.geteuid() == 0 else None
    with directory_for_postgres() as directory:
        directory.mkdir()
        if user is not None:
            shutil.chown(directory, user, user)
        shutil.copy(ENTRYPOINT, directory / "docker-entrypoint.sh")
        # The database of a test need not survive a crash of the machine.
        (directory / "initdb").write_text(f'#!/bin/sh\nexec {binary("initdb")} --no-sync "$@"\n')
        for program in ("docker-entrypoint.sh", "initdb"):
            (directory / program).chmod(0o755)
        first, second = certified("postgres"), certified("postgres")
        mount(directory / "tls", first, user)
        (directory / "tls").chmod(0o755)
        port = free_port()
        environment = {
            "PATH": os.pathsep.join((str(directory), str(Path(binary("postgres")).parent), os.environ["PATH"])),
            "POSTGRES_USER": "firn", "POSTGRES_PASSWORD": PASSWORD,
            "PGDATA": str(directory / "data"), "PGPORT": str(port), "TMPDIR": str(directory), "HOME": str(directory),
        }  # fmt: skip
        places = {
            "/tmp/pg_hba.conf": str(directory / "pg_hba.conf"),
            "-c ssl=on": f"-c ssl=on -c unix_socket_directories={directory}",
        }
        roots = {}
        for name, data in (("first", first), ("second", second)):
            roots[name] = directory / f"{name}.crt"
            roots[name].write_text(data["ca.crt"])

        def answer(host: str = "localhost", **options: Any) -> str:
            try:
                with psycopg.connect(
                    host=host, hostaddr="127.0.0.1", port=port, user="firn", password=PASSWORD, dbname="firn", **options
                ) as connection:
                    row = connection.execute("select version from pg_stat_ssl where pid = pg_backend_pid()").fetchone()
                    return str(row and row[0])
            except psycopg.OperationalError as error:
                return str(error)

        def verified(root: str, host: str = "localhost") -> str:
            return answer(host, sslmode="verify-full", sslrootcert=str(roots[root]))

        with started("postgres", directory, places, environment, user, port) as server:
            await_true("the first answer", lambda: verified("first").startswith("TLSv1."))
            assert verified("first", "firn-postgres.firn-system.svc").startswith("TLSv1.")
            assert "does not match host name" in verified("first", "firn-s3")
            assert "certificate verify failed" in verified("second")
            assert "no pg_hba.conf entry" in answer(sslmode="disable")
            client = psycopg.connect(host="localhost", port=port, user="firn", password=PASSWORD, dbname="firn")
            mount(server.files, second, user)
            await_true("the renewed certificate", lambda: verified("second").startswith("TLSv1."))
            assert client.execute("select 1").fetchone() == (1,), "open connections continue"
            end(server)
            with pytest.raises(psycopg.OperationalError):
                client.execute("select 1")
            client.close()


def test_the_s3_server_speaks_tls_only_and_uses_a_renewed_certificate_without_a_restart(tmp_path: Path) -> None:
    port, buckets = free_port(), tmp_path / "buckets"
    buckets.mkdir()
    first, second = certified("s3"), certified("s3")
    mount(tmp_path / "tls", first, None)
    environment = {
        "PATH": os.pathsep.join((str(Path(s3_binary()).parent), os.environ["PATH"])),
        "ROOT_ACCESS_KEY": "key", "ROOT_SECRET_KEY": "secret",
    }  # fmt: skip
    places = {":7070": f"127.0.0.1:{port}", "/data/buckets": str(buckets)}
    with started("s3", tmp_path, places, environment, None, port) as server:
        assert server.served == first["tls.crt"]
        trusted = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.crt"))
        assert httpx.get(f"https://localhost:{port}/healthz", verify=trusted).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"http://localhost:{port}/healthz")
        mount(server.files, second, None)
        await_true("the renewed certificate", lambda: server.served == second["tls.crt"])
        end(server)
