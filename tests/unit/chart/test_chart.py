"""The objects that the chart renders, and the values that it rejects."""

import itertools
import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

import firn
from firn.api.chart_values import Values
from firn.model import names
from firn.model.config import Config, DisklessProfile, access_of
from firn_controllers import children
from firn_controllers.children import Owner
from firn_controllers.fleet import builders, kinds
from hack.localcluster.images import build as images
from tests import gen
from tests.chart import CHART, ChartError, Manifest, find_object, manifests, notes, printed, render
from tests.pods import violations

GOLDEN = Path(__file__).parent / "golden"
IMAGES = {"images": {"registry": "registry.example.com/data"}}
WITHOUT_CRDS = {**IMAGES, "crds": {"enabled": False}}
EVERYTHING_ON = {
    **IMAGES,
    "networkPolicy": {"enabled": True},
    "metrics": {"serviceMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}},
    "podDisruptionBudget": {"enabled": True},
    "groups": {"large": {"executors": {"instances": 2}, "serviceAccount": "spark"}},
    "quickStart": {"diskless": {"enabled": True}},
    "maintenance": {"sizes": {"large": {"executors": {"instances": 2}}}},
}
DISKLESS = {"quickStart": {"diskless": {"enabled": True}}}
KINDS = (
    "icebergtopics",
    "compactionpolicies",
    "retentionpolicies",
    "deadletterreplays",
    "topicsets",
    "topicusers",
    "topicgrants",
)
USERS = {"users": {"enabled": True}}
OPEN: dict[str, Any] = {
    "quickStart": {
        "tls": False,
        "profile": {"access": None, "users": None},
        "diskless": {"profile": {"access": None, "users": None}},
    }
}
"""The quick start accepts clients without encryption, and neither the operator nor a signer has rights to Secrets."""


def config_of(objects: list[Manifest]) -> Config:
    document = find_object(objects, "ConfigMap", names.CONFIG_OBJECT)["data"]["config.yaml"]
    return Config.model_validate(yaml.safe_load(document))


def pod_templates(objects: list[Manifest]) -> dict[str, Manifest]:
    return {
        f"{item['kind']}/{item['metadata']['name']}": item["spec"]["template"]
        for item in objects
        if item["kind"] in ("Deployment", "StatefulSet", "Job")
    }


def rules_of(objects: list[Manifest], account: str) -> list[tuple[str | None, Manifest]]:
    """Return (namespace or None for the whole cluster, rule) of all bindings of the ServiceAccount."""
    rules = []
    for binding in objects:
        if binding["kind"] not in ("RoleBinding", "ClusterRoleBinding"):
            continue
        if account not in [subject["name"] for subject in binding["subjects"]]:
            continue
        namespace = binding["metadata"].get("namespace")
        role = find_object(objects, binding["roleRef"]["kind"], binding["roleRef"]["name"], namespace)
        rules += [(namespace, rule) for rule in role["rules"]]
    return rules


@pytest.mark.parametrize(
    ("golden", "files", "values"),
    [
        ("quickstart.yaml", (), WITHOUT_CRDS),
        ("production.yaml", ("values-production.yaml",), {"crds": {"enabled": False}}),
    ],
)
def test_the_rendered_chart_equals_the_golden_file(golden: str, files: tuple[str, ...], values: dict[str, Any]) -> None:
    text = render(values, files=files)
    path = GOLDEN / golden
    if os.environ.get("FIRN_UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text(), "rendered differently; FIRN_UPDATE_GOLDEN=1 accepts the change"


def test_rendering_twice_gives_the_same_bytes() -> None:
    first = render(EVERYTHING_ON)
    printed.cache_clear()
    assert render(EVERYTHING_ON) == first


def test_no_template_looks_up_the_cluster_or_makes_random_values() -> None:
    forbidden = ("lookup", "randAlpha", "randNumeric", "randAscii", "randBytes", "randInt", "genCA", "now ", "uuidv4")
    for template in (CHART / "templates").iterdir():
        code = [line for line in template.read_text().splitlines() if "{{" in line]
        assert not [line for line in code if any(word in line for word in forbidden)], template.name


# The configuration


def test_the_operator_accepts_the_quick_start_configuration() -> None:
    config = config_of(manifests(render(IMAGES, namespace="elsewhere")))
    assert config.namespace == "elsewhere"
    assert config.profiles["classic"].managed
    assert config.profiles["classic"].replicas == 1
    assert config.catalogs["lake"].type == "sql"
    assert config.catalogs["lake"].uri == "postgresql://firn-postgres.elsewhere.svc:5432/firn"
    assert config.images.spark.image == "registry.example.com/data/firn-spark:0.2.0"
    assert config.default_profile == "classic"


def test_the_operator_accepts_the_production_configuration() -> None:
    values = yaml.safe_load((CHART / "values-production.yaml").read_text())
    config = config_of(manifests(render(files=("values-production.yaml",))))
    assert config.watch_namespaces == values["watchNamespaces"]
    assert set(config.profiles) == set(values["profiles"])
    assert not config.profiles["events"].managed
    assert config.groups["large"].executors is not None
    assert config.model_dump(by_alias=True, exclude_unset=True)["catalogs"] == values["catalogs"]


@pytest.mark.parametrize(("values", "files"), [(IMAGES | DISKLESS, ()), ({}, ("values-production.yaml",))])
def test_brokers_of_the_value_files_accept_no_client_without_a_credential(
    values: dict[str, Any], files: tuple[str, ...]
) -> None:
    config = config_of(manifests(render(values, files=files)))
    managed = {name: access_of(profile) for name, profile in config.profiles.items() if profile.managed}
    assert set(managed) == {"classic", "diskless"}
    assert {name: access and access.plaintext for name, access in managed.items()} == dict.fromkeys(managed, "Close")


def test_one_value_adds_diskless_brokers_to_the_quick_start() -> None:
    objects = manifests(render({**IMAGES, "quickStart": {"diskless": {"enabled": True}}}, namespace="elsewhere"))
    config = config_of(objects)
    diskless = config.profiles["diskless"]
    assert isinstance(diskless, DisklessProfile)
    assert diskless.access is not None
    assert (diskless.access.plaintext, diskless.users is not None) == ("Close", True), "closed by default"
    assert names.brokers_certificate("diskless") in str(rules_of(objects, "firn-signer"))
    assert (diskless.replicas, config.profiles["classic"].managed, config.default_profile) == (1, True, "classic")
    assert config.images.broker is not None
    assert config.images.broker.image == "registry.example.com/data/firn-broker:0.2.0"
    for host, port in (("firn-postgres", 5432), ("firn-s3", 7070)):
        (served,) = find_object(objects, "Service", host)["spec"]["ports"]
        assert served["port"] == port, "brokers run in the namespace of the release, where the short name resolves"
    assert urlsplit(diskless.coordinator.uri).netloc == "firn-postgres:5432"
    assert diskless.object_store.properties["aws_endpoint"] == "https://firn-s3:7070"
    bucket = urlsplit(diskless.object_store.url).netloc
    assert config.catalogs["lake"].warehouse.startswith(f"s3://{bucket}/")
    assert bucket in yaml.safe_dump(find_object(objects, "StatefulSet", "firn-s3")["spec"])


@pytest.mark.parametrize("enabled", [True, False])
def test_objects_of_diskless_brokers_exist_only_with_them(enabled: bool) -> None:
    values = {
        **EVERYTHING_ON,
        **OPEN,
        "quickStart": {**OPEN["quickStart"], "diskless": {**OPEN["quickStart"]["diskless"], "enabled": enabled}},
        "serviceAccounts": {"broker": {"annotations": {"role": "firn-broker"}}},
    }
    objects = manifests(render(values))
    by_kind = {item["kind"]: item for item in objects if item["metadata"]["name"] == "firn-broker"}
    assert set(by_kind) == ({"ServiceAccount", "ServiceMonitor"} if enabled else set())
    assert (config_of(objects).images.broker is not None) is enabled
    assert rules_of(objects, "firn-broker") == []
    if enabled:
        assert by_kind["ServiceAccount"]["metadata"]["annotations"] == {"role": "firn-broker"}
        fleet = kinds.managed_fleet(config_of(objects), "diskless", Owner("firn-system", "u"), None)
        metadata, spec = (builders.headless_service(fleet)[part] for part in ("metadata", "spec"))
        assert by_kind["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items() <= metadata["labels"].items()
        assert by_kind["ServiceMonitor"]["spec"]["endpoints"][0]["port"] in [port["name"] for port in spec["ports"]]


def test_default_values_are_complete_and_match_the_schema() -> None:
    Values.model_validate(yaml.safe_load((CHART / "values.yaml").read_text()))


def test_a_configuration_change_rolls_only_the_pods_that_read_it() -> None:
    before, after = (
        pod_templates(manifests(render({**IMAGES, "operator": {"logLevel": level}}))) for level in ("info", "debug")
    )
    changed = {name for name in before if before[name] != after[name]}
    assert changed == {"Deployment/firn-operator", "Deployment/firn-signer", "StatefulSet/firn-query"}


def test_no_pod_template_or_claim_contains_the_chart_version() -> None:
    objects = manifests(render({**IMAGES, "images": {"operator": "o:1", "spark": "s:1"}}))
    version = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
    for name, template in pod_templates(objects).items():
        assert version not in yaml.safe_dump(template["metadata"]), name
    for item in objects:
        if item["kind"] == "StatefulSet":
            assert version not in yaml.safe_dump(item["spec"].get("volumeClaimTemplates"))
            assert version not in yaml.safe_dump(item["spec"]["selector"])


def test_project_images_have_the_project_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == firn.__version__ == images.version()


def test_the_notes_name_each_profile_that_accepts_clients_without_encryption(tmp_path: Path) -> None:
    profiles = {"mine": {}, "kept": {"access": {"certificate": {"selfSigned": {}}, "plaintext": "Keep"}}}
    existing = {"elsewhere": {"bootstrapServers": "k:9092"}}
    text = notes({**IMAGES, **DISKLESS, "profiles": profiles | existing}, tmp_path)
    assert "kind: TopicUser\n" in text, "the brokers of the quick start accept no other client"
    assert re.findall("WARNING: .* of the profile ([a-z]+) may do everything", text) == ["kept", "mine"]


@pytest.mark.parametrize("plaintext", ["Keep", "Close"])
def test_the_notes_call_the_quick_start_either_closed_or_open(tmp_path: Path, plaintext: str) -> None:
    text = notes({**IMAGES, "quickStart": {"profile": {"access": {"plaintext": plaintext}}}}, tmp_path)
    closed, opened = "The brokers accept only clients with TLS" in text, "WARNING" in text
    assert (closed, opened) == (plaintext == "Close", plaintext == "Keep")


# Secrets


@pytest.mark.parametrize("files", [(), ("values-production.yaml",)])
def test_the_operator_mounts_exactly_the_configured_secrets(files: tuple[str, ...]) -> None:
    objects = manifests(render(IMAGES, files=files))
    pod = find_object(objects, "Deployment", "firn-operator")["spec"]["template"]["spec"]
    volumes = {
        volume["name"]: volume["secret"]["secretName"]
        for volume in pod["volumes"]
        if "secret" in volume and "items" not in volume["secret"]
    }
    assert sorted(volumes.values()) == config_of(objects).secret_names()
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    for volume, secret in volumes.items():
        assert f"{mounts[volume]}/some-key" == names.secret_file(secret, "some-key")


def test_the_operator_mounts_no_credential_of_drivers() -> None:
    def login(name: str) -> dict[str, Any]:
        password = {"secret": name, "key": "password"}
        return {"sasl": {"mechanism": "SCRAM-SHA-512", "username": name, "password": password}}

    drivers = {"groups": {"default": login("of-group")}, "maintenance": login("of-runs"), "manageAcls": True}
    kafka = {"bootstrapServers": "k:9092", "security": login("of-operator"), "drivers": drivers}
    objects = manifests(render({**IMAGES, "profiles": {"events": kafka}}))
    pod = find_object(objects, "Deployment", "firn-operator")["spec"]["template"]["spec"]
    mounted = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert mounted & {"of-operator", "of-group", "of-runs"} == {"of-operator"}
    assert config_of(objects).driver_user("events", "default") == "of-group"


def test_secrets_with_any_name_are_mounted() -> None:
    secrets = ["a.b", "a-b", "s" * 200]
    properties = {f"p{number}": {"secret": secret, "key": "k"} for number, secret in enumerate(secrets)}
    catalog = {"type": "rest", "uri": "u", "warehouse": "w", "secretProperties": properties}
    objects = manifests(render({**IMAGES, **OPEN, "catalogs": {"other": catalog}}))
    pod = find_object(objects, "Deployment", "firn-operator")["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert len(volumes) == len(pod["volumes"]) - 2
    assert set(volumes.values()) >= set(secrets)
    assert all(re.fullmatch("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", name) for name in volumes)
    mounts = {mount["name"]: mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert {mounts[volume] for volume in volumes} == {f"{names.SECRETS_PATH}/{secret}" for secret in volumes.values()}


def test_the_operator_finds_its_configuration() -> None:
    container = find_object(manifests(render(IMAGES)), "Deployment", "firn-operator")["spec"]["template"]["spec"][
        "containers"
    ][0]
    assert {"name": "FIRN_CONFIG", "value": names.CONFIG_PATH} in container["env"]
    assert names.CONFIG_PATH in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_no_manifest_contains_a_secret_value() -> None:
    assert "Secret" not in {item["kind"] for item in manifests(render(IMAGES))}


def test_quick_start_generates_every_secret_that_it_refers_to() -> None:
    objects = manifests(render(IMAGES))
    lake = config_of(objects).catalogs["lake"]
    wanted = {(reference.secret, reference.key) for reference in lake.secret_properties.values()}
    assert generated(objects) == wanted


def stores_of(objects: list[Manifest]) -> dict[str, Manifest]:
    """Return the pod templates of the two stores."""
    templates = pod_templates(objects)
    return {store: templates[f"StatefulSet/firn-{store}"]["spec"] for store in ("postgres", "s3")}


@pytest.mark.parametrize("tls", [None, True])
def test_the_stores_of_the_quick_start_have_tls_and_every_client_checks_their_ca(tls: bool | None) -> None:
    objects = manifests(render({**IMAGES, "quickStart": {"tls": tls, "diskless": {"enabled": True}}}))
    config = config_of(objects)
    lake, diskless = config.catalogs["lake"], config.profiles["diskless"]
    assert isinstance(diskless, DisklessProfile)
    assert lake.properties["s3.endpoint"].startswith("https://")
    expected = [("firn-postgres-tls", "ca.crt"), ("firn-s3-tls", "ca.crt")]
    for authorities in (lake.authorities, diskless.authorities):
        assert [(authority.secret, authority.key) for authority in authorities] == expected
    for store, pod in stores_of(objects).items():
        (volume,) = [each for each in pod["volumes"] if each["name"] == "certificate"]
        assert volume["secret"]["secretName"] == names.store_certificate(store)
        assert [item["key"] for item in volume["secret"]["items"]] == ["tls.crt", "tls.key"], "and no key of a CA"
    (hook,) = pod_templates(objects)["Job/firn-quickstart-secrets"]["spec"]["initContainers"]
    assert ("--also-existing" in hook["args"]) is (tls is True), "only a decision may change running stores"
    signer = pod_templates(objects)["Deployment/firn-signer"]["spec"]["containers"][0]
    assert signer["args"] == ["--store", "postgres", "--store", "s3"]


@pytest.mark.parametrize(
    ("change", "tls", "waits"),
    [
        ({}, None, True),
        ({"access": {"certificate": {"duration": "60d"}}}, False, True),
        ({"access": {"plaintext": "Keep"}}, False, False),
        ({"access": {"plaintext": "Close"}}, None, False),
        ({"access": None, "users": None}, None, False),
    ],
    ids=["default", "undecided", "keep", "close", "open"],
)
def test_the_hook_asks_before_the_release_closes_running_brokers(
    change: dict[str, Any], tls: bool | None, waits: bool
) -> None:
    values = {**IMAGES, "quickStart": {"tls": tls, "profile": change, "diskless": {"enabled": True, "profile": change}}}
    objects = manifests(render(values))
    spec = find_object(objects, "Job", "firn-quickstart-secrets")["spec"]
    checks = spec["template"]["spec"].get("initContainers", [])
    asked = [argument for each in checks for argument in each["args"] if "=" in argument]
    expected = ["classic=quickStart.profile", "diskless=quickStart.diskless.profile"]
    assert asked == (expected if waits else [])
    assert ("podFailurePolicy" in spec) is (waits or tls is None)
    rights = [rule for _, rule in rules_of(objects, "firn-quickstart-secrets") if rule["resources"] == ["statefulsets"]]
    granted = [(rule["resourceNames"], rule["verbs"]) for rule in rights]
    assert granted == ([(["firn-broker-classic", "firn-broker-diskless"], ["get"])] if waits else [])


def test_one_value_keeps_the_stores_without_tls() -> None:
    opened = OPEN["quickStart"]
    values = {**IMAGES, "quickStart": {**opened, "diskless": {**opened["diskless"], "enabled": True}}}
    objects = manifests(render(values))
    config = config_of(objects)
    diskless = config.profiles["diskless"]
    assert isinstance(diskless, DisklessProfile)
    assert config.catalogs["lake"].properties["s3.endpoint"] == "http://firn-s3.firn-system.svc:7070"
    assert diskless.object_store.properties["aws_endpoint"] == "http://firn-s3:7070"
    assert config.catalogs["lake"].authorities == diskless.authorities == []
    assert "-tls" not in yaml.safe_dump([each for each in objects if "signer" not in each["metadata"]["name"]])
    assert "initContainers" not in pod_templates(objects)["Job/firn-quickstart-secrets"]["spec"]
    assert "Deployment/firn-signer" not in pod_templates(objects)


@pytest.mark.slow
def test_production_bundles_no_store() -> None:
    objects = manifests(render(files=("values-production.yaml",)))
    stateful = {item["metadata"]["name"] for item in objects if item["kind"] in ("StatefulSet", "Job")}
    assert stateful == {"firn-query"}


def test_the_pod_of_queries_has_the_secrets_of_catalogs_only_and_no_rights() -> None:
    kafka = {"bootstrapServers": "k:9092", "security": {"tls": True, "ca": {"secret": "kafka-ca", "key": "ca"}}}
    objects = manifests(render({**IMAGES, "profiles": {"events": kafka}}))
    operator = find_object(objects, "Deployment", "firn-operator")["spec"]["template"]["spec"]
    pod = find_object(objects, "StatefulSet", "firn-query")["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    def secrets(spec: Any) -> set[str]:
        return {each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each}

    assert secrets(operator) - secrets(pod) == {"kafka-ca"}
    assert secrets(pod) == {"firn-postgres", "firn-s3", "firn-postgres-tls", "firn-s3-tls"}
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("firn-query", False)
    bound = [each for each in objects if each["kind"].endswith("Binding") and "firn-query" in yaml.safe_dump(each)]
    assert bound == []
    assert container["resources"]["limits"]["memory"] == "1Gi"
    variables = {each["name"] for each in operator["containers"][0]["env"]}
    assert "FIRN_QUERY_POD" in variables


def test_without_the_pod_of_queries_statements_run_in_the_operators_container() -> None:
    objects = manifests(render({**IMAGES, "queries": {"enabled": False}}))
    assert not [each for each in objects if each["metadata"]["name"] == "firn-query"]
    assert "FIRN_QUERY_POD" not in yaml.safe_dump(objects)


WAVES = {
    "kind": "Diskless",
    "coordinator": {"uri": "postgresql://db:5432/firn", "user": "firn"},
    "objectStore": {"url": "s3://b/p"},
}
ACCESS = {"certificate": {"secret": "brokers-tls"}}


def direct(reads: Any, **values: Any) -> list[Manifest]:
    return manifests(render({**IMAGES, "profiles": {"waves": {**WAVES, "directReads": reads}}, **values}))


def generated(objects: list[Manifest]) -> set[tuple[str, str]]:
    """Return name and key of the Secrets that the hook generates."""
    if "Job" not in {item["kind"] for item in objects}:
        return set()
    template = find_object(objects, "Job", "firn-quickstart-secrets")["spec"]["template"]
    pairs = itertools.pairwise(template["spec"]["containers"][0]["args"])
    listed = [value.split("=") for flag, value in pairs if flag == "--secret"]
    rule = next(one for _, one in rules_of(objects, "firn-quickstart-secrets") if one["resources"] == ["secrets"])
    assert rule["resourceNames"] == [secret for secret, _ in listed]
    return {(secret, key) for secret, keys in listed for key in keys.split(",")}


@pytest.mark.parametrize("quick_start", [True, False])
def test_the_chart_generates_the_token_of_direct_reads(quick_start: bool) -> None:
    catalog = {"type": "rest", "uri": "http://rest", "warehouse": "w"}
    own = {"quickStart": {"enabled": False}, "catalogs": {"lake": catalog}, "defaultProfile": "waves"}
    objects = direct({}, **({} if quick_start else own))
    profile = config_of(objects).profiles["waves"]
    assert isinstance(profile, DisklessProfile)
    reference = profile.token("waves")
    assert reference is not None
    passwords = {("firn-postgres", "password"), ("firn-s3", "access-key"), ("firn-s3", "secret-key")}
    assert generated(objects) == {(reference.secret, reference.key)} | (passwords if quick_start else set())


@pytest.mark.parametrize("reads", [None, {"token": {"secret": "own", "key": "token"}}])
def test_the_chart_generates_no_token_that_no_broker_reads(reads: Any) -> None:
    assert {secret for secret, _ in generated(direct(reads))} == {"firn-postgres", "firn-s3"}


@pytest.mark.parametrize(
    "more", [{}, {"external": {"host": "kafka.example.com"}}, {"access": {**ACCESS, "plaintext": "Keep"}}]
)
def test_a_network_policy_opens_the_internal_listener_to_drivers_only(more: dict[str, Any]) -> None:
    profile = {**WAVES, "directReads": {}, **more}
    values = {**IMAGES, "networkPolicy": {"enabled": True}}
    objects = manifests(render({**values, "profiles": {"waves": profile}}))
    spec = find_object(objects, "NetworkPolicy", "firn-broker-waves")["spec"]
    config = config_of(objects)
    fleet = kinds.managed_fleet(config, "waves", Owner("firn-system", "uid"), None)
    assert spec["podSelector"]["matchLabels"].items() <= fleet.labels.items()
    everybody, drivers = spec["ingress"]
    ports = {*fleet.ports, *(["external"] if "external" in more else [])}
    assert {port["port"] for port in everybody["ports"]} == ports - {"internal"}
    assert "from" not in everybody
    assert drivers == {
        "ports": [{"port": "internal"}],
        "from": [{"podSelector": {"matchExpressions": [{"key": names.LABEL_GROUP, "operator": "Exists"}]}}],
    }
    plain = manifests(render({**values, "profiles": {"waves": WAVES}}))
    assert not [item for item in plain if item["metadata"]["name"] == "firn-broker-waves"]


def test_the_operator_mounts_its_token_and_the_ca_of_brokers_with_a_secure_listener() -> None:
    objects = manifests(render({**IMAGES, **OPEN, "profiles": {"waves": {**WAVES, "access": ACCESS}}}))
    config = config_of(objects)
    spec = find_object(objects, "Deployment", "firn-operator")["spec"]["template"]["spec"]
    (mount,) = [each for each in spec["containers"][0]["volumeMounts"] if each["name"].startswith("access-")]
    (volume,) = [each for each in spec["volumes"] if each["name"] == mount["name"]]
    (wanted,), (place,) = children.access_volumes(config.closed_profiles)
    assert volume["projected"] == wanted["projected"]
    assert mount["mountPath"] == place["mountPath"]
    assert spec["serviceAccountName"] == names.OPERATOR_ACCOUNT
    assert "brokers-tls" not in {each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each}


def test_while_the_source_of_a_certificate_changes_both_sources_have_their_rights() -> None:
    certificate = {"certManager": {"name": "lake-ca"}, "previous": {"selfSigned": {}}}
    objects = manifests(
        render({**IMAGES, **OPEN, "profiles": {"waves": {**WAVES, "access": {"certificate": certificate}}}})
    )
    signed, issued = names.brokers_certificate("waves"), names.issued_certificate("waves", "lake-ca")
    ((_, rule),) = rules_of(objects, "firn-signer")
    assert rule["resourceNames"] == [names.authority("waves"), signed]
    resources = [name for _, rule in rules_of(objects, "firn-operator") for name in rule.get("resourceNames", ())]
    assert issued in resources
    spec = find_object(objects, "Deployment", "firn-operator")["spec"]["template"]["spec"]
    (volume,) = [each for each in spec["volumes"] if each["name"] == "access-waves"]
    (wanted,), _ = children.access_volumes(config_of(objects).closed_profiles)
    assert volume["projected"] == wanted["projected"]
    assert [source["secret"]["name"] for source in volume["projected"]["sources"][:2]] == [issued, signed]


def test_only_a_profile_with_self_signed_certificates_installs_the_signer() -> None:
    access = {"certificate": {"selfSigned": {}}, "plaintext": "Close"}
    on = {
        **EVERYTHING_ON,
        **OPEN,
        "profiles": {"waves": {**WAVES, "access": access}, "others": {**WAVES, "access": ACCESS}},
    }
    objects = manifests(render(on))
    spec = find_object(objects, "Deployment", "firn-signer")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    operator = find_object(objects, "Deployment", "firn-operator")["spec"]["template"]["spec"]["containers"][0]
    assert (spec["serviceAccountName"], container["image"]) == ("firn-signer", operator["image"])
    assert {volume["name"] for volume in spec["volumes"]} == {"config", "tmp"}, "no Secret is mounted"
    ((namespace, rule),) = rules_of(objects, "firn-signer")
    assert namespace == "firn-system"
    assert rule == {
        "apiGroups": [""],
        "resources": ["secrets"],
        "resourceNames": [names.authority("waves"), names.brokers_certificate("waves")],
        "verbs": ["get", "create", "patch"],
    }
    for kind in ("NetworkPolicy", "ServiceMonitor", "Service"):
        find_object(objects, kind, "firn-signer")
    (volume,) = [
        each
        for each in find_object(objects, "Deployment", "firn-operator")["spec"]["template"]["spec"]["volumes"]
        if each["name"] == "access-waves"
    ]
    assert volume["projected"]["sources"][0]["secret"]["name"] == names.brokers_certificate("waves")
    for profiles in ({}, {"others": {**WAVES, "access": ACCESS}}):
        values = {**EVERYTHING_ON, **OPEN, "profiles": profiles}
        assert not [item for item in manifests(render(values)) if item["metadata"]["name"] == "firn-signer"]


def test_the_operator_may_write_certificates_only_of_profiles_that_use_cert_manager() -> None:
    access = {"certificate": {"certManager": {"name": "lake-ca"}}}
    profiles = {"waves": {**WAVES, "access": access}, "others": {**WAVES, "access": ACCESS}}
    objects = manifests(render({**IMAGES, "profiles": profiles}))
    found = [pair for pair in rules_of(objects, "firn-operator") if "cert-manager.io" in pair[1]["apiGroups"]]
    own = [names.issued_certificate("waves", "lake-ca")]
    rule = {"resources": ["certificates"], "resourceNames": own, "verbs": ["create", "patch"]}
    assert found == [("firn-system", {"apiGroups": ["cert-manager.io"], **rule})]
    plain = manifests(render({**IMAGES, "profiles": {"others": {**WAVES, "access": ACCESS}}}))
    assert not [rule for _, rule in rules_of(plain, "firn-operator") if "cert-manager.io" in rule["apiGroups"]]


@pytest.mark.parametrize(
    ("profile", "reads"),
    [
        ({"access": {**ACCESS, "plaintext": "Keep"}}, True),
        ({"access": ACCESS}, False),
        ({}, False),
        ({**WAVES, "access": {**ACCESS, "plaintext": "Keep"}}, False),
    ],
    ids=["kept", "closed", "plain", "diskless"],
)
def test_the_operator_reads_logs_of_pods_only_while_brokers_of_kafka_keep_plaintext(
    profile: dict[str, Any], reads: bool
) -> None:
    objects = manifests(render({**IMAGES, "profiles": {"events": profile}}))
    found = [pair for pair in rules_of(objects, "firn-operator") if "pods/log" in pair[1]["resources"]]
    rule = {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]}
    assert found == ([("firn-system", rule)] if reads else [])


def test_the_operator_mounts_the_certificates_of_private_servers() -> None:
    tls = {"ca": {"configMap": "bundle"}, "certificate": {"secret": "client"}}
    lake = {"type": "sql", "uri": "postgresql://postgres/firn", "warehouse": "s3://a/b", "tls": tls}
    lake["objectStore"] = {"tls": {"ca": {"secret": "s3-tls", "key": "root.crt"}}}
    registry = {"url": "https://registry", "tls": {"ca": {"configMap": "bundle", "key": "registry.crt"}}}
    objects = manifests(render({**IMAGES, "catalogs": {"private": lake}, "registries": {"main": registry}}))
    spec = find_object(objects, "Deployment", "firn-operator")["spec"]["template"]["spec"]
    mounts = [each for each in spec["containers"][0]["volumeMounts"] if each["name"].startswith("trust-")]
    wanted, places = children.trust_volumes(config_of(objects).authorities())
    assert [each for each in spec["volumes"] if each["name"].startswith("trust-")] == wanted
    assert mounts == places
    assert "client" in {each["secret"]["secretName"] for each in spec["volumes"] if "secret" in each}


# Rights


@pytest.mark.parametrize("values", [IMAGES, EVERYTHING_ON, {**IMAGES, "watchNamespaces": ["a", "b"]}])
@pytest.mark.parametrize("account", ["firn-operator", "firn-ingest", "firn-maintain", "spark"])
def test_no_long_lived_account_has_rights_to_secrets(values: dict[str, Any], account: str) -> None:
    for _, rule in rules_of(manifests(render({**values, **OPEN})), account):
        assert not {"secrets", "*", "pods/exec", "serviceaccounts/token"} & set(rule["resources"])
        assert "*" not in rule["verbs"]
        assert "*" not in rule["apiGroups"]


def test_the_operator_has_rights_in_its_namespace_and_reads_all_topics() -> None:
    rules = rules_of(manifests(render({**IMAGES, **OPEN})), "firn-operator")
    everywhere = {resource for namespace, rule in rules if namespace is None for resource in rule["resources"]}
    assert everywhere == {
        *(f"{kind}{part}" for kind in KINDS for part in ("", "/status") if kind + part != "topicgrants/status"),
        "events",
        "leases",
        "customresourcedefinitions",
        "namespaces",
    }


@pytest.mark.parametrize("namespaces", [[], ["a", "b"]])
def test_an_operator_with_users_may_write_secrets_where_it_watches_and_read_none(namespaces: list[str]) -> None:
    objects = manifests(render({**IMAGES, **USERS, "watchNamespaces": namespaces}))
    rights = [each for each in rules_of(objects, "firn-operator") if "secrets" in each[1]["resources"]]
    rule = {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "patch"]}
    places: list[str | None] = [*namespaces] or [None]
    assert rights == [(place, rule) for place in places]
    assert config_of(objects).users.enabled
    assert not config_of(manifests(render({**IMAGES, **OPEN}))).users.enabled


def test_an_operator_with_watched_namespaces_has_no_other_rights() -> None:
    objects = manifests(render({**IMAGES, "watchNamespaces": ["b", "a", "b"]}))
    topics = [
        namespace for namespace, rule in rules_of(objects, "firn-operator") if "icebergtopics" in rule["resources"]
    ]
    assert topics == ["a", "b"]
    rules = [rule for namespace, rule in rules_of(objects, "firn-operator") if namespace is None]
    assert [(rule["verbs"], rule["resourceNames"]) for rule in rules] == [
        (["get"], [f"{kind}.firn.dev" for kind in KINDS]),
        (["get"], ["kube-system"]),
    ]


def test_a_driver_may_only_read_config_maps_and_hold_the_leases_of_groups() -> None:
    leases = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"]}
    assert rules_of(manifests(render(IMAGES)), "firn-ingest") == [
        ("firn-system", {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"]}),
        ("firn-system", {**leases, "verbs": ["create"]}),
        (
            "firn-system",
            {**leases, "resourceNames": ["firn-ingest-default"], "verbs": ["get", "update", "delete"]},
        ),
    ]


def test_only_a_driver_with_executors_may_create_pods() -> None:
    objects = manifests(render(EVERYTHING_ON))
    pods = {
        account: [
            verb for _, rule in rules_of(objects, account) if "pods" in rule["resources"] for verb in rule["verbs"]
        ]
        for account in ("firn-ingest", "spark")
    }
    assert pods["firn-ingest"] == []
    assert {"create", "delete", "deletecollection", "get", "list", "watch", "patch"} <= set(pods["spark"])


def test_a_run_may_hold_leases_and_with_executors_create_pods() -> None:
    leases = {
        "apiGroups": ["coordination.k8s.io"],
        "resources": ["leases"],
        "verbs": ["get", "create", "update", "delete"],
    }
    assert rules_of(manifests(render(IMAGES)), "firn-maintain") == [("firn-system", leases)]
    rules = rules_of(manifests(render(EVERYTHING_ON)), "firn-maintain")
    assert [rule["resources"] for _, rule in rules] == [["leases"], ["pods"]]
    named = manifests(render({**IMAGES, "maintenance": {"serviceAccount": "mine"}}))
    assert rules_of(named, "mine") == [("firn-system", leases)]
    assert config_of(named).maintenance.service_account == "mine"


@pytest.mark.parametrize(
    ("values", "accounts"),
    [
        ({}, []),
        ({"groups": {"large": {"executors": {"instances": 2}}}, "executorPolicy": {"enabled": False}}, []),
        ({"groups": {"large": {"executors": {"instances": 2}, "serviceAccount": "spark"}}}, ["spark"]),
        ({"groups": {"large": {"executors": {"instances": 2}}}}, ["firn-ingest-large"]),
        ({"groups": {"default": {"executors": {"instances": 2}}}}, ["firn-ingest"]),
        ({"maintenance": {"sizes": {"large": {"executors": {"instances": 2}}}}}, ["firn-maintain"]),
    ],
)
def test_a_policy_limits_each_account_that_may_create_pods(values: dict[str, Any], accounts: list[str]) -> None:
    objects = manifests(render({**IMAGES, **values}, namespace="elsewhere"))
    policies = [item for item in objects if item["kind"] == "ValidatingAdmissionPolicy"]
    bindings = [item for item in objects if item["kind"] == "ValidatingAdmissionPolicyBinding"]
    assert len(policies) == len(bindings) == bool(accounts)
    for policy, binding in zip(policies, bindings, strict=True):
        assert binding["spec"]["policyName"] == policy["metadata"]["name"] == "firn-executors-elsewhere"
        assert binding["spec"]["validationActions"] == ["Deny"]
        (condition,) = policy["spec"]["matchConditions"]
        assert re.findall('"([^"]+)"', condition["expression"]) == [
            f"system:serviceaccount:elsewhere:{account}" for account in accounts
        ]


def test_null_is_the_same_as_an_absent_block() -> None:
    nothing = {"executors": {"instances": 1}, "image": None}
    kafka = {"bootstrapServers": "kafka:9093"}
    values = {
        **EVERYTHING_ON,
        "networkPolicy": {"enabled": True, "strict": True},
        "profiles": {
            "waves": {**WAVES, "access": None},
            "mine": {**kafka, "security": {"sasl": None}},
        },
        "catalogs": {"archive": {"type": "rest", "uri": "u", "warehouse": "w", "tls": None}},
        "registries": {"main": {"url": "https://registry", "tls": None}},
        "groups": {"large": nothing},
        "maintenance": {"image": None},
    }
    assert find_object(manifests(render(values)), "Deployment", "firn-operator")


def test_every_account_that_may_create_pods_is_in_the_policy() -> None:
    objects = manifests(render(EVERYTHING_ON))
    (policy,) = [item for item in objects if item["kind"] == "ValidatingAdmissionPolicy"]
    for account in {item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"} | {"spark"}:
        verbs = {
            verb for _, rule in rules_of(objects, account) if "pods" in rule["resources"] for verb in rule["verbs"]
        }
        named = f':{account}"' in policy["spec"]["matchConditions"][0]["expression"]
        assert ("create" in verbs) is named, account


def test_rights_to_secrets_end_with_the_hook_that_creates_them() -> None:
    objects = manifests(render({**EVERYTHING_ON, **OPEN}))
    holders = [
        item
        for item in objects
        if item["kind"] in ("Role", "ClusterRole") and any("secrets" in rule["resources"] for rule in item["rules"])
    ]
    [role] = holders
    assert role["metadata"]["annotations"]["helm.sh/hook"] == "pre-install,pre-upgrade"
    assert "hook-succeeded" in role["metadata"]["annotations"]["helm.sh/hook-delete-policy"]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"create", "get", "patch"}
    assert all(rule["resourceNames"] for rule in role["rules"])


def test_each_group_has_an_account_with_the_annotations_of_ingestion() -> None:
    groups = {"default": {}, "team": {}, "own": {"serviceAccount": "mine"}}
    identity = {"role": "reader"}
    values = {**IMAGES, "groups": groups, "serviceAccounts": {"ingest": {"annotations": identity}}}
    objects = manifests(render(values))
    accounts = {
        item["metadata"]["name"]: item["metadata"].get("annotations")
        for item in objects
        if item["kind"] == "ServiceAccount"
    }
    assert {name: found for name, found in accounts.items() if "ingest" in name} == {
        "firn-ingest": identity,
        "firn-ingest-team": identity,
    }
    config = config_of(objects)
    expected = {"firn-ingest", "firn-ingest-team", "mine"}
    assert {config.ingest_account(group) for group in config.groups} == expected
    leases = {item["metadata"]["name"]: item for item in objects if item["kind"] == "RoleBinding"}["firn-ingest"]
    assert {subject["name"] for subject in leases["subjects"]} == expected


def test_workload_identity_reaches_the_service_accounts() -> None:
    objects = manifests(render(files=("values-production.yaml",)))
    for account in ("firn-operator", "firn-ingest", "firn-maintain", "firn-broker"):
        annotations = find_object(objects, "ServiceAccount", account)["metadata"]["annotations"]
        assert annotations == {"eks.amazonaws.com/role-arn": f"arn:aws:iam::111122223333:role/{account}"}


# Pods


SIGNED = {"profiles": {"waves": gen.diskless(access={"certificate": {"selfSigned": {}}})}}


@pytest.mark.parametrize(
    ("values", "files"),
    [(EVERYTHING_ON | SIGNED, ()), (IMAGES, ("values-production.yaml",))],
    ids=["all", "production"],
)
def test_pods_meet_pod_security_restricted(values: dict[str, Any], files: tuple[str, ...]) -> None:
    templates = pod_templates(manifests(render(values, files=files)))
    assert "Deployment/firn-operator" in templates
    assert ("Deployment/firn-signer" in templates) == ("profiles" in values)
    for name, template in templates.items():
        assert violations(template["spec"]) == [], name


def test_the_pod_security_check_finds_each_violation() -> None:
    container = {
        "name": "c",
        "securityContext": {"allowPrivilegeEscalation": True, "capabilities": {"add": ["SYS_ADMIN"]}},
    }
    problems = violations({"hostNetwork": True, "containers": [container], "volumes": [{"name": "v", "hostPath": {}}]})
    assert len(problems) == 10


def test_pull_secrets_reach_every_pod() -> None:
    objects = manifests(render({"images": {"registry": "r.example.com", "pullSecrets": ["mine"]}}))
    for name, template in pod_templates(objects).items():
        assert template["spec"]["imagePullSecrets"] == [{"name": "mine"}], name
    assert config_of(objects).images.pull_secrets == ["mine"]


DIGEST = "sha256:" + "0a" * 32


def test_digests_replace_the_tag_of_each_image() -> None:
    digests = {name: f"sha256:{number}{'0' * 63}" for number, name in enumerate(("operator", "spark", "broker"))}
    values = {"images": {"registry": "r.example.com:5000/data", "tag": "1.2", "digests": digests}, **DISKLESS}
    objects = manifests(render(values))
    ours = [pod_templates(objects)[name] for name in ("Deployment/firn-operator", "Job/firn-quickstart-secrets")]
    images = config_of(objects).images
    assert images.broker is not None
    found = [template["spec"]["containers"][0]["image"] for template in ours]
    assert found == [f"r.example.com:5000/data/firn-operator@{digests['operator']}"] * 2
    assert images.spark.image == f"r.example.com:5000/data/firn-spark@{digests['spark']}"
    assert images.broker.image == f"r.example.com:5000/data/firn-broker@{digests['broker']}"


def test_full_references_may_have_digests() -> None:
    given = {
        name: f"r.example.com/{name}:1@{DIGEST}" for name in ("operator", "spark", "broker", "kafka", "postgres", "s3")
    }
    objects = manifests(render({"images": given, **DISKLESS}))
    found = {
        container["image"]
        for template in pod_templates(objects).values()
        for container in [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]
    }
    images = config_of(objects).images
    assert images.broker is not None
    assert found | {images.spark.image, images.broker.image, images.kafka.image} == set(given.values())


def test_the_disk_space_of_the_operator_limits_its_scratch_files() -> None:
    def scratch(resources: dict[str, Any]) -> Manifest:
        pod = pod_templates(manifests(render({**IMAGES, "operator": {"resources": resources}})))[
            "Deployment/firn-operator"
        ]
        (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "tmp"]
        return volume["emptyDir"]

    assert scratch({"limits": {"ephemeral-storage": "9Gi"}}) == {"sizeLimit": "9Gi"}
    assert scratch({"limits": {"ephemeral-storage": None}}) == {}


# CRDs


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_chart_installs_the_crds_and_keeps_them(kind: str) -> None:
    crd = find_object(manifests(render(IMAGES)), "CustomResourceDefinition", f"{kind}.firn.dev")
    assert crd["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    unkept = find_object(
        manifests(render({**IMAGES, "crds": {"keep": False}})), "CustomResourceDefinition", f"{kind}.firn.dev"
    )
    assert "annotations" not in unkept["metadata"]
    assert "CustomResourceDefinition" not in {item["kind"] for item in manifests(render(WITHOUT_CRDS))}


# Rejected values


def test_a_kubernetes_version_too_old_for_the_crd_is_rejected() -> None:
    crd = find_object(manifests(render(IMAGES)), "CustomResourceDefinition", "icebergtopics.firn.dev")
    assert "selectableFields" in crd["spec"]["versions"][0], "served without a feature gate from 1.31 on"
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["kubeVersion"] == ">=1.31.0-0"
    assert "Kubernetes 1.31 or newer" in (CHART.parents[1] / "docs/get-started/install.md").read_text()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"images": {}}, "images.registry is empty"),
        ({**IMAGES, "unknown": 1}, "'unknown' not allowed"),
        ({**IMAGES, "groups": {"default": {"corse": 2}}}, "'corse' not allowed"),
        ({**IMAGES, "groups": {"default": {"executors": {"instances": 0}}}}, "minimum: got 0, want 1"),
        ({**IMAGES, "operator": {"resync": "soon"}}, "does not match pattern"),
        ({**IMAGES, "maintenance": {"tablesPerRun": 25}}, "maximum: got 25, want 24"),
        ({**IMAGES, "profiles": {"Upper": {}}}, "'Upper'"),
        ({**IMAGES, "catalogs": {"other": {"type": "hive", "uri": "u", "warehouse": "w"}}}, "'sql', 'rest'"),
        ({**IMAGES, "catalogs": {"other": {"type": "rest"}}}, "missing properties 'uri', 'warehouse'"),
        ({**IMAGES, "profiles": {"classic": {}}}, "quickStart.profile"),
        ({**IMAGES, "catalogs": {"lake": {"type": "rest", "uri": "u", "warehouse": "w"}}}, "quickStart.enabled=false"),
        ({**IMAGES, "quickStart": {"enabled": False}}, 'defaultCatalog: "lake" is not among []'),
        ({**IMAGES, "defaultProfile": "diskless"}, 'defaultProfile: "diskless" is not among [classic]'),
        (
            {"images": {"operator": "o", "spark": "s"}, **DISKLESS},
            "images.registry is empty: set it to where firn-broker",
        ),
        ({**IMAGES, **DISKLESS, "profiles": {"diskless": {}}}, "quickStart.diskless.profile"),
        ({"images": {"registry": "r", "tag": f"1.2@{DIGEST}"}}, "'/images/tag': '1.2@sha256"),
        ({"images": {"registry": "r", "digests": {"spark": "12ab"}}}, "'/images/digests/spark'"),
        ({"images": {"registry": "r", "digests": {"kafka": DIGEST}}}, "'kafka' not allowed"),
        ({"images": {"registry": "r", "kafka": "kafka@latest"}}, "'/images/kafka'"),
        (
            {"images": {"registry": "r", "spark": "r/spark:1", "digests": {"spark": DIGEST}}},
            "images.digests.spark: images.spark is a full reference",
        ),
        ({**IMAGES, "profiles": {"p": {"kind": "Pulsar"}}}, "'/profiles/p/kind': value must be 'Kafka'"),
        ({**IMAGES, "profiles": {"p": {"kind": "Diskless"}}}, "missing properties 'coordinator', 'objectStore'"),
        ({**IMAGES, "profiles": {"p": gen.diskless(heap="1g")}}, "additional properties 'heap' not allowed"),
        ({**IMAGES, "profiles": {"p": gen.diskless(config={"nodeId": 1})}}, "'/profiles/p/config/nodeId'"),
        ({**IMAGES, "defaultGroup": "nobody"}, 'defaultGroup: "nobody" is not among [default]'),
        ({**IMAGES, "defaultCatalog": "nowhere"}, 'defaultCatalog: "nowhere" is not among [lake]'),
        ({**IMAGES, "profiles": {"p": {"config": {"log.retention.hours": 1}}}}, "want string"),
        ({**IMAGES, "quickStart": {"profile": {"config": {"node.id": "1"}}}}, "'/quickStart/profile/config/node.id'"),
    ],
)
def test_an_error_names_a_wrong_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ChartError) as refused:
        render(values)
    assert message in str(refused.value)
