"""``firn plan`` against a real API server: its dry run, its defaults, and the rights of persons. Nothing is ever changed."""

import copy
import json
from typing import Any

import pytest
import yaml

from firn.model import names
from tests.apiserver import SYSTEM
from tests.integration.cli.conftest import FIRN, Cluster, Person

FIELDS = [{"name": "id", "type": "int"}, {"name": "at", "type": "timestamptz"}]
READS = {**FIRN, "verbs": ["get", "list"]}
WRITES = {**FIRN, "verbs": ["get", "list", "create", "patch"]}


def orders(cluster: Cluster, **changes: Any) -> dict[str, Any]:
    spec = {"partitions": 3, "config": {"retention.ms": "1"}, "schema": {"format": "Json", "fields": FIELDS}}
    return cluster.topic("orders", **copy.deepcopy({**spec, **changes}))


def ready(cluster: Cluster, *, applied: bool = True) -> None:
    """Create the topic with the status that the operator gives it."""
    cluster.create(orders(cluster), applied=applied)
    valid = {
        "type": "SpecValid",
        "status": "True",
        "reason": "Valid",
        "message": "the spec is valid",
        "lastTransitionTime": "2026-03-01T10:00:00Z",
        "observedGeneration": 1,
    }
    cluster.report(
        "orders",
        observedGeneration=1,
        topicName="orders",
        topicId="kafka-id",
        partitions=3,
        profile="classic",
        table={"identifier": f"lake.{cluster.namespace.replace('-', '_')}.orders", "uuid": "u"},
        ingestion={"group": "default"},
        conditions=[valid],
    )


def plan(person: Person, *manifests: dict[str, Any], code: int) -> dict[str, Any]:
    document: dict[str, Any] = person.document("plan", "-f", "-", text=yaml.safe_dump_all(manifests), code=code)
    assert document["exitCode"] == code
    return document


def fields(document: dict[str, Any], number: int = 0) -> list[tuple[str, str]]:
    return [(each["kind"], each["field"]) for each in document["documents"][number]["effects"]]


def test_a_new_topic_is_planned_and_not_created(configured: Cluster) -> None:
    document = plan(configured.administrator, orders(configured), code=2)
    assert fields(document) == [
        ("created", "spec.topicName"), ("created", "spec.table"), ("created", "spec.ingestion"),
    ]  # fmt: skip
    assert document["notChecked"] == []
    assert configured.api.call("GET", configured.path())["items"] == []


def test_an_equal_manifest_changes_nothing(configured: Cluster) -> None:
    ready(configured)
    document = plan(configured.administrator, orders(configured), code=0)
    assert document["documents"][0]["result"] == "unchanged"


def test_changes_are_listed_with_their_effects(configured: Cluster) -> None:
    ready(configured)
    before = configured.stored("orders")
    wanted = orders(
        configured,
        partitions=6,
        config={"retention.bytes": "7"},
        schema={"format": "Json", "fields": [*FIELDS, {"name": "note", "type": "string"}]},
        deletionPolicy={"topic": "Delete", "table": "Delete"},
    )
    wanted["metadata"]["labels"] = {"team": "data"}
    document = plan(configured.administrator, wanted, code=2)
    assert fields(document) == [
        ("changed", "spec.partitions"),
        ("changed", "spec.config.retention.bytes"),
        ("changed", "spec.config.retention.ms"),
        ("changed", "spec.schema.fields[note]"),
        ("changed", "spec.deletionPolicy.topic"),
        ("changed", "spec.deletionPolicy.table"),
        ("changed", "metadata.labels.team"),
    ]
    assert configured.stored("orders") == before


def test_a_group_of_another_namespace_is_refused(configured: Cluster) -> None:
    ready(configured)
    document = plan(configured.administrator, orders(configured, ingestion={"group": "big"}), code=3)
    (effect,) = document["documents"][0]["effects"]
    assert (effect["field"], effect["reason"]) == ("spec", "NotAllowed")
    assert f"namespace {configured.namespace} may not use ingestion group big" in effect["effect"]


def test_a_manifest_of_another_namespace_than_the_chosen_one_is_refused(configured: Cluster) -> None:
    person, text = configured.administrator, yaml.safe_dump(orders(configured))
    document = person.document("plan", "-f", "-", "--namespace", "other", text=text, code=3)
    (effect,) = document["documents"][0]["effects"]
    assert effect["field"] == "metadata.namespace"
    assert effect["effect"].startswith(f"the manifest has namespace {configured.namespace}, and --namespace is other")


def test_the_rules_of_the_api_server_refuse_first(configured: Cluster) -> None:
    ready(configured)
    wanted = orders(configured, partitions=2, topicName="other")
    document = plan(configured.administrator, wanted, code=3)
    effects = {each["field"]: each["effect"] for each in document["documents"][0]["effects"]}
    assert set(effects) == {"spec", "spec.partitions"}
    assert effects["spec"].startswith("topicName is immutable")


@pytest.mark.parametrize("live", [False, True])
def test_an_unknown_field_is_refused_by_name(configured: Cluster, live: bool) -> None:
    if live:
        ready(configured)
    document = plan(configured.administrator, orders(configured, partition=4), code=3)
    assert fields(document) == [("refused", "spec.partition")]


def test_an_incompatible_schema_is_refused_by_the_contract_in_force(configured: Cluster) -> None:
    ready(configured)
    wanted = orders(configured, schema={"format": "Json", "fields": [{"name": "id", "type": "string"}, FIELDS[1]]})
    document = plan(configured.administrator, wanted, code=3)
    (effect,) = document["documents"][0]["effects"]
    assert effect["reason"] == "IncompatibleSchema"


def test_the_contract_counts_before_the_live_spec(configured: Cluster) -> None:
    """The live spec was refused, and the contract still has the earlier schema."""
    ready(configured)
    live = configured.stored("orders")
    job = {
        "uid": live["metadata"]["uid"], "namespace": configured.namespace, "name": "orders", "generation": 1, "group": "default",
        "profile": "classic", "topic": "orders", "freshness_ms": 60_000,
        "record_schema": {"format": "Json", "fields": [*FIELDS, {"name": "old", "type": "int"}]},
        "table": {"catalog": "lake", "namespace": "x", "name": "orders"},
    }  # fmt: skip
    place = f"/api/v1/namespaces/{SYSTEM}/configmaps"
    body = {"metadata": {"name": names.job(job["uid"])}, "data": {"job.json": json.dumps(job)}}
    configured.api.call("POST", place, body)
    document = plan(configured.administrator, orders(configured, suspend=True), code=3)
    assert "field old is missing" in document["documents"][0]["effects"][0]["effect"]
    configured.api.call("DELETE", f"{place}/{names.job(job['uid'])}")


def test_server_side_apply_keeps_the_fields_of_other_managers(configured: Cluster) -> None:
    manifest = orders(configured)
    for manager, spec in (("argocd-controller", manifest), ("other", configured.topic("orders", suspend=True))):
        place = f"{configured.path(name='orders')}?fieldManager={manager}&force=true"
        configured.api.call("PATCH", place, spec, "application/apply-patch+yaml")
    del manifest["spec"]["config"]
    document = plan(configured.administrator, manifest, code=2)
    assert ("changed", "spec.suspend") not in fields(document)
    document = configured.administrator.document(
        "plan", "-f", "-", "--field-manager", "other", text=yaml.safe_dump(configured.topic("orders")), code=2
    )
    assert ("changed", "spec.suspend") in fields(document)


def test_fields_stay_if_no_apply_has_set_them(configured: Cluster) -> None:
    ready(configured, applied=False)
    manifest = orders(configured, suspend=True)
    del manifest["spec"]["config"]
    document = plan(configured.administrator, manifest, code=2)
    assert fields(document) == [("changed", "spec.suspend")]


def test_a_topic_of_another_namespace_owns_its_name(configured: Cluster) -> None:
    ready(configured)
    rival = orders(configured)
    rival["metadata"]["namespace"] = "default"
    document = plan(configured.administrator, rival, code=3)
    (effect,) = document["documents"][0]["effects"]
    assert effect["reason"] == "ResourceConflict"
    assert f"belongs to the older IcebergTopic {configured.namespace}/orders" in effect["effect"]


def test_two_documents_that_claim_one_topic_conflict(configured: Cluster) -> None:
    first, second = configured.topic("a", topicName="t"), configured.topic("b", topicName="t")
    document = plan(configured.administrator, first, second, code=3)
    assert [each["result"] for each in document["documents"]] == ["created", "refused"]


def test_a_namespace_of_the_same_file_need_not_exist(configured: Cluster) -> None:
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "later"}}
    topic = orders(configured)
    topic["metadata"]["namespace"] = "later"
    document = plan(configured.administrator, topic, code=3)
    assert fields(document) == [("refused", "metadata.namespace")]
    document = plan(configured.administrator, namespace, topic, code=2)
    assert [each["result"] for each in document["documents"]] == ["left out", "created"]
    assert "namespace later does not exist yet" in document["documents"][1]["notChecked"][0]


def test_a_policy_of_the_same_file_governs_the_topic(configured: Cluster) -> None:
    ready(configured)
    policy = {
        "apiVersion": names.API_VERSION,
        "kind": "RetentionPolicy",
        "metadata": {"name": "month", "namespace": configured.namespace},
        "spec": {"selector": {}, "mode": "Enforce", "log": {"maxAge": "30d"}},
    }
    without = orders(configured)
    del without["spec"]["config"]
    document = plan(configured.administrator, policy, without, code=2)
    texts = [each["effect"] for each in document["documents"][0]["effects"]]
    assert texts == [
        "RetentionPolicy month, which deletes what it does not retain",
        "the policy governs orders, and deletes what it does not retain",
    ]
    topic = {each["field"]: each["effect"] for each in document["documents"][1]["effects"]}
    assert topic["spec.config.retention.ms"].endswith("retention.ms 1 -> 2592000000, by the RetentionPolicy")
    assert "deletes what it does not retain" in topic["metadata.labels"]


def test_a_person_who_may_only_read_gets_a_plan_with_what_it_leaves_out(configured: Cluster) -> None:
    ready(configured)
    wanted = orders(configured, ingestion={"group": "elsewhere"})
    document = plan(configured.person("reader", READS), wanted, code=2)
    assert fields(document) == [("restarted", "spec.ingestion.group")]
    assert (
        f"you may not patch icebergtopics.firn.dev in namespace {configured.namespace}"
        in document["documents"][0]["notChecked"][0]
    )
    notes = "\n".join(document["notChecked"])
    assert f"you may not get configmaps in namespace {SYSTEM}" in notes
    assert "you may not list icebergtopics.firn.dev in all namespaces" in notes
    assert "the schema in force, for which the plan takes the live spec" in notes


def test_a_person_without_the_configuration_still_gets_the_rules_and_the_schema(configured: Cluster) -> None:
    ready(configured)
    writer = configured.person("writer", WRITES)
    document = plan(writer, orders(configured, partitions=2), code=3)
    assert fields(document) == [("refused", "spec.partitions")]
    schema = {"format": "Json", "fields": [{"name": "id", "type": "string"}, FIELDS[1]]}
    document = plan(writer, orders(configured, schema=schema), code=3)
    assert document["documents"][0]["effects"][0]["reason"] == "IncompatibleSchema"


def test_a_person_without_rights_gets_no_plan(configured: Cluster) -> None:
    done = configured.person("nobody").run("plan", "-f", "-", text=yaml.safe_dump(orders(configured)))
    assert (done.returncode, done.stdout) == (78, "")
    assert f"you may not get icebergtopics.firn.dev in namespace {configured.namespace}" in done.stderr


def test_a_missing_configuration_names_the_option(cluster: Cluster) -> None:
    document = plan(cluster.administrator, orders(cluster), code=2)
    assert "name the operator's namespace with --release-namespace" in document["notChecked"][0]
    elsewhere = cluster.administrator.document(
        "plan", "-f", "-", "--release-namespace", "other", text=yaml.safe_dump(orders(cluster)), code=2
    )
    assert "ConfigMap other/firn-config does not exist" in elsewhere["notChecked"][0]


@pytest.mark.parametrize(
    ("arguments", "text", "words"),
    [
        (["-f", "/nowhere.yaml"], "", "/nowhere.yaml: cannot be read"),
        (["-f", "-"], "a: [", "standard input: the YAML cannot be read"),
        ([], "", "Missing option"),
        (["-f", "-", "--bogus"], "", "No such option"),
        (["-f", "-", "--context", "tset"], "a: 1", "did you mean test?"),
    ],
)
def test_wrong_arguments_have_no_exit_code_of_a_plan(
    cluster: Cluster, arguments: list[str], text: str, words: str
) -> None:
    done = cluster.administrator.run("plan", *arguments, text=text)
    assert done.returncode == 78
    assert words in done.stderr


def test_other_kinds_and_versions_are_named(configured: Cluster) -> None:
    other = {"apiVersion": "firn.dev/v2", "kind": "IcebergTopic", "metadata": {"name": "a"}}
    document = plan(configured.administrator, other, code=3)
    assert "firn.dev has no kind IcebergTopic of version v2" in document["documents"][0]["effects"][0]["effect"]


def test_a_replay_is_created_once_and_its_spec_cannot_change(configured: Cluster) -> None:
    ready(configured)
    replay = {
        "apiVersion": names.API_VERSION,
        "kind": "DeadLetterReplay",
        "metadata": {"name": "mend", "namespace": configured.namespace},
        "spec": {"topicRef": {"name": "orders"}, "mode": "DryRun"},
    }
    document = plan(configured.administrator, replay, code=2)
    assert fields(document) == [("created", "spec")]
    assert document["documents"][0]["result"] == "created"
    path = f"/apis/{names.API_VERSION}/namespaces/{configured.namespace}/deadletterreplays"
    assert configured.api.call("GET", path)["items"] == []
    configured.api.call("POST", path, replay)
    assert plan(configured.administrator, replay, code=0)["documents"][0]["result"] == "unchanged"
    wanted = {**replay, "spec": {"topicRef": {"name": "orders"}, "mode": "Enforce"}}
    for person in (configured.administrator, configured.person("reader", READS)):
        (effect,) = plan(person, wanted, code=3)["documents"][0]["effects"]
        assert effect["kind"] == "refused"
        assert "the spec of a DeadLetterReplay cannot change; create another DeadLetterReplay" in effect["effect"]


def test_a_user_is_planned_with_its_secret_and_its_identity_cannot_change(configured: Cluster) -> None:
    user = {
        "apiVersion": names.API_VERSION,
        "kind": "TopicUser",
        "metadata": {"name": "checkout", "namespace": configured.namespace},
        "spec": {"profile": "outside"},
    }
    path = f"/apis/{names.API_VERSION}/namespaces/{configured.namespace}/topicusers"
    (effect,) = plan(configured.administrator, user, code=3)["documents"][0]["effects"]
    assert (effect["reason"], "users.enabled" in effect["effect"]) == ("NotAllowed", True)
    configured.api.call("POST", path, user)
    changed = {**user, "spec": {"profile": "other"}}
    (effect,) = plan(configured.administrator, changed, code=3)["documents"][0]["effects"]
    assert "profile is immutable: create another TopicUser for another profile" in effect["effect"]
    grant = {**user, "kind": "TopicGrant", "metadata": {"name": "consent", "namespace": configured.namespace}}
    grant["spec"] = {"topics": [{"name": "x"}], "to": [{"namespace": "shop", "users": ["*"]}], "roles": ["Consume"]}
    assert fields(plan(configured.administrator, grant, code=2)) == [("created", "spec")]
