"""Ingestion and audits on a REST catalog whose tokens and vended credentials expire in the middle of the work."""

from pathlib import Path
from typing import Any

import pytest

from firn.model.errors import ExitCode
from firn.model.jobs import IngestJob
from firn.model.maintenance import AuditWork, MaintenanceRun, TableReport, TableWork
from firn_spark.failpoints import FailpointError, Failpoints
from firn_spark.leases import Files, Leases
from firn_spark.maintenance.application import Run
from firn_spark.maintenance.steps.audit import Rows
from tests.integration.ingestion.gates import gate_at
from tests.integration.ingestion.world import WAIT, World, exactly, places, value
from tests.servers.iceberg_rest import IcebergRest
from tests.servers.process import PATIENCE, await_true


def ten(first: int) -> list[bytes]:
    """Return ten records, one of them bad."""
    return [b"bad" if number == first + 3 else value(number) for number in range(first, first + 10)]


def stage(world: World, catalog: IcebergRest) -> tuple[IngestJob, IngestJob]:
    """Return the contract of a topic, and the same with a catalog around the proxies, through which the test reads."""
    proxied, direct = f"vending_{world.suffix}", f"direct_{world.suffix}"
    catalog.rules.expired_status = 401
    world.add_catalog(proxied, catalog.connection)
    world.add_catalog(direct, catalog.direct)
    job = world.job(world.topic(), table={"catalog": proxied})
    seen = job.model_copy(update={"table": job.table.model_copy(update={"catalog": direct})})
    world.apply(job)
    return job, seen


def lands(world: World, seen: IngestJob, end: int) -> None:
    """Wait until the offsets before ``end`` have landed, and check that each is there once."""
    world.await_offsets(lambda: world.landed(seen) == {0: end}, f"{end} offsets", seen)
    assert places([*world.rows(seen), *world.dead(seen)]) == exactly({0: end})


@pytest.mark.parametrize(
    "place",
    [
        "before reading",
        pytest.param("after-data-files", marks=pytest.mark.long),
        "after-dlq-commit",
        pytest.param("before-commit", marks=pytest.mark.long),
        pytest.param("in-commit", marks=pytest.mark.long),
        pytest.param("after-commit", marks=pytest.mark.long),
    ],
)
def test_credentials_that_expire_within_a_round_lose_and_duplicate_no_record(
    world: World, iceberg_catalog: IcebergRest, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    gate = gate_at(place, monkeypatch)
    job, seen = stage(world, iceberg_catalog)
    world.produce(job.topic, ten(0))
    world.start()
    lands(world, seen, 10)
    gate.closed.set()
    world.produce(job.topic, ten(10))
    assert gate.held.wait(WAIT * PATIENCE)
    iceberg_catalog.rules.expire()
    gate.open.set()
    lands(world, seen, 20)
    world.await_state(job, "CaughtUp")


def test_rounds_continue_after_an_outage_of_the_token_endpoint(world: World, iceberg_catalog: IcebergRest) -> None:
    job, seen = stage(world, iceberg_catalog)
    rules = iceberg_catalog.rules
    world.produce(job.topic, ten(0))
    driver = world.start()
    lands(world, seen, 10)
    rules.away = True
    try:
        rules.expire()
        world.produce(job.topic, ten(10))
        world.await_state(job, "BackingOff")

        def explained() -> bool:
            topic = world.progress(job, driver)
            return topic is not None and topic.failures > 1 and "the token endpoint is down" in topic.message

        await_true("several attempts, and the cause", explained, WAIT)
        waiting = world.progress(job, driver)
        assert waiting is not None
        assert waiting.table_reason == "CatalogUnreachable", waiting
        assert waiting.lag_records == 10
        assert world.landed(seen) == {0: 10}
    finally:
        rules.away = False
    lands(world, seen, 20)
    world.await_state(job, "CaughtUp")


def test_dead_letters_are_read_back_after_the_token_of_sparks_session_has_expired(
    world: World, iceberg_catalog: IcebergRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing: list[str] = []

    def reach(_: Failpoints, name: str) -> None:
        if name in failing:
            failing.remove(name)
            raise FailpointError(name)

    monkeypatch.setattr(Failpoints, "reach", reach)
    # Spark's session renews no token by itself during the test.
    monkeypatch.setattr(iceberg_catalog.rules, "life_seconds", 3600)
    job, seen = stage(world, iceberg_catalog)
    world.start()
    for end in (10, 20):
        # The dead letters are ahead of the table. The next attempt asks Spark for them.
        failing.append("after-dlq-commit")
        world.produce(job.topic, ten(end - 10))
        lands(world, seen, end)
        assert not failing
        iceberg_catalog.rules.expire()


def audited(world: World, job: IngestJob, directory: Path) -> tuple[ExitCode, TableReport]:
    """Audit the topic as the Job of a run does."""
    table = world.table(job)
    work = TableWork(
        uid=job.uid, namespace="tests", name=job.name, table=job.table, table_uuid=str(table.uuid()),
        audit=AuditWork(profile="classic", topic=job.topic),
    )  # fmt: skip
    contract = MaintenanceRun(
        name="audit", tables=(work,), catalogs=world.settings.catalogs, kafka=world.settings.kafka, cores=1
    )
    run = Run(contract, world.spark, Leases(Files(str(directory)), f"audit/{id(work)}", 60))
    code = run.work()
    (report,) = run.report().tables
    return code, report


def test_an_audit_is_repeated_after_its_credentials_have_expired(
    world: World, iceberg_catalog: IcebergRest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    job, seen = stage(world, iceberg_catalog)
    world.produce(job.topic, ten(0))
    world.start()
    lands(world, seen, 10)
    world.stop()
    read = Rows.chunks

    def expired(rows: Rows, window: Any) -> Any:
        iceberg_catalog.rules.expire()
        return read(rows, window)

    with monkeypatch.context() as fault:
        fault.setattr(Rows, "chunks", expired)
        code, report = audited(world, job, tmp_path)
    assert (code, report.outcome, report.audit) == (ExitCode.TEMPORARY, "Failed", None)
    code, report = audited(world, job, tmp_path)
    assert (code, report.outcome) == (ExitCode.DONE, "Done"), report
    assert report.audit is not None
    assert (report.audit.offsets, report.audit.missing, report.audit.doubled) == (10, 0, 0)
