"""Configurations of the Iceberg sink of Kafka Connect: what a topic continues, what it refuses, and where it differs."""

import json
from typing import Any

import pytest

from firn.model.errors import InvalidSpecError
from firn.model.jobs import CatalogConnection, SinkCommits
from firn_operator.cli.adoption import connector
from firn_operator.cli.adoption.connector import Connector

CONFIG = {
    "connector.class": connector.CLASS,
    "tasks.max": "2",
    "topics": "orders",
    "iceberg.tables": "shop.orders",
    "iceberg.catalog": "lake",
    "iceberg.catalog.type": "rest",
    "iceberg.catalog.uri": "http://catalog:8181",
    "iceberg.catalog.warehouse": "s3://lake/warehouse",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}

APICURIO = {
    "value_converter": "io.apicurio.registry.utils.converter.AvroConverter",
    "value_converter_apicurio_registry_as__confluent": "true",
    "value_converter_apicurio_registry_use__id": "contentId",
}
TRANSFORMS = "org.apache.iceberg.connect.transforms."


def read(name: str | None = "orders-sink", **changes: Any) -> Connector:
    config = {**CONFIG, **{key.replace("__", "-").replace("_", "."): value for key, value in changes.items()}}
    return connector.read(json.dumps({"name": name, "config": {key: v for key, v in config.items() if v is not None}}))


def test_a_connector_names_topic_table_and_where_it_keeps_its_state() -> None:
    found = read()
    assert (found.name, found.topic, found.namespace, found.table) == ("orders-sink", "orders", "shop", "orders")
    assert found.sink == SinkCommits(control_topic="control-iceberg", group="connect-orders-sink")
    assert (found.format, found.has_registry, found.catalog, found.warnings) == ("Json", False, "lake", ())
    assert found.connection == CatalogConnection(
        type="rest", uri="http://catalog:8181", warehouse="s3://lake/warehouse", properties={}
    )


def test_the_configuration_alone_is_read_too() -> None:
    assert connector.read(json.dumps({"name": "orders-sink", **CONFIG})) == read()


def test_a_connector_may_name_its_group_and_control_topic() -> None:
    found = read(
        iceberg_connect_group__id="loaders", iceberg_control_topic="control", consumer_override_group_id="loaders"
    )
    assert found.sink == SinkCommits(control_topic="control", group="loaders")


@pytest.mark.parametrize(
    "changes",
    [
        {"iceberg_tables_default__commit__branch": "main"},
        {"iceberg_table_shop_orders_commit__branch": "main"},
        {"iceberg_table_shop_orders_commit__branch": "main", "iceberg_tables_default__commit__branch": "staging"},
        {"iceberg_table_shop_copies_commit__branch": "staging"},
    ],
)
def test_a_connector_may_name_the_branch_main(changes: dict[str, Any]) -> None:
    assert read(**changes) == read()


def test_known_properties_of_tables_need_no_warning() -> None:
    known = ("auto__create__enabled", "schema__force__optional", "auto__create__props_a", "upsert__mode__enabled")
    assert read(**{f"iceberg_tables_{key}": "false" for key in known}) == read()


def test_a_jdbc_catalog_is_one_of_type_sql() -> None:
    found = read(
        iceberg_catalog_type=None,
        **{"iceberg_catalog_catalog__impl": "org.apache.iceberg.jdbc.JdbcCatalog"},
        iceberg_catalog_uri="jdbc:postgresql://db:5432/iceberg",
        iceberg_catalog_jdbc_user="sink",
        iceberg_catalog_jdbc_password="secret",
        iceberg_catalog_s3_endpoint="http://s3",
        iceberg_catalog_client_region="eu-1",
    )
    properties = {
        "user": "sink", "password": "secret", "s3.endpoint": "http://s3", "client.region": "eu-1", "s3.region": "eu-1",
    }  # fmt: skip
    assert found.connection == CatalogConnection(
        type="sql", uri="postgresql://db:5432/iceberg", warehouse="s3://lake/warehouse", properties=properties
    )


@pytest.mark.parametrize(
    ("converter", "format_name"),
    [
        ("io.confluent.connect.avro.AvroConverter", "Avro"),
        ("io.confluent.connect.protobuf.ProtobufConverter", "Protobuf"),
        ("io.confluent.connect.json.JsonSchemaConverter", "Json"),
        ("io.apicurio.registry.utils.converter.AvroConverter", "Avro"),
        ("io.apicurio.registry.utils.converter.ProtobufConverter", "Protobuf"),
        ("io.apicurio.registry.utils.converter.ExtJsonConverter", "Json"),
    ],
)
def test_values_may_name_their_schemas(converter: str, format_name: str) -> None:
    found = read(**APICURIO | {"value_converter": converter, "value_converter_schemas_enable": None})
    assert (found.format, found.has_registry, found.warnings) == (format_name, True, ())


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"connector_class": "io.tabular.iceberg.connect.IcebergSinkConnector"}, "has the class io.tabular"),
        ({"topics": "orders,payments"}, "reads orders, payments, and an IcebergTopic lands one topic"),
        ({"topics": None, "topics_regex": "shop.*"}, r"reads shop\.\*, and"),
        ({"iceberg_tables": "shop.orders, shop.copies"}, "writes shop.orders, shop.copies, and an IcebergTopic fills one"),
        ({"iceberg_tables": "lake.shop.orders"}, "a namespace of one level"),
        ({"iceberg_tables": None, "iceberg_tables_dynamic__enabled": "true"}, "chooses tables by a field"),
        ({"iceberg_tables_route__field": "kind"}, "chooses records by a field"),
        ({"iceberg_table_shop_orders_commit__branch": "staging"}, r"branch staging \(iceberg\.table\.shop\.orders\.commit-branch\)"),
        ({"iceberg_tables_default__commit__branch": "staging"}, r"branch staging \(iceberg\.tables\.default-commit-branch\)"),
        ({"consumer_override_group_id": "loaders"}, "in group loaders .* name group connect-orders-sink"),
        ({"value_converter": None}, "has no value.converter, so that of the worker applies"),
        ({"value_converter": "org.apache.kafka.connect.storage.StringConverter"}, "for which firn adopt connect writes no schema"),
        ({"value_converter_schemas_enable": None}, "JSON with a schema in each record"),
        ({**APICURIO, "value_converter_apicurio_registry_headers_enabled": "true"}, "in Apicurio's headers"),
        ({"iceberg_catalog_type": "hive"}, "a catalog of type hive, and Firn has"),
        ({"iceberg_catalog_uri": None}, "has no iceberg.catalog.uri, which a catalog of type rest needs"),
        ({"iceberg_catalog_type": "jdbc", "iceberg_catalog_uri": "jdbc:"}, "which a catalog of type jdbc needs"),
        ({"iceberg_catalog_uri": "${file:/secrets:uri}"}, "refers to .*which only Connect can resolve"),
    ],
)  # fmt: skip
def test_a_connector_that_no_topic_can_continue_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=problem):
        read(**changes)


@pytest.mark.parametrize("text", ["", "topics=orders", "[]", "{}", json.dumps({"config": CONFIG})])
def test_a_file_without_a_connector_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpecError, match="configuration of the connector"):
        connector.read(text)


@pytest.mark.parametrize(
    ("changes", "warning"),
    [
        ({"iceberg_tables_default__id__columns": "id"}, "id columns id: ingestion appends every record"),
        ({"iceberg_table_shop_orders_id__columns": "id"}, "id columns id"),
        (
            {"iceberg_tables_cdc__field": "op"},
            "cdc-field op: ingestion appends every record, and updates or deletes no row",
        ),
        ({"iceberg_tables_upsert__mode__enabled": "true"}, "upsert-mode-enabled true: ingestion appends every record"),
        (
            {"iceberg_tables_order__by": "id", "iceberg_tables_write__order": "id"},
            "iceberg.tables.order-by, iceberg.tables.write-order: not known in version 1.12 of the sink",
        ),
        (
            {"transforms": "kafka", "transforms_kafka_type": f"{TRANSFORMS}KafkaMetadataTransform"},
            "its columns get null, and column _kafka has partition",
        ),
        ({"iceberg_tables_evolve__schema__enabled": "true"}, "after you have added its field"),
        ({"errors_tolerance": "all", "errors_deadletterqueue_topic_name": "bad"}, "bad records in topic bad"),
        ({"consumer_override_auto_offset_reset": "latest"}, "from the start of its log"),
        ({"iceberg_tables_write__props_write_format_default": "orc"}, "set them in spec.table.properties"),
        ({**APICURIO, "value_converter_apicurio_registry_as__confluent": "false"}, "may have ids of eight bytes"),
        (
            {**APICURIO, "value_converter_apicurio_registry_use__id": "globalId"},
            "values with global ids become dead letters",
        ),
        ({**APICURIO, "value_converter_apicurio_registry_use__id": None}, "globalId is the default of version 2"),
        ({"iceberg_tables_schema__case__insensitive": "true"}, "exactly the same name"),
        (
            {"value_converter_value_subject_name_strategy": "shop.OwnStrategy"},
            "subject name strategy shop.OwnStrategy: set spec.schema.registry.subject to the subject",
        ),
    ],
)
def test_differences_from_the_connector_are_warnings(changes: dict[str, Any], warning: str) -> None:
    (found,) = read(**changes).warnings
    assert warning in found


OF_KAFKA = "org.apache.kafka.connect.transforms."


@pytest.mark.parametrize(
    "changes",
    [
        {"transforms_a_type": f"{OF_KAFKA}InsertHeader"},
        {"transforms_a_type": f"{OF_KAFKA}ValueToKey"},
        {"transforms_a_type": f"{OF_KAFKA}ExtractField$Key"},
        {"transforms_a_type": f"{OF_KAFKA}HeaderFrom$Value", "transforms_a_operation": "copy"},
    ],
)
def test_transforms_of_keys_and_headers_change_no_row(changes: dict[str, str]) -> None:
    assert read(transforms="a", **changes) == read()


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        (f"{TRANSFORMS}DebeziumTransform", "{name: id, from: $.after.id}"),
        ("io.debezium.transforms.ExtractNewRecordState", "Keep the connector for this topic"),
        (f"{OF_KAFKA}ReplaceField$Value", "{name: NEW, from: $.OLD}"),
        (f"{OF_KAFKA}Flatten$Value", "{name: customer_id, from: $.customer.id}"),
        (f"{OF_KAFKA}HoistField$Value", "list its members as columns of the table"),
        (f"{OF_KAFKA}ExtractField$Value", "{name: id, from: $.FIELD.id}"),
        (f"{OF_KAFKA}MaskField$Value", "which would land as they are"),
        (f"{OF_KAFKA}HeaderFrom$Value", "moves fields to headers"),
        (f"{OF_KAFKA}Filter", "spec.schema.filter"),
        (f"{OF_KAFKA}RegexRouter", "spec.ingestion.adopt.offsets"),
        ("shop.transforms.Mine", "find out which columns it fills"),
    ],
)
def test_transforms_that_change_rows_have_a_next_step(kind: str, step: str) -> None:
    (found,) = read(
        transforms="keys, a", transforms_keys_type=f"{OF_KAFKA}ValueToKey", transforms_a_type=kind
    ).transforms
    assert found.startswith(f"transform a ({kind}) ")
    assert step in found


def test_a_transform_without_a_type_may_change_rows() -> None:
    (found,) = read(transforms="a").transforms
    assert "transform a (without a type) may change records" in found


def jdbc(uri: str, **changes: str) -> Connector:
    return read(iceberg_catalog_type="jdbc", iceberg_catalog_uri=uri, **changes)


@pytest.mark.parametrize(
    ("uri", "found", "properties"),
    [
        (
            "jdbc:postgresql://db/ice?user=sink&password=a%26b",
            "postgresql://db/ice",
            {"user": "sink", "password": "a&b"},
        ),
        ("jdbc:postgresql://db/ice?ssl=true", "postgresql://db/ice?sslmode=verify-full", {}),
        ("jdbc:postgresql://db/ice?ssl=true&sslmode=require", "postgresql://db/ice?sslmode=require", {}),
        ("jdbc:postgresql://db/ice?ssl=false&currentSchema=public&socketTimeout=9", "postgresql://db/ice", {}),
        ("jdbc:postgresql:ice", "postgresql://localhost/ice", {}),
        ("jdbc:sqlite:/tmp/ice.db", "sqlite:////tmp/ice.db", {}),
    ],
)
def test_addresses_of_jdbc_become_those_of_firn(uri: str, found: str, properties: dict[str, str]) -> None:
    connection = jdbc(uri).connection
    assert (connection.uri, connection.properties) == (found, properties)
    assert jdbc(uri).warnings == ()


def test_properties_of_the_jdbc_driver_are_parameters_too() -> None:
    found = jdbc(
        "jdbc:postgresql://db/ice", iceberg_catalog_jdbc_ssl="true", **{"iceberg_catalog_jdbc_schema__version": "V1"}
    )
    assert found.connection.uri == "postgresql://db/ice?sslmode=verify-full"
    (warning,) = jdbc("jdbc:postgresql://db/ice?targetServerType=primary").warnings
    assert "parameter targetServerType of the JDBC driver: the command connects without it" in warning


@pytest.mark.parametrize(
    ("uri", "step"),
    [
        (
            "jdbc:mysql://db/ice",
            "JDBC catalog in mysql, .* serve the same catalog, and write it with iceberg.catalog.type rest",
        ),
        ("jdbc:postgresql://a:5432,b:5432/ice", r"several hosts \(a:5432,b:5432\).* leave the primary in the file"),
        ("jdbc:postgresql://db/ice?currentSchema=ice", "SET search_path = ice\\), and remove the parameter"),
    ],
)
def test_addresses_of_jdbc_that_firn_cannot_use_are_refused(uri: str, step: str) -> None:
    with pytest.raises(InvalidSpecError, match=step):
        jdbc(uri)


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        (
            {
                "iceberg_catalog_type": "nessie",
                "iceberg_catalog_uri": "http://nessie:19120/api/v2",
                "iceberg_catalog_ref": "dev",
            },
            "iceberg.catalog.type rest, iceberg.catalog.uri http://nessie:19120/iceberg/dev and the warehouse",
        ),
        ({"iceberg_catalog_type": "hive"}, "if the metastore serves Iceberg's REST API"),
        (
            {"iceberg_catalog_type": "glue"},
            "the REST API of Glue needs requests signed with SigV4, .* register the table",
        ),
        (
            {"iceberg_catalog_type": None, "iceberg_catalog_catalog__impl": "org.apache.iceberg.aws.glue.GlueCatalog"},
            "the REST API of Glue",
        ),
        ({"iceberg_catalog_rest_sigv4__enabled": "true"}, "signs its requests with SigV4"),
        ({"iceberg_catalog_rest_auth_type": "sigv4"}, "signs its requests with SigV4"),
        ({"iceberg_catalog_type": "hadoop"}, r"rest and sql \(jdbc\); register the table in a catalog"),
    ],
)
def test_other_catalogs_are_refused_with_the_way_to_one_of_firn(changes: dict[str, Any], step: str) -> None:
    with pytest.raises(InvalidSpecError, match=step):
        read(**changes)


def test_the_type_of_a_catalog_has_any_case() -> None:
    assert read(iceberg_catalog_type="REST") == read()


@pytest.mark.parametrize("name", ["shop.my-orders", "shop-eu.orders", "shop.orders__dlq"])
def test_tables_with_names_that_no_spec_can_have_are_refused(name: str) -> None:
    with pytest.raises(
        InvalidSpecError, match=f"writes table {name}, .* rename the table, write the new name into iceberg.tables"
    ):
        read(iceberg_tables=name)


@pytest.mark.parametrize(
    ("text", "cause"),
    [("{", "Expecting property name"), ("[" * 5000, "recursion"), ('{"name": ' + "9" * 5000 + "}", "digits")],
    ids=["no JSON", "deep", "number"],
)
def test_a_configuration_that_cannot_be_read_has_the_next_step(text: str, cause: str) -> None:
    with pytest.raises(
        InvalidSpecError, match=rf"cannot be read as JSON: [^;]*{cause}[^;]*; save the answer of CONNECT_URL"
    ):
        connector.read(text)
