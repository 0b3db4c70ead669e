"""Offsets that pass without landing are part of the next commit."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.model import names
from firn.model.jobs import StartFrom
from firn.model.progress import RANGES, Cause, Gap, Losses
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds import preparation
from firn_spark.ingestion.rounds.committing import TopicCommits
from firn_spark.ingestion.rounds.planning import plan
from firn_spark.ingestion.rounds.preparation import Preparation, position
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import TopicInfo
from firn_spark.tables.commits import Landed
from tests.unit.spark_driver.losing import Brokers, Committer, Table, landed_to, topic_commits
from tests.unit.spark_driver.results import landed
from tests.unit.spark_driver.topic import job, topic


@pytest.fixture
def committer() -> Committer:
    return Committer()


@pytest.fixture
def counted() -> list[int]:
    return []


@pytest.fixture
def commits(committer: Committer, counted: list[int]) -> TopicCommits:
    return topic_commits(committer, counted)


def deleted(start: int, end: int) -> Gap:
    return Gap(partition=0, start=start, end=end, cause=Cause.DELETED)


def replaced(start: int, end: int) -> Gap:
    return Gap(partition=0, start=start, end=end, cause=Cause.CUT_BACK)


def test_a_round_records_the_offsets_that_the_log_deleted(
    commits: TopicCommits, committer: Committer, counted: list[int]
) -> None:
    behind = landed_to(10)
    planned = plan([behind], cast(Any, Brokers(25, 40)), 2**30)
    assert planned[behind] == {0: (25, 40)}
    commits.commit(behind, planned[behind], landed({0: (25, 40)}), 0.0)
    assert committer.made == [({0: 40}, [deleted(10, 25)])]
    assert counted == [15]
    assert behind.gaps == []
    assert behind.table.losses is not None
    assert behind.table.losses.since(0)[0] == 15


def test_a_topic_whose_whole_log_was_deleted_records_that(commits: TopicCommits, committer: Committer) -> None:
    behind = landed_to(10)
    assert plan([behind], cast(Any, Brokers(40, 40)), 2**30) == {}
    assert behind.due(2**40) is not None, "no record waits, and the gap does"
    commits.record_gaps(behind)
    assert committer.made == [({0: 40}, [deleted(10, 40)])]
    assert behind.due(2**40) is None


def test_the_offsets_before_the_first_landing_are_no_loss(commits: TopicCommits, committer: Committer) -> None:
    new = landed_to(0)
    new.table.landed = None
    planned = plan([new], cast(Any, Brokers(25, 40)), 2**30)
    commits.commit(new, planned[new], landed({0: (25, 40)}), 0.0)
    assert committer.made == [({0: 40}, [])]


def test_the_offsets_before_the_first_landing_of_a_topic_that_the_resource_created_are_lost(
    commits: TopicCommits, committer: Committer
) -> None:
    new = landed_to(0)
    new.table.landed, new.job = None, job(topic_created=True)
    planned = plan([new], cast(Any, Brokers(25, 40)), 2**30)
    commits.commit(new, planned[new], landed({0: (25, 40)}), 0.0)
    assert committer.made == [({0: 40}, [deleted(0, 25)])]


def of_replaced_table(**changes: Any) -> Topic:
    """Return a topic without offsets in its table, which is not the first one of the resource."""
    made = landed_to(0)
    made.job = job(topic_id="id-1", first_table="table-1", **changes)
    made.table.landed, made.table.uuid = None, "table-2"
    return made


def before_replaced(start: int, end: int) -> Gap:
    return Gap(partition=0, start=start, end=end, cause=Cause.REPLACED)


def test_the_offsets_before_the_first_landing_of_a_replaced_table_are_lost(
    commits: TopicCommits, committer: Committer
) -> None:
    again = of_replaced_table()
    planned = plan([again], cast(Any, Brokers(25, 40)), 2**30)
    assert planned[again] == {0: (25, 40)}
    commits.commit(again, planned[again], landed({0: (25, 40)}), 0.0)
    assert committer.made == [({0: 40}, [before_replaced(0, 25)])]
    assert again.gaps == []


@pytest.mark.parametrize("first", [None, "table-2"])
def test_a_table_that_replaced_no_other_loses_nothing_before_its_first_landing(first: str | None) -> None:
    adopting = of_replaced_table()
    adopting.job = job(first_table=first)
    plan([adopting], cast(Any, Brokers(25, 40)), 2**30)
    assert adopting.gaps == []


def test_a_topic_that_was_recreated_loses_nothing_before_its_first_landing() -> None:
    again = of_replaced_table()
    again.table.landed = Landed("id-0", 1, {0: 1000}, commit_id="of the earlier topic")
    plan([again], cast(Any, Brokers(25, 40)), 2**30)
    assert again.gaps == []


def test_the_commit_that_announces_dead_letters_records_the_gaps_that_it_passes(
    commits: TopicCommits, committer: Committer, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its offsets are the positions of partitions that have not landed: the next plan would not find their gaps."""
    monkeypatch.setattr("firn_spark.tables.dead_letters.create", lambda *_: Table())
    again, grown = of_replaced_table(), landed_to(10)
    grown.table.landed = Landed("id-1", 1, {1: 10}, commit_id="before")
    grown.reading.position = {0: 0, 1: 10}
    plan([again, grown], cast(Any, Brokers(25, 40)), 2**30)
    for each in (again, grown):
        commits.create_dead_letters(each)
    assert committer.made == [({0: 25}, [before_replaced(0, 25)]), ({0: 25, 1: 10}, [deleted(0, 25)])]
    assert counted == [25, 25]


START = TopicInfo("id-1", (0,))


@pytest.mark.parametrize(
    ("kind", "since", "begin", "lost"),
    [
        ("Latest", -1, 40, before_replaced(0, 40)),
        ("Timestamp", 30, 30, None),
        ("Timestamp", 25, 25, before_replaced(0, 25)),
        ("Timestamp", -1, 40, None),
    ],
)
def test_a_replaced_table_that_begins_later_than_the_log(
    kind: Any, since: int, begin: int, lost: Gap | None, committer: Committer, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = of_replaced_table(start_from=StartFrom(kind=kind, timestamp_ms=1))
    brokers = SimpleNamespace(
        starts=lambda topics: {"orders": {0: 25}},
        ends=lambda topics: {"orders": {0: 40}},
        since=lambda topics, _: {"orders": {0: since}},
        cluster_id=lambda: "",
    )
    nothing: Any = None
    preparation = Preparation(nothing, nothing, cast(Any, lambda _: brokers), cast(Any, committer), Failpoints())
    monkeypatch.setattr("firn_spark.tables.claims.take", lambda *_: 1)
    preparation.begin_table(again, START)
    assert committer.made == [({0: begin}, [lost] if lost is not None else [])]
    assert again.table.losses is not None
    assert again.table.losses.since(0)[0] == (lost.end if lost is not None else 0)


def test_a_new_partition_loses_its_records_from_offset_0_on() -> None:
    grown = landed_to(10)
    grown.table.landed = Landed("id-1", 1, {1: 10}, commit_id="before")
    grown.reading.position = {0: 0}
    plan([grown], cast(Any, Brokers(25, 40)), 2**30)
    assert grown.gaps == [deleted(0, 25)]


def test_a_failed_commit_keeps_the_gap_for_the_next_one(
    commits: TopicCommits, committer: Committer, counted: list[int]
) -> None:
    behind = landed_to(10)
    planned = plan([behind], cast(Any, Brokers(25, 40)), 2**30)
    committer.failure = RuntimeError("no answer")
    with pytest.raises(RuntimeError):
        commits.commit(behind, planned[behind], landed({0: (25, 40)}), 0.0)
    assert (behind.gaps, counted) == ([deleted(10, 25)], [])


def test_a_log_of_many_partitions_that_was_cut_back_is_recorded_once(
    commits: TopicCommits, committer: Committer, counted: list[int]
) -> None:
    """The table lists fewer ranges than the log lost."""
    parts = range(2 * RANGES)
    cut = topic(epoch=1)
    cut.table.java, cut.table.losses = Table(), Losses()
    cut.table.landed = Landed("id-1", 1, dict.fromkeys(parts, 10), commit_id="before")
    cut.reading.position = dict.fromkeys(parts, 10)
    cut.observe(1.0, dict.fromkeys(parts, 7))
    commits.record_gaps(cut)
    cut.observe(2.0, dict.fromkeys(parts, 7))
    assert cut.gaps == []
    assert counted == [3 * len(parts)]
    restarted = topic(epoch=2)
    restarted.table.java, restarted.table.losses = cut.table.java, cut.table.java.losses
    restarted.reading.position = dict.fromkeys(parts, 10)
    restarted.observe(1.0, dict.fromkeys(parts, 7))
    assert restarted.gaps == []


def test_a_log_that_was_cut_back_is_recorded_once(commits: TopicCommits, committer: Committer) -> None:
    cut = landed_to(10)
    cut.observe(1.0, {0: 7})
    commits.record_gaps(cut)
    assert committer.made == [({0: 10}, [replaced(7, 10)])]
    cut.observe(2.0, {0: 9})
    assert cut.gaps == []
    cut.observe(3.0, {0: 12})
    cut.reading.position = {0: 12}
    cut.observe(4.0, {0: 12})
    assert cut.gaps == []


def test_a_later_cut_does_not_include_what_landed_after_an_earlier_one(
    commits: TopicCommits, committer: Committer
) -> None:
    """An earlier driver has recorded the first cut."""
    cut = landed_to(10)
    cut.table.java.losses = cut.table.losses = Losses().plus([replaced(7, 10)], cut.topic_id, "3fa9c1d2", 0.0)
    cut.observe(1.0, {0: 8})
    assert cut.gaps == []
    planned = plan([cut], cast(Any, Brokers(0, 40)), 2**30)
    commits.commit(cut, planned[cut], landed(planned[cut]), 0.0)
    cut.observe(1e12, {0: 30})
    assert cut.gaps == [replaced(30, 40)]


def test_a_cut_log_loses_no_records_that_land_again_after_a_rollback(
    commits: TopicCommits, committer: Committer
) -> None:
    cut = landed_to(10)
    cut.observe(1.0, {0: 7})
    cut.table.landed = Landed("id-1", 1, {0: 8})
    position(cut, TopicInfo("id-1", (0,)))
    assert cut.gaps == [replaced(7, 8)]
    commits.record_gaps(cut)
    cut.table.landed = Landed("id-1", 1, {0: 5})
    position(cut, TopicInfo("id-1", (0,)))
    assert (cut.gaps, cut.log.told) == ([], {})


def test_a_log_that_was_cut_back_before_its_table_was_replaced_loses_nothing_in_the_next_table(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cut = landed_to(10)
    cut.table.uuid, cut.log.told = "table-1", {0: (8, 10)}
    cut.observe(1.0, {0: 7})
    properties = {names.TABLE_KAFKA_CLUSTER: "cluster-1"}
    table = SimpleNamespace(uuid=lambda: "table-2", location=lambda: "s3://lake/orders", properties=lambda: properties)
    # The next table begins behind the cut, as with startFrom: Latest.
    monkeypatch.setattr(preparation, "read_landed", lambda *_: Landed("id-1", 1, {0: 20}))
    nothing: Any = None
    tables: Any = SimpleNamespace(load=lambda *_: table)
    cut.job = job(suspended=True)
    Preparation(nothing, tables, nothing, nothing, Failpoints()).prepare(cut)
    assert (cut.gaps, cut.log.told) == ([], {})
