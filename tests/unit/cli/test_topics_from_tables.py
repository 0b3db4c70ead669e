"""The topics of a new cluster with an empty bucket, from manifests and tables: ids, landed offsets, and the data files of raw values."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import DataScan, FileScanTask, Table
from pyiceberg.types import LongType

from firn.model.errors import InvalidSpecError
from firn.model.jobs import RecordSchema, SchemaFormat
from firn.model.progress import AuditFrom
from firn.tables.rows import table_columns
from firn_broker.history.files import TableFiles
from firn_broker.maintenance.known_topics import KnownTopics
from firn_broker.settings import BucketSettings
from firn_operator.adapters.iceberg.catalogs import LeanSqlCatalog
from firn_operator.adapters.iceberg.evolution import new_schema
from firn_operator.cli.recovery_topics import from_tables
from tests import gen
from tests.fakes.virtual_time import run
from tests.unit.broker.test_logs_from_tables import records
from tests.unit.broker.test_lost_coordinators import read, recovered
from tests.unit.broker.test_rebuilt_batches import Row
from tests.unit.broker.whole import Shared, broker
from tests.unit.cli.test_recovery_topics import CONFIG, ID, OTHER

RAW = RecordSchema(format=SchemaFormat.RAW, raw_as="Binary")
ROWS = {(0, 3): Row(7, b"k", b"a"), (1, 9): Row(8, None, b"b", [("h", b"x")]), (1, 12): Row(9, b"l", b"c")}
LANDED = {0: 5, 1: 13}


def table_of(directory: Path, shape: str = "Struct", of: str = ID, audited: AuditFrom | None = None) -> Table:
    """Create a table of a raw topic, with a data file for each partition."""
    directory.mkdir(exist_ok=True)
    catalog = LeanSqlCatalog("lake", uri=f"sqlite:///{directory}/catalog.db", warehouse=f"file://{directory}/lake")
    catalog.create_namespace("shop")
    audit = audited or AuditFrom(topic_id=of)
    properties = {"firn.audit-from": audit.model_dump_json()}
    schema = new_schema(table_columns(RAW, shape))
    table = catalog.create_table(("shop", "orders"), schema, properties=properties)
    landed = {"firn.topic-id": of, "firn.offsets": json.dumps({str(each): end for each, end in LANDED.items()})}
    for partition in LANDED:
        found = [
            {"partition": number, "offset": offset, "timestamp_ms": row.time, "key": row.key, "headers": _headers(row)}
            for (number, offset), row in ROWS.items()
            if number == partition
        ]
        values = [row.value for (number, _), row in ROWS.items() if number == partition]
        columns: list[dict[str, Any]] = [
            {
                "value": value,
                **({"_kafka": each} if shape == "Struct" else {f"_kafka_{key}": of for key, of in each.items()}),
            }
            for value, each in zip(values, found, strict=True)
        ]
        table.append(pa.Table.from_pylist(columns, schema=table.schema().as_arrow()), snapshot_properties=landed)
    return table


def _headers(row: Row) -> list[dict[str, Any]] | None:
    return [{"key": name, "value": value} for name, value in row.headers] or None


def manifest(**spec: Any) -> dict[str, Any]:
    """Return a topic as a new cluster has it: without a status."""
    found = gen.topic("orders", namespace="shop", **{"profile": "waves", "schema": {"raw": "Binary"}, **spec})
    return {key: value for key, value in found.items() if key != "status"}


def listed(table: Table | None, *topics: dict[str, Any]) -> tuple[list[dict[str, Any]], list[str]]:
    reported: list[str] = []
    asked = CONFIG, "waves", list(topics), lambda _: None, reported.append
    found = from_tables(*asked, lambda name: table if name == "lake.shop.orders" else None)
    return found["topics"], reported


@pytest.mark.parametrize("shape", ["Struct", "Flat"])
def test_the_log_of_a_topic_is_made_in_a_new_cluster(tmp_path: Path, shape: str) -> None:
    topic = manifest(table={"metadataColumns": shape})
    (found,), reported = listed(table_of(tmp_path, shape), topic)
    assert reported == []
    assert (found["name"], found["id"], found["partitions"], found["next"]) == ("orders", ID, 3, {"0": 5, "1": 13})
    (known,) = KnownTopics.model_validate_json(json.dumps({"topics": [found]})).topics

    async def story() -> None:
        shared = Shared()
        await shared.store.start()
        files = TableFiles([BucketSettings(url=f"file://{tmp_path}")])
        assert (await recovered(shared, [known], files=files)).complete
        async with broker(shared) as asked:
            for partition in range(3):
                start, batches = await read(asked, partition, "orders")
                wanted = {offset: row for (part, offset), row in ROWS.items() if part == partition}
                assert start == min(wanted, default=0)
                assert {offset: (row.time, row.key, row.value) for offset, row in records(batches)} == {
                    offset: (row.time, row.key, row.value) for offset, row in wanted.items()
                }

    run(story())


def test_topics_whose_records_cannot_be_made_begin_behind_the_landed_ones(tmp_path: Path) -> None:
    mixed = table_of(tmp_path, audited=AuditFrom(topic_id=ID, mixed=True))
    (found,), reported = listed(mixed, manifest())
    assert ("table" in found, found["next"]) == (False, {"0": 5, "1": 13})
    assert reported == [
        "IcebergTopic shop/orders: the log begins behind the landed records: table lake.shop.orders may have rows of an earlier Kafka"
        " topic with the same offsets; read its rows with an Iceberg engine"
    ]
    fields = [{"name": "id", "type": "long"}]
    (found,), (message,) = listed(mixed, manifest(schema={"format": "Json", "fields": fields}))
    assert "table" not in found
    assert "table lake.shop.orders does not have the values as they were produced" in message
    columns = [{"name": "value", "from": "value", "with": "Mask"}]
    (found,), (message,) = listed(table_of(tmp_path / "other"), manifest(schema={"raw": "String", "columns": columns}))
    assert "table" not in found
    assert "does not have the values as they were produced" in message


def test_columns_and_audits_of_another_topic_are_reported(tmp_path: Path) -> None:
    table = table_of(tmp_path, audited=AuditFrom(topic_id=OTHER))
    _, (message,) = listed(table, manifest())
    assert "may have rows of an earlier Kafka topic" in message
    with table.transaction() as change:
        change.set_properties({"firn.audit-from": AuditFrom(topic_id=ID).model_dump_json()})
    with table.update_schema() as schema:
        schema.rename_column("value", "content")
    _, (message,) = listed(table, manifest())
    assert message.endswith(
        "table lake.shop.orders has no column value; if it was renamed, rename it back, and repeat the command"
    )


def test_rows_with_delete_files_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(tmp_path)
    (whole, _) = table.scan().plan_files()
    deleted = FileScanTask(whole.file, {whole.file})
    monkeypatch.setattr(DataScan, "plan_files", lambda _: [whole, deleted])
    (found,), (message,) = listed(table, manifest())
    assert "table" not in found
    assert message.endswith("has delete files; compact it, and repeat the command before firn-broker fsck")

    def unsupported(_: DataScan) -> list[FileScanTask]:
        raise ValueError("PyIceberg does not yet support equality deletes")

    monkeypatch.setattr(DataScan, "plan_files", unsupported)
    (found,), (message,) = listed(table, manifest())
    assert message.endswith("has delete files; compact it, and repeat the command before firn-broker fsck")


def test_without_the_landed_offsets_no_log_is_made(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    with table.transaction() as change:
        change.set_properties({"firn.offsets": "{}"})
    for snapshot in table.metadata.snapshots:
        assert snapshot.summary is not None
        snapshot.summary.additional_properties["firn.offsets"] = "{}"
    (found,), _ = listed(table, manifest())
    assert ("table" in found, found["next"]) == (False, {})


def test_rows_on_a_branch_are_listed(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    table.manage_snapshots().create_branch(snapshot.snapshot_id, "staged").commit()
    with table.transaction() as change:
        change.set_properties({"firn.branch": "staged"})
    (found,), reported = listed(table, manifest())
    assert (len(found["table"]["files"]), reported) == (2, [])


def test_topics_without_a_table_of_their_own_are_left_out(tmp_path: Path) -> None:
    assert listed(None, manifest()) == (
        [],
        [
            "IcebergTopic shop/orders is left out: table lake.shop.orders does not exist; its Kafka topic will be a new one"
        ],
    )
    table = table_of(tmp_path)
    with table.transaction() as change:
        change.set_properties({"firn.owner": "shared"})
    found, (message,) = listed(table, manifest())
    assert (found, "has no records of one Kafka topic alone" in message) == ([], True)
    assert listed(table, manifest(profile="classic")) == ([], [])
    found, (message,) = listed(table, manifest(partitions=0))
    assert message.startswith("IcebergTopic shop/orders is left out: IcebergTopic orders: spec.partitions")


def test_brokers_delete_no_record_before_the_operator_sets_a_retention(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    (found,), _ = listed(table, manifest())
    assert found["configs"] == {"retention.ms": "-1", "retention.bytes": "-1"}
    (found,), _ = listed(table, manifest(config={"retention.ms": "5"}, storage={"history": "Single"}))
    assert found["configs"] == {"retention.ms": "5", "retention.bytes": "-1", "firn.history": "Single"}


def test_more_partitions_than_the_manifest_has_are_kept(tmp_path: Path) -> None:
    table = table_of(tmp_path)
    with table.update_schema() as schema:
        schema.add_column("note", LongType())
    (found,), reported = listed(table, manifest(partitions=1))
    assert (found["partitions"], reported) == (2, [])


def test_a_profile_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidSpecError, match="profile wave is not in the configuration"):
        from_tables(CONFIG, "wave", [], lambda _: None, print, lambda _: None)
