"""A dropped table leaves no file behind, also if the drop was interrupted anywhere."""

import asyncio
import json
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import RemoveSnapshotsUpdate

from firn.model import names
from firn.model.jobs import CatalogConnection, TableTarget
from firn_controllers.ports import Dropped
from firn_operator.adapters.iceberg import dropping, file_io, tables
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.adapters.iceberg.tables import CatalogTables

KEY = ("shop", "orders")
DEAD = ("shop", "orders__dlq")


def connection(directory: Path) -> CatalogConnection:
    return CatalogConnection(type="sql", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"{directory}/lake")


def made(directory: Path) -> Catalog:
    """Create a table with two snapshots, of which the newest has none of the first one's files, and statistics."""
    catalog = open_catalog("lake", connection(directory))
    catalog.create_namespace("shop")
    rows = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
    table = catalog.create_table(KEY, rows.schema, properties={names.TABLE_OWNER: "uid-1"})
    table.append(rows)
    table.overwrite(rows)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    path = f"{table.location()}/metadata/statistics.puffin"
    Path(path).write_bytes(b"PFA1")
    statistics = StatisticsFile(
        snapshot_id=snapshot.snapshot_id,
        statistics_path=path,
        file_size_in_bytes=4,
        file_footer_size_in_bytes=0,
        blob_metadata=[],
    )
    with table.update_statistics() as update:
        update.set_statistics(statistics)
    return catalog


def files(directory: Path) -> set[Path]:
    return {path for path in (directory / "lake").rglob("*") if path.is_file()}


def test_a_drop_deletes_the_files_of_all_snapshots_and_statistics(tmp_path: Path) -> None:
    catalog = made(tmp_path)
    assert len(files(tmp_path)) > 8
    assert dropping.drop_owned(catalog, KEY, DEAD, "uid-1") == Dropped()
    assert files(tmp_path) == set()
    assert not catalog.table_exists(KEY)


def forget_old_snapshots(catalog: Catalog) -> None:
    """Remove all snapshots but the newest from the metadata, and no file, as ingestion does."""
    table = catalog.load_table(KEY)
    newest = table.metadata.current_snapshot_id
    old = [snapshot.snapshot_id for snapshot in table.metadata.snapshots if snapshot.snapshot_id != newest]
    assert old
    catalog.commit_table(table, (), (RemoveSnapshotsUpdate(snapshot_ids=old),))


def copied(directory: Path, number: int, source: Path, *, uuid: str) -> Path:
    """Write a metadata file of another table next to ``source``, or in ``directory``."""
    document = json.loads(source.read_text())
    path = directory / f"{number:05}-{uuid}.metadata.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**document, "table-uuid": uuid}))
    return path


def test_a_drop_deletes_the_files_of_snapshots_that_ingestion_removed(tmp_path: Path) -> None:
    catalog = made(tmp_path)
    forget_old_snapshots(catalog)
    (tmp_path / "lake/shop/orders/data/day=1%3A2").mkdir()
    (tmp_path / "lake/shop/orders/data/day=1%3A2/of a refused commit#1.parquet").write_bytes(b"PAR1")
    assert dropping.drop_owned(catalog, KEY, DEAD, "uid-1") == Dropped()
    assert files(tmp_path) == set()


def test_files_of_removed_snapshots_stay_if_another_table_has_the_same_location(tmp_path: Path) -> None:
    catalog = made(tmp_path)
    forget_old_snapshots(catalog)
    newest = Path(catalog.load_table(KEY).metadata_location.removeprefix("file://"))
    other = copied(newest.parent, 0, newest, uuid="0e1c3d30-52a5-4c27-8f0b-6a0a5a4b7a10")
    dropped = dropping.drop_owned(catalog, KEY, DEAD, "uid-1")
    assert dropped is not None
    assert [other.name in problem for problem in dropped.problems] == [True]
    assert other in files(tmp_path)
    assert any(path.suffix == ".parquet" for path in files(tmp_path))
    assert not catalog.table_exists(KEY)


def test_a_drop_keeps_a_table_below_its_folders(tmp_path: Path) -> None:
    catalog = made(tmp_path)
    newest = Path(catalog.load_table(KEY).metadata_location.removeprefix("file://"))
    inner = tmp_path / "lake/shop/orders/data/inner"
    metadata = copied(inner / "metadata", 0, newest, uuid="0e1c3d30-52a5-4c27-8f0b-6a0a5a4b7a10")
    (inner / "data").mkdir()
    data = inner / "data" / "rows.parquet"
    data.write_bytes(b"PAR1")
    assert dropping.drop_owned(catalog, KEY, DEAD, "uid-1") == Dropped()
    assert files(tmp_path) == {metadata, data}


def test_a_drop_names_the_folder_outside_the_location_that_it_does_not_list(tmp_path: Path) -> None:
    catalog = made(tmp_path)
    forget_old_snapshots(catalog)
    outside = f"{tmp_path}/lake/elsewhere"
    with catalog.load_table(KEY).transaction() as transaction:
        transaction.set_properties({"write.data.path": outside})
    dropped = dropping.drop_owned(catalog, KEY, DEAD, "uid-1")
    assert dropped is not None
    assert [outside in problem for problem in dropped.problems] == [True]
    assert files(tmp_path) == set()


def test_a_drop_keeps_what_the_catalogs_own_references_may_need(tmp_path: Path) -> None:
    catalog = made(tmp_path)
    forget_old_snapshots(catalog)
    before = files(tmp_path)
    assert dropping.drop_owned(catalog, KEY, DEAD, "uid-1", own_references=True) == Dropped(files_kept=True)
    assert files(tmp_path) == before
    assert not catalog.table_exists(KEY)


def interrupt(monkeypatch: pytest.MonkeyPatch, call: int) -> None:
    """Let one call delete half of its files and fail."""
    delete_all = file_io.ObjectFileIO.delete_all
    calls = 0

    def interrupted(self: file_io.ObjectFileIO, locations: Iterable[str]) -> None:
        nonlocal calls
        calls += 1
        paths = list(locations)
        if calls == call:
            delete_all(self, paths[: len(paths) // 2])
            raise OSError("the store does not answer")
        delete_all(self, paths)

    monkeypatch.setattr(file_io.ObjectFileIO, "delete_all", interrupted)


@pytest.mark.parametrize("call", range(1, 6))
def test_a_repeated_drop_deletes_the_files_that_an_interrupted_one_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    catalog = made(tmp_path)
    forget_old_snapshots(catalog)
    interrupt(monkeypatch, call)
    with pytest.raises(OSError, match="does not answer"):
        dropping.drop_owned(catalog, KEY, DEAD, "uid-1")
    again = open_catalog("lake", connection(tmp_path))
    assert dropping.drop_owned(again, KEY, DEAD, "uid-1") == Dropped()
    assert files(tmp_path) == set()


def test_a_drop_names_the_last_file_if_it_cannot_delete_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = made(tmp_path)
    place = catalog.load_table(KEY).metadata_location
    interrupt(monkeypatch, 6)
    assert dropping.drop_owned(catalog, KEY, DEAD, "uid-1") == Dropped(left=(place,))
    assert {str(path) for path in files(tmp_path)} == {place}


async def test_a_cancelled_caller_does_not_start_a_second_drop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, calls = threading.Event(), []

    def slow(*arguments: Any) -> Dropped:
        calls.append(arguments)
        release.wait(10)
        return Dropped()

    monkeypatch.setattr(tables, "drop_owned", slow)
    port = CatalogTables({"lake": connection(tmp_path)})
    target = TableTarget(catalog="lake", namespace="shop", name="orders")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(port.drop(target, "uid-1"), 0.05)
    second = asyncio.ensure_future(port.drop(target, "uid-1"))
    await asyncio.sleep(0)
    release.set()
    assert await second == Dropped()
    assert len(calls) == 1
    port.close()
