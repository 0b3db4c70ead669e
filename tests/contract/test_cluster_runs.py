"""Port `Cluster` as policies use it, for the fake and for a real API server.

Covers Jobs, termination messages of their pods, and the status of policies."""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration

from firn.model import names
from firn.model.errors import CommitConflictError
from firn.model.maintenance import RunReport, TableReport, pack
from firn_controllers.cache.policies import policy_entry as policy_entry
from firn_controllers.children import Owner
from firn_controllers.policies import plan, runs
from firn_controllers.policies.due import Due
from firn_controllers.policies.plan import DueTable, PlannedRun
from firn_controllers.ports import Cluster, Manifest
from firn_operator.adapters.kube.api_client import Api, RateLimit, path
from firn_operator.adapters.kube.cluster import KubeCluster
from firn_operator.adapters.kube.workloads import Workloads
from tests import gen
from tests.apiserver import SYSTEM, ApiServer
from tests.fakes.cluster import FakeCluster

REPOSITORY = Path(__file__).resolve().parents[2]
OWNER = Owner(SYSTEM, "3f0c1d0e-6f2b-4d5e-9c64-0123456789ab")


@dataclass(frozen=True)
class Subject:
    """A cluster and the functions that change it from outside."""

    cluster: Cluster
    create: Callable[[Manifest], Any]
    """Creates an object, as kubectl create does."""
    end: Callable[..., Any]
    """Ends a Job, given its name, the message of its pod or None, and ``failure``."""


@pytest.fixture(scope="module")
def server(api_server: ApiServer) -> ApiServer:
    account = {"metadata": {"name": "firn-maintain"}}
    api_server.call("POST", f"/api/v1/namespaces/{SYSTEM}/serviceaccounts", account)
    return api_server


@pytest_asyncio.fixture(params=["fake", "kubernetes"])
async def subject(request: pytest.FixtureRequest) -> AsyncIterator[Subject]:
    if request.param == "fake":
        fake = FakeCluster()
        yield Subject(fake, fake.create, fake.end_job)
        return
    server: ApiServer = request.getfixturevalue("server")
    configuration = Configuration()
    await kube_config.load_kube_config(str(server.kubeconfig), client_configuration=configuration)
    api = Api(configuration, RateLimit(1000, 1000))
    workloads = Workloads()

    def create(manifest: Manifest) -> None:
        made = {**manifest, "metadata": {key: manifest["metadata"][key] for key in ("name", "namespace")}}
        server.call("POST", path(made["apiVersion"], made["kind"], made["metadata"]["namespace"]), made)

    def end(name: str, message: str | None = "", *, failure: str = "") -> None:
        """Write the end of a Job as the Job controller and the kubelet do, and pass it to the watch."""
        place = path("batch/v1", "Job", SYSTEM, name)
        live = server.call("GET", place)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if message is not None:
            template = live["spec"]["template"]
            pod = {**template, "metadata": {**template["metadata"], "name": f"{name}-0", "namespace": SYSTEM}}
            pod["spec"]["automountServiceAccountToken"] = False
            made = server.call("POST", path("v1", "Pod", SYSTEM), pod)
            terminated = {"exitCode": 1 if failure else 0, "finishedAt": now, "startedAt": now, "message": message}
            container = {"name": "run", "state": {"terminated": terminated}, "ready": False, "restartCount": 0}
            made["status"] = {
                "phase": "Failed" if failure else "Succeeded",
                "containerStatuses": [{**container, "image": "i", "imageID": "i"}],
            }
            workloads.seen(
                {**server.call("PUT", path("v1", "Pod", SYSTEM, f"{name}-0", "status"), made), "kind": "Pod"}
            )
        both = ("FailureTarget", "Failed") if failure else ("SuccessCriteriaMet", "Complete")
        conditions = [
            {
                "type": kind,
                "status": "True",
                "lastTransitionTime": now,
                "lastProbeTime": now,
                "reason": failure or "Done",
            }
            for kind in both
        ]
        live["status"] = {"startTime": now, "conditions": conditions}
        if not failure:
            live["status"] |= {"completionTime": now, "succeeded": 1}
        workloads.seen({**server.call("PUT", f"{place}/status", live), "kind": "Job"})

    yield Subject(KubeCluster(api, SYSTEM, workloads), create, end)
    await api.close()


def run_of(name: str) -> tuple[Manifest, Manifest]:
    """Return ConfigMap and Job of a run for one table."""
    config = gen.config()
    policy = policy_entry(gen.policy(name, schedule={"cron": "0 3 * * *"}), config)
    observed = gen.observed()
    assert not isinstance(observed.target, Exception)
    due = Due(gen.NOW, "it was asked for", gen.NOW, {"topic": "1"})
    batch = PlannedRun((DueTable(observed.entry, observed.target, "table-1", None, due, ""),), "small")
    run = plan.contract(policy, batch, config, gen.NOW)
    return plan.config_map(policy, run, OWNER), plan.job(policy, batch, run, config, OWNER)


async def test_an_applied_job_is_visible_at_once_and_created_once(subject: Subject) -> None:
    contract, job = run_of("made")
    before = datetime.now(UTC) - timedelta(seconds=60)
    labels = plan.run_labels("CompactionPolicy", "demo", "made")
    assert await subject.cluster.jobs(labels) == []
    assert await subject.cluster.apply(contract)
    assert await subject.cluster.apply(job)
    (state,) = await subject.cluster.jobs(labels)
    assert (state.name, state.finished, state.succeeded, state.failure) == (job["metadata"]["name"], None, False, "")
    assert state.created >= before or isinstance(subject.cluster, FakeCluster)
    assert not await subject.cluster.apply(job), "an equal object is not written again"
    run = runs.read_run(state, ())
    assert run is not None
    assert run.active
    (table,) = run.mark.tables
    assert (table.uid, table.slot, table.requests) == ("uid-demo-flights", gen.NOW, {"topic": "1"})
    assert await subject.cluster.jobs(plan.run_labels("CompactionPolicy", "demo", "other")) == []
    assert contract["metadata"]["name"] in await subject.cluster.list_names(
        "v1", "ConfigMap", {"app.kubernetes.io/component": "maintenance"}
    )


async def test_a_succeeded_job_has_its_report(subject: Subject) -> None:
    _, job = run_of("well")
    await subject.cluster.apply(job)
    name = job["metadata"]["name"]
    report = RunReport(name=name, tables=(TableReport(uid="uid-demo-flights", outcome="Done", commits=3),))
    subject.end(name, pack(report))
    (state,) = await subject.cluster.jobs({names.LABEL_RUN: name})
    assert state.succeeded
    assert state.finished is not None
    run = runs.read_run(state, await subject.cluster.pods({names.LABEL_RUN: name}))
    assert run is not None
    assert (run.active, run.reported) == (False, True)
    assert run.table_report("uid-demo-flights").commits == 3


@pytest.mark.parametrize("message", [None, "Traceback\nMemoryError"])
async def test_a_failed_job_has_its_cause(subject: Subject, message: str | None) -> None:
    _, job = run_of(f"failed-{'loud' if message else 'still'}")
    await subject.cluster.apply(job)
    name = job["metadata"]["name"]
    subject.end(name, message, failure="DeadlineExceeded")
    (state,) = await subject.cluster.jobs({names.LABEL_RUN: name})
    assert (state.succeeded, state.failure) == (False, "DeadlineExceeded")
    assert state.finished is not None
    run = runs.read_run(state, await subject.cluster.pods({names.LABEL_RUN: name}))
    assert run is not None
    assert run.reported is (message is not None)
    assert ("MemoryError" in run.table_report("uid-demo-flights").message) is (message is not None)
    assert run.table_report("uid-demo-flights").outcome == "Failed"


@pytest.mark.parametrize("kind", ["CompactionPolicy", "RetentionPolicy"])
async def test_a_status_write_fails_if_the_policy_has_changed(subject: Subject, kind: str) -> None:
    subject.create(
        gen.policy("status", kind=kind, snapshots={"maxAge": "7d"})
        if kind == "RetentionPolicy"
        else gen.policy("status")
    )
    live = await subject.cluster.get(names.API_VERSION, kind, "demo", "status")
    assert live is not None
    version = live["metadata"]["resourceVersion"]
    status = {"observedGeneration": 1, "conditions": [], "topics": 3}
    written = await subject.cluster.patch_status("demo", "status", status, version, kind)
    assert written is not None
    assert written["status"] == status
    assert written["kind"] == kind
    with pytest.raises(CommitConflictError):
        await subject.cluster.patch_status("demo", "status", status, version, kind)
    assert await subject.cluster.patch_status("demo", "nobody-made-this", status, "1", kind) is None
