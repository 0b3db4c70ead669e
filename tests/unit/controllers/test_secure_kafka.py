"""Profiles of Apache Kafka with ``access``: what brokers get, and the stages in which a running fleet moves.

`tests/integration/kafka/` runs brokers with what is rendered here."""

import json
import subprocess
from collections.abc import Mapping
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from firn.model import names
from firn.model.config import Config
from firn.model.errors import AccessDeniedError, ExitCode, UnavailableError
from firn.model.jobs import GroupSettings
from firn_controllers.cache.topic_users import user_entry
from firn_controllers.children import Owner
from firn_controllers.fleet import builders, kinds
from firn_controllers.fleet.access import OPEN_PORT
from firn_controllers.fleet.kafka import config_map, metadata_version, plain_clients, stateful_set
from firn_controllers.fleet.kafka.layout import KafkaFleet, Stage
from firn_controllers.ports import Manifest
from firn_controllers.topic_users import checks
from firn_controllers.topic_users.client_files import client_connection
from firn_operator.process import telemetry
from tests import gen
from tests.fakes.world import World

OWNER = Owner("firn-system", "config-uid")
NAME = "firn-broker-classic"
PLACE = ("apps/v1", "StatefulSet", "firn-system", NAME)
PLAIN, SECURE = (f"{NAME}-bootstrap.firn-system.svc:{port}" for port in (9092, 9096))
BROKERS = "User:system:serviceaccount:firn-system:firn-broker"
OURS = {BROKERS, "User:system:serviceaccount:firn-system:firn-operator"}
CLIENTS: dict[str, Any] = {
    "authentication": ["ScramSha512", "OAuth", "Certificate"],
    "clientCa": {"secret": "kafka-clients", "key": "tls.crt"},
}
"""The part of ``access`` that accepts clients with a certificate."""


def access(**changes: Any) -> dict[str, Any]:
    return {"certificate": {"secret": "classic-tls"}, "issuer": "https://cluster", **changes}


def config(given: dict[str, Any] | None, **profile: Any) -> Config:
    more = {} if given is None else {"access": given}
    return gen.config(profiles={"classic": {**more, **profile}})


def fleet(given: dict[str, Any] | None, stage: Stage = Stage.CLOSED, **profile: Any) -> KafkaFleet:
    configured = config(given, **profile)
    managed = kinds.managed_fleet(configured, "classic", OWNER, None)
    assert isinstance(managed, KafkaFleet)
    return managed.at(stage, configured)


def pod(managed: KafkaFleet) -> Manifest:
    spec: Manifest = stateful_set.build(managed, 0)["spec"]["template"]["spec"]
    return spec


def lines(script: str) -> dict[str, str]:
    """Return the first assignments of the start script."""
    found: dict[str, str] = {}
    for line in script.splitlines():
        key, _, value = line.strip().partition("=")
        found.setdefault(key, value.strip('"'))
    return found


# Brokers


def test_a_new_fleet_has_only_listeners_that_authenticate() -> None:
    managed = fleet(access(superUsers=["User:admin"], **CLIENTS), external={"host": "kafka.example"})
    properties, script = config_map.properties(managed), lines(config_map.start(managed))
    assert (
        properties["listener.security.protocol.map"]
        == "SECURE:SASL_SSL,CERTIFICATE:SSL,QUORUM:SASL_SSL,EXTERNAL:SASL_SSL"
    )
    assert script["listeners"] == "SECURE://:9096,CERTIFICATE://:9097"
    assert (properties["inter.broker.listener.name"], properties["controller.listener.names"]) == ("SECURE", "QUORUM")
    assert set(properties["super.users"].split(";")) == {*OURS, "User:admin"}
    assert properties["listener.name.certificate.ssl.client.auth"] == "required"
    assert properties["listener.name.secure.sasl.enabled.mechanisms"] == "SCRAM-SHA-512,OAUTHBEARER"
    assert properties["listener.name.quorum.sasl.enabled.mechanisms"] == "OAUTHBEARER"
    assert properties["listener.name.external.scram-sha-512.sasl.jaas.config"].endswith("ScramLoginModule required;")
    assert properties["sasl.oauthbearer.expected.audience"] == names.TOKEN_AUDIENCE
    assert managed.ports == {"secure": 9096, "certificate": 9097, "quorum": 9098}
    assert {port["name"] for port in builders.bootstrap_service(managed)["spec"]["ports"]} == {"secure", "certificate"}


def test_every_property_with_access_is_closed_to_the_config_of_the_profile() -> None:
    plain, secure = config_map.properties(fleet(None, Stage.PLAIN)), config_map.properties(fleet(access(**CLIENTS)))
    for key in secure.keys() - plain.keys() - {"connections.max.reauth.ms"}:
        with pytest.raises(ValidationError, match="use the keys of access|would be readable"):
            config(access(), config={key: "other"})
    assert config(None, config={"authorizer.class.name": "example.Authorizer"}).profiles["classic"]


def test_the_config_of_the_profile_changes_how_long_a_session_lasts() -> None:
    key = "connections.max.reauth.ms"
    managed = fleet(access()), fleet(access(), config={key: "600000"}), fleet(None, Stage.PLAIN)
    assert [config_map.properties(each).get(key) for each in managed] == ["3600000", "600000", None]


def test_brokers_without_access_have_the_template_of_before() -> None:
    spec = pod(fleet(None, Stage.PLAIN))
    assert "serviceAccountName" not in spec
    assert [volume["name"] for volume in spec["volumes"]] == ["config", "tmp"]
    assert spec["containers"][0]["readinessProbe"]["tcpSocket"] == {"port": "kafka"}
    assert stateful_set.build(fleet(None, Stage.PLAIN), 0)["metadata"]["annotations"].keys() == {
        "firn.dev/controller-voters", "firn.dev/replicas", names.TEMPLATE_HASH
    }  # fmt: skip


def test_a_broker_mounts_its_key_in_memory_and_a_token_of_its_account() -> None:
    spec = pod(fleet(access()))
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    token, keys = (next(iter(source.values())) for source in volumes["tokens"]["projected"]["sources"])
    assert volumes["tls"]["secret"]["secretName"] == "classic-tls"
    assert volumes["keystore"]["emptyDir"]["medium"] == "Memory"
    assert (token["audience"], token["expirationSeconds"]) == (names.TOKEN_AUDIENCE, 7 * 86400)
    assert keys["name"] == f"{NAME}-keys"
    assert spec["serviceAccountName"] == "firn-broker"
    assert spec["automountServiceAccountToken"] is False
    assert spec["containers"][0]["readinessProbe"]["tcpSocket"] == {"port": "secure"}


def test_certificates_of_clients_have_a_ca_that_brokers_do_not_trust_for_each_other() -> None:
    managed = fleet(access(**CLIENTS))
    properties, path = config_map.properties(managed), "/etc/firn/trust/secret-kafka-clients/tls.crt"
    copy = "/etc/firn/keystore/clients.pem"
    assert f'cp "{path}" "{copy}.new"' in config_map.start(managed)
    stores = {key: value for key, value in properties.items() if key.endswith("ssl.truststore.location")}
    assert stores == {
        "ssl.truststore.location": "/etc/firn/tls/ca.crt",
        "listener.name.certificate.ssl.truststore.location": copy,
    }
    spec = pod(managed)
    (volume,) = [each for each in spec["volumes"] if each.get("secret", {}).get("secretName") == "kafka-clients"]
    assert volume["secret"]["items"] == [{"key": "tls.crt", "path": "tls.crt"}], "the key of the CA is not mounted"
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"] == volume["name"]]
    assert mount["mountPath"] == "/etc/firn/trust/secret-kafka-clients"
    assert "kafka-clients" not in str(metadata_version.build(managed, "4.2"))


@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERTIFICATE-----\n"], ids=["missing", "empty", "present"])
def test_a_broker_without_the_ca_of_clients_reports_the_cause(content: str | None, tmp_path: Path) -> None:
    file = tmp_path / "tls.crt"
    if content is not None:
        file.write_text(content)
    path = "/etc/firn/trust/secret-kafka-clients/tls.crt"
    first, found, _ = config_map.start(fleet(access(**CLIENTS))).partition("keystore=")
    assert found
    script = first.replace(path, str(file)).replace("/tmp/server.properties", str(tmp_path / "server.properties"))
    ended = subprocess.run(
        ["sh", "-c", script], env={"HOSTNAME": "broker-0"}, capture_output=True, text=True, timeout=30
    )
    cause = "The key tls.crt of the Secret kafka-clients has no certificate."
    assert (ended.returncode, cause in ended.stderr) == ((0, False) if content else (ExitCode.CONFIGURATION, True))


def test_only_the_methods_of_the_profile_are_offered() -> None:
    assert lines(config_map.start(fleet(access())))["listeners"] == "SECURE://:9096"
    assert fleet(access()).ports == {"secure": 9096, "quorum": 9098}
    properties = config_map.properties(fleet(access(authentication=["OAuth"])))
    assert "CERTIFICATE" not in properties["listener.security.protocol.map"]
    assert not [key for key in properties if "scram" in key.lower() or "SCRAM" in properties[key]]


@pytest.mark.parametrize(
    ("stage", "brokers", "controllers", "inter", "anonymous"),
    [
        (Stage.BESIDE, "INTERNAL,SECURE,CERTIFICATE", "CONTROLLER,QUORUM", "INTERNAL", True),
        (Stage.MOVED, "INTERNAL,SECURE,CERTIFICATE", "QUORUM,CONTROLLER", "SECURE", True),
        (Stage.CLOSED, "SECURE,CERTIFICATE", "QUORUM", "SECURE", False),
    ],
)
def test_each_stage_only_uses_listeners_that_the_stage_before_has(
    stage: Stage, brokers: str, controllers: str, inter: str, anonymous: bool
) -> None:
    managed = fleet(access(**CLIENTS), stage, external={"host": "kafka.example"})
    properties = config_map.properties(managed)
    script = config_map.start(managed)
    assert ",".join(part.split(":")[0] for part in lines(script)["listeners"].split(",")) == brokers
    assert (properties["controller.listener.names"], properties["inter.broker.listener.name"]) == (controllers, inter)
    assert ("User:ANONYMOUS" in properties["super.users"]) is anonymous
    assert f'$FIRN_SERVICE:{9093 if stage is Stage.BESIDE else 9098}"' in script
    external = "PLAINTEXT" if anonymous else "SASL_SSL"
    assert f"EXTERNAL:{external}" in properties["listener.security.protocol.map"]


def test_with_keep_clients_without_encryption_have_all_rights() -> None:
    properties = config_map.properties(fleet(access(plaintext="Keep")))
    assert "INTERNAL:PLAINTEXT" in properties["listener.security.protocol.map"]
    assert "CONTROLLER:PLAINTEXT" not in properties["listener.security.protocol.map"]
    assert "User:ANONYMOUS" in properties["super.users"]


def test_the_metadata_version_is_finalized_with_a_token() -> None:
    job = metadata_version.build(fleet(access()), "4.2")
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    environment = {variable["name"]: variable["value"] for variable in container["env"]}
    assert container["command"][-2:] == [SECURE, "4.2"]
    assert "security.protocol=SASL_SSL" in environment["FIRN_CLIENT"]
    assert spec["serviceAccountName"] == "firn-broker"
    plain = metadata_version.build(fleet(access(), Stage.BESIDE), "4.2")["spec"]["template"]["spec"]
    assert plain["containers"][0]["command"][-2:] == [PLAIN, "4.2"]
    assert "serviceAccountName" not in plain


# Configuration and users


def test_an_existing_kafka_has_no_access() -> None:
    with pytest.raises(ValidationError, match="for an existing Kafka, use security"):
        config(access(), bootstrapServers="kafka:9092")


def test_users_of_own_brokers_need_access() -> None:
    with pytest.raises(ValidationError, match="users needs access or bootstrapServers"):
        config(None, users={})
    configured = gen.config(profiles={"classic": {"access": access(), "users": {}}}, users={"enabled": True})
    users = configured.profiles["classic"].users
    assert users is not None
    connection = client_connection(configured, "classic", users, "PEM")
    assert (connection.bootstrap_servers, connection.protocol, connection.certificates) == (SECURE, "SASL_SSL", "PEM")
    assert checks.problem(user_entry(gen.user(profile="classic")), configured) is None


def test_a_user_without_a_way_to_log_in_is_refused() -> None:
    profile = {"access": access(authentication=["OAuth"]), "users": {}}
    configured = gen.config(profiles={"classic": profile}, users={"enabled": True})
    problem = checks.problem(user_entry(gen.user(profile="classic")), configured)
    assert "add ScramSha512 to profiles.classic.access.authentication" in str(problem)


# Changes of a fleet


def driver_server(stage: World) -> str:
    place = ("v1", "ConfigMap", "firn-system", "firn-ingest-default")
    settings = GroupSettings.model_validate_json(stage.cluster.objects[place]["data"]["group.json"])
    return settings.kafka["classic"].bootstrap_servers


def marks(stage: World) -> Mapping[str, str]:
    found: Mapping[str, str] = stage.cluster.objects[PLACE]["metadata"]["annotations"]
    return found


async def test_a_new_fleet_and_its_clients_are_closed_at_once() -> None:
    stage = World(config(access()))
    stage.cluster.create(gen.topic(profile="classic"))
    await stage.settle()
    assert (marks(stage)["firn.dev/access-stage"], marks(stage)[names.SECURED]) == ("3", "true")
    assert driver_server(stage) == stage.cluster.topic("flights")["status"]["bootstrapServers"] == SECURE
    assert stage.conditions()["Ready"] == ("True", "AllReady")
    keys = stage.cluster.objects["v1", "ConfigMap", "firn-system", f"{NAME}-keys"]
    assert keys["data"]["jwks.json"] == stage.cluster.keys


@pytest.mark.parametrize("plaintext", ["Keep", "Close"])
async def test_a_running_fleet_moves_stage_by_stage(plaintext: str) -> None:
    stage = World(config(None, replicas=3))
    stage.cluster.create(gen.topic(profile="classic"))
    await stage.settle()
    stage.start(config(access(plaintext=plaintext), replicas=3))
    stage.topics.certificate_ends = {(f"{NAME}-{number}.{NAME}.firn-system.svc", 9096): gen.NOW for number in range(3)}
    seen: list[tuple[str, int, str]] = []
    for _ in range(80):
        await stage.step()
        hash_ = stage.cluster.objects[PLACE]["spec"]["template"]["metadata"]["annotations"][names.TEMPLATE_HASH]
        pods = [each for name, each in stage.cluster.pod_states.items() if name.startswith(f"{NAME}-")]
        new = sum(each.template_hash == hash_ for each in pods)
        seen.append((marks(stage).get("firn.dev/access-stage", "0"), new, driver_server(stage)))
        assert sum(each.ready for each in pods) >= 2, "two brokers always serve"
        found = stage.operator.board.certificate_ends
        assert not found or seen[-1][0] != "1", "some brokers do not have the secure port yet"
        still_open = any(OPEN_PORT in each.ports for each in pods)
        assert stage.operator.board.open_fleets["classic"] or not still_open
        stage.clock.advance(5.0)
    assert stage.operator.board.certificate_ends == {("classic", "presented"): gen.NOW}
    stages = [now for now, _, _ in seen]
    assert list(dict.fromkeys(stages)) == ["1", "2", "3"]
    for before, after in pairwise(seen):
        assert before[0] == after[0] or before[1] == 3, "a stage begins after all brokers have the one before"
    assert {server for now, _, server in seen if now == "1"} == {PLAIN}
    assert seen[-1] == ("3", 3, SECURE)
    await stage.settle()
    expected = SECURE if plaintext == "Close" else PLAIN
    assert stage.cluster.topic("flights")["status"]["bootstrapServers"] == expected
    assert stage.operator.board.open_fleets == {"classic": plaintext == "Keep"}


async def test_brokers_that_refuse_the_operator_can_begin_again() -> None:
    stage = World(config(None, replicas=3))
    stage.cluster.create(gen.topic(profile="classic"))
    await stage.settle()
    wrong = access(issuer="https://wrong", plaintext="Keep")
    stage.start(config(wrong, replicas=3))
    while marks(stage).get("firn.dev/access-stage") != "2":
        await stage.step()
        stage.clock.advance(5.0)
    stage.topics.problem["classic"] = AccessDeniedError("the brokers do not accept the token")
    before = dict(stage.cluster.pod_states)
    await stage.settle(600)
    assert {name: each.template_hash for name, each in stage.cluster.pod_states.items()} == {
        name: each.template_hash for name, each in before.items()
    }, "no broker is replaced"
    assert any("check access.issuer" in stage.message(kind) for kind in stage.conditions())
    annotations = stage.cluster.objects[PLACE]["metadata"]["annotations"]
    del annotations["firn.dev/access-stage"], annotations[names.SECURED]
    del stage.topics.problem["classic"]
    stage.start(config(access(plaintext="Keep"), replicas=3))
    for _ in range(80):
        await stage.step()
        stage.clock.advance(5.0)
    assert marks(stage)["firn.dev/access-stage"] == "3"


async def test_access_cannot_be_removed_from_running_brokers() -> None:
    stage = World(config(access()))
    stage.cluster.create(gen.topic(profile="classic"))
    await stage.settle()
    template = stage.cluster.objects[PLACE]["spec"]["template"]
    stage.start(config(None))
    await stage.settle()
    assert stage.cluster.objects[PLACE]["spec"]["template"] == template
    messages = [condition["message"] for condition in stage.cluster.topic("flights")["status"]["conditions"]]
    assert any("it cannot be removed" in message for message in messages)


async def test_new_keys_reach_the_brokers_and_their_absence_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = World(config(access()))
    stage.cluster.create(gen.topic(profile="classic"))
    await stage.settle()
    place = ("v1", "ConfigMap", "firn-system", f"{NAME}-keys")
    template = json.dumps(stage.cluster.objects[PLACE]["spec"]["template"])
    stage.cluster.keys = '{"keys": [{"kid": "two"}]}'
    stage.clock.advance(120)
    await stage.settle()
    assert stage.cluster.objects[place]["data"]["jwks.json"] == stage.cluster.keys
    assert json.dumps(stage.cluster.objects[PLACE]["spec"]["template"]) == template, "new keys restart no broker"

    async def refuse() -> str:
        raise AccessDeniedError("forbidden")

    monkeypatch.setattr(stage.cluster, "token_keys", refuse)
    stage.clock.advance(120)
    await stage.settle()
    assert any("cannot read the keys of ServiceAccount tokens" in message for _, _, message in stage.cluster.events)
    assert stage.conditions()["Ready"] == ("True", "AllReady")


async def test_brokers_read_their_certificates_again_at_intervals() -> None:
    stage = World(config(access()))
    await stage.settle()
    assert stage.topics.reloads == ["classic"]
    stage.clock.advance(300)
    await stage.settle()
    assert stage.topics.reloads == ["classic"] * 2
    plain = World(config(None))
    await plain.settle()
    assert plain.topics.reloads == []


async def test_the_certificate_that_a_broker_presents_and_that_ends_first_is_reported() -> None:
    stage = World(config(access(), replicas=3))
    hosts = [(f"{NAME}-{number}.{NAME}.firn-system.svc", 9096) for number in range(3)]
    # The certificate of the first broker has ended, and the third one does not answer.
    first, second = gen.NOW - timedelta(hours=1), gen.NOW + timedelta(days=90)
    stage.topics.certificate_ends = {hosts[0]: first, hosts[1]: second}
    await stage.settle()
    assert stage.operator.board.certificate_ends == {("classic", "presented"): first}
    stage.topics.certificate_ends = {hosts[0]: second}
    stage.clock.advance(300)
    await stage.settle()
    stage.topics.certificate_ends = {}
    stage.clock.advance(300)
    await stage.settle()
    (family,) = telemetry.CertificateMetrics(lambda: stage.operator.board.certificate_ends, lambda: gen.NOW).collect()
    assert [(sample.labels, sample.value) for sample in family.samples] == [
        ({"profile": "classic", "certificate": "presented"}, 90 * 86400.0)
    ]


async def test_the_certificate_of_each_port_counts() -> None:
    """A listener whose CA of clients is damaged keeps the certificate that it has, while the others present the new one."""
    settings = access(plaintext="Close", authentication=["OAuth", "Certificate"], clientCa={"secret": "clients"})
    stage = World(config(settings, external={"host": "kafka.example"}))
    old, new = gen.NOW + timedelta(days=1), gen.NOW + timedelta(days=90)
    host = f"{NAME}-0.{NAME}.firn-system.svc"
    ends = {(host, 9096): new, (host, 9097): new, (host, 9094): new}
    for port in (9097, 9094):
        stage.topics.certificate_ends = {**ends, (host, port): old}
        stage.clock.advance(300)
        await stage.settle()
        assert stage.operator.board.certificate_ends == {("classic", "presented"): old}
    stage.topics.certificate_ends = {**ends, (host, 9092): old}
    stage.clock.advance(300)
    await stage.settle()
    assert stage.operator.board.certificate_ends == {("classic", "presented"): new}


def test_denials_are_in_the_log_of_the_container() -> None:
    """The configuration of the official image writes them to a file."""
    data = config_map.build(fleet(access()))["data"]
    assert "rootLogger.level = INFO" in data["log4j2.properties"]
    assert "authorizer" not in data["log4j2.properties"]
    assert "KAFKA_LOG4J_OPTS:--Dlog4j2.configurationFile=/etc/firn/kafka/log4j2.properties" in data["start.sh"]
    assert "log4j2.properties" not in config_map.build(fleet(None))["data"], "the brokers of 0.2.0 do not restart"


# Clients without encryption


@pytest.mark.parametrize(
    ("given", "stage", "ports"),
    [
        (access(plaintext="Keep"), Stage.CLOSED, ["2384", "2386"]),
        (access(plaintext="Keep"), Stage.MOVED, []),
        (access(), Stage.CLOSED, []),
        (None, Stage.PLAIN, []),
    ],
    ids=["kept", "moving", "closed", "plain"],
)
def test_brokers_log_clients_without_encryption_while_only_clients_connect_so(
    given: dict[str, Any] | None, stage: Stage, ports: list[str]
) -> None:
    managed = fleet(given, stage, external={"host": "kafka.example"})
    script = config_map.start(managed)
    assert [port for port in ("2384", "2386") if f'port["{port}"]' in script] == ports
    assert (plain_clients.PREFIX in script) is bool(ports)
    secure = bool(ports) or not managed.open
    probe = pod(managed)["containers"][0]["livenessProbe"]["tcpSocket"]
    assert probe == {"port": "secure" if secure else "kafka"}, "a probe must not look like a client"
    assert "@" not in script.replace("$voter@", "")


@pytest.mark.parametrize("kind", [{}, gen.diskless()], ids=["kafka", "diskless"])
@pytest.mark.parametrize(
    ("given", "warning"),
    [
        (None, "profile classic: every client that reaches the brokers may do everything, without encryption"),
        (access(plaintext="Keep"), "profile classic: clients without encryption may do everything"),
        (access(), None),
    ],
    ids=["open", "kept", "closed"],
)
async def test_an_event_each_hour_reports_brokers_that_accept_clients_without_encryption(
    given: dict[str, Any] | None, warning: str | None, kind: dict[str, Any]
) -> None:
    stage = World(config(given, **kind))
    for _ in range(4):
        await stage.settle()
        stage.clock.advance(1250)
    found = [message for _, reason, message in stage.cluster.events if reason == "BrokersOpen"]
    assert [message.startswith(warning or "none") for message in found] == ([True, True] if warning else [])


async def test_brokers_that_are_not_closed_yet_are_reported_although_the_configuration_closes_them() -> None:
    stage = World(config(None, replicas=2))
    await stage.settle()
    stage.start(config(access(), replicas=2))
    stage.topics.problem["classic"] = UnavailableError("no answer")
    stage.cluster.events.clear()
    await stage.settle(600)
    assert stage.operator.board.open_fleets == {"classic": True}
    (message,) = [message for _, reason, message in stage.cluster.events if reason == "BrokersOpen"]
    assert message.startswith(
        f"profile classic: clients without encryption may still do everything at {NAME}-0, {NAME}-1"
    )


def test_an_existing_kafka_is_neither_open_nor_closed() -> None:
    configured = config(None, bootstrapServers="events:9092")
    assert configured.openness == {}


def test_the_metric_has_each_profile_that_the_operator_runs() -> None:
    metrics = telemetry.OpenFleetMetrics(lambda: {"classic": True, "waves": False})
    ((first, second),) = [family.samples for family in metrics.collect()]
    assert (first.name, first.labels, first.value) == ("firn_fleet_open", {"profile": "classic"}, 1)
    assert (second.labels, second.value) == ({"profile": "waves"}, 0)


def found_events(stage: World) -> list[tuple[str, str]]:
    reasons = ("UnencryptedClients", "AllEncrypted")
    return [(reason, message) for _, reason, message in stage.cluster.events if reason in reasons]


async def test_the_operator_reports_clients_without_encryption_until_none_is_left() -> None:
    stage = World(config(access(plaintext="Keep"), replicas=3))
    await stage.settle()
    logs = stage.cluster.logs
    logs |= {f"{NAME}-{ordinal}": plain_clients.ALIVE for ordinal in range(3)}

    async def later(seconds: float) -> None:
        stage.clock.advance(seconds)
        await stage.settle()

    logs[f"{NAME}-0"] = (
        f"[2026] INFO started\n{plain_clients.ALIVE}\nConnection without encryption: address 10.0.0.7, port 9092\n"
    )
    logs[f"{NAME}-2"] = f"{plain_clients.ALIVE}\n" + "Connection without encryption: address 10.0.0.9, port 9094\n" * 2
    await later(60)
    (event,) = found_events(stage)
    assert event[0] == "UnencryptedClients"
    assert "2 client(s) connect without encryption: 10.0.0.7, port 9092; 10.0.0.9, port 9094; move them" in event[1]
    assert stage.operator.board.plain_clients == {"classic": {"10.0.0.7, port 9092", "10.0.0.9, port 9094"}}
    logs[f"{NAME}-2"] = plain_clients.ALIVE
    await later(120)
    assert found_events(stage) == [event], "a client that is known is reported once"
    await later(600)
    assert stage.operator.board.plain_clients["classic"] == {"10.0.0.7, port 9092"}
    logs[f"{NAME}-0"] = plain_clients.ALIVE
    await later(600)
    assert found_events(stage)[1:] == [
        ("AllEncrypted", "profile classic: no client has connected without encryption for 10 minutes")
    ]
    assert stage.operator.board.plain_clients == {"classic": frozenset()}


@pytest.mark.parametrize("problem", ["forbidden", "no awk"])
async def test_without_a_line_of_the_broker_the_operator_does_not_report_that_no_client_is_left(
    problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = World(config(access(plaintext="Keep")))
    stage.cluster.logs[f"{NAME}-0"] = "awk: not found\n"

    async def refuse(*_: object) -> str:
        raise AccessDeniedError("forbidden")

    if problem == "forbidden":
        monkeypatch.setattr(stage.cluster, "pod_log", refuse)
    for _ in range(20):
        await stage.settle()
        stage.clock.advance(60)
    assert (found_events(stage), stage.operator.board.plain_clients) == ([], {})


def test_a_message_names_ten_clients() -> None:
    text = plain_clients.message("classic", [f"10.0.0.{number:02}, port 9092" for number in range(12)])
    assert "12 client(s)" in text
    assert "10.0.0.09, port 9092 and 2 more; move" in text
