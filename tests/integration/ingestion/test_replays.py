"""Dead letters of topics in a real Kafka come back, while a driver lands other records, and however often a run fails."""

import json
from functools import partial
from typing import Any

import pytest

from firn.model.errors import ExitCode
from firn.model.jobs import Column, IngestJob, RecordSchema
from firn.model.maintenance import AuditReport, ReplayReport, ReplayWork
from firn_spark.tables.java_tables import quoted
from tests.integration.ingestion.contracts import schema_of
from tests.integration.ingestion.test_column_versions import VALUES, avro_value, schema_text
from tests.integration.ingestion.test_routes import full_audit, routed, together
from tests.integration.ingestion.test_shared_tables import await_landed, check, reported, sharing
from tests.integration.ingestion.world import FIELDS, Record, World, audit_of, exactly, maintain, places, run_on, value
from tests.servers.apicurio import Apicurio

FAILS = "after-replay-append=raise:1"
"""The run ends after the commit of rows, before the commit without their letters."""


def replay(world: World, job: IngestJob, failpoints: str = "") -> ReplayReport | None:
    """Replay all dead letters of a topic. Returns None if the run ends at a failpoint."""
    run = run_on(world, job, failpoints, replay=ReplayWork(uid="replay-1", job=job, enforce=True))
    code = run.work()
    assert code == (ExitCode.TEMPORARY if failpoints else ExitCode.DONE), run.report()
    return run.report().tables[0].replay


def record(number: int, kind: str, **more: Any) -> bytes:
    return json.dumps({"id": number, "type": kind, **more}).encode()


def test_letters_of_another_type_get_the_column_of_this_type(served: World, registry: Apicurio) -> None:
    topic = served.topic()
    subject = f"{topic}-value"
    numbers = [registry.register(subject, schema_text("Avro", 0))]
    written: list[int] = []

    def produce(*writers: int) -> None:
        values = [avro_value(numbers[version], version, len(written) + n) for n, version in enumerate(writers)]
        written.extend(writers)
        served.produce(topic, values)

    contract = schema_of(registry, subject).model_copy(update={"incompatible": "DeadLetter"})
    job = served.job(topic, record_schema=contract)
    numbers += [registry.register(subject, schema_text("Avro", version)) for version in (1, 2)]
    served.apply(job)
    produce(0, 1, 1, 2, 0)
    served.start()
    served.await_offsets(lambda: served.landed(job) == {0: 5}, "5 records", job)
    assert [row["error_code"] for row in served.dead(job)] == ["IncompatibleSchema"] * 3

    job = job.model_copy(
        update={"record_schema": contract.model_copy(update={"incompatible": "NewColumn"}), "generation": 2}
    )
    served.apply(job)
    produce(1)
    served.await_rows(job, 3)
    name = quoted(job.table.catalog, job.table.namespace, job.table.name)
    served.spark.sql(f"ALTER TABLE {name} RENAME COLUMN total_v2 TO total_text")
    produce(2, 1)
    report = replay(served, job)
    assert report is not None
    assert (report.landed, report.failures, report.remaining) == (3, {}, 0)
    served.await_rows(job, 8)
    served.stop()

    rows, columns = served.rows(job), ("total", "total_text", "total_v3")
    assert places(rows) == exactly({0: len(written)})
    for number, (row, version) in enumerate(zip(rows, written, strict=True)):
        assert row["id"] == number
        assert [row[column] for column in columns] == [
            VALUES[version](number) if place == version else None for place in range(3)
        ]
        assert row["_kafka"]["schema_id"] == numbers[version]
    assert served.dead(job) == []
    assert audit_of(served, job, letters=True).exact


@pytest.mark.long
def test_a_replay_into_a_shared_table_moves_the_letters_of_its_topic_only(world: World) -> None:
    """Both topics have letters at the same offsets, with the same keys and times."""
    strict = RecordSchema(format="Json", fields=FIELDS, unknown_fields="DeadLetter")
    jobs = [sharing(world, world.topic(name), record_schema=strict) for name in ("eu", "us")]

    def produce(first: int, end: int) -> None:
        values = [value(n, **({"state": "NY"} if n % 4 == 0 else {})) for n in range(first, end)]
        for job in jobs:
            world.produce(job.topic, [Record(each, key=b"k", timestamp=1_700_000_000_000) for each in values])

    def await_both(end: int) -> None:
        for job in jobs:
            await_landed(world, job, {0: end})

    produce(0, 10)
    world.apply(*jobs)
    world.start()
    await_both(10)
    mended = strict.model_copy(update={"fields": (*FIELDS, Column(name="state", type="string"))})
    jobs = [job.model_copy(update={"record_schema": mended, "generation": 2}) for job in jobs]
    world.apply(*jobs)
    produce(10, 13)
    await_both(13)
    eu, us = jobs
    assert replay(world, eu, FAILS) is None
    # The rows of the run are there, and their letters too. No topic has a wrong offset.
    for job in jobs:
        assert reported(world, job) == AuditReport(topic_id=job.topic_id or "", offsets=13)
        assert audit_of(world, job, letters=True).exact
    maintain(world, eu, us.name)
    produce(13, 16)
    report = replay(world, eu)
    assert report is not None
    assert (report.matched, report.landed, report.remaining) == (3, 3, 0)
    await_both(16)
    report = replay(world, us)
    assert report is not None
    assert (report.landed, report.remaining) == (3, 0)
    world.stop()
    for job in jobs:
        check(world, job, 16)
    assert [row["state"] for row in world.rows(eu) if row["_kafka"]["offset"] % 4 == 0] == ["NY"] * 8


def test_letters_of_a_route_become_rows_of_its_table(world: World) -> None:
    topic = world.topic()
    jobs = routed(world, topic)
    made = (
        partial(record, kind="order"), partial(record, kind="refund"), partial(record, kind="visit"),
        partial(record, kind="refund", reason="r"),
    )  # fmt: skip
    world.apply(*jobs.values())
    world.produce(topic, [made[n % 4](n) for n in range(16)])
    world.start()
    for job in jobs.values():
        await_landed(world, job, {0: 16})
    refunds = jobs["refunds"]
    fields = tuple(field.model_copy(update={"required": False}) for field in refunds.record_schema.fields)
    mended = RecordSchema(format="Json", fields=fields)
    refunds = jobs["refunds"] = refunds.model_copy(update={"record_schema": mended, "generation": 2})
    world.apply(refunds)
    world.await_state(refunds, "CaughtUp", generation=2)
    world.produce(topic, [record(16, "refund")])
    # The other tables may keep their offsets, because they have nothing to commit.
    await_landed(world, refunds, {0: 17})
    report = replay(world, refunds)
    assert report is not None
    assert (report.landed, report.remaining) == (4, 0)
    report = replay(world, jobs["rest"])
    assert report is not None
    assert (report.landed, report.failures, report.remaining) == (0, {"NoRoute": 4}, 4)
    world.stop()
    assert together(world, jobs) == exactly({0: 17})
    assert [row["id"] for row in world.rows(refunds)] == [n for n in range(17) if n % 2 or n == 16]
    found = full_audit(world, jobs)
    assert found is not None
    assert found.model_copy(update={"offsets": 0}) == AuditReport(topic_id=world.topic_id(topic))
