"""Diskless profiles with ``access``: what brokers, the operator and the drivers get, and the order in which they change."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from firn.model import names
from firn.model.config import Config
from firn.model.errors import AccessDeniedError, InvalidSpecError
from firn.model.jobs import GroupSettings, KafkaConnection
from firn_broker import settings as broker_settings
from firn_controllers import children
from firn_controllers.cache.topic_users import user_entry
from firn_controllers.children import Owner
from firn_controllers.fleet import builders, kinds
from firn_controllers.fleet.diskless import config_map, stateful_set
from firn_controllers.fleet.diskless.layout import DisklessFleet
from firn_controllers.ingestion_group import settings as group_settings
from firn_controllers.ingestion_group import stateful_set as driver
from firn_controllers.ingestion_group.layout import group_labels
from firn_controllers.ports import CertificateState, FleetState, Manifest
from firn_controllers.topic_users import checks
from firn_controllers.topic_users.client_files import client_connection
from firn_operator.adapters.kube.workloads import Workloads
from firn_operator.process import telemetry, wiring
from tests import gen
from tests.fakes.world import World
from tests.unit.controllers.test_diskless_fleet import start

OWNER = Owner("firn-system", "config-uid")
NAME = "firn-broker-waves"
PLACE = ("apps/v1", "StatefulSet", "firn-system", NAME)
PLAIN, SECURE = (f"{NAME}-bootstrap.firn-system.svc:{port}" for port in (9092, 9096))
OPERATOR = "User:system:serviceaccount:firn-system:firn-operator"
CLIENTS: dict[str, Any] = {
    "authentication": ["ScramSha512", "OAuth", "Certificate"],
    "clientCa": {"configMap": "kafka-clients"},
}
"""The part of ``access`` that accepts clients with a certificate."""


def access(**changes: Any) -> dict[str, Any]:
    return {"certificate": {"secret": "waves-tls"}, "issuer": "https://cluster", **changes}


def config(given: dict[str, Any] | None, **profile: Any) -> Config:
    more = {} if given is None else {"access": given}
    return gen.config(profiles={"classic": {}, "waves": gen.diskless(**more, **profile)})


def fleet(given: dict[str, Any] | None, **profile: Any) -> DisklessFleet:
    managed = kinds.managed_fleet(config(given, **profile), "waves", OWNER, None)
    assert isinstance(managed, DisklessFleet)
    return managed


def read(managed: DisklessFleet, tmp_path: Path) -> broker_settings.BrokerSettings:
    """Return the settings that broker 1 reads."""
    document = tmp_path / "broker.yaml"
    document.write_text(config_map.build(managed)["data"]["broker.yaml"])
    return broker_settings.load(document, start(managed, tmp_path, 1))


def service_ports(managed: DisklessFleet) -> dict[str, int]:
    return {port["name"]: port["port"] for port in builders.bootstrap_service(managed)["spec"]["ports"]}


def container_ports(managed: DisklessFleet) -> set[str]:
    (container,) = stateful_set.build(managed, 0)["spec"]["template"]["spec"]["containers"]
    return {port["name"] for port in container["ports"]}


# Brokers


def test_a_closed_broker_has_a_secure_listener_and_denies_by_default(tmp_path: Path) -> None:
    settings = read(fleet(access(superUsers=["User:admin"]), external={"host": "kafka.example"}), tmp_path)
    secure, external = settings.listeners["secure"], settings.external
    assert (secure.bind, secure.authentication) == ("0.0.0.0:9096", ("ScramSha512", "OAuth"))
    assert secure.advertised == f"{NAME}-1.{NAME}.firn-system.svc:9096"
    assert secure.tls == broker_settings.TlsSettings(
        cert_file="/etc/firn/secrets/waves-tls/tls.crt",
        key_file="/etc/firn/secrets/waves-tls/tls.key",
    )
    assert external is not None
    assert (external.bind, external.tls, external.authentication) == ("0.0.0.0:9094", secure.tls, secure.authentication)
    assert settings.listener.bind == "127.0.0.1:9092", "no other pod reaches the listener without encryption"
    rights = settings.authorization
    assert (rights.type, rights.default, rights.super_users) == ("Acl", "Deny", ("User:admin",))
    assert rights.operators == (OPERATOR,)
    assert settings.oauth is not None
    assert (settings.oauth.issuer, settings.oauth.audience) == ("https://cluster", names.TOKEN_AUDIENCE)
    assert settings.oauth.principal_claim == "sub"


def test_a_broker_keeps_the_old_listeners_for_clients_that_move(tmp_path: Path) -> None:
    settings = read(fleet(access(plaintext="Keep"), external={"host": "kafka.example"}), tmp_path)
    assert settings.listener.bind == "0.0.0.0:9092"
    assert settings.external is not None
    assert settings.external.tls is None
    assert settings.authorization.super_users == ("User:ANONYMOUS",)
    assert "secure" in settings.listeners


def test_certificates_of_clients_have_a_ca_that_only_the_brokers_mount(tmp_path: Path) -> None:
    managed = fleet(access(**CLIENTS), external={"host": "kafka.example"})
    settings = read(managed, tmp_path)
    secure, external = settings.listeners["secure"], settings.external
    assert secure.tls is not None
    assert external is not None
    path = "/etc/firn/trust/configmap-kafka-clients/ca.crt"
    assert (secure.tls.client_ca_file, secure.authentication) == (path, ("ScramSha512", "OAuth", "Certificate"))
    assert (external.tls, external.authentication) == (secure.tls, secure.authentication)
    spec = stateful_set.build(managed, 0)["spec"]["template"]["spec"]
    (volume,) = [each for each in spec["volumes"] if each.get("configMap", {}).get("name") == "kafka-clients"]
    assert volume["configMap"]["items"] == [{"key": "ca.crt", "path": "ca.crt"}]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    assert (mount["mountPath"], mount["readOnly"]) == ("/etc/firn/trust/configmap-kafka-clients", True)
    configured = config(access(**CLIENTS))
    driver = driver_spec(configured, group_settings.group_settings(configured, "default"))
    assert "kafka-clients" not in str(driver)


def test_rules_give_the_principals_of_certificates(tmp_path: Path) -> None:
    rules = ["RULE:^CN=([^,]+).*$/$1/", "DEFAULT"]
    secure = read(fleet(access(principalRules=rules, **CLIENTS)), tmp_path).listeners["secure"]
    assert secure.tls is not None
    assert list(secure.tls.principal_rules) == rules


def test_users_need_access() -> None:
    with pytest.raises(ValidationError, match="users needs access"):
        config(None, users={})


def test_the_clients_of_users_get_the_secure_listener() -> None:
    configured = config(access(), users={})
    users = configured.profiles["waves"].users
    assert users is not None
    connection = client_connection(configured, "waves", users, "PEM")
    assert (connection.bootstrap_servers, connection.protocol, connection.certificates) == (SECURE, "SASL_SSL", "PEM")


def test_a_topic_user_of_a_profile_with_access_is_followed() -> None:
    profiles = {"classic": {}, "waves": gen.diskless(access=access(), users={"namespaces": ["demo"]})}
    configured = gen.config(profiles=profiles, users={"enabled": True})
    entry = user_entry(gen.user(profile="waves"))
    assert checks.problem(entry, configured) is None
    refused = checks.problem(user_entry(gen.user(profile="classic")), configured)
    assert refused is not None
    assert "or the profile has access" in str(refused)


RULES = ["RULE:^CN=([^,]+).*$/$1/"]


@pytest.mark.parametrize(
    ("given", "authentication", "text"),
    [
        ({"authentication": ["OAuth"]}, {}, "add ScramSha512 to profiles.waves.access.authentication"),
        (
            {"authentication": ["OAuth"], "principalRules": RULES},
            {"type": "Certificate"},
            "add Certificate to profiles.waves.access.authentication, and set profiles.waves.access.clientCa in",
        ),
        (CLIENTS, {"type": "Certificate"}, "set principalRules to RULE:"),
        ({"principalRules": RULES, **CLIENTS}, {"type": "Certificate"}, None),
        ({"principalRules": RULES, "certificate": {"selfSigned": {}}, **CLIENTS}, {"type": "Certificate"}, None),
        ({"authentication": ["OAuth"]}, {"type": "OAuth", "serviceAccount": "web"}, None),
        ({"authentication": ["OAuth", "ScramSha512"]}, {}, None),
    ],
)
def test_a_topic_user_that_cannot_log_in_is_refused(
    given: dict[str, Any], authentication: dict[str, str], text: str | None
) -> None:
    profiles = {"classic": {}, "waves": gen.diskless(access=access(**given), users={})}
    configured = gen.config(profiles=profiles, users={"enabled": True})
    refused = checks.problem(user_entry(gen.user(profile="waves", authentication=authentication)), configured)
    if text is None:
        assert refused is None
    else:
        assert refused is not None
        assert (refused.reason, text in str(refused)) == ("NotAllowed", True)


def test_the_operator_and_the_drivers_need_tokens() -> None:
    with pytest.raises(ValidationError, match="authentication needs OAuth"):
        config(access(authentication=["ScramSha512"]))


def test_a_profile_without_access_is_rendered_as_before() -> None:
    document = config_map.settings(fleet(None))
    assert not {"listeners", "authorization", "oauth"} & document.keys()
    assert config_map.build(fleet(None))["data"]["start.sh"] == config_map.START
    assert names.SECURED not in stateful_set.build(fleet(None), 0)["metadata"]["annotations"]
    assert service_ports(fleet(None)) == {"kafka": 9092}


def test_brokers_read_the_keys_of_tokens_at_the_api_server(tmp_path: Path) -> None:
    managed = fleet(access())
    oauth = read(managed, tmp_path).oauth
    assert oauth is not None
    spec = stateful_set.build(managed, 0)["spec"]["template"]["spec"]
    (volume,) = [each for each in spec["volumes"] if "projected" in each]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    token, authority = volume["projected"]["sources"]
    assert oauth.token_file == f"{mount['mountPath']}/{token['serviceAccountToken']['path']}"
    assert oauth.ca_file == f"{mount['mountPath']}/{authority['configMap']['items'][0]['path']}"
    assert spec["automountServiceAccountToken"] is False


def test_a_missing_issuer_is_named() -> None:
    with pytest.raises(InvalidSpecError, match=r"profiles\.waves\.access\.issuer"):
        config_map.settings(fleet(access(issuer="")))


def test_the_operators_token_names_the_issuer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    token = tmp_path / "token"
    token.write_text("e30.eyJpc3MiOiAiaHR0cHM6Ly9vd24ifQ.sig")
    monkeypatch.setattr(wiring, "OWN_TOKEN", token)
    found = wiring.with_issuer(config(access(issuer=""))).closed_profiles["waves"]
    stated = wiring.with_issuer(config(access())).closed_profiles["waves"]
    assert (found.issuer, stated.issuer) == ("https://own", "https://cluster")
    token.unlink()
    assert wiring.with_issuer(config(access(issuer=""))).closed_profiles["waves"].issuer == ""


# Drivers and runs


def test_a_driver_has_the_ca_and_a_token_but_not_the_key_of_the_brokers() -> None:
    configured = config(access())
    contents = group_settings.group_settings(configured, "default")
    assert contents.kafka["waves"] == KafkaConnection(
        bootstrap_servers=SECURE,
        protocol="SASL_SSL",
        ca_path="/etc/firn/access/waves/ca.crt",
        sasl_mechanism="OAUTHBEARER",
        sasl_token_path="/etc/firn/access/waves/token",
    )
    assert GroupSettings.model_validate_json(contents.model_dump_json()) == contents
    assert "/etc/firn/access/waves/token" not in contents.secret_files, "a new token restarts no driver"
    spec = driver_spec(configured, contents)
    (volume,) = [each for each in spec["volumes"] if "projected" in each]
    authority, token = (next(iter(source.values())) for source in volume["projected"]["sources"])
    assert (authority["name"], authority["items"]) == ("waves-tls", [{"key": "ca.crt", "path": "ca.crt"}])
    assert (token["audience"], token["path"]) == (names.TOKEN_AUDIENCE, "token")
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    assert mount["mountPath"] == "/etc/firn/access/waves"
    assert not [each for each in spec["volumes"] if each.get("secret", {}).get("secretName") == "waves-tls"]


def driver_spec(configured: Config, contents: GroupSettings) -> Manifest:
    built = driver.build(configured, contents, OWNER, group_labels("default"), in_use=True)
    spec: Manifest = built["spec"]["template"]["spec"]
    return spec


def test_a_driver_without_secure_listeners_has_the_template_of_before() -> None:
    configured = config(access(), replicas=3)
    opening = group_settings.group_settings(configured, "default", opening={"waves"})
    before = group_settings.group_settings(config(None), "default")
    assert opening == before
    assert driver_spec(configured, opening) == driver_spec(config(None), before)
    assert "sasl_token_path" not in before.model_dump()["kafka"]["waves"]


# Changes of a fleet


def connections(stage: World) -> KafkaConnection:
    place = ("v1", "ConfigMap", "firn-system", "firn-ingest-default")
    return GroupSettings.model_validate_json(stage.cluster.objects[place]["data"]["group.json"]).kafka["waves"]


async def test_new_brokers_and_their_clients_use_the_secure_listener_at_once() -> None:
    stage = World(config(access()))
    stage.cluster.create(gen.topic(profile="waves"))
    await stage.settle()
    assert connections(stage).bootstrap_servers == SECURE
    assert stage.cluster.topic("flights")["status"]["bootstrapServers"] == SECURE
    assert stage.conditions()["Ready"] == ("True", "AllReady")
    live = stage.cluster.objects[PLACE]
    assert live["metadata"]["annotations"][names.SECURED] == "true"
    bootstrap = stage.cluster.objects[("v1", "Service", "firn-system", f"{NAME}-bootstrap")]
    assert [port["name"] for port in bootstrap["spec"]["ports"]] == ["secure"]


@pytest.mark.parametrize("plaintext", ["Keep", "Close"])
async def test_firns_clients_move_after_the_last_broker(plaintext: str) -> None:
    stage = World(config(None, replicas=3))
    stage.cluster.create(gen.topic(profile="waves"))
    await stage.settle()
    stage.start(config(access(plaintext=plaintext), replicas=3))
    wanted = children.template_hash(stateful_set.build(fleet(access(plaintext=plaintext), replicas=3), 0))
    moves: list[tuple[int, str]] = []
    for _ in range(40):
        await stage.step()
        new = sum(
            pod.template_hash == wanted for name, pod in stage.cluster.pod_states.items() if name.startswith(NAME)
        )
        moves.append((new, connections(stage).bootstrap_servers))
        stage.clock.advance(5.0)
    assert {new for new, server in moves if server == SECURE} == {3}
    assert moves[-1] == (3, SECURE)
    expected = SECURE if plaintext == "Close" else PLAIN
    await stage.settle()
    assert stage.cluster.topic("flights")["status"]["bootstrapServers"] == expected


async def test_a_later_roll_does_not_move_the_clients_back() -> None:
    stage = World(config(access(), replicas=3))
    stage.cluster.create(gen.topic(profile="waves"))
    await stage.settle()
    stage.start(config(access(plaintext="Keep"), replicas=3, flushBytes="4Mi"))
    for _ in range(20):
        await stage.step()
        assert connections(stage).bootstrap_servers == SECURE
        stage.clock.advance(5.0)
    stage.start(config(None, replicas=3))
    await stage.settle()
    assert connections(stage).bootstrap_servers == PLAIN
    assert names.SECURED not in stage.cluster.objects[PLACE]["metadata"]["annotations"]


async def test_brokers_that_refuse_the_operator_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = World(config(access(issuer="https://wrong"), replicas=3))
    stage.cluster.create(gen.topic(profile="waves"))
    await stage.settle()

    async def refuse(profile: str, *, replicas: bool = False) -> FleetState:
        raise AccessDeniedError("the brokers do not accept the token")

    monkeypatch.setattr(stage.topics, "fleet", refuse)
    stage.start(config(access(), replicas=3))
    wanted = children.template_hash(stateful_set.build(fleet(access(), replicas=3), 0))
    for _ in range(40):
        await stage.step()
        stage.clock.advance(5.0)
    brokers = [pod for name, pod in stage.cluster.pod_states.items() if name.startswith(NAME)]
    assert {pod.template_hash for pod in brokers} == {wanted}
    messages = [condition["message"] for condition in stage.cluster.topic("flights")["status"]["conditions"]]
    assert any("check access.issuer" in message for message in messages)


def test_the_bootstrap_service_leads_to_old_brokers_until_all_are_closed() -> None:
    """The port of the Service names the port of the container, so only brokers that have it are behind it."""
    live = Workloads()
    manifest = {**stateful_set.build(fleet(None), 0), "status": {}}
    manifest["metadata"] |= {"resourceVersion": "1", "uid": "u", "generation": 1}
    live.seen(manifest)
    configured = config(access())
    opening = kinds.managed_fleet(configured, "waves", OWNER, live.stateful_set(NAME))
    assert isinstance(opening, DisklessFleet)
    assert (service_ports(opening), container_ports(opening)) == (
        {"kafka": 9092, "secure": 9096},
        {"secure", "metrics"},
    )
    assert service_ports(fleet(access())) == {"secure": 9096}
    current = wiring.connection(configured, "waves", live)
    assert current().bootstrap_servers == PLAIN
    manifest["metadata"] |= {"resourceVersion": "2", "annotations": {names.SECURED: "true"}}
    live.seen(manifest)
    assert current().bootstrap_servers == SECURE


def test_the_settings_of_a_user_may_limit_acls() -> None:
    document = yaml.safe_load(
        config_map.build(fleet(access(), config={"authorization": {"maxAcls": 5}}))["data"]["broker.yaml"]
    )
    assert (document["authorization"]["maxAcls"], document["authorization"]["type"]) == (5, "Acl")


def test_brokers_and_clients_mount_the_certificate_of_the_signer(tmp_path: Path) -> None:
    managed = fleet(access(certificate={"selfSigned": {}}))
    own = names.brokers_certificate("waves")
    assert own in managed.secret_names
    tls = read(managed, tmp_path).listeners["secure"].tls
    assert tls is not None
    assert (tls.cert_file, tls.client_ca_file) == (names.secret_file(own, "tls.crt"), "")
    volumes, _ = children.access_volumes(config(access(certificate={"selfSigned": {}})).closed_profiles)
    (secret,) = [source["secret"] for source in volumes[0]["projected"]["sources"] if "secret" in source]
    assert (secret["name"], [item["key"] for item in secret["items"]]) == (own, ["ca.crt"])
    longer = fleet(access(certificate={"selfSigned": {}, "names": ["kafka.example.com"]}))
    assert stateful_set.build(longer, 0) == stateful_set.build(managed, 0), "terms of the certificate replace no broker"


CERTIFICATE = names.issued_certificate("waves", "lake-ca")


def cert_manager(**terms: Any) -> dict[str, Any]:
    return access(certificate={"certManager": {"name": "lake-ca", "kind": "Issuer"}, **terms})


async def test_cert_manager_issues_the_certificate_that_brokers_mount() -> None:
    external = {"type": "LoadBalancer", "hosts": ["b0.example.com"]}
    given = cert_manager(duration="24h", renewBefore="8h", names=["192.0.2.7", "4711"])
    world = World(config(given, external=external, replicas=1))
    await world.settle()
    applied = world.certificates.applied[CERTIFICATE]
    assert applied["metadata"]["ownerReferences"][0]["uid"] == "config-uid"
    assert applied["spec"] == {
        "secretName": CERTIFICATE,
        "commonName": NAME,
        "dnsNames": [f"*.{NAME}.firn-system.svc", "4711", "b0.example.com", f"{NAME}-bootstrap.firn-system.svc"],
        "ipAddresses": ["192.0.2.7"],
        "duration": "86400s",
        "renewBefore": "28800s",
        "usages": ["digital signature", "server auth", "client auth"],
        "privateKey": {"algorithm": "ECDSA", "size": 256, "encoding": "PKCS8", "rotationPolicy": "Always"},
        "issuerRef": {"name": "lake-ca", "kind": "Issuer", "group": "cert-manager.io"},
    }
    assert CERTIFICATE in fleet(given, external=external, replicas=1).secret_names


async def test_a_certificate_that_is_not_ready_is_reported_with_the_fleet() -> None:
    world = World(config(cert_manager()))
    await world.settle()
    degraded = world.operator.board.fleet("waves").degraded
    assert f"Certificate {CERTIFICATE}: cert-manager has not reported it as Ready yet; see kubectl" in degraded
    world.certificates.states[CERTIFICATE] = CertificateState(ready=False, message="Issuer lake-ca not found")
    await world.settle()
    assert "Issuer lake-ca not found" in world.operator.board.fleet("waves").degraded
    ends = gen.NOW + timedelta(days=90)
    world.certificates.states[CERTIFICATE] = CertificateState(ready=True, ends=ends)
    await world.settle()
    assert world.operator.board.fleet("waves").degraded == ""
    (family,) = telemetry.CertificateMetrics(lambda: world.operator.board.certificate_ends, lambda: gen.NOW).collect()
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"profile": "waves", "certificate": "brokers"}, 90 * 86400.0)
    ]


async def test_a_cluster_without_cert_manager_is_reported_and_its_brokers_are_applied_anyway() -> None:
    world = World(config(cert_manager()))
    world.certificates.installed = False
    world.pods_run = False
    await world.settle()
    found = world.operator.board.fleet("waves")
    assert f"Certificate {CERTIFICATE}: the cluster has no CRD certificates.cert-manager.io" in found.message
    assert PLACE in world.cluster.objects
    world.certificates.installed = world.pods_run = True
    world.certificates.states[CERTIFICATE] = CertificateState(ready=True)
    await world.settle()
    assert (world.operator.board.fleet("waves").problem, world.operator.board.fleet("waves").degraded) == (None, "")


async def test_profiles_with_other_certificates_apply_none() -> None:
    world = World(config(access()))
    await world.settle()
    assert world.certificates.applied == {}
