"""Stores with ``tls``: what the configuration accepts, and what the pods of each component mount and read."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from firn.model.config import Config
from firn.model.jobs import GroupSettings, TableTarget
from firn_broker import settings as broker_settings
from firn_controllers import children
from firn_controllers.cache.topics import topic_entry
from firn_controllers.children import Owner
from firn_controllers.fleet import kinds
from firn_controllers.fleet.diskless import config_map, stateful_set
from firn_controllers.fleet.diskless.layout import DisklessFleet
from firn_controllers.ingestion_group import settings as group_settings
from firn_controllers.ingestion_group import stateful_set as driver
from firn_controllers.policies import plan
from firn_controllers.policies.audits import audit_policy
from firn_controllers.policies.due import Due
from firn_controllers.policies.plan import DueTable, PlannedRun
from firn_controllers.ports import Manifest
from firn_spark import session
from tests import gen
from tests.unit.controllers.test_diskless_fleet import start

OWNER = Owner("firn-system", "config-uid")
DATABASE = {"ca": {"configMap": "bundle"}, "certificate": {"secret": "client"}}
STORE = {"ca": {"secret": "s3-tls", "key": "root.crt"}}
BUNDLE, ROOT = "/etc/firn/trust/configmap-bundle/ca.crt", "/etc/firn/trust/secret-s3-tls/root.crt"
LAKE: dict[str, Any] = {
    "type": "sql",
    "uri": "postgresql://postgres:5432/firn",
    "warehouse": "s3://firn/warehouse",
    "tls": DATABASE,
    "objectStore": {"tls": STORE},
}


def config(**changes: Any) -> Config:
    waves = gen.diskless(directReads={})
    waves["coordinator"] |= {"tls": DATABASE}
    waves["objectStore"] |= {"tls": STORE}
    given = {"profiles": {"classic": {}, "waves": waves}, "catalogs": {"lake": LAKE}, **changes}
    return gen.config(**given)


def group() -> GroupSettings:
    return group_settings.group_settings(config(), "default")


def mounted(pod: Manifest) -> dict[str, list[str]]:
    """Return the keys that a pod mounts as CA certificates, by path."""
    (container,) = pod["containers"]
    places = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    sources = {
        volume["name"]: volume.get("secret") or volume.get("configMap") or {}
        for volume in pod["volumes"]
        if volume["name"].startswith("trust-")
    }
    return {places[name]: [item["key"] for item in source["items"]] for name, source in sources.items()}


WANTED = {"/etc/firn/trust/configmap-bundle": ["ca.crt"], "/etc/firn/trust/secret-s3-tls": ["root.crt"]}


def test_drivers_mount_the_certificates_and_no_other_key_of_their_secrets() -> None:
    manifest = driver.build(config(), group(), OWNER, {}, in_use=True)
    pod = manifest["spec"]["template"]["spec"]
    assert mounted(pod) == WANTED
    whole = {
        volume["secret"]["secretName"] for volume in pod["volumes"] if "items" not in volume.get("secret", {"items": 1})
    }
    assert "client" in whole
    assert not {"s3-tls", "bundle"} & whole


def test_the_settings_of_a_driver_name_the_files() -> None:
    lake = group().catalogs["lake"]
    assert (lake.ca_path, lake.store_ca_path) == (BUNDLE, ROOT)
    assert lake.certificate_path == "/etc/firn/secrets/client/tls.crt"
    assert lake.certificate_key_path == "/etc/firn/secrets/client/tls.key"
    assert set(lake.secret_files) >= {BUNDLE, ROOT, lake.certificate_path, lake.certificate_key_path}, (
        "a driver restarts after a change of these files"
    )
    assert group().direct["waves"].ca_path == ROOT


def test_without_tls_the_settings_of_a_driver_stay_those_of_the_release_before() -> None:
    plain = group_settings.group_settings(gen.config(), "default").model_dump(mode="json")
    for connection in plain["catalogs"].values():
        assert not {"ca_path", "certificate_path", "certificate_key_path", "store_ca_path"} & connection.keys()


def test_brokers_mount_the_certificates_and_read_them(tmp_path: Path) -> None:
    fleet = kinds.managed_fleet(config(), "waves", OWNER, None)
    assert isinstance(fleet, DisklessFleet)
    pod = stateful_set.build(fleet, 0)["spec"]["template"]["spec"]
    assert mounted(pod) == WANTED
    document = tmp_path / "broker.yaml"
    document.write_text(config_map.build(fleet)["data"]["broker.yaml"])
    read = broker_settings.load(document, start(fleet, tmp_path, 1))
    assert isinstance(read.coordinator, broker_settings.PostgresSettings)
    assert isinstance(read.objects, broker_settings.BucketSettings)
    assert (read.coordinator.ca_file, read.objects.ca_file) == (BUNDLE, ROOT)
    assert read.coordinator.cert_file == "/etc/firn/secrets/client/tls.crt"
    assert read.coordinator.key_file == "/etc/firn/secrets/client/tls.key"


def test_runs_mount_the_certificates() -> None:
    given = config(maintenance={"audit": {"schedule": "* * * * *"}})
    policy = audit_policy(given)
    assert policy is not None
    target = TableTarget(catalog="lake", namespace="demo", name="flights")
    due = Due(gen.NOW, "the schedule is due", gen.NOW)
    batch = PlannedRun((DueTable(topic_entry(gen.topic(), given), target, "uuid", None, due, ""),), "small")
    contract = plan.contract(policy, batch, given, gen.NOW)
    pod = plan.job(policy, batch, contract, given, OWNER)["spec"]["template"]["spec"]
    assert mounted(pod) == WANTED
    assert contract.catalogs["lake"].store_ca_path == ROOT


def test_executors_get_the_certificates_of_the_jvm_only() -> None:
    settings = group()
    pod = yaml.safe_load(session.executor_template(settings))["spec"]
    assert mounted(pod) == {"/etc/firn/trust/secret-s3-tls": ["root.crt"]}, "only the driver reads a SQL catalog"
    assert [volume["name"] for volume in pod["volumes"]] == ["spark-local-dir-1", "trust-0"], "no client certificate"
    conf = session.spark_conf(
        settings.model_copy(update={"spark_conf": {"spark.driver.extraJavaOptions": "-Dmine=1"}}),
        {"TMPDIR": "/tmp"},
        "a",
    )
    assert conf["spark.driver.extraJavaOptions"].startswith("-Dmine=1 -Djavax.net.ssl.trustStore=/tmp/firn-trust-")


REST = {"type": "rest", "uri": "https://catalog", "warehouse": "lake"}


@pytest.mark.parametrize(
    ("catalog", "message"),
    [
        ({**REST, "tls": DATABASE}, "only catalogs of type sql have client certificates"),
        ({**REST, "uri": "http://catalog", "tls": STORE}, "a uri that begins with https"),
        ({**LAKE, "uri": "sqlite:///catalog.db"}, "tls needs a uri of PostgreSQL"),
        ({**LAKE, "uri": LAKE["uri"] + "?sslmode=require"}, "remove sslmode from uri"),
        ({**LAKE, "tls": {"ca": {}}}, "set either secret or configMap"),
        ({**LAKE, "tls": {"ca": {"secret": "a", "configMap": "b"}}}, "set either secret or configMap"),
        ({**LAKE, "tls": {}}, "Field required"),
    ],
)
def test_a_catalog_whose_tls_cannot_work_is_rejected(catalog: Manifest, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(catalogs={"lake": catalog})


@pytest.mark.parametrize(
    ("registry", "message"),
    [
        ({"url": "http://registry", "tls": STORE}, "tls needs a url that begins with https"),
    ],
)
def test_a_registry_whose_tls_cannot_work_is_rejected(registry: Manifest, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        config(registries={"main": registry})


def test_a_registry_may_have_its_certificates_in_a_config_map() -> None:
    configured = config(registries={"main": {"url": "https://registry", "tls": {"ca": {"configMap": "bundle"}}}})
    assert group_settings.group_settings(configured, "default").registries["main"].ca_path == BUNDLE
    assert children.trust_volumes(configured.authorities())[1][0]["mountPath"] == "/etc/firn/trust/configmap-bundle"
