"""Every alert has a runbook, and every reason of a condition has a next step."""

import re
from typing import Any

import pytest

from firn.model.conditions import ConditionType, Reason
from tests import markdown
from tests.chart import find_object, manifests, render
from tests.markdown import ROOT

ALERTS = "docs/operations/alerts.md"
TROUBLESHOOTING = "docs/operations/troubleshooting.md"
ALERT = re.compile(r"^\s+- alert: (\w+)$", re.MULTILINE)
NAMES = ALERT.findall((ROOT / "charts/firn/templates/monitoring.yaml").read_text())
URL = "https://docs.example.com/docs/operations/alerts.html"


def section(page: str, heading: str) -> str:
    """Return the text below a heading of the second level."""
    return (ROOT / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


def test_the_page_has_a_section_for_each_alert_and_no_other() -> None:
    assert NAMES
    assert markdown.headings(ALERTS)[1:] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_runbook_names_effect_cause_and_action(name: str) -> None:
    text = section(ALERTS, name)
    for part in ("**Effect.**", "**Find the cause.**", "**Act.**"):
        assert part in text, f"{name}: {part} is missing"


def rules(**values: Any) -> list[dict[str, Any]]:
    rendered = render(
        {
            "images": {"registry": "registry.example.com/data"},
            "metrics": {"prometheusRule": {"enabled": True, **values}},
        }
    )
    rule = find_object(manifests(rendered), "PrometheusRule", "firn")
    return [alert for group in rule["spec"]["groups"] for alert in group["rules"]]


def test_an_alert_counts_what_happened_before_the_first_scrape_of_a_counter() -> None:
    increase = re.compile(r"increase\((?P<counter>[^()]+)\[(?P<window>\w+)\]\)")
    found = [(alert["expr"], *match.groups()) for alert in rules() for match in increase.finditer(alert["expr"])]
    assert found
    for expression, counter, window in found:
        assert f"({counter} unless present_over_time({counter}[1h] offset {window})) or increase(" in expression


def test_a_loss_is_an_alert_until_it_is_acknowledged() -> None:
    expressions = {alert["alert"]: alert["expr"] for alert in rules()}
    assert expressions["FirnRecordsLost"] == "max by (namespace, topic) (firn_topic_incomplete) > 0"


def test_each_summary_names_its_object_and_the_next_command() -> None:
    for alert in rules():
        summary = alert["annotations"]["summary"]
        assert re.search(r"\. Next: kubectl (-n firn-system|describe) ", summary), alert["alert"]
        assert "{{ $labels." in summary or alert["expr"].startswith("absent("), alert["alert"]


@pytest.mark.parametrize(
    "metric",
    [
        "firn_broker_coordinator_went_back",
        'firn_broker_damaged_ranges_total{read="second"',
        'firn_broker_unrebuilt_ranges_total{cause="rows"',
        'firn_broker_unrebuilt_ranges_total{cause="unavailable"',
        "firn_broker_indexing_problems_total",
        "firn_broker_upkeep_behind",
        "firn_broker_dead_objects_age_seconds",
        "firn_broker_abandoned_commits_total",
        "firn_broker_uncommitted_objects",
        "firn_table_metadata_bytes",
    ],
)
def test_an_alert_watches_each_metric_of_damage_and_growth(metric: str) -> None:
    assert [alert for alert in rules() if metric in alert["expr"]]


def test_alerts_use_only_metrics_that_exist() -> None:
    known = set(re.findall(r"^\| `(firn_\w+)`", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE))
    used = {name for alert in rules() for name in re.findall(r"firn_\w+", alert["expr"])}
    assert used
    assert used <= known


def test_alerts_link_their_runbooks() -> None:
    links = {alert["alert"]: alert["annotations"]["runbook_url"] for alert in rules(runbookUrl=URL)}
    assert list(links) == NAMES
    for name, link in links.items():
        page, _, anchor = link.partition("#")
        assert (page, anchor in markdown.anchors(ALERTS)) == (URL, True), name


def test_alerts_have_no_link_unless_the_values_name_the_page() -> None:
    assert not [alert for alert in rules() if "runbook_url" in alert["annotations"]]


def test_troubleshooting_has_each_reason_and_each_condition() -> None:
    words = {text for _, text in markdown.code_spans(TROUBLESHOOTING)} | set(markdown.headings(TROUBLESHOOTING))
    words |= {word for heading in markdown.headings(TROUBLESHOOTING) for word in re.findall(r"\w+", heading)}
    assert {*Reason, *ConditionType} <= words


def test_troubleshooting_names_only_existing_reasons() -> None:
    tables = re.findall(r"^\| ([^|]+) \| ([^|]+) \|", (ROOT / TROUBLESHOOTING).read_text(), re.MULTILINE)
    named = {word for first, _ in tables for word in re.findall(r"`([A-Z]\w+)`", first)}
    dead_letters = {"InvalidAvro", "InvalidJson", "InvalidProtobuf"}
    assert named <= {*Reason, *ConditionType, *dead_letters}
