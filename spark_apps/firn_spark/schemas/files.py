"""Answers of schema registries on disk: those that were used last.

A driver can request each answer again. So a disk that fails costs a request, and no error is raised.
"""

import os
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import structlog

log = structlog.get_logger()

MOST_FILES = 10_000
"""Files of a registry."""
MOST_BYTES = 128 << 20
"""Bytes of the files of a registry."""
TOUCH_SECONDS = 600.0
"""Seconds in which a file gets one new time at most, however often it is used."""


class SchemaFiles:
    """The files of one registry in a directory. Threads share it."""

    def __init__(self, directory: Path) -> None:
        """Use ``directory``, which need not exist yet."""
        self._directory = directory
        self._sizes: OrderedDict[str, int] | None = None
        """The size of each file in bytes, the file that was used last at the end."""
        self._bytes = 0
        self._touched: dict[str, float] = {}
        self._lock = threading.Lock()

    def read(self, name: str) -> str:
        """Return the content of a file; empty if it cannot be read."""
        file = self._file(name)
        try:
            content = file.read_text()
        except (OSError, ValueError):
            return ""
        self.used(name)
        return content

    def used(self, name: str) -> None:
        """Record that an answer was used now."""
        now = time.monotonic()
        with self._lock:
            sizes = self._known()
            if name not in sizes:
                return
            sizes.move_to_end(name)
            if now - self._touched.get(name, -TOUCH_SECONDS) < TOUCH_SECONDS:
                return
            self._touched[name] = now
        with suppress(OSError):
            os.utime(self._file(name))  # The next process knows the order of use by this time.

    def write(self, name: str, content: str) -> None:
        """Keep a content under a name, and remove the files that were not used for the longest time if there are too many."""
        file = self._file(name)
        unfinished = file.with_name(f".{file.name}.{threading.get_ident()}")
        data = content.encode()
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with self._lock:
                sizes = self._known()
                self._bytes += len(data) - sizes.pop(name, 0)
                sizes[name] = len(data)
                while len(sizes) > MOST_FILES or (self._bytes > MOST_BYTES and len(sizes) > 1):
                    oldest, size = sizes.popitem(last=False)
                    self._touched.pop(oldest, None)
                    self._bytes -= size
                    self._file(oldest).unlink(missing_ok=True)
            unfinished.write_bytes(data)
            unfinished.replace(file)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink(missing_ok=True)
            self._forget(name)
            log.warning("a schema cannot be kept on disk", file=str(file), error=str(error))

    def _forget(self, name: str) -> None:
        with self._lock:
            self._bytes -= self._known().pop(name, 0)
            self._touched.pop(name, None)

    def _file(self, name: str) -> Path:
        return self._directory / f"{name}.json"

    def _known(self) -> OrderedDict[str, int]:
        if self._sizes is None:
            found: list[tuple[float, str, int]] = []
            with suppress(OSError), os.scandir(self._directory) as entries:
                for entry in entries:
                    with suppress(OSError):
                        if entry.name.startswith("."):  # from a process that ended while it wrote
                            os.unlink(entry)
                        elif entry.name.endswith(".json"):
                            status = entry.stat()
                            found.append((status.st_mtime, entry.name.removesuffix(".json"), status.st_size))
            self._sizes = OrderedDict((name, size) for _, name, size in sorted(found))
            self._bytes = sum(self._sizes.values())
        return self._sizes
