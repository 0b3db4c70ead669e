"""Values that follow from an IcebergTopic: names, schema, table."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from firn.api.v1alpha1 import IcebergTopic
from firn.api.v1alpha1.iceberg_topic import with_columns
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Adoption, Column, SinkCommits, StartFrom
from firn.tables import rows

SAMPLES = sorted((Path(__file__).parents[3] / "crds/samples").glob("*.yaml"))


def topic(
    spec: dict[str, Any] | None = None, *, name: str = "my-topic", namespace: str = "my-team", **status: Any
) -> IcebergTopic:
    return IcebergTopic.parse(
        {"metadata": {"name": name, "namespace": namespace}, "spec": spec or {}, "status": status}
    )


def test_unset_fields_default_to_the_name_and_the_configuration() -> None:
    least = topic()
    assert least.topic_name == "my-topic"
    assert least.profile_name("classic") == "classic"
    assert least.group_name("default") == "default"
    assert least.freshness_ms == 60_000
    assert least.start_from == StartFrom(kind="Earliest")
    target = least.table_target("lake")
    assert (target.identifier, target.format_version, target.metadata_columns) == ("lake.my_team.my_topic", 2, "Struct")
    assert (least.spec.suspend, least.spec.partitions, least.spec.deletion_policy.table) == (False, None, "Retain")


def test_set_fields_override_the_defaults() -> None:
    most = topic(
        {
            "profile": "fast",
            "topicName": "Orders.EU",
            "table": {"catalog": "cold", "namespace": "Finance", "name": "Orders", "properties": {"a": "b"}},
            "ingestion": {"group": "big", "freshness": "5s", "startFrom": "Latest"},
        }
    )
    assert (most.topic_name, most.profile_name("x"), most.group_name("x"), most.freshness_ms) == (
        "Orders.EU",
        "fast",
        "big",
        5000,
    )
    assert most.table_target("x").identifier == "cold.Finance.Orders"
    assert most.table_target("x").properties == {"a": "b"}
    assert most.start_from == StartFrom(kind="Latest")


def test_a_table_is_named_after_the_topic() -> None:
    assert topic({"topicName": "Legacy.Payments_EU"}).table_target("lake").name == "legacy_payments_eu"


def test_a_new_default_moves_no_existing_topic() -> None:
    made = topic(profile="classic", table={"identifier": "lake.my_team.my_topic"})
    assert made.profile_name("new-default") == "classic"
    assert made.table_target("new-default").identifier == "lake.my_team.my_topic"


@pytest.mark.parametrize(
    ("time", "milliseconds"),
    [
        ("2024-01-01T00:00:00Z", 1_704_067_200_000),
        ("2024-01-01T02:00:00.25+02:00", 1_704_067_200_250),
        ("1969-12-31T23:59:59Z", -1000),
    ],
)
def test_start_from_may_be_a_time(time: str, milliseconds: int) -> None:
    start = topic({"ingestion": {"startFrom": {"timestamp": time}}}).start_from
    assert start == StartFrom(kind="Timestamp", timestamp_ms=milliseconds)


def test_an_adoption_names_the_earlier_topic_and_the_first_offsets() -> None:
    assert topic().adoption is None
    offsets = [{"partition": 0, "offset": 7}, {"partition": 12, "offset": 0}]
    adopting = topic({"ingestion": {"adopt": {"topicId": "id-1", "offsets": offsets}}})
    assert adopting.adoption == Adoption(topic_id="id-1", offsets={0: 7, 12: 0})
    assert topic({"ingestion": {"adopt": {"topicId": "id-1"}}}).adoption == Adoption(topic_id="id-1")


def test_an_adoption_names_the_connector_that_wrote_the_table() -> None:
    sink = SinkCommits(control_topic="control-iceberg", group="connect-orders")
    adopting = topic({"ingestion": {"adopt": {"connect": {"group": "connect-orders"}}}})
    assert adopting.adoption == Adoption(connect=sink)
    listed = {"connect": {"group": "g", "controlTopic": "c"}, "offsets": [{"partition": 1, "offset": 9}]}
    assert topic({"ingestion": {"adopt": listed}}).adoption == Adoption(
        connect=SinkCommits(control_topic="c", group="g"), offsets={1: 9}
    )


@pytest.mark.parametrize(
    "adopt", [{"connect": {}}, {"topicId": ""}, {"topicId": "x", "offsets": [{"partition": 0, "offset": -1}]}]
)
def test_the_model_rejects_an_invalid_adoption(adopt: Any) -> None:
    with pytest.raises(InvalidSpecError, match=r"IcebergTopic my-topic: spec\.ingestion\.adopt"):
        topic({"ingestion": {"adopt": adopt}})


@pytest.mark.parametrize("start", ["earliest", 5, {}, {"timestamp": "2024-01-01T00:00:00"}, {"timestamp": "soon"}])
def test_the_model_rejects_an_invalid_start(start: Any) -> None:
    with pytest.raises(InvalidSpecError, match=r"IcebergTopic my-topic: spec\.ingestion\.startFrom"):
        topic({"ingestion": {"startFrom": start}})


def test_a_schema_without_fields_is_raw() -> None:
    assert (topic().record_schema().format, topic().record_schema().raw_as) == ("Raw", "Binary")
    assert topic({"schema": {"raw": "String"}}).record_schema().raw_as == "String"


def test_a_schema_with_fields_is_json() -> None:
    schema = topic(
        {
            "schema": {
                "format": "Json",
                "unknownFields": "DeadLetter",
                "fields": [
                    {"name": "a", "type": " Decimal(10,2)", "required": True, "doc": "amount"},
                    {"name": "b", "type": "list<struct<x:int>>"},
                    {"name": "c", "type": "map<string,timestamp>", "epoch": "s"},
                ],
            }
        }
    ).record_schema()
    assert schema.unknown_fields == "DeadLetter"
    assert schema.fields == (
        Column(name="a", type="decimal(10, 2)", required=True, doc="amount"),
        Column(name="b", type="list<struct<x: int>>"),
        Column(name="c", type="map<string, timestamp>", epoch="s"),
    )


def test_other_members_of_json_records_have_a_column() -> None:
    spec = {
        "format": "Json",
        "fields": [{"name": "a", "type": "int"}],
        "unknownFields": "Keep",
        "unknownFieldsColumn": "others",
    }
    schema = topic({"schema": spec}).record_schema()
    assert [(column.name, column.type) for column in rows.schema_columns(schema)] == [
        ("a", "int"),
        ("others", "variant"),
    ]
    assert (schema.unknown_fields, schema.fields) == ("Ignore", (Column(name="a", type="int"),))
    kept = topic({"schema": {**spec, "columns": [{"name": "b", "from": "$.a"}], "otherFields": "Keep"}}).record_schema()
    assert [column.name for column in rows.other_columns(kept)] == ["others"]


def test_other_members_of_json_records_with_a_registry_have_a_column() -> None:
    spec = {
        "format": "Json",
        "registry": {"name": "main"},
        "unknownFields": "Keep",
        "unknownFieldsColumn": "others",
    }
    wanted = topic({"schema": spec, "table": {"formatVersion": 3}}).record_schema()
    text = '{"type": "object", "properties": {"id": {"type": "integer"}, "order-id": {"type": "string"}}}'
    found = with_columns(wanted.model_copy(update={"text": text}), "subject orders-value")
    assert [(column.name, column.type) for column in rows.schema_columns(found)] == [
        ("id", "long"),
        ("others", "variant"),
    ]
    taken = wanted.model_copy(update={"text": text.replace("id", "Others")})
    with pytest.raises(
        InvalidSpecError, match="subject s: field Others: spec.schema.unknownFieldsColumn has this name"
    ):
        with_columns(taken, "subject s")
    reserved = topic({"schema": {**spec, "unknownFieldsColumn": "_kafka_x"}, "table": {"formatVersion": 3}})
    with pytest.raises(InvalidSpecError, match="names that start with _kafka are Kafka's columns"):
        reserved.record_schema()


@pytest.mark.parametrize(
    ("name", "problem"),
    [("A", "A: field a has this name"), ("_kafka_x", "_kafka_x: names that start with _kafka are Kafka's")],
)
def test_the_column_of_other_members_has_a_name_of_its_own(name: str, problem: str) -> None:
    spec = {
        "format": "Json",
        "fields": [{"name": "a", "type": "int"}],
        "unknownFields": "Keep",
        "unknownFieldsColumn": name,
    }
    with pytest.raises(InvalidSpecError, match=f"spec.schema.unknownFieldsColumn: {problem}"):
        topic({"schema": spec}).record_schema()


def keyed(columns: str, *fields: dict[str, Any]) -> Any:
    key: dict[str, Any] = {"columns": columns, **({"fields": fields} if fields else {})}
    return topic({"schema": {"format": "Json", "fields": [{"name": "a", "type": "int"}], "key": key}})


def test_a_key_has_columns_of_its_own() -> None:
    field = {"name": "id", "type": "long", "required": True}
    flat = keyed("Flat", field).row_schema().key
    assert flat is not None
    assert [(column.name, column.type, column.required) for column in rows.key_columns(flat)] == [
        ("key_id", "long", True)
    ]
    struct = keyed("Struct", field, {"name": "at", "type": "timestamp", "epoch": "s"}).row_schema().key
    assert [column.type for column in rows.key_columns(struct)] == ["struct<id: long, at: timestamp>"]
    assert [column.type for column in rows.key_columns(keyed("Binary").row_schema().key)] == ["binary"]
    assert keyed("None").row_schema().key is None


@pytest.mark.parametrize("framing", ["None", "Registry"])
def test_a_text_says_whether_keys_have_the_bytes_of_a_registry(framing: str) -> None:
    key = {"columns": "Flat", "format": "Avro", "text": '"long"', "framing": framing}
    of_values = {"format": "Json", "fields": [{"name": "a", "type": "int"}]}
    found = topic({"schema": {**of_values, "key": key}}).row_schema().key
    assert found is not None
    assert found.record_schema.framing == framing
    assert [(column.name, column.type) for column in rows.key_columns(found)] == [("key_value", "long")]


@pytest.mark.parametrize(
    ("columns", "fields", "problem"),
    [
        ("Flat", [("id", "strin")], "spec.schema.key.fields: id: type 'strin', character 1"),
        ("Flat", [("id", "int"), ("ID", "int")], "spec.schema.key.fields: id and ID differ only in case"),
        ("Struct", [("at", "list<time>")], "spec.schema.key.fields: the type time is not allowed in a key; use string"),
        ("Struct", [("deep", "list<" * 15 + "int" + ">" * 15)], "has more than 16 levels"),
    ],
)
def test_a_wrong_field_of_a_key_is_named(columns: str, fields: list[tuple[str, str]], problem: str) -> None:
    with pytest.raises(InvalidSpecError, match=re.escape(problem)):
        keyed(columns, *({"name": name, "type": kind} for name, kind in fields)).row_schema()


AVRO = '{"type": "record", "name": "R", "fields": [{"name": "%s", "type": ["null", "long"], "doc": "d"}]}'


@pytest.mark.parametrize("framing", ["None", "Registry"])
def test_a_schema_with_a_text_is_avro(framing: str) -> None:
    schema = topic({"schema": {"format": "Avro", "text": AVRO % "a", "framing": framing}}).record_schema()
    assert (schema.format, schema.text, schema.framing) == ("Avro", AVRO % "a", framing)
    assert schema.fields == (Column(name="a", type="long", doc="d"),)


def test_a_protobuf_schema_has_no_columns_before_it_is_compiled() -> None:
    spec = {"format": "Protobuf", "text": "message", "message": "shop.Order", "framing": "Registry"}
    schema = topic({"schema": spec}).record_schema()
    assert (schema.format, schema.text, schema.message, schema.framing) == (
        "Protobuf",
        "message",
        "shop.Order",
        "Registry",
    )
    assert (schema.fields, schema.has_found_columns) == ((), True)


def avro_text(*fields: tuple[str, Any]) -> str:
    return json.dumps(
        {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    )


@pytest.mark.parametrize(
    "text",
    [
        avro_text(*((f"f{number}", "int") for number in range(1001))),
        avro_text(
            (
                "f",
                {
                    "type": "record",
                    "name": "W",
                    "fields": [{"name": "x" * 120 + str(n), "type": "int"} for n in range(90)],
                },
            ),
            *((f"f{number}", "W") for number in range(90)),
        ),
    ],
    ids=["columns", "bytes"],
)
def test_an_avro_schema_too_large_for_a_contract_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpecError, match="a topic has at most (1000|700000 bytes); remove fields") as refused:
        topic({"schema": {"format": "Avro", "text": text}}).record_schema()
    assert refused.value.reason == Reason.BAD_SCHEMA


@pytest.mark.parametrize(
    ("text", "problem"),
    [("{}", "the type is an object without"), (AVRO % "_kafka", "field _kafka: names that start with _kafka")],
)
def test_a_bad_avro_schema_names_the_cause(text: str, problem: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        topic({"schema": {"format": "Avro", "text": text}}).record_schema()
    assert str(refused.value).startswith(f"spec.schema.text: {problem}")
    assert refused.value.reason == Reason.BAD_SCHEMA


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            [{"name": "a", "type": "number"}],
            "a: type 'number', character 1: 'number' is not a type; did you mean decimal?",
        ),
        ([{"name": "a", "type": "int"}, {"name": "A", "type": "int"}], "a and A differ only in case"),
        ([{"name": "a", "type": "int"}, {"name": "a", "type": "int"}], "two fields have the same name"),
        (
            [{"name": "a", "type": "long", "epoch": "s"}],
            "a: epoch is for timestamps, and the type is long",
        ),
        (
            [{"name": "a", "type": "int", "default": "x"}],
            "a: the default 'x' is not a value of the type int; correct it",
        ),
        (
            [{"name": "a", "type": "time", "default": "x"}],
            "a: a field of type time cannot have a default; choose one of",
        ),
        ([{"name": "_kafka", "type": "int"}], "_kafka: names that start with _kafka"),
        ([{"name": "_kafka_offset", "type": "int"}], "_kafka_offset: names that start with _kafka"),
    ],
)
def test_a_bad_schema_names_the_field(fields: list[dict[str, Any]], problem: str) -> None:
    wrong = topic({"schema": {"format": "Json", "fields": fields}})
    with pytest.raises(InvalidSpecError) as refused:
        wrong.record_schema()
    assert str(refused.value).startswith(f"spec.schema.fields: {problem}")
    assert refused.value.reason == Reason.BAD_SCHEMA
    assert wrong.table_target("lake").name == "my_topic", "a table is claimed under its name, whatever its columns"


RENAMED = [{"name": "b", "type": "struct<c: int>"}, {"name": "d", "type": "int"}]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("a", "a", "a rename changes the last part of a path, and nothing else"),
        ("x.a", "b.c", "a rename changes the last part of a path, and nothing else"),
        ("a", "b-c", "a name has letters, digits and _"),
        ("_kafka.key", "_kafka.k", "names that start with _kafka are reserved"),
        ("a", "_kafka_a", "names that start with _kafka are reserved"),
        ("a", "gone", "the schema has no field gone; add it, or remove the rename"),
        ("b.a", "b.gone", "the schema has no field b.gone"),
        ("d", "b", "the schema has both fields; remove d from it"),
    ],
)
def test_a_bad_rename_names_the_path(old: str, new: str, problem: str) -> None:
    renames = [{"from": old, "to": new}]
    with pytest.raises(InvalidSpecError) as refused:
        topic({"schema": {"format": "Json", "fields": RENAMED, "renames": renames}}).record_schema()
    assert str(refused.value).startswith(f"spec.schema.renames: from {old} to {new}: {problem}")
    assert refused.value.reason == Reason.BAD_SCHEMA


def test_a_schema_has_the_renames_of_the_spec_and_of_aliases() -> None:
    renames = [{"from": "a", "to": "b"}, {"from": "b.x", "to": "b.c"}]
    found = topic({"schema": {"format": "Json", "fields": RENAMED, "renames": renames}}).record_schema()
    assert [(each.old, each.new, each.by_schema) for each in found.renames] == [
        ("a", "b", False),
        ("b.x", "b.c", False),
    ]
    text = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}, {"name": "c", "type": "int", "aliases": ["e"]}]}'
    schema = {"format": "Avro", "text": text, "renames": [{"from": "a", "to": "b"}]}
    avro = topic({"schema": schema}).record_schema()
    assert [column.name for column in avro.fields] == ["b", "c"]
    assert [(each.old, each.new, each.by_schema) for each in avro.renames] == [("a", "b", False), ("e", "c", True)]


def test_a_table_name_may_not_end_like_a_dead_letter_table() -> None:
    with pytest.raises(
        InvalidSpecError, match=r"flights__dlq: .* create this IcebergTopic again with another table\.name"
    ) as refused:
        topic(name="flights--dlq").table_target("lake")
    assert refused.value.reason == Reason.RESOURCE_CONFLICT
    assert topic({"table": {"name": "other"}}, name="flights--dlq").table_target("lake").name == "other"


def test_unknown_fields_of_a_newer_operator_are_ignored() -> None:
    newer = {
        "metadata": {"name": "a", "managedFields": []},
        "spec": {"later": 1, "table": {"later": 2}},
        "status": {"later": 3},
    }
    assert IcebergTopic.parse(newer).topic_name == "a"


def test_every_wrong_field_is_named() -> None:
    with pytest.raises(InvalidSpecError) as refused:
        topic({"partitions": "many", "table": {"formatVersion": 1}})
    assert str(refused.value).startswith("IcebergTopic my-topic: spec.partitions: ")
    assert "spec.table.formatVersion: " in str(refused.value)


@pytest.mark.parametrize("manifest", [{}, {"metadata": None}, {"metadata": {"name": "a"}, "spec": []}])
def test_other_documents_are_rejected(manifest: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpecError, match="IcebergTopic"):
        IcebergTopic.parse(manifest)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_each_sample_has_a_valid_topic_and_table(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# "), "a sample begins with an explanation"
    for manifest in yaml.safe_load_all(text):
        sample = IcebergTopic.parse(manifest)
        assert (sample.metadata.namespace, manifest["kind"]) == ("demo", "IcebergTopic")
        assert sample.record_schema().format == (
            "Raw" if sample.spec.record_schema is None else sample.spec.record_schema.format or "Raw"
        )
        assert sample.table_target("lake").catalog == "lake"


def test_samples_share_no_topic_and_only_shared_tables() -> None:
    samples = [IcebergTopic.parse(yaml.safe_load(path.read_text())) for path in SAMPLES]
    assert len(samples) >= 8
    assert len({sample.topic_name for sample in samples}) == len(samples)
    targets = [sample.table_target("lake") for sample in samples]
    alone = {target.identifier for target in targets if not target.shared}
    shared = {target.identifier for target in targets if target.shared}
    assert len(alone) == sum(not target.shared for target in targets)
    assert shared == {"lake.demo.sales"}
    assert not alone & shared


def test_a_status_is_written_as_it_was_read() -> None:
    status: dict[str, Any] = {
        "observedGeneration": 2,
        "topicId": "x",
        "table": {"identifier": "lake.a.b"},
        "ingestion": {"haltedAt": {"partition": 1, "offset": 5}},
    }
    assert (
        topic(**status).status.model_dump(mode="json", by_alias=True, exclude_none=True, exclude_defaults=True)
        == status
    )


def test_nanoseconds_are_kept_on_demand() -> None:
    text = '{"type": "record", "name": "R", "fields": [{"name": "at", "type": {"type": "long", "logicalType": "timestamp-nanos"}}]}'
    kept = topic({"schema": {"format": "Avro", "text": text, "nanoseconds": "Keep"}}).record_schema()
    assert (kept.nanoseconds, kept.fields[0].type) == (True, "timestamptz_ns")
    assert topic({"schema": {"format": "Avro", "text": text}}).record_schema().fields[0].type == "long"
    for form in ("Avro", "Protobuf"):
        registry = topic(
            {"schema": {"format": form, "registry": {"name": "main"}, "nanoseconds": "Keep"}}
        ).record_schema()
        assert registry.nanoseconds


def test_times_of_json_are_truncated_on_demand() -> None:
    for given in ({"fields": [{"name": "at", "type": "timestamptz"}]}, {"registry": {"name": "main"}}):
        assert topic({"schema": {"format": "Json", **given, "nanoseconds": "Truncate"}}).record_schema().truncate_times
        assert not topic({"schema": {"format": "Json", **given}}).record_schema().truncate_times
        for of_key in (
            {"fields": [{"name": "at", "type": "timestamp"}]},
            {"format": "Json", "registry": {"name": "main"}},
        ):
            key = {"columns": "Struct", **of_key}
            for setting, truncates in (("Truncate", True), ("Ignore", False)):
                schema = {"format": "Json", **given, "nanoseconds": setting, "key": key}
                found = topic({"schema": schema}).row_schema().key
                assert found is not None
                assert found.record_schema.truncate_times is truncates


def test_the_columns_of_a_text_are_parsed_once_and_follow_each_change() -> None:
    schema = {"format": "Avro", "text": AVRO % "a", "gate": "Decode"}
    parsed = topic({"schema": schema}).record_schema().fields
    assert topic({"schema": schema}).record_schema().fields is parsed
    renamed = topic({"schema": {**schema, "renames": [{"from": parsed[0].name, "to": "b"}]}})
    assert [field.name for field in renamed.record_schema().fields] == ["b"]
    assert renamed.topic_configs != topic({"schema": schema}).topic_configs
