"""Secrets as mounted files, which the kubelet replaces about a minute after a Secret has changed.

Catalogs, their connection pools, Spark and its executors keep what they were given at the start. So new values are taken up in the
simplest way that leaves nothing out: the process ends between two rounds, and its next start reads them.
"""

import hashlib
import re
import time
from collections.abc import Iterable
from pathlib import Path

from firn.model.errors import NotReadyError

LOOK_SECONDS = 5.0


class Credentials:
    """The secret files of an application, as they were when this was made: before anything else reads them."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = sorted(set(paths))
        self._used = self._seen = self._read()
        self._looked = time.monotonic()

    def replaced(self) -> bool:
        """True once the files hold something else, and a start with them can work: two looks have found the same, so that all Secrets of
        one rotation are there, and none is missing that was there before. Cheap enough to be asked all the time."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return False
        before, self._seen, self._looked = self._seen, self._read(), now
        gone = self._used.keys() - self._seen.keys()
        return self._seen == before and self._seen != self._used and not gone

    def _read(self) -> dict[str, bytes]:
        """A digest of every file that can be read."""
        found = {}
        for path in self._paths:
            try:
                found[path] = hashlib.blake2b(Path(path).read_bytes()).digest()
            except OSError:
                continue
        return found


def read_secret(path: str) -> str:
    """The value in a mounted secret file. Raises NotReadyError naming the file, never the value."""
    try:
        return Path(path).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise NotReadyError(
            f"secret file {path} cannot be read ({type(error).__name__}): check that the Secret exists and has this key"
        ) from error


def without_secrets(text: str) -> str:
    """``text`` with values of secret-looking ``key=value`` and ``user:password@`` parts taken out: for messages of foreign exceptions."""
    text = re.sub(r"://[^/@\s:]+:[^/@\s]+@", "://***@", text)
    return re.sub(r"(?i)((?:secret|password|token|access[-_.]?key)[\w.-]*\s*[=:]\s*)\S+", r"\1***", text)
