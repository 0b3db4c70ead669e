"""The decision which rewrites are plain merges."""

import json
from dataclasses import replace
from typing import Any

import pytest

from firn_spark.maintenance.merging.eligibility import FileFacts, TableFacts, obstacle

COLUMN = {"id": 1, "name": "n", "required": False, "type": "long"}


def schema(*columns: dict[str, Any]) -> str:
    return json.dumps({"type": "struct", "schema-id": 0, "fields": [COLUMN, *columns]})


def column(kind: Any, **changes: Any) -> dict[str, Any]:
    return {"id": 2, "name": "c", "required": False, "type": kind, **changes}


TABLE = TableFacts(format_version=3, spec_id=1, sorted=False, schema=schema(), properties={})
FILE = FileFacts(format="PARQUET", spec_id=1, delete_files=0, encrypted=False, has_row_ids=True)


def test_plain_merges_are_done_by_tasks() -> None:
    assert obstacle(TABLE, [FILE, FILE], "BinPack", filtered=False) == ""
    old = replace(TABLE, format_version=2)
    assert obstacle(old, [replace(FILE, has_row_ids=False)], "BinPack", filtered=False) == ""


@pytest.mark.parametrize(("strategy", "filtered"), [("Sort", False), ("ZOrder", False), ("BinPack", True)])
def test_rewrites_that_change_rows_or_their_order_stay_with_spark(strategy: str, filtered: bool) -> None:
    assert obstacle(TABLE, [FILE], strategy, filtered)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "AVRO"},
        {"format": "ORC"},
        {"spec_id": 0},
        {"delete_files": 1},
        {"encrypted": True},
        {"has_row_ids": False},
    ],
)
def test_one_unfit_file_sends_the_group_to_spark(change: dict[str, Any]) -> None:
    assert obstacle(TABLE, [FILE, replace(FILE, **change)], "BinPack", filtered=False)


@pytest.mark.parametrize(
    "properties",
    [
        {"write.format.default": "orc"},
        {"encryption.key-id": "k"},
        {"write.location-provider.impl": "com.example.Places"},
        {"write.parquet.bloom-filter-enabled.column.n": "true"},
        {"write.parquet.compression-codec": "lzo"},
        {"write.parquet.page-size-bytes": "many"},
        {"write.parquet.row-group-size-bytes": str(2**30)},
    ],
)
def test_properties_that_arrow_does_not_follow_send_the_table_to_spark(properties: dict[str, str]) -> None:
    assert obstacle(replace(TABLE, properties=properties), [FILE], "BinPack", filtered=False)


def test_a_sort_order_sends_the_table_to_spark() -> None:
    assert obstacle(replace(TABLE, sorted=True), [FILE], "BinPack", filtered=False)


@pytest.mark.parametrize(
    ("added", "plain"),
    [
        (column("string"), True),
        (column("decimal(38, 10)"), True),
        (column({"type": "list", "element-id": 3, "element": "uuid", "element-required": False}), True),
        (column("timestamp_ns"), True),
        (column("variant"), True),
        (column("geometry(srid:4326)"), False),
        (column({"type": "struct", "fields": [column("int"), column("unknown")]}), False),
        (column("long", **{"initial-default": 7}), False),
        (column("long", **{"write-default": 7}), True),
        (column({"type": "struct", "fields": [column("int", **{"initial-default": 1})]}), False),
        (column("string", name="a.b"), False),
    ],
)
def test_schemas_that_arrow_cannot_write_exactly_stay_with_spark(added: dict[str, Any], plain: bool) -> None:
    facts = replace(TABLE, schema=schema(added))
    assert (obstacle(facts, [FILE], "BinPack", filtered=False) == "") is plain


@pytest.mark.parametrize("setting", ["s3.sse.type", "s3.acl", "s3.write.storage-class", "gcs.encryption-key"])
def test_settings_of_new_objects_that_arrow_does_not_follow_send_the_table_to_spark(setting: str) -> None:
    reason = obstacle(
        replace(TABLE, file_settings=frozenset({"s3.endpoint", setting})), [FILE], "BinPack", filtered=False
    )
    assert setting in reason


def test_other_settings_of_files_do_not_matter() -> None:
    table = replace(TABLE, file_settings=frozenset({"s3.endpoint", "s3.access-key-id", "client.region"}))
    assert obstacle(table, [FILE], "BinPack", filtered=False) == ""


def test_a_partition_spec_of_dropped_fields_sends_the_table_to_spark() -> None:
    assert "dropped" in obstacle(replace(TABLE, void_partition=True), [FILE], "BinPack", filtered=False)
