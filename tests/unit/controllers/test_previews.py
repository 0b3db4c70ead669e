"""The effects that a preview lists for pairs of resources, and that they agree with the steps of the reconciler."""

import json
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import yaml

from firn.model import names
from firn.model.errors import NotReadyError
from firn_controllers.cache.policies import Kind, PolicyCache, Resolution, policy_entry
from firn_controllers.cache.topics import topic_entry
from firn_controllers.iceberg_topic import checks
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.policies.outcome import PolicyBinding, TopicMaintenance
from firn_controllers.ports import Manifest
from firn_controllers.preview import policies
from firn_controllers.preview.effects import Effect, EffectKind
from firn_controllers.preview.fields import differences
from firn_controllers.preview.topics import preview
from tests import gen, markdown
from tests.fakes.world import World

FIELDS: list[dict[str, Any]] = [{"name": "id", "type": "int", "required": True}, {"name": "at", "type": "timestamptz"}]
STATUS = {
    "observedGeneration": 1,
    "profile": "classic",
    "topicId": "topic-id-1",
    "partitions": 3,
    "table": {"identifier": "lake.demo.orders", "uuid": "table-1"},
    "ingestion": {"group": "default"},
}


def json_schema(*changes: dict[str, Any], **options: Any) -> Manifest:
    return {"format": "Json", "fields": [*FIELDS, *changes], **options}


def field(position: int, **changes: Any) -> Manifest:
    return {
        "format": "Json",
        "fields": [{**each, **changes} if n == position else each for n, each in enumerate(FIELDS)],
    }


def live(*modifiers: gen.Modifier, **spec: Any) -> ObservedTopic:
    """Return a topic whose Kafka topic, table and contract follow its spec."""
    spec = {"partitions": 3, "schema": json_schema(), **spec}
    return gen.observed(gen.topic("orders", gen.with_status(STATUS), *modifiers, **spec), job=True)


def wanted(*modifiers: gen.Modifier, **spec: Any) -> ObservedTopic:
    """Return the same topic after a manifest is applied."""
    spec = {"partitions": 3, "schema": json_schema(), **spec}
    manifest = gen.topic("orders", gen.with_status(STATUS), gen.generation(2), *modifiers, **spec)
    return gen.observed(manifest, job=live().job)


def labelled(**labels: str) -> gen.Modifier:
    return lambda manifest: manifest["metadata"].update(labels=labels)


def governed(observed: ObservedTopic, policy: Manifest | None) -> ObservedTopic:
    kind: Kind = policy["kind"] if policy is not None else "CompactionPolicy"
    entry = policy_entry(policy, gen.config()) if policy is not None else None
    resolution = Resolution(entry, "Selected") if entry is not None else Resolution()
    return replace(observed, maintenance=TopicMaintenance({kind: PolicyBinding(resolution)}))


RULE = {"name": "positive", "check": "id > 0"}

AVRO = {"format": "Avro", "registry": {"name": "main"}}

CHANGES: list[tuple[Manifest, str]] = [
    ({"partitions": 6}, "changed spec.partitions 3 6 Kafka topic orders grows"),
    ({"config": {"retention.ms": "2"}}, "changed spec.config.retention.ms  2 Kafka topic orders: retention.ms is set to 2"),
    ({"schema": json_schema({"name": "note", "type": "string"})}, "changed spec.schema.fields[note]   table lake.demo.orders gets column note"),
    ({"schema": field(0, type="long")}, "changed spec.schema.fields[id].type int long column id of table lake.demo.orders changes its type"),
    ({"schema": field(0, required=False)}, "changed spec.schema.fields[id].required true false column id of table lake.demo.orders becomes optional"),
    ({"schema": field(0, doc="key")}, "changed spec.schema.fields[id].doc  key the comment of column id changes"),
    ({"schema": field(1, epoch="s")}, "changed spec.schema.fields[at].epoch ms s integers in at count in s"),
    (
        {"schema": field(0, name="number") | {"renames": [{"from": "id", "to": "number"}]}},
        "changed spec.schema.renames id number column id of table lake.demo.orders is renamed to number",
    ),
    ({"schema": json_schema(unknownFields="DeadLetter")}, "changed spec.schema.unknownFields Ignore DeadLetter later records with a member"),
    ({"schema": json_schema(key={"columns": "Binary"})}, "changed spec.schema.key.columns  Binary later rows have"),
    ({"table": {"partitionBy": ["day(at)"]}}, 'changed spec.table.partitionBy  ["day(at)"] new files of table lake.demo.orders get'),
    ({"table": {"sortBy": ["id"]}}, 'changed spec.table.sortBy  ["id"] new files of table lake.demo.orders get this sort order'),
    ({"table": {"formatVersion": 3}}, "changed spec.table.formatVersion 2 3 table lake.demo.orders gets format version 3, which cannot be undone"),
    ({"table": {"properties": {"a.b": "c"}}}, "changed spec.table.properties.a.b  c table lake.demo.orders gets property a.b"),
    ({"ingestion": {"group": "big"}}, "restarted spec.ingestion.group default big ingestion moves to group big"),
    ({"ingestion": {"freshness": "5s"}}, "changed spec.ingestion.freshness 60s 5s records reach the table within 5s"),
    ({"ingestion": {"startFrom": "Latest"}}, "changed spec.ingestion.startFrom Earliest Latest no effect, because ingestion has begun"),
    ({"ingestion": {"onBadRecord": "Halt"}}, "changed spec.ingestion.onBadRecord DeadLetter Halt ingestion stops at the next record"),
    ({"ingestion": {"onBadRecord": "Skip"}}, "changed spec.ingestion.onBadRecord DeadLetter Skip later records that do not fit are counted"),
    ({"quality": {"rules": [RULE]}}, "changed spec.quality.rules  [{"),
    ({"suspend": True}, "changed spec.suspend false true ingestion stops; records wait in Kafka topic orders"),
    ({"deletionPolicy": {"topic": "Delete"}}, "changed spec.deletionPolicy.topic Retain Delete deleting this resource will delete Kafka topic"),
    ({"compactionPolicyRef": {"name": "nightly"}}, "changed spec.compactionPolicyRef.name  nightly"),
]  # fmt: skip
"""Changed parts of a spec, and the single effect of each."""


def test_a_default_is_listed() -> None:
    effects = preview(live(), wanted(schema=field(0, default="7"), table={"formatVersion": 3}))
    found = {effect.field: (effect.before, effect.after, effect.text) for effect in effects}
    text = "later records without id have this value in column id of table lake.demo.orders"
    assert found["spec.schema.fields[id].default"] == ("", "7", text)


def test_a_column_for_other_members_is_listed() -> None:
    spec = {"schema": json_schema(unknownFields="Keep", unknownFieldsColumn="others"), "table": {"formatVersion": 3}}
    effects = {effect.field: effect.text for effect in preview(live(), wanted(**spec))}
    assert effects["spec.schema.unknownFields"] == "members that are not in fields are in the variant of later rows"
    assert (
        effects["spec.schema.fields[others]"]
        == "table lake.demo.orders gets column others variant, which is null in earlier rows"
    )


@pytest.mark.parametrize(
    ("spec", "effect"), CHANGES, ids=[effect.split()[1] + str(n) for n, (_, effect) in enumerate(CHANGES)]
)
def test_a_changed_field_has_its_effect(spec: Manifest, effect: str) -> None:
    effects = preview(live(), wanted(**spec))
    assert len(effects) == 1, effects
    assert shown(effects[0]).startswith(effect)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"config": {"retention.ms": "2"}}, "retention.ms 2 is removed, and the brokers' default applies"),
        ({"table": {"partitionBy": ["day(at)"]}}, "the operator removes the partitioning of table lake.demo.orders"),
        ({"table": {"sortBy": ["id"]}}, "the operator removes the sort order of table lake.demo.orders"),
        ({"table": {"properties": {"a": "b"}}}, "table lake.demo.orders loses this property"),
        ({"quality": {"rules": [RULE]}}, "later records need not satisfy any rule"),
        ({"suspend": True}, "ingestion continues with the records that wait in Kafka topic orders"),
        ({"deletionPolicy": {"topic": "Delete"}}, "deleting this resource will keep Kafka topic orders"),
        ({"ingestion": {"onBadRecord": "Halt"}}, "later records that do not fit go to table lake.demo.orders__dlq"),
    ],
)
def test_a_value_that_is_removed_has_its_effect(spec: Manifest, words: str) -> None:
    before = live(**spec)
    (effect,) = preview(before, replace(wanted(), job=before.job))
    assert words in effect.text


@pytest.mark.parametrize(
    ("rules", "field", "words"),
    [
        (
            [{**RULE, "check": "id > 1"}],
            "[positive].check",
            "later records that fail rule positive go to table lake.demo.orders__dlq",
        ),
        ([{**RULE, "onFail": "Halt"}], "[positive].onFail", "later records that fail rule positive stop ingestion"),
        ([RULE, {"name": "at", "check": "at is not null", "onFail": "Count"}], "[at]", "rule at are counted, and land"),
        ([{**RULE, "name": "other"}, RULE], "[other]", "later records that fail rule other go to table"),
    ],
)
def test_a_changed_quality_rule_has_its_effect(rules: list[Manifest], field: str, words: str) -> None:
    before = live(quality={"rules": [RULE]})
    (effect,) = preview(before, replace(wanted(quality={"rules": rules}), job=before.job))
    assert effect.field == f"spec.quality.rules{field}"
    assert words in effect.text


def test_a_removed_quality_rule_and_the_rules_of_a_new_topic_are_shown() -> None:
    before = live(quality={"rules": [RULE, {**RULE, "name": "other"}]})
    (effect,) = preview(before, replace(wanted(quality={"rules": [RULE]}), job=before.job))
    assert effect.text == "later records need not satisfy rule other"
    effects = preview(None, gen.observed(gen.topic("orders", schema=json_schema(), quality={"rules": [RULE]})))
    assert "later records that fail rule positive go to table lake.demo.orders__dlq" in [each.text for each in effects]


def test_computed_columns_have_their_effects() -> None:
    same = [{"name": "id", "from": "$.id", "required": True}, {"name": "at", "from": "$.at"}]
    before = live(schema=json_schema(columns=same))
    assert preview(live(), wanted(schema=json_schema(columns=same))) == ()
    later = [same[0], {"name": "at", "from": "$.id", "type": "timestamptz", "epoch": "s"}, {"name": "k", "from": "key"}]
    after = replace(wanted(schema=json_schema(columns=later)), job=before.job)
    assert [shown(effect) for effect in preview(before, after)] == [
        "changed spec.schema.columns[k]   table lake.demo.orders gets column k string, which is null in earlier rows",
        "changed spec.schema.columns[at] $.at $.id in s column at of table lake.demo.orders is computed in another way in"
        " records that land later",
    ]


def test_a_digest_shows_its_salt() -> None:
    same: list[Manifest] = [
        {"name": "id", "from": "$.id", "required": True},
        {"name": "h", "from": "key", "with": "Sha256"},
    ]
    before = live(schema=json_schema(columns=same))
    config = gen.config(salts={"people": {"value": {"secret": "salts", "key": "people"}}})
    after = wanted(schema=json_schema(columns=[same[0], {**same[1], "salt": "people"}]))
    (effect,) = preview(before, replace(after, job=before.job, config=config))
    assert (effect.before, effect.after) == ("Sha256(key)", "Sha256(key, salt people)")


def shown(effect: Effect) -> str:
    return f"{effect.kind} {effect.field} {effect.before} {effect.after} {effect.text}"


def test_an_equal_manifest_has_no_effect() -> None:
    assert preview(live(), wanted()) == ()


def test_a_group_that_equals_the_default_has_no_effect() -> None:
    effects = preview(live(), wanted(ingestion={"group": "default"}))
    assert effects == ()


def avro(**types: str) -> Manifest:
    fields = [{"name": name, "type": kind} for name, kind in types.items()]
    return {"format": "Avro", "text": json.dumps({"type": "record", "name": "r", "fields": fields})}


def test_a_new_avro_schema_warns_about_records_that_have_not_landed() -> None:
    before = live(schema=avro(id="int", old="string"))
    after = replace(wanted(schema=avro(id="long", new="int")), job=before.job)
    effects = preview(before, after)
    assert [(effect.field, effect.text.partition(",")[0]) for effect in effects] == [
        ("spec.schema.text", "column id of table lake.demo.orders changes its type; data files stay as they are"),
        ("spec.schema.text", "table lake.demo.orders gets column new int"),
        ("spec.schema.text", "column old of table lake.demo.orders stays"),
        (
            "spec.schema.text",
            "the driver decodes every record that lands later with this schema; let all records of the old schema land first",
        ),
    ]


def registry(**changes: Any) -> Manifest:
    return {"format": "Avro", "registry": {"name": "main"}, **changes}


def test_the_treatment_of_incompatible_schemas_is_explained() -> None:
    config = gen.config(registries={"main": {"url": "http://registry"}})
    before, after = (
        replace(
            gen.observed(gen.topic("orders", gen.with_status(STATUS), schema=schema), config), schema=NotReadyError("x")
        )
        for schema in (registry(), registry(evolution={"incompatible": "DeadLetter"}))
    )
    (effect,) = preview(before, after)
    assert shown(effect).startswith("changed spec.schema.evolution.incompatible  DeadLetter records whose schema")


@pytest.mark.parametrize(
    ("later", "effect"),
    [
        (
            {"registry": {"name": "main", "idIn": "Header"}},
            "changed spec.schema.registry.idIn Payload Header later values name",
        ),
        (
            {"key": {"columns": "Flat", "format": "Avro", "registry": {"name": "main"}}},
            "changed spec.schema.key.registry.name   the driver decodes every key that lands later by this",
        ),
    ],
)
def test_ids_and_keys_of_a_registry_are_explained(later: dict[str, Any], effect: str) -> None:
    config = gen.config(registries={"main": {"url": "http://registry"}})
    key = {"columns": "Flat", "format": "Avro", "text": '{"type": "record", "name": "K", "fields": []}'}
    before, after = (
        replace(
            gen.observed(gen.topic("orders", gen.with_status(STATUS), schema=schema), config), schema=NotReadyError("x")
        )
        for schema in (registry(key=key), registry(**{"key": key, **later}))
    )
    assert any(shown(each).startswith(effect) for each in preview(before, after))


def test_a_gate_is_explained_once() -> None:
    config = gen.config(
        registries={"main": {"url": "http://registry"}},
        profiles={"classic": {}, "waves": gen.diskless(registries=["main"])},
    )
    schemas = registry(), registry(gate="Id")
    before, after = (
        replace(
            gen.observed(
                gen.topic("orders", gen.with_status({**STATUS, "profile": "waves"}), profile="waves", schema=schema),
                config,
            ),
            schema=NotReadyError("x"),
        )
        for schema in schemas
    )
    (effect,) = preview(before, after)
    assert shown(effect).startswith("changed spec.schema.gate None Id the brokers reject later batches with a record")
    (effect,) = preview(after, before)
    assert shown(effect).startswith("changed spec.schema.gate Id None the brokers accept any record")


def test_a_number_of_partitions_that_the_topic_has_is_no_effect() -> None:
    before = gen.observed(gen.topic("orders", gen.with_status(STATUS), schema=json_schema()), job=True)
    (effect,) = preview(before, wanted())
    assert effect.text == "no effect: Kafka topic orders has this already"


def test_a_new_topic_lists_topic_table_and_ingestion() -> None:
    policy = {"topic": "Delete", "table": "Delete"}
    after = gen.observed(
        gen.topic("orders", schema=json_schema(), partitions=4, config={"retention.ms": "1"}, deletionPolicy=policy)
    )
    effects = preview(None, after)
    assert [(str(effect.kind), effect.text) for effect in effects] == [
        ("created", "Kafka topic orders in profile classic with 4 partitions and retention.ms=1"),
        ("created", "table lake.demo.orders with columns id int, at timestamptz, and Kafka's"),
        ("created", "ingestion in group default within 60s, from Earliest"),
        ("changed", "deleting this resource will delete Kafka topic orders with its records"),
        ("changed", "deleting this resource will delete the table lake.demo.orders, its dead letters and their files"),
    ]


CONNECT = {"adopt": {"connect": {"group": "connect-x", "controlTopic": "control"}}}


def test_a_topic_that_continues_a_connector_adopts_its_topic_and_table() -> None:
    manifest = gen.topic("orders", partitions=3, schema=json_schema(), ingestion=CONNECT)
    found = {effect.field: f"{effect.kind} {effect.text}" for effect in preview(None, gen.observed(manifest))}
    assert found["spec.topicName"].startswith("changed Kafka topic orders of the connector is adopted")
    assert found["spec.table"].startswith(
        "changed table lake.demo.orders of the connector is adopted with columns id int"
    )
    ends = "; it continues where the connector with group connect-x ended, after it has stopped"
    assert found["spec.ingestion"].endswith(ends)
    assert "Earliest" not in found["spec.ingestion"]
    assert found["spec.topicName"].endswith("set its tenancy.adopt to Any")
    config = gen.config()
    profile = config.profiles["classic"]
    everything = profile.model_copy(update={"tenancy": profile.tenancy.model_copy(update={"adopt": "Any"})})
    wide = config.model_copy(update={"profiles": {**config.profiles, "classic": everything}})
    (effect,) = (each for each in preview(None, gen.observed(manifest, wide)) if each.field == "spec.topicName")
    assert "tenancy.adopt" not in effect.text


def test_a_connector_that_is_no_longer_named_is_not_continued() -> None:
    status = {key: value for key, value in STATUS.items() if key not in ("table", "ingestion")}
    before = gen.observed(
        gen.topic("orders", gen.with_status(status), partitions=3, schema=json_schema(), ingestion=CONNECT)
    )
    after = gen.observed(
        gen.topic("orders", gen.with_status(status), gen.generation(2), partitions=3, schema=json_schema())
    )
    texts = [effect.text for effect in preview(before, after) if effect.field.startswith("spec.ingestion.adopt")]
    waits = "ingestion begins at spec.ingestion.startFrom; with Earliest, it waits if a connector wrote table lake.demo.orders"
    assert texts
    assert set(texts) == {waits}


def test_a_topic_whose_first_spec_was_refused_is_created_by_the_next_one() -> None:
    before = gen.observed(gen.topic("orders", schema=json_schema(), ingestion={"group": "nowhere"}))
    after = gen.observed(gen.topic("orders", gen.generation(2), schema=json_schema()))
    kinds = [(effect.kind, effect.field) for effect in preview(before, after)]
    assert (EffectKind.CREATED, "spec.topicName") in kinds
    assert (EffectKind.CREATED, "spec.table") in kinds


def test_a_default_of_an_unknown_configuration_is_not_invented() -> None:
    effects = preview(None, gen.observed(gen.topic("orders", schema=json_schema())), without=checks.OF_CONFIGURATION)
    assert effects[0].text == "Kafka topic orders in profile classic with the profile's number of partitions"


def test_a_wide_table_names_its_first_columns() -> None:
    fields = [{"name": f"c{number}", "type": "int"} for number in range(30)]
    effects = preview(None, gen.observed(gen.topic("orders", schema={"format": "Json", "fields": fields})))
    assert "c11 int, 18 more, and Kafka's" in effects[1].text


def test_the_columns_of_a_subject_are_not_known() -> None:
    after = gen.observed(gen.topic("orders"))
    effects = preview(None, replace(after, schema=NotReadyError("not asked")))
    assert (
        effects[1].text
        == "table lake.demo.orders with the columns of the latest schema in the registry, or of the Protobuf message"
    )


REFUSALS = [
    ({"ingestion": {"group": "nowhere"}}, "spec.ingestion.group", "GroupNotFound"),
    ({"schema": field(0, type="string")}, "spec.schema", "IncompatibleSchema"),
    ({"schema": field(0, type="nothing")}, "spec.schema.fields", "BadSchema"),
    ({"partitions": 2}, "spec.partitions", "PartitionDecreaseRefused"),
    ({"table": {"partitionBy": ["day(id)"]}}, "spec.table.partitionBy", "BadTransform"),
    ({"config": {"Retention": "1"}}, "spec.config", "BadTopicConfig"),
]


@pytest.mark.parametrize(("spec", "path", "reason"), REFUSALS, ids=[reason for *_, reason in REFUSALS])
def test_a_refused_spec_has_no_other_effect(spec: Manifest, path: str, reason: str) -> None:
    (effect,) = preview(live(), wanted(suspend=True, **spec))
    assert (effect.kind, effect.field, effect.reason) == (EffectKind.REFUSED, path, reason)
    assert effect.text.count("ngestion continues") == (reason != "PartitionDecreaseRefused")


def test_checks_of_the_configuration_can_be_left_out() -> None:
    after = wanted(ingestion={"group": "nowhere"})
    assert preview(live(), after)[0].kind is EffectKind.REFUSED
    (effect,) = preview(live(), after, without=checks.OF_CONFIGURATION)
    assert effect.kind is EffectKind.RESTARTED
    assert {*checks.OF_CONFIGURATION} < {*checks.CHECKS}


def test_a_namespace_that_no_operator_watches_is_refused() -> None:
    after = replace(wanted(), config=gen.config(watchNamespaces=["vault"]))
    (effect,) = preview(live(), after)
    assert (effect.field, effect.reason) == ("metadata.namespace", "NotWatched")


def test_the_schema_in_force_counts_and_not_a_refused_one() -> None:
    refused = replace(live(schema=field(0, type="string")), job=live().job)
    effects = preview(refused, wanted(schema=json_schema({"name": "note", "type": "string"})))
    assert [effect.field for effect in effects] == ["spec.schema.fields[note]"]


@pytest.mark.parametrize(
    ("key", "value", "kind"),
    [
        (names.RESTART, "now", "restarted"),
        (names.RESUME, "skip:0:7", "restarted"),
        (names.RUN_NOW, "now", "rewritten"),
        (names.PAUSE, "true", "changed"),
        (names.ACKNOWLEDGE_LOSS, "1-x", "changed"),
        (names.FORCE_DELETION, "true", "changed"),
    ],
)
def test_a_new_annotation_has_its_effect(key: str, value: str, kind: str) -> None:
    (effect,) = preview(live(), wanted(gen.annotated(key, value)))
    assert (str(effect.kind), effect.field, effect.after) == (kind, f"metadata.annotations[{key}]", value)
    both = gen.annotated(key, value)
    assert preview(live(both), wanted(both)) == ()


def test_a_misspelt_annotation_is_reported() -> None:
    (effect,) = preview(live(), wanted(gen.annotated("firn.dev/resum", "skip")))
    assert "did you mean firn.dev/resume?" in effect.text


def test_a_paused_topic_follows_later() -> None:
    pause = gen.annotated(names.PAUSE, "true")
    effects = preview(live(pause), wanted(pause, suspend=True))
    assert effects[-1].text.startswith("reconciliation is paused")


def test_the_effect_of_a_policy_names_what_its_runs_do() -> None:
    compaction = gen.policy("nightly", selector={})
    retention = gen.policy("month", kind="RetentionPolicy", selector={}, mode="Enforce", log={"maxAge": "30d"})
    trial = gen.policy("trial", kind="RetentionPolicy", selector={}, log={"maxAge": "30d"})

    def effects(policy: Manifest) -> list[str]:
        found = preview(live(), governed(wanted(), policy))
        return [f"{effect.kind}: {effect.text}" for effect in found]

    assert effects(compaction) == [
        "rewritten: CompactionPolicy nightly governs table lake.demo.orders: its runs rewrite data files"
    ]
    assert "deletes what it does not retain" in effects(retention)[-1]
    assert "deletes nothing in mode DryRun" in effects(trial)[-1]
    (lost,) = preview(governed(live(), compaction), governed(wanted(), None))
    assert lost.text == "no CompactionPolicy governs table lake.demo.orders any more"


def test_a_changed_policy_names_the_topics_that_it_governs() -> None:
    config, live_cache, wanted_cache = gen.config(), PolicyCache(), PolicyCache()
    topics = [topic_entry(gen.topic(f"t{number}", labelled(team="a")), config) for number in range(8)]
    before = policy_entry(gen.policy("p", selector={"matchLabels": {"team": "b"}}), config)
    after = policy_entry(gen.policy("p", gen.generation(2), selector={"matchLabels": {"team": "a"}}), config)
    live_cache.put(before)
    wanted_cache.put(after)
    effects = policies.preview(before, after, topics, live_cache, wanted_cache)
    assert shown(effects[0]).startswith("changed spec.selector.matchLabels.team b a")
    assert effects[1].text == "the policy governs t0, t1, t2, t3, t4 and 3 more topics, and rewrites data files"
    back = policies.preview(after, before, topics, wanted_cache, live_cache)
    assert back[1].text.startswith("the policy no longer governs t0")
    (new, _) = policies.preview(None, after, topics, PolicyCache(), wanted_cache)
    assert new.kind is EffectKind.CREATED


def test_a_policy_that_is_not_valid_is_refused() -> None:
    entry = policy_entry(gen.policy("p", selector={}, schedule={"cron": "no"}), gen.config())
    (effect,) = policies.preview(None, entry, [], PolicyCache(), PolicyCache())
    assert effect.kind is EffectKind.REFUSED


@pytest.mark.parametrize(
    ("before", "after", "paths"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {}, ["spec.a"]),
        ({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}}, ["spec.a.b", "spec.a.c"]),
        ({"f": [{"name": "x", "t": 1}]}, {"f": [{"name": "x", "t": 2}, {"name": "y"}]}, ["spec.f[x].t", "spec.f[y]"]),
        ({}, {"a": {"b": 1}}, ["spec.a.b"]),
        ({"a": {}}, {}, ["spec.a"]),
        ({"f": [{"name": "x"}]}, {"f": [{"name": "y"}]}, ["spec.f[x]", "spec.f[y]"]),
        ({"f": [1, 2]}, {"f": [2, 1]}, ["spec.f"]),
        ({"f": []}, {"f": [{"name": "x"}]}, ["spec.f"]),
    ],
)
def test_differences_name_each_field(before: Manifest, after: Manifest, paths: list[str]) -> None:
    assert [each.path for each in differences(before, after, "spec")] == paths


def documented() -> list[Manifest]:
    """Return the specs of all topics in pages and samples."""
    samples = sorted((Path(__file__).resolve().parents[3] / "crds/samples").glob("*.yaml"))
    found = [each.value for each in markdown.resources()]
    found += [each for sample in samples for each in yaml.safe_load_all(sample.read_text())]
    return [each.get("spec") or {} for each in found if each["kind"] == "IcebergTopic"]


def test_every_pair_of_specs_has_a_preview() -> None:
    """Each preview is a refusal, or names what differs."""
    config = gen.config(registries={"main": {"url": "http://registry"}})
    specs: list[Manifest] = [*documented(), *({"schema": json_schema()} | spec for spec, _ in CHANGES)]
    topics = [gen.topic("orders", gen.with_status(STATUS), **{"schema": None, **spec}) for spec in specs]
    pairs = list(permutations([gen.observed(topic, config) for topic in topics], 2))
    assert len(pairs) > 500
    for before, after in pairs:
        effects = preview(before, after, without=checks.OF_CONFIGURATION)
        assert effects or before.resource.spec == after.resource.spec, (before.resource.spec, after.resource.spec)
        assert all(effect.field and (effect.text or effect.before or effect.after) for effect in effects), effects


def test_no_documented_spec_is_refused() -> None:
    """A column of a schema that only the operator reads or compiles is unknown here."""
    config = gen.config(registries={"main": {"url": "http://registry"}})
    specs = documented()
    assert len(specs) > 30
    for spec in specs:
        topic = gen.observed(gen.topic("sample", **{"schema": None, **spec}), config)
        found = spec.get("schema", {}).get("registry") or spec.get("schema", {}).get("format") == "Protobuf"
        reasons = [effect.reason for effect in preview(None, topic, without=checks.OF_CONFIGURATION) if effect.reason]
        assert not reasons or (found and reasons == ["UnknownColumn"]), (spec, reasons)


async def test_the_preview_agrees_with_the_reconciler() -> None:
    """The operator does what the preview says, and nothing after it."""
    world = World()
    world.cluster.create(gen.topic("orders", partitions=3, schema=json_schema()))
    await world.settle()
    before = gen.observed(world.cluster.topic("orders"), job=True)
    new = {"partitions": 6, "config": {"retention.ms": "7"}, "schema": json_schema({"name": "note", "type": "string"})}
    world.cluster.edit("orders", lambda manifest: manifest["spec"].update(new))
    after = replace(gen.observed(world.cluster.topic("orders")), job=before.job)
    effects = preview(before, after)
    assert {effect.field for effect in effects} == {
        "spec.partitions", "spec.config.retention.ms", "spec.schema.fields[note]",
    }  # fmt: skip
    await world.settle()
    kafka = world.topics.topics["classic", "orders"]
    assert (kafka.partitions, kafka.configs["retention.ms"]) == (6, "7")
