"""The offsets from which an audit can decide about missing records."""

import pytest

from firn.model.progress import AuditFrom, Offsets, landed_together


@pytest.mark.parametrize(
    ("landed", "begins", "has_rows", "expected"),
    [
        (None, False, False, {}),
        (None, True, False, {0: 9}),
        (None, True, True, {0: 9}),
        ({0: 5}, False, True, {0: 5}),
    ],
    ids=["the first records of a topic", "ingestion begins later", "an adopted table", "a table of an earlier version"],
)
def test_the_first_commit_of_a_topic_decides(
    landed: Offsets | None, begins: bool, has_rows: bool, expected: Offsets
) -> None:
    first = AuditFrom.first("id-1", landed, {0: 9}, begins=begins, has_rows=has_rows)
    assert first == AuditFrom(topic_id="id-1", offsets=expected, mixed=has_rows)


def test_raised_offsets_never_fall() -> None:
    known = AuditFrom(topic_id="id-1", offsets={0: 5, 1: 7})
    assert known.raised({0: 4, 1: 8, 2: 3}).offsets == {0: 5, 1: 8, 2: 3}
    assert known.raised({0: 5}) is known


@pytest.mark.parametrize("text", [None, "", "[]", "{}", "no json"])
def test_a_value_that_is_not_valid_counts_as_missing(text: str | None) -> None:
    assert AuditFrom.read(text) is None


def test_audit_from_is_read_as_written() -> None:
    known = AuditFrom(topic_id="id-1", offsets={0: 5, 11: 7}, mixed=True)
    assert AuditFrom.read(known.model_dump_json()) == known


def test_the_value_of_another_commit_decides_about_nothing_that_has_landed() -> None:
    known = AuditFrom(topic_id="id-1", offsets={0: 5}, commit="c1")
    assert known.as_of("c1", {0: 9, 1: 2}) is known
    assert known.as_of("c2", {0: 9, 1: 2}).offsets == {0: 9, 1: 2}
    assert AuditFrom(topic_id="id-1").as_of(None, {0: 9}).offsets == {0: 9}


def test_two_tables_are_decided_from_the_later_offsets() -> None:
    one, other = (
        AuditFrom(topic_id="t", offsets={0: 5, 1: 2}),
        AuditFrom(topic_id="t", offsets={0: 3, 1: 4}, mixed=True),
    )
    assert one.joined(other) == other.joined(one) == AuditFrom(topic_id="t", offsets={0: 5, 1: 4}, mixed=True)


def test_tables_have_landed_together_what_the_last_of_them_has_landed() -> None:
    assert landed_together([{0: 5, 1: 2}, {0: 3, 1: 4, 2: 1}]) == {0: 3, 1: 2}
    assert landed_together([{0: 5}]) == {0: 5}
