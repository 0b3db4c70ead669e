"""A topic is deleted and re-created during a round. Records of the old topic never become rows of the new one."""

import pytest

from firn_spark.tables.commits import read_landed
from tests.integration.ingestion.gates import gate_at
from tests.integration.ingestion.world import WAIT, World, audit_of, value
from tests.servers.process import PATIENCE
from tests.servers.s3 import S3

OLD, WAITING, NEW = range(20), range(20, 30), range(100, 140)


@pytest.mark.parametrize(
    ("place", "landed_of_old"),
    [
        pytest.param("before reading", OLD, marks=pytest.mark.long),
        pytest.param("after-data-files", OLD, marks=pytest.mark.long),
        ("before-commit", [*OLD, *WAITING]),
    ],
)
def test_a_topic_recreated_during_a_round_is_read_from_its_beginning(
    world: World, storage: S3, monkeypatch: pytest.MonkeyPatch, place: str, landed_of_old: list[int]
) -> None:
    gate = gate_at(place, monkeypatch)
    topic = world.topic()
    job = world.job(topic, freshness_ms=500)
    world.produce(topic, [value(number) for number in OLD])
    world.apply(job)
    world.start()
    world.await_rows(job, len(OLD))
    old_id = world.topic_id(topic)
    gate.closed.set()
    world.produce(topic, [value(number) for number in WAITING])
    assert gate.held.wait(WAIT * PATIENCE)
    # The new topic is longer than the range of the round in the old one, so the same offsets hold other records.
    world.delete(topic)
    world.create(topic)
    world.produce(topic, [value(number) for number in NEW])
    gate.open.set()
    rows = world.await_rows(job, len(landed_of_old) + len(NEW))
    of_old = [(row["_kafka"]["offset"], row["id"]) for row in rows if row["id"] < NEW[0]]
    of_new = [(row["_kafka"]["offset"], row["id"]) for row in rows if row["id"] >= NEW[0]]
    assert sorted(of_old) == [(number, number) for number in landed_of_old]
    assert sorted(of_new) == list(enumerate(NEW))
    world.await_state(job, "CaughtUp", lag_records=0)
    landed = read_landed(world.table(job))
    assert landed is not None
    assert landed.offsets == {0: len(NEW)}
    assert landed.topic_id == world.topic_id(topic) != old_id
    # The table refers to each file, so the files of the discarded round are deleted.
    named = {row.file_path for row in world.spark.sql(f"select file_path from {job.table.identifier}.files").collect()}
    data = storage.directory / "buckets" / storage.bucket / world.table(job).location().split("/", 3)[3] / "data"
    assert {path.name for path in data.rglob("*.parquet")} == {path.rsplit("/", 1)[1] for path in named}
    # The audit reads the new topic only.
    (audited,) = audit_of(world, job).partitions
    assert (audited.rows, audited.records, audited.exact) == (len(NEW), len(NEW), True)
