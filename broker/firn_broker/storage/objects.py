"""Object stores: buckets of S3, GCS and Azure (obstore), a local directory that is durable after a power failure, and
memory."""

import asyncio
import errno
import mmap
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import obstore
import structlog
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import from_url

from firn import trust
from firn.model.errors import FirnError, UnavailableError
from firn_broker.ports import ObjectStore
from firn_broker.settings import BucketSettings, DirectorySettings, secret
from firn_broker.storage.memory import PAGE, whole_pages

log = structlog.get_logger()
T = TypeVar("T")
LOOK_SECONDS = 5.0
"""Shortest time between two looks at the file of CA certificates."""
COALESCE = 1 << 20
"""Bytes of a gap below which two ranges are read in one request."""
SINGLE_DELETES = 16
"""Concurrent requests that delete one object each."""
DIRECT_BYTES = 1 << 20
"""Bytes of the aligned memory through which a thread writes data that is not aligned."""


class MemoryObjects:
    """`ObjectStore` in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def put(self, key: str, data: memoryview) -> None:
        """Store the object."""
        self.objects[key] = bytes(data)

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read byte ranges of the object."""
        data = self.objects[key]
        return [memoryview(data[start:end]) for start, end in ranges]

    async def size(self, key: str) -> int:
        """Return the bytes of an object."""
        return len(self.objects[key])

    async def delete(self, keys: Sequence[str]) -> list[str]:
        """Delete objects; return the keys that are gone."""
        for key in keys:
            self.objects.pop(key, None)
        return list(keys)

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        """List keys and sizes."""
        return sorted((key, len(data)) for key, data in self.objects.items() if key.startswith(prefix))

    async def close(self) -> None:
        """Release all resources."""


class DirectoryObjects:
    """`ObjectStore` in a directory.

    An object is complete or absent, and flushed to the disk before `put` returns; obstore's own local store does not
    promise that. Reads have threads of their own, so that backfills do not delay writes."""

    def __init__(self, directory: Path, *, flush: bool = True) -> None:
        self._directory = directory
        self._flush = flush
        self._aligned = threading.local()
        self._durable: set[str] = set()
        """Directories that are durable: their entries in the directories above are flushed to the disk."""
        self._writers = ThreadPoolExecutor(4, thread_name_prefix="objects-put")
        self._readers = ThreadPoolExecutor(4, thread_name_prefix="objects-get")

    async def _in(self, pool: ThreadPoolExecutor, work: Callable[..., T], *values: Any) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, work, *values)
        except FileNotFoundError as error:
            raise KeyError(str(error.filename)) from error
        except OSError as error:
            raise UnavailableError(f"object store: {error}") from error

    async def put(self, key: str, data: memoryview) -> None:
        """Store the object."""
        await self._in(self._writers, self._write, key, data)

    def _write(self, key: str, data: memoryview) -> None:
        # Texts: each `Path` would cost CPU time of the interpreter, which all threads share.
        path = f"{self._directory}/{key}"
        directory, part = path.rpartition("/")[0], path + ".part"
        try:
            self._write_file(part, data)
        except FileNotFoundError:
            # The directory is new, or was deleted.
            self._durable.discard(directory)
            os.makedirs(directory, exist_ok=True)
            self._write_file(part, data)
        os.rename(part, path)
        if self._flush:
            flush_directory(directory)
            # Another writer may have made the directory, and not have flushed its entry yet.
            if directory not in self._durable:
                for parent in Path(directory).parents:
                    flush_directory(parent)
                    if parent == self._directory:
                        break
                self._durable.add(directory)

    def _write_file(self, part: str, data: memoryview) -> None:
        if not self._write_direct(part, data):
            with open(part, "wb", buffering=0) as file:
                written = 0
                while written < len(data):
                    written += file.write(data[written:])
                if self._flush:
                    os.fdatasync(file.fileno())

    def _write_direct(self, part: str, data: memoryview) -> bool:
        """Write past the page cache; return False if the file system cannot.

        The page cache would cost more CPU than all else that a broker does with these bytes, and would not be read: the
        broker's own cache serves the tail."""
        try:
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o644)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            raise
        try:
            # Direct writes need whole pages of memory. Objects of the writer have them; all other data is copied.
            if (pages := whole_pages(data)) is not None:
                self._write_pages(handle, part, pages, 0)
            else:
                self._write_copies(handle, part, data)
            os.ftruncate(handle, len(data))
            if self._flush:
                os.fdatasync(handle)
        finally:
            os.close(handle)
        return True

    def _write_copies(self, handle: int, part: str, data: memoryview) -> None:
        if not hasattr(self._aligned, "memory"):
            self._aligned.memory = mmap.mmap(-1, DIRECT_BYTES)
        memory = memoryview(self._aligned.memory)
        for start in range(0, len(data), DIRECT_BYTES):
            size = min(DIRECT_BYTES, len(data) - start)
            memory[:size] = data[start : start + size]
            self._write_pages(handle, part, memory[: -(-size // PAGE) * PAGE], start)

    def _write_pages(self, handle: int, part: str, pages: memoryview, start: int) -> None:
        if os.pwrite(handle, pages, start) != len(pages):
            raise OSError(errno.EIO, f"object {part} was not written whole")

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read byte ranges of the object."""
        return await self._in(self._readers, self._read, key, ranges)

    def _read(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        handle = os.open(self._directory / key, os.O_RDONLY)
        try:
            return [memoryview(_read_range(handle, key, start, end)) for start, end in ranges]
        finally:
            os.close(handle)

    async def size(self, key: str) -> int:
        """Return the bytes of an object."""
        return await self._in(self._readers, lambda: (self._directory / key).stat().st_size)

    async def delete(self, keys: Sequence[str]) -> list[str]:
        """Delete objects; return the keys that are gone."""

        def work() -> list[str]:
            deleted = []
            for key in keys:
                # One file can be protected from deletion.
                with suppress(OSError):
                    (self._directory / key).unlink(missing_ok=True)
                    deleted.append(key)
            return deleted

        return await self._in(self._readers, work)

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        """List keys and sizes."""

        def work() -> list[tuple[str, int]]:
            root = self._directory / prefix
            sizes = []
            for path in root.rglob("*") if root.is_dir() else ():
                if path.is_file() and path.suffix != ".part":
                    sizes.append((path.relative_to(self._directory).as_posix(), path.stat().st_size))
            return sorted(sizes)

        return await self._in(self._readers, work)

    async def close(self) -> None:
        """Release all resources."""
        self._writers.shutdown()
        self._readers.shutdown()


def _read_range(handle: int, key: str, start: int, end: int) -> bytes:
    # The kernel writes into memory that Python has not cleared before.
    data = os.pread(handle, end - start, start)
    while len(data) < end - start:
        if not (more := os.pread(handle, end - start - len(data), start + len(data))):
            raise OSError(errno.EIO, f"object {key} ends before {end}")
        data += more
    return data


def flush_directory(path: Path | str) -> None:
    """Flush the entries of a directory to the disk."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _stamp(path: str) -> tuple[int, int] | None:
    """Return a value that changes when a file is replaced; None if it is missing."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _text(error: Exception) -> str:
    advice = trust.hint(f"{error} {error.__cause__ or ''}")
    return f"{str(error)[:300]}{f': {advice}' if advice else ''}"


def bucket_client(
    name: str, url: str, config: Mapping[str, str], timeout_seconds: float, ca_file: str, *, retries: int
) -> Any:
    """Return obstore's client of a bucket, whose settings are at the key ``name``.

    Raises InvalidSpecError for a file of CA certificates that cannot be used."""
    # The keys of the configuration depend on the store that the URL names, so they are untyped.
    make: Callable[..., Any] = from_url
    trusted: dict[str, str] = {}
    if ca_file:
        trust.authorities(ca_file, f"{name}.caFile")
        trusted["root_certificate"] = Path(ca_file).read_text()
    return make(
        url,
        config=config,
        client_options={
            "timeout": f"{timeout_seconds:g}s",
            "allow_http": any("http://" in value for value in config.values()),
            **trusted,
        },
        retry_config={"max_retries": retries},
    )


def with_secrets(name: str, settings: BucketSettings) -> dict[str, str]:
    """Return the options of a bucket, whose settings are at the key ``name``. Raises InvalidSpecError."""
    secrets = {key: secret(f"{name}.secretConfig.{key}", path) for key, path in settings.secret_config.items()}
    return {**settings.config, **secrets}


class BucketObjects:
    """`ObjectStore` in a bucket, through obstore. Each object is one PUT: multipart uploads cost more and are not
    atomic."""

    def __init__(self, url: str, config: Mapping[str, str], *, timeout_seconds: float, ca_file: str = "") -> None:
        self._url, self._config, self._timeout = url, dict(config), timeout_seconds
        self._ca_file = ca_file
        self._opened_with = _stamp(ca_file)
        self._opened = self._open()
        self._looked = time.monotonic()

    def _open(self) -> Any:
        # The writer retries uploads itself, with its own bound and backoff.
        return bucket_client("objects", self._url, self._config, self._timeout, self._ca_file, retries=0)

    @property
    def _store(self) -> Any:
        """The client. After a change of the CA certificates, it is a new one; certificates that cannot be used change nothing."""
        now = time.monotonic()
        if self._ca_file and now - self._looked >= LOOK_SECONDS:
            self._looked, stamp = now, _stamp(self._ca_file)
            if stamp != self._opened_with:
                try:
                    self._opened, self._opened_with = self._open(), stamp
                except (FirnError, OSError, BaseError) as error:
                    log.warning("the new CA certificates of the object store are not used", error=str(error))
        return self._opened

    async def put(self, key: str, data: memoryview) -> None:
        """Store the object."""
        await self._ask(key, obstore.put_async(self._store, key, data, use_multipart=False))

    async def _ask(self, key: str, answer: Any) -> Any:
        try:
            return await answer
        except (NotFoundError, FileNotFoundError) as error:
            raise KeyError(key) from error
        except (BaseError, OSError) as error:
            raise UnavailableError(f"object store: {_text(error)}") from error

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Read byte ranges of the object."""
        contents = await self._ask(
            key,
            obstore.get_ranges_async(
                self._store, key, starts=[a for a, _ in ranges], ends=[b for _, b in ranges], coalesce=COALESCE
            ),
        )
        if len(contents) > 1:
            # All contents of one request may share its memory. A copy lets the others go.
            return [memoryview(bytearray(content)) for content in contents]
        return [memoryview(content) for content in contents]

    async def size(self, key: str) -> int:
        """Return the bytes of an object."""
        return int((await self._ask(key, obstore.head_async(self._store, key)))["size"])

    async def delete(self, keys: Sequence[str]) -> list[str]:
        """Delete objects; return the keys that are gone."""
        try:
            # One request for many objects, if the store has one.
            await self._ask("", obstore.delete_async(self._store, list(keys)))
        except (KeyError, UnavailableError):
            # One object can fail the request: some stores report a missing one, or protect one from deletion.
            return await self._delete_singly(keys)
        return list(keys)

    async def _delete_singly(self, keys: Sequence[str]) -> list[str]:
        """Delete objects with one request each; stop if all of several fail."""

        async def gone(key: str) -> bool:
            try:
                await self._ask(key, obstore.delete_async(self._store, key))
            except KeyError:
                return True
            except UnavailableError:
                return False
            return True

        deleted: list[str] = []
        # In random order, so that several objects next to each other that cannot be deleted do not keep the others.
        shuffled = random.sample(keys, len(keys))
        for start in range(0, len(keys), SINGLE_DELETES):
            some = shuffled[start : start + SINGLE_DELETES]
            results = await asyncio.gather(*map(gone, some))
            if not any(results):
                break
            deleted += [key for key, is_gone in zip(some, results, strict=True) if is_gone]
        return deleted

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        """List keys and sizes."""
        sizes: list[tuple[str, int]] = []
        stream = obstore.list(self._store, prefix)
        try:
            async for page in stream:
                sizes += [(meta["path"], meta["size"]) for meta in page]
        except (BaseError, OSError) as error:
            raise UnavailableError(f"object store: {_text(error)}") from error
        return sorted(sizes)

    async def close(self) -> None:
        """Release all resources."""


def open_objects(settings: DirectorySettings | BucketSettings) -> ObjectStore:
    """Return the object store that the settings name. Raises InvalidSpecError."""
    if isinstance(settings, DirectorySettings):
        return DirectoryObjects(Path(settings.path), flush=settings.flush)
    options = with_secrets("objects", settings)
    return BucketObjects(settings.url, options, timeout_seconds=settings.timeout_seconds, ca_file=settings.ca_file)
