"""Catalogs that may need files to which the metadata of a table no longer refers."""

from types import SimpleNamespace
from typing import Any, Literal, cast

import pytest

from firn.model.errors import ConflictError
from firn.model.jobs import CatalogConnection
from firn.model.maintenance import Removed, RetentionWork, SnapshotsWork
from firn.tables import rows, table_properties
from firn_spark.maintenance.steps import orphans, retention
from firn_spark.maintenance.steps.subject import Subject

PARTS = [retention.expire_snapshots, retention.drop_metadata_files, retention.drop_orphans]
WORK = RetentionWork(
    enforce=True, snapshots=SnapshotsWork(max_age_ms=0, min_keep=1), metadata_keep=1, orphan_min_age_ms=0
)


@pytest.mark.parametrize(
    ("kind", "configured", "expected"),
    [("sql", None, False), ("rest", None, True), ("rest", False, False), ("sql", True, True)],
)
def test_a_rest_catalog_has_references_until_the_configuration_denies_it(
    kind: Literal["sql", "rest"], configured: bool | None, expected: bool
) -> None:
    connection = CatalogConnection(type=kind, uri="u", warehouse="w", own_references=configured)
    assert connection.has_own_references == expected


@pytest.mark.parametrize("part", PARTS)
def test_nothing_is_deleted_on_a_catalog_with_references(part: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_snapshots", "_metadata"):
        monkeypatch.setattr(retention, name, lambda *_: Removed(files=1))
    monkeypatch.setattr(orphans, "remove", lambda *_: Removed(files=1))
    removed: dict[str, Removed] = {}
    subject = SimpleNamespace(
        name="lake.shop.orders", catalog="lake", own_references=True, table=SimpleNamespace(properties=dict),
        done=SimpleNamespace(remove=removed.__setitem__),
    )  # fmt: skip
    with pytest.raises(ConflictError, match="catalog lake may have branches"):
        part(cast(Subject, subject), WORK)
    assert removed == {}
    subject.own_references = False
    part(cast(Subject, subject), WORK)
    assert [each.files for each in removed.values()] == [1]


def test_metadata_files_stay_on_a_catalog_with_references() -> None:
    columns = rows.dead_letter_columns()
    assert table_properties.CLEAN in table_properties.created_with(columns, own_references=False)
    assert table_properties.CLEAN not in table_properties.created_with(columns, own_references=True)
