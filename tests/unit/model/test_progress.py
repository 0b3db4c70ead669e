"""Offsets in snapshot summaries, and reports of drivers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from firn.model import names, progress
from firn.model.progress import GroupProgress, Replaying, ReportReader, TopicProgress


@given(st.dictionaries(st.integers(0, 9999), st.integers(0, 2**63 - 1)))
def test_offsets_read_back_from_the_summary(offsets: dict[int, int]) -> None:
    text = progress.encode_offsets(offsets)
    assert progress.decode_offsets(text) == offsets
    assert list(json.loads(text)) == [str(partition) for partition in sorted(offsets)]


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "[]", "3", "null"),
        *('{"1": null}', '{"1": "2"}', '{"1": 1.0}', '{"1": true}', '{"1": -1}'),
        *('{"a": 1}', '{"-1": 1}', '{"01": 1}', '{" 1": 1}', '{"1_0": 1}', '{"\\u0661": 1}'),
    ],
)
def test_invalid_offsets_are_rejected(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 (json's own message, or ours)
        progress.decode_offsets(text)


def summary(
    commit: str, offsets: dict[int, int], since: str | None = None, before: dict[int, int] | None = None
) -> dict[str, str]:
    text = progress.encode_offsets(offsets) if since is None else progress.encode_changes(offsets, before or {}, since)
    return {names.SUMMARY_OFFSETS: text, names.SUMMARY_COMMIT_ID: commit}


FIRST = {0: 5, 1: 7, 2: 9}
SECOND = {**FIRST, 1: 8}
THIRD = {**SECOND, 2: 3}
FOREIGN = {"added-records": "5"}
HISTORY = [FOREIGN, summary("c", THIRD, "b", SECOND), FOREIGN, summary("b", SECOND, "a", FIRST), summary("a", FIRST)]


def test_a_summary_has_only_the_offsets_that_its_commit_changed() -> None:
    assert json.loads(HISTORY[3][names.SUMMARY_OFFSETS]) == {"since": "a", "1": 8}
    with pytest.raises(ValueError, match="only the offsets that changed since commit a"):
        progress.decode_offsets(HISTORY[3][names.SUMMARY_OFFSETS])


@pytest.mark.parametrize("newest", range(len(HISTORY)), ids=["c", "c again", "b after foreign", "b", "a"])
def test_the_history_completes_offsets_after_a_rollback(newest: int) -> None:
    properties = summary("z", {0: 100, 1: 100, 2: 100})
    expected = THIRD if newest < 2 else SECOND if newest < 4 else FIRST
    assert progress.recorded_offsets(HISTORY[newest:], properties) == expected


def test_the_properties_complete_only_the_offsets_of_their_own_commit() -> None:
    assert progress.recorded_offsets(HISTORY[:2], summary("c", THIRD)) == THIRD
    with pytest.raises(ValueError, match="commit b, which has the offsets"):
        progress.recorded_offsets(HISTORY[:2], summary("d", {0: 100, 1: 100, 2: 100}))


def test_a_maintenance_snapshot_completes_the_offsets_of_later_commits() -> None:
    history = [HISTORY[1], {**summary("b", SECOND), names.SUMMARY_KIND: "compact"}]
    assert progress.recorded_offsets(history, {}) == THIRD


def test_offsets_of_another_branch_complete_nothing() -> None:
    with pytest.raises(ValueError, match="commit b, which has the offsets"):
        progress.recorded_offsets([HISTORY[1], HISTORY[4]], {})


def test_tables_without_changed_offsets_read_as_before() -> None:
    assert progress.recorded_offsets([FOREIGN, summary("a", FIRST)], summary("b", SECOND)) == FIRST
    assert progress.recorded_offsets([FOREIGN], summary("b", SECOND)) == SECOND
    assert progress.recorded_offsets([], {}) is None


@given(
    st.lists(st.dictionaries(st.integers(0, 5), st.integers(0, 99)), min_size=1, max_size=8), st.integers(0, 2**8 - 1)
)
def test_any_mix_of_complete_and_changed_offsets_reads_back(steps: list[dict[int, int]], complete: int) -> None:
    offsets: dict[int, int] = {}
    history: list[dict[str, str]] = []
    for number, step in enumerate(steps):
        before, offsets = offsets, {**offsets, **step}
        whole = number == 0 or complete >> number & 1
        history.insert(0, summary(str(number), offsets, None if whole else str(number - 1), before))
        assert progress.recorded_offsets(history, {}) == offsets


def report(**lags: int) -> GroupProgress:
    topics = [
        TopicProgress(uid=uid, generation=1, state="Running", message="a\nb", lag_records=lag)
        for uid, lag in lags.items()
    ]
    return GroupProgress(group="default", started=1.5, version="1", topics=topics)


def test_a_report_by_lines_is_the_json_document_that_earlier_operators_read() -> None:
    for document in (report(), report(one=1), report(one=1, two=2)):
        assert GroupProgress.model_validate_json(document.encode()) == document
        assert ReportReader().read(document.encode()) == document


def test_a_reader_reads_the_report_of_an_earlier_driver() -> None:
    for document in (report(), report(one=1, two=2)):
        assert ReportReader().read(document.model_dump_json().encode()) == document


def test_only_topics_that_changed_are_parsed_again() -> None:
    reader = ReportReader()
    before = reader.read(report(one=1, two=2, three=3).encode())
    after = reader.read(report(two=5, three=3).encode())
    assert after == report(two=5, three=3)
    assert after.topics[1] is before.topics[2]


def test_a_broken_report_is_an_error_and_the_next_one_is_read() -> None:
    reader, whole = ReportReader(), report(one=1, two=2)
    for broken in (b"", b"\n", whole.encode()[:-1], whole.encode().replace(b'"uid":"two"', b'"uid":2')):
        with pytest.raises(ValidationError):
            reader.read(broken)
    assert reader.read(whole.encode()) == whole


@pytest.mark.parametrize(
    ("text", "under_way"),
    [
        (None, False),
        ('{"replay":"uid","part":1,"matched":{"WrongKind":2},"landed":1}', True),
        (Replaying(replay="uid", decoded=2).model_dump_json(), True),
        (Replaying(replay="uid", done=True).model_dump_json(), False),
        ("unreadable", True),
        ("", True),
    ],
)
def test_a_replay_is_under_way_until_its_property_says_that_it_is_done(text: str | None, under_way: bool) -> None:
    assert Replaying.under_way(text) == under_way
