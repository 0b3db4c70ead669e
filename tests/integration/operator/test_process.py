"""The operator as a process: restarts, start-up, metrics and stopped dependencies."""

import signal
from typing import TYPE_CHECKING

import pytest

from firn.model import names
from tests.apiserver import SYSTEM, install_crds
from tests.servers.process import await_true, stop, tail

if TYPE_CHECKING:
    from tests.integration.operator.conftest import World

SCHEMA = {"format": "Json", "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "int"}]}


def settled(world: "World") -> dict[str, str]:
    """Return the versions of all objects after two equal reads."""
    seen: list[dict[str, str]] = [{}]

    def same() -> bool:
        seen.append(world.versions())
        return seen[-1] == seen[-2]

    await_true("no more writes", same)
    return seen[-1]


@pytest.mark.parametrize("stop_signal", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_writes_nothing(world: "World", name: str, stop_signal: signal.Signals) -> None:
    with world.operator() as operator:
        world.apply(name, {"schema": SCHEMA})
        world.await_made(name)
        before = settled(world)
        operator.process.send_signal(stop_signal)
        operator.process.wait(60)
    with world.operator() as operator:
        await_true("every key was reconciled", lambda: operator.metric("firn_reconcile_total") >= 3)
        await_true("the queue is empty", lambda: operator.metric("firn_reconcile_queue_depth") == 0)
        assert settled(world) == before


def test_a_deleted_job_contract_is_restored(world: "World", name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with world.operator(resync="2s") as operator:
        world.apply(name, {"schema": SCHEMA})
        world.await_made(name)
        topic = world.topic(name)
        assert topic is not None
        job = f"/api/v1/namespaces/{SYSTEM}/configmaps/{names.job(topic['metadata']['uid'])}"
        world.api.call("DELETE", job)
        await_true("the job contract is restored", lambda: world.find(job) is not None)
        assert operator.metric("firn_watch_behind_seconds") == 0


def test_objects_of_brokers_and_drivers_that_another_client_changes_are_restored_at_once(world: "World") -> None:
    core, policy = f"/api/v1/namespaces/{SYSTEM}", f"/apis/policy/v1/namespaces/{SYSTEM}"
    bootstrap = f"{core}/services/firn-broker-own-bootstrap"
    removed = [
        f"{core}/services/firn-ingest-default",
        f"{core}/configmaps/firn-broker-own-quorum",
        f"{policy}/poddisruptionbudgets/firn-broker-own",
    ]

    def uids() -> list[str]:
        found = [world.find(place) for place in (bootstrap, *removed)]
        return [live["metadata"]["uid"] for live in found if live is not None]

    def restored() -> bool:
        live = world.find(bootstrap)
        return live is not None and "edited" not in live["spec"]["selector"]

    profiles = world.configuration()["profiles"]
    # A list at each resync would restore them too, only later than this test waits.
    with world.operator(resync="1h", profiles={**profiles, "own": {"kind": "Kafka"}}):
        await_true("the objects exist", lambda: len(uids()) == 4)
        first = uids()
        edit = {"spec": {"selector": {"edited": "true"}}}
        world.api.call("PATCH", bootstrap, edit, "application/merge-patch+json")
        await_true("the edited object is restored", restored)
        for place in removed:
            world.api.call("DELETE", place)
        await_true("the deleted objects are restored", lambda: len({*first, *uids()}) == 7 and len(uids()) == 4)


def test_a_recreated_owner_restarts_the_operator_for_the_new_owner(world: "World", name: str) -> None:
    place = f"/api/v1/namespaces/{SYSTEM}/configmaps/{names.CONFIG_OBJECT}"
    group = f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets/firn-ingest-default"

    def owners() -> list[str]:
        live = world.find(group)
        return [owner["uid"] for owner in live["metadata"]["ownerReferences"]] if live is not None else []

    with world.operator(resync="1s") as operator:
        world.apply(name, {"schema": SCHEMA})
        world.await_made(name)
        owner = world.find(place)
        assert owner is not None
        assert owners() == [owner["metadata"]["uid"]]
        world.api.call("DELETE", place)
        fresh = {"name": names.CONFIG_OBJECT, "namespace": SYSTEM}
        world.api.call(
            "POST", f"/api/v1/namespaces/{SYSTEM}/configmaps", {"metadata": fresh, "data": owner.get("data", {})}
        )
        assert operator.process.wait(60) != 0
        assert names.CONFIG_OBJECT in operator.log.read_text().splitlines()[-1]
    with world.operator():
        again = world.find(place)
        assert again is not None
        await_true("the workload has the new owner", lambda: owners() == [again["metadata"]["uid"]])


def test_only_watched_namespaces_count(world: "World", name: str) -> None:
    with world.operator(watchNamespaces=["elsewhere"]) as operator:
        world.apply(name, {"schema": SCHEMA})
        await_true("the configured objects were reconciled", lambda: operator.metric("firn_reconcile_total") >= 3)
        topic = world.topic(name)
        assert topic is not None
        assert topic["status"]["observedGeneration"] == -1
    with world.operator(watchNamespaces=["demo", "elsewhere"]):
        world.await_made(name)


TOPICS_CRD = "icebergtopics.firn.dev"


def test_the_operator_waits_for_a_missing_crd(world: "World") -> None:
    place = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{TOPICS_CRD}"
    world.api.call("DELETE", place)
    await_true("the CRD is deleted", lambda: world.find(place) is None)
    running = world.start(world.configuration())
    try:

        def names_the_crd() -> bool:
            assert running.process.poll() is None, tail(running.log)
            answer = running.probe("readyz")
            return answer is not None and answer.status_code == 503 and TOPICS_CRD in answer.text

        await_true("the operator reports the missing CRD", names_the_crd)
        alive = running.probe("livez")
        assert alive is not None
        assert alive.status_code == 200
        install_crds(world.api)
        await_true("the operator is ready", running.ready)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0
    finally:
        stop(running.process, signal.SIGKILL)
        install_crds(world.api)


def test_an_invalid_configuration_stops_the_process_and_names_the_key(world: "World") -> None:
    running = world.start(world.configuration(defaultProfile="nobody"))
    assert running.process.wait(60) == 2
    assert "defaultProfile" in running.log.read_text()


def test_conditions_report_a_stopped_catalog_and_recover(world: "World", name: str) -> None:
    catalog = world.configuration()["catalogs"]["lake"]
    down = {"lake": {**catalog, "uri": "postgresql://127.0.0.1:1/postgres"}}
    with world.operator(catalogs=down):
        world.apply(name, {"schema": SCHEMA})
        world.await_condition(name, "TopicReady", "True")
        world.await_condition(name, "TableReady", "False", "CatalogUnreachable")
        world.await_condition(name, "Ready", "False")
    with world.operator():
        world.await_made(name)


def test_conditions_report_stopped_brokers_and_recover(world: "World", name: str) -> None:
    with world.operator(profiles={"classic": {"bootstrapServers": "127.0.0.1:1"}}):
        world.apply(name, {"schema": SCHEMA})
        world.await_condition(name, "TopicReady", "False", "BrokerUnreachable")
        assert "refused" in world.condition(name, "TopicReady")[2]
    with world.operator():
        world.await_made(name)
