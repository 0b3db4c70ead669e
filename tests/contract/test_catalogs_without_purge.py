"""Drop tables on Iceberg's own REST catalog, which returns few snapshots of a table and rejects requests to purge one."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError

from firn.model.jobs import CatalogConnection, Column, RecordSchema, TableTarget
from firn.tables.ownership import Claimant
from firn_controllers.ports import Dropped
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.adapters.iceberg.tables import CatalogTables
from tests.servers.iceberg_rest import IcebergRest

SCHEMA = RecordSchema(format="Json", fields=(Column(name="id", type="long"),))


async def with_history(port: CatalogTables, catalog: Catalog, target: TableTarget) -> None:
    """Create a table and dead letters with two snapshots each. The newest names none of the first one's files."""
    for name in (target.name, f"{target.name}__dlq"):
        await port.ensure(target.model_copy(update={"name": name}), SCHEMA, Claimant("uid-1"))
        table = catalog.load_table((target.namespace, name))
        rows = pa.table({"id": pa.array([1, 2, 3], pa.int64())})
        table.append(rows)
        table.overwrite(rows)
        assert len(catalog.load_table((target.namespace, name)).metadata.snapshots) == 1, (
            "the catalog returns refs only"
        )


async def test_a_topic_created_again_after_a_drop_without_a_purge_has_a_new_table(iceberg_catalog: IcebergRest) -> None:
    connection = iceberg_catalog.connection.model_copy(update={"own_references": True})
    target = TableTarget(catalog="lake", namespace="purge_again", name="orders")
    port, catalog = CatalogTables({"lake": connection}), open_catalog("lake", connection)
    try:
        await with_history(port, catalog, target)
        old = catalog.load_table((target.namespace, target.name)).metadata
        assert await port.drop(target, "uid-1") == Dropped(files_kept=True)
        assert await port.drop(target, "uid-1") is None, "nothing is left to drop"
        await port.ensure(target, SCHEMA, Claimant("uid-2"))
    finally:
        port.close()
    table = catalog.load_table((target.namespace, target.name))
    assert table.metadata.table_uuid != old.table_uuid
    assert table.current_snapshot() is None
    table.append(pa.table({"id": pa.array([1], pa.int64())}))
    assert table.scan().to_arrow().num_rows == 1


@pytest.mark.parametrize("own_references", [False, True], ids=["deleted", "kept"])
async def test_a_drop_without_a_purge_deletes_the_files_of_all_snapshots(
    iceberg_catalog: IcebergRest, own_references: bool
) -> None:
    connection: CatalogConnection = iceberg_catalog.connection.model_copy(update={"own_references": own_references})
    namespace = f"purge_{own_references}".lower()
    bucket = iceberg_catalog.s3.directory / "buckets" / iceberg_catalog.s3.bucket
    target = TableTarget(
        catalog="lake", namespace=namespace, name="orders",
        # No list of the table's own folders finds the files here.
        properties={"write.data.path": f"s3://{iceberg_catalog.s3.bucket}/{namespace}-data"},
    )  # fmt: skip

    def files() -> list[Path]:
        return sorted(path for path in bucket.rglob("*") if path.is_file() and namespace in str(path))

    port, catalog = CatalogTables({"lake": connection}), open_catalog("lake", connection)
    try:
        await with_history(port, catalog, target)
        before = files()
        assert len(before) > 16
        with pytest.raises(BadRequestError, match="does not purge"):
            catalog.purge_table((namespace, target.name))
        dropped = await port.drop(target, "uid-1")
    finally:
        port.close()
    assert not catalog.table_exists((namespace, target.name))
    assert dropped is not None
    if own_references:
        assert dropped == Dropped(files_kept=True)
        assert files() == before
    else:
        assert ["write.data.path" in problem for problem in dropped.problems] == [True]
        assert files() == []
