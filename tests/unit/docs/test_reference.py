"""The reference pages match the code."""

import pytest

from firn.model import names
from hack import reference
from tests import markdown


@pytest.mark.slow
@pytest.mark.parametrize("page", reference.PAGES)
def test_a_page_matches_the_code(page: str) -> None:
    assert reference.current(page) == reference.PAGES[page](), "run make generate"


def test_pages_have_the_keys_metrics_and_commands_that_others_name() -> None:
    text = "".join(make() for make in reference.PAGES.values())
    for word in (
        "`runbookUrl`",
        "`firn_ingest_lag_seconds`",
        "`firn_broker_group_lag`",
        "### firn audit",
        "`flushSeconds`",
    ):
        assert word in text


def test_alerts_and_dashboards_find_counters_by_their_full_name() -> None:
    assert "`firn_ingest_dead_letters_total`" in reference.metrics()
    assert "`firn_reconcile_total`" in reference.metrics()


def test_the_page_of_annotations_has_each_annotation() -> None:
    words = " ".join(text for _, text in markdown.code_spans("docs/how-to/annotations.md"))
    for annotation in (names.PAUSE, names.RESUME, names.RUN_NOW, names.RESTART):
        assert annotation in words
