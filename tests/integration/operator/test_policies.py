"""Policies under a running operator: from an annotation to a Job, and from the end of the Job to both statuses."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from firn.model import names
from firn.model.maintenance import MaintenanceRun, RunReport, TableReport, pack
from tests.servers.process import await_true

if TYPE_CHECKING:
    from tests.integration.operator.conftest import Running, World

SYSTEM = "firn-system"
SCHEMA = {"format": "Json", "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "int"}]}
PLURALS = {"CompactionPolicy": "compactionpolicies", "RetentionPolicy": "retentionpolicies"}
Manifest = dict[str, Any]


@pytest.fixture(scope="module")
def operator(world: "World") -> Iterator["Running"]:
    world.api.call("POST", f"/api/v1/namespaces/{SYSTEM}/serviceaccounts", {"metadata": {"name": "firn-maintain"}})
    with world.operator() as running:
        yield running


def place(kind: str, name: str) -> str:
    return f"/apis/{names.API_VERSION}/namespaces/demo/{PLURALS[kind]}/{name}"


def apply(world: "World", kind: str, name: str, spec: Manifest, **annotations: str) -> Manifest:
    metadata = {
        "name": name,
        "annotations": {f"firn.dev/{key.replace('_', '-')}": value for key, value in annotations.items()},
    }
    body = {"apiVersion": names.API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
    query = "?fieldManager=user&force=true"
    return world.api.call("PATCH", place(kind, name) + query, body, "application/apply-patch+yaml")


def status(world: "World", kind: str, name: str) -> Manifest:
    policy = world.find(place(kind, name))
    return (policy or {}).get("status", {})


def condition(status: Manifest, kind: str) -> tuple[str, str]:
    return next(((item["status"], item["reason"]) for item in status["conditions"] if item["type"] == kind), ("", ""))


def jobs(world: "World", policy: str) -> list[Manifest]:
    items: list[Manifest] = world.api.call(
        "GET", f"/apis/batch/v1/namespaces/{SYSTEM}/jobs?labelSelector={names.LABEL_POLICY}%3D{policy}"
    )["items"]
    return items


def end(world: "World", job: Manifest, **fields: Any) -> None:
    """Write the end of a run as kubelet and Job controller do. This API server has no nodes."""
    name = job["metadata"]["name"]
    contract = world.find(f"/api/v1/namespaces/{SYSTEM}/configmaps/{name}")
    assert contract is not None
    run = MaintenanceRun.model_validate_json(contract["data"]["run.json"])
    report = RunReport(name=name, tables=tuple(TableReport(uid=table.uid, **fields) for table in run.tables))
    template, now = job["spec"]["template"], "2026-01-01T00:10:00Z"
    pod = {"metadata": {**template["metadata"], "name": f"{name}-x"}, "spec": dict(template["spec"])}
    pod["spec"]["automountServiceAccountToken"] = False
    made = world.api.call("POST", f"/api/v1/namespaces/{SYSTEM}/pods", pod)
    ended = {"exitCode": 0, "startedAt": now, "finishedAt": now, "message": pack(report)}
    container = {"name": "run", "state": {"terminated": ended}, "ready": False, "restartCount": 0}
    made["status"] = {"phase": "Succeeded", "containerStatuses": [{**container, "image": "i", "imageID": "i"}]}
    world.api.call("PUT", f"/api/v1/namespaces/{SYSTEM}/pods/{name}-x/status", made)
    live = world.api.call("GET", f"/apis/batch/v1/namespaces/{SYSTEM}/jobs/{name}")
    now = live["metadata"]["creationTimestamp"]
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": now, "lastProbeTime": now, "reason": "Done"}
        for kind in ("SuccessCriteriaMet", "Complete")
    ]
    live["status"] = {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions}
    world.api.call("PUT", f"/apis/batch/v1/namespaces/{SYSTEM}/jobs/{name}/status", live)


def test_a_requested_run_starts_and_both_statuses_report_it(world: "World", operator: "Running", name: str) -> None:
    apply(world, "CompactionPolicy", name, {"triggers": {"smallFiles": 1000}})
    world.apply(name, {"schema": SCHEMA, "partitions": 1, "compactionPolicyRef": {"name": name}})
    world.await_made(name)
    world.await_condition(name, "PoliciesResolved", "True", "Resolved")
    await_true("the policy counts its topic", lambda: status(world, "CompactionPolicy", name).get("topics") == 1)
    assert condition(status(world, "CompactionPolicy", name), "Ready") == ("True", "AllReady")
    assert jobs(world, name) == []

    apply(world, "CompactionPolicy", name, {"triggers": {"smallFiles": 1000}}, run_now="1")
    await_true("a run", lambda: len(jobs(world, name)) == 1)
    await_true(
        "the status shows the run", lambda: len(status(world, "CompactionPolicy", name).get("activeRuns", [])) == 1
    )
    end(world, jobs(world, name)[0], outcome="Done", commits=1, files_before=9, files_after=1, bytes_rewritten=99)
    await_true("the status shows the end of the run", lambda: "lastRun" in status(world, "CompactionPolicy", name))
    last = status(world, "CompactionPolicy", name)["lastRun"]
    assert (last["result"], last["tables"], last["filesAfter"]) == ("Succeeded", 1, 1)
    world.await_condition(name, "MaintenanceHealthy", "True", "Succeeded")
    topic = world.topic(name)
    assert topic is not None
    bound = topic["status"]["maintenance"]["compaction"]
    assert (bound["policy"], bound["because"]) == (name, "NamedByTopic")
    assert bound["lastRequest"] == {"policy": "1"}
    # The operator may write the status before it counts the run.
    await_true("the run is counted", lambda: operator.metric("firn_maintenance_runs_total") >= 1)
    assert operator.metric("firn_maintenance_rewritten_bytes_total") >= 99

    def events() -> set[tuple[str, str]]:
        items = world.api.call("GET", "/api/v1/namespaces/demo/events")["items"]
        return {
            (event["involvedObject"]["kind"], event["reason"])
            for event in items
            if event["involvedObject"]["name"] == name
        }

    wanted = {("CompactionPolicy", "RunStarted"), ("CompactionPolicy", "Compacted"), ("IcebergTopic", "Compacted")}
    await_true("Events", lambda: wanted <= events())
    assert len(jobs(world, name)) == 1


def test_an_invalid_policy_names_the_field_and_recovers(world: "World", operator: "Running", name: str) -> None:
    apply(world, "RetentionPolicy", name, {"snapshots": {"maxAge": "7d"}, "schedule": {"cron": "0 25 * * *"}})

    def policy_status() -> Manifest:
        return status(world, "RetentionPolicy", name)

    await_true("the policy is rejected", lambda: condition(policy_status(), "SpecValid") == ("False", "InvalidSpec"))
    message = next(item["message"] for item in policy_status()["conditions"] if item["type"] == "SpecValid")
    assert "spec.schedule.cron" in message
    apply(world, "RetentionPolicy", name, {"snapshots": {"maxAge": "7d"}, "schedule": {"cron": "0 5 * * *"}})
    await_true("the policy is accepted", lambda: condition(policy_status(), "Ready") == ("True", "AllReady"))
    world.api.call("DELETE", place("RetentionPolicy", name))


def test_a_restarted_operator_finds_its_runs_and_starts_no_other(world: "World", name: str) -> None:
    apply(world, "RetentionPolicy", name, {"snapshots": {"maxAge": "7d"}}, run_now="1")
    world.apply(name, {"schema": SCHEMA, "partitions": 1, "retentionPolicyRef": {"name": name}})
    with world.operator():
        world.await_made(name)
        await_true("a run", lambda: len(jobs(world, name)) == 1)
    end(world, jobs(world, name)[0], outcome="Nothing")
    with world.operator():
        await_true("the status shows the end of the run", lambda: "lastRun" in status(world, "RetentionPolicy", name))
        world.await_condition(name, "MaintenanceHealthy", "True", "Succeeded")
        assert len(jobs(world, name)) == 1
        apply(world, "RetentionPolicy", name, {"snapshots": {"maxAge": "7d"}}, run_now="2")
        await_true("another run", lambda: len(jobs(world, name)) == 2)
        world.api.call("DELETE", place("RetentionPolicy", name))
        await_true("the active run is stopped", lambda: len(jobs(world, name)) == 1)
        world.await_condition(name, "PoliciesResolved", "False", "PolicyNotFound")
