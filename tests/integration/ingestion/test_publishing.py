"""A driver lands rows on a branch, and main of the table follows after the checks, also if the driver dies meanwhile."""

from typing import Any

import pytest

from firn.model.jobs import IngestJob, Publish, PublishCheck
from firn.model.progress import PublishProgress
from tests.integration.ingestion.test_exactly_once import good, some, topic_with
from tests.integration.ingestion.world import World, audit_of, exactly, places


def publishing(*checks: str, every_ms: int = 200, **changes: Any) -> Publish:
    named = tuple(PublishCheck(name=f"c{n}", check=check) for n, check in enumerate(checks))
    return Publish(branch="staging", every_ms=every_ms, checks=named, **changes)


def report(world: World, job: IngestJob) -> PublishProgress | None:
    progress = world.progress(job)
    return progress.publish if progress is not None else None


def await_report(world: World, job: IngestJob, state: str, rows: int) -> PublishProgress:
    def reached() -> bool:
        found = report(world, job)
        return found is not None and (found.state, found.rows) == (state, rows)

    world.await_offsets(reached, f"{state} with {rows} rows", job)
    found = report(world, job)
    assert found is not None
    return found


@pytest.mark.parametrize("place", ["before-publish", "after-publish"])
def test_a_failure_around_publishing_publishes_each_record_once(world: World, place: str) -> None:
    topic = world.topic()
    job = world.job(topic, publish=publishing("count(*) > 0"))
    world.produce(topic, some(0))
    world.apply(job)
    world.start(f"{place}=raise:1")
    rows = world.await_rows(job, 16)
    assert places([*rows, *world.dead(job)]) == exactly({0: 20})


@pytest.mark.long
def test_kill_9_around_publishing_publishes_each_record_once(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, publish=publishing("count(*) > 0"))
    world.apply(job)
    # The second driver first publishes the rows that it finds.
    for number, (place, published) in enumerate((("before-publish", 0), ("after-publish", 10))):
        world.produce(topic, good(number * 10))
        world.run_until_killed(f"{place}=kill:1")
        assert len(world.rows(job)) == published
    world.produce(topic, good(20))
    world.start()
    assert places(world.await_rows(job, 30)) == exactly({0: 30})


def test_rows_that_fail_a_check_wait_until_they_are_let_go(world: World) -> None:
    topic, job = topic_with(world, good(0))
    # A table with rows gets the branch later.
    held = job.model_copy(update={"publish": publishing("null_share(name) < 0.5", "count(*) > 15")})
    world.apply(held)
    world.produce(topic, good(10))
    first = await_report(world, job, "Held", 10)
    assert [(check.name, check.passed) for check in first.checks] == [("c0", True), ("c1", False)]
    world.produce(topic, good(20, 3))
    await_report(world, job, "Held", 13)
    assert world.size(job) == 10
    audit = audit_of(world, job)
    assert audit.exact
    assert "main has 13 rows less" in audit.notes[0]
    # An approval is about the rows of a snapshot.
    assert held.publish is not None
    approved = held.publish.model_copy(update={"approved": first.snapshot})
    world.apply(held.model_copy(update={"publish": approved}))
    world.await_rows(job, 20)
    await_report(world, job, "Held", 3)
    # Without the field, main gets the rest, and rows land there again.
    world.apply(job)
    world.await_rows(job, 23)
    world.produce(topic, good(23, 7))
    assert places(world.await_rows(job, 30)) == exactly({0: 30})
    assert report(world, job) is None


def test_a_table_that_refuses_the_branch_lands_nothing_on_main(world: World) -> None:
    topic, job = topic_with(world, good(0))
    world.spark.sql(f"ALTER TABLE lake.{job.table.namespace}.{job.table.name} CREATE BRANCH staging")
    world.apply(job.model_copy(update={"publish": publishing()}))
    world.produce(topic, good(10))
    refused = world.await_state(job, "BackingOff", reason="BranchRefused")
    assert "branch staging exists" in refused.message
    assert world.size(job) == 10
    world.apply(job.model_copy(update={"publish": publishing().model_copy(update={"branch": "audit"})}))
    world.await_rows(job, 20)
