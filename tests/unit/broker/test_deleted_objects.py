"""Objects without batch ranges are deleted many at a time, within the time of a round."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import obstore
import pytest
from obstore.exceptions import BaseError, NotFoundError
from prometheus_client import REGISTRY

from firn_broker.maintenance import retention
from firn_broker.storage.objects import SINGLE_DELETES, BucketObjects, DirectoryObjects
from tests.fakes.virtual_time import run
from tests.unit.broker.test_maintenance import ROUND_SECONDS, SETTINGS, backlog
from tests.unit.broker.whole import Shared, broker

KEYS = [f"wal/{number}" for number in range(100)]


def gauge(name: str) -> float:
    return REGISTRY.get_sample_value(f"firn_broker_{name}") or 0


def test_slow_deletions_end_with_the_round(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        monkeypatch.setattr(retention, "OBJECTS_AT_ONCE", 1)
        delete, seconds, at_once, most = shared.objects.delete, 40.0, 0, 0

        async def slow(keys: Sequence[str]) -> list[str]:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(seconds)
            at_once -= 1
            return await delete(keys)

        monkeypatch.setattr(shared.objects, "delete", slow)
        async with broker(shared, **SETTINGS) as asked:
            await backlog(asked, "t")
            objects = len(shared.objects.objects)
            assert objects > 2 * retention.DELETES
            await asyncio.sleep(2 * ROUND_SECONDS + 1.5 * seconds)
            assert most == retention.DELETES
            assert gauge("dead_objects") == len(shared.objects.objects) == objects - retention.DELETES
            assert gauge("dead_objects_age_seconds") >= ROUND_SECONDS
            assert gauge("upkeep_behind") == 1
            assert gauge("dead_objects_grace_seconds") == SETTINGS["upkeep"]["grace_seconds"]
            seconds = 0
            await asyncio.sleep(4 * ROUND_SECONDS + 40)
            assert (gauge("dead_objects"), gauge("dead_objects_age_seconds"), gauge("upkeep_behind")) == (0, 0, 0)
            assert not shared.objects.objects

    run(story())


def test_objects_that_cannot_be_deleted_hold_up_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        monkeypatch.setattr(retention, "OBJECTS_AT_ONCE", 2)
        delete, attempts = shared.objects.delete, Counter[str]()
        locked: set[str] = set()

        async def refuse(keys: Sequence[str]) -> list[str]:
            attempts.update(locked & set(keys))
            return await delete([key for key in keys if key not in locked])

        monkeypatch.setattr(shared.objects, "delete", refuse)
        async with broker(shared, **SETTINGS) as asked:
            await backlog(asked, "t")
            # More than one lookup returns.
            locked.update(sorted(shared.objects.objects)[: 2 * retention.DELETES + 1])
            assert len(shared.objects.objects) > len(locked)
            await asyncio.sleep(10.5 * ROUND_SECONDS)
            assert set(shared.objects.objects) == locked
            assert gauge("postponed_objects") == gauge("dead_objects") == len(locked)
            assert gauge("upkeep_behind") == 0
            assert max(attempts.values()) <= 5
            attempts.clear()
            await asyncio.sleep(6 * 3600)
            assert set(attempts) == locked
            # The broker retries each hour, after shorter pauses at first.
            assert 5 <= max(attempts.values()) <= 12
            locked.clear()
            await asyncio.sleep(3600 + 2 * ROUND_SECONDS)
            assert not shared.objects.objects
            assert gauge("postponed_objects") == gauge("dead_objects") == 0

    run(story())


class Deletes:
    """Records the requests of a bucket's client; requests with one of ``failing`` fail."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failing: dict[str, type[Exception]]) -> None:
        self.requests: list[int] = []
        self._failing = failing
        monkeypatch.setattr(obstore, "delete_async", self._delete)
        self.store = BucketObjects("s3://bucket", {"aws_region": "x"}, timeout_seconds=1)

    async def _delete(self, _store: object, paths: str | Sequence[str]) -> None:
        keys = [paths] if isinstance(paths, str) else paths
        self.requests.append(len(keys))
        for key in keys:
            if key in self._failing:
                raise self._failing[key]("broken")


async def test_one_request_deletes_many_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    deletes = Deletes(monkeypatch, {})
    assert await deletes.store.delete(KEYS) == KEYS
    assert deletes.requests == [len(KEYS)]


async def test_an_object_that_cannot_be_deleted_keeps_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    deletes = Deletes(monkeypatch, {KEYS[3]: BaseError, KEYS[5]: NotFoundError})
    assert sorted(await deletes.store.delete(KEYS)) == sorted(set(KEYS) - {KEYS[3]})


async def test_the_first_objects_cannot_keep_the_others_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    locked = KEYS[: 2 * SINGLE_DELETES]
    deletes = Deletes(monkeypatch, dict.fromkeys(locked, BaseError))
    deleted: set[str] = set()
    for _ in range(5):
        deleted.update(await deletes.store.delete([key for key in KEYS if key not in deleted]))
    assert deleted == set(KEYS) - set(locked)


async def test_a_file_that_cannot_be_deleted_keeps_no_other(tmp_path: Path) -> None:
    store = DirectoryObjects(tmp_path)
    (tmp_path / "wal/a").mkdir(parents=True)
    await store.put("wal/b", memoryview(b"x"))
    assert await store.delete(["wal/a", "wal/b"]) == ["wal/b"]
    await store.close()


async def test_an_unreachable_bucket_gets_few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    deletes = Deletes(monkeypatch, dict.fromkeys(KEYS, BaseError))
    assert await deletes.store.delete(KEYS) == []
    assert len(deletes.requests) == 1 + SINGLE_DELETES
