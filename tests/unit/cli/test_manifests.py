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
LIST, ITEM = "kind: List\napiVersion: v1\nitems: ", "{kind: A, apiVersion: v1}"


def test_files_folders_and_standard_input_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "topics"
    folder.mkdir()
    (folder / "b.yaml").write_text(TOPIC.replace("NAME", "b"))
    (folder / "a.yml").write_text(
        "---\n" + TOPIC.replace("NAME", "a1") + "---\n" + TOPIC.replace("NAME", "a2") + "---\n"
    )
    (folder / "notes.txt").write_text("no manifest")
    monkeypatch.setattr(
        "sys.stdin",
        io.StringIO(
            '{"apiVersion": "v1", "kind": "List", "items": [{"kind": "A", "apiVersion": "v1"}, {"kind": "B", "apiVersion": "v1"}]}'
        ),
    )
    found = manifests.read([str(folder), "-"])
    names = [each.manifest.get("metadata", {}).get("name") or each.manifest["kind"] for each in found]
    assert names == ["a1", "a2", "b", "A", "B"]
    assert found[1].place == f"{folder}/a.yml, document 2"
    assert found[-1].place == "standard input, item 2"


def test_a_list_may_have_no_items() -> None:
    assert not list(manifests.parse("kind: List\napiVersion: v1", "x"))


def test_the_lists_in_a_list_have_their_items() -> None:
    inner = "{kind: List, apiVersion: v1, items: [{kind: B, apiVersion: v1}, {kind: CList, apiVersion: v1, items: []}]}"
    text = LIST + f"[{ITEM}, {inner}, {{kind: DenyList, apiVersion: v1}}]"
    found = [(each.manifest["kind"], each.place) for each in manifests.parse(text, "x")]
    assert found == [("A", "x, item 1"), ("B", "x, item 2, item 1"), ("DenyList", "x, item 3")]


def test_keys_are_texts_and_a_mapping_may_replace_a_merged_value() -> None:
    text = "a: {1: x, no: y}\nb: {c: &b {<<: &d {x: 1}, x: 2}}\ne: {<<: [*b, *d], x: 3}\n"
    (document,) = manifests.parse(TOPIC + text, "x")
    assert document.manifest["a"] == {"1": "x", "false": "y"}
    assert (document.manifest["b"], document.manifest["e"]) == ({"c": {"x": 2}}, {"x": 3})


def test_times_stay_texts() -> None:
    (document,) = manifests.parse(TOPIC + "spec: {ingestion: {startFrom: {timestamp: 2026-03-01T10:00:00Z}}}", "x")
    assert document.manifest["spec"]["ingestion"]["startFrom"]["timestamp"] == "2026-03-01T10:00:00Z"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a: [", "the YAML cannot be read"),
        ("just text", "apiVersion or kind is missing"),
        ("kind: IcebergTopic", "apiVersion or kind is missing"),
        ("", "there is no manifest"),
        ("---\n---\n", "there is no manifest"),
        *[(LIST + items, "items of List is not a list; write a list") for items in ("5", "text", "{a: b}")],
        *[(LIST + items, "item 2: apiVersion or kind is missing") for items in (f"[{ITEM}, a]", f"[{ITEM}, null]")],
        *[
            (LIST + f"[{{{item}}}]", "item 1: apiVersion or kind is missing")
            for item in ("apiVersion: v1", "kind: A", "kind: [a]")
        ],
        (LIST + "[{apiVersion: v1, kind: A, metadata: [a]}]", "item 1: metadata of A is not a mapping"),
        ("kind: Namespace\napiVersion: v1\nmetadata: [a]", "metadata of Namespace is not a mapping; write metadata:"),
        ("kind: Namespace\napiVersion: 5", "apiVersion or kind is missing"),
        ("a: " + "[" * 3000, "nested too deep to be read; remove levels"),
        ("a: " + "{a: " * 3000, "nested too deep to be read; remove levels"),
        (TOPIC + "a: " + "9" * 5000, "the value is not a valid int; .* line 4, .*; correct this place"),
        (TOPIC + "a: 0x" + "9" * 5000, "a value has no form in JSON: Exceeds the limit [^;]*; replace it"),
        *[(TOPIC + f"a: {value}", "the value is not a valid int; .* line 4") for value in ("0x_", "0b_", "!!int ''")],
        (TOPIC + "a: !!bool x", "the value is not a valid bool; a string of this form needs quotes .* line 4"),
        (TOPIC + "a: !!timestamp x", "not a valid timestamp"),
        *[
            (TOPIC + f"a: {value}", "has no form in JSON")
            for value in ("!!binary aGk=", "!!set {a}", ".nan", "&a [*a]")
        ],
        (TOPIC + 'a: "\\ud800"', "has no form in JSON"),
        (TOPIC + "kind: TopicSet", "a mapping has the key kind more than once .* line 4, .*; correct this place"),
        (TOPIC + "spec: {a: {b: 1, 'b': 1}}", "the key b more than once"),
        (TOPIC + "spec: {a: {1: a, 0x1: b}}", "the key 1 more than once .* line 4"),
        (TOPIC + "spec: {a: {no: a, off: b}}", "the key false more than once"),
        (TOPIC + "spec: {a: {'1': a, 0b1: b}}", "the key 1 more than once"),
        (TOPIC + "spec: {a: {!!binary aGk=: a}}", "has no form in JSON"),
        (LIST + "[{kind: List, apiVersion: v1, items: [null]}]", "item 1, item 1: apiVersion or kind is missing"),
        (LIST + "[{kind: List, apiVersion: v1, items: 5}]", "item 1: items of List is not a list"),
    ],
)
def test_an_unusable_file_is_named(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "topic.yaml"
    path.write_text(content)
    with pytest.raises(InvalidSpecError, match=words) as failure:
        manifests.read([str(path)])
    assert str(failure.value).startswith(str(path))


def test_a_file_of_a_folder_and_standard_input_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff")
    with pytest.raises(InvalidSpecError, match=r"a\.yaml: cannot be read: .*utf-8"):
        manifests.read([str(tmp_path)])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff"), encoding="utf-8"))
    with pytest.raises(InvalidSpecError, match=r"^standard input: cannot be read: .*utf-8"):
        manifests.read(["-"])


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
