"""Records of one topic of a real Kafka land in the tables of its routes, each exactly once, whatever fails."""

import json
from collections import Counter
from collections.abc import Mapping

from firn.model.jobs import Column, IngestJob, RecordSchema, Route
from firn.model.maintenance import AuditReport
from firn.schemas.routes import value_schema
from firn_spark.kafka.admin import Kafka
from firn_spark.maintenance.steps.audit import Source, Tables, audit
from firn_spark.tables.java_tables import quoted
from tests.integration.ingestion.world import WAIT, Record, World, audit_of, exactly, places
from tests.servers.process import await_true

FIELDS = (Column(name="id", type="long"), Column(name="type", type="string"))
REFUND_FIELDS = (Column(name="id", type="long"), Column(name="reason", type="string", required=True))
KINDS = ("order", "refund", "refund-eu", "visit")


def routed(world: World, topic: str, otherwise: str = "DeadLetter") -> dict[str, IngestJob]:
    """Return the contracts of a topic with a table of orders, one of refunds with a schema of its own, and its own table."""
    schema = RecordSchema(format="Json", fields=FIELDS)
    values = value_schema(schema, "$.type")
    refunds = RecordSchema(format="Json", fields=REFUND_FIELDS)
    parts = {
        "orders": (schema, Route(values=values, match="order")),
        "refunds": (refunds, Route(values=values, match="refund.*", before=("order",))),
        "rest": (schema, Route(values=values, before=("order", "refund.*"), otherwise=otherwise)),
    }
    jobs = {}
    for name, (own, route) in parts.items():
        job = world.job(topic, record_schema=own, topic_created=True)
        table = job.table.model_copy(update={"name": f"{job.table.name}_{name}"})
        jobs[name] = job.model_copy(
            update={"uid": f"{job.uid}-{name}", "name": f"{job.name}-{name}", "table": table, "route": route}
        )
    return jobs


def records(first: int, count: int) -> list[Record]:
    """Return records of all kinds over two partitions. Some cannot be decoded, and some do not fit their table."""
    made = []
    for n in range(first, first + count):
        value = {"id": n, "type": KINDS[n % 4]} | ({"reason": "r"} if n % 5 else {})
        made.append(Record(b"no JSON" if n % 11 == 0 else json.dumps(value).encode(), partition=n % 2))
    return made


def expected(count: int) -> dict[str, tuple[int, int]]:
    """Return the rows and dead letters of each table."""
    kinds = [None if n % 11 == 0 else KINDS[n % 4] for n in range(count)]
    refunds = [n for n in range(count) if str(kinds[n]).startswith("refund")]
    late = sum(n % 5 == 0 for n in refunds)
    return {
        "orders": (kinds.count("order"), 0),
        "refunds": (len(refunds) - late, late),
        "rest": (0, kinds.count("visit") + kinds.count(None)),
    }


def counts(world: World, jobs: Mapping[str, IngestJob]) -> dict[str, tuple[int, int]]:
    return {name: (len(world.rows(job)), len(world.dead(job))) for name, job in jobs.items()}


def together(world: World, jobs: Mapping[str, IngestJob]) -> Counter[tuple[int, int]]:
    return places([row for job in jobs.values() for row in (*world.rows(job), *world.dead(job))])


def full_audit(world: World, jobs: Mapping[str, IngestJob]) -> AuditReport | None:
    def tables(job: IngestJob) -> Tables:
        def source(suffix: str) -> Source | None:
            target, name = job.table, job.table.name + suffix
            table = world.tables.load(target.catalog, target.namespace, name)
            return Source(table, quoted(target.catalog, target.namespace, name)) if table is not None else None

        found = source("")
        assert found is not None
        return Tables(found, lambda: source("__dlq"))

    topic = next(iter(jobs.values())).topic
    kafka = Kafka("classic", world.broker.connection)
    return audit(world.spark, [tables(job) for job in jobs.values()], kafka, topic, lambda: None)


def test_each_record_is_in_the_table_of_its_route_although_the_driver_is_killed_between_commits(world: World) -> None:
    topic = world.topic(partitions=2)
    jobs = routed(world, topic)
    world.produce(topic, records(0, 200))
    world.apply(*jobs.values())
    world.run_until_killed("after-commit=kill:2")
    assert not together(world, jobs) - exactly({0: 100, 1: 100})
    world.start()
    await_true("all records", lambda: counts(world, jobs) == expected(200), WAIT)
    assert together(world, jobs) == exactly({0: 100, 1: 100})
    reasons = Counter(row["error_code"] for row in world.dead(jobs["rest"]))
    assert set(reasons) == {"NoRoute", "InvalidJson"}
    assert {row["error_code"] for row in world.dead(jobs["refunds"])} == {"MissingRequired"}

    world.produce(topic, records(200, 40))
    await_true("later records", lambda: counts(world, jobs) == expected(240), WAIT)
    world.stop()
    found = full_audit(world, jobs)
    assert found is not None
    assert found.model_copy(update={"offsets": 0}) == AuditReport(topic_id=world.topic_id(topic))
    assert found.offsets > 0
    assert audit_of(world, *jobs.values(), letters=True).exact

    orders, refunds = jobs["orders"].table.identifier, jobs["refunds"].table.identifier
    world.spark.sql(
        f"insert into {refunds} select id, 'x', _kafka from {orders} where _kafka.partition = 0 and _kafka.offset = 2"
    )
    world.spark.sql(f"delete from {orders} where _kafka.partition = 0 and _kafka.offset = 4")
    wrong = full_audit(world, jobs)
    assert wrong is not None
    assert (wrong.missing, wrong.doubled) == (1, 1)
    assert not audit_of(world, *jobs.values(), letters=True).exact
