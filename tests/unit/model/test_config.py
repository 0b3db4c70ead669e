"""The operator's configuration: rejected documents and their messages."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from firn.model import config
from firn.model.errors import InvalidSpecError
from tests import gen

GOOD: dict[str, Any] = {
    "namespace": "firn-system",
    "images": {"spark": {"image": "firn-spark:1"}, "kafka": {"image": "apache/kafka:4.2.1"}},
    "defaultProfile": "classic",
    "profiles": {
        "classic": {"replicas": 1},
        "outside": {
            "bootstrapServers": "kafka.example:9093",
            "security": {
                "tls": True,
                "ca": {"secret": "kafka", "key": "ca.crt"},
                "certificate": {"secret": "kafka", "key": "tls.crt"},
                "certificateKey": {"secret": "kafka-key", "key": "tls.key"},
                "sasl": {
                    "mechanism": "SCRAM-SHA-512",
                    "username": "firn",
                    "password": {"secret": "sasl", "key": "password"},
                },
            },
        },
    },
    "defaultCatalog": "lake",
    "catalogs": {
        "lake": {
            "type": "sql",
            "uri": "postgresql://firn-postgres:5432/firn",
            "warehouse": "s3://firn/warehouse",
            "secretProperties": {"password": {"secret": "database", "key": "password"}},
        }
    },
    "groups": {"default": {"executors": {"instances": 2}}},
}


def write(tmp_path: Path, document: object) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def test_a_valid_configuration_is_loaded(tmp_path: Path) -> None:
    loaded = config.load(write(tmp_path, GOOD))
    classic, outside = loaded.profiles["classic"], loaded.profiles["outside"]
    assert isinstance(classic, config.KafkaProfile)
    assert isinstance(outside, config.KafkaProfile)
    assert (classic.managed, outside.managed) == (True, False)
    assert (classic.security.protocol, outside.security.protocol) == ("PLAINTEXT", "SASL_SSL")
    assert loaded.secret_names() == ["database", "kafka", "kafka-key", "sasl"]
    assert outside.security.ca is not None
    assert outside.security.ca.path == "/etc/firn/secrets/kafka/ca.crt"


def _set(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        for parent in parents:
            document = document[parent]
        document[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            _set("defaultProfile", "other"),
            "defaultProfile: 'other' is not in the configuration; choose from ['classic', 'outside'], or add it",
        ),
        (
            _set("defaultCatalog", "other"),
            "defaultCatalog: 'other' is not in the configuration; choose from ['lake'], or add it",
        ),
        (
            _set("defaultGroup", "other"),
            "defaultGroup: 'other' is not in the configuration; choose from ['default'], or add it",
        ),
        (_set("replica", 3), "replica: Extra inputs are not permitted"),
        (_set("profiles.classic.replica", 3), "profiles.classic.replica: Extra inputs"),
        (_set("profiles.classic.replicas", 0), "profiles.classic.replicas: Input should be greater than or equal to 1"),
        (_set("profiles.Classic", {}), "profiles.Classic.[key]: String should match pattern"),
        (_set("profiles." + "p" * 41, {}), "String should have at most 40 characters"),
        (_set("profiles.classic.kind", "Pulsar"), "profiles.classic: kind must be Kafka or Diskless"),
        (_set("profiles.classic.heap", "1Gi"), "profiles.classic.heap: '1Gi' is not a heap size"),
        (
            _set("profiles.classic.config", {"node.id": "1", "log.dirs": "/x", "num.io.threads": "9"}),
            "profiles.classic.config: the operator sets log.dirs, node.id for each broker",
        ),
        (_set("profiles.classic.storage", {"size": "20"}), ""),
        (
            _set("profiles.classic.storage", {"size": "lots"}),
            "profiles.classic.storage.size: 'lots' is not a size",
        ),
        (
            _set("profiles.outside.security.certificateKey", None),
            "certificate and certificateKey must be set together",
        ),
        (_set("profiles.outside.security.tls", False), "ca and certificate need tls: true"),
        (_set("profiles.outside.security.sasl.mechanism", "GSSAPI"), "sasl.mechanism: Input should be 'PLAIN'"),
        (
            _set("profiles.outside.security.sasl.mechanism", "OAUTHBEARER"),
            "profiles.outside.security.sasl: mechanism OAUTHBEARER needs tokens",
        ),
        (
            _set("profiles.outside.security.sasl.tokens", {"url": "https://id.example/token"}),
            "profiles.outside.security.sasl: mechanism OAUTHBEARER needs tokens, and no other mechanism has them; add or remove tokens",
        ),
        *(
            (_set("profiles.outside.security.sasl.tokens", {"url": "https://id.example/token"} | wrong), place)
            for wrong, place in (
                ({"url": "https://me:secret@id.example/token"}, "sasl.tokens.url: String should match pattern"),
                ({"extensions": {"auth": "x"}}, "sasl.tokens: extensions must not have the key auth"),
                ({"extensions": {"pool": "a\x01b"}}, "sasl.tokens.extensions.pool: String should match pattern"),
            )
        ),
        (_set("catalogs.lake.type", "hive"), "catalogs.lake.type: Input should be 'sql' or 'rest'"),
        (
            _set("catalogs.lake.uri", "postgresql://me:secret@host/db"),
            "catalogs.lake.uri: contains credentials",
        ),
        (
            _set("catalogs.lake.uri", "postgresql://host/db?password=secret"),
            "catalogs.lake.uri: contains credentials",
        ),
        (_set("catalogs.lake.uri", "postgresql://host/db?sslmode=require"), ""),
        *(
            (_set("catalogs.lake.properties", {key: "x"}), f"catalogs.lake.properties: {key} would be readable")
            for key in (
                "password",
                "token",
                "credential",
                "s3.secret-access-key",
                "adls.sas-token.lake",
                "adls.connection-string.lake",
                "fs.azure.account.key.lake.dfs.core.windows.net",
                "fs.azure.account.oauth2.client.secret.lake.dfs.core.windows.net",
                "fs.azure.sas.fixed.token.lake.dfs.core.windows.net",
                "jdbc.pwd",
                "jdbc.pass",
                "dbPass",
            )
        ),
        *(
            (_set("catalogs.lake.properties", {key: "x"}), "")
            for key in (
                "client.credentials-provider",
                "token-refresh-enabled",
                "fs.azure.account.keyprovider.lake.blob.core.windows.net",
                "client_secret_file",
                "http.proxy.bypass",
                "compass",
            )
        ),
        (
            _set("groups.default.sparkConf", {"spark.ssl.keyPassword": "x"}),
            "groups.default.sparkConf: spark.ssl.keyPassword",
        ),
        (
            _set("groups.default.sparkConf", {"spark.kafka.clusters.a.sasl.jaas.config": "x"}),
            "groups.default.sparkConf: spark.kafka.clusters.a.sasl.jaas.config",
        ),
        (_set("groups.default.environment", {"DB_PASS": "x"}), "groups.default.environment: DB_PASS"),
        *(
            (_set("profiles.classic.config", {key: "x"}), f"profiles.classic.config: {key} would be readable")
            for key in ("sasl.jaas.config", "ssl.keystore.password", "ssl.keystore.key", "password.encoder.secret")
        ),
        (_set("profiles.classic.config", {"delegation.token.max.lifetime.ms": "1", "ssl.keystore.type": "PEM"}), ""),
        (_set("groups.default.environment", {"AWS_WEB_IDENTITY_TOKEN_FILE": "/x", "AWS_ROLE_ARN": "y"}), ""),
        (_set("groups.default.environment", {"AWS_SECRET_ACCESS_KEY": "x"}), "name it in secretProperties"),
        (_set("maintenance", {"environment": {"PGPASSWORD": "x"}}), "maintenance.environment: PGPASSWORD"),
        (_set("groups.default.memory", "2 gigabytes"), "groups.default.memory: '2 gigabytes' is not a"),
        (_set("groups.default.bytesPerCommit", "1.5Gi"), "groups.default.bytesPerCommit: '1.5Gi' is not a size"),
        (_set("groups.default.executors.instances", 0), "groups.default.executors.instances"),
        (_set("maintenance", {"sizes": {"small": {}, "large": {"executors": {"instances": 3}}}}), ""),
        (
            _set("maintenance", {"sizes": {"large": {}}}),
            "maintenance: sizes needs a size named small",
        ),
        (
            _set("maintenance", {"sizes": {"small": {"memory": "2 GB"}}}),
            "maintenance.sizes.small.memory: '2 GB' is not a",
        ),
        (
            _set("maintenance", {"tablesPerRun": 25}),
            "maintenance.tablesPerRun: Input should be less than or equal to 24",
        ),
        (_set("maintenance", {"lowestOrphanAge": "0s"}), "maintenance.lowestOrphanAge: '0s' is not a duration"),
        (_set("resync", "5 minutes"), "resync: '5 minutes' is not a duration"),
        (_set("workers", "many"), "workers: Input should be a valid integer"),
        (_set("images", None), "images: Input should be"),
    ],
)
def test_an_error_names_the_wrong_key(tmp_path: Path, change: Callable[[dict[str, Any]], None], problem: str) -> None:
    document = copy.deepcopy(GOOD)
    change(document)
    path = write(tmp_path, document)
    if not problem:
        config.load(path)
        return
    with pytest.raises(InvalidSpecError) as refused:
        config.load(path)
    assert problem in str(refused.value)
    assert str(path) in str(refused.value)
    assert "secret@" not in str(refused.value)


def _all(*changes: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        for each in changes:
            each(document)

    return change


def _login(name: str = "ingest", **more: Any) -> dict[str, Any]:
    sasl = {"mechanism": "SCRAM-SHA-512", "username": name, "password": {"secret": name, "key": "password"}}
    return {"sasl": sasl, **more}


def _drivers(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return _set("profiles.outside.drivers", {"groups": {"default": _login()}, "maintenance": _login("runs"), **changes})


def test_drivers_of_an_existing_kafka_have_credentials_of_their_own(tmp_path: Path) -> None:
    document = copy.deepcopy(GOOD)
    before = config.load(write(tmp_path, document)).secret_names()
    principal = "User:CN=runs,O=example"
    pair = {"certificate": {"secret": "runs", "key": "tls.crt"}, "certificateKey": {"secret": "runs", "key": "tls.key"}}
    _drivers(manageAcls=True, maintenance=_login("runs", principal=principal, **pair))(document)
    loaded = config.load(write(tmp_path, document))
    assert loaded.secret_names() == before, "the operator mounts no credential of drivers"
    assert loaded.profiles_with_acls == ["outside"]
    assert (loaded.driver_user("outside", "default"), loaded.driver_user("outside", None)) == ("ingest", principal[5:])
    profile = loaded.profiles["outside"]
    assert isinstance(profile, config.KafkaProfile)
    of_group, of_runs = (
        profile.security_with(loaded.driver_credential("outside", group)) for group in ("default", None)
    )
    secrets = [
        sorted({each.secret for each in config.security_references(security)}) for security in (of_group, of_runs)
    ]
    assert secrets == [["ingest", "kafka"], ["kafka", "runs"]], (
        "of the Secret of the operator, they mount the one with ca"
    )
    assert (of_group.ca, of_group.certificate) == (profile.security.ca, None)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_drivers(groups={}), "profiles.outside.drivers.groups: default has no credential; add it"),
        (
            _drivers(groups={"default": _login(), "defualt": _login()}),
            "profiles.outside.drivers.groups: defualt is not in groups; add it there, or remove it",
        ),
        (_drivers(groups={"default": {}}), "drivers.groups.default: a credential needs sasl, or certificate and"),
        (_drivers(groups={"default": _login("firn")}), "drivers.groups.default: firn is the user of the operator"),
        (
            _all(_set("profiles.outside.security.ca", {"secret": "sasl", "key": "ca.crt"}), _drivers()),
            "drivers.maintenance: Secret sasl has the credential of the operator, too, and pods mount whole Secrets",
        ),
        (
            _all(_drivers(), _set("profiles.outside.drivers.maintenance.sasl.password.secret", "ingest")),
            "drivers.maintenance: Secret ingest has the credential of groups.default, too",
        ),
        (
            _drivers(maintenance={"certificate": {"secret": "runs", "key": "tls.crt"}}),
            "drivers.maintenance: certificate and certificateKey must be set together",
        ),
        (
            _drivers(maintenance={key: {"secret": "runs", "key": key} for key in ("certificate", "certificateKey")}),
            "drivers.maintenance: all clients of a listener use SASL, or none as in security; set sasl",
        ),
        (_drivers(maintenance=_login(principal="runs")), "drivers.maintenance.principal: String should match pattern"),
        (
            _drivers(
                manageAcls=True,
                maintenance={
                    "sasl": _login()["sasl"]
                    | {"mechanism": "OAUTHBEARER", "tokens": {"url": "https://id.example/token"}}
                },
            ),
            "drivers.maintenance: manageAcls needs the principal that the brokers give this client; set principal",
        ),
        (
            _set("profiles.classic.drivers", {"groups": {"default": _login()}, "maintenance": _login()}),
            "profiles.classic: drivers is for an existing Kafka; drivers of other brokers use their ServiceAccounts",
        ),
    ],
)
def test_wrong_credentials_of_drivers_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], problem: str
) -> None:
    document = copy.deepcopy(GOOD)
    change(document)
    with pytest.raises(InvalidSpecError) as refused:
        config.load(write(tmp_path, document))
    assert problem in str(refused.value)


def test_a_group_without_topics_of_the_profile_needs_no_credential(tmp_path: Path) -> None:
    document = copy.deepcopy(GOOD)
    document["groups"]["other"] = {"namespaces": ["reports"]}
    document["profiles"]["outside"]["namespaces"] = ["shop"]
    _drivers()(document)
    loaded = config.load(write(tmp_path, document))
    assert (loaded.driver_credential("outside", "other"), loaded.profiles_with_acls) == (None, [])


CLIENTS = {"authentication": ["OAuth", "Certificate"], "clientCa": {"secret": "clients"}}


def _diskless(**changes: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        document["images"]["broker"] = {"image": "firn-broker:1"}
        document["profiles"]["waves"] = gen.diskless(**changes)

    return change


def test_only_diskless_brokers_get_their_secrets(tmp_path: Path) -> None:
    document = copy.deepcopy(GOOD)
    before = config.load(write(tmp_path, document)).secret_names()
    _diskless()(document)
    loaded = config.load(write(tmp_path, document))
    assert loaded.secret_names() == before
    waves = loaded.profiles["waves"]
    assert isinstance(waves, config.DisklessProfile)
    assert waves.managed
    assert waves.secret_names() == ["firn-postgres", "firn-s3"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_diskless(heap="1g"), "profiles.waves.heap: Extra inputs"),
        (_diskless(replicas=0), "profiles.waves.replicas: Input should be greater than or equal to 1"),
        (_diskless(coordinator={"user": "firn"}), "profiles.waves.coordinator.uri: Field required"),
        (
            _diskless(coordinator={"uri": "postgresql://me:secret@host/db", "user": "me"}),
            "profiles.waves.coordinator.uri: contains credentials",
        ),
        (
            _diskless(coordinator={"uri": "mysql://host/db", "user": "me"}),
            "profiles.waves.coordinator.uri: String should match pattern",
        ),
        (_diskless(objectStore={"url": "/data"}), "profiles.waves.objectStore.url: String should match pattern"),
        (_diskless(flushInterval="2m"), "profiles.waves: flushInterval must be at most 60s"),
        (
            _diskless(replicas=2, historyBrokers=2),
            "profiles.waves: historyBrokers must be lower than replicas (2), because producers need other brokers; raise replicas",
        ),
        (_diskless(flushBytes="1Gi"), "profiles.waves: flushBytes must be from 1Ki to 256Mi"),
        (
            _diskless(config={"nodeId": 7, "listener": {}, "leaseSeconds": 3}),
            "profiles.waves.config: the operator sets listener, nodeId for each broker",
        ),
        (
            lambda document: document["profiles"].update(waves=gen.diskless()),
            "profiles.waves: kind Diskless needs an image; set images.broker or profiles.waves.image",
        ),
        (lambda document: document["profiles"].update(waves=gen.diskless(image={"image": "mine:1"})), ""),
        (_diskless(config={"leaseSeconds": 3}), ""),
        (_diskless(config={"authorization": {"type": "Acl"}}), ""),
        (
            _diskless(config={"authorization": {"type": "Acl"}}, access={"certificate": {"secret": "waves-tls"}}),
            "profiles.waves: config: with access, the operator sets authorization.type; use the keys of access",
        ),
        (
            _diskless(access={"certificate": {"secret": "waves-tls"}, "authentication": ["OAuth", "Certificate"]}),
            "profiles.waves.access: authentication has Certificate, but no CA of clients is named; set clientCa",
        ),
        (
            _diskless(access={"certificate": {"secret": "waves-tls"}, "clientCa": {"secret": "clients"}}),
            "profiles.waves.access: clientCa is for clients with a certificate, but authentication does not have Certificate",
        ),
        (
            _diskless(access={**CLIENTS, "certificate": {"secret": "clients"}}),
            "profiles.waves.access.clientCa: ca.crt of Secret clients belongs to brokers; name a CA",
        ),
        (
            _diskless(access={**CLIENTS, "certificate": {"selfSigned": {}, "previous": {"secret": "clients"}}}),
            "profiles.waves.access.clientCa: ca.crt of Secret clients belongs to brokers; name a CA",
        ),
        (_diskless(access={**CLIENTS, "certificate": {"secret": "waves-tls"}}), ""),
        (
            lambda document: document["profiles"]["classic"].update(
                access={**CLIENTS, "certificate": {"selfSigned": {}}, "clientCa": None}
            ),
            "profiles.classic.access: authentication has Certificate, but no CA of clients is named; set clientCa",
        ),
        (_diskless(config={"internal": {}}), "profiles.waves.config: the operator sets internal for each broker"),
        (_diskless(directReads={}), ""),
        (_diskless(directReads={"url": "s3://b"}), "profiles.waves.directReads.url: Extra inputs"),
        (_diskless(directReads={"token": {"secret": "s"}}), "profiles.waves.directReads.token.key: Field required"),
        (_diskless(directReads={"token": {"secret": "s", "key": "k"}}), ""),
        (
            _diskless(
                directReads={"token": {"secret": "s", "key": "k"}}, access={"certificate": {"secret": "waves-tls"}}
            ),
            "profiles.waves: directReads.token has no effect with access, because drivers send the tokens of their ServiceAccounts; remove it",
        ),
        (
            _diskless(directReads={"properties": {"aws_secret_access_key": "x"}}),
            "profiles.waves.directReads.properties: aws_secret_access_key would be readable in ConfigMaps",
        ),
        (
            lambda document: document["profiles"].update(other={"directReads": {}}),
            "profiles.other.directReads: Extra inputs",
        ),
    ],
)
def test_an_error_names_the_wrong_key_of_a_diskless_profile(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], problem: str
) -> None:
    test_an_error_names_the_wrong_key(tmp_path, change, problem)


@pytest.mark.parametrize("content", [b"", b"[]", b"text", b"a: [", b"\xff\xfe\x00", b"at: 2024-99-99\n"])
def test_an_error_names_a_file_that_is_no_configuration(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(InvalidSpecError, match=str(path)):
        config.load(path)


def test_an_error_names_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpecError, match="No such file"):
        config.load(tmp_path / "none.yaml")


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    document = {**copy.deepcopy(GOOD), "resync": "x", "workers": 0}
    with pytest.raises(InvalidSpecError, match=r"resync: .*; workers: "):
        config.load(write(tmp_path, document))


@pytest.mark.parametrize(
    ("certificate", "problem"),
    [
        ({}, "exactly one of secret, certManager and selfSigned"),
        ({"secret": "mine", "selfSigned": {}}, "exactly one of secret, certManager and selfSigned"),
        ({"certManager": {"name": "lake-ca"}, "selfSigned": {}}, "exactly one of secret, certManager and selfSigned"),
        ({"secret": "mine", "names": ["a"], "renewBefore": "5d"}, "remove names, renewBefore"),
        ({"selfSigned": {}, "duration": "30m", "renewBefore": "10m"}, "duration must be at least 1h"),
        ({"selfSigned": {}, "duration": "50d"}, "renewBefore must be at most half of duration"),
        ({"selfSigned": {"authorityDuration": "100d"}}, "at least twice the duration"),
        ({"selfSigned": {}, "names": ["*.*.example.com"]}, "neither a DNS name nor an IP address"),
        ({"selfSigned": {}, "names": ["kafka.example.com:9094"]}, "neither a DNS name nor an IP address"),
    ],
)
def test_certificates_have_one_source_and_terms_that_fit(certificate: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(problem)):
        config.Certificate.model_validate(certificate)


def test_a_source_that_is_null_is_not_set() -> None:
    chosen = config.Certificate.model_validate({"selfSigned": None, "secret": "mine"})
    assert chosen.secret_name("waves") == "mine"
    assert config.Certificate.model_validate({"selfSigned": {}}).secret_name("waves") == "firn-broker-waves-tls"
