"""Manifests are read and merged as kubectl does it."""

import io
from pathlib import Path
from typing import Any

import pytest

from firn.model.errors import InvalidSpecError
from firn_operator.cli.resources import manifests
from firn_operator.cli.resources.connection import RefusedError
from firn_operator.cli.resources.drafts import causes

Manifest = dict[str, Any]
TOPIC = "apiVersion: firn.dev/v1alpha1\nkind: IcebergTopic\nmetadata: {name: NAME}\n"


def test_files_folders_and_standard_input_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "topics"
    folder.mkdir()
    (folder / "b.yaml").write_text(TOPIC.replace("NAME", "b"))
    (folder / "a.yml").write_text(
        "---\n" + TOPIC.replace("NAME", "a1") + "---\n" + TOPIC.replace("NAME", "a2") + "---\n"
    )
    (folder / "notes.txt").write_text("no manifest")
    monkeypatch.setattr(
        "sys.stdin", io.StringIO('{"apiVersion": "v1", "kind": "List", "items": [{"kind": "A"}, {"kind": "B"}]}')
    )
    found = manifests.read([str(folder), "-"])
    names = [each.manifest.get("metadata", {}).get("name") or each.manifest["kind"] for each in found]
    assert names == ["a1", "a2", "b", "A", "B"]
    assert found[1].place == f"{folder}/a.yml, document 2"


def test_times_stay_texts() -> None:
    (document,) = manifests.parse(TOPIC + "spec: {ingestion: {startFrom: {timestamp: 2026-03-01T10:00:00Z}}}", "x")
    assert document.manifest["spec"]["ingestion"]["startFrom"]["timestamp"] == "2026-03-01T10:00:00Z"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [", "this is no YAML"),
        ("just text", "a manifest needs apiVersion, kind and metadata"),
        ("kind: IcebergTopic", "a manifest needs apiVersion"),
        ("", "there is no manifest"),
        ("---\n---\n", "there is no manifest"),
    ],
)
def test_an_unusable_file_is_named(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "topic.yaml"
    path.write_text(content)
    with pytest.raises(InvalidSpecError, match=words) as failure:
        manifests.read([str(path)])
    assert str(path) in str(failure.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InvalidSpecError, match="/nowhere/topic.yaml: cannot be read: No such file"):
        manifests.read(["/nowhere/topic.yaml"])


@pytest.mark.parametrize(
    ("original", "wanted", "live", "patch"),
    [
        ({}, {"a": 1}, {"a": 1, "b": 2}, {}),
        ({}, {"a": 2}, {"a": 1}, {"a": 2}),
        ({"a": 1, "b": 2}, {"a": 1}, {"a": 1, "b": 2}, {"b": None}),
        ({"b": 2}, {}, {"a": 1}, {}),
        ({"s": {"x": 1, "y": 1}}, {"s": {"x": 2}}, {"s": {"x": 1, "y": 1, "z": 1}}, {"s": {"x": 2, "y": None}}),
        ({"s": {"x": 1}}, {"s": {"x": 1}}, {"s": {"x": 1}}, {}),
        ({}, {"l": [1]}, {"l": [1, 2]}, {"l": [1]}),
        ({}, {"s": {"x": 1}}, {"s": "text"}, {"s": {"x": 1}}),
    ],
)
def test_the_patch_sets_and_removes_what_apply_does(
    original: Manifest, wanted: Manifest, live: Manifest, patch: Manifest
) -> None:
    assert manifests.three_way(original, wanted, live) == patch
    after = manifests.merged(live, patch)
    assert manifests.three_way(wanted, wanted, after) == {}, "a second apply changes nothing"


def test_the_manager_of_an_applied_object_is_found() -> None:
    managed = [
        {"manager": "argocd-controller", "operation": "Apply"},
        {"manager": "kubectl-edit", "operation": "Update"},
        {"manager": "firn-operator", "operation": "Apply"},
        {"manager": "x", "operation": "Apply", "subresource": "status"},
    ]
    assert manifests.appliers({"metadata": {"managedFields": managed}}) == ["argocd-controller"]
    assert manifests.appliers({}) == []


def test_an_unreadable_annotation_of_kubectl_counts_as_none() -> None:
    def live(text: str) -> Manifest:
        return {"metadata": {"annotations": {manifests.LAST_APPLIED: text}}}

    assert manifests.last_applied(live("{")) == {}
    assert manifests.last_applied(live('{"a": 1}')) == {"a": 1}


def test_each_cause_of_a_refusal_names_its_field() -> None:
    status = {
        "reason": "Invalid",
        "message": "long",
        "details": {"causes": [{"field": "spec.partitions", "message": 'Invalid value: "integer": only more'}]},
    }
    (effect,) = causes(RefusedError(422, status))
    assert (effect.field, effect.text, effect.reason) == ("spec.partitions", "only more", "Invalid")


def test_an_unknown_field_is_named_without_the_whole_object() -> None:
    message = 'Invalid value: "{...}": strict decoding error: unknown field "spec.foo", unknown field "spec.table.bar"'
    status = {"reason": "Invalid", "message": message, "details": {"causes": [{"field": "patch", "message": message}]}}
    effects = causes(RefusedError(422, status))
    assert [effect.field for effect in effects] == ["spec.foo", "spec.table.bar"]
    assert all("{...}" not in effect.text for effect in effects)
