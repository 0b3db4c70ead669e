"""Small limits, so that stories reach the levels of merges."""

import pytest

from firn_broker.maintenance.merges import merging


@pytest.fixture(autouse=True)
def few_merges_for_a_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "FAN", 3)
