"""Indexings of a broker: what waits, what a process is asked, and a real process."""

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from firn.driver_requests.landed_offsets import DataFile, Landed, LandedRange, Refusal
from firn.model.clock import SystemClock
from firn.model.errors import UnavailableError
from firn.records import record_batch
from firn_broker.cluster import jobs
from firn_broker.cluster.jobs import run_job
from firn_broker.history.indexing import schedule
from firn_broker.history.indexing.schedule import WAITING, Indexings
from firn_broker.history.rebuilding.workers import HistoryWorkers
from firn_broker.log_types import BatchEntry, Commit, Lookup, NodeAddress, NodeLease, Partition, TableRange, Topic
from firn_broker.metadata_store.sqlite.store import SqliteStore
from firn_broker.settings import BrokerSettings, BucketSettings, DirectorySettings, HistorySettings, SqliteSettings
from firn_broker.storage import wal
from firn_broker.storage.objects import DirectoryObjects
from tests.fakes.virtual_time import run
from tests.unit.broker.test_history_entries import FIELDS, batches_of, write
from tests.unit.broker.whole import broker, create

LEASE = NodeLease(3, 4)
COUNTS = {
    "batches": 1,
    "kept": 2,
    "bytes": 30,
    "kept_bytes": 4,
    "left_bytes": 5,
    "objects": 1,
    "refused": 0,
    "problems": {"object a does not exist": 2},
}


def counted() -> dict[str, float]:
    """Return the bytes that were compared."""
    name = "firn_broker_indexed_bytes_total"
    return {found: REGISTRY.get_sample_value(name, {"found": found}) or 0 for found in ("table", "kept", "left")}


def unsolved() -> dict[str, float]:
    """Return the problems of comparisons."""
    name = "firn_broker_indexing_problems_total"
    return {kind: REGISTRY.get_sample_value(name, {"kind": kind}) or 0 for kind in ("failed", "unreadable")}


def landed(topic: int, last: int = 9) -> Landed:
    return Landed(
        topic=UUID(int=topic),
        generation=1,
        until_ms=1 << 50,
        ranges=(LandedRange(0, 0, last),),
        files=(DataFile("s3://a/b", 7),),
        fields=FIELDS,
    )


def settings(directory: Path) -> BrokerSettings:
    return BrokerSettings(
        coordinator=SqliteSettings(path=str(directory / "coordinator.db")),
        objects=DirectorySettings(path=str(directory / "objects")),
        history=HistorySettings(stores=(BucketSettings(url=f"file://{directory}"),)),
    )


async def test_newer_offsets_of_a_topic_take_the_place_of_those_that_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Mapping[str, Any]] = []

    async def answer(module: str, document: Mapping[str, Any], *, work: str, advice: str) -> Any:
        asked.append(document)
        if len(asked) == 1:
            raise UnavailableError("the first one fails")
        return COUNTS

    monkeypatch.setattr(schedule, "run_job", answer)
    indexings = Indexings(settings(tmp_path), lambda: LEASE, lambda topic: True)
    for offered in (landed(1), landed(2), landed(1, last=20)):
        assert indexings.add(offered) is None
    before, problems = counted(), unsolved()
    task = asyncio.create_task(indexings.run())
    while len(asked) < 2:
        await asyncio.sleep(0)
    assert [Landed.model_validate(each["landed"]) for each in asked] == [landed(1, last=20), landed(2)]
    assert asked[0]["lease"] == [3, 4]
    while unsolved()["unreadable"] == problems["unreadable"]:
        await asyncio.sleep(0)
    assert {found: value - before[found] for found, value in counted().items()} == {"table": 30, "kept": 4, "left": 5}
    assert {kind: value - problems[kind] for kind, value in unsolved().items()} == {"failed": 1, "unreadable": 2}
    assert not task.done()
    task.cancel()


def test_offsets_that_do_not_wait_have_a_reason(tmp_path: Path) -> None:
    indexings = Indexings(settings(tmp_path), lambda: LEASE, lambda topic: True)
    assert {indexings.add(landed(number)) for number in range(WAITING)} == {None}
    assert indexings.add(landed(WAITING)) is Refusal.BUSY
    assert indexings.add(landed(0, last=30)) is None
    many = tuple(DataFile(f"s3://a/{number}", 7) for number in range(4_000))
    indexings = Indexings(settings(tmp_path), lambda: LEASE, lambda topic: True)
    large = [indexings.add(landed(number).model_copy(update={"files": many})) for number in range(20)]
    assert large == [None] * 12 + [Refusal.BUSY] * 8
    without = settings(tmp_path).model_copy(update={"history": HistorySettings()})
    assert Indexings(without, lambda: LEASE, lambda topic: True).add(landed(1)) is Refusal.NO_STORE
    assert Indexings(settings(tmp_path), lambda: LEASE, lambda topic: False).add(landed(1)) is Refusal.COPY


def test_the_topic_decides_whether_its_files_are_compared() -> None:
    async def story() -> None:
        async with broker(history=HistorySettings(stores=(BucketSettings(url="s3://table"),))) as asked:
            single = await create(asked, "single", firn_history="Single")
            copy = await create(asked, "copy")
            for topic, refusal in ((single, None), (copy, Refusal.COPY), (UUID(int=1), Refusal.COPY)):
                named = landed(1).model_copy(update={"topic": topic})
                assert asked.broker.indexings.add(named) is refusal
            refused: Sequence[dict[str, Any]] = (
                {"firn_history": "Both"},
                {"firn_history": "Single", "cleanup_policy": "compact"},
            )
            for configs in refused:
                with pytest.raises(AssertionError, match=r"one of Copy, Single|set firn.history=Copy"):
                    await create(asked, "u", **configs)

    run(story())


async def test_a_process_indexes_what_a_broker_stored(tmp_path: Path) -> None:
    sent, rows = batches_of(8)
    store = SqliteStore(str(tmp_path / "coordinator.db"), SystemClock(), "cluster")
    objects = DirectoryObjects(tmp_path / "objects")
    await store.start()
    partition = Partition(UUID(int=9), 1)
    await store.topics.create_topic(Topic(partition.topic, "t", 2, {}))
    lease = await store.nodes.join(NodeAddress("127.0.0.1", 9092), 60_000)
    data, positions = wal.assemble(
        UUID(int=1), lease.node, lease.epoch, [(partition, [record_batch.rewritten(b) for b in sent])]
    )
    key = wal.key(UUID(int=1))
    await store.log.reserve(lease, [key])
    await objects.put(key, data)
    entries = [
        BatchEntry(
            partition, position, len(batch), record_batch.walk(batch)[0][2], record_batch.header(batch)[0], False
        )
        for batch, position in zip(sent, positions, strict=True)
    ]
    await store.log.commit(Commit(lease, key, len(data), entries))
    # The offsets of the table are those of the log.
    first = int.from_bytes(sent[0][:8], "big")
    file = write(tmp_path / "rows", [(at, offset - first, row) for at, offset, row in rows], group=50)
    placed = DataFile(f"file://{file.path}", file.size)
    named = landed(1).model_copy(
        update={"topic": partition.topic, "ranges": (LandedRange(1, 0, 10_000),), "files": (placed,)}
    )
    configured = settings(tmp_path)
    asked = {
        "settings": configured.model_dump(by_alias=True, mode="json"),
        "lease": [lease.node, lease.epoch],
        "landed": named.model_dump(mode="json"),
    }
    indexed = await run_job(schedule.PROCESS, asked, work="indexes", advice="help")
    assert (indexed["batches"], indexed["kept"], indexed["problems"]) == (len(sent), 0, {})
    (found,) = await store.log.find([Lookup(partition, 0, 1 << 40)])
    assert all(isinstance(each.place, TableRange) for each in found.ranges)
    for batch in sent:
        record_batch.number(batch, 0, int.from_bytes(batch[:8], "big") - first)
    workers = HistoryWorkers(configured)
    assert b"".join(await workers.rebuild(found.ranges)) == b"".join(sent)
    workers.close()
    await store.close()

    (history,) = {each.place.key for each in found.ranges}
    asked = {"settings": configured.model_dump(by_alias=True, mode="json"), "keys": [key, history]}
    restored = await run_job("firn_broker.history.restoring.process", asked, work="restores", advice="help")
    (copy,) = restored["keys"]
    index = await wal.read_batches(objects, copy, await objects.size(copy))
    spans = [(each.position, each.position + each.length) for each in index]
    assert b"".join(await objects.get_ranges(copy, spans)) == b"".join(sent)
    assert restored["unreadable"] == {}


async def test_a_job_that_fails_says_what_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnavailableError, match="the process that works ended with 1.* too little memory: buy some"):
        await run_job("firn_broker.no_such_module", {}, work="works", advice="buy some")
    monkeypatch.setattr(jobs, "SECONDS", 0.01)
    with pytest.raises(UnavailableError, match="the process that works did not end within"):
        await run_job(schedule.PROCESS, {"settings": {}}, work="works", advice="buy some")


LINGERING = """
import threading, time
from firn_broker.cluster.jobs import do_job

async def work(asked):
    threading.Thread(target=time.sleep, args=(300,)).start()
    return {"number": asked["number"]}

do_job(work)
"""


async def test_a_job_ends_while_a_library_still_has_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lingering_job.py").write_text(LINGERING)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), *sys.path]))
    async with asyncio.timeout(60):
        assert await run_job("lingering_job", {"number": 7}, work="works", advice="help") == {"number": 7}
