"""Secrets in mounted files: read them, detect changes, and keep them out of messages.

The kubelet replaces the files about a minute after a Secret changes. Catalogs, connection pools, Spark and its
executors keep the values they got at the start. So the process ends between two rounds, and its next start reads the
new values.
"""

import base64
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from firn.model.errors import InvalidSpecError, NotReadyError

LOOK_SECONDS = 5.0
SHORTEST_SALT = 16
"""Bytes of the shortest salt. A shorter one can be guessed."""


class Credentials:
    """The secret files of an application, as they were when this object was made. Make it before anything reads the
    files."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = sorted(set(paths))
        self._used = self._seen = self._read()
        self._looked = time.monotonic()

    def replaced(self) -> bool:
        """Return True if the files have changed and a start with them can work.

        Two checks have to find the same content, so that all Secrets of one rotation are there. No file that existed
        before may be missing. The call is cheap: it reads the files at most every `LOOK_SECONDS`.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return False
        before, self._seen, self._looked = self._seen, self._read(), now
        gone = self._used.keys() - self._seen.keys()
        return self._seen == before and self._seen != self._used and not gone

    def _read(self) -> dict[str, bytes]:
        """Return a digest of every readable file."""
        digests = {}
        for path in self._paths:
            try:
                digests[path] = hashlib.blake2b(Path(path).read_bytes()).digest()
            except OSError:
                continue
        return digests


def read_secret(path: str) -> str:
    """Return the value in a mounted secret file. Raises NotReadyError, which names the file and never the value."""
    try:
        return Path(path).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise NotReadyError(
            f"secret file {path} cannot be read ({type(error).__name__}): check that the Secret exists and has this key"
        ) from error


def jdbc_key(path: str) -> str:
    """Return a file with the private key at ``path`` as PKCS #8 in DER, the only form that PostgreSQL's driver for Java reads.

    Raises NotReadyError, and InvalidSpecError for a key in another form.
    """
    text = read_secret(path)
    found = re.search(r"-----BEGIN PRIVATE KEY-----(.*?)-----END PRIVATE KEY-----", text, re.DOTALL)
    if found is None:
        raise InvalidSpecError(
            f"private key {path} is not PKCS #8 without a password; convert it with `openssl pkcs8 -topk8 -nocrypt`, or set"
            " privateKey.encoding: PKCS8 in the Certificate of cert-manager"
        )
    content = base64.b64decode(found[1])
    directory = Path(tempfile.gettempdir()) / "firn-keys"
    directory.mkdir(mode=0o700, exist_ok=True)
    # The driver reads the form from the end of the name.
    target = directory / f"{hashlib.blake2b(path.encode(), digest_size=8).hexdigest()}.pk8"
    with open(target, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
    return str(target)


def read_salts(paths: Mapping[str, str], names: Iterable[str]) -> dict[str, bytes]:
    """Return the salts with these names. ``paths`` are the files of all salts by name. Line breaks at the end do not count.

    Raises NotReadyError, which names salt and file, and never the value.
    """
    return {name: _salt(name, paths.get(name)) for name in sorted(names)}


def _salt(name: str, path: str | None) -> bytes:
    if path is None:
        raise NotReadyError(
            f"salt {name} is not in the settings of this process; wait for the operator to restart it, or add the salt to salts in the"
            " operator's configuration"
        )
    try:
        salt = Path(path).read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise NotReadyError(
            f"salt {name}: secret file {path} cannot be read ({type(error).__name__}): check that the Secret exists and has this key"
        ) from error
    if len(salt) < SHORTEST_SALT:
        raise NotReadyError(
            f"salt {name}: secret file {path} has {len(salt)} bytes, and a salt has at least {SHORTEST_SALT}; put a longer value into the Secret"
        )
    return salt


def without_secrets(text: str) -> str:
    """Mask the values of secret-looking ``key=value`` and ``user:password@`` parts, for messages of foreign
    exceptions."""
    text = re.sub(r"://[^/@\s:]+:[^/@\s]+@", "://***@", text)
    return re.sub(r"(?i)((?:secret|password|token|access[-_.]?key)[\w.-]*\s*[=:]\s*)\S+", r"\1***", text)
