"""``firn dlq replay`` against a real API server, by persons with and without rights. The test plays the operator."""

import threading
import time

from tests.integration.cli.conftest import FIRN, Cluster

CONDITION = {
    "status": "True",
    "reason": "Succeeded",
    "message": "2 of 3 dead letters became rows",
    "lastTransitionTime": "2026-03-01T10:00:00Z",
    "observedGeneration": 1,
}


def finish(cluster: Cluster) -> None:
    """Report the end of the first replay, as the operator does."""
    until = time.monotonic() + 30
    while not (items := cluster.api.call("GET", cluster.path("deadletterreplays"))["items"]):
        assert time.monotonic() < until
        time.sleep(0.1)
    conditions = [{**CONDITION, "type": kind} for kind in ("Ready", "Finished")]
    status = {"conditions": conditions, "observedGeneration": 1, "matched": 3, "landed": 2, "failed": 1, "remaining": 1}
    place = f"{cluster.path('deadletterreplays', items[0]['metadata']['name'])}/status"
    cluster.api.call("PATCH", place, {"status": status}, "application/merge-patch+json")


def test_a_person_with_the_rights_of_edit_replays_dead_letters(cluster: Cluster) -> None:
    cluster.create(cluster.topic("orders"))
    person = cluster.person("editor", {**FIRN, "verbs": ["get", "list", "create"]})
    operator = threading.Thread(target=finish, args=(cluster,))
    operator.start()
    document = person.document("dlq", "replay", "orders", "--code", "WrongKind", "--since", "2d", code=0)
    operator.join()
    assert (document["matched"], document["landed"], document["message"]) == (3, 2, CONDITION["message"])
    (live,) = cluster.api.call("GET", cluster.path("deadletterreplays"))["items"]
    assert (live["spec"]["mode"], live["spec"]["where"]["codes"]) == ("Enforce", ["WrongKind"])


def test_a_missing_right_and_wrong_arguments_are_no_replay(cluster: Cluster) -> None:
    cluster.create(cluster.topic("orders"))
    reader = cluster.person("reader", {**FIRN, "verbs": ["get", "list"]})
    done = reader.run("dlq", "replay", "orders")
    assert (done.returncode, done.stdout) == (78, "")
    assert "you may not create deadletterreplays" in done.stderr
    assert reader.run("dlq", "replay", "orders", "--code", "no code!").returncode == 78
    assert reader.run("dlq", "replay", "orders", "--since", "yesterday").returncode == 78
    assert reader.run("dlq", "replay").returncode == 78
