"""The brokers of a diskless profile: rendered objects, start script, rolls and scaling, and topics of both kinds
side by side."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from firn.model import names
from firn.model.conditions import Reason
from firn.model.config import BROKER_SETTINGS_OWN
from firn.model.errors import InvalidSpecError, UnavailableError
from firn_broker import settings as broker_settings
from firn_controllers import children
from firn_controllers.children import Owner
from firn_controllers.fleet import builders, health, kinds
from firn_controllers.fleet.diskless import config_map, layout, stateful_set
from firn_controllers.fleet.diskless.layout import DisklessFleet
from firn_controllers.ingestion_group import settings as group_settings
from firn_controllers.ports import FleetState, Manifest
from tests import gen
from tests.fakes.world import World
from tests.unit.controllers.fleet_addresses import OF_BROKER_1

OWNER = Owner("firn-system", "config-uid")
STATEFUL_SET = "firn-broker-waves"


def fleet(name: str = "waves", **profile: Any) -> DisklessFleet:
    config = gen.config(profiles={"classic": {}, name: gen.diskless(**profile)})
    managed = kinds.managed_fleet(config, name, OWNER, None)
    assert isinstance(managed, DisklessFleet)
    return managed


def pod_spec(managed: DisklessFleet) -> Manifest:
    spec: Manifest = stateful_set.build(managed, 0)["spec"]["template"]["spec"]
    return spec


def container(managed: DisklessFleet) -> Manifest:
    (only,) = pod_spec(managed)["containers"]
    return only


# Rendered objects


def test_settings_name_the_database_the_bucket_and_secret_files() -> None:
    settings = config_map.settings(fleet(defaultPartitions=6, topicConfig={"retention.ms": "1000"}))
    assert settings["coordinator"] == {
        "type": "postgres",
        "uri": "postgresql://pg:5432/firn",
        "user": "firn",
        "passwordFile": "/etc/firn/secrets/firn-postgres/password",
        "schemaName": "firn_broker_waves",
    }
    assert settings["objects"] == {
        "type": "bucket",
        "url": "s3://firn/diskless/waves",
        "config": {"aws_endpoint": "http://s3:7070", "aws_region": "us-east-1"},
        "secretConfig": {
            "aws_access_key_id": "/etc/firn/secrets/firn-s3/access-key",
            "aws_secret_access_key": "/etc/firn/secrets/firn-s3/secret-key",
        },
    }
    assert settings["topics"] == {"autoCreate": False, "partitions": 6, "configs": {"retention.ms": "1000"}}
    assert settings["writer"] == {"flushSeconds": 0.25, "flushBytes": 8 * 2**20}


def test_the_database_user_may_come_from_a_secret() -> None:
    given = gen.diskless()
    given["coordinator"] = {**given["coordinator"], "user": {"secret": "firn-database", "key": "user"}}
    managed = fleet(coordinator=given["coordinator"])
    settings = config_map.settings(managed)["coordinator"]
    assert settings["userFile"] == "/etc/firn/secrets/firn-database/user"
    assert "user" not in settings
    assert "firn-database" in {
        volume["secret"]["secretName"] for volume in pod_spec(managed)["volumes"] if "secret" in volume
    }


def test_two_fleets_share_neither_schema_nor_objects() -> None:
    first, other = fleet("a-b"), fleet("ab")
    assert (first.schema, first.url) == ("firn_broker_a_b", "s3://firn/diskless/a-b")
    assert {first.schema, first.url}.isdisjoint({other.schema, other.url})


def test_a_profiles_own_settings_win_key_by_key() -> None:
    settings = config_map.settings(
        fleet(flushInterval="100ms", config={"writer": {"uploads": 8}, "reader": {"pollSeconds": 1}})
    )
    assert settings["writer"] == {"flushSeconds": 0.1, "flushBytes": 8 * 2**20, "uploads": 8}
    assert settings["reader"] == {"pollSeconds": 1}


def test_a_pod_has_no_volume_claim_and_mounts_secrets_as_files() -> None:
    managed = fleet()
    assert "volumeClaimTemplates" not in stateful_set.build(managed, 0)["spec"]
    spec = pod_spec(managed)
    kinds_ = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds_ == {"secret", "configMap", "emptyDir"}
    assert {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume} == {
        "firn-postgres",
        "firn-s3",
    }
    mounted = {mount["mountPath"] for mount in container(managed)["volumeMounts"]}
    for path in re.findall(r"/etc/firn/secrets/[^\s'\"]+", config_map.build(managed)["data"]["broker.yaml"]):
        assert path.rpartition("/")[0] in mounted
    assert not [variable for variable in container(managed)["env"] if "secretKeyRef" in variable.get("valueFrom", {})]


def test_service_variables_of_kubernetes_are_not_settings() -> None:
    """Service links would set variables such as FIRN_BROKER_WAVES_SERVICE_HOST, and every FIRN_BROKER_... is a
    setting of the broker."""
    assert pod_spec(fleet())["enableServiceLinks"] is False


def test_only_broker_pods_get_the_broker_secrets() -> None:
    config = gen.config(profiles={"classic": {}, "waves": gen.diskless()})
    assert config.secret_names() == gen.config().secret_names()


def test_probes_and_metrics_have_a_port_of_their_own() -> None:
    broker = container(fleet())
    assert {port["name"]: port["containerPort"] for port in broker["ports"]} == {"kafka": 9092, "metrics": 9090}
    assert broker["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert broker["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}
    assert config_map.settings(fleet())["metricsListen"] == "0.0.0.0:9090"
    assert [port["name"] for port in builders.headless_service(fleet())["spec"]["ports"]] == ["kafka", "metrics"]


def test_a_stopping_broker_has_time_to_store_its_records() -> None:
    """The broker answers for 20 s, and then finishes its uploads (30 s each, concurrently)."""
    sleep = container(fleet())["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod_spec(fleet())["terminationGracePeriodSeconds"] - sleep >= 55


def test_pods_are_spread_over_zones_and_nodes() -> None:
    keys = [constraint["topologyKey"] for constraint in pod_spec(fleet())["topologySpreadConstraints"]]
    assert keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    own = [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]
    assert pod_spec(fleet(scheduling={"topologySpreadConstraints": own}))["topologySpreadConstraints"] == own


def test_every_object_is_owned_labelled_and_hashed() -> None:
    managed = fleet(external={"host": "h"})
    objects = [
        config_map.build(managed),
        builders.headless_service(managed),
        builders.bootstrap_service(managed),
        *builders.external_services(managed),
        builders.disruption_budget(managed),
        stateful_set.build(managed, 0),
    ]
    for manifest in objects:
        metadata = manifest["metadata"]
        assert metadata["ownerReferences"][0]["uid"] == "config-uid"
        assert metadata["labels"][names.LABEL_PROFILE] == "waves"
        assert metadata["annotations"][names.TEMPLATE_HASH]
    assert len({(child["kind"], child["metadata"]["name"]) for child in objects}) == len(objects)


def test_only_a_changed_setting_changes_the_pod_template() -> None:
    def template(**profile: Any) -> str:
        return children.template_hash(stateful_set.build(fleet(**profile), 0))

    assert template() != template(flushBytes="4Mi")
    assert template(replicas=1, external={"host": "h"}) == template(replicas=5, external={"host": "h"})


# Direct reads


def test_brokers_have_an_internal_listener_only_for_direct_reads() -> None:
    plain = fleet()
    assert "internal" not in config_map.settings(plain)
    assert "internal" not in {port["name"] for port in container(plain)["ports"]}
    assert [port["name"] for port in builders.bootstrap_service(plain)["spec"]["ports"]] == ["kafka"]

    direct = fleet(directReads={})
    assert config_map.settings(direct)["internal"] == {
        "bind": "0.0.0.0:9095",
        "tokenFile": "/etc/firn/secrets/firn-direct-reads-waves/token",
    }
    assert {"name": "internal", "containerPort": 9095} in container(direct)["ports"]
    for service in (builders.bootstrap_service(direct), builders.headless_service(direct)):
        assert {"name": "internal", "port": 9095, "targetPort": "internal"} in service["spec"]["ports"]
    mounted = {mount["mountPath"] for mount in container(direct)["volumeMounts"]}
    assert "/etc/firn/secrets/firn-direct-reads-waves" in mounted


def test_with_access_the_internal_listener_has_tls_and_no_token_of_its_own() -> None:
    access = {"certificate": {"selfSigned": {}}, "issuer": "https://issuer.example"}
    guarded = fleet(directReads={}, access=access)
    settings = config_map.settings(guarded)
    tls = {key: settings["listeners"]["secure"]["tls"][key] for key in ("certFile", "keyFile")}
    assert settings["internal"] == {"bind": "0.0.0.0:9095", "tls": tls}
    assert broker_settings.BrokerSettings.model_validate(settings).internal is not None
    assert {"name": "internal", "containerPort": 9095} in container(guarded)["ports"]
    mounted = {mount["mountPath"] for mount in container(guarded)["volumeMounts"]}
    assert "/etc/firn/secrets/firn-direct-reads-waves" not in mounted


def test_brokers_get_the_token_and_not_the_credentials_of_the_drivers() -> None:
    reads = {
        "token": {"secret": "own", "key": "t"},
        "secretProperties": {"aws_secret_access_key": {"secret": "reader", "key": "k"}},
    }
    secrets = {
        volume["secret"]["secretName"] for volume in pod_spec(fleet(directReads=reads))["volumes"] if "secret" in volume
    }
    assert secrets == {"firn-postgres", "firn-s3", "own"}


def test_settings_with_direct_reads_are_valid_settings_of_a_broker() -> None:
    settings = broker_settings.BrokerSettings.model_validate(config_map.settings(fleet(directReads={})))
    assert settings.internal is not None


# Start script


def start(managed: DisklessFleet, tmp_path: Path, ordinal: int, **more: str) -> dict[str, str]:
    """Run start.sh with a recorder in place of the broker, and return the broker's variables."""
    tool = tmp_path / "firn-broker"
    tool.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/arguments\nenv > {tmp_path}/env\n')
    tool.chmod(0o755)
    script = tmp_path / "start.sh"
    script.write_text(config_map.build(managed)["data"]["start.sh"])
    variables = {variable["name"]: variable.get("value", "") for variable in container(managed)["env"]}
    given = {"HOSTNAME": f"{STATEFUL_SET}-{ordinal}", "NODE_IP": "10.0.0.9", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["/bin/sh", str(script)], env={**variables, **given, **more}, check=True, timeout=30)
    assert (tmp_path / "arguments").read_text() == f"--config {layout.CONFIG_PATH}/broker.yaml serve\n"
    lines = dict(line.split("=", 1) for line in (tmp_path / "env").read_text().splitlines() if "=" in line)
    return {key: value for key, value in lines.items() if key.startswith("FIRN_BROKER_")}


def test_the_start_script_sets_node_id_and_advertised_address(tmp_path: Path) -> None:
    variables = {key: yaml.safe_load(value) for key, value in start(fleet(), tmp_path, 2).items()}
    assert variables == {
        "FIRN_BROKER_NODE_ID": 2,
        "FIRN_BROKER_ZONE": "",
        "FIRN_BROKER_LISTENER__ADVERTISED": "firn-broker-waves-2.firn-broker-waves.firn-system.svc:9092",
    }
    assert stateful_set.build(fleet(), 0)["spec"]["serviceName"] == STATEFUL_SET


def test_the_start_script_sets_the_zone_of_the_pod(tmp_path: Path) -> None:
    assert yaml.safe_load(start(fleet(), tmp_path, 0, ZONE="eu-1a")["FIRN_BROKER_ZONE"]) == "eu-1a"
    (zone,) = [variable for variable in container(fleet())["env"] if variable["name"] == "ZONE"]
    assert zone["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['topology.kubernetes.io/zone']"


@pytest.mark.parametrize(("external", "advertised"), OF_BROKER_1.values(), ids=OF_BROKER_1)
def test_the_start_script_sets_the_external_address(tmp_path: Path, external: dict[str, Any], advertised: str) -> None:
    managed = fleet(external=external)
    assert yaml.safe_load(start(managed, tmp_path, 1)["FIRN_BROKER_EXTERNAL__ADVERTISED"]) == advertised
    assert config_map.settings(managed)["external"] == {"name": "EXTERNAL", "bind": "0.0.0.0:9094"}
    assert {"name": "external", "containerPort": 9094} in container(managed)["ports"]


def test_a_load_balancer_needs_a_name_for_each_broker() -> None:
    with pytest.raises(InvalidSpecError, match=r"external\.hosts: 3 brokers"):
        stateful_set.build(fleet(external={"type": "LoadBalancer", "hosts": ["a"]}), 0)


def test_the_broker_reads_the_rendered_settings(tmp_path: Path) -> None:
    """The broker's own settings read the rendered document and variables."""
    managed = fleet(
        defaultPartitions=6, flushInterval="1s", topicConfig={"retention.ms": "1000"}, config={"leaseSeconds": 3}
    )
    variables = start(managed, tmp_path, 1, ZONE="a")
    document = tmp_path / "broker.yaml"
    document.write_text(config_map.build(managed)["data"]["broker.yaml"])
    read = broker_settings.load(document, variables)
    assert (read.node_id, read.zone, read.lease_seconds) == (1, "a", 3)
    assert read.listener.advertised == "firn-broker-waves-1.firn-broker-waves.firn-system.svc:9092"
    assert isinstance(read.coordinator, broker_settings.PostgresSettings)
    assert isinstance(read.objects, broker_settings.BucketSettings)
    assert (read.coordinator.schema_name, read.objects.url) == ("firn_broker_waves", "s3://firn/diskless/waves")
    assert (read.topics.auto_create, read.topics.partitions) == (False, 6)
    assert (read.writer.flush_seconds, read.writer.flush_bytes) == (1, 8 * 2**20)
    assert broker_settings.load(document, start(managed, tmp_path, 1)).zone == ""


def test_the_broker_reads_its_external_listener(tmp_path: Path) -> None:
    managed = fleet(external={"host": "kafka.example", "port": 31000})
    variables = start(managed, tmp_path, 1)
    document = tmp_path / "broker.yaml"
    document.write_text(config_map.build(managed)["data"]["broker.yaml"])
    external = broker_settings.load(document, variables).external
    assert external is not None
    assert external.advertised == "kafka.example:31002"


def test_brokers_ask_only_the_registries_of_their_profile(tmp_path: Path) -> None:
    registries = {
        "main": {
            "url": "https://registry:8081",
            "tls": {"ca": {"secret": "registry-ca"}},
            "username": "firn",
            "password": {"secret": "registry", "key": "password"},
        },
        "sales": {"url": "http://sales", "token": {"secret": "sales-registry", "key": "token"}},
    }

    def of(*named: str) -> DisklessFleet:
        profiles = {"classic": {}, "waves": gen.diskless(registries=list(named))}
        managed = kinds.managed_fleet(gen.config(registries=registries, profiles=profiles), "waves", OWNER, None)
        assert isinstance(managed, DisklessFleet)
        return managed

    secrets = {volume["secret"]["secretName"] for volume in pod_spec(of("main"))["volumes"] if "secret" in volume}
    assert secrets == {"firn-postgres", "firn-s3", "registry", "registry-ca"}
    document = tmp_path / "broker.yaml"
    document.write_text(config_map.build(of("main", "sales"))["data"]["broker.yaml"])
    assert broker_settings.load(document, {}).registries == {
        "main": broker_settings.RegistrySettings(
            url="https://registry:8081",
            ca_file="/etc/firn/trust/secret-registry-ca/ca.crt",
            username="firn",
            password_file="/etc/firn/secrets/registry/password",
        ),
        "sales": broker_settings.RegistrySettings(
            url="http://sales", token_file="/etc/firn/secrets/sales-registry/token"
        ),
    }
    # A profile without registries has the same settings as before, so an upgrade replaces no broker because of them.
    assert "registries" not in config_map.settings(of())
    assert config_map.name(of()) == config_map.name(fleet())
    assert config_map.name(of()) != config_map.name(of("main"))


def test_a_profile_may_not_set_the_settings_of_the_operator() -> None:
    ours = config_map.settings(fleet(external={"host": "h"}, directReads={})).keys() - {"topics", "writer"}
    assert ours | {"nodeId", "zone", "registries", "listeners"} == BROKER_SETTINGS_OWN


# Life of a fleet


def world(**profile: Any) -> World:
    return World(gen.config(profiles={"classic": {}, "waves": gen.diskless(**profile)}))


def restart(stage: World, **profile: Any) -> None:
    """Restart the operator with another configuration of the profile."""
    stage.start(gen.config(profiles={"classic": {}, "waves": gen.diskless(**profile)}))


def brokers(stage: World) -> list[str]:
    return sorted(name for name in stage.cluster.pod_states if name.startswith(STATEFUL_SET))


def event_reasons(stage: World) -> list[str]:
    return [reason for _, reason, message in stage.cluster.events if "waves" in message]


async def test_topics_of_both_kinds_become_ready() -> None:
    stage = world()
    stage.cluster.create(gen.topic("classical"))
    stage.cluster.create(gen.topic("flights", profile="waves"))
    await stage.settle()
    for name in ("classical", "flights"):
        assert stage.conditions(name)["Ready"] == ("True", "AllReady")
    assert set(stage.topics.topics) == {("classic", "classical"), ("waves", "flights")}
    status = stage.cluster.topic("flights")["status"]
    assert status["bootstrapServers"] == "firn-broker-waves-bootstrap.firn-system.svc:9092"
    assert status["profile"] == "waves"
    assert not [place for place in stage.cluster.objects if place[1] == "Job"]


def test_ingestion_reads_a_diskless_topic_like_any_other() -> None:
    config = gen.config(profiles={"classic": {}, "waves": gen.diskless()})
    connection = group_settings.group_settings(config, "default").kafka["waves"]
    assert connection.bootstrap_servers == "firn-broker-waves-bootstrap.firn-system.svc:9092"
    assert connection.protocol == "PLAINTEXT"


async def test_a_condition_reports_a_rejected_topic_config() -> None:
    stage = world()
    stage.cluster.create(gen.topic(profile="waves", config={"no.such.config": "1"}))
    await stage.settle()
    assert stage.conditions()["SpecValid"] == ("False", "BadTopicConfig")
    assert "no.such.config" in stage.message("SpecValid")


async def test_a_fleet_grows_and_shrinks_without_restarts() -> None:
    stage = world(replicas=1)
    stage.cluster.create(gen.topic(profile="waves"))
    await stage.settle()
    first = stage.cluster.pod_states[f"{STATEFUL_SET}-0"]
    restart(stage, replicas=3)
    await stage.settle()
    assert brokers(stage) == [f"{STATEFUL_SET}-{number}" for number in range(3)]
    restart(stage, replicas=1)
    await stage.settle()
    assert brokers(stage) == [f"{STATEFUL_SET}-0"]
    assert stage.cluster.pod_states[f"{STATEFUL_SET}-0"] == first, "the same pod throughout"
    assert "ScaleDownRefused" not in event_reasons(stage)
    assert stage.conditions()["Ready"] == ("True", "AllReady")


async def test_a_new_operator_starts_brokers_that_an_administrator_stopped() -> None:
    stage = world()
    await stage.settle()
    place = ("apps/v1", "StatefulSet", "firn-system", "firn-broker-waves")
    wanted = stage.cluster.objects[place]["spec"]["replicas"]
    stage.cluster.objects[place]["spec"]["replicas"] = 0
    stage.start()
    await stage.settle()
    assert stage.cluster.objects[place]["spec"]["replicas"] == wanted > 0


async def test_services_of_removed_brokers_are_deleted() -> None:
    stage = world(replicas=3, external={"host": "h"})
    await stage.settle()
    restart(stage, replicas=2, external={"host": "h"})
    await stage.settle()
    prefix = "firn-broker-waves-external"
    outside = sorted(place[3] for place in stage.cluster.objects if place[1] == "Service" and prefix in place[3])
    assert outside == [prefix, f"{prefix}-0", f"{prefix}-1"]


async def test_a_change_rolls_the_brokers_one_by_one() -> None:
    stage = world(replicas=3)
    await stage.settle()
    restart(stage, replicas=3, flushBytes="4Mi")
    wanted = children.template_hash(stateful_set.build(fleet(replicas=3, flushBytes="4Mi"), 0))
    replaced: list[int] = []
    for _ in range(40):
        await stage.step()
        new = sum(stage.cluster.pod_states[name].template_hash == wanted for name in brokers(stage))
        replaced.append(new)
        stage.clock.advance(5.0)
    assert sorted(set(replaced)) == [0, 1, 2, 3] == list(dict.fromkeys(replaced)), replaced
    assert event_reasons(stage).count("RollingOut") == 1
    assert event_reasons(stage).count("RolledOut") == 1
    configurations = {
        place[3] for place in stage.cluster.objects if place[1] == "ConfigMap" and place[3].startswith(STATEFUL_SET)
    }
    assert configurations == {config_map.name(fleet(replicas=3, flushBytes="4Mi"))}


async def test_a_broker_that_does_not_become_ready_stops_the_roll() -> None:
    stage = world(replicas=3)
    stage.cluster.create(gen.topic(profile="waves"))
    await stage.settle()
    stage.cluster.broken_images.add("firn-broker:broken")
    restart(stage, replicas=3, image={"image": "firn-broker:broken"})
    await stage.settle()
    assert [pod.name for pod in stage.cluster.pod_states.values() if not pod.ready] == [f"{STATEFUL_SET}-2"]
    assert stage.conditions()["Ready"] == ("True", "AllReady")
    assert stage.conditions()["Reconciling"] == ("True", "RollingOut")
    assert event_reasons(stage).count("Degraded") == 1


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [({}, gen.diskless(), "Kafka"), (gen.diskless(), {}, "Diskless")],
    ids=["disks to none", "none to disks"],
)
async def test_a_profile_cannot_change_its_kind(before: dict[str, Any], after: dict[str, Any], kind: str) -> None:
    stage = World(gen.config(profiles={"classic": {}, "waves": before}))
    stage.cluster.create(gen.topic(profile="waves"))
    await stage.settle()
    live, pods = await stage.cluster.stateful_set(STATEFUL_SET), dict(stage.cluster.pod_states)
    stage.start(gen.config(profiles={"classic": {}, "waves": after}))
    await stage.settle()
    now = await stage.cluster.stateful_set(STATEFUL_SET)
    assert live is not None
    assert now is not None
    assert now.manifest == live.manifest
    assert stage.cluster.pod_states == pods, "running brokers are not changed"
    assert stage.conditions()["Ready"] == ("True", "AllReady")
    degraded = stage.operator.board.fleet("waves").degraded
    assert f"profiles.waves.kind: the brokers of StatefulSet {STATEFUL_SET} are of kind {kind}" in degraded
    assert event_reasons(stage).count("Degraded") == 1
    stage.start(gen.config(profiles={"classic": {}, "waves": before}))
    await stage.settle()
    assert stage.operator.board.fleet("waves").degraded == ""


@pytest.mark.parametrize(("ready", "reason"), [(3, None), (1, None), (0, Reason.BROKER_STARTING)])
def test_one_ready_broker_makes_the_fleet_available(ready: int, reason: Reason | None) -> None:
    pods = [gen.pod(f"{STATEFUL_SET}-{number}", ready=number < ready) for number in range(3)]
    admin = FleetState(max(ready, 1), 0) if ready else UnavailableError("refused")
    assert health.fleet_health("waves", fleet(), pods, admin).problem == reason
