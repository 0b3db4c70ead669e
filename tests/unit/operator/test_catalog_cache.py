"""The cache of a catalog's tables does not grow with every table that was ever seen."""

import pytest

from firn.model.jobs import CatalogConnection
from firn_controllers.ports import TableState
from firn_operator.adapters.iceberg import connections
from firn_operator.adapters.iceberg.connections import Agreed, Connection


def test_the_oldest_results_leave_a_full_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SEEN_KEPT", 2)
    connection = Connection("lake", CatalogConnection(type="sql", uri="sqlite://", warehouse="s3://firn"))
    for name in ("a", "b", "c"):
        connection.note(("demo", name), Agreed(b"", name, b"", TableState(name, "", 2, None)))
    assert [name for _, name in connection.seen] == ["b", "c"]
