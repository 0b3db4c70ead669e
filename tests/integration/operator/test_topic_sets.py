"""A TopicSet under one running operator: the IcebergTopics that it makes in the API server for topics of real brokers."""

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from firn.model import names
from tests.servers.process import await_true

if TYPE_CHECKING:
    from tests.integration.operator.conftest import Manifest, Running, World

SETS = f"/apis/{names.API_VERSION}/namespaces/demo/topicsets"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def operator(world: "World") -> Iterator["Running"]:
    brokers = {"bootstrapServers": world.broker.bootstrap, "tenancy": {"adopt": "Any"}}
    with world.operator(profiles={"classic": brokers}) as running:
        yield running


@pytest.fixture
def prefix(world: "World") -> Iterator[str]:
    """Return the begin of the names of one test's topics and IcebergTopics."""
    prefix = f"many{next(_numbers)}"
    yield prefix
    for name in made(world, prefix):
        world.api.call("DELETE", f"/apis/{names.API_VERSION}/namespaces/demo/icebergtopics/{name}")


def create(world: "World", *topics: str) -> None:
    """Create Kafka topics, as a client does."""
    admin = AdminClient({"bootstrap.servers": world.broker.bootstrap})
    for future in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
        future.result(30)


def apply(world: "World", prefix: str, **spec: Any) -> None:
    """Apply the set of a test, as a GitOps tool does."""
    template = {"metadata": {"name": f"{prefix}-$name"}, "spec": {"table": {"name": f"{prefix}_$name"}}}
    body = {
        "apiVersion": names.API_VERSION,
        "kind": "TopicSet",
        "metadata": {"name": prefix, "namespace": "demo"},
        "spec": {"profile": "classic", "match": rf"^{prefix}\.(?P<name>.+)$", "template": template, **spec},
    }
    place = f"{SETS}/{prefix}?fieldManager=user&force=true"
    world.api.call("PATCH", place, body, "application/apply-patch+yaml")


def made(world: "World", prefix: str) -> dict[str, "Manifest"]:
    """Return the IcebergTopics of a set by name."""
    place = f"/apis/{names.API_VERSION}/namespaces/demo/icebergtopics?labelSelector={names.LABEL_TOPIC_SET}={prefix}"
    return {each["metadata"]["name"]: each for each in world.api.call("GET", place)["items"]}


def await_counts(world: "World", prefix: str, matched: int, count: int, refused: int = 0) -> "Manifest":
    """Wait until the status has these numbers, and return it."""

    def status() -> "Manifest":
        found: Manifest = world.api.call("GET", f"{SETS}/{prefix}")
        return found["status"] if found["metadata"]["generation"] == found["status"]["observedGeneration"] else {}

    wanted = {"matched": matched, "made": count, "topicsRefused": refused}
    await_true(f"{wanted}", lambda: wanted.items() <= status().items(), 60)
    return status()


def test_topics_get_iceberg_topics_that_stay_after_the_set(world: "World", operator: "Running", prefix: str) -> None:
    create(world, *(f"{prefix}.{name}" for name in ("orders", "carts", "bad_")))
    apply(world, prefix)
    status = await_counts(world, prefix, 3, 2, 1)
    assert status["refused"][0]["why"] == "InvalidName"
    for name in ("orders", "carts"):
        world.await_condition(f"{prefix}-{name}", "TopicReady", "True", "Adopted")
        world.await_condition(f"{prefix}-{name}", "TableReady", "True")
    before = {name: each["metadata"]["resourceVersion"] for name, each in made(world, prefix).items()}
    assert operator.metric("firn_topic_set_topics") >= 3

    template: dict[str, Any] = {
        "metadata": {"name": f"{prefix}-$name"},
        "spec": {"table": {"name": f"{prefix}_$name"}, "schema": {"raw": "String"}, "suspend": True},
    }
    apply(world, prefix, template=template, exclude="bad")
    await_counts(world, prefix, 2, 2)
    suspended = made(world, prefix)
    assert all(each["spec"]["suspend"] for each in suspended.values())
    assert before.keys() == suspended.keys()

    apply(world, prefix, template={**template, "spec": {**template["spec"], "table": {"name": "$name"}}}, exclude="bad")
    status = await_counts(world, prefix, 2, 2, 2)
    assert {each["why"] for each in status["refused"]} == {"InvalidSpec"}
    assert "immutable" in status["refused"][0]["message"]

    world.api.call("DELETE", f"{SETS}/{prefix}")
    await_true("the set is deleted", lambda: world.find(f"{SETS}/{prefix}") is None)
    assert made(world, prefix).keys() == before.keys()


def test_a_set_with_removal_delete_deletes_its_iceberg_topics(world: "World", operator: "Running", prefix: str) -> None:
    create(world, f"{prefix}.orders", f"{prefix}.carts")
    apply(world, prefix, removal="Delete")
    await_counts(world, prefix, 2, 2)
    apply(world, prefix, removal="Delete", exclude="carts")
    await_counts(world, prefix, 1, 1)
    await_true("one is left", lambda: len(made(world, prefix)) == 1)
    world.api.call("DELETE", f"{SETS}/{prefix}")
    await_true("the set is deleted", lambda: world.find(f"{SETS}/{prefix}") is None)
    await_true("none is left", lambda: not made(world, prefix))


def test_an_expression_that_is_no_re2_is_named(world: "World", operator: "Running", prefix: str) -> None:
    apply(world, prefix, match="(?=ahead)")

    def problem() -> str:
        conditions = world.api.call("GET", f"{SETS}/{prefix}")["status"]["conditions"]
        return next((each["message"] for each in conditions if each["reason"] == "BadPattern"), "")

    await_true("the condition", lambda: "spec.match: (?=ahead) is no RE2 expression" in problem())
    world.api.call("DELETE", f"{SETS}/{prefix}")
