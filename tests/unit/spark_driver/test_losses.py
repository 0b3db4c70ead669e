"""Offsets that pass without landing are part of the next commit."""

from typing import Any, cast

import pytest

from firn.model.progress import RANGES, Cause, Gap, Losses
from firn_spark.ingestion.rounds.committing import TopicCommits
from firn_spark.ingestion.rounds.planning import plan
from firn_spark.tables.commits import Landed
from tests.unit.spark_driver.losing import Brokers, Committer, Table, landed_to, topic_commits
from tests.unit.spark_driver.results import landed
from tests.unit.spark_driver.topic import topic


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
