"""A leader whose log has other records than those that landed is noticed by its epoch."""

from collections.abc import Mapping
from typing import Any, cast

import pytest

from firn.model.errors import UnavailableError
from firn.model.progress import Cause, Gap, decode_leader_epochs, encode_leader_epochs
from firn_spark.ingestion.rounds.committing import TopicCommits
from firn_spark.ingestion.rounds.elections import compare_ranges
from firn_spark.ingestion.rounds.planning import Plan, plan
from firn_spark.ingestion.rounds.preparation import position
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import TopicInfo
from firn_spark.tables.commits import newest
from tests.unit.spark_driver import results
from tests.unit.spark_driver.losing import Brokers, Committer, landed_to, topic_commits
from tests.unit.spark_driver.test_carried_offsets import SUMMARY, table


@pytest.fixture
def committer() -> Committer:
    return Committer()


@pytest.fixture
def commits(committer: Committer) -> TopicCommits:
    return topic_commits(committer, [])


def planned(topics: list[Topic], brokers: Brokers) -> Plan:
    return plan(topics, cast(Any, brokers), 2**30)


def replaced(start: int, end: int) -> Gap:
    return Gap(partition=0, start=start, end=end, cause=Cause.CUT_BACK)


def test_landed_offsets_with_other_records_are_a_gap_of_the_next_commit(
    commits: TopicCommits, committer: Committer
) -> None:
    landed = landed_to(10, leader_epoch=3)
    brokers = Brokers(0, 40, epoch=5, differs=7)
    ranges = planned([landed], brokers)
    assert ranges[landed] == {0: (10, 40)}
    assert brokers.asked == [(0, 10, 3)]
    commits.commit(landed, ranges[landed], results.landed(ranges[landed]), 0.0)
    assert committer.made == [({0: 40}, [replaced(7, 10)])]
    assert committer.leader_epochs == [{0: 5}]
    assert planned([landed], brokers) == {}
    assert len(brokers.asked) == 1
    assert landed.gaps == []


def test_the_gap_is_recorded_although_no_record_waits(commits: TopicCommits, committer: Committer) -> None:
    landed = landed_to(10, leader_epoch=3)
    assert planned([landed], Brokers(0, 10, epoch=4, differs=7)) == {}
    assert landed.due(2**40) is not None
    commits.record_gaps(landed)
    assert committer.made == [({0: 10}, [replaced(7, 10)])]


def test_a_log_that_is_still_short_is_one_gap_from_the_first_lost_record(
    commits: TopicCommits, committer: Committer
) -> None:
    """The brokers lost the records from 7 on, and producers have written up to 9."""
    landed = landed_to(10, leader_epoch=3)
    landed.observe(1.0, {0: 9})
    planned([landed], Brokers(0, 9, epoch=4, differs=7))
    commits.record_gaps(landed)
    assert committer.made == [({0: 10}, [replaced(7, 10)])]
    # The leader of epoch 4 does not have the records before 10, so a later leader is not compared with it.
    assert committer.leader_epochs == [{0: 3}]


def test_a_failover_without_loss_is_no_gap(commits: TopicCommits, committer: Committer) -> None:
    landed = landed_to(10, leader_epoch=3)
    ranges = planned([landed], Brokers(0, 40, epoch=4))
    commits.commit(landed, ranges[landed], results.landed(ranges[landed]), 0.0)
    assert committer.made == [({0: 40}, [])]
    assert committer.leader_epochs == [{0: 4}]


@pytest.mark.parametrize(
    ("kept", "present"),
    [(3, 3), (None, 4), (3, None), (3, 0), (0, 0)],
    ids=["same leader", "older table", "older brokers", "brokers created again", "diskless brokers"],
)
def test_only_a_later_leader_is_asked(kept: int | None, present: int | None) -> None:
    landed = landed_to(10, leader_epoch=kept)
    brokers = Brokers(0, 40, epoch=present, differs=7)
    assert planned([landed], brokers)[landed] == {0: (10, 40)}
    assert (brokers.asked, landed.gaps) == ([], [])
    assert landed.reading.leader_epochs == ({} if present is None else {0: present})


def test_a_log_that_begins_at_the_landed_offset_has_nothing_to_compare() -> None:
    brokers = Brokers(10, 40, epoch=4, differs=7)
    planned([landed_to(10, leader_epoch=3)], brokers)
    assert brokers.asked == []


def test_a_topic_whose_leader_does_not_answer_delays_no_other() -> None:
    silent, other = landed_to(10, leader_epoch=3), landed_to(10, leader_epoch=3, name="other")
    brokers = Brokers(0, 40, epoch=4)
    brokers.failing["orders"] = UnavailableError("no answer")
    assert list(planned([silent, other], brokers)) == [other]
    assert silent.attempts.failures == 1


def test_records_of_two_leaders_are_not_committed() -> None:
    """The range was planned with the leader of epoch 3, and perhaps read from the one of epoch 4."""
    ranges: Mapping[Topic, Mapping[int, tuple[int, int]]] = {landed_to(10, leader_epoch=3): {0: (10, 40)}}
    (failure,) = compare_ranges(ranges, cast(Any, Brokers(0, 40, epoch=4, differs=20))).values()
    assert "partition 0 got a leader with other records while it was read" in str(failure)
    assert not compare_ranges(ranges, cast(Any, Brokers(0, 50, epoch=4, differs=40)))
    assert not compare_ranges(ranges, cast(Any, Brokers(0, 50, epoch=3)))


def test_the_first_dead_letter_keeps_the_epochs_of_the_table(commits: TopicCommits, committer: Committer) -> None:
    """Its commit records no gap. With the later epoch, a driver that restarts would not find the gap again."""
    landed = landed_to(10, leader_epoch=3)
    landed.letters.java = object()
    planned([landed], Brokers(0, 40, epoch=4, differs=7))
    commits.create_dead_letters(landed)
    assert committer.leader_epochs == [{0: 3}]


def test_a_topic_that_was_created_again_has_no_epochs() -> None:
    again = landed_to(10, leader_epoch=3)
    position(again, TopicInfo("id-2", (0,)))
    assert again.reading.leader_epochs == {}


def test_epochs_count_only_with_the_commit_that_wrote_them() -> None:
    text = encode_leader_epochs({0: 3, 2: 0}, "commit-1")
    assert text == '{"commit":"commit-1","epochs":[3,-1,0]}'
    assert decode_leader_epochs(text, "commit-1") == {0: 3, 2: 0}
    # An earlier version of Firn committed after that, or the table was rolled back.
    assert decode_leader_epochs(text, "commit-2") == {}
    assert decode_leader_epochs(encode_leader_epochs({}, "commit-1"), "commit-1") == {}


@pytest.mark.parametrize(
    "text", [None, "", "{}", "[3]", '{"commit":"commit","epochs":["x"]}', '{"commit":"","epochs":[3]}']
)
def test_a_value_that_is_not_valid_stops_no_ingestion(text: str | None) -> None:
    assert decode_leader_epochs(text, "commit") == decode_leader_epochs(text, "") == {}


def test_epochs_are_read_from_the_properties() -> None:
    written = table(SUMMARY)
    written.properties = lambda: {"firn.leader-epochs": encode_leader_epochs({0: 3, 1: 4}, "commit")}
    landed = newest(written)
    assert landed is not None
    assert landed.leader_epochs == {0: 3, 1: 4}
