"""Topics, labels, TopicUsers and TopicGrants change in any order. Each user then has the rights that a plain reading of all objects gives."""

import random
from typing import Any

import pytest

from firn_controllers.ports import AclOperation, AclRule, Manifest
from tests import gen
from tests.fakes.world import World

SEEDS = range(40)
NAMESPACES = ("demo", "platform")
TOPICS = ("t1", "t2", "t3")
USERS = ("u1", "u2", "u3")
LABELS: tuple[dict[str, str], ...] = (
    {},
    {"team": "a"},
    {"team": "b"},
    {"team": "a", "public": "true"},
    {"public": "true"},
)
SELECTORS: tuple[dict[str, Any], ...] = (
    {},
    {"matchLabels": {"team": "a"}},
    {"matchLabels": {"team": "a", "public": "true"}},
    {"matchExpressions": [{"key": "team", "operator": "Exists"}]},
    {"matchLabels": {"public": "true"}, "matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["a"]}]},
)
OPERATIONS: dict[str, tuple[AclOperation, ...]] = {"Produce": ("Write", "Describe"), "Consume": ("Read", "Describe")}


class Events:
    """A world, and random changes by users."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.world = World(gen.with_users())
        self.number = 0

    def change(self) -> None:
        chance, cluster = self.random, self.world.cluster
        kind = chance.choice(("IcebergTopic", "IcebergTopic", "TopicUser", "TopicGrant"))
        namespace = (
            chance.choice(NAMESPACES) if kind == "IcebergTopic" else "demo" if kind == "TopicUser" else "platform"
        )
        name = chance.choice(USERS if kind == "TopicUser" else TOPICS)
        place = (gen.topic()["apiVersion"], kind, namespace, name)
        live = cluster.objects.get(place)
        if live is None:
            self.number += 1
            manifest = self.manifest(kind, namespace, name)
            manifest["metadata"]["uid"] = f"uid-{self.number}"
            cluster.create(manifest)
        elif "deletionTimestamp" in live["metadata"]:
            return
        elif chance.random() < 0.3:
            cluster.remove(name, namespace, kind=kind)
        elif kind == "IcebergTopic":
            labels = chance.choice(LABELS)
            cluster.edit(name, lambda edited: edited["metadata"].update(labels=labels), namespace, spec=False)
        else:
            spec = self.manifest(kind, namespace, name)["spec"]
            cluster.edit(name, lambda edited: edited.update(spec=spec), namespace, kind=kind)

    def collect_garbage(self) -> None:
        """Delete the Secrets of deleted users, as Kubernetes does."""
        live = {user["metadata"]["uid"] for user in self.world.cluster.all("TopicUser")}
        secrets = self.world.secrets.secrets
        for place in [place for place, secret in secrets.items() if secret.owner not in live]:
            del secrets[place]

    def manifest(self, kind: str, namespace: str, name: str) -> Manifest:
        chance = self.random
        if kind == "IcebergTopic":
            table = {"name": f"{namespace}_{name}"}
            manifest = gen.topic(
                name, namespace=namespace, profile="outside", topicName=f"{namespace}.{name}", table=table
            )
            manifest["metadata"]["labels"] = chance.choice(LABELS)
            return manifest
        if kind == "TopicUser":
            grants = [
                {"topics": [self.topics(own=True) for _ in range(2)], "roles": self.roles()}
                for _ in range(chance.randint(0, 2))
            ]
            return gen.user(name, namespace=namespace, grants=grants)
        users = chance.choice((["*"], ["u1"], ["u2", "u3"]))
        to = [{"namespace": chance.choice(("demo", "elsewhere")), "users": users}]
        return gen.grant(name, namespace, topics=[self.topics(own=False)], to=to, roles=self.roles())

    def topics(self, *, own: bool) -> dict[str, Any]:
        if self.random.random() < 0.4:
            return {"selector": self.random.choice(SELECTORS)}
        named = {"name": self.random.choice(TOPICS)}
        return {**named, "namespace": self.random.choice(NAMESPACES)} if own else named

    def roles(self) -> list[str]:
        return self.random.choice((["Produce"], ["Consume"], ["Produce", "Consume"]))

    def wanted(self, user: Manifest) -> set[AclRule]:
        """Return the rules that a user should have, from all objects."""
        namespace, name = user["metadata"]["namespace"], user["metadata"]["name"]
        rules: set[AclRule] = set()
        for grant in user["spec"]["grants"]:
            for topic in self.world.cluster.all("IcebergTopic"):
                if not any(names_topic(each, topic, namespace) for each in grant["topics"]):
                    continue
                for role in grant["roles"]:
                    if topic["metadata"]["namespace"] != namespace and not self.consents(topic, name, role):
                        continue
                    topic_name = topic["spec"]["topicName"]
                    rules |= {AclRule("Topic", topic_name, "Literal", each) for each in OPERATIONS[role]}
                    if role == "Consume":
                        rules.add(AclRule("Group", f"{namespace}.{name}.", "Prefixed", "Read"))
        return rules

    def consents(self, topic: Manifest, user: str, role: str) -> bool:
        namespace = topic["metadata"]["namespace"]
        for grant in self.world.cluster.all("TopicGrant"):
            spec = grant["spec"]
            offered = any(names_topic(each, topic, namespace) for each in spec["topics"])
            reached = any(
                each["namespace"] == "demo" and ("*" in each["users"] or user in each["users"]) for each in spec["to"]
            )
            if grant["metadata"]["namespace"] == namespace and role in spec["roles"] and offered and reached:
                return True
        return False


def names_topic(reference: dict[str, Any], topic: Manifest, own: str) -> bool:
    """Return whether a reference in a spec of namespace ``own`` is to this topic."""
    metadata = topic["metadata"]
    if "selector" not in reference:
        return (reference.get("namespace", own), reference["name"]) == (metadata["namespace"], metadata["name"])
    labels, selector = metadata.get("labels", {}), reference["selector"]
    if metadata["namespace"] != own or not selector.get("matchLabels", {}).items() <= labels.items():
        return False
    holds = {
        "Exists": lambda each: each["key"] in labels,
        "NotIn": lambda each: labels.get(each["key"]) not in each["values"],
    }
    return all(holds[each["operator"]](each) for each in selector.get("matchExpressions", ()))


@pytest.mark.parametrize("seed", SEEDS)
async def test_rights_follow_all_objects(seed: int) -> None:
    events = Events(seed)
    for _ in range(6):
        for _ in range(events.random.randint(1, 8)):
            events.change()
            if events.random.random() < 0.3:
                await events.world.step()
        events.collect_garbage()
        await events.world.settle(120)
        users = events.world.cluster.all("TopicUser")
        expected = {f"demo.{each['metadata']['name']}.a": events.wanted(each) for each in users}
        found = {user: events.world.access.acls.get(("outside", user), set()) for user in expected}
        assert found == expected
        others = {user for _, user in events.world.access.states} - expected.keys()
        assert others == set(), "deleted users keep nothing"
