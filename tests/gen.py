"""Builders of test objects. Each has sensible defaults, which keywords and modifiers change."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from firn.model.config import Config
from firn.model.errors import InvalidSpecError
from firn.model.jobs import IngestJob, RecordSchema, TableTarget
from firn.model.progress import TopicProgress
from firn_controllers.cache.topics import topic_entry
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.fleet.health import FleetHealth
from firn_controllers.iceberg_topic.observed import LiveJob, ObservedTopic
from firn_controllers.ingestion_group.health import GroupHealth
from firn_controllers.ports import Manifest, PodState, StatefulSetState, TableState, TopicState

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
FIELDS = [
    {"name": "id", "type": "long"},
    {"name": "carrier", "type": "string"},
    {"name": "delay", "type": "double"},
    {"name": "at", "type": "timestamptz"},
    {"name": "place", "type": "struct<city: string, zip: int>"},
    {"name": "tags", "type": "list<string>"},
    {"name": "price", "type": "decimal(9, 2)"},
]
Modifier = Callable[[Manifest], None]


def config(**changes: Any) -> Config:
    """Return a configuration of the operator: a managed fleet, an existing Kafka, a catalog and two groups."""
    document: dict[str, Any] = {
        "namespace": "firn-system",
        "images": {
            "spark": {"image": "firn-spark:1"},
            "kafka": {"image": "kafka:4.2"},
            "broker": {"image": "firn-broker:1"},
        },
        "defaultProfile": "classic",
        "profiles": {
            "classic": {"replicas": 3},
            "outside": {"bootstrapServers": "kafka.example:9092", "namespaces": ["demo"]},
        },
        "defaultCatalog": "lake",
        "catalogs": {
            "lake": {
                "type": "sql",
                "uri": "postgresql://pg:5432/firn",
                "warehouse": "s3://firn/warehouse",
                "properties": {"user": "firn"},
                "secretProperties": {"password": {"secret": "firn-postgres", "key": "password"}},
            },
            "private": {"type": "rest", "uri": "http://rest", "warehouse": "w", "namespaces": ["vault"]},
        },
        "groups": {"default": {}, "big": {"memory": "4Gi", "namespaces": ["demo"]}},
        **changes,
        # Without audits, which would start runs of their own in tests of policies.
        "maintenance": {"audit": {"schedule": ""}, **changes.get("maintenance", {})},
    }
    return Config.model_validate(document)


def adopting(topics: str = "Any", tables: str = "Any", **changes: Any) -> Config:
    """Return the configuration with these rules for the adoption of existing topics and tables."""
    document = config(**changes).model_dump(by_alias=True)
    document["profiles"]["classic"]["tenancy"]["adopt"] = topics
    document["catalogs"]["lake"]["tenancy"]["adopt"] = tables
    return Config.model_validate(document)


def with_users(**settings: Any) -> Config:
    """Return the configuration with TopicUsers of profile outside, whose brokers the namespaces demo and platform may use."""
    document = config().model_dump(by_alias=True)
    document["users"] = {"enabled": True}
    document["profiles"]["outside"] |= {"namespaces": ["demo", "platform"], "users": settings}
    return Config.model_validate(document)


def diskless(**changes: Any) -> dict[str, Any]:
    """Return a profile of kind Diskless as it stands in the configuration."""
    return {
        "kind": "Diskless",
        "coordinator": {
            "uri": "postgresql://pg:5432/firn",
            "user": "firn",
            "password": {"secret": "firn-postgres", "key": "password"},
        },
        "objectStore": {
            "url": "s3://firn/diskless",
            "properties": {"aws_endpoint": "http://s3:7070", "aws_region": "us-east-1"},
            "secretProperties": {
                "aws_access_key_id": {"secret": "firn-s3", "key": "access-key"},
                "aws_secret_access_key": {"secret": "firn-s3", "key": "secret-key"},
            },
        },
        **changes,
    }


def topic(name: str = "flights", *modifiers: Modifier, namespace: str = "demo", **spec: Any) -> Manifest:
    """Return a live IcebergTopic with this spec, as the API server returns it."""
    manifest: Manifest = {
        "apiVersion": "firn.dev/v1alpha1",
        "kind": "IcebergTopic",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "generation": 1,
            "resourceVersion": "1",
            "creationTimestamp": "2026-03-01T10:00:00Z",
        },
        "spec": {"schema": {"format": "Json", "fields": FIELDS}, **spec},
        "status": {
            "observedGeneration": -1,
            "conditions": [
                {
                    "type": "Ready",
                    "status": "Unknown",
                    "reason": "Pending",
                    "message": "The operator has not read the resource yet",
                    "lastTransitionTime": "1970-01-01T00:00:00Z",
                    "observedGeneration": -1,
                }
            ],
        },
    }
    for modifier in modifiers:
        modifier(manifest)
    return manifest


def policy(name: str = "policy", *modifiers: Modifier, kind: str = "CompactionPolicy", **spec: Any) -> Manifest:
    """Return a live policy with this spec, as the API server returns it."""
    manifest = topic(name)
    manifest |= {"kind": kind, "spec": spec}
    manifest["metadata"]["uid"] = f"uid-{kind}-{name}"
    for modifier in modifiers:
        modifier(manifest)
    return manifest


def topic_set(name: str = "events", *modifiers: Modifier, **spec: Any) -> Manifest:
    """Return a live TopicSet of profile classic. It makes IcebergTopics of the topics dev.TEAM.NAME unless ``spec`` says otherwise."""
    template = {"metadata": {"name": "$team-$name"}, "spec": {"table": {"namespace": "$team", "name": "$name"}}}
    pattern = r"^dev\.(?P<team>[a-z]+)\.(?P<name>.+)$"
    manifest = topic(name)
    manifest |= {"kind": "TopicSet", "spec": {"profile": "classic", "match": pattern, "template": template, **spec}}
    manifest["metadata"]["uid"] = f"uid-set-{name}"
    for modifier in modifiers:
        modifier(manifest)
    return manifest


def user(name: str = "checkout", *modifiers: Modifier, namespace: str = "demo", **spec: Any) -> Manifest:
    """Return a live TopicUser of profile outside with a password, which may produce to topic flights unless ``spec`` says otherwise."""
    grants = [{"topics": [{"name": "flights"}], "roles": ["Produce"]}]
    manifest = topic(name, namespace=namespace)
    manifest |= {"kind": "TopicUser", "spec": {"profile": "outside", "grants": grants, **spec}}
    manifest["metadata"]["uid"] = f"uid-user-{namespace}-{name}"
    for modifier in modifiers:
        modifier(manifest)
    return manifest


def grant(name: str, namespace: str, **spec: Any) -> Manifest:
    """Return a live TopicGrant."""
    manifest = topic(name, namespace=namespace)
    del manifest["status"]
    manifest |= {"kind": "TopicGrant", "spec": spec}
    manifest["metadata"]["uid"] = f"uid-grant-{namespace}-{name}"
    return manifest


def annotated(key: str, value: str) -> Modifier:
    """Return a modifier that adds an annotation."""
    return lambda manifest: manifest["metadata"].setdefault("annotations", {}).update({key: value})


def deleting(*finalizers: str) -> Modifier:
    """Return a modifier that marks the object as being deleted, with these finalizers."""

    def modify(manifest: Manifest) -> None:
        manifest["metadata"]["deletionTimestamp"] = "2026-03-01T11:00:00Z"
        manifest["metadata"]["finalizers"] = list(finalizers)

    return modify


def generation(number: int) -> Modifier:
    """Return a modifier that sets the generation."""
    return lambda manifest: manifest["metadata"].update(generation=number)


def with_status(status: Manifest) -> Modifier:
    """Return a modifier that sets the status."""
    return lambda manifest: manifest.update(status=status)


def topic_state(name: str = "flights", partitions: int = 3, **changes: Any) -> TopicState:
    """Return the state of a Kafka topic."""
    return replace(TopicState(name=name, topic_id="topic-id-1", partitions=partitions, configs={}), **changes)


def table_state(**changes: Any) -> TableState:
    """Return the state of a table that matches its spec."""
    state = TableState(uuid="table-1", location="s3://firn/warehouse/demo/flights", format_version=2, owner="uid")
    return replace(state, **changes)


def progress(uid: str = "uid-demo-flights", **changes: Any) -> TopicProgress:
    """Return the progress of a topic that lands records."""
    fields: dict[str, Any] = {
        "uid": uid,
        "generation": 1,
        "state": "Running",
        "last_commit": NOW.timestamp() - 10,
        "lag_records": 0,
        "lag_seconds": 1.0,
        **changes,
    }
    return TopicProgress(**fields)


def observed(manifest: Manifest | None = None, configured: Config | None = None, **changes: Any) -> ObservedTopic:
    """Return the observed state of a topic without any failure. ``job=True`` adds the contract of its own spec."""
    configured = configured or config()
    entry = topic_entry(manifest or topic(), configured)
    resource = entry.resource
    assert resource is not None, entry.problem
    schema: RecordSchema | InvalidSpecError
    target: TableTarget | InvalidSpecError
    try:
        schema = resource.row_schema()
    except InvalidSpecError as error:
        schema = error
    try:
        target = resource.table_target(configured.default_catalog)
    except InvalidSpecError as error:
        target = error
    if changes.get("job") is True:
        assert isinstance(schema, RecordSchema)
        assert isinstance(target, TableTarget)
        changes["job"] = live_job(entry.uid, entry.generation, schema, target)
    fields: dict[str, Any] = {
        "config": configured,
        "entry": entry,
        "resource": resource,
        "schema": schema,
        "target": target,
        "topic_rival": None,
        "table_rival": None,
        "fleet": FleetHealth(),
        "catalog": DependencyHealth(),
        "group": GroupHealth(),
        "progress": None,
        "job": None,
        "now": NOW,
        **changes,
    }
    return ObservedTopic(**fields)


def live_job(uid: str, number: int, schema: RecordSchema, target: TableTarget, **changes: Any) -> LiveJob:
    """Return a contract in force."""
    name = uid.rsplit("-", 1)[-1]
    job = IngestJob(
        uid=uid,
        namespace="demo",
        name=name,
        generation=number,
        group="default",
        profile="classic",
        topic=name,
        topic_id="topic-id-1",
        record_schema=schema,
        table=target,
        freshness_ms=60_000,
    )
    return replace(LiveJob(job=job, topic_origin="Created", table_origin="Created"), **changes)


def pod(name: str = "firn-ingest-default-0", **changes: Any) -> PodState:
    """Return a pod that is ready."""
    state = PodState(
        name=name,
        ready=True,
        running=True,
        phase="Running",
        labels={},
        template_hash="new",
        waiting_reason=None,
        waiting_message=None,
        unschedulable=None,
        last_exit_code=None,
        last_exit_reason=None,
        restarts=0,
        deleting=False,
    )
    return replace(state, **changes)


def broken_pod(name: str = "firn-ingest-default-0", **changes: Any) -> PodState:
    """Return a pod that is neither ready nor running."""
    return pod(name, **{"ready": False, "running": False, **changes})


def stateful_set(name: str = "firn-broker-classic", replicas: int = 3, **changes: Any) -> StatefulSetState:
    """Return a StatefulSet whose roll is complete."""
    state = StatefulSetState(
        name=name,
        template_hash="new",
        replicas=replicas,
        ready=replicas,
        updated=replicas,
        current_revision="1",
        update_revision="1",
        partition=0,
        generation_observed=True,
    )
    return replace(state, **changes)
