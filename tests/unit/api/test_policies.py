"""Values that follow from policies: triggers, work, selectors."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from firn.api.v1alpha1 import CompactionPolicy, IcebergTopic, RetentionPolicy
from firn.api.v1alpha1.compaction_policy import DEFAULT_TRIGGERS
from firn.api.v1alpha1.policy import LabelSelector
from firn.model import durations
from firn_controllers.specs import terms
from tests import gen

ROOT = Path(__file__).parents[3]
SAMPLES = sorted((ROOT / "crds/samples/policies").glob("*.yaml"))


def compaction(**spec: Any) -> CompactionPolicy:
    return CompactionPolicy.model_validate(gen.policy(**spec))


def retention(**spec: Any) -> RetentionPolicy:
    return RetentionPolicy.model_validate(gen.policy(kind="RetentionPolicy", **spec))


@pytest.mark.parametrize(
    ("spec", "triggers"),
    [
        ({}, DEFAULT_TRIGGERS),
        ({"triggers": {}}, DEFAULT_TRIGGERS),
        ({"triggers": {"minInterval": "1m"}}, DEFAULT_TRIGGERS.model_copy(update={"min_interval": "1m"})),
        ({"schedule": {"cron": "0 3 * * *"}}, None),
    ],
)
def test_unset_triggers_have_defaults(spec: dict[str, Any], triggers: object) -> None:
    assert compaction(**spec).triggers == triggers


def test_set_triggers_replace_the_defaults() -> None:
    triggers = compaction(triggers={"maxAge": "1h"}).triggers
    assert triggers is not None
    assert (triggers.small_files, triggers.small_bytes, triggers.delete_file_ratio, triggers.max_age) == (
        None,
        None,
        None,
        "1h",
    )


def test_a_compaction_policy_becomes_work() -> None:
    work = compaction(targetFileSize="1Gi", openGrace="90s", triggers={"deleteFileRatio": "0.05"}).work()
    assert (work.target_file_bytes, work.open_grace_ms, work.delete_file_ratio) == (2**30, 90_000, 0.05)
    assert compaction(triggers={"smallFiles": 5}).work().delete_file_ratio == 0.3, (
        "deleted rows are removed by other rewrites, too"
    )
    assert not compaction().work(everything=True).everything, "BinPack rewrites no large files"
    assert compaction(strategy="ZOrder", columns=["a"]).work(everything=True).everything


def test_a_retention_policy_becomes_work() -> None:
    assert retention(log={"maxAge": "7d"}).work() is None, "the broker applies the retention of the log"
    work = retention(metadataFiles={"keep": 7}).work()
    assert work is not None
    assert not work.enforce
    assert (work.metadata_keep, work.rows, work.snapshots, work.orphan_min_age_ms) == (7, None, None, None)
    enforced = retention(mode="Enforce", orphanFiles={"minAge": "3d"}).work()
    assert enforced is not None
    assert (enforced.enforce, enforced.orphan_min_age_ms) == (True, 3 * 86_400_000)


@pytest.mark.parametrize(
    ("selector", "matching", "other"),
    [
        ({}, {}, None),
        ({"matchLabels": {"team": "x"}}, {"team": "x", "tier": "1"}, {"team": "y"}),
        ({"matchLabels": {"team": "x", "tier": "1"}}, {"team": "x", "tier": "1"}, {"team": "x"}),
        (_in := {"matchExpressions": [{"key": "team", "operator": "In", "values": ["x", "y"]}]}, {"team": "y"}, {}),
        (
            {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["x"]}]},
            {"tier": "1"},
            {"team": "x"},
        ),
        ({"matchExpressions": [{"key": "team", "operator": "Exists"}]}, {"team": ""}, {"tier": "1"}),
        ({"matchExpressions": [{"key": "team", "operator": "DoesNotExist"}]}, {"tier": "1"}, {"team": ""}),
        ({**_in, "matchLabels": {"tier": "1"}}, {"team": "x", "tier": "1"}, {"team": "x"}),
    ],
)
def test_selectors_select_as_kubernetes_does(
    selector: dict[str, Any], matching: dict[str, str], other: dict[str, str] | None
) -> None:
    parsed = LabelSelector.model_validate(selector)
    assert parsed.matches(matching)
    assert other is None or not parsed.matches(other)


def test_the_sample_of_legal_retention_keeps_the_days_in_its_name() -> None:
    document = yaml.safe_load((ROOT / "crds/samples/policies/legal-retention.yaml").read_text())
    spec = RetentionPolicy.model_validate(document).spec
    assert spec.log is not None
    assert spec.rows is not None
    assert spec.snapshots is not None
    assert spec.orphan_files is not None
    promised = timedelta(days=int(document["metadata"]["name"].split("-")[1]))
    minute, hour, *rest = spec.schedule.cron.split()
    assert (minute.isdigit(), hour.isdigit(), rest) == (True, True, ["*"] * 3), "once a day"
    late = durations.parse(spec.schedule.jitter or "1ms") + durations.parse(spec.run.deadline) + timedelta(minutes=1)
    clocks = timedelta(hours=1)
    next_run = timedelta(days=1) + clocks + late
    removed = durations.parse(spec.rows.max_age or "") + next_run
    assert durations.parse(spec.snapshots.max_age) < timedelta(days=1) - clocks - late, "deleted by the next run"
    assert removed + next_run <= promised
    assert removed + durations.parse(spec.orphan_files.min_age) + next_run <= promised
    segment, checks = timedelta(days=7), timedelta(minutes=6)
    assert durations.parse(spec.log.max_age or "") + segment + checks <= promised


def test_samples_are_valid_and_fit_the_topic_of_the_samples() -> None:
    config = gen.config()
    flights = IcebergTopic.parse(yaml.safe_load((ROOT / "crds/samples/flights.yaml").read_text()))
    columns = {field.name for field in flights.spec.record_schema.fields or ()} if flights.spec.record_schema else set()
    kinds: dict[str, type[CompactionPolicy | RetentionPolicy]] = {
        "CompactionPolicy": CompactionPolicy,
        "RetentionPolicy": RetentionPolicy,
    }
    samples = [document for path in SAMPLES for document in yaml.safe_load_all(path.read_text())]
    assert {document["kind"] for document in samples} == set(kinds)
    for document in samples:
        policy = kinds[document["kind"]].model_validate(document)
        terms.read_terms(policy, "uid", config)
        assert policy.metadata.namespace == flights.metadata.namespace
        if isinstance(policy, CompactionPolicy):
            assert set(policy.spec.columns) <= columns
            if policy.spec.selector is not None:
                assert policy.spec.selector.matches(flights.metadata.labels)
        else:
            assert not policy.enforced, "applying a sample deletes no data"
