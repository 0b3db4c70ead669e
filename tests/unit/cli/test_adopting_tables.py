"""``firn adopt connect``: the manifest and the report for a table, and the consent of the table."""

import itertools
import json
import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform

from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.decoders.bad_records import BadRecordError
from firn.decoders.json import Times, ValueReader
from firn.model import names
from firn.model.errors import ConflictError, InvalidSpecError
from firn.tables import types
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.cli.adoption import connect, connector
from firn_operator.cli.adoption.manifest import Choices, adopting
from tests.unit.cli.test_connectors import CONFIG, read

GUIDE = Path(__file__).parents[3] / "docs" / "how-to" / "kafka-connect.md"
KEY = "kafka.connect.offsets.control-iceberg.connect-orders-sink"
SCHEMA = Schema(
    iceberg.NestedField(1, "id", iceberg.LongType(), required=False),
    iceberg.NestedField(2, "at", iceberg.TimestamptzType(), required=False, doc="time of the order"),
)


@pytest.fixture
def lake(tmp_path: Path) -> dict[str, Any]:
    """Return the configuration of a connector with a catalog in files, in which the table exists."""
    config = {
        **CONFIG,
        "name": "orders-sink",
        "iceberg.catalog.type": "jdbc",
        "iceberg.catalog.uri": f"jdbc:sqlite:{tmp_path}/catalog.db",
        "iceberg.catalog.warehouse": str(tmp_path / "warehouse"),
    }
    catalog = open_catalog("lake", connector.read(json.dumps(config)).connection)
    catalog.create_namespace("shop")
    catalog.create_table(
        ("shop", "orders"),
        SCHEMA,
        partition_spec=PartitionSpec(PartitionField(2, 1000, DayTransform(), "at_day")),
        properties={"team": "shop"},
    )
    return config


def table(lake: dict[str, Any]) -> Table:
    return open_catalog("lake", connector.read(json.dumps(lake)).connection).load_table(("shop", "orders"))


def commit(lake: dict[str, Any], **summary: str) -> None:
    rows = pa.table({"id": pa.array([1, 2]), "at": pa.array([0, 0], pa.timestamp("us", "UTC"))})
    table(lake).append(rows, snapshot_properties=summary)


@pytest.fixture
def run(lake: dict[str, Any], tmp_path: Path) -> Callable[..., tuple[str, str]]:
    def run(*, dry_run: bool = False, **choices: Any) -> tuple[str, str]:
        file = tmp_path / "connector.json"
        file.write_text(json.dumps(lake))
        return connect.run(str(file), Choices(**{"namespace": "shop", **choices}), dry_run=dry_run)

    return run


def test_the_manifest_names_table_columns_and_connector(lake: dict[str, Any], run: Any) -> None:
    commit(lake, **{KEY: '{"0":7}', "kafka.connect.commit-id": "c-1"})
    text, report = run(catalog="lake", profile="classic")
    manifest = yaml.safe_load(text)
    assert manifest == {
        "apiVersion": "firn.dev/v1alpha1",
        "kind": "IcebergTopic",
        "metadata": {"name": "orders", "namespace": "shop"},
        "spec": {
            "topicName": "orders",
            "profile": "classic",
            "schema": {
                "format": "Json",
                "fields": [
                    {"name": "id", "type": "long"},
                    {"name": "at", "type": "timestamptz", "doc": "time of the order"},
                ],
            },
            "table": {"catalog": "lake", "namespace": "shop", "name": "orders"},
            "ingestion": {"adopt": {"connect": {"group": "connect-orders-sink", "controlTopic": "control-iceberg"}}},
        },
    }
    assert IcebergTopic.parse(manifest).adoption is not None
    assert "which has 2 rows" in report
    assert 'last commit c-1, control topic control-iceberg up to {"0":7}' in report
    assert "new column _kafka, null in present rows" in report
    assert "partitioning (day(at)), sort order (none), 1 properties" in report


def test_the_guide_lists_json_values_that_only_the_sink_converts(lake: dict[str, Any], run: Any) -> None:
    commit(lake, **{KEY: '{"0":7}'})
    heading = "JSON values that the sink converts"
    assert f'with the table "{heading}" of the guide "{GUIDE.read_text().splitlines()[0][2:]}"' in run()[1]
    _, _, section = GUIDE.read_text().partition(f"## {heading}\n")
    listed = [line.split("|")[1:3] for line in section.partition("\n## ")[0].splitlines() if line.startswith("| `")]
    assert len(listed) == 10
    for kinds, values in listed:
        for kind, value in itertools.product(re.findall("`(.+?)`", kinds), re.findall("`(.+?)`", values)):
            reader = ValueReader.for_type(types.parse(kind), refuse_unknown=False, times=Times("ms"))
            with pytest.raises(BadRecordError):
                reader.read(value.encode())


def test_the_report_has_no_credentials(lake: dict[str, Any], run: Any) -> None:
    commit(lake, **{KEY: '{"0":7}'})
    # Parameters of a JDBC address may be user and password.
    lake["iceberg.catalog.uri"] += "?timeout=7"
    _, report = run(dry_run=True)
    assert "catalog.db" in report
    assert "timeout" not in report


def test_the_table_consents_to_its_adoption_by_this_topic_only(lake: dict[str, Any], run: Any) -> None:
    commit(lake, **{KEY: '{"0":7}'})
    _, report = run(dry_run=True)
    assert "firn.adopt would be set to shop/orders" in report
    assert "This was a dry run" in report
    assert names.TABLE_ADOPT not in table(lake).properties
    run()
    assert table(lake).properties[names.TABLE_ADOPT] == "shop/orders"
    assert table(lake).properties["team"] == "shop"
    run()
    with pytest.raises(ConflictError, match="consents to its adoption by shop/orders"):
        run(name="copies")


@pytest.mark.parametrize(
    ("topic", "choices", "words"),
    [
        ("orders", {"name": "Bad_Name"}, "--topic gives the IcebergTopic the name Bad_Name, .*--topic NAME"),
        ("orders", {"name": "shop/orders"}, "--topic gives the IcebergTopic the name shop/orders"),
        ("orders", {"name": "a" * 60}, "the name a{60}, but names of IcebergTopics have 1 to 52 lower-case letters"),
        ("orders", {"name": "a..b"}, r"the name a\.\.b"),
        ("___", {}, r"Kafka topic ___ gives the IcebergTopic the name \(empty\), .*--topic NAME"),
        ("orders", {"namespace": "Shop_1"}, "would be in namespace Shop_1, .*--namespace"),
        ("orders", {"namespace": "shop.eu"}, r"would be in namespace shop\.eu"),
        ("orders", {"namespace": "a" * 64}, "would be in namespace a{64}"),
    ],
)
def test_a_table_does_not_consent_to_a_topic_that_kubernetes_refuses(
    lake: dict[str, Any], run: Any, topic: str, choices: dict[str, str], words: str
) -> None:
    commit(lake, **{KEY: '{"0":7}'})
    lake["topics"] = topic
    with pytest.raises(InvalidSpecError, match=f"connector orders-sink: .*{words}"):
        run(**choices)
    assert names.TABLE_ADOPT not in table(lake).properties


@pytest.mark.parametrize("consent", ["shop/Bad_Name", "shop/", "shop", "Shop_1/orders", f"shop/{'a' * 60}"])
def test_a_consent_that_no_topic_can_use_is_replaced(lake: dict[str, Any], run: Any, consent: str) -> None:
    commit(lake, **{KEY: '{"0":7}'})
    with table(lake).transaction() as transaction:
        transaction.set_properties({names.TABLE_ADOPT: consent})
    run()
    assert table(lake).properties[names.TABLE_ADOPT] == "shop/orders"


def test_a_table_of_another_topic_is_a_warning(lake: dict[str, Any], run: Any) -> None:
    commit(lake, **{KEY: '{"0":7}'})
    with table(lake).transaction() as transaction:
        transaction.set_properties({names.TABLE_OWNER: "uid-1", names.TABLE_TENANT: "bank"})
    _, report = run()
    assert "Warning: the table was that of an IcebergTopic in namespace bank; if it exists, delete it first" in report


def test_commits_of_other_connectors_are_no_commits_of_this_one(lake: dict[str, Any], run: Any) -> None:
    other = "kafka.connect.offsets.control-iceberg.connect-other"
    commit(lake, **{other: "{}"})
    with pytest.raises(InvalidSpecError, match=f"no snapshot has the key {KEY} of connector orders-sink, but {other}"):
        run()


def test_a_table_that_does_not_exist_is_refused(lake: dict[str, Any], run: Any) -> None:
    lake["iceberg.tables"] = "shop.ghost"
    with pytest.raises(InvalidSpecError, match=r"table shop\.ghost .* does not exist; correct iceberg\.tables"):
        run()


def test_columns_that_no_field_can_fill_are_left_out() -> None:
    nested = iceberg.StructType(
        iceberg.NestedField(5, "tags", iceberg.ListType(6, iceberg.StringType(), False), required=False),
        iceberg.NestedField(7, "price", iceberg.DecimalType(10, 2), required=False),
    )
    schema = Schema(
        iceberg.NestedField(1, "id", iceberg.LongType(), required=True),
        iceberg.NestedField(2, "at", iceberg.GeometryType(), required=False),
        iceberg.NestedField(3, "_kafka_metadata", iceberg.StringType(), required=False),
        iceberg.NestedField(4, "more", nested, required=False),
    )
    made = adopting(read(), schema, 2, Choices("shop", name="mine"))
    assert made.manifest["spec"]["schema"]["fields"] == [
        {"name": "id", "type": "long", "required": True},
        {"name": "more", "type": "struct<tags: list<string>, price: decimal(10, 2)>"},
    ]
    assert made.left_out == ("at (geometry)", "_kafka_metadata (string)")
    assert made.consent == "shop/mine"
    required = Schema(iceberg.NestedField(1, "at", iceberg.GeometryType(), required=True))
    with pytest.raises(InvalidSpecError, match="column at of type geometry is required"):
        adopting(read(), required, 3, Choices("shop"))


def optional(number: int, name: str, kind: iceberg.IcebergType, doc: str | None = None) -> iceberg.NestedField:
    return iceberg.NestedField(number, name, kind, required=False, doc=doc)


def test_columns_that_no_spec_can_name_are_left_out_of_the_manifest() -> None:
    text, name = iceberg.StringType(), "n" * 128
    inside = iceberg.StructType(optional(11, "a-b", text), optional(12, "c", text), optional(13, "C", text))
    needed = iceberg.StructType(optional(21, "c", text), iceberg.NestedField(22, "a-b", text, required=True))
    deep: iceberg.IcebergType = text
    for number in range(100, 117):
        deep = iceberg.ListType(number, deep, False)
    schema = Schema(
        optional(1, name, text, "d" * 1024),
        optional(2, f"{name}n", text),
        optional(3, "long_doc", text, "d" * 1025),
        optional(4, "inside", iceberg.ListType(10, inside, False)),
        optional(5, "needed", needed),
        optional(6, "keyed", iceberg.MapType(31, iceberg.StructType(optional(33, "a-b", text)), 32, text, False)),
        optional(7, "Inside", text),
        optional(8, "deep", deep),
    )
    made = adopting(read(), schema, 2, Choices("shop"))
    assert made.manifest["spec"]["schema"]["fields"] == [
        {"name": name, "type": "string", "doc": "d" * 1024},
        {"name": "long_doc", "type": "string"},
        {"name": "inside", "type": "list<struct<c: string>>"},
    ]
    members = ("inside.element.a-b (string)", "inside.element.C (string)")
    assert made.left_out[:3] == (f"{name}n (string)", *members)
    assert [each.split(" ")[0] for each in made.left_out[3:]] == ["needed", "keyed", "Inside", "deep"]


def test_a_table_without_a_usable_column_is_refused() -> None:
    columns = optional(1, "at", iceberg.GeometryType()), optional(2, "a-b", iceberg.StringType())
    problem = (
        r"table shop\.orders has no column that a field .* can fill: at \(geometry\), a-b \(string\); rename a column"
    )
    with pytest.raises(InvalidSpecError, match=problem):
        adopting(read(), Schema(*columns), 3, Choices("shop"))
    wide = Schema(*(optional(number, f"c{number}", iceberg.LongType()) for number in range(1, 1002)))
    with pytest.raises(InvalidSpecError, match="has 1001 columns, and an IcebergTopic has at most 1000 fields"):
        adopting(read(), wide, 2, Choices("shop"))


@pytest.mark.parametrize("strategy", ["TopicName", "RecordName", "TopicRecordName"])
def test_the_manifest_has_the_strategy_of_subject_names(strategy: str) -> None:
    avro = read(
        value_converter="io.confluent.connect.avro.AvroConverter",
        value_converter_value_subject_name_strategy=f"io.confluent.kafka.serializers.subject.{strategy}Strategy",
    )
    assert avro.warnings == ()
    if strategy == "TopicName":
        made = adopting(avro, SCHEMA, 2, Choices("shop", registry="main"))
        assert made.manifest["spec"]["schema"] == {"format": "Avro", "registry": {"name": "main"}}
        return
    with pytest.raises(
        InvalidSpecError, match=f"strategy {strategy}, which names subjects by the record; .* --message"
    ):
        adopting(avro, SCHEMA, 2, Choices("shop", registry="main"))
    made = adopting(avro, SCHEMA, 2, Choices("shop", registry="main", message="shop.Order"))
    assert made.manifest["spec"]["schema"] == {
        "format": "Avro",
        "registry": {"name": "main", "subjectStrategy": strategy},
        "message": "shop.Order",
    }


@pytest.mark.parametrize(
    ("topic", "name"),
    [
        ("a..b", "a.b"),
        ("a.-b_.c", "a.b.c"),
        ("_.orders", "orders"),
        ("a" * 51 + ".b", "a" * 51),
        ("a" * 50 + "._b", "a" * 50 + ".b"),
    ],
)
def test_the_name_of_a_topic_becomes_a_name_that_kubernetes_accepts(topic: str, name: str) -> None:
    made = adopting(read(topics=topic), SCHEMA, 3, Choices("shop"))
    assert made.manifest["metadata"]["name"] == name
    assert names.is_resource(name)


def test_avro_needs_the_name_of_the_registry() -> None:
    avro = read(value_converter="io.confluent.connect.avro.AvroConverter", topics="Orders_EU")
    with pytest.raises(InvalidSpecError, match="name this registry .* with --registry"):
        adopting(avro, SCHEMA, 2, Choices("shop"))
    made = adopting(avro, SCHEMA, 3, Choices("shop", registry="main"))
    assert made.manifest["spec"]["schema"] == {"format": "Avro", "registry": {"name": "main"}}
    assert made.manifest["spec"]["table"] == {"namespace": "shop", "name": "orders", "formatVersion": 3}
    assert made.manifest["metadata"]["name"] == "orders-eu"
    assert made.added == ("_kafka",)


UNWRAP = {
    "transforms": "unwrap",
    "transforms_unwrap_type": "org.apache.iceberg.connect.transforms.DebeziumTransform",
}


def test_transforms_that_change_rows_are_refused() -> None:
    with pytest.raises(InvalidSpecError, match=r"transform unwrap .* change events .* add --ignore-transforms"):
        adopting(read(**UNWRAP), SCHEMA, 2, Choices("shop"))


def test_without_the_transforms_a_topic_halts_at_the_first_record_of_another_shape() -> None:
    made = adopting(read(**UNWRAP), SCHEMA, 2, Choices("shop", ignore_transforms=True))
    assert made.manifest["spec"]["schema"]["unknownFields"] == "DeadLetter"
    assert made.manifest["spec"]["ingestion"]["onBadRecord"] == "Halt"
    avro = {**UNWRAP, "value_converter": "io.confluent.connect.avro.AvroConverter"}
    made = adopting(read(**avro), SCHEMA, 2, Choices("shop", registry="main", ignore_transforms=True))
    assert made.manifest["spec"]["schema"] == {"format": "Avro", "registry": {"name": "main"}}
    assert made.manifest["spec"]["ingestion"]["onBadRecord"] == "Halt"


def test_the_report_names_ignored_transforms(lake: dict[str, Any], run: Any) -> None:
    commit(lake, **{KEY: '{"0":7}'})
    lake |= {key.replace("_", "."): value for key, value in UNWRAP.items()}
    with pytest.raises(InvalidSpecError, match="--ignore-transforms"):
        run()
    assert names.TABLE_ADOPT not in table(lake).properties
    _, report = run(ignore_transforms=True)
    assert "Warning: transform unwrap" in report
    assert "halts at the first bad record" in report


def test_a_sink_that_ignores_case_makes_unknown_fields_of_json_halt_the_topic() -> None:
    case = {"iceberg_tables_schema__case__insensitive": "true"}
    made = adopting(read(**case), SCHEMA, 2, Choices("shop"))
    assert made.manifest["spec"]["schema"]["unknownFields"] == "DeadLetter"
    assert made.manifest["spec"]["ingestion"]["onBadRecord"] == "Halt"
    avro = {**case, "value_converter": "io.confluent.connect.avro.AvroConverter"}
    made = adopting(read(**avro), SCHEMA, 2, Choices("shop", registry="main"))
    assert "onBadRecord" not in made.manifest["spec"]["ingestion"]


def database(tmp_path: Path) -> list[str]:
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        return [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")]


def test_a_catalog_of_version_v0_does_not_change(lake: dict[str, Any], run: Any, tmp_path: Path) -> None:
    commit(lake, **{KEY: '{"0":7}'})
    with sqlite3.connect(tmp_path / "catalog.db") as connection:
        connection.execute("UPDATE iceberg_tables SET catalog_name = 'lake'")
        connection.execute("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type")
    before = database(tmp_path)
    assert "iceberg_type" not in " ".join(before)
    for dry_run in (True, False):
        _, report = run(dry_run=dry_run)
        assert "  the catalog's table iceberg_tables gets the column iceberg_type (Iceberg's version V1)" in report
    assert database(tmp_path) == before
    assert table(lake).properties[names.TABLE_ADOPT] == "shop/orders"
    assert "iceberg_type" not in run()[1]


def test_a_database_without_a_catalog_does_not_change(lake: dict[str, Any], run: Any, tmp_path: Path) -> None:
    file = tmp_path / "typo.db"
    lake["iceberg.catalog.uri"] = f"jdbc:sqlite:{file}"
    with pytest.raises(InvalidSpecError, match=r"typo\.db of iceberg\.catalog\.uri does not exist"):
        run(dry_run=True)
    assert not file.exists()
    file.touch()
    with pytest.raises(
        InvalidSpecError, match="has no table iceberg_tables, so it is not the catalog of the connector"
    ):
        run()
    assert file.read_bytes() == b""


def test_a_jdbc_catalog_has_the_same_name_in_firn(lake: dict[str, Any], run: Any) -> None:
    commit(lake, **{KEY: '{"0":7}'})
    text, report = run(dry_run=True)
    assert yaml.safe_load(text)["spec"]["table"]["catalog"] == "lake"
    assert "The catalog needs the name lake in the operator's configuration, which is iceberg.catalog" in report
    with pytest.raises(InvalidSpecError, match=r"tables of the catalog lake \(iceberg.catalog\), .* without --catalog"):
        run(catalog="main", dry_run=True)


def test_a_jdbc_catalog_needs_a_name_that_firn_can_use() -> None:
    sink = read(iceberg_catalog="Lake_1", iceberg_catalog_type="jdbc", iceberg_catalog_uri="jdbc:postgresql://db/ice")
    with pytest.raises(
        InvalidSpecError, match="Lake_1 .* names of Firn's catalogs have lower-case letters.* change catalog_name"
    ):
        adopting(sink, SCHEMA, 2, Choices("shop"))


def test_changes_of_columns_are_reported_for_json(lake: dict[str, Any], run: Any) -> None:
    struct = iceberg.StructType(iceberg.NestedField(4, "a", iceberg.StringType(), required=True))
    made = adopting(read(), Schema(optional(3, "s", struct)), 2, Choices("shop"))
    assert made.changed == ("column s.a made optional",)
    clash = iceberg.StructType(optional(5, "offset", iceberg.StringType()))
    with pytest.raises(
        InvalidSpecError, match=r"column _kafka is struct<offset: string>, .*; rename the table's column"
    ):
        adopting(
            read(), Schema(optional(1, "id", iceberg.LongType()), optional(4, "_kafka", clash)), 2, Choices("shop")
        )


def test_files_of_another_format_are_a_warning(lake: dict[str, Any], run: Any) -> None:
    commit(lake, **{KEY: '{"0":7}'})
    assert "write.format.default" not in run(dry_run=True)[1]
    with table(lake).transaction() as transaction:
        transaction.set_properties({"write.format.default": "ORC"})
    assert "Warning: property write.format.default is orc, and ingestion writes Parquet" in run(dry_run=True)[1]
