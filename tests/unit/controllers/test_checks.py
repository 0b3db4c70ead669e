"""Each way in which a spec is rejected, with its reason, and specs that pass."""

from dataclasses import replace
from typing import Any

import pytest

from firn.model.conditions import Reason
from firn.model.jobs import Column, RecordSchema, TableTarget
from firn_controllers.iceberg_topic import checks
from firn_controllers.iceberg_topic.observed import ObservedTopic
from tests import gen


def refused(observed: ObservedTopic) -> str | None:
    failure = checks.first_failure(observed)
    return failure.reason if failure else None


def rules(*checks: str) -> dict[str, Any]:
    return {"quality": {"rules": [{"name": f"r{number}", "check": check} for number, check in enumerate(checks)]}}


def fields(*columns: tuple[str, str]) -> dict[str, Any]:
    return {"format": "Json", "fields": [{"name": name, "type": kind} for name, kind in columns]}


@pytest.mark.parametrize(
    ("spec", "reason", "text"),
    [
        pytest.param({"profile": "nope"}, Reason.PROFILE_NOT_FOUND, "classic, outside", id="a missing profile"),
        pytest.param({"ingestion": {"group": "nope"}}, Reason.GROUP_NOT_FOUND, "big, default", id="a missing group"),
        pytest.param({"table": {"catalog": "nope"}}, Reason.CATALOG_NOT_FOUND, "lake, private", id="a missing catalog"),
        pytest.param(
            {"table": {"catalog": "private"}},
            Reason.NOT_ALLOWED,
            "catalog private",
            id="a catalog of another namespace",
        ),
        pytest.param({"schema": fields(("a", "strin"))}, Reason.BAD_SCHEMA, "strin", id="an unknown type"),
        pytest.param(
            {"schema": fields(("a", "timestamp_ns"))},
            Reason.BAD_SCHEMA,
            "timestamp_ns",
            id="a type of format version 3",
        ),
        pytest.param(
            {"schema": fields(("a", "int"), ("a", "int"))}, Reason.BAD_SCHEMA, "same name", id="a field twice"
        ),
        pytest.param(
            {"schema": fields(("a", "int"), ("A", "int"))},
            Reason.BAD_SCHEMA,
            "case",
            id="fields that differ only in case",
        ),
        pytest.param({"schema": fields(("_kafka_x", "int"))}, Reason.BAD_SCHEMA, "_kafka", id="a reserved name"),
        pytest.param(
            {"schema": fields(("a", "list<timestamp_ns>"))},
            Reason.BAD_SCHEMA,
            "column a has the type timestamp_ns, which tables of format version 2 do not have; set spec.table.formatVersion: 3",
            id="a type of format version 3",
        ),
        pytest.param(
            {"schema": {"format": "Json", "fields": [{"name": "a", "type": "int", "default": "1"}]}},
            Reason.BAD_SCHEMA,
            "spec.schema.fields: a: tables of format version 2 have no defaults; set spec.table.formatVersion: 3",
            id="a default without format version 3",
        ),
        pytest.param(
            {"topicName": "orders__dlq"},
            Reason.RESOURCE_CONFLICT,
            "another table.name",
            id="the name of a dead-letter table",
        ),
        pytest.param(
            {"schema": {**fields(("Key", "int")), "key": {"columns": "Binary"}}},
            Reason.BAD_SCHEMA,
            "spec.schema.key: field Key of the values has the name of column key of the key",
            id="a field with the name of the key",
        ),
        pytest.param(
            {"config": {"Retention Ms": "1"}},
            Reason.BAD_TOPIC_CONFIG,
            "retention.ms",
            id="an invalid config name",
        ),
        pytest.param(
            {"config": {"firn.schema.gate": "Id"}},
            Reason.BAD_TOPIC_CONFIG,
            "set spec.schema.gate",
            id="a config of the operator",
        ),
        pytest.param(
            {"config": {"retention.ms": " "}}, Reason.BAD_TOPIC_CONFIG, "retention.ms", id="a config without a value"
        ),
        pytest.param(
            {"table": {"partitionBy": ["month(nope)"]}},
            Reason.UNKNOWN_COLUMN,
            "nope",
            id="partitioned by a missing column",
        ),
        pytest.param(
            {"table": {"partitionBy": ["day(att)"]}},
            Reason.UNKNOWN_COLUMN,
            "; did you mean at?",
            id="a misspelt column",
        ),
        pytest.param(
            {"table": {"partitionBy": ["place.street"]}},
            Reason.UNKNOWN_COLUMN,
            "place",
            id="partitioned by a missing member",
        ),
        pytest.param({"table": {"partitionBy": ["week(at)"]}}, Reason.BAD_TRANSFORM, "week", id="an unknown transform"),
        pytest.param({"table": {"partitionBy": ["month(id)"]}}, Reason.BAD_TRANSFORM, "long", id="a month of a number"),
        pytest.param(
            {"table": {"partitionBy": ["bucket(4, delay)"]}}, Reason.BAD_TRANSFORM, "double", id="a bucket of a double"
        ),
        pytest.param(
            {"table": {"partitionBy": ["truncate(4, at)"]}}, Reason.BAD_TRANSFORM, "timestamptz", id="a truncated time"
        ),
        pytest.param(
            {"table": {"partitionBy": ["place"]}}, Reason.BAD_TRANSFORM, "struct", id="partitioned by a struct"
        ),
        pytest.param({"table": {"partitionBy": ["tags"]}}, Reason.BAD_TRANSFORM, "list", id="partitioned by a list"),
        pytest.param(
            {"table": {"partitionBy": ["day(at)", "month(at)"]}},
            Reason.BAD_TRANSFORM,
            "keep one",
            id="two time transforms of a column",
        ),
        pytest.param(
            {"table": {"partitionBy": ["bucket(4, id)", "bucket(8, id)"]}},
            Reason.BAD_TRANSFORM,
            "id_bucket",
            id="two partition fields of one name",
        ),
        pytest.param(
            {"schema": fields(("at", "date"), ("at_day", "int")), "table": {"partitionBy": ["day(at)"]}},
            Reason.BAD_TRANSFORM,
            "at_day",
            id="a partition field with the name of a column",
        ),
        pytest.param(
            {
                "schema": {
                    "format": "Avro",
                    "text": '{"type": "record", "name": "R", "fields": [{"name": "x", "type": "double"}]}',
                },
                "table": {"partitionBy": ["x"]},
            },
            Reason.BAD_TRANSFORM,
            "NaN",
            id="partitioned by a number that can be NaN",
        ),
        pytest.param(
            {"table": {"sortBy": ["nope desc"]}}, Reason.UNKNOWN_COLUMN, "nope", id="sorted by a missing column"
        ),
        pytest.param(
            {"table": {"sortBy": ["id sideways"]}},
            Reason.BAD_TRANSFORM,
            "sideways",
            id="sorted in an unknown direction",
        ),
        pytest.param({"table": {"sortBy": ["tags"]}}, Reason.BAD_TRANSFORM, "list", id="sorted by a list"),
        pytest.param(
            rules("delai > 1"),
            Reason.UNKNOWN_COLUMN,
            "spec.quality.rules: rule r0: check 'delai > 1', character 1: 'delai' is not a column of the table; choose one of delay,",
            id="a rule about a missing column",
        ),
        pytest.param(
            rules("id > 1", "id > 'x'"),
            Reason.BAD_RULE,
            "rule r1: check",
            id="a rule that compares a number with a text",
        ),
        pytest.param(rules("id >"), Reason.BAD_RULE, "character 5: expected", id="a rule that ends too early"),
        pytest.param(
            rules("id > 1 and tags is null and place.city not matches '(?=x)'"),
            Reason.BAD_RULE,
            "character 40: '(?=x)' is not a pattern of RE2: invalid perl operator: (?=; correct the pattern",
            id="a rule with a pattern that RE2 does not have",
        ),
        pytest.param(
            {"quality": {"rules": [{"name": "a", "check": "id > 1"}, {"name": "a", "check": "id > 2"}]}},
            Reason.BAD_RULE,
            "two rules have the name a",
            id="two rules of one name",
        ),
    ],
)
def test_an_invalid_spec_has_its_reason(spec: dict[str, Any], reason: Reason, text: str) -> None:
    failure = checks.first_failure(gen.observed(gen.topic(**spec)))
    assert failure is not None
    assert failure.reason == reason
    assert text in failure.message


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="all defaults"),
        pytest.param({"schema": None}, id="raw"),
        pytest.param({"schema": {"raw": "String"}, "table": {"partitionBy": ["bucket(4, key)"]}}, id="raw text"),
        pytest.param(
            {"table": {"partitionBy": ["month(at)", "bucket(8, carrier)", "truncate(3, price)"]}}, id="transforms"
        ),
        pytest.param({"table": {"partitionBy": ["day(_kafka.timestamp)", "_kafka.partition"]}}, id="Kafka's members"),
        pytest.param(
            {"table": {"metadataColumns": "Flat", "partitionBy": ["hour(_kafka_timestamp)"]}}, id="Kafka's flat columns"
        ),
        pytest.param({"table": {"partitionBy": ["place.city", "void(id)"]}}, id="a member of a struct"),
        pytest.param({"table": {"sortBy": ["at desc nulls last", "bucket(8, carrier)"]}}, id="sorted"),
        pytest.param({"profile": "outside"}, id="a profile for this namespace"),
        pytest.param({"config": {"retention.ms": "-1"}}, id="a config"),
    ],
)
def test_a_valid_spec_passes(spec: dict[str, Any]) -> None:
    assert refused(gen.observed(gen.topic(**spec))) is None


@pytest.mark.parametrize(
    ("spec", "step"),
    [
        ({"profile": "outside"}, "or create this IcebergTopic again with another spec.profile"),
        ({"ingestion": {"group": "big"}}, "or set another spec.ingestion.group"),
        ({"table": {"catalog": "private"}}, "or create this IcebergTopic again with another spec.table.catalog"),
    ],
)
def test_resources_for_other_namespaces_are_not_allowed(spec: dict[str, Any], step: str) -> None:
    failure = checks.first_failure(gen.observed(gen.topic(namespace="elsewhere", **spec)))
    assert failure is not None
    assert failure.reason == Reason.NOT_ALLOWED
    assert failure.message.endswith(step)


@pytest.mark.parametrize("rival_field", ["topic_rival", "table_rival"])
def test_an_older_resource_keeps_its_topic_and_table(rival_field: str) -> None:
    rival: dict[str, Any] = {rival_field: gen.observed(gen.topic("older")).entry}
    failure = checks.first_failure(gen.observed(**rival))
    assert failure is not None
    assert failure.reason == Reason.RESOURCE_CONFLICT
    assert "demo/older" in failure.message


TARGET = TableTarget(catalog="lake", namespace="demo", name="flights")


def after(*columns: Column, before: tuple[Column, ...]) -> str | None:
    """Return the failure of a spec with ``columns`` while ingestion runs with ``before``, or None."""
    observed = gen.observed(job=True)
    job = observed.job
    assert job is not None
    old = job.job.model_copy(update={"record_schema": RecordSchema(format="Json", fields=before)})
    new = RecordSchema(format="Json", fields=columns)
    return refused(replace(observed, schema=new, job=replace(job, job=old)))


INT, LONG = Column(name="n", type="int"), Column(name="n", type="long")


@pytest.mark.parametrize(
    ("before", "now", "allowed"),
    [
        pytest.param(INT, LONG, True, id="int to long"),
        pytest.param(LONG, INT, False, id="long to int"),
        pytest.param(Column(name="n", type="float"), Column(name="n", type="double"), True, id="float to double"),
        pytest.param(
            Column(name="n", type="decimal(9, 2)"), Column(name="n", type="decimal(12, 2)"), True, id="a longer decimal"
        ),
        pytest.param(
            Column(name="n", type="decimal(9, 2)"), Column(name="n", type="decimal(12, 3)"), False, id="another scale"
        ),
        pytest.param(INT, Column(name="n", type="string"), False, id="int to string"),
        pytest.param(Column(name="n", type="int", required=True), INT, True, id="required to optional"),
        pytest.param(INT, Column(name="n", type="int", required=True), False, id="optional to required"),
        pytest.param(INT, Column(name="n", type="int", doc="a number"), True, id="a doc"),
        pytest.param(INT, Column(name="m", type="int"), False, id="renamed: removed and added"),
        pytest.param(
            Column(name="n", type="struct<a: int>"),
            Column(name="n", type="struct<b: string, a: long>"),
            True,
            id="a wider struct",
        ),
        pytest.param(
            Column(name="n", type="struct<a: int, b: int>"),
            Column(name="n", type="struct<a: int>"),
            False,
            id="a narrower struct",
        ),
        pytest.param(
            Column(name="n", type="list<int>"), Column(name="n", type="list<long>"), True, id="a wider element"
        ),
        pytest.param(
            Column(name="n", type="map<int, int>"), Column(name="n", type="map<long, int>"), False, id="another key"
        ),
    ],
)
def test_a_schema_change_is_allowed_or_rejected(before: Column, now: Column, allowed: bool) -> None:
    assert after(now, before=(before,)) == (None if allowed else Reason.INCOMPATIBLE_SCHEMA)


def test_a_field_may_be_added_unless_it_is_required() -> None:
    assert after(INT, Column(name="m", type="int"), before=(INT,)) is None
    assert after(INT, Column(name="m", type="int", required=True), before=(INT,)) == Reason.INCOMPATIBLE_SCHEMA


def test_a_table_of_fields_cannot_become_raw() -> None:
    observed = gen.observed(gen.topic(schema=None), job=True)
    job = observed.job
    assert job is not None
    old = job.job.model_copy(update={"record_schema": RecordSchema(format="Json", fields=(INT,))})
    assert refused(replace(observed, job=replace(job, job=old))) == Reason.INCOMPATIBLE_SCHEMA


def test_the_first_check_that_fails_is_the_reason() -> None:
    manifest = gen.topic(profile="nope", ingestion={"group": "nope"}, schema=fields(("a", "strin")))
    assert refused(gen.observed(manifest)) == Reason.PROFILE_NOT_FOUND
