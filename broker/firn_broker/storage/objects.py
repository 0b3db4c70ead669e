"""Object stores: S3, GCS, Azure (obstore), a local directory that keeps its word after a power cut, and memory."""

import asyncio
import errno
import mmap
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore.exceptions import BaseError, NotFoundError
from obstore.store import from_url

from firn.model.errors import UnavailableError

T = TypeVar("T")
COALESCE = 1 << 20
"""Ranges that are nearer than this are fetched in one request."""
DIRECT_BYTES = 1 << 20
PAGE = 4096


class MemoryObjects:
    """`ObjectStore` in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    async def put(self, key: str, data: memoryview) -> None:
        """See `ObjectStore.put`."""
        self.objects[key] = bytes(data)

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """See `ObjectStore.get_ranges`."""
        data = self.objects[key]
        return [memoryview(data[start:end]) for start, end in ranges]

    async def delete(self, keys: Sequence[str]) -> list[str]:
        """See `ObjectStore.delete`."""
        for key in keys:
            self.objects.pop(key, None)
        return list(keys)

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        """See `ObjectStore.list`."""
        return sorted((key, len(data)) for key, data in self.objects.items() if key.startswith(prefix))

    async def close(self) -> None:
        """See `ObjectStore.close`."""


class DirectoryObjects:
    """`ObjectStore` in a directory. An object is whole or absent, and flushed to the disk before `put` returns, which obstore's own local
    store does not promise. Reading has threads of its own, so that backfills do not wait in front of writes."""

    def __init__(self, directory: Path, *, flush: bool = True) -> None:
        self._directory = directory
        self._flush = flush
        self._aligned = threading.local()
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
        """See `ObjectStore.put`."""
        await self._in(self._writers, self._write, key, data)

    def _write(self, key: str, data: memoryview) -> None:
        path = self._directory / key
        made = not path.parent.exists()
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        if not self._write_direct(part, data):
            with part.open("wb", buffering=0) as file:
                written = 0
                while written < len(data):
                    written += file.write(data[written:])
                if self._flush:
                    os.fdatasync(file.fileno())
        part.rename(path)
        if self._flush:
            _flush_directory(path.parent)
            if made:
                for parent in path.parent.parents:
                    _flush_directory(parent)
                    if parent == self._directory:
                        break

    def _write_direct(self, part: Path, data: memoryview) -> bool:
        """Past the page cache, which would cost more than all else that a broker does with these bytes, and which nobody would read them
        from: the tail is served from the broker's own cache. False where the file system cannot."""
        try:
            handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT, 0o644)
        except OSError as error:
            if error.errno == errno.EINVAL:
                return False
            raise
        try:
            # Direct writes want aligned memory and whole pages: each thread has a piece of such memory.
            if not hasattr(self._aligned, "memory"):
                self._aligned.memory = mmap.mmap(-1, DIRECT_BYTES)
            memory = memoryview(self._aligned.memory)
            for start in range(0, len(data), DIRECT_BYTES):
                size = min(DIRECT_BYTES, len(data) - start)
                memory[:size] = data[start : start + size]
                whole = -(-size // PAGE) * PAGE
                if os.pwrite(handle, memory[:whole], start) != whole:
                    raise OSError(errno.EIO, f"object {part.name} was not written whole")
            os.ftruncate(handle, len(data))
            if self._flush:
                os.fdatasync(handle)
        finally:
            os.close(handle)
        return True

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """See `ObjectStore.get_ranges`."""
        return await self._in(self._readers, self._read, key, ranges)

    def _read(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        with (self._directory / key).open("rb", buffering=0) as file:
            found = []
            for start, end in ranges:
                data = memoryview(bytearray(end - start))
                done = 0
                while done < end - start:
                    count = os.preadv(file.fileno(), [data[done:]], start + done)
                    if not count:
                        raise OSError(f"object {key} ends before {end}")
                    done += count
                found.append(data)
            return found

    async def delete(self, keys: Sequence[str]) -> list[str]:
        """See `ObjectStore.delete`."""

        def work() -> list[str]:
            for key in keys:
                (self._directory / key).unlink(missing_ok=True)
            return list(keys)

        return await self._in(self._readers, work)

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        """See `ObjectStore.list`."""

        def work() -> list[tuple[str, int]]:
            root = self._directory / prefix
            found = []
            for path in root.rglob("*") if root.is_dir() else ():
                if path.is_file() and path.suffix != ".part":
                    found.append((path.relative_to(self._directory).as_posix(), path.stat().st_size))
            return sorted(found)

        return await self._in(self._readers, work)

    async def close(self) -> None:
        """See `ObjectStore.close`."""
        self._writers.shutdown()
        self._readers.shutdown()


def _flush_directory(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class BucketObjects:
    """`ObjectStore` in a bucket, through obstore: one PUT an object (never multipart, which costs more and is not atomic for others)."""

    def __init__(self, url: str, config: Mapping[str, str], *, timeout_seconds: float) -> None:
        # Keys are those of the store that the URL names, which no type can know.
        make: Callable[..., Any] = from_url
        self._store = make(
            url,
            config=dict(config),
            client_options={
                "timeout": f"{timeout_seconds:g}s",
                "allow_http": any("http://" in it for it in config.values()),
            },
            # Attempts are ours to count: each upload has its own bound and back-off.
            retry_config={"max_retries": 0},
        )

    async def put(self, key: str, data: memoryview) -> None:
        """See `ObjectStore.put`."""
        await self._ask(key, obstore.put_async(self._store, key, data, use_multipart=False))

    async def _ask(self, key: str, answer: Any) -> Any:
        try:
            return await answer
        except (NotFoundError, FileNotFoundError) as error:
            raise KeyError(key) from error
        except (BaseError, OSError) as error:
            raise UnavailableError(f"object store: {str(error)[:300]}") from error

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """See `ObjectStore.get_ranges`."""
        found = await self._ask(
            key,
            obstore.get_ranges_async(
                self._store, key, starts=[a for a, _ in ranges], ends=[b for _, b in ranges], coalesce=COALESCE
            ),
        )
        return [memoryview(one) for one in found]

    async def delete(self, keys: Sequence[str]) -> list[str]:
        """See `ObjectStore.delete`."""
        gone = []
        for key in keys:
            try:
                await self._ask(key, obstore.delete_async(self._store, key))
            except KeyError:
                pass
            except UnavailableError:
                continue
            gone.append(key)
        return gone

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        """See `ObjectStore.list`."""
        found: list[tuple[str, int]] = []
        stream = obstore.list(self._store, prefix)
        try:
            async for page in stream:
                found += [(meta["path"], meta["size"]) for meta in page]
        except (BaseError, OSError) as error:
            raise UnavailableError(f"object store: {str(error)[:300]}") from error
        return sorted(found)

    async def close(self) -> None:
        """See `ObjectStore.close`."""
