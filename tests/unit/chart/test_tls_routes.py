"""TLSRoutes of the Gateway API: the chart renders them, and they fit the Services and addresses that the operator makes."""

from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from firn.model import names
from firn.model.config import Config
from firn.model.errors import InvalidSpecError
from firn_controllers.children import Owner
from firn_controllers.fleet import builders, kinds
from firn_controllers.trust.hosts import hosts
from tests import gen
from tests.chart import ChartError, Manifest, find_object, manifests, render

ACCESS = {"certificate": {"secret": "tls"}}
ROUTE: dict[str, Any] = {
    "parentRefs": [{"name": "lake", "namespace": "gateways", "sectionName": "kafka"}, {"name": "own"}],
    "bootstrapHostname": "kafka.example.com",
    "brokerHostname": "kafka-{broker}.example.com",
}
EXTERNAL = {"type": "TLSRoute", "tlsRoute": ROUTE}
DISKLESS = {
    "kind": "Diskless",
    "coordinator": {"uri": "postgresql://db:5432/firn", "user": "firn"},
    "objectStore": {"url": "s3://b/p"},
}


OPERATOR = {"app.kubernetes.io/instance": "firn", "app.kubernetes.io/component": "operator"}
GATEWAY = [{"namespaceSelector": {"matchLabels": {"a": "b"}}}]
ROUTED: dict[str, Any] = {"external": EXTERNAL, "access": ACCESS}
VALUES: dict[str, Any] = {
    "images": {"registry": "r.example.com"},
    "crds": {"enabled": False},
    "profiles": {
        "events": ROUTED,
        "waves": {**DISKLESS, **ROUTED, "replicas": 2},
        "ports": {"external": {"host": "h"}},
        "existing": {"bootstrapServers": "a:9092"},
    },
    "networkPolicy": {"enabled": True, "strict": True, "gatewaysFrom": {"waves": GATEWAY}},
}


def objects() -> list[Manifest]:
    return manifests(render(VALUES))


def configured() -> Config:
    text = find_object(objects(), "ConfigMap", names.CONFIG_OBJECT)["data"]["config.yaml"]
    return Config.model_validate(yaml.safe_load(text)).with_issuer("https://issuer")


@pytest.mark.parametrize(("name", "replicas"), [("events", 3), ("waves", 2)])
def test_each_route_leads_to_a_service_of_the_operator_by_the_advertised_name(name: str, replicas: int) -> None:
    config, prefix = configured(), f"firn-broker-{name}-external"
    fleet = kinds.managed_fleet(config, name, Owner("firn-system", "uid"), None)
    found = {}
    for route in [item for item in routes() if item["metadata"]["labels"][names.LABEL_PROFILE] == name]:
        assert (route["apiVersion"], route["metadata"]["namespace"]) == ("gateway.networking.k8s.io/v1", "firn-system")
        assert route["spec"]["parentRefs"] == ROUTE["parentRefs"]
        (hostname,), (rule,) = route["spec"]["hostnames"], route["spec"]["rules"]
        (backend,) = rule["backendRefs"]
        assert backend["name"] == route["metadata"]["name"]
        found[backend["name"], backend["port"]] = hostname
    services = builders.external_services(fleet)
    assert {service["spec"]["type"] for service in services} == {"ClusterIP"}
    assert {(each["metadata"]["name"], each["spec"]["ports"][0]["port"]) for each in services} == found.keys()
    expected = {prefix: "kafka.example.com"}
    expected |= {f"{prefix}-{broker}": f"kafka-{broker}.example.com" for broker in range(replicas)}
    assert {service: hostname for (service, _), hostname in found.items()} == expected
    certificate = config.closed_profiles[name].certificate
    assert set(found.values()) <= set(hosts("firn-system", name, config.profiles[name], certificate))
    script = kinds.config_map(fleet)["data"]["start.sh"]
    assert 'external="kafka-${ordinal}.example.com:443"\n' in script
    assert "FIRN_EXTERNAL" not in script


def routes() -> list[Manifest]:
    return [item for item in objects() if item["kind"] == "TLSRoute"]


def test_only_profiles_with_tls_routes_have_them() -> None:
    assert {item["metadata"]["labels"][names.LABEL_PROFILE] for item in routes()} == {"events", "waves"}


def test_a_fleet_with_more_brokers_than_routes_is_refused() -> None:
    config = configured()
    live = gen.stateful_set(replicas=5)
    fleet = kinds.managed_fleet(config, "events", Owner("firn-system", "uid"), live)
    with pytest.raises(InvalidSpecError, match=r"profiles\.events\.replicas: 5 brokers exist.* set replicas to 5"):
        kinds.config_map(fleet)


@pytest.mark.parametrize(
    ("profile", "message"),
    [
        ({"access": None}, "TLSRoute needs access with plaintext: Close"),
        ({"access": {**ACCESS, "plaintext": "Keep"}}, "TLSRoute needs access with plaintext: Close"),
        ({"external": {"type": "TLSRoute"}}, "type TLSRoute and tlsRoute need each other"),
        ({"external": {"tlsRoute": ROUTE}}, "type TLSRoute and tlsRoute need each other"),
        ({"external": {**EXTERNAL, "tlsRoute": {**ROUTE, "brokerHostname": "kafka.example.com"}}}, "one {broker}"),
        ({"external": {**EXTERNAL, "tlsRoute": {**ROUTE, "brokerHostname": "{broker}"}}}, "one {broker}"),
        ({"external": {**EXTERNAL, "tlsRoute": {**ROUTE, "bootstrapHostname": "kafka-7.example.com"}}}, "of a broker, too"),
    ],
)  # fmt: skip
def test_routes_without_tls_or_names_are_refused(profile: dict[str, Any], message: str) -> None:
    kafka = {"external": EXTERNAL, "access": ACCESS, **profile}
    for given in (kafka, gen.diskless(**kafka)):
        with pytest.raises(ValidationError, match=message):
            gen.config(profiles={"classic": {}, "events": given})


def test_a_name_that_is_an_address_fails_before_the_installation() -> None:
    wrong = {**EXTERNAL, "tlsRoute": {**ROUTE, "bootstrapHostname": "Kafka"}}
    with pytest.raises(ChartError, match="bootstrapHostname"):
        render({**VALUES, "profiles": {"events": {**ROUTED, "external": wrong}}})


def test_only_gateways_and_the_operator_reach_the_external_listener() -> None:
    """The operator reads the end of the certificate there, of brokers of Apache Kafka only."""
    found = {}
    for name in ("events", "waves", "ports"):
        ingress = find_object(objects(), "NetworkPolicy", f"firn-broker-{name}")["spec"]["ingress"]
        rules = [rule.get("from") for rule in ingress if {"port": "external"} in rule.get("ports", [])]
        found[name] = [peers for peers in rules if peers != [{"podSelector": {"matchLabels": OPERATOR}}]]
        assert len(rules) - len(found[name]) == (name == "events")
    ((peer,),) = found["events"]
    (expression,) = peer["namespaceSelector"]["matchExpressions"]
    assert expression["values"] == ["firn-system", "gateways"]
    assert (found["waves"], found["ports"]) == ([GATEWAY], [None])
