"""Small limits, so that stories reach the levels of merges."""

import pytest

from firn_broker.maintenance import compaction
from firn_broker.maintenance.merges import merging


@pytest.fixture(autouse=True)
def few_merges_for_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "FAN", 3)
    monkeypatch.setattr(merging, "HOUR_MS", 60_000)
    monkeypatch.setattr(compaction, "RANGE_BYTES", 2_000)
