"""Check the promises of `firn_broker.ports.ObjectStore` in memory, in a directory and in a bucket."""

import itertools
import random
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from firn.model.errors import UnavailableError
from firn_broker.ports import ObjectStore
from firn_broker.storage.memory import PAGE, uncleared_pages
from firn_broker.storage.objects import BucketObjects, DirectoryObjects, MemoryObjects
from tests.servers.process import free_port
from tests.servers.s3 import S3

_numbers = itertools.count()


class ObjectsContract:
    """Fixture: ``store``, empty."""

    async def test_an_object_reads_back_as_it_was_put(self, store: ObjectStore) -> None:
        await store.put("wal/ab/1", memoryview(bytearray(b"0123456789")))
        parts = await store.get_ranges("wal/ab/1", [(0, 10), (3, 5), (9, 10)])
        assert [bytes(part) for part in parts] == [b"0123456789", b"34", b"9"]
        assert await store.size("wal/ab/1") == 10

    async def test_a_repeated_put_changes_nothing(self, store: ObjectStore) -> None:
        for _ in range(2):
            await store.put("wal/ab/1", memoryview(b"abc"))
        assert await store.list("wal/") == [("wal/ab/1", 3)]

    async def test_a_missing_object_raises_key_error(self, store: ObjectStore) -> None:
        with pytest.raises(KeyError):
            await store.get_ranges("wal/ab/1", [(0, 1)])
        with pytest.raises(KeyError):
            await store.size("wal/ab/1")

    async def test_a_repeated_delete_succeeds(self, store: ObjectStore) -> None:
        await store.put("wal/ab/1", memoryview(b"abc"))
        assert sorted(await store.delete(["wal/ab/1", "wal/ab/2"])) == ["wal/ab/1", "wal/ab/2"]
        assert await store.list("wal/") == []

    async def test_a_list_has_only_keys_with_its_prefix(self, store: ObjectStore) -> None:
        for key in ("wal/b/2", "wal/a/1", "data/1"):
            await store.put(key, memoryview(b"x"))
        assert await store.list("wal/") == [("wal/a/1", 1), ("wal/b/2", 1)]

    async def test_a_large_object_is_stored_as_one(self, store: ObjectStore) -> None:
        data = bytes(range(256)) * 4096 * 12
        await store.put("wal/ab/1", memoryview(data))
        assert await store.list("") == [("wal/ab/1", len(data))]
        (part,) = await store.get_ranges("wal/ab/1", [(1_000_001, 9_000_001)])
        assert bytes(part) == data[1_000_001:9_000_001]

    @pytest.mark.parametrize("size", [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 17, (1 << 20) + 5])
    async def test_an_object_has_no_bytes_of_its_last_page_behind_its_end(self, store: ObjectStore, size: int) -> None:
        data = uncleared_pages(size)
        data[:] = random.Random(size).randbytes(size)
        await store.put("wal/ab/1", data)
        assert await store.size("wal/ab/1") == size
        (part,) = await store.get_ranges("wal/ab/1", [(0, size)])
        assert bytes(part) == bytes(data)


class TestMemory(ObjectsContract):
    @pytest.fixture
    def store(self) -> MemoryObjects:
        return MemoryObjects()


class TestDirectory(ObjectsContract):
    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[DirectoryObjects]:
        store = DirectoryObjects(tmp_path / "objects")
        yield store
        await store.close()

    async def test_a_deleted_directory_is_made_again(self, store: DirectoryObjects, tmp_path: Path) -> None:
        await store.put("wal/ab/1", memoryview(b"abc"))
        shutil.rmtree(tmp_path / "objects")
        await store.put("wal/ab/2", memoryview(b"abc"))
        assert await store.list("") == [("wal/ab/2", 3)]


class TestBucket(ObjectsContract):
    @pytest.fixture
    def store(self, storage: S3) -> BucketObjects:
        return bucket(storage.endpoint, storage)

    async def test_an_unreachable_server_is_unavailable(self, storage: S3) -> None:
        store = bucket(f"http://127.0.0.1:{free_port()}", storage)
        for ask in (store.put("wal/1", memoryview(b"x")), store.get_ranges("wal/1", [(0, 1)]), store.list("")):
            with pytest.raises(UnavailableError):
                await ask
        assert await store.delete(["wal/1"]) == []


def bucket(endpoint: str, server: S3) -> BucketObjects:
    return BucketObjects(
        f"s3://{server.bucket}/objects-{next(_numbers)}",
        {
            "aws_endpoint": endpoint, "aws_region": "us-east-1", "aws_access_key_id": server.access_key,
            "aws_secret_access_key": server.secret_key, "aws_virtual_hosted_style_request": "false",
        },
        timeout_seconds=5,
    )  # fmt: skip
