"""Upgrade, roll-back and upgrade again, with the driver of 0.2.0 from the history of this repository.

docs/operations/upgrade.md says which tables the earlier driver continues. No record is lost, and none lands twice.
"""

import copy
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from firn.model import names
from firn.model.errors import ExitCode
from firn.model.jobs import Column, IngestJob, KeySchema, QualityRule, RecordSchema, SchemaFormat
from firn.model.maintenance import (
    CompactionWork,
    MaintenanceRun,
    RetentionWork,
    SnapshotsWork,
    TableReport,
    unpack,
)
from firn.model.progress import is_complete
from firn_spark.tables.java_tables import quoted
from tests.integration.ingestion.earlier import COMMIT_0_2_0, code_of, report
from tests.integration.ingestion.world import (
    FIELDS,
    WAIT,
    Process,
    Record,
    World,
    audit_of,
    exactly,
    places,
    run_on,
    value,
)
from tests.servers.process import PATIENCE, await_true
from tests.unit.model.test_released_documents import REFUSED, changed

RULES = (QualityRule(name="none", check="id < 0"),)
REWRITE = CompactionWork(strategy="Sort", columns=("id",), open_grace_ms=0, everything=True)
EXPIRY = RetentionWork(enforce=True, snapshots=SnapshotsWork(max_age_ms=0, min_keep=1))


@contextmanager
def earlier(world: World) -> Iterator[Process]:
    """Run the driver of 0.2.0. It ends without an error."""
    with world.spawn(code=code_of(COMMIT_0_2_0)) as driver:
        yield driver
        driver.process.send_signal(signal.SIGTERM)
        assert driver.process.wait(WAIT * PATIENCE) == 0, log(world)


@contextmanager
def present(world: World) -> Iterator[None]:
    """Run the driver of this version."""
    world.start()
    yield
    world.stop()


def log(world: World) -> str:
    return (world.directory / "driver.log").read_text()[-5000:]


class Topic:
    """A topic with records that count up, and its contract. Every fifth record of a JSON topic is bad."""

    def __init__(self, world: World, name: str, partitions: int, **contract: Any) -> None:
        self.world, self.partitions = world, range(partitions)
        self.ends = dict.fromkeys(self.partitions, 0)
        topic = world.topic(name, partitions)
        self.job = world.job(topic, topic_id=world.topic_id(topic), **contract)
        world.apply(self.job)

    def produce(self, *partitions: int) -> None:
        """Produce five records to each of the partitions, by default to all."""
        for partition in partitions or self.partitions:
            first = self.ends[partition]
            self.ends[partition] += 5
            numbers = range(first, self.ends[partition])
            records = [b"bad" if number % 5 == 4 else value(number) for number in numbers]
            self.world.produce(self.job.topic, [Record(record, partition=partition) for record in records])

    def landed(self) -> Mapping[int, int]:
        return self.world.landed(self.job)

    def check(self) -> None:
        """Compare rows and dead letters with the records, one by one, and audit them as the command does."""
        letters = self.job.table.dead_letters.removeprefix(self.job.table.name)
        rows, dead = self.world.rows(self.job), self.world.rows(self.job, letters)
        assert places([*rows, *dead]) == exactly(self.ends), self.job.topic
        if self.job.record_schema.format is SchemaFormat.JSON:
            assert all(row["id"] == row["_kafka"]["offset"] for row in rows)
            assert len(dead) == sum(self.ends.values()) / 5
        else:
            assert len(rows) == sum(self.ends.values())
        audit = audit_of(self.world, self.job, letters=bool(dead))
        assert audit.exact, (self.job.topic, audit)


def await_landed(topics: Iterable[Topic], driver: Process | None = None) -> None:
    """Wait until all records of the topics have landed."""

    def landed(topic: Topic) -> Callable[[], bool]:
        def check() -> bool:
            assert driver is None or driver.process.poll() is None, log(topic.world)
            return topic.landed() == topic.ends

        return check

    for topic in topics:
        world = topic.world
        try:
            await_true(f"{topic.ends} of {topic.job.topic}", landed(topic), WAIT)
        except AssertionError as error:
            state = report(driver, topic.job.uid) if driver is not None else world.progress(topic.job)
            raise AssertionError(
                f"{error}; landed {topic.landed()}, {state}, {log(world)[-1500:] if driver else ''}"
            ) from None


def newest_offsets(topic: Topic) -> str:
    """Return the offsets that the newest snapshot of the table records."""
    return str(topic.world.table(topic.job).currentSnapshot().summary().get(names.SUMMARY_OFFSETS))


def newest_snapshot(topic: Topic) -> int:
    return int(topic.world.table(topic.job).currentSnapshot().snapshotId())


def produce_changes(topic: Topic, *partitions: int) -> None:
    """Let the running driver commit records of some partitions, in a commit that is not the first of its five minutes."""
    while True:
        topic.produce(*partitions)
        await_landed([topic])
        if not is_complete(newest_offsets(topic)):
            return


def rewrite(topic: Topic, **work: Any) -> None:
    """Compact all files of the table."""
    run = run_on(topic.world, topic.job, compaction=REWRITE, **work)
    assert (run.work(), run.report().tables[0].outcome) == (ExitCode.DONE, "Done"), run.report()


def test_tables_survive_an_upgrade_a_roll_back_and_an_upgrade(world: World) -> None:
    raw = RecordSchema(format=SchemaFormat.RAW)
    released = [Topic(world, "json", 2), Topic(world, "raw", 1, record_schema=raw)]
    for topic in released:
        topic.produce()
    with earlier(world) as driver:
        await_landed(released, driver)
    one, most, half, few = (
        Topic(world, name, count) for name, count in (("one", 1), ("most", 3), ("half", 2), ("few", 8))
    )
    continued, stopped = [*released, one, most], [half, few]
    for topic in (*continued, *stopped):
        topic.produce()
    with present(world):
        await_landed([*continued, *stopped])
        one.produce()
        most.produce(0, 1)
        produce_changes(half, 1)
        produce_changes(few, 3)
        await_landed(continued)
    for topic in released:
        topic.check()
    roll_back_and_upgrade(continued, stopped)


@pytest.mark.long
def test_rewritten_and_expired_commits_decide_about_a_roll_back(world: World) -> None:
    first, expired, compacted = (Topic(world, name, 8) for name in ("first", "expired", "compacted"))
    for topic in (first, expired, compacted):
        topic.produce()
    with present(world):
        await_landed([first, expired, compacted])
        produce_changes(expired, 5)
        produce_changes(compacted, 0)
    rewrite(expired, retention=EXPIRY)
    rewrite(compacted)
    roll_back_and_upgrade([first, expired], [compacted])


def roll_back_and_upgrade(continued: Sequence[Topic], stopped: Sequence[Topic]) -> None:
    """Run the driver of 0.2.0, which continues some tables and stops at the others, and then the driver of this version."""
    topics = [*continued, *stopped]
    world = topics[0].world
    before = {topic: newest_snapshot(topic) for topic in stopped}
    for topic in topics:
        topic.produce()
    with earlier(world) as driver:
        await_landed(continued, driver)
        for topic in stopped:
            await_error(driver, topic)
    assert {topic: newest_snapshot(topic) for topic in stopped} == before
    with present(world):
        await_landed(topics)
        for topic in topics:
            topic.produce(0)
        await_landed(topics)
    for topic in topics:
        topic.check()


def await_error(driver: Process, topic: Topic, message: str = "invalid ingestion offsets") -> None:
    """Wait until the driver of 0.2.0 reports that it stops at the table."""

    def stopped() -> bool:
        found = report(driver, topic.job.uid)
        return found is not None and found["state"] == "BackingOff" and message in found["message"]

    await_true(f"0.2.0 stops at {topic.job.topic}", stopped, WAIT)


def contracts_that_0_2_0_must_refuse(world: World) -> dict[str, IngestJob]:
    """Return a contract for each field without which a driver would land other rows, and for each newer format."""
    topic = world.topic("refused")
    plain = world.job(topic, topic_id=world.topic_id(topic), version=1)
    document = json.loads(plain.model_dump_json(exclude_none=True))
    found = {field: changed(copy.deepcopy(document), field) for field in REFUSED}
    for format_ in SchemaFormat.AVRO, SchemaFormat.PROTOBUF:
        schema = document["record_schema"] | {"format": format_, "text": "{}"}
        found[format_] = document | {"record_schema": schema}
    jobs = {}
    for number, (field, each) in enumerate(sorted(found.items())):
        each["table"] |= {"name": f"refused_{number}"}
        job = IngestJob.model_validate(each | {"uid": f"refused-{number}"})
        jobs[field] = job.model_copy(update={"version": job.needed_version})
    return jobs


@pytest.mark.long
def test_0_2_0_refuses_contracts_that_it_would_follow_wrongly(world: World) -> None:
    refused = contracts_that_0_2_0_must_refuse(world)
    filtered, ruled = Topic(world, "filtered", 1), Topic(world, "ruled", 1, quality_rules=RULES)
    world.produce(refused["filter"].topic, [value(0)])
    for topic in (filtered, ruled):
        topic.produce()
    world.apply(*refused.values())
    with earlier(world) as driver:
        await_landed([filtered, ruled], driver)
        job = filtered.job.model_copy(update={"filter": "id < 0", "version": 2, "generation": 2})
        world.apply(job)
        await_true("0.2.0 reads the contract again", lambda: refusals(world).count(job.uid) == 1, WAIT)
        filtered.produce()
        await_landed([filtered], driver)
        reported = {topic["uid"] for topic in driver.get("/progress").json()["topics"]}  # type: ignore[union-attr]
    assert reported == {filtered.job.uid, ruled.job.uid}
    assert sorted(refusals(world)) == sorted([*(job.uid for job in refused.values()), filtered.job.uid])
    assert [field for field, job in refused.items() if world.table(job) is not None] == []
    for topic in (filtered, ruled):
        topic.check()


def refusals(world: World) -> list[str]:
    """Return the contracts that a driver could not read, by its log."""
    lines = [json.loads(line) for line in (world.directory / "driver.log").read_text().splitlines() if line[:1] == "{"]
    return [Path(line["origin"]).stem for line in lines if line["event"] == "job contract cannot be read"]


def of_0_2_0(job: IngestJob) -> IngestJob:
    """Return the contract that the operator of 0.2.0 writes for the same resource: without the fields that it does not know."""
    table = job.table.model_copy(update={"shared_by": ""})
    schema = RecordSchema(format=job.record_schema.format, fields=job.record_schema.fields)
    return job.model_copy(update={"version": 1, "table": table, "record_schema": schema, "filter": ""})


def alter(topic: Topic, change: str) -> None:
    """Change the table as another engine does."""
    table = topic.job.table
    topic.world.spark.sql(f"ALTER TABLE {quoted(table.catalog, table.namespace, table.name)} {change}")


@pytest.mark.long
def test_tables_survive_the_contracts_of_the_operator_of_0_2_0(world: World) -> None:
    """0.2.0 stops at shared tables and unknown types. Elsewhere it ignores what it does not know, as the documentation says."""
    key = RecordSchema(format=SchemaFormat.JSON, fields=FIELDS, key=KeySchema(columns="Binary"))
    variant = RecordSchema(format=SchemaFormat.JSON, fields=(*FIELDS, Column(name="v", type="variant")))
    shared = Topic(world, "shared", 1, version=2, table={"shared_by": "shared"})
    typed = Topic(world, "typed", 1, table={"format_version": 3}, record_schema=variant)
    filtered = Topic(world, "filtered", 1, version=2, filter="id < 3")
    keyed = Topic(world, "keyed", 1, version=2, record_schema=key)
    partitioned = Topic(world, "partitioned", 1, table={"format_version": 3})
    stopped, continued = [shared, typed], [filtered, keyed, partitioned]
    topics = [*stopped, *continued]
    for topic in topics:
        topic.produce()
    with present(world):
        await_landed(topics)
    alter(partitioned, "ADD PARTITION FIELD bucket(2, id)")
    alter(shared, f"SET TBLPROPERTIES ('{names.TABLE_OWNER}' = '{shared.job.uid}')")  # The operator of 0.2.0 does it.
    before = {topic: newest_snapshot(topic) for topic in stopped}
    for topic in topics:
        topic.produce()
    world.apply(*(of_0_2_0(topic.job) for topic in topics))
    with earlier(world) as driver:
        await_landed(continued, driver)
        await_error(driver, shared)
        await_error(driver, typed, "'variant' is not a type")
    assert {topic: newest_snapshot(topic) for topic in stopped} == before
    assert world.table(partitioned.job).spec().isUnpartitioned()
    alter(shared, f"SET TBLPROPERTIES ('{names.TABLE_OWNER}' = '{names.SHARED}')")
    world.apply(*(topic.job for topic in topics))
    for topic in topics:
        topic.produce()
    with present(world):
        await_landed(topics)
    for topic in (*stopped, keyed, partitioned):
        topic.check()
    assert [row["id"] for row in world.rows(filtered.job)] == [0, 1, 2, 5, 6, 7, 8]
    assert audit_of(world, filtered.job, letters=True).exact


@pytest.mark.long
def test_runs_of_0_2_0_stop_at_the_same_tables(world: World) -> None:
    one, half = Topic(world, "one", 1), Topic(world, "half", 2)
    for topic in one, half:
        topic.produce()
    with present(world):
        await_landed([one, half])
        one.produce()
        produce_changes(half, 1)
        await_landed([one])
    before = {topic: newest_snapshot(topic) for topic in (one, half)}
    code, reports = run_of_0_2_0(world, one, half)
    assert (code, {uid: each.outcome for uid, each in reports.items()}) == (
        ExitCode.CORRUPT,
        {one.job.uid: "Done", half.job.uid: "Failed"},
    ), reports
    assert "invalid ingestion offsets" in reports[half.job.uid].message
    changed = {topic for topic, snapshot in before.items() if newest_snapshot(topic) != snapshot}
    assert changed == {one}
    for topic in one, half:
        topic.produce()
    with present(world):
        await_landed([one, half])
    for topic in one, half:
        topic.check()


def run_of_0_2_0(world: World, *topics: Topic) -> tuple[int, dict[str, TableReport]]:
    """Let a maintenance run of 0.2.0 compact all files. Return its exit code, and its report of each topic."""
    work = tuple(run_on(world, topic.job, compaction=REWRITE, retention=EXPIRY).run.tables[0] for topic in topics)
    run = MaintenanceRun(
        name=f"run-{world.suffix}",
        leases_directory=str(world.directory / "leases"),
        tables=work,
        catalogs=world.settings.catalogs,
        spark_conf=world.settings.spark_conf,
    )
    contract, message = world.directory / "run.json", world.directory / "message"
    contract.write_text(run.model_dump_json(exclude_none=True))
    code = code_of(COMMIT_0_2_0)
    ended = subprocess.run(
        [sys.executable, str(code / "spark_apps" / "maintain.py"), str(contract), str(message)],
        cwd=code,
        env={**os.environ, "PYTHONPATH": f"{code}{os.pathsep}{code / 'spark_apps'}"},
        check=False,
        timeout=WAIT,
    )
    return ended.returncode, {table.uid: table for table in unpack(message.read_text()).tables}
