"""The API server decides which policies the CRDs accept and reject, and shows their defaults and columns."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from firn.api import crds
from firn.api.v1alpha1 import CompactionPolicy, RetentionPolicy
from tests.apiserver import ApiServer, Manifest, Refused
from tests.integration.crd.conftest import REPOSITORY

COMPACTION, RETENTION = "CompactionPolicy", "RetentionPolicy"
PLURALS = {COMPACTION: "compactionpolicies", RETENTION: "retentionpolicies"}
MODELS: dict[str, type[CompactionPolicy | RetentionPolicy]] = {COMPACTION: CompactionPolicy, RETENTION: RetentionPolicy}
SAMPLES = sorted((REPOSITORY / "crds/samples/policies").glob("*.yaml"))
SNAPSHOTS = {"snapshots": {"maxAge": "7d"}}


def place(kind: str, name: str = "") -> str:
    return f"/apis/firn.dev/v1alpha1/namespaces/demo/{PLURALS[kind]}" + (f"/{name}" if name else "")


def policy(kind: str, name: str, spec: Mapping[str, Any]) -> Manifest:
    metadata = {"name": name, "namespace": "demo"}
    return {"apiVersion": "firn.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": dict(spec)}


def create(api: ApiServer, manifest: Manifest, *, dry: bool = False) -> Manifest:
    query = f"?fieldValidation=Strict{'&dryRun=All' if dry else ''}"
    return api.call("POST", place(manifest["kind"]) + query, manifest)


COMPACTION_DEFAULTS: Manifest = {
    "priority": 0,
    "suspend": False,
    "strategy": "BinPack",
    "targetFileSize": "512Mi",
    "openGrace": "5m",
    "rewriteManifests": "WhenFragmented",
    "run": {"maxConcurrent": 2, "maxCommits": 10, "deadline": "1h", "retries": 2, "size": "small"},
}
RETENTION_DEFAULTS: Manifest = {
    "priority": 0,
    "suspend": False,
    "mode": "DryRun",
    "schedule": {"cron": "15 3 * * *", "timeZone": "Etc/UTC"},
    "run": {"maxConcurrent": 2, "deadline": "1h", "retries": 2, "size": "small"},
}


def test_defaults_of_compaction_equal_those_of_the_model(api: ApiServer) -> None:
    stored = create(api, policy(COMPACTION, "defaults", {}), dry=True)
    assert stored["spec"] == COMPACTION_DEFAULTS
    assert stored["status"] == crds.DEFAULT_STATUS
    assert (
        CompactionPolicy.model_validate(stored).spec
        == CompactionPolicy.model_validate(policy(COMPACTION, "defaults", {})).spec
    )


def test_defaults_of_retention_equal_those_of_the_model(api: ApiServer) -> None:
    stored = create(api, policy(RETENTION, "defaults", SNAPSHOTS), dry=True)
    assert stored["spec"] == RETENTION_DEFAULTS | {"snapshots": {"maxAge": "7d", "minKeep": 1}}
    assert not RetentionPolicy.model_validate(stored).enforced
    bare = RetentionPolicy.model_validate(policy(RETENTION, "defaults", SNAPSHOTS))
    assert RetentionPolicy.model_validate(stored).spec == bare.spec


def test_an_empty_selector_differs_from_no_selector(api: ApiServer) -> None:
    everyone = create(api, policy(COMPACTION, "everyone", {"selector": {}}), dry=True)
    assert everyone["spec"]["selector"] == {}
    assert CompactionPolicy.model_validate(everyone).spec.selector is not None
    nobody = create(api, policy(COMPACTION, "nobody", {}), dry=True)
    assert CompactionPolicy.model_validate(nobody).spec.selector is None


FULL_COMPACTION: Manifest = {
    "selector": {
        "matchLabels": {"team": "travel"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["gold", "silver"]},
            {"key": "frozen", "operator": "DoesNotExist"},
        ],
    },
    "priority": -5,
    "triggers": {"smallFiles": 2, "smallBytes": "1Gi", "deleteFileRatio": "1", "maxAge": "1ms", "minInterval": "1s"},
    "schedule": {"cron": "*/5 0-6,22 * JAN-MAR MON-FRI", "timeZone": "America/Argentina/Buenos_Aires", "jitter": "5m"},
    "windows": [{"cron": "0 22 * * *", "duration": "6h", "timeZone": "Europe/Berlin"}],
    "strategy": "Sort",
    "columns": ["time_hour desc nulls last", "carrier"],
    "targetFileSize": "16Gi",
    "openGrace": "1ms",
    "rewriteManifests": "Always",
    "run": {"maxConcurrent": 20, "maxCommits": 1, "deadline": "1d", "retries": 0, "size": "large"},
    "suspend": True,
}
FULL_RETENTION: Manifest = {
    "selector": {"matchLabels": {"team": "travel"}},
    "priority": 7,
    "mode": "Enforce",
    "log": {"maxAge": "7d", "maxBytes": "10Gi"},
    "rows": {"column": "_kafka.timestamp", "maxAge": "30d"},
    "snapshots": {"maxAge": "7d", "minKeep": 10},
    "orphanFiles": {"minAge": "3d"},
    "metadataFiles": {"keep": 100},
    "schedule": {"cron": "15 3 * * *", "timeZone": "Etc/UTC", "jitter": "1h"},
    "run": {"maxConcurrent": 1, "deadline": "1m", "retries": 10, "size": "small"},
    "suspend": False,
}


@pytest.mark.parametrize(("kind", "spec"), [(COMPACTION, FULL_COMPACTION), (RETENTION, FULL_RETENTION)])
def test_every_field_is_stored_unchanged(api: ApiServer, kind: str, spec: Manifest) -> None:
    stored = create(api, policy(kind, "full", spec), dry=True)
    assert stored["spec"] == spec
    assert (
        MODELS[kind].model_validate(stored).model_dump(by_alias=True, exclude_none=True)["spec"].keys() >= spec.keys()
    )


REFUSED: dict[str, tuple[str, Manifest, str]] = {
    "columns of BinPack": (COMPACTION, {"columns": ["a"]}, "BinPack takes no columns"),
    "ZOrder of nothing": (COMPACTION, {"strategy": "ZOrder"}, "ZOrder needs columns"),
    "direction in a Z-order": (COMPACTION, {"strategy": "ZOrder", "columns": ["a desc"]}, "without a direction"),
    "too many columns": (COMPACTION, {"strategy": "Sort", "columns": [f"c{n}" for n in range(9)]}, "at most 8"),
    "another strategy": (COMPACTION, {"strategy": "Hilbert"}, "Unsupported value"),
    "tiny files": (COMPACTION, {"targetFileSize": "512Ki"}, "between 1Mi and 16Gi"),
    "giant files": (COMPACTION, {"targetFileSize": "17Gi"}, "between 1Mi and 16Gi"),
    "a size that is none": (COMPACTION, {"targetFileSize": "much"}, "write a whole number of bytes.*such as 512Mi"),
    "ratio of nothing": (COMPACTION, {"triggers": {"deleteFileRatio": "0.0"}}, "above 0"),
    "ratio above one": (COMPACTION, {"triggers": {"deleteFileRatio": "1.5"}}, "deleteFileRatio"),
    "one small file": (COMPACTION, {"triggers": {"smallFiles": 1}}, "smallFiles"),
    "age without a unit": (COMPACTION, {"triggers": {"maxAge": "60"}}, "maxAge.*such as 30d"),
    "age in words": (COMPACTION, {"triggers": {"maxAge": "30 days"}}, "write a number and a unit of ms, s, m, h or d"),
    # There is no second message about the range.
    "deadline in words": (
        COMPACTION,
        {"run": {"deadline": "2 hours"}},
        r"invalid: spec\.run\.deadline: [^,]*: write [^:]*30d$",
    ),
    "six fields of cron": (COMPACTION, {"schedule": {"cron": "0 0 3 * * *"}}, "write minute, hour, day of month"),
    "a word for cron": (COMPACTION, {"schedule": {"cron": "@daily"}}, "cron"),
    "schedule without cron": (COMPACTION, {"schedule": {"timeZone": "Etc/UTC"}}, "cron"),
    "window without end": (COMPACTION, {"windows": [{"cron": "0 22 * * *"}]}, "duration"),
    "a zone that escapes": (
        COMPACTION,
        {"schedule": {"cron": "0 3 * * *", "timeZone": "../../etc/passwd"}},
        "timeZone",
    ),
    "no concurrency": (COMPACTION, {"run": {"maxConcurrent": 0}}, "maxConcurrent"),
    "deadline of seconds": (COMPACTION, {"run": {"deadline": "59s"}}, "between 1m and 1d"),
    "deadline of days": (COMPACTION, {"run": {"deadline": "2d"}}, "between 1m and 1d"),
    "a field that is none": (COMPACTION, {"tigger": {}}, "unknown field"),
    "In without values": (
        COMPACTION,
        {"selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}},
        "need values",
    ),
    "Exists with values": (
        COMPACTION,
        {"selector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}},
        "take none",
    ),
    "retention of nothing": (RETENTION, {}, "at least one of"),
    "an empty log": (RETENTION, {"log": {}}, "maxAge, maxBytes or both"),
    "rows without a column": (RETENTION, {"rows": {"maxAge": "30d"}}, "column"),
    "a column that is an expression": (RETENTION, {"rows": {"column": "a or 1=1", "maxAge": "30d"}}, "column"),
    "snapshots for ever": (RETENTION, {"snapshots": {"minKeep": 3}}, "maxAge"),
    "no snapshot left": (RETENTION, {"snapshots": {"maxAge": "7d", "minKeep": 0}}, "minKeep"),
    "another mode": (RETENTION, {**SNAPSHOTS, "mode": "Yolo"}, "Unsupported value"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_api_server_rejects_an_invalid_spec(api: ApiServer, case: str) -> None:
    kind, spec, message = REFUSED[case]
    with pytest.raises(Refused, match=message):
        create(api, policy(kind, "refused", spec), dry=True)


@pytest.mark.parametrize("kind", PLURALS)
def test_a_policy_name_above_52_characters_is_rejected(api: ApiServer, kind: str) -> None:
    create(api, policy(kind, "n" * 52, SNAPSHOTS if kind == RETENTION else {}), dry=True)
    with pytest.raises(Refused, match="at most 52"):
        create(api, policy(kind, "n" * 53, SNAPSHOTS if kind == RETENTION else {}), dry=True)


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_api_server_accepts_the_samples(api: ApiServer, path: Any) -> None:
    for manifest in yaml.safe_load_all(path.read_text()):
        stored = create(api, manifest, dry=True)
        model = MODELS[manifest["kind"]]
        assert model.model_validate(stored).spec == model.model_validate(manifest).spec


def test_both_kinds_have_samples() -> None:
    kinds = [document["kind"] for path in SAMPLES for document in yaml.safe_load_all(path.read_text())]
    assert kinds.count(COMPACTION) >= 2
    assert kinds.count(RETENTION) >= 1


REMOVED = {"items": 2**40, "files": 3, "bytes": 2**50, "sample": ["s3://bucket/warehouse/demo/t/data/00000.parquet"]}
RUN: Manifest = {
    "name": "firn-run-status-0123456789",
    "mode": "Enforce",
    "startTime": "2024-01-01T00:00:00Z",
    "finishTime": "2024-01-01T00:10:00Z",
    "result": "Failed",
    "message": "for people",
    "tables": 24,
    "tablesFailed": 1,
    "commits": 3,
    "filesBefore": 2**40,
    "filesAfter": 1,
    "bytesRewritten": 2**50,
    "deleteFilesRemoved": 0,
    "manifestsBefore": 0,
    "manifestsAfter": 0,
    "rows": REMOVED,
    "snapshots": REMOVED,
    "orphanFiles": REMOVED,
    "metadataFiles": REMOVED,
}
STATUS: Manifest = {
    "observedGeneration": 1,
    "conditions": [
        {
            "type": "Ready",
            "status": "True",
            "reason": "AllReady",
            "message": "for people",
            "lastTransitionTime": "2024-01-01T00:00:00Z",
            "observedGeneration": 1,
        }
    ],
    "topics": 50,
    "governs": [{"topic": "flights", "because": "NamedByTopic"}, {"topic": "trains", "because": "Selected"}],
    "topicsRefused": 1,
    "activeRuns": [
        {"name": "firn-run-status-1", "startTime": "2024-01-01T00:00:00Z", "result": "Running", "tables": 24}
    ],
    "lastRequest": "2024-01-01",
    "lastRun": RUN,
    "nextRunTime": "2024-01-02T00:00:00Z",
}


@pytest.mark.parametrize("kind", PLURALS)
def test_the_documented_status_is_stored_and_printed_in_full(api: ApiServer, kind: str) -> None:
    live = create(api, policy(kind, "documented", SNAPSHOTS if kind == RETENTION else {}))
    written = api.call("PUT", f"{place(kind, 'documented')}/status", {**live, "status": STATUS})
    assert written["status"] == STATUS
    assert written["metadata"]["generation"] == 1
    table = api.call("GET", place(kind, "documented"), accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    cells = table["rows"][0]["cells"]
    shown = {column["name"]: cell for column, cell in zip(table["columnDefinitions"], cells, strict=True)}
    assert shown.pop("Age")
    assert shown.pop("Last-Run")
    own = {"Strategy": "BinPack"} if kind == COMPACTION else {"Mode": "DryRun"}
    assert shown == own | {
        "Name": "documented",
        "Ready": "True",
        "Reason": "AllReady",
        "Topics": 50,
        "Result": "Failed",
        "Schedule": None if kind == COMPACTION else "15 3 * * *",
        "Next-Run": "2024-01-02T00:00:00Z",
        "Message": "for people",
    }


def test_the_crds_have_short_names_and_a_category(api: ApiServer) -> None:
    resources = {each["name"]: each for each in api.call("GET", "/apis/firn.dev/v1alpha1")["resources"]}
    for plural, short in (("compactionpolicies", "cpol"), ("retentionpolicies", "rpol")):
        assert resources[plural]["shortNames"] == [short]
        assert resources[plural]["categories"] == ["lakehouse"]
        assert resources[plural]["namespaced"]
