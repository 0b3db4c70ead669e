"""Run an S3 server on loopback: versitygw over a directory."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.authority import Pair
from tests.servers.process import cache, free_port, listens, running


@dataclass(frozen=True)
class S3:
    """A server with one bucket. The secret key is also in a file, as in a mounted Secret."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str
    directory: Path

    @property
    def properties(self) -> dict[str, str]:
        """Return Iceberg's properties as Java writes them, without the secret key."""
        return {
            "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
            "s3.endpoint": self.endpoint,
            "s3.path-style-access": "true",
            "client.region": "us-east-1",
            "s3.access-key-id": self.access_key,
        }

    @property
    def secret_properties(self) -> dict[str, str]:
        """Return the secret properties by file."""
        file = self.directory / "secret-key"
        file.write_text(self.secret_key)
        return {"s3.secret-access-key": str(file)}


def binary() -> str:
    """Return the path of versitygw."""
    built = sorted((cache() / "tools" / "versitygw").glob("*/versitygw"), key=lambda path: path.stat().st_mtime)
    candidates = [os.environ.get("FIRN_VERSITYGW"), *map(str, reversed(built)), shutil.which("versitygw")]
    binary = next((path for path in candidates if path and os.access(path, os.X_OK)), None)
    assert binary, "versitygw is missing: run make setup"
    return binary


@contextmanager
def s3(
    directory: Path, accounts: Iterable[str] = (), tls: Pair | None = None, users: Iterable[str] = ()
) -> Iterator[S3]:
    """Run a server over ``directory`` with a bucket called firn.

    ``accounts``: access keys with the same secret key as the server's own. ``tls``: the certificate of a server with TLS, which is
    reached as localhost. ``users``: such keys without rights.
    """
    buckets = directory / "buckets"
    (buckets / "firn").mkdir(parents=True, exist_ok=True)
    port = free_port()
    address = f"http://127.0.0.1:{port}" if tls is None else f"https://localhost:{port}"
    server = S3(address, "firn", "firn-key", "firn-secret-key", directory)
    environment = {"ROOT_ACCESS_KEY": server.access_key, "ROOT_SECRET_KEY": server.secret_key}
    iam = directory / "users"
    iam.mkdir(exist_ok=True)
    roles = dict.fromkeys(accounts, "admin") | dict.fromkeys(users, "user")
    known = {key: {"access": key, "secret": server.secret_key, "role": role} for key, role in roles.items()}
    (iam / "users.json").write_text(json.dumps({"accessAccounts": known}))
    # By default, versitygw closes each connection after one request. S3 services keep connections open.
    options = ["--port", f"127.0.0.1:{port}", "--keep-alive", "--iam-dir", str(iam)]
    options += [] if tls is None else ["--cert", str(tls.certificate), "--key", str(tls.key)]
    command = [binary(), *options, "posix", str(buckets)]
    with running(command, lambda: listens(port), directory / "server.log", environment=environment):
        yield server
