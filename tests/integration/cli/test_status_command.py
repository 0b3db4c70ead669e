"""``firn status`` against a real API server, by persons with and without rights."""

import json
from pathlib import Path

from firn.model import names
from tests import apiserver
from tests.apiserver import TOKEN
from tests.integration.cli.conftest import FIRN, Cluster, Person

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "AllReady",
    "message": "Kafka topic, table and ingestion are ready",
    "lastTransitionTime": "2026-03-01T10:00:00Z",
    "observedGeneration": 1,
}
BEHIND = {**READY, "type": "Fresh", "status": "False", "reason": "Behind", "message": "records wait longer than 60s"}
READS = {**FIRN, "verbs": ["get", "list"]}


def halted(generation: int = 1) -> dict[str, object]:
    message = "ingestion stopped at partition 0, offset 7; correct the schema"
    return {**READY, "status": "False", "reason": "BadRecordHalt", "message": message, "observedGeneration": generation}


def test_a_ready_topic_is_shown_on_one_screen(cluster: Cluster) -> None:
    cluster.create(cluster.topic("orders"))
    cluster.report("orders", observedGeneration=1, topicName="orders", partitions=3, conditions=[READY, BEHIND])
    done = cluster.administrator.run("status", "orders")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"IcebergTopic {cluster.namespace}/orders: Ready (AllReady)")
    assert done.stdout.index("! Fresh") < done.stdout.index("+ Ready")
    assert done.stdout.rstrip().endswith("Next step: records wait longer than 60s")


def test_a_topic_that_is_not_ready_has_an_exit_code_of_its_own(cluster: Cluster) -> None:
    cluster.create(cluster.topic("orders"))
    cluster.report("orders", observedGeneration=1, conditions=[halted()])
    document = cluster.administrator.document("status", f"{cluster.namespace}/orders", code=3)
    assert document["ready"] == "False"
    assert document["nextStep"].startswith("ingestion stopped at partition 0, offset 7")
    assert document["events"] == []


def test_a_new_topic_waits_for_the_operator(cluster: Cluster) -> None:
    cluster.create(cluster.topic("orders"))
    done = cluster.administrator.run("status", "orders")
    assert done.returncode == 3
    assert "the operator has not read the resource yet" in done.stdout


def test_events_of_the_topic_are_shown(cluster: Cluster) -> None:
    uid = cluster.create(cluster.topic("orders"))["metadata"]["uid"]
    for number, (subject, message) in enumerate(((uid, "fell behind"), ("other", "not ours"))):
        event = {
            "metadata": {"name": f"e{number}"},
            "involvedObject": {
                "kind": "IcebergTopic",
                "name": "orders",
                "namespace": cluster.namespace,
                "uid": subject,
            },
            "type": "Warning",
            "reason": "FellBehind",
            "message": message,
            "lastTimestamp": "2026-03-01T10:00:00Z",
        }
        cluster.api.call("POST", f"/api/v1/namespaces/{cluster.namespace}/events", event)
    shown = cluster.administrator.run("status", "orders").stdout
    assert "Warning FellBehind: fell behind" in shown
    assert "not ours" not in shown


def test_topics_are_listed_with_those_that_are_not_ready_first(cluster: Cluster) -> None:
    me = cluster.administrator
    empty = me.run("status")
    assert (empty.returncode, empty.stdout) == (0, "")
    assert f"there are no IcebergTopics in namespace {cluster.namespace}; -A lists" in empty.stderr
    for name, condition in (("a", READY), ("b", halted())):
        cluster.create(cluster.topic(name))
        cluster.report(name, observedGeneration=1, conditions=[condition])
    done = me.run("status")
    assert done.returncode == 3
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["NAME", "b", "a"]
    everywhere = me.document("status", "-A", "-n", "default", code=3)
    assert {each["name"] for each in everywhere if each["namespace"] == cluster.namespace} == {"a", "b"}
    assert "events" not in everywhere[0]
    cluster.report("b", conditions=[READY])
    assert me.run("status").returncode == 0
    cluster.api.call("PATCH", cluster.path(name="b"), {"spec": {"suspend": True}}, "application/merge-patch+json")
    assert me.run("status").returncode == 3, "no operator has followed the new spec"


def test_a_wrong_name_is_answered_with_near_names(cluster: Cluster) -> None:
    cluster.create(cluster.topic("orders"))
    done = cluster.administrator.run("status", "ordres")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"firn: IcebergTopic {cluster.namespace}/ordres does not exist; did you mean orders?\n"
    elsewhere = cluster.administrator.run("status", "orders", "-n", "nowhere")
    assert "there are no IcebergTopics in namespace nowhere" in elsewhere.stderr


def test_a_topic_set_is_shown_on_one_screen(cluster: Cluster) -> None:
    spec = {"profile": "classic", "match": "^dev", "template": {"metadata": {"name": "$topic"}}}
    cluster.api.call("POST", cluster.path("topicsets"), {**cluster.topic("events"), "kind": "TopicSet", "spec": spec})
    labelled = cluster.topic("dev-a")
    labelled["metadata"]["labels"] = {names.LABEL_TOPIC_SET: "events"}
    cluster.create(labelled)
    cluster.create(cluster.topic("other"))
    me = cluster.administrator
    document = me.document("status", "--topic-set", f"{cluster.namespace}/events", code=3)
    assert (document["ready"], document["notReady"]) == ("Unknown", ["dev-a"])
    status = {"observedGeneration": 1, "matched": 1, "made": 1, "conditions": [READY]}
    place = f"{cluster.path('topicsets', 'events')}/status"
    cluster.api.call("PATCH", place, {"status": status}, "application/merge-patch+json")
    done = me.run("status", "--topic-set", "events")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"TopicSet {cluster.namespace}/events: Ready (AllReady)")
    assert done.stdout.rstrip().endswith("Next step: none, the TopicSet needs nothing")
    wrong = me.run("status", "--topic-set", "event")
    assert wrong.stderr == f"firn: TopicSet {cluster.namespace}/event does not exist; did you mean events?\n"


def test_missing_rights_name_verb_and_resource(cluster: Cluster) -> None:
    cluster.create(cluster.topic("orders"))
    done = cluster.person("nobody").run("status", "orders")
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        f"you may not get icebergtopics.firn.dev in namespace {cluster.namespace}; ask an administrator" in done.stderr
    )
    done = cluster.person("reader", {**FIRN, "verbs": ["get"]}).run("status")
    assert f"you may not list icebergtopics.firn.dev in namespace {cluster.namespace}" in done.stderr


def test_a_reader_needs_no_right_to_events(cluster: Cluster) -> None:
    cluster.create(cluster.topic("orders"))
    cluster.report("orders", observedGeneration=1, conditions=[READY])
    done = cluster.person("reader", READS).run("status", "orders")
    assert done.returncode == 0, done.stderr
    assert "you may not list Events in this namespace" in done.stdout


def test_rejected_credentials_are_said(cluster: Cluster) -> None:
    me = cluster.administrator
    me.kubeconfig.write_text(me.kubeconfig.read_text().replace(TOKEN, "expired"))
    done = me.run("status", "orders")
    assert done.returncode == 2
    assert "the API server rejects the credentials of context test; log in to the cluster again" in done.stderr


def test_a_server_that_is_gone_is_temporary(cluster: Cluster) -> None:
    me = cluster.administrator
    document = json.loads(me.kubeconfig.read_text())
    document["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:1"}
    me.kubeconfig.write_text(json.dumps(document))
    done = me.run("status")
    assert done.returncode == 75
    assert "the API server https://127.0.0.1:1 of context test does not answer" in done.stderr


def test_a_cluster_without_firn_is_said_with_and_without_rights(tmp_path: Path) -> None:
    with apiserver.running() as server:
        server.call("POST", "/api/v1/namespaces", {"metadata": {"name": "shop"}})
        cluster = Cluster(server, "shop", tmp_path)
        persons: tuple[Person, ...] = (cluster.administrator, cluster.person("nobody"))
        for person in persons:
            for arguments in (("status", "orders"), ("status",), ("status", "-A")):
                done = person.run(*arguments)
                assert done.returncode == 2
                assert (
                    "the cluster of context test has no resource icebergtopics.firn.dev; install Firn's chart"
                    in done.stderr
                )
