"""The contracts of one topic's routes share the read of its log while they are at the same offsets."""

from typing import Any

from firn.model.jobs import RecordSchema, Route, SchemaFormat
from firn.schemas.routes import value_schema
from firn_spark.ingestion.rounds.planning import plan, slices
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import LogEnd
from tests.unit.spark_driver.test_round_order import ENDLESS, Turns, waiting
from tests.unit.spark_driver.topic import topic

VALUES = value_schema(RecordSchema(format=SchemaFormat.RAW), "header:type")


def routed(made: Topic, table: str) -> Topic:
    """Return a topic as the contract of one of its tables."""
    target = made.job.table.model_copy(update={"name": table})
    made.job = made.job.model_copy(
        update={"uid": f"uid-{table}", "table": target, "route": Route(values=VALUES, match=table)}
    )
    return made


def groups(turns: Turns) -> list[set[str]]:
    turns.decide()
    return [{member.job.table.name for member in group} for group, _ in turns.running]


def test_tables_at_the_same_offsets_share_a_round_also_with_a_backlog() -> None:
    for lag in (10, ENDLESS):
        turns = Turns()
        turns.add(*(routed(waiting("events", lag), table) for table in ("orders", "refunds", "rest")))
        assert groups(turns) == [{"orders", "refunds", "rest"}]


def test_a_table_at_other_offsets_reads_on_its_own() -> None:
    turns, late = Turns(), routed(waiting("events", 10), "refunds")
    late.reading.position = {0: 3}
    turns.add(routed(waiting("events", 10), "orders"), late, waiting("others", 10))
    found = groups(turns)
    assert {"orders", "refunds"} not in found
    assert not any({"orders", "refunds"} <= group for group in found)


def test_a_failing_table_does_not_hold_up_the_others() -> None:
    turns, failing = Turns(), routed(waiting("events", 10), "refunds")
    failing.attempts.failures = 1
    turns.add(routed(waiting("events", 10), "orders"), failing, routed(waiting("events", 10), "rest"))
    assert {"orders", "rest"} in groups(turns)


class Brokers:
    """A log of ten records."""

    def starts(self, topics: Any) -> Any:
        return {name: dict.fromkeys(parts, 0) for name, parts in topics.items()}

    def log_ends(self, topics: Any) -> Any:
        return {name: {part: LogEnd(10, None) for part in parts} for name, parts in topics.items()}

    def divergences(self, topics: Any) -> Any:
        return {name: {} for name in topics}


def test_the_log_is_read_once_with_one_range_for_all_tables() -> None:
    tables = [routed(topic("events", 10, record_bytes=size), name) for name, size in (("a", 100.0), ("b", 900.0))]
    brokers: Any = Brokers()
    planned = plan(tables, brokers, 1000)
    assert list(planned) == tables
    assert planned[tables[0]] == planned[tables[1]]
    parts = [part for group in slices(planned, 4) for part in group]
    assert [(part.topic, part.start, part.end) for part in parts] == [("events", 0, planned[tables[0]][0][1])]


def test_a_claim_that_moves_a_table_takes_it_out_of_the_round() -> None:
    first, moved = routed(topic("events", 10), "a"), routed(topic("events", 10), "b")
    moved.reading.position = {0: 4}
    brokers: Any = Brokers()
    assert list(plan([first, moved], brokers, 10**6)) == [first]
