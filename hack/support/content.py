"""Slow results, cached under the hash of their inputs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hack.support.places import cache_directory

_NOT_CONTENT = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}


def files_below(path: Path) -> list[Path]:
    """Return every file of a directory, or the file itself, sorted, without files that interpreters and checkers leave behind."""
    if not path.is_dir():
        return [path]
    return sorted(
        each
        for each in path.rglob("*")
        if each.is_file() and not _NOT_CONTENT.intersection(each.relative_to(path).parts)
    )


def content_hash(paths: Iterable[Path], *words: str) -> str:
    """Return a hash (16 hex digits) of words, and of the names, modes and bytes of all files in the paths."""
    digest = hashlib.sha256()
    for word in words:
        digest.update(f"{len(word)}:{word}".encode())
    for path in paths:
        for each in files_below(path):
            executable = bool(each.stat().st_mode & 0o100)
            content = each.read_bytes()
            digest.update(f"{each.relative_to(path.parent)}|{executable}|{len(content)}|".encode())
            digest.update(content)
    return digest.hexdigest()[:16]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file inside the with block. The kernel releases the lock of a process that dies."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def cached(kind: str, key: str, build: Callable[[Path], None], keep: int = 3) -> Path:
    """Return the cached directory of `kind` for `key`. If it is missing, `build` fills it.

    A complete directory is renamed into place, so an interrupted build leaves nothing that looks complete. Of earlier results of the same
    kind, the `keep` last used ones stay.
    """
    shelf = cache_directory(kind)
    result = shelf / key
    with locked(shelf / f".lock-{key}"):
        if not result.is_dir():
            unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=shelf))
            try:
                build(unfinished)
                unfinished.chmod(0o755)
                unfinished.rename(result)
            finally:
                shutil.rmtree(unfinished, ignore_errors=True)
    # The kernel's clock for files advances in steps of milliseconds, so it may give two uses the same time.
    now = time.time_ns()
    os.utime(result, ns=(now, now))
    older = sorted(
        (each for each in shelf.iterdir() if each.is_dir() and each.name[0] != "."),
        key=lambda each: each.stat().st_mtime_ns,
    )
    for each in older[:-keep]:
        shutil.rmtree(each, ignore_errors=True)
        (shelf / f".lock-{each.name}").unlink(missing_ok=True)
    return result
