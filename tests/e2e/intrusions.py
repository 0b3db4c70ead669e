"""The attacks of a tenant on a topic of another tenant: from a pod, with a TopicUser and IcebergTopics of its own."""

import base64
import json
import re
from typing import Any

from firn.model import names
from hack import quickstart
from hack.quickstart import SYSTEM, Manifest, apply, await_until, conditions, kubectl
from tests.e2e.topics import await_condition, topic_manifest
from tests.integration.broker import attacks

INTRUDER, THIEF, OWN = "intruder", "thief", "own"
ATTEMPT = """
for target in "$@"; do
  (timeout 1 bash -c "</dev/tcp/$target" 2>/dev/null; echo "$target $?") &
done
wait
"""
ANSWERS = {0: "connected", 1: "refused", 124: "denied"}
"""Exit code -> meaning. Only a packet filter lets a connection to a running pod time out."""


def addresses(client: str) -> dict[str, str]:
    """Return the address of each pod of the release, and of the pods in the namespace of a client."""
    pods = json.loads(kubectl("get", "pods", "-A", "-o", "json"))["items"]
    found = {
        each["metadata"]["name"]: each["status"].get("podIP", "")
        for each in pods
        if each["metadata"]["namespace"] in (SYSTEM, client)
    }
    [operator] = [name for name in found if name.startswith("firn-operator-")]
    return {**found, "operator": found[operator]}


def attempts(addresses: dict[str, str], namespace: str, pod: str, *targets: tuple[str, int]) -> dict[str, str]:
    """Connect from a pod to targets at the same time. Return POD:PORT -> `connected`, `refused` or `denied`."""
    asked = {f"{addresses[name]}/{port}": f"{name}:{port}" for name, port in targets}
    output = kubectl("-n", namespace, "exec", pod, "--", "bash", "-c", ATTEMPT, "attempt", *asked)
    answers = dict(line.split() for line in output.splitlines())
    return {asked[target]: ANSWERS[int(code)] for target, code in answers.items()}


def user(name: str, namespace: str, profile: str, *grants: Manifest) -> None:
    """Create a TopicUser with a password."""
    spec = {"profile": profile, "authentication": {"type": "ScramSha512"}, "grants": list(grants)}
    metadata = {"name": name, "namespace": namespace}
    apply({"apiVersion": names.API_VERSION, "kind": "TopicUser", "metadata": metadata, "spec": spec})


def settings(name: str, namespace: str) -> dict[str, Any]:
    """Return the settings of librdkafka in the Secret of a TopicUser that is Ready."""
    kubectl("-n", namespace, "wait", "--for=condition=Ready", f"topicuser/{name}", "--timeout=120s")
    secret = quickstart.get("secret", f"{name}-kafka", namespace)
    assert secret is not None
    found: dict[str, Any] = json.loads(base64.b64decode(secret["data"]["librdkafka.json"]))
    return found


def check_requests(namespace: str, profile: str, topic: Manifest, brokers: tuple[str, ...]) -> None:
    """Try each request of Kafka's protocol on a topic of another tenant, from the pod ``client`` of a tenant.

    The pod has a TopicUser with rights on the topic of its own namespace. Every request fails, and the logs of the brokers have it."""
    apply(topic_manifest(OWN, namespace, profile=profile))
    await_condition(OWN, namespace, "TopicReady", "True")
    user(INTRUDER, namespace, profile, {"topics": [{"name": OWN}], "roles": ["Produce", "Consume"]})
    victim, group = topic["status"]["topicName"], f"{topic['metadata']['namespace']}.reader.group"
    script = ("python", "-c", attacks.KAFKA, victim, group, f"{namespace}.{INTRUDER}.readers")
    stdin = json.dumps(settings(INTRUDER, namespace))
    found = json.loads(kubectl("-n", namespace, "exec", "-i", "client", "--", *script, stdin=stdin))
    assert found == attacks.REFUSED | {"topics": [f"{namespace}.{OWN}"], "groups": []}

    def audited() -> set[tuple[str, str]]:
        text = "".join(kubectl("-n", SYSTEM, "logs", broker) for broker in brokers)
        return attacks.audited(text, f"User:{namespace}.{INTRUDER}.a")

    expected = attacks.denials(victim, group)
    await_until("the logs have each refused request", lambda: expected <= audited(), timeout=60)


def check_resources(namespace: str, profile: str, topic: Manifest) -> None:
    """Claim topic and table of another tenant with resources in the namespace of a tenant. The operator refuses each claim."""
    owner, status = topic["metadata"], topic["status"]
    _, tables, table = status["table"]["identifier"].split(".")
    claims = {
        "by-topic": {"topicName": status["topicName"]},
        "by-table": {"table": {"namespace": tables, "name": table}},
    }
    for name, claim in claims.items():
        apply(topic_manifest(name, namespace, profile=profile, **claim))
    for name in claims:
        refused = await_condition(name, namespace, "Ready", "False", "ResourceConflict")
        assert "older IcebergTopic of another namespace" in conditions(refused)["SpecValid"]["message"]
        log = kubectl("-n", SYSTEM, "logs", "deploy/firn-operator")
        assert re.search(rf"{namespace}/{name} is refused: .* {owner['namespace']}/{owner['name']};", log)
    victim = {"name": owner["name"], "namespace": owner["namespace"]}
    user(THIEF, namespace, profile, {"topics": [victim], "roles": ["Produce", "Consume"]})

    def refusals() -> list[tuple[str, str]]:
        live = json.loads(kubectl("-n", namespace, "get", "topicuser", THIEF, "-o", "json"))
        return sorted((each["role"], each["why"]) for each in live.get("status", {}).get("refused", ()))

    await_until(
        "both roles are refused", lambda: refusals() == [("Consume", "NoGrant"), ("Produce", "NoGrant")], timeout=60
    )


def check_connections(namespace: str, *targets: tuple[str, int]) -> None:
    """Connect from the pod ``client`` to targets. The NetworkPolicies deny each connection."""
    answers = attempts(addresses(namespace), namespace, "client", *targets)
    assert answers == {f"{name}:{port}": "denied" for name, port in targets}


def clean(namespace: str) -> None:
    """Delete the resources of the attacker."""
    kubectl("-n", namespace, "delete", "topicusers,icebergtopics", "--all", "--timeout=120s")
