"""Alerts about records that wait stay silent for a suspended topic, in which records wait because a user asked for it."""

import pytest

from tests.chart import find_object, manifests, render

VALUES = {
    "images": {"registry": "registry.example.com/data"},
    "metrics": {"prometheusRule": {"enabled": True}},
}


@pytest.mark.parametrize("name", ["FirnTopicBehind", "FirnCommitsStopped"])
def test_a_suspended_topic_is_left_out(name: str) -> None:
    rule = find_object(manifests(render(VALUES)), "PrometheusRule", "firn")
    alerts = {alert["alert"]: alert for group in rule["spec"]["groups"] for alert in group["rules"] if "alert" in alert}
    expression = " ".join(alerts[name]["expr"].split())
    assert expression.endswith(" unless max by (namespace, topic) (firn_ingest_suspended) > 0")
