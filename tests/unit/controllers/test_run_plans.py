"""The tables of a run, the name of a run, and its Job."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from firn.model import names
from firn.model.config import Config
from firn.model.jobs import TableTarget
from firn_controllers.cache.policies import PolicyEntry
from firn_controllers.cache.policies import policy_entry as policy_entry
from firn_controllers.children import Owner
from firn_controllers.policies import plan
from firn_controllers.policies.due import Due
from firn_controllers.policies.plan import DueTable, PlannedRun
from firn_controllers.ports import TableDebt
from tests import gen

OWNER = Owner("firn-system", "uid")
GIB = 2**30


def policy(config: Config | None = None, name: str = "policy", **spec: Any) -> PolicyEntry:
    return policy_entry(gen.policy(name, **spec), config or gen.config())


def waiting(name: str = "flights", bytes_: int = 0, ago: int = 0, **due: Any) -> DueTable:
    observed = gen.observed(gen.topic(name))
    assert isinstance(observed.target, TableTarget)
    debt = TableDebt(table_uuid=f"table-{name}", due_bytes=bytes_, data_bytes=10 * bytes_, due_files=1)
    reason = Due(gen.NOW - timedelta(seconds=ago), "why", **due)
    return DueTable(observed.entry, observed.target, f"table-{name}", debt, reason, "")


def names_of(planned: list[PlannedRun]) -> list[tuple[list[str], str]]:
    return [([table.topic.name[1] for table in batch.tables], batch.size) for batch in planned]


SIZES = {
    "sizes": {"small": {}, "large": {"cores": 4, "memory": "8Gi", "executors": {"instances": 2}}},
    "largeTable": "1Gi",
}


def test_requested_tables_run_first_then_those_that_wait_longest() -> None:
    config = gen.config(maintenance={"tablesPerRun": 2})
    tables = [
        waiting("new", ago=1), waiting("old", ago=100), waiting("asked", requests={"topic": "1"}), waiting("older", ago=200),
    ]  # fmt: skip
    assert names_of(plan.planned_runs(policy(), tables, config, 9)) == [
        (["asked", "older"], "small"),
        (["old", "new"], "small"),
    ]
    assert names_of(plan.planned_runs(policy(), tables, config, 1)) == [(["asked", "older"], "small")]
    assert plan.planned_runs(policy(), tables, config, 0) == []
    assert plan.planned_runs(policy(), tables, config, -3) == []


def test_a_large_table_runs_alone_and_delays_no_small_one() -> None:
    config = gen.config(maintenance=SIZES)
    tables = [waiting("a", ago=3), waiting("large", GIB, ago=2), waiting("b", ago=1)]
    assert names_of(plan.planned_runs(policy(config), tables, config, 9)) == [
        (["a", "b"], "small"),
        (["large"], "large"),
    ]
    without = gen.config(maintenance={"largeTable": "1Gi"})
    assert names_of(plan.planned_runs(policy(without), tables, without, 9))[1] == (["large"], "small")


def test_the_size_of_a_table_is_the_size_of_its_work() -> None:
    config = gen.config(maintenance=SIZES)
    table = waiting("t", GIB // 5)  # of 2 GiB in all

    def size(kind: str, due: dict[str, Any] | None = None, **spec: Any) -> str:
        entry = policy(config, kind=kind, **spec)
        moved = replace(table, due=replace(table.due, **(due or {})))
        return plan.planned_runs(entry, [moved], config, 1)[0].size

    slot = {"slot": gen.NOW}
    assert size("CompactionPolicy") == "small"
    assert size("CompactionPolicy", slot) == "small", "BinPack rewrites no more files on a schedule"
    assert size("CompactionPolicy", slot, strategy="Sort") == "large", "Sort rewrites all files"
    assert size("CompactionPolicy", strategy="Sort") == "small"
    assert size("RetentionPolicy", slot, snapshots={"maxAge": "1d"}) == "small", "only metadata"
    assert size("RetentionPolicy", slot, rows={"column": "at", "maxAge": "1d"}) == "large"


def test_the_name_of_a_run_identifies_its_work() -> None:
    batch = PlannedRun((waiting("a"), waiting("b")), "small")
    mine = policy()
    assert plan.run_name(mine, batch) == plan.run_name(mine, PlannedRun(tuple(reversed(batch.tables)), "small"))
    assert plan.run_name(mine, batch) == plan.run_name(
        mine, PlannedRun((waiting("a", ago=50), waiting("b", ago=9)), "small")
    )
    others = [
        (policy_entry(gen.policy() | {"metadata": {**gen.policy()["metadata"], "uid": "u2"}}, gen.config()), batch),
        (mine, PlannedRun((waiting("a"),), "small")),
        (mine, PlannedRun((waiting("a"), waiting("c")), "small")),
        (mine, PlannedRun((waiting("a", slot=gen.NOW), waiting("b")), "small")),
        (mine, PlannedRun((waiting("a", requests={"topic": "1"}), waiting("b")), "small")),
        (mine, PlannedRun((replace(waiting("a"), last_run="firn-run-before"), waiting("b")), "small")),
    ]
    other_names = [plan.run_name(other_policy, other) for other_policy, other in others]
    assert len({plan.run_name(mine, batch), *other_names}) == len(others) + 1


@pytest.mark.parametrize("name", ["p", "n" * 52, "a" * 35 + "-." + "b" * 10, "dotted.name"])
def test_the_name_of_a_run_is_valid_for_jobs_and_labels(name: str) -> None:
    run_name = plan.run_name(policy(name=name), PlannedRun((waiting(),), "small"))
    assert len(run_name) <= 57
    assert run_name.startswith("firn-run-")
    assert not set(run_name) - set("abcdefghijklmnopqrstuvwxyz0123456789-.")
    assert ".-" not in run_name


def test_the_contract_has_the_work_and_only_the_catalogs_in_use() -> None:
    config = gen.config(maintenance={**SIZES, "sparkConf": {"a": "b"}, "serviceAccount": "mine"})
    entry = policy(
        config, strategy="Sort", columns=["id desc"], targetFileSize="64Mi", openGrace="1m", run={"deadline": "2h"}
    )
    run = plan.contract(entry, PlannedRun((waiting(slot=gen.NOW),), "large"), config, gen.NOW)
    (table,) = run.tables
    work = table.compaction
    assert work is not None
    assert (work.strategy, work.columns, work.everything) == ("Sort", ("id desc",), True)
    assert (work.target_file_bytes, work.open_grace_ms) == (64 * 2**20, 60_000)
    assert (table.uid, table.table_uuid, table.table.identifier) == (
        "uid-demo-flights",
        "table-flights",
        "lake.demo.flights",
    )
    assert set(run.catalogs) == {"lake"}
    assert (run.cores, run.deadline_ms, run.service_account, run.spark_conf) == (4, 7_200_000, "mine", {"a": "b"})
    assert run.executors is not None
    assert run.executor_image == "firn-spark:1"
    small = plan.contract(entry, PlannedRun((waiting(),), "small"), config, gen.NOW)
    assert (small.executors, small.executor_image) == (None, None)
    assert small.tables[0].compaction is not None
    assert not small.tables[0].compaction.everything


@pytest.mark.parametrize("key", ["write.metadata.previous-versions-max", "write.metadata.delete-after-commit.enabled"])
def test_a_topic_overrides_metadata_files_of_the_policy(key: str) -> None:
    config = gen.config()
    entry = policy(config, kind="RetentionPolicy", snapshots={"maxAge": "7d"}, metadataFiles={"keep": 10})
    plain = waiting()
    own = replace(plain, target=plain.target.model_copy(update={"properties": {key: "false"}}))
    run = plan.contract(entry, PlannedRun((plain, own), "small"), config, gen.NOW)
    works = [table.retention for table in run.tables]
    assert [(work.metadata_keep, work.snapshots is not None) for work in works if work] == [(10, True), (None, True)]


def test_all_attempts_of_a_run_share_the_deadline_of_the_job() -> None:
    config = gen.config(maintenance=SIZES)
    entry, batch = policy(config, run={"deadline": "2h"}), PlannedRun((waiting(),), "small")
    run = plan.contract(entry, batch, config, gen.NOW)
    assert run.until_ms == int((gen.NOW + timedelta(hours=2)).timestamp() * 1000)
    later = plan.contract(entry, batch, config, gen.NOW + timedelta(seconds=7))
    assert later.until_ms == int((gen.NOW + timedelta(hours=2, seconds=7)).timestamp() * 1000)
    assert later.name == run.name, "the same work, planned twice, is one run"


def test_the_job_has_a_deadline_limited_retries_and_no_secret() -> None:
    sasl = {"mechanism": "PLAIN", "username": "u", "password": {"secret": "kafka-password", "key": "password"}}
    config = gen.config(
        maintenance={"ttl": "2h", "image": {"image": "other:2"}, "environment": {"AWS_REGION": "r"}},
        profiles={"classic": {"bootstrapServers": "kafka:9092", "security": {"sasl": sasl}}},
    )
    assert "kafka-password" in config.secret_names()
    entry = policy(config, run={"deadline": "30m", "retries": 5})
    batch = PlannedRun((waiting(),), "small")
    run = plan.contract(entry, batch, config, gen.NOW)
    job = plan.job(entry, batch, run, config, OWNER)
    spec = job["spec"]
    assert (spec["backoffLimit"], spec["ttlSecondsAfterFinished"]) == (5, 7200)
    assert spec["activeDeadlineSeconds"] > 1800, "the run's own deadline comes first, so that it can still report"
    [fatal, disrupted] = spec["podFailurePolicy"]["rules"]
    assert (fatal["action"], fatal["onExitCodes"]["values"]) == ("FailJob", [2, 4])
    assert disrupted["action"] == "Ignore"
    pod = spec["template"]["spec"]
    assert (pod["restartPolicy"], pod["serviceAccountName"]) == ("Never", "firn-maintain")
    (container,) = pod["containers"]
    assert container["image"] == "other:2"
    assert container["args"] == ["firn-maintain", names.RUN_PATH]
    assert {"name": "AWS_REGION", "value": "r"} in container["env"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert f"{mounts['run']}/run.json" == names.RUN_PATH
    secrets = {path for path in mounts.values() if path.startswith("/etc/firn/secrets/")}
    assert secrets == {"/etc/firn/secrets/firn-postgres"}, "only the Secrets of the tables' catalogs"
    contract = plan.config_map(entry, run, OWNER)
    assert contract["metadata"]["name"] == job["metadata"]["name"] == run.name
    assert list(contract["data"]) == ["run.json"]
    for manifest in (job, contract, spec["template"]):
        labels = manifest["metadata"]["labels"]
        assert plan.policy_labels(entry).items() <= labels.items(), "the watch selects Jobs by these labels"
        assert labels[names.LABEL_RUN] == run.name
    assert job["metadata"]["ownerReferences"][0]["name"] == names.CONFIG_OBJECT
