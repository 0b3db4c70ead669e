"""The kept parts of watched objects, and the detection of a watch that delivers nothing."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.model import names
from firn_operator.adapters.kube.workloads import Workloads, pod_state
from firn_operator.process import crd
from firn_operator.process.watches import Deliveries, Watches, trimmed
from tests import gen

Manifest = dict[str, Any]


def pod(version: int, uid: str = "uid-1", name: str = "firn-ingest-default-0", **status: Any) -> Manifest:
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "firn-system",
            "uid": uid,
            "resourceVersion": str(version),
            "labels": {names.LABEL_GROUP: "default"},
            "annotations": {names.TEMPLATE_HASH: "abc"},
        },
        "spec": {"containers": [{"name": "driver"}, {"name": "sidecar"}], "nodeName": "node-1"},
        "status": {"phase": "Running", **status},
    }


class Lists:
    """An API server that answers list requests only."""

    def __init__(self, pods: list[Manifest]) -> None:
        self.pods = pods

    async def call(self, method: str, path: str, *_: object, **__: object) -> Manifest:
        return {"metadata": {"resourceVersion": "9"}, "items": self.pods if path.endswith("/pods") else []}


def listed(deliveries: Deliveries, version: int | None, at: int = 20) -> None:
    """List the operator's namespace with a pod of this version."""
    deliveries.listed("Pod", "firn-system", {"firn-system": version} if version else {}, at)


def container(name: str = "driver", **state: Any) -> Manifest:
    return {"name": name, "restartCount": 3, **state}


def test_a_running_pod_has_its_state() -> None:
    state = pod_state(
        pod(
            1,
            conditions=[{"type": "Ready", "status": "True"}],
            containerStatuses=[
                container("sidecar", state={"waiting": {"reason": "CrashLoopBackOff"}}),
                container(state={"running": {}}),
            ],
        )
    )
    assert (state.ready, state.running, state.phase, state.restarts, state.node) == (True, True, "Running", 3, "node-1")
    assert (state.template_hash, state.labels) == ("abc", {names.LABEL_GROUP: "default"})
    assert state.waiting_reason == "CrashLoopBackOff"


def test_a_pod_has_the_ports_of_its_main_container() -> None:
    read = pod(1)
    assert pod_state(read).ports == frozenset()
    read["spec"]["containers"][0]["ports"] = [{"name": "kafka", "containerPort": 9092}, {"containerPort": 9094}]
    read["spec"]["containers"][1]["ports"] = [{"name": "metrics", "containerPort": 9090}]
    assert pod_state(read).ports == {"kafka"}


def test_a_starting_pod_has_no_waiting_reason() -> None:
    state = pod_state(pod(1, containerStatuses=[container(state={"waiting": {"reason": "ContainerCreating"}})]))
    assert (state.ready, state.running, state.waiting_reason) == (False, False, None)


def test_an_init_container_shows_an_image_that_cannot_be_pulled() -> None:
    wait = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    state = pod_state(pod(1, initContainerStatuses=[container("init", state={"waiting": wait})]))
    assert (state.waiting_reason, state.waiting_message) == ("ImagePullBackOff", "Back-off pulling image")


@pytest.mark.parametrize("where", ["state", "lastState"])
def test_a_pod_has_the_exit_of_its_main_container(where: str) -> None:
    ended: dict[str, Any] = {where: {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    state = pod_state(pod(1, containerStatuses=[container(**ended)]))
    assert (state.last_exit_code, state.last_exit_reason) == (137, "OOMKilled")


def test_an_evicted_pod_has_only_its_own_reason() -> None:
    state = pod_state(pod(1, phase="Failed", reason="Evicted"))
    assert (state.phase, state.last_exit_code, state.last_exit_reason) == ("Failed", None, "Evicted")


def test_an_unscheduled_pod_has_the_message_of_the_scheduler() -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    assert pod_state(pod(1, conditions=[condition])).unschedulable == "0/3 nodes"


def test_an_older_event_of_a_pod_is_ignored() -> None:
    workloads = Workloads()
    assert workloads.seen(pod(5, phase="Running"))
    assert not workloads.seen(pod(4, phase="Pending"))
    assert not workloads.seen(pod(5))
    assert workloads.pods({names.LABEL_GROUP: "default"})[0].phase == "Running"
    assert workloads.seen(pod(3, uid="uid-2", phase="Pending"))  # another pod of the same name


def restarted(version: int, count: int, seconds: int) -> dict[str, Any]:
    """Return the pod after its restart number ``count``. Its run before that lasted so many seconds."""
    begun = datetime(2026, 3, 1, 12, tzinfo=UTC)
    times = {"startedAt": begun.isoformat(), "finishedAt": (begun + timedelta(seconds=seconds)).isoformat()}
    ended = {"terminated": {"exitCode": 75, **times}}
    return pod(version, containerStatuses=[container(restartCount=count, lastState=ended, state={"running": {}})])


def test_restarts_before_a_long_run_are_no_fast_failures() -> None:
    workloads = Workloads()
    for version, (count, seconds, fast) in enumerate(
        [(1, 20, 1), (2, 20, 2), (3, 86_400, 1), (4, 20, 2), (5, 20, 3), (6, 86_400, 1), (6, 86_400, 1)], 1
    ):
        workloads.seen(restarted(version, count, seconds))
        assert workloads.pods({})[0].restarts == fast


def test_a_ready_pod_that_is_seen_first_has_recovered() -> None:
    workloads = Workloads()
    healthy = restarted(1, 12, 20)
    healthy["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    workloads.seen(healthy)
    assert workloads.pods({})[0].restarts == 0
    workloads.seen(restarted(2, 13, 20))
    assert workloads.pods({})[0].restarts == 1


def test_a_new_pod_has_restarts_of_its_own() -> None:
    workloads = Workloads()
    workloads.seen(restarted(1, 6, 86_400))
    fresh = restarted(2, 3, 20)
    fresh["metadata"]["uid"] = "uid-2"
    workloads.seen(fresh)
    assert workloads.pods({})[0].restarts == 3


def test_a_late_deletion_does_not_remove_the_successor() -> None:
    workloads = Workloads()
    workloads.seen(pod(5, uid="uid-2"))
    workloads.gone(pod(4, uid="uid-1"))
    assert len(workloads.pods({})) == 1
    workloads.gone(pod(6, uid="uid-2"))
    assert workloads.pods({}) == []


def test_a_list_removes_only_pods_older_than_itself() -> None:
    workloads = Workloads()
    for number, version in enumerate((3, 5, 9)):
        workloads.seen(pod(version, uid=f"uid-{number}", name=f"pod-{number}"))
    gone = workloads.listed("Pod", [pod(6, uid="uid-1", name="pod-1")], version=7)
    assert gone == ["pod-0"]
    assert [state.name for state in workloads.pods({})] == ["pod-1", "pod-2"]


def test_pods_are_found_by_all_their_labels() -> None:
    workloads = Workloads()
    workloads.seen(pod(1))
    assert workloads.pods({names.LABEL_GROUP: "default", "more": "x"}) == []
    assert len(workloads.pods({names.LABEL_GROUP: "default"})) == 1


def job(version: int, *true: str, name: str = "firn-run-p-1", **status: Any) -> Manifest:
    moment = "2026-03-01T12:00:00Z"
    conditions = [
        {"type": kind, "status": "True", "reason": "DeadlineExceeded", "lastTransitionTime": moment} for kind in true
    ]
    metadata = {
        "name": name, "uid": "uid-1", "resourceVersion": str(version), "creationTimestamp": moment,
        "labels": {"app.kubernetes.io/component": "maintenance"}, "annotations": {"firn.dev/run": "{}"},
    }  # fmt: skip
    return {"kind": "Job", "metadata": metadata, "spec": {}, "status": {"conditions": conditions, **status}}


def test_a_job_runs_until_it_is_complete_or_failed() -> None:
    workloads = Workloads()
    outcomes = []
    for version, true in ((1, ()), (2, ("FailureTarget",)), (3, ("FailureTarget", "Failed"))):
        workloads.seen(job(version, *true))
        (state,) = workloads.jobs({"app.kubernetes.io/component": "maintenance"})
        outcomes.append((state.finished is not None, state.succeeded, state.failure))
    assert outcomes == [(False, False, ""), (False, False, ""), (True, False, "DeadlineExceeded")]
    workloads.seen(job(4, "Complete", name="other", completionTime="2026-03-01T12:34:56Z"))
    (other,) = (job_state for job_state in workloads.jobs({}) if job_state.name == "other")
    assert (other.succeeded, other.failure) == (True, "")
    assert other.finished == datetime(2026, 3, 1, 12, 34, 56, tzinfo=UTC)
    assert workloads.jobs({"app.kubernetes.io/component": "broker"}) == []
    workloads.gone(job(5, name="other"))
    assert [job_state.name for job_state in workloads.jobs({})] == ["firn-run-p-1"]


def test_an_ended_pod_has_its_termination_message() -> None:
    ended = {"exitCode": 0, "finishedAt": "2026-03-01T12:00:05Z", "message": "words"}
    state = pod_state(pod(1, containerStatuses=[container(state={"terminated": ended})]))
    assert (state.finished, state.message) == (datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC), "words")
    again = pod_state(pod(1, containerStatuses=[container(state={"running": {}}, lastState={"terminated": ended})]))
    assert (again.finished, again.message) == (None, "")


def test_a_watch_that_delivers_is_not_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("firn_operator.process.watches.time.monotonic", lambda: now[0])
    deliveries = Deliveries()
    listed(deliveries, 5)
    now[0] = 130
    assert deliveries.behind_seconds() == 30
    deliveries.delivered(pod(5))
    assert deliveries.behind_seconds() == 0


def test_a_dead_watch_is_behind_since_the_first_newer_list(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("firn_operator.process.watches.time.monotonic", lambda: now[0])
    deliveries = Deliveries()
    deliveries.delivered(pod(5))
    for version in (6, 8):
        listed(deliveries, version)
        now[0] += 60
    assert deliveries.behind_seconds() == 120


def test_objects_deleted_during_a_gap_are_no_longer_awaited(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 410 Gone a watch starts with the current objects. It shows no object that appeared and disappeared
    meanwhile."""
    now = [100.0]
    monkeypatch.setattr("firn_operator.process.watches.time.monotonic", lambda: now[0])
    deliveries = Deliveries()
    deliveries.delivered(pod(5))
    listed(deliveries, 6)
    now[0] += 60
    listed(deliveries, 5, at=7)
    assert deliveries.behind_seconds() == 0
    listed(deliveries, 8)
    now[0] += 10
    assert deliveries.behind_seconds() == 10, "only the time since the last list counts"


def test_a_list_of_one_namespace_does_not_affect_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("firn_operator.process.watches.time.monotonic", lambda: now[0])
    deliveries = Deliveries()
    deliveries.listed("IcebergTopic", "a", {"a": 5}, 5)
    deliveries.listed("IcebergTopic", "b", {}, 6)
    deliveries.listed("Pod", "a", {}, 6)
    now[0] += 10
    assert deliveries.behind_seconds() == 10
    deliveries.listed("IcebergTopic", None, {}, 7)
    assert deliveries.behind_seconds() == 0


def test_only_namespaces_that_stay_empty_are_forgotten() -> None:
    deliveries = Deliveries()
    deliveries.delivered(pod(9))
    listed(deliveries, None, at=7)
    listed(deliveries, 9)
    assert deliveries.behind_seconds() == 0, "it was delivered after the first list was read"
    listed(deliveries, None, at=12)
    assert not deliveries._delivered


async def test_lists_are_read_again_soon_when_a_watch_seems_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object is deleted before its watch connects. The watch counts as alive, and no resync is needed."""
    monkeypatch.setattr("firn_operator.process.watches.LOOK_AGAIN", 0.02)
    api = Lists([pod(5)])
    empty = SimpleNamespace(all=list)
    controllers = SimpleNamespace(
        child_seen=lambda labels: None,
        topics=empty,
        policies=empty,
        replays=empty,
        sets=empty,
        user_events=SimpleNamespace(users=empty, grants=empty),
        synced=lambda: None,
    )
    config = gen.config(namespace="firn-system")
    watches = Watches(config, cast(Any, api), cast(Any, None), cast(Any, controllers), Workloads(), cast(Any, None))
    await watches.sync()
    assert watches.deliveries.behind_seconds() > 0
    api.pods = []
    resyncing = asyncio.create_task(watches.resync())
    async with asyncio.timeout(10):
        while watches.deliveries.behind_seconds():
            await asyncio.sleep(0.01)
    resyncing.cancel()


def test_field_managers_are_dropped_from_objects() -> None:
    made = trimmed(
        {
            "metadata": {
                "name": "a",
                "managedFields": [1],
                "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", names.PAUSE: "true"},
            }
        }
    )
    assert made["metadata"] == {"name": "a", "annotations": {names.PAUSE: "true"}}


def test_fields_that_a_crd_lacks_are_named_by_path() -> None:
    needed = {
        "type": "object",
        "properties": {
            "a": {"type": "string"},
            "list": {"type": "array", "items": {"type": "object", "properties": {"x": {"type": "integer"}}}},
            "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        },
    }
    live = {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "list": {"type": "array", "items": {"type": "object", "properties": {}}},
            "more": {"type": "string"},
        },
    }
    assert list(crd.missing_fields(needed, live)) == ["a", "list[].x", "free"]
    assert list(crd.missing_fields(needed, needed)) == []
