"""Result, exit code, text and JSON of plans, and what a person without rights to the configuration gets."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from firn.model import names
from firn.model.errors import AccessDeniedError
from firn_controllers.cache.topics import topic_entry
from firn_controllers.preview.effects import Effect, EffectKind, changed, created, refused
from firn_operator.cli import main
from firn_operator.cli.resources import plan
from firn_operator.cli.resources.connection import Collection, Connection, Login, Manifest, RefusedError
from firn_operator.cli.resources.drafts import Draft
from firn_operator.cli.resources.plan import Plan, PlanCode, Planned
from firn_operator.cli.resources.surroundings import UNKNOWN, assumed_config, live_contract
from tests import gen

NEW = created("spec.table", "table lake.shop.orders")
OTHER = changed("spec.config.retention.ms", "Kafka topic orders: retention.ms 1 -> 2", "1", "2")
MOVED = Effect(EffectKind.RESTARTED, "spec.ingestion.group", "ingestion moves to group big", "default", "big")
NO = refused("spec.partitions", "only more", "Invalid")


def planned(*effects: Effect, live: bool = True, foreign: bool = False, unchecked: tuple[str, ...] = ()) -> Planned:
    draft = Draft("IcebergTopic", "shop", "orders", "orders.yaml", {} if live else None, {}, foreign=foreign)
    return Planned(draft, effects, unchecked)


@pytest.mark.parametrize(
    ("documents", "results", "code"),
    [
        ([planned()], ["unchanged"], 0),
        ([planned(foreign=True)], ["left out"], 0),
        ([planned(OTHER)], ["changed"], 2),
        ([planned(MOVED)], ["changed"], 2),
        ([planned(NEW, live=False)], ["created"], 2),
        ([planned(live=False)], ["created"], 2),
        ([planned(), planned(OTHER)], ["unchanged", "changed"], 2),
        ([planned(NO)], ["refused"], 3),
        ([planned(NO, live=False)], ["refused"], 3),
        ([planned(OTHER), planned(NO), planned()], ["changed", "refused", "unchanged"], 3),
    ],
)
def test_the_gravest_result_is_the_exit_code(documents: list[Planned], results: list[str], code: int) -> None:
    made = Plan(tuple(documents))
    assert [each.result for each in made.documents] == results
    assert made.code == code


def test_the_text_has_marks_values_and_effects() -> None:
    made = Plan((planned(NEW, OTHER, MOVED, NO, unchecked=("the brokers",)), planned(foreign=True)), ("the limits",))
    text = "\n".join(line.text for line in plan.lines(made))
    for part in (
        "IcebergTopic shop/orders: refused\n",
        "  + created   spec.table\n              table lake.shop.orders\n",
        "  ~ changed   spec.config.retention.ms: 1 -> 2\n              Kafka topic orders: retention.ms 1 -> 2\n",
        "  ~ restarted spec.ingestion.group: default -> big\n",
        "  ! refused   spec.partitions (Invalid)\n              only more\n",
        "  ? not checked: the brokers\n",
        "orders: left out, because it is no resource of Firn\n",
        "Not checked in this plan:\n  ? the limits\n",
        "Plan: 1 refused. Nothing was applied.",
    ):
        assert part in text, part


def test_unset_values_are_shown_as_unset() -> None:
    lines = [
        line.text for line in plan.lines(Plan((planned(changed("spec.x", "", "", "1"), changed("spec.y", "", "1")),)))
    ]
    assert "  ~ changed   spec.x: (unset) -> 1" in lines
    assert "  ~ changed   spec.y: 1 -> (unset)" in lines


def test_json_has_effects_without_empty_values(capsys: pytest.CaptureFixture[str]) -> None:
    plan.print_plan(Plan((planned(OTHER, NO),), ("the limits",)), as_json=True)
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert document["exitCode"] == 3
    assert document["notChecked"] == ["the limits"]
    (only,) = document["documents"]
    assert only["result"] == "refused"
    assert only["effects"][0] == {
        "kind": "changed",
        "field": "spec.config.retention.ms",
        "before": "1",
        "after": "2",
        "effect": "Kafka topic orders: retention.ms 1 -> 2",
    }


def test_the_exit_code_without_a_plan_is_that_of_wrong_arguments() -> None:
    assert main.NO_PLAN == PlanCode.NO_PLAN


@pytest.mark.parametrize(
    "text",
    [
        "kind: List\napiVersion: v1\nitems: [null]",
        "kind: Namespace\napiVersion: v1\nmetadata: [a]",
        "a: " + "[" * 3000,
        "a: " + "9" * 5000,
        "kind: A\nkind: B",
    ],
    ids=["list", "metadata", "deep", "number", "twice"],
)
def test_a_file_that_cannot_be_read_has_the_exit_code_without_a_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    kubeconfig, file = tmp_path / "kubeconfig", tmp_path / "topic.yaml"
    clusters = [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}]
    contexts = [{"name": "prod", "context": {"cluster": "c", "user": "u"}}]
    users = [{"name": "u", "user": {"token": "t"}}]
    whole = {"clusters": clusters, "contexts": contexts, "users": users, "current-context": "prod"}
    kubeconfig.write_text(json.dumps(whole))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    file.write_text(text)
    result = CliRunner().invoke(main.app, ["plan", "-f", str(file)])
    assert result.exit_code == PlanCode.NO_PLAN
    assert f"firn: {file}" in result.stderr


class Denying:
    """An API server with nothing in it, which denies dry runs, or has no namespace for them, and denies the configuration."""

    namespace = "shop"
    login = Login(cast(Any, None), "shop", "context test")

    def __init__(self, answer: Exception) -> None:
        self._answer = answer

    def read(self, collection: Collection, name: str) -> None:
        if collection.plural == "configmaps":
            raise AccessDeniedError("you may not get configmaps; ask an administrator")

    def list(self, collection: Collection) -> list[Manifest]:
        return []

    def dry_run(self, *_: object, **__: object) -> Manifest:
        raise self._answer


SCHEMA = {"format": "Json", "fields": [{"name": "id", "type": "int"}]}


@pytest.mark.parametrize(
    "answer",
    [
        AccessDeniedError("you may not create icebergtopics; ask an administrator"),
        RefusedError(404, {"message": "namespaces shop not found", "details": {"kind": "namespaces"}}),
    ],
    ids=["denied", "no namespace"],
)
@pytest.mark.parametrize(
    ("kind", "changes", "field"),
    [
        ("IcebergTopic", {"spec": 5}, "spec"),
        ("IcebergTopic", {"spec": {"schema": [1]}}, "spec.schema"),
        ("IcebergTopic", {"spec": {"schema": {**SCHEMA, "columns": [None]}}}, "spec.schema.columns.0"),
        ("IcebergTopic", {"spec": {"schema": SCHEMA, "table": {"catalog": ["a"]}}}, "spec.table.catalog"),
        ("IcebergTopic", {"spec": {"schema": SCHEMA, "profile": "Bad_Name"}}, "spec.profile"),
        ("IcebergTopic", {"metadata": {"labels": [1]}, "spec": {"schema": SCHEMA}}, "metadata.labels"),
        ("IcebergTopic", {"metadata": {"name": 5}, "spec": {"schema": SCHEMA}}, "metadata.name"),
        ("CompactionPolicy", {"metadata": {"annotations": "a"}, "spec": {}}, "metadata.annotations"),
        ("RetentionPolicy", {"metadata": {"annotations": {"a": 1}}, "spec": {}}, "metadata.annotations.a"),
        ("TopicSet", {"spec": "a"}, "spec"),
        ("DeadLetterReplay", {"metadata": {"annotations": [1]}}, "metadata.annotations"),
    ],
)
def test_a_value_that_the_api_server_did_not_check_is_refused(
    tmp_path: Path, answer: Exception, kind: str, changes: Manifest, field: str
) -> None:
    manifest = {**changes, "apiVersion": names.API_VERSION, "kind": kind}
    manifest["metadata"] = {"name": "a", **changes.get("metadata", {})}
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}
    file = tmp_path / "topic.yaml"
    file.write_text(f"{json.dumps(namespace)}\n---\n{json.dumps(manifest)}\n")
    made = plan.make(cast(Connection, Denying(answer)), [str(file)], release="firn-system", field_manager="kubectl")
    assert made.code is PlanCode.REFUSED
    assert field in [effect.field for effect in made.documents[1].effects]
    assert "refused" in "\n".join(line.text for line in plan.lines(made))


@pytest.mark.parametrize("name", [".", ".."])
@pytest.mark.parametrize("field", ["name", "namespace"])
def test_a_name_that_changes_the_path_of_a_url_is_refused_without_a_request(
    tmp_path: Path, name: str, field: str
) -> None:
    file = tmp_path / "topic.yaml"
    topic = gen.topic("a", namespace="shop")
    topic["metadata"] = {"name": "a", "namespace": "shop", field: name}
    file.write_text(json.dumps(topic))
    api = cast(Connection, Denying(AssertionError("a request")))
    made = plan.make(api, [str(file)], release="firn-system", field_manager="kubectl")
    assert made.code is PlanCode.REFUSED
    (effect,) = made.documents[0].effects
    assert (effect.field, effect.text) == (
        f"metadata.{field}",
        f"no resource of Kubernetes can have the name {name}; choose another",
    )


def test_a_null_label_counts_as_none_if_the_api_server_did_not_check_it(tmp_path: Path) -> None:
    topic = gen.topic("a", namespace="shop")
    topic["metadata"] = {"name": "a", "labels": None, "creationTimestamp": None}
    file = tmp_path / "topic.yaml"
    file.write_text(json.dumps(topic))
    api = cast(Connection, Denying(AccessDeniedError("you may not create icebergtopics; ask an administrator")))
    assert plan.make(api, [str(file)], release="firn-system", field_manager="kubectl").code is PlanCode.CHANGES


def test_an_assumed_configuration_has_every_name_of_the_drafts() -> None:
    wanted = gen.topic("a", profile="p", table={"catalog": "c"}, ingestion={"group": "g"})
    hashed = {"name": "h", "from": "$.id", "with": "Sha256", "salt": "s"}
    wanted["spec"]["schema"] = {"format": "Avro", "registry": {"name": "r"}, "columns": [hashed]}
    live = gen.topic("a", gen.with_status({"profile": "old", "table": {"identifier": "there.demo.a"}}))
    config = assumed_config("system", [Draft("IcebergTopic", "demo", "a", "x", live, wanted)])
    assert set(config.profiles) == {UNKNOWN, "p", "old"}
    assert set(config.catalogs) == {UNKNOWN, "c", "there"}
    assert set(config.groups) == {UNKNOWN, "g"}
    assert (set(config.registries), set(config.salts)) == ({"r"}, {"s"})
    assert config.namespace == "system"


def test_the_live_spec_stands_for_the_contract_only_if_the_operator_follows_it() -> None:
    valid = [{"type": "SpecValid", "status": "True", "reason": "Valid"}]
    status = {"observedGeneration": 1, "topicId": "id", "conditions": valid}
    config = gen.config()
    found = live_contract(
        topic_entry(gen.topic("a", gen.with_status(status), config={"retention.ms": "1"}), config), config
    )
    assert found is not None
    assert found.job.topic_id == "id"
    assert found.owned_config == {"retention.ms"}
    newer = gen.topic("a", gen.with_status(status), gen.generation(2))
    assert live_contract(topic_entry(newer, config), config) is None
    status["conditions"] = [{**valid[0], "status": "False", "reason": "BadSchema"}]
    assert live_contract(topic_entry(gen.topic("a", gen.with_status(status)), config), config) is None
