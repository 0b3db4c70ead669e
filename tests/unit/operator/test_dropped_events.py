"""Events that are dropped while too many wait."""

from typing import Any

import pytest

from firn_operator.adapters.kube import events
from firn_operator.adapters.kube.events import EventRecorder, EventSubject


async def test_dropped_events_are_logged_at_intervals(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(events, "EVENTS_WAITING", 3)
    nothing: Any = None
    recorder = EventRecorder(nothing, "firn-operator")
    for number in range(10):
        recorder.record(EventSubject("demo", f"t{number}", f"uid-{number}", "IcebergTopic"), "Normal", "Ready", "")
    assert [record.getMessage().split(" since")[0] for record in caplog.records] == ["1 Events were dropped"]
    monkeypatch.setattr(events, "DROPS_LOGGED", 0.0)
    recorder.record(EventSubject("demo", "last", "uid", "IcebergTopic"), "Normal", "Ready", "")
    assert caplog.records[-1].getMessage() == (
        "8 Events were dropped since the start, because too many wait to be sent; the last one is Ready of IcebergTopic demo/last"
    )
