"""The contracts of one topic's routes share the read of its log while they are at the same offsets."""

from collections.abc import Sequence
from typing import Any, cast

from firn.model.jobs import RecordSchema, Route, SchemaFormat
from firn.model.progress import HaltedAt, Losses, Offsets
from firn.schemas.routes import value_schema
from firn_spark.ingestion.levelling import MOST_HELD
from firn_spark.ingestion.loop import ROUNDS_PER_KEY
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


class Reads:
    """The rounds that a loop starts: their tables, and the offsets up to which they read."""

    def __init__(self, *topics: Topic) -> None:
        self.turns = Turns()
        self.turns.add(*topics)
        self.turns.run = self._read  # type: ignore[method-assign]
        self.found: list[tuple[set[str], Offsets | None]] = []

    def _read(self, group: Sequence[Topic]) -> None:
        self.found.append(({member.job.table.name for member in group}, group[0].reading.until))

    def decide(self) -> list[tuple[set[str], Offsets | None]]:
        """Return the rounds of one decision, all of which have ended."""
        self.found.clear()
        self.turns.decide()
        for _, work in self.turns.running:
            work()
        self.turns.running.clear()
        return list(self.found)


def table(name: str, offset: int = 0, lag: int = 10, seconds: float = 600.0) -> Topic:
    made = routed(waiting("events", lag, seconds), name)
    made.reading.position = {0: offset}
    return made


def test_tables_at_the_same_offsets_share_a_round_also_with_a_backlog() -> None:
    for lag in (10, ENDLESS):
        reads = Reads(*(table(name, lag=lag) for name in ("orders", "refunds", "rest")))
        assert reads.decide() == [({"orders", "refunds", "rest"}, None)]


def test_a_table_that_is_not_due_yet_shares_the_round_of_one_that_is() -> None:
    reads = Reads(table("orders"), table("refunds", seconds=0.0), table("rest", seconds=0.0))
    assert reads.decide() == [({"orders", "refunds", "rest"}, None)]


def test_a_round_of_another_topic_takes_all_tables_or_none() -> None:
    reads = Reads(waiting("others", 10, 900.0), table("refunds"), table("rest", seconds=0.0))
    assert reads.decide() == [({"others", "refunds", "rest"}, None)]


def test_tables_wait_for_one_that_is_a_little_behind() -> None:
    late, orders, rest = table("refunds", offset=2), table("orders", offset=5), table("rest", offset=5)
    reads = Reads(orders, late, rest)
    assert reads.decide() == [({"refunds"}, {0: 5})]
    late.reading.position = {0: 5}
    assert reads.decide() == [({"refunds", "orders", "rest"}, None)]


def test_tables_wait_for_the_last_one_although_another_one_is_due_first() -> None:
    reads = Reads(table("refunds", offset=2, seconds=0.0), table("orders", offset=5))
    assert reads.decide() == [({"refunds"}, {0: 5})]


def test_a_table_waits_for_few_rounds_of_others() -> None:
    every = [table(f"t{number}", offset=number, lag=200) for number in range(30)]
    reads, newest = Reads(*every), every[-1]
    decisions = 0
    while newest.reading.position == {0: 29}:
        decisions += 1
        for group, until in reads.decide():
            for each in every:
                if each.job.table.name in group:
                    each.reading.position = until or {0: 200}
    assert decisions < len(every) / ROUNDS_PER_KEY + MOST_HELD


def test_a_round_of_another_topic_takes_no_table_that_has_to_catch_up_first() -> None:
    reads = Reads(waiting("others", 10, 900.0), table("late", offset=2), table("early", offset=5))
    assert reads.decide() == [({"others"}, None), ({"late"}, {0: 5})]


def test_tables_of_a_busy_log_meet_again() -> None:
    mib = 1024  # records of 1 KiB
    behind, front = table("behind"), table("front", offset=50 * mib)
    reads, end = Reads(behind, front), 50 * mib
    for _ in range(20):
        end += mib // 2
        behind.log.ends = front.log.ends = {0: end}
        for group, until in reads.decide():
            for each in (behind, front):
                if each.job.table.name in group:
                    each.reading.position = until or {0: end}
    assert behind.reading.position == front.reading.position


def test_a_gap_is_recorded_although_another_table_is_behind() -> None:
    behind, cut = table("behind", offset=7, lag=7), table("cut", offset=10, lag=7)
    cut.table.losses, cut.log.cut_back = Losses(), {0: (7, 10)}
    assert Reads(behind, cut).decide() == [({"cut"}, None)]


def test_no_table_waits_for_one_that_is_far_behind_or_fails_or_does_not_land() -> None:
    far, failing, halted = table("far", lag=ENDLESS), table("failing", offset=4), table("halted", offset=4)
    orders, rest = table("orders", offset=ENDLESS - 10, lag=ENDLESS), table("rest", offset=ENDLESS - 10, lag=ENDLESS)
    failing.attempts.failures, halted.halted = 1, HaltedAt(partition=0, offset=4, code="WrongKind")
    reads = Reads(far, failing, orders, rest, halted)
    found = [each for _ in range(3) for each in reads.decide()]  # few rounds run at once
    assert ({"orders", "rest"}, None) in found
    assert {until for _, until in found} == {None}


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


def test_a_round_ends_where_other_tables_wait() -> None:
    late, brokers = routed(topic("events", 10), "a"), cast(Any, Brokers())
    late.reading.until = {0: 4}
    assert plan([late], brokers, 10**6) == {late: {0: (0, 4)}}
    late.reading.position = {0: 4}
    assert plan([late], brokers, 10**6) == {}


def test_a_claim_that_moves_a_table_takes_it_out_of_the_round() -> None:
    first, moved = routed(topic("events", 10), "a"), routed(topic("events", 10), "b")
    moved.reading.position = {0: 4}
    brokers: Any = Brokers()
    assert list(plan([first, moved], brokers, 10**6)) == [first]
