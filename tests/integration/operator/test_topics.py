"""Topics under one running operator: from a manifest to topic, table, job and conditions, and back."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog import Catalog

from firn.model import names
from firn.model.jobs import CatalogConnection
from firn.tables.ownership import Ownership
from firn_operator.adapters.iceberg.catalogs import open_catalog
from tests.servers.process import await_true

if TYPE_CHECKING:
    from tests.integration.operator.conftest import Running, World

SCHEMA = {"format": "Json", "fields": [{"name": "carrier", "type": "string"}, {"name": "delay", "type": "int"}]}
SYSTEM = "firn-system"


@pytest.fixture(scope="module")
def operator(world: "World") -> Iterator["Running"]:
    with world.operator() as running:
        yield running


def topics(world: "World") -> set[str]:
    return set(AdminClient({"bootstrap.servers": world.broker.bootstrap}).list_topics(timeout=20).topics)


def table_exists(world: "World", name: str) -> bool:
    return catalog(world).table_exists(("demo", name.replace("-", "_")))


def catalog(world: "World") -> Catalog:
    properties = {"user": world.database.user, "password": world.database.password}
    connection = CatalogConnection(
        type="sql", uri=world.database.uri, warehouse=f"file://{world.directory}/warehouse", properties=properties
    )
    return open_catalog("lake", connection)


def test_a_manifest_creates_topic_table_job_and_conditions(world: "World", operator: "Running", name: str) -> None:
    world.apply(name, {"schema": SCHEMA, "partitions": 3, "table": {"partitionBy": ["bucket(4, carrier)"]}})
    world.await_made(name)
    topic = world.topic(name)
    assert topic is not None
    assert topic["status"]["partitions"] == 3
    assert topic["status"]["table"]["identifier"] == f"lake.demo.{name.replace('-', '_')}"
    world.await_condition(name, "IngestionReady", "False", "Starting")
    assert name in topics(world)
    properties = catalog(world).load_table(("demo", name.replace("-", "_"))).properties
    system = world.find("/api/v1/namespaces/kube-system")
    assert system is not None
    assert Ownership.of(properties) == Ownership(topic["metadata"]["uid"], "demo", system["metadata"]["uid"])
    workload = world.find(f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets/{names.ingestion('default')}")
    assert workload is not None
    assert operator.metric("firn_topics") >= 1
    answer = operator.probe("livez")
    assert answer is not None
    assert answer.status_code == 200
    assert operator.metric("firn_reconcile_seconds_count") > 0


def test_a_changed_spec_is_applied(world: "World", operator: "Running", name: str) -> None:
    world.apply(name, {"schema": SCHEMA, "partitions": 1})
    world.await_made(name)
    more = {**SCHEMA, "fields": [*SCHEMA["fields"], {"name": "origin", "type": "string"}]}
    world.apply(name, {"schema": more, "partitions": 2, "config": {"retention.ms": "60000"}})

    def followed() -> bool:
        topic = world.topic(name)
        assert topic is not None
        return topic["status"]["observedGeneration"] == 2 and topic["status"]["partitions"] == 2

    await_true("the new spec is observed", followed)
    world.await_condition(name, "TableReady", "True")


def test_of_two_resources_for_one_table_the_older_keeps_it(world: "World", operator: "Running", name: str) -> None:
    world.apply(name, {"schema": SCHEMA})
    world.await_made(name)
    older = world.topic(name)
    assert older is not None
    # Creation times have whole seconds. Within one second the uid would decide.
    made = datetime.fromisoformat(older["metadata"]["creationTimestamp"])
    await_true("a later second", lambda: datetime.now(UTC) - made > timedelta(seconds=1))
    other = f"{name}-too"
    world.apply(other, {"schema": SCHEMA, "topicName": other, "table": {"name": name.replace("-", "_")}})
    world.await_condition(other, "Ready", "False", "ResourceConflict")
    assert other not in topics(world)
    world.api.call("DELETE", f"/apis/{names.API_VERSION}/namespaces/demo/icebergtopics/{other}")
    world.await_condition(name, "TableReady", "True")


def test_the_delete_policy_deletes_topic_and_table(world: "World", operator: "Running", name: str) -> None:
    place = f"/apis/{names.API_VERSION}/namespaces/demo/icebergtopics/{name}"
    world.apply(name, {"schema": SCHEMA, "deletionPolicy": {"topic": "Delete", "table": "Delete"}})
    world.await_made(name)
    world.api.call("DELETE", place)
    await_true("the resource is deleted", lambda: world.find(place) is None, 120)
    await_true("the Kafka topic is deleted", lambda: name not in topics(world))
    assert not table_exists(world, name)


def test_a_deletion_keeps_topic_and_table_for_the_namespace(world: "World", operator: "Running", name: str) -> None:
    place = f"/apis/{names.API_VERSION}/namespaces/demo/icebergtopics/{name}"
    world.apply(name, {"schema": SCHEMA})
    world.await_made(name)
    topic = world.topic(name)
    assert topic is not None
    job = f"/api/v1/namespaces/{SYSTEM}/configmaps/{names.job(topic['metadata']['uid'])}"
    world.api.call("DELETE", place)
    await_true("the job contract is deleted", lambda: world.find(job) is None)
    assert name in topics(world)
    assert table_exists(world, name)
    world.apply(name, {"schema": SCHEMA})
    world.await_condition(name, "TopicReady", "True", "Adopted")
    world.await_condition(name, "TableReady", "True", "Adopted")


def test_a_topic_of_another_client_is_not_adopted(world: "World", operator: "Running", name: str) -> None:
    admin = AdminClient({"bootstrap.servers": world.broker.bootstrap})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    world.apply(name, {"schema": SCHEMA})
    world.await_condition(name, "SpecValid", "False", "NotAllowed")
