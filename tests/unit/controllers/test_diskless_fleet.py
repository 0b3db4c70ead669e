"""A diskless profile's brokers: what is rendered, how one starts, how the fleet rolls and scales, and topics of both kinds side by side."""

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

OWNER = Owner("firn-system", "config-uid")
STATEFUL_SET = "firn-broker-waves"


def fleet(name: str = "waves", **profile: Any) -> DisklessFleet:
    config = gen.config(profiles={"classic": {}, name: gen.diskless(**profile)})
    found = kinds.managed_fleet(config, name, OWNER, None)
    assert isinstance(found, DisklessFleet)
    return found


def pod_spec(found: DisklessFleet) -> Manifest:
    spec: Manifest = stateful_set.build(found, 0)["spec"]["template"]["spec"]
    return spec


def container(found: DisklessFleet) -> Manifest:
    (only,) = pod_spec(found)["containers"]
    return only


# What is rendered


def test_settings_name_the_database_the_bucket_and_files_with_their_secrets() -> None:
    found = config_map.settings(fleet(defaultPartitions=6, topicConfig={"retention.ms": "1000"}))
    assert found["coordinator"] == {
        "type": "postgres",
        "uri": "postgresql://pg:5432/firn",
        "user": "firn",
        "passwordFile": "/etc/firn/secrets/firn-postgres/password",
        "schemaName": "firn_broker_waves",
    }
    assert found["objects"] == {
        "type": "bucket",
        "url": "s3://firn/diskless/waves",
        "config": {"aws_endpoint": "http://s3:7070", "aws_region": "us-east-1"},
        "secretConfig": {
            "aws_access_key_id": "/etc/firn/secrets/firn-s3/access-key",
            "aws_secret_access_key": "/etc/firn/secrets/firn-s3/secret-key",
        },
    }
    assert found["topics"] == {"autoCreate": False, "partitions": 6, "configs": {"retention.ms": "1000"}}
    assert found["writer"] == {"flushSeconds": 0.25, "flushBytes": 8 * 2**20}


def test_the_databases_user_may_come_from_a_secret() -> None:
    given = gen.diskless()
    given["coordinator"] = {**given["coordinator"], "user": {"secret": "firn-database", "key": "user"}}
    found = fleet(coordinator=given["coordinator"])
    settings = config_map.settings(found)["coordinator"]
    assert settings["userFile"] == "/etc/firn/secrets/firn-database/user"
    assert "user" not in settings
    assert "firn-database" in {it["secret"]["secretName"] for it in pod_spec(found)["volumes"] if "secret" in it}


def test_two_fleets_share_neither_schema_nor_objects() -> None:
    one, other = fleet("a-b"), fleet("ab")
    assert (one.schema, one.url) == ("firn_broker_a_b", "s3://firn/diskless/a-b")
    assert {one.schema, one.url}.isdisjoint({other.schema, other.url})


def test_a_profiles_own_settings_win_key_by_key() -> None:
    found = config_map.settings(
        fleet(flushInterval="100ms", config={"writer": {"uploads": 8}, "reader": {"pollSeconds": 1}})
    )
    assert found["writer"] == {"flushSeconds": 0.1, "flushBytes": 8 * 2**20, "uploads": 8}
    assert found["reader"] == {"pollSeconds": 1}


def test_a_pod_keeps_nothing_and_has_secrets_as_files_only() -> None:
    found = fleet()
    assert "volumeClaimTemplates" not in stateful_set.build(found, 0)["spec"]
    spec = pod_spec(found)
    kinds_ = {kind for volume in spec["volumes"] for kind in volume if kind != "name"}
    assert kinds_ == {"secret", "configMap", "emptyDir"}
    assert {it["secret"]["secretName"] for it in spec["volumes"] if "secret" in it} == {"firn-postgres", "firn-s3"}
    mounted = {it["mountPath"] for it in container(found)["volumeMounts"]}
    for path in re.findall(r"/etc/firn/secrets/[^\s'\"]+", config_map.build(found)["data"]["broker.yaml"]):
        assert path.rpartition("/")[0] in mounted
    assert not [it for it in container(found)["env"] if "secretKeyRef" in it.get("valueFrom", {})]


def test_what_kubernetes_says_of_services_is_not_taken_for_settings() -> None:
    """Service links would be variables such as FIRN_BROKER_WAVES_SERVICE_HOST, and every FIRN_BROKER_... is a setting of the broker."""
    assert pod_spec(fleet())["enableServiceLinks"] is False


def test_no_other_pod_gets_the_brokers_secrets() -> None:
    config = gen.config(profiles={"classic": {}, "waves": gen.diskless()})
    assert config.secret_names() == gen.config().secret_names()


def test_probes_and_metrics_have_a_port_of_their_own() -> None:
    found = container(fleet())
    assert {it["name"]: it["containerPort"] for it in found["ports"]} == {"kafka": 9092, "metrics": 9090}
    assert found["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
    assert found["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}
    assert config_map.settings(fleet())["metricsListen"] == "0.0.0.0:9090"
    assert [it["name"] for it in builders.headless_service(fleet())["spec"]["ports"]] == ["kafka", "metrics"]


def test_a_broker_that_is_told_to_stop_has_time_to_store_what_it_took() -> None:
    """The broker answers for 20 s and then finishes its uploads (30 s each, side by side)."""
    sleep = container(fleet())["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod_spec(fleet())["terminationGracePeriodSeconds"] - sleep >= 55


def test_pods_are_spread_over_zones_and_nodes() -> None:
    keys = [it["topologyKey"] for it in pod_spec(fleet())["topologySpreadConstraints"]]
    assert keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
    own = [{"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"}]
    assert pod_spec(fleet(scheduling={"topologySpreadConstraints": own}))["topologySpreadConstraints"] == own


def test_every_object_is_owned_labelled_and_hashed() -> None:
    found = fleet(external={"host": "h"})
    objects = [
        config_map.build(found),
        builders.headless_service(found),
        builders.bootstrap_service(found),
        *builders.external_services(found),
        builders.disruption_budget(found),
        stateful_set.build(found, 0),
    ]
    for manifest in objects:
        metadata = manifest["metadata"]
        assert metadata["ownerReferences"][0]["uid"] == "config-uid"
        assert metadata["labels"][names.LABEL_PROFILE] == "waves"
        assert metadata["annotations"][names.TEMPLATE_HASH]
    assert len({(it["kind"], it["metadata"]["name"]) for it in objects}) == len(objects)


def test_a_changed_setting_changes_the_pod_template_and_another_number_of_brokers_does_not() -> None:
    def template(**profile: Any) -> str:
        return children.template_hash(stateful_set.build(fleet(**profile), 0))

    assert template() != template(flushBytes="4Mi")
    assert template(replicas=1, external={"host": "h"}) == template(replicas=5, external={"host": "h"})


# How a broker starts


def start(found: DisklessFleet, tmp_path: Path, ordinal: int, **more: str) -> dict[str, str]:
    """Runs start.sh with the broker replaced by a recorder: the broker's own variables that it starts with."""
    tool = tmp_path / "firn-broker"
    tool.write_text(f'#!/bin/sh\necho "$*" > {tmp_path}/arguments\nenv > {tmp_path}/env\n')
    tool.chmod(0o755)
    script = tmp_path / "start.sh"
    script.write_text(config_map.build(found)["data"]["start.sh"])
    variables = {it["name"]: it.get("value", "") for it in container(found)["env"]}
    given = {"HOSTNAME": f"{STATEFUL_SET}-{ordinal}", "NODE_IP": "10.0.0.9", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    subprocess.run(["/bin/sh", str(script)], env={**variables, **given, **more}, check=True, timeout=30)
    assert (tmp_path / "arguments").read_text() == f"--config {layout.CONFIG_PATH}/broker.yaml serve\n"
    lines = dict(it.split("=", 1) for it in (tmp_path / "env").read_text().splitlines() if "=" in it)
    return {key: value for key, value in lines.items() if key.startswith("FIRN_BROKER_")}


def test_a_broker_is_told_who_it_is_and_where_clients_find_it(tmp_path: Path) -> None:
    found = {key: yaml.safe_load(value) for key, value in start(fleet(), tmp_path, 2).items()}
    assert found == {
        "FIRN_BROKER_NODE_ID": 2,
        "FIRN_BROKER_ZONE": "",
        "FIRN_BROKER_LISTENER__ADVERTISED": "firn-broker-waves-2.firn-broker-waves.firn-system.svc:9092",
    }
    assert stateful_set.build(fleet(), 0)["spec"]["serviceName"] == STATEFUL_SET


def test_a_broker_is_told_its_zone_where_pods_have_it_as_a_label(tmp_path: Path) -> None:
    assert yaml.safe_load(start(fleet(), tmp_path, 0, ZONE="eu-1a")["FIRN_BROKER_ZONE"]) == "eu-1a"
    (zone,) = [it for it in container(fleet())["env"] if it["name"] == "ZONE"]
    assert zone["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['topology.kubernetes.io/zone']"


@pytest.mark.parametrize(
    ("external", "advertised"),
    [
        ({"host": "kafka.example", "port": 31000}, "kafka.example:31002"),
        ({"port": 31000}, "10.0.0.9:31002"),
        ({"type": "LoadBalancer", "hosts": ["a.example", "b.example", "c.example"]}, "b.example:9094"),
    ],
    ids=["a node port", "a node port on the broker's own node", "a load balancer"],
)
def test_clients_outside_are_told_where(tmp_path: Path, external: dict[str, Any], advertised: str) -> None:
    found = fleet(external=external)
    assert yaml.safe_load(start(found, tmp_path, 1)["FIRN_BROKER_EXTERNAL__ADVERTISED"]) == advertised
    assert config_map.settings(found)["external"] == {"name": "EXTERNAL", "bind": "0.0.0.0:9094"}
    assert {"name": "external", "containerPort": 9094} in container(found)["ports"]


def test_a_load_balancer_needs_a_name_for_each_broker() -> None:
    with pytest.raises(InvalidSpecError, match=r"external\.hosts: 3 brokers"):
        stateful_set.build(fleet(external={"type": "LoadBalancer", "hosts": ["a"]}), 0)


def test_the_broker_reads_what_is_rendered(tmp_path: Path) -> None:
    """The broker's own settings read the rendered document and variables."""
    found = fleet(
        defaultPartitions=6, flushInterval="1s", topicConfig={"retention.ms": "1000"}, config={"leaseSeconds": 3}
    )
    variables = start(found, tmp_path, 1, ZONE="a")
    document = tmp_path / "broker.yaml"
    document.write_text(config_map.build(found)["data"]["broker.yaml"])
    read = broker_settings.load(document, variables)
    assert (read.node_id, read.zone, read.lease_seconds) == (1, "a", 3)
    assert read.listener.advertised == "firn-broker-waves-1.firn-broker-waves.firn-system.svc:9092"
    assert isinstance(read.coordinator, broker_settings.PostgresSettings)
    assert isinstance(read.objects, broker_settings.BucketSettings)
    assert (read.coordinator.schema_name, read.objects.url) == ("firn_broker_waves", "s3://firn/diskless/waves")
    assert (read.topics.auto_create, read.topics.partitions) == (False, 6)
    assert (read.writer.flush_seconds, read.writer.flush_bytes) == (1, 8 * 2**20)
    assert broker_settings.load(document, start(found, tmp_path, 1)).zone == ""


def test_the_broker_reads_its_listener_for_clients_outside(tmp_path: Path) -> None:
    found = fleet(external={"host": "kafka.example", "port": 31000})
    variables = start(found, tmp_path, 1)
    document = tmp_path / "broker.yaml"
    document.write_text(config_map.build(found)["data"]["broker.yaml"])
    external = broker_settings.load(document, variables).external
    assert external is not None
    assert external.advertised == "kafka.example:31002"


def test_what_the_operator_sets_is_what_a_profile_may_not() -> None:
    ours = config_map.settings(fleet(external={"host": "h"})).keys() - {"topics", "writer"}
    assert ours | {"nodeId", "zone"} == BROKER_SETTINGS_OWN


# Life of a fleet


def world(**profile: Any) -> World:
    return World(gen.config(profiles={"classic": {}, "waves": gen.diskless(**profile)}))


def restart(found: World, **profile: Any) -> None:
    """The operator, with another configuration of the profile."""
    found.start(gen.config(profiles={"classic": {}, "waves": gen.diskless(**profile)}))


def brokers(found: World) -> list[str]:
    return sorted(name for name in found.cluster.pod_states if name.startswith(STATEFUL_SET))


def told(found: World) -> list[str]:
    return [reason for _, reason, message in found.cluster.events if "waves" in message]


async def test_topics_of_both_kinds_live_side_by_side() -> None:
    found = world()
    found.cluster.create(gen.topic("classical"))
    found.cluster.create(gen.topic("flights", profile="waves"))
    await found.settle()
    for name in ("classical", "flights"):
        assert found.conditions(name)["Ready"] == ("True", "AllReady")
    assert set(found.topics.topics) == {("classic", "classical"), ("waves", "flights")}
    status = found.cluster.topic("flights")["status"]
    assert status["bootstrapServers"] == "firn-broker-waves-bootstrap.firn-system.svc:9092"
    assert status["profile"] == "waves"
    assert not [place for place in found.cluster.objects if place[1] == "Job"]


def test_ingestion_reads_a_diskless_topic_as_any_other() -> None:
    config = gen.config(profiles={"classic": {}, "waves": gen.diskless()})
    connection = group_settings.group_settings(config, "default").kafka["waves"]
    assert connection.bootstrap_servers == "firn-broker-waves-bootstrap.firn-system.svc:9092"
    assert connection.protocol == "PLAINTEXT"


async def test_a_topic_config_that_brokers_refuse_is_said() -> None:
    found = world()
    found.cluster.create(gen.topic(profile="waves", config={"no.such.config": "1"}))
    await found.settle()
    assert found.conditions()["SpecValid"] == ("False", "BadTopicConfig")
    assert "no.such.config" in found.message("SpecValid")


async def test_a_fleet_grows_and_shrinks_with_the_configuration_and_replaces_nobody() -> None:
    found = world(replicas=1)
    found.cluster.create(gen.topic(profile="waves"))
    await found.settle()
    first = found.cluster.pod_states[f"{STATEFUL_SET}-0"]
    restart(found, replicas=3)
    await found.settle()
    assert brokers(found) == [f"{STATEFUL_SET}-{number}" for number in range(3)]
    restart(found, replicas=1)
    await found.settle()
    assert brokers(found) == [f"{STATEFUL_SET}-0"]
    assert found.cluster.pod_states[f"{STATEFUL_SET}-0"] == first, "the same pod all the while"
    assert "ScaleDownRefused" not in told(found)
    assert found.conditions()["Ready"] == ("True", "AllReady")


async def test_services_of_brokers_that_are_gone_go() -> None:
    found = world(replicas=3, external={"host": "h"})
    await found.settle()
    restart(found, replicas=2, external={"host": "h"})
    await found.settle()
    prefix = "firn-broker-waves-external"
    outside = sorted(place[3] for place in found.cluster.objects if place[1] == "Service" and prefix in place[3])
    assert outside == [prefix, f"{prefix}-0", f"{prefix}-1"]


async def test_a_change_reaches_the_brokers_one_by_one() -> None:
    found = world(replicas=3)
    await found.settle()
    restart(found, replicas=3, flushBytes="4Mi")
    wanted = children.template_hash(stateful_set.build(fleet(replicas=3, flushBytes="4Mi"), 0))
    replaced: list[int] = []
    for _ in range(40):
        await found.step()
        new = sum(found.cluster.pod_states[name].template_hash == wanted for name in brokers(found))
        replaced.append(new)
        found.clock.advance(5.0)
    assert sorted(set(replaced)) == [0, 1, 2, 3] == list(dict.fromkeys(replaced)), replaced
    assert told(found).count("RollingOut") == 1
    assert told(found).count("RolledOut") == 1
    configurations = {
        place[3] for place in found.cluster.objects if place[1] == "ConfigMap" and place[3].startswith(STATEFUL_SET)
    }
    assert configurations == {config_map.name(fleet(replicas=3, flushBytes="4Mi"))}


async def test_a_broker_that_does_not_come_back_stops_the_roll() -> None:
    found = world(replicas=3)
    found.cluster.create(gen.topic(profile="waves"))
    await found.settle()
    found.cluster.broken_images.add("firn-broker:broken")
    restart(found, replicas=3, image={"image": "firn-broker:broken"})
    await found.settle()
    assert [it.name for it in found.cluster.pod_states.values() if not it.ready] == [f"{STATEFUL_SET}-2"]
    assert found.conditions()["Ready"] == ("True", "AllReady")
    assert found.conditions()["Reconciling"] == ("True", "RollingOut")
    assert told(found).count("Degraded") == 1


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [({}, gen.diskless(), "Kafka"), (gen.diskless(), {}, "Diskless")],
    ids=["disks to none", "none to disks"],
)
async def test_a_profile_cannot_become_one_of_the_other_kind(
    before: dict[str, Any], after: dict[str, Any], kind: str
) -> None:
    found = World(gen.config(profiles={"classic": {}, "waves": before}))
    found.cluster.create(gen.topic(profile="waves"))
    await found.settle()
    live, pods = await found.cluster.stateful_set(STATEFUL_SET), dict(found.cluster.pod_states)
    found.start(gen.config(profiles={"classic": {}, "waves": after}))
    await found.settle()
    now = await found.cluster.stateful_set(STATEFUL_SET)
    assert live is not None
    assert now is not None
    assert now.manifest == live.manifest
    assert found.cluster.pod_states == pods, "brokers that run are left alone"
    assert found.conditions()["Ready"] == ("True", "AllReady")
    degraded = found.operator.board.fleet("waves").degraded
    assert f"profiles.waves.kind: the brokers of StatefulSet {STATEFUL_SET} are of kind {kind}" in degraded
    assert told(found).count("Degraded") == 1
    found.start(gen.config(profiles={"classic": {}, "waves": before}))
    await found.settle()
    assert found.operator.board.fleet("waves").degraded == ""


@pytest.mark.parametrize(("ready", "reason"), [(3, None), (1, None), (0, Reason.BROKER_STARTING)])
def test_one_ready_broker_is_enough_to_write(ready: int, reason: Reason | None) -> None:
    pods = [gen.pod(f"{STATEFUL_SET}-{number}", ready=number < ready) for number in range(3)]
    admin = FleetState(max(ready, 1), 0) if ready else UnavailableError("refused")
    assert health.fleet_health("waves", fleet(), pods, admin).problem == reason
