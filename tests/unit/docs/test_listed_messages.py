"""Fakes reject messages that the reference page does not list, so each test of a condition or an Event compares it."""

import pytest

from tests.listed_messages import check_listed


def test_a_listed_message_may_have_a_subject_before_it() -> None:
    check_listed("records are landing in the table")
    check_listed("RetentionPolicy old: spec.rows.column: delay is double; choose a timestamp, timestamptz or date")


def test_an_unlisted_message_is_reported() -> None:
    with pytest.raises(AssertionError, match="lacks .*frobnicated"):
        check_listed("the table was frobnicated")
