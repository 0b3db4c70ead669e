"""Strict NetworkPolicies: every pod is isolated in both directions, and reaches what it needs."""

import functools
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import yaml

from firn.model import names
from firn.model.config import Config
from firn_controllers import children
from firn_controllers.children import COMPONENT, Owner
from firn_controllers.fleet import kinds
from firn_controllers.fleet.kafka import metadata_version
from firn_controllers.fleet.kafka.layout import KafkaFleet
from firn_controllers.ingestion_group.layout import group_labels
from firn_controllers.ingestion_group.service import BLOCK_MANAGER_PORT, DRIVER_PORT, PROGRESS_PORT
from firn_controllers.policies.plan import run_labels
from tests.chart import ChartError, Manifest, find_object, manifests, render

SYSTEM = "firn-system"
MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]
VALUES: dict[str, Any] = {
    "images": {"registry": "registry.example.com/data"},
    "crds": {"enabled": False},
    "networkPolicy": {"enabled": True, "strict": True, "metricsFrom": MONITORING},
    "groups": {"default": {}, "large": {"executors": {"instances": 1}}},
    "profiles": {
        "sealed": {
            "access": {
                "certificate": {"selfSigned": {}},
                "authentication": ["OAuth", "Certificate"],
                "clientCa": {"secret": "kafka-clients"},
            }
        }
    },
    "quickStart": {
        "profile": {"namespaces": ["shop"], "metadataVersion": "4.2", "access": None, "users": None},
        "diskless": {
            "enabled": True,
            "profile": {
                "directReads": {},
                "access": {"certificate": {"selfSigned": {}}, "plaintext": "Keep"},
            },
        },
    },
}


@dataclass(frozen=True)
class Pod:
    """A pod as policies see it: namespace, labels, and the numbers of its named ports."""

    namespace: str
    labels: dict[str, str]
    ports: dict[str, int]


def of_template(template: Manifest) -> Pod:
    containers = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for each in containers for port in each.get("ports", [])}
    return Pod(SYSTEM, template["metadata"]["labels"], ports)


def pods(objects: list[Manifest]) -> dict[str, Pod]:
    """Return the pods of a release by name: those of the chart, and those that the operator makes."""
    found = {
        item["metadata"]["name"]: of_template(item["spec"]["template"])
        for item in objects
        if item["kind"] in ("Deployment", "StatefulSet", "Job")
    }
    config = Config.model_validate(
        yaml.safe_load(find_object(objects, "ConfigMap", names.CONFIG_OBJECT)["data"]["config.yaml"])
    ).with_issuer("https://issuer.example.com")
    for name, profile in config.profiles.items():
        if not profile.managed:
            continue
        fleet = kinds.managed_fleet(config, name, Owner(SYSTEM, "uid"), None)
        found[name] = of_template(kinds.stateful_set(fleet, 0)["spec"]["template"])
        if isinstance(fleet, KafkaFleet) and profile.managed and fleet.profile.metadata_version:
            found["upgrade"] = of_template(metadata_version.build(fleet, "4.2")["spec"]["template"])
    driver = {"progress": PROGRESS_PORT, "driver": DRIVER_PORT, "block-manager": BLOCK_MANAGER_PORT}
    for group in config.groups:
        found[f"driver-{group}"] = of_template(children.pod_template(group_labels(group), {}, {"containers": []}))
        found[f"driver-{group}"].ports.update(driver)
        found[f"executor-{group}"] = Pod(SYSTEM, {**names.EXECUTOR_ROLE, names.LABEL_GROUP: group}, {})
    run = run_labels("CompactionPolicy", "shop", "nightly") | {names.LABEL_RUN: "firn-run-1"}
    found["run"] = Pod(SYSTEM, run, {})
    found["run-executor"] = Pod(SYSTEM, {**names.EXECUTOR_ROLE, names.LABEL_RUN: "firn-run-1"}, {})
    return found


OUTSIDE = {
    "shop": Pod("shop", {"app": "shop"}, {"web": 8080}),
    "tenant": Pod("tenant", {"app": "tenant"}, {"web": 8080}),
    "prometheus": Pod("monitoring", {"app": "prometheus"}, {}),
    "neighbour": Pod(SYSTEM, {"app": "neighbour"}, {"web": 8080}),
}


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    equal = selector.get("matchLabels", {}).items() <= labels.items()
    known = {"Exists": lambda rule: rule["key"] in labels, "In": lambda rule: labels.get(rule["key"]) in rule["values"]}
    return equal and all(known[rule["operator"]](rule) for rule in selector.get("matchExpressions", []))


def is_peer(peer: dict[str, Any], pod: Pod) -> bool:
    if "namespaceSelector" in peer:
        if not selects(peer["namespaceSelector"], {"kubernetes.io/metadata.name": pod.namespace}):
            return False
    elif pod.namespace != SYSTEM:
        return False
    return selects(peer.get("podSelector", {}), pod.labels)


def isolating(objects: list[Manifest], pod: Pod, direction: str) -> list[Manifest]:
    """Return the specs of the policies that isolate a pod in a direction."""
    policies = [item["spec"] for item in objects if item["kind"] == "NetworkPolicy"]
    if pod.namespace != SYSTEM:
        return []
    return [each for each in policies if direction in each["policyTypes"] and selects(each["podSelector"], pod.labels)]


def consents(
    objects: list[Manifest], pod: Pod, peer: Pod, number: int, direction: Literal["Ingress", "Egress"]
) -> bool:
    """Return whether the policies of a pod allow a TCP connection in a direction. ``number`` is the port of the destination."""
    key, destination = ("from", pod) if direction == "Ingress" else ("to", peer)
    specs = isolating(objects, pod, direction)
    for rule in [rule for spec in specs for rule in spec.get(direction.lower(), [])]:
        numbers = [
            destination.ports.get(port["port"], port["port"])
            for port in rule.get("ports", [])
            if port.get("protocol", "TCP") == "TCP"
        ]
        if ("ports" not in rule or number in numbers) and (
            key not in rule or any(is_peer(each, peer) for each in rule[key])
        ):
            return True
    return not specs


@functools.cache
def installed() -> list[Manifest]:
    return manifests(render(VALUES))


@functools.cache
def everything() -> dict[str, Pod]:
    return {**pods(installed()), **OUTSIDE}


def connects(source: str, destination: str, number: int) -> bool:
    objects = installed()
    start, end = everything()[source], everything()[destination]
    return consents(objects, start, end, number, "Egress") and consents(objects, end, start, number, "Ingress")


@pytest.mark.parametrize("direction", ["Ingress", "Egress"])
def test_every_pod_is_isolated(direction: str) -> None:
    found = pods(installed())
    assert {"firn-operator", "firn-signer", "firn-postgres", "firn-s3", "firn-quickstart-secrets"} <= found.keys()
    assert {"classic", "diskless", "upgrade", "driver-large", "executor-large", "run", "run-executor"} <= found.keys()
    assert [name for name, pod in found.items() if not isolating(installed(), pod, direction)] == []


@pytest.mark.parametrize(
    ("source", "destination", "port"),
    [
        ("firn-operator", "classic", 9092),
        ("firn-operator", "diskless", 9092),
        ("firn-operator", "driver-default", 8080),
        ("firn-operator", "firn-postgres", 5432),
        ("firn-operator", "firn-s3", 7070),
        ("driver-default", "classic", 9092),
        ("driver-large", "diskless", 9095),
        ("executor-large", "diskless", 9095),
        ("executor-large", "driver-large", 7078),
        ("driver-large", "executor-large", 40123),
        ("executor-large", "firn-s3", 7070),
        ("run", "firn-postgres", 5432),
        ("run", "classic", 9092),
        ("run-executor", "run", 40123),
        ("run-executor", "firn-s3", 7070),
        ("firn-query", "firn-postgres", 5432),
        ("firn-query", "firn-s3", 7070),
        ("classic", "classic", 9093),
        ("classic", "classic", 9092),
        ("upgrade", "classic", 9092),
        ("diskless", "firn-postgres", 5432),
        ("diskless", "firn-s3", 7070),
        ("shop", "classic", 9092),
        ("tenant", "diskless", 9092),
        ("tenant", "diskless", 9096),
        ("firn-operator", "diskless", 9096),
        ("firn-operator", "sealed", 9096),
        ("tenant", "sealed", 9096),
        ("tenant", "sealed", 9097),
        ("sealed", "sealed", 9098),
        ("run", "diskless", 9096),
        ("prometheus", "firn-operator", 9090),
        ("prometheus", "firn-signer", 9090),
        ("prometheus", "driver-large", 8080),
        ("prometheus", "diskless", 9090),
    ],
)
def test_pods_connect_to_what_they_need(source: str, destination: str, port: int) -> None:
    assert connects(source, destination, port)


@pytest.mark.parametrize("source", ["tenant", "neighbour"])
@pytest.mark.parametrize(
    ("destination", "port"),
    [
        ("classic", 9092),
        ("classic", 9093),
        ("sealed", 9098),
        ("diskless", 9095),
        ("diskless", 9090),
        ("driver-default", 8080),
        ("driver-default", 7078),
        ("executor-large", 40123),
        ("run", 40123),
        ("firn-operator", 9090),
        ("firn-operator", 8080),
        ("firn-signer", 9090),
        ("firn-postgres", 5432),
        ("firn-s3", 7070),
        ("firn-quickstart-secrets", 80),
        ("firn-query", 80),
    ],
)
def test_other_pods_do_not_connect(source: str, destination: str, port: int) -> None:
    assert not connects(source, destination, port)


@pytest.mark.parametrize(
    ("source", "destination", "port"),
    [
        ("firn-operator", "classic", 9093),
        ("firn-operator", "diskless", 9095),
        ("run", "diskless", 9095),
        ("run", "driver-default", 8080),
        ("driver-default", "driver-large", 7078),
        ("classic", "firn-postgres", 5432),
        ("firn-signer", "firn-postgres", 5432),
        ("classic", "diskless", 9092),
        ("upgrade", "firn-s3", 7070),
        ("firn-query", "classic", 9092),
        ("firn-query", "driver-default", 8080),
        ("firn-postgres", "firn-s3", 7070),
        ("firn-s3", "shop", 8080),
        ("classic", "shop", 8080),
        ("diskless", "tenant", 8080),
        ("driver-default", "tenant", 8080),
        ("firn-operator", "tenant", 8080),
        ("shop", "classic", 9093),
        ("prometheus", "firn-postgres", 5432),
    ],
)
def test_pods_do_not_connect_to_what_they_do_not_need(source: str, destination: str, port: int) -> None:
    assert not connects(source, destination, port)


def with_tokens(username: str, port: int) -> dict[str, Any]:
    """Return the credential of a client whose tokens come from an endpoint with this port."""
    tokens = {"url": f"https://id.example.com:{port}/token"}
    password = {"secret": "clients", "key": username}
    return {"sasl": {"mechanism": "OAUTHBEARER", "username": username, "password": password, "tokens": tokens}}


TOKENS = {
    "security": with_tokens("firn", 8443),
    "drivers": {"groups": {"default": with_tokens("ingest", 8444)}, "maintenance": with_tokens("runs", 8445)},
}


@pytest.mark.parametrize(
    ("values", "ports"),
    [
        pytest.param({}, set(), id="the quick start needs nothing outside"),
        pytest.param(
            {"registries": {"main": {"url": "http://registry.apps.svc:8081/api"}}}, {8081}, id="a schema registry"
        ),
        pytest.param({"registries": {"main": {"url": "https://registry.example.com"}}}, {443}, id="a default port"),
        pytest.param(
            {"profiles": {"events": {"bootstrapServers": "a.example.com:9093, b.example.com:9094"}}},
            {9093, 9094},
            id="an existing Kafka",
        ),
        pytest.param(
            {"profiles": {"events": {"bootstrapServers": "a.example.com:9093", **TOKENS}}},
            {9093, 8443, 8444, 8445},
            id="an existing Kafka with tokens of several endpoints",
        ),
        pytest.param(
            {"catalogs": {"own": {"type": "rest", "uri": "http://nessie:19120/iceberg", "warehouse": "w"}}},
            {19120, 443},
            id="a REST catalog, which may name other stores",
        ),
        pytest.param(
            {
                "catalogs": {
                    "own": {
                        "type": "sql",
                        "uri": "postgresql://a,b:5433/iceberg",
                        "warehouse": "s3://lake",
                        "properties": {"s3.endpoint": "http://minio.stores.svc:9000"},
                    }
                }
            },
            {5432, 5433, 9000},
            id="a SQL catalog with its own store",
        ),
        pytest.param(
            {"groups": {"default": {"environment": {"HTTPS_PROXY": "http://proxy:3128"}}}}, {3128}, id="a proxy"
        ),
    ],
)
def test_egress_has_the_ports_of_the_configuration(values: dict[str, Any], ports: set[int]) -> None:
    merged = {**VALUES, "quickStart": {"diskless": {"enabled": True}}, **values}
    objects = manifests(render(merged))
    for name in ("firn-operator", "firn-ingest", "firn-maintain"):
        rules = find_object(objects, "NetworkPolicy", name)["spec"]["egress"]
        anywhere = [port["port"] for rule in rules if "to" not in rule for port in rule["ports"]]
        assert sorted(anywhere) == sorted([53, 53, 443, 6443, *ports]), name


def test_values_narrow_and_extend_the_egress() -> None:
    store = [{"ipBlock": {"cidr": "10.9.0.0/16"}}]
    more = {"to": [{"ipBlock": {"cidr": "169.254.169.254/32"}}], "ports": [{"port": 80}]}
    narrow = {"dns": store, "apiServer": {"ports": [6443], "to": store}, "stores": store, "egress": [more]}
    policy = {**VALUES["networkPolicy"], **narrow}
    registries = {"main": {"url": "https://registry.example.com"}}
    objects = manifests(render({**VALUES, "networkPolicy": policy, "registries": registries}))
    rules = find_object(objects, "NetworkPolicy", "firn-ingest")["spec"]["egress"]
    assert all("to" in rule for rule in rules)
    assert more in rules
    to_store = [[port["port"] for port in rule["ports"]] for rule in rules if rule["to"] == store]
    assert to_store == [[53, 53], [6443], [443]]


def test_clients_and_readers_of_the_stores_are_those_of_the_values() -> None:
    tenant = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tenant"}}}]
    policy = {**VALUES["networkPolicy"], "clientsFrom": {"classic": tenant}, "storesFrom": tenant}
    objects = manifests(render({**VALUES, "networkPolicy": policy}))
    found = {**pods(objects), **OUTSIDE}

    def reaches(source: str, destination: str, port: int) -> bool:
        return consents(objects, found[destination], found[source], port, "Ingress")

    assert reaches("tenant", "classic", 9092)
    assert not reaches("shop", "classic", 9092)
    assert reaches("tenant", "firn-s3", 7070)
    assert not reaches("shop", "firn-s3", 7070)


def test_without_peers_for_metrics_only_the_operator_reads_progress() -> None:
    policy = {**VALUES["networkPolicy"], "metricsFrom": []}
    objects = manifests(render({**VALUES, "networkPolicy": policy}))
    found = {**pods(objects), **OUTSIDE}
    for name, port in (("firn-operator", 9090), ("diskless", 9090), ("driver-default", 8080)):
        assert not consents(objects, found[name], found["prometheus"], port, "Ingress")
    assert consents(objects, found["driver-default"], found["firn-operator"], 8080, "Ingress")


def test_production_brokers_accept_all_pods_only_at_the_listener_for_clients_outside() -> None:
    objects = manifests(render(files=("values-production.yaml",)))
    for name in ("classic", "diskless"):
        rules = find_object(objects, "NetworkPolicy", f"firn-broker-{name}")["spec"]["ingress"]
        ports = [port["port"] for rule in rules if not rule.get("from") for port in rule["ports"]]
        assert ports == (["external"] if name == "classic" else [])


def test_a_profile_without_brokers_in_the_cluster_has_no_policy() -> None:
    profiles = {"events": {"bootstrapServers": "a.example.com:9093"}}
    objects = manifests(render({**VALUES, "profiles": profiles}))
    policies = [item["metadata"]["name"] for item in objects if item["kind"] == "NetworkPolicy"]
    assert "firn-broker-events" not in policies
    assert all(item["metadata"]["labels"][COMPONENT] for item in objects if item["kind"] == "NetworkPolicy")


def test_the_policy_of_the_hook_is_a_hook() -> None:
    hook = find_object(installed(), "NetworkPolicy", "firn-quickstart-secrets")
    job = find_object(installed(), "Job", "firn-quickstart-secrets")
    keys = ("helm.sh/hook", "helm.sh/hook-delete-policy")
    assert [hook["metadata"]["annotations"][key] for key in keys] == [
        job["metadata"]["annotations"][key] for key in keys
    ]
    weights = [int(item["metadata"]["annotations"]["helm.sh/hook-weight"]) for item in (hook, job)]
    assert weights == sorted(set(weights)), "Helm installs the policy before the Job"


def test_the_api_server_needs_a_port() -> None:
    with pytest.raises(ChartError, match="apiServer/ports"):
        render({**VALUES, "networkPolicy": {"apiServer": {"ports": [], "to": []}}})
