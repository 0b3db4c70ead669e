"""The brokers of a profile: rendered objects, start script, rolls, growth and health."""

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from firn.model import names
from firn.model.conditions import Reason
from firn.model.config import Config
from firn.model.errors import AccessDeniedError, InvalidSpecError, UnavailableError
from firn_controllers import children
from firn_controllers.children import Owner
from firn_controllers.fleet import builders, health, kinds, rollout
from firn_controllers.fleet.kafka import config_map, layout, metadata_version, stateful_set
from firn_controllers.fleet.kafka.layout import KafkaFleet
from firn_controllers.ports import FleetState, Manifest, PodState, StatefulSetState
from tests import gen
from tests.fakes.world import World
from tests.unit.controllers.fleet_addresses import OF_BROKER_1

OWNER = Owner("firn-system", "config-uid")


def fleet(live: StatefulSetState | None = None, **profile: Any) -> KafkaFleet:
    managed = kinds.managed_fleet(gen.config(profiles={"classic": profile}), "classic", OWNER, live)
    assert isinstance(managed, KafkaFleet)
    return managed


def container(managed: KafkaFleet) -> Manifest:
    spec = stateful_set.build(managed, 0)["spec"]["template"]["spec"]
    (only,) = spec["containers"]
    return only


def environment(managed: KafkaFleet) -> dict[str, str]:
    return {variable["name"]: variable.get("value", "") for variable in container(managed)["env"]}


# Rendered objects


def test_brokers_have_the_variables_of_their_profile() -> None:
    options = "-XX:+UseSerialGC"
    settings = {"KAFKA_JVM_PERFORMANCE_OPTS": options, "KAFKA_HEAP_OPTS": "-Xmx8g"}
    managed = fleet(environment=settings, heap="2g")
    assert environment(managed)["KAFKA_JVM_PERFORMANCE_OPTS"] == options
    names_of_variables = [variable["name"] for variable in container(managed)["env"]]
    # Kubernetes rejects an applied list with two entries of one name.
    assert sorted(set(names_of_variables)) == sorted(names_of_variables)
    assert environment(managed)["KAFKA_HEAP_OPTS"] == "-Xms2g -Xmx2g"


@pytest.mark.parametrize(
    ("replicas", "voters", "factor", "in_sync"),
    [(1, 1, "1", "1"), (2, 1, "2", "1"), (3, 3, "3", "2"), (5, 3, "3", "2")],
)
def test_quorum_and_replication_follow_the_number_of_brokers(
    replicas: int, voters: int, factor: str, in_sync: str
) -> None:
    managed = fleet(replicas=replicas)
    properties = config_map.properties(managed)
    assert environment(managed)["FIRN_VOTERS"] == str(voters)
    for key in (
        "default.replication.factor",
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
    ):
        assert properties[key] == factor
    assert properties["min.insync.replicas"] == properties["transaction.state.log.min.isr"] == in_sync


def test_voters_are_named_as_the_headless_service_resolves_them(tmp_path: Path) -> None:
    properties, _ = start(fleet(), tmp_path, 1)
    assert properties["controller.quorum.voters"].split(",")[2] == (
        "2@firn-broker-classic-2.firn-broker-classic.firn-system.svc:9093"
    )
    assert stateful_set.build(fleet(), 0)["spec"]["serviceName"] == "firn-broker-classic"
    assert builders.headless_service(fleet())["spec"]["publishNotReadyAddresses"] is True


def test_brokers_create_no_topics_and_accept_any_record_time() -> None:
    properties = config_map.properties(fleet())
    assert properties["auto.create.topics.enable"] == "false"
    assert properties["log.message.timestamp.after.max.ms"] == str(2**63 - 1)


def test_a_profiles_own_config_wins() -> None:
    assert config_map.properties(fleet(config={"num.partitions": "7"}))["num.partitions"] == "7"


def test_a_broker_that_restarts_before_its_turn_keeps_its_config() -> None:
    """Pods of the old template must not read the new configuration, because brokers may not start with it."""
    plain, changed = fleet(), fleet(config={"num.io.threads": "none"})
    names_ = [config_map.build(managed)["metadata"]["name"] for managed in (plain, changed)]
    assert len(set(names_)) == 2
    for managed, name in zip((plain, changed), names_, strict=True):
        volumes = stateful_set.build(managed, 0)["spec"]["template"]["spec"]["volumes"]
        assert next(volume["configMap"]["name"] for volume in volumes if volume["name"] == "config") == name
    assert config_map.name(fleet(metadataVersion="4.1")) == config_map.name(fleet(metadataVersion="4.2"))


def test_line_ends_and_backslashes_are_kept_in_properties() -> None:
    assert "note=a\\nb\\\\c\n" in config_map.text(fleet(config={"note": "a\nb\\c"}))


def test_cluster_ids_are_lasting_distinct_and_well_formed() -> None:
    ids = {layout.cluster_id(namespace, f"p{number}") for namespace in ("a", "b") for number in range(500)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]{21}", cluster_id) for cluster_id in ids)
    assert layout.cluster_id("firn-system", "classic") == layout.cluster_id("firn-system", "classic")


def test_every_object_is_owned_labelled_and_hashed() -> None:
    managed = fleet(external={"host": "h"})
    objects = [
        config_map.build(managed),
        builders.headless_service(managed),
        builders.bootstrap_service(managed),
        *builders.external_services(managed),
        builders.disruption_budget(managed),
        stateful_set.build(managed, 0),
        metadata_version.build(managed, "4.2"),
    ]
    for manifest in objects:
        metadata = manifest["metadata"]
        assert metadata["namespace"] == "firn-system"
        assert metadata["ownerReferences"][0]["uid"] == "config-uid"
        assert metadata["labels"][names.LABEL_MANAGED_BY] == "firn"
        assert metadata["labels"][names.LABEL_PROFILE] == "classic"
        assert metadata["annotations"][names.TEMPLATE_HASH]
    assert len({(child["kind"], child["metadata"]["name"]) for child in objects}) == len(objects)


def test_volumes_stay_as_they_were_created_and_brokers_only_grow() -> None:
    first = stateful_set.build(fleet(replicas=3, storage={"size": "10Gi"}), 0)
    live = gen.stateful_set(replicas=3, manifest=first)
    smaller = fleet(live, replicas=1, storage={"size": "99Gi"})
    assert (smaller.replicas, smaller.voters, smaller.storage_size) == (3, 3, "10Gi")
    assert config_map.properties(smaller)["default.replication.factor"] == "3", (
        "new topics get the default of the brokers"
    )
    assert fleet(live, replicas=5).replicas == 5


def test_the_quorum_of_a_fleet_that_grows_stays_as_it_was_created(tmp_path: Path) -> None:
    """Two new, empty voters would be a majority without data."""
    first = stateful_set.build(fleet(replicas=1), 0)
    grown = fleet(gen.stateful_set(replicas=1, manifest=first), replicas=3)
    assert (grown.replicas, grown.voters) == (3, 1)
    properties, _ = start(grown, tmp_path, 2)
    assert properties["controller.quorum.voters"] == (
        "0@firn-broker-classic-0.firn-broker-classic.firn-system.svc:9093"
    )
    assert properties["process.roles"] == "broker"


def test_growth_changes_only_the_replication_factor_in_the_template() -> None:
    first = stateful_set.build(fleet(replicas=3, external={"host": "h"}), 0)
    more = stateful_set.build(fleet(gen.stateful_set(manifest=first), replicas=6, external={"host": "h"}), 0)
    assert children.template_hash(first) == children.template_hash(more)


def test_a_changed_config_changes_the_pod_template() -> None:
    plain, changed = (stateful_set.build(fleet(config=config), 0) for config in ({}, {"num.io.threads": "9"}))
    assert children.template_hash(plain) != children.template_hash(changed)


# Start script


def start(
    managed: KafkaFleet, tmp_path: Path, ordinal: int, formatted: bool = False
) -> tuple[dict[str, str], list[str]]:
    """Run start.sh with recorders in place of Kafka's tools, and return the configuration and the calls."""
    tools, data, configured, tmp = (tmp_path / name for name in ("bin", "data", "config", "tmp"))
    for directory in (tools, data / "log", configured, tmp):
        directory.mkdir(parents=True, exist_ok=True)
    for name in ("kafka-storage.sh", "kafka-server-start.sh"):
        (tools / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {tmp_path}/calls\n')
        (tools / name).chmod(0o755)
    if formatted:
        (data / "log" / "meta.properties").touch()
    for name, text in config_map.build(managed)["data"].items():
        (configured / name).write_text(text)
    script = configured / "start.sh"
    text = script.read_text().replace("/opt/kafka/bin", str(tools)).replace(layout.DATA_PATH, str(data))
    script.write_text(text.replace(layout.CONFIG_PATH, str(configured)).replace("/tmp/server", f"{tmp}/server"))
    variables = {**environment(managed), "HOSTNAME": f"firn-broker-classic-{ordinal}", "PATH": os.environ["PATH"]}
    variables["NODE_IP"] = "10.0.0.9"
    subprocess.run(["/bin/sh", str(script)], env=variables, check=True, timeout=30)
    lines = (tmp / "server.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line), (tmp_path / "calls").read_text().splitlines()


def test_a_voter_is_broker_and_controller(tmp_path: Path) -> None:
    properties, calls = start(fleet(), tmp_path, 2)
    assert properties["node.id"] == "2"
    assert properties["process.roles"] == "broker,controller"
    assert properties["listeners"] == "INTERNAL://:9092,CONTROLLER://:9093"
    assert properties["advertised.listeners"] == (
        "INTERNAL://firn-broker-classic-2.firn-broker-classic.firn-system.svc:9092"
    )
    assert properties["auto.create.topics.enable"] == "false"
    assert calls[0].startswith("kafka-storage.sh format --ignore-formatted --cluster-id")
    assert calls[1].startswith("kafka-server-start.sh")


def test_a_broker_beyond_the_quorum_is_no_controller(tmp_path: Path) -> None:
    properties, _ = start(fleet(replicas=5), tmp_path, 4)
    assert properties["process.roles"] == "broker"
    assert "CONTROLLER" not in properties["listeners"]


def test_a_volume_with_data_is_not_formatted(tmp_path: Path) -> None:
    _, calls = start(fleet(), tmp_path, 0, formatted=True)
    assert [call.split()[0] for call in calls] == ["kafka-server-start.sh"]


@pytest.mark.parametrize("ordinal", [0, 2])
def test_a_formatted_volume_keeps_its_quorum(tmp_path: Path, ordinal: int) -> None:
    """After the StatefulSet and the record of its size were deleted, the operator knows only the profile."""
    start(fleet(replicas=1), tmp_path, ordinal, formatted=True)
    properties, _ = start(fleet(replicas=3), tmp_path, ordinal, formatted=True)
    assert properties["process.roles"] == ("broker,controller" if ordinal == 0 else "broker")
    assert [voter.partition("@")[0] for voter in properties["controller.quorum.voters"].split(",")] == ["0"]


def test_an_empty_volume_gets_the_quorum_of_the_fleet(tmp_path: Path) -> None:
    start(fleet(replicas=1), tmp_path, 2)
    properties, _ = start(fleet(replicas=3), tmp_path, 2)
    assert properties["process.roles"] == "broker,controller"


def test_a_volume_is_formatted_with_the_configured_metadata_version(tmp_path: Path) -> None:
    _, calls = start(fleet(metadataVersion="4.1"), tmp_path, 0)
    assert calls[0].endswith("--release-version 4.1")


@pytest.mark.parametrize(("external", "advertised"), OF_BROKER_1.values(), ids=OF_BROKER_1)
def test_the_start_script_sets_the_external_address(tmp_path: Path, external: dict[str, Any], advertised: str) -> None:
    properties, _ = start(fleet(external=external), tmp_path, 1)
    assert properties["advertised.listeners"].split(",")[1] == f"EXTERNAL://{advertised}"
    assert "EXTERNAL:PLAINTEXT" in properties["listener.security.protocol.map"]


def test_every_broker_has_its_own_external_service() -> None:
    bootstrap, *brokers = builders.external_services(fleet(external={"host": "h", "port": 31000}))
    assert bootstrap["spec"]["ports"][0]["nodePort"] == 31000
    assert [manifest["spec"]["ports"][0]["nodePort"] for manifest in brokers] == [31001, 31002, 31003]
    assert brokers[1]["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == "firn-broker-classic-1"


@pytest.mark.parametrize("profile", [{}, gen.diskless()], ids=["kafka", "diskless"])
def test_load_balancers_admit_only_the_source_ranges(profile: dict[str, Any]) -> None:
    found = []
    for ranges in ([], ["10.0.0.0/8", "2001:db8::/32"]):
        external = {"type": "LoadBalancer", "hosts": ["a", "b", "c"], "sourceRanges": ranges}
        configured = gen.config(profiles={"classic": {**profile, "replicas": 3, "external": external}})
        services = builders.external_services(kinds.managed_fleet(configured, "classic", OWNER, None))
        found.append([each["spec"].get("loadBalancerSourceRanges") for each in services])
    assert found == [[None] * 4, [["10.0.0.0/8", "2001:db8::/32"]] * 4]


@pytest.mark.parametrize(
    ("external", "message"),
    [
        ({"sourceRanges": ["10.0.0.0/8"]}, "sourceRanges .* Kubernetes ignores it for NodePort; remove it"),
        (
            {"type": "LoadBalancer", "sourceRanges": ["10.0.0.1/8"]},
            "10.0.0.1/8 has host bits set; write a range of addresses such as 10.0.0.0/8",
        ),
        ({"type": "LoadBalancer", "sourceRanges": ["office"]}, "'office' .*; write a range of addresses"),
    ],
)
def test_source_ranges_without_an_effect_are_refused(external: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        fleet(external=external)


def test_a_load_balancer_needs_a_name_for_each_broker() -> None:
    with pytest.raises(InvalidSpecError, match=r"external\.hosts: 3 brokers"):
        stateful_set.build(fleet(external={"type": "LoadBalancer", "hosts": ["a"]}), 0)


# Rolling

UP = FleetState(brokers=3, under_replicated=0)


def pods(*hashes: str, down: Sequence[int] = ()) -> list[PodState]:
    return [
        gen.pod(f"firn-broker-classic-{number}", template_hash=hash_, ready=number not in down)
        for number, hash_ in enumerate(hashes)
    ]


@pytest.mark.parametrize(
    ("live", "states", "admin", "partition"),
    [
        pytest.param(None, [], None, 0, id="a new fleet"),
        pytest.param(gen.stateful_set(), pods("new", "new", "new"), UP, 0, id="nothing to do"),
        pytest.param(
            gen.stateful_set(template_hash="old"),
            pods("old", "old", "old"),
            UP,
            3,
            id="a new template alone moves nothing",
        ),
        pytest.param(
            gen.stateful_set(template_hash="old"),
            pods("old", "old", "old", down=(0, 1, 2)),
            None,
            0,
            id="no pod runs: all at once",
        ),
        pytest.param(
            gen.stateful_set(partition=3),
            pods("old", "old", "old"),
            UP,
            2,
            id="the first broker, if the fleet is healthy",
        ),
        pytest.param(
            gen.stateful_set(partition=3), pods("old", "old", "old"), FleetState(3, 4), 3, id="not while replicas lag"
        ),
        pytest.param(
            gen.stateful_set(partition=3),
            pods("old", "old", "old"),
            FleetState(2, 0),
            3,
            id="not with a broker missing",
        ),
        pytest.param(gen.stateful_set(partition=3), pods("old", "old", "old"), None, 3, id="not without an answer"),
        pytest.param(
            gen.stateful_set(partition=3),
            pods("old", "old", "old", down=(0,)),
            UP,
            3,
            id="not while another broker is down",
        ),
        pytest.param(
            gen.stateful_set(partition=3),
            pods("old", "old", "old", down=(2,)),
            FleetState(2, 9),
            2,
            id="the broker that is down may restart",
        ),
        pytest.param(
            gen.stateful_set(partition=2), pods("old", "old", "old"), UP, 2, id="wait for the broker under way"
        ),
        pytest.param(
            gen.stateful_set(partition=2),
            pods("old", "old", "new", down=(2,)),
            UP,
            2,
            id="wait until the new broker is ready",
        ),
        pytest.param(gen.stateful_set(partition=2), pods("old", "old", "new"), UP, 1, id="the next broker"),
        pytest.param(gen.stateful_set(partition=1), pods("old", "new", "new"), UP, 0, id="the last broker"),
        pytest.param(gen.stateful_set(partition=2), pods("old", "old"), UP, 2, id="wait for a missing pod"),
        pytest.param(
            gen.stateful_set(partition=3, generation_observed=False),
            pods("old", "old", "old"),
            UP,
            3,
            id="wait for the StatefulSet controller",
        ),
    ],
)
def test_a_step_of_the_roll_sets_the_partition(
    live: StatefulSetState | None, states: list[PodState], admin: FleetState | None, partition: int
) -> None:
    assert rollout.step("new", live, states, admin, 3).partition == partition


@pytest.mark.parametrize(
    ("partition", "states", "admin", "waits"),
    [
        (2, pods("old", "old", "new", down=(2,)), UP, "until pod firn-broker-classic-2 is replaced and ready"),
        (2, pods("old"), UP, "until pod firn-broker-classic-2 is replaced and ready"),
        (3, pods("old", "old", "old"), None, "until the brokers answer"),
        (3, pods("old", "old", "old", down=(0,)), UP, "until all 3 pods are ready"),
        (3, pods("old", "old", "old"), FleetState(2, 0), "until all 3 brokers have joined the cluster"),
        (
            3,
            pods("old", "old", "old"),
            FleetState(3, 4, ("a", "b")),
            "until the replicas of 4 under-replicated partition(s) are in sync (topics a, b)",
        ),
        (3, pods("old", "old", "old"), UP, None),
    ],
)
def test_a_step_of_the_roll_names_its_wait(
    partition: int, states: list[PodState], admin: FleetState | None, waits: str | None
) -> None:
    assert rollout.step("new", gen.stateful_set(partition=partition), states, admin, 3).waits == waits


@pytest.mark.parametrize(
    ("live", "states", "under_way"),
    [
        (None, [], False),
        (gen.stateful_set(), pods("new", "new", "new"), False),
        (gen.stateful_set(template_hash="old", partition=0), pods("old", "old", "old"), True),
        (gen.stateful_set(update_revision="2", partition=0), pods("new", "new", "new", down=(0,)), True),
        (gen.stateful_set(), pods("new", "new", "new", down=(0,)), False),
    ],
    ids=["a new fleet", "settled", "all are old", "the last broker is not ready yet", "a broker fails later"],
)
def test_a_roll_is_under_way_until_the_last_broker_is_ready(
    live: StatefulSetState | None, states: list[PodState], under_way: bool
) -> None:
    assert rollout.under_way("new", live, states) is under_way


def test_a_single_broker_rolls_without_a_check_of_replicas() -> None:
    assert rollout.step("new", gen.stateful_set(replicas=1, partition=1), pods("old"), None, 1).partition == 0


async def test_only_a_roll_out_asks_for_the_replicas_of_all_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    world, asked = World(), list[bool]()
    ask = world.topics.fleet

    async def fleet(profile: str, *, replicas: bool = False) -> FleetState:
        asked.append(replicas)
        return await ask(profile, replicas=replicas)

    monkeypatch.setattr(world.topics, "fleet", fleet)
    await world.settle()
    await world.step()
    assert set(asked) == {False}
    world.start(
        gen.config(profiles={"classic": {"image": {"image": "kafka:next"}}, "outside": {"bootstrapServers": "k:1"}})
    )
    for _ in range(10):
        await world.step()
        world.clock.advance(5.0)
    assert True in asked


@pytest.mark.parametrize("lagging", [0, 1], ids=["all in sync", "replicas lag for a while"])
async def test_a_new_image_rolls_the_brokers_one_by_one(lagging: int) -> None:
    world = World()
    await world.settle()
    world.topics.under_replicated = lagging
    world.start(
        gen.config(profiles={"classic": {"image": {"image": "kafka:next"}}, "outside": {"bootstrapServers": "k:1"}})
    )
    most_at_once, before = 0, dict(world.cluster.pod_states)
    for round_ in range(40):
        await world.step()
        now = dict(world.cluster.pod_states)
        most_at_once = max(most_at_once, sum(now[name] != before[name] for name in now))
        if lagging and round_ < 10:
            assert now == before, "no broker restarts while replicas lag"
        if round_ == 10:
            world.topics.under_replicated = 0
        before = now
        world.clock.advance(5.0)
    live = await world.cluster.stateful_set("firn-broker-classic")
    assert live is not None
    assert (live.updated, live.partition, most_at_once) == (3, 0, 1)
    reasons = [reason for name, reason, _ in world.cluster.events if name == names.CONFIG_OBJECT]
    assert reasons.count("RollingOut") == reasons.count("RolledOut") == 1


def upgraded(version: str | None, image: str = "kafka:next") -> Config:
    return gen.config(profiles={"classic": {"metadataVersion": version, "image": {"image": image}}})


def metadata_jobs(world: World) -> list[Manifest]:
    return [live for place, live in world.cluster.objects.items() if place[1] == "Job"]


def event_reasons(world: World) -> list[str]:
    return [reason for name, reason, _ in world.cluster.events if name == names.CONFIG_OBJECT]


def live_version(live: StatefulSetState | None) -> str | None:
    assert live is not None
    version: str | None = live.manifest["metadata"]["annotations"].get(layout.METADATA_VERSION)
    return version


@pytest.mark.parametrize("before", ["4.1", None], ids=["with an earlier version", "without an earlier version"])
async def test_a_metadata_version_is_finalized_once_all_brokers_are_new(before: str | None) -> None:
    world = World(gen.config(profiles={"classic": {"metadataVersion": before}}))
    await world.settle()
    for job in metadata_jobs(world):
        job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    await world.settle()
    assert live_version(await world.cluster.stateful_set("firn-broker-classic")) == before
    earlier = len(metadata_jobs(world))
    world.start(upgraded("4.2"))
    await world.step()
    assert len(metadata_jobs(world)) == earlier, "not before all brokers are new"
    await world.settle()
    job = metadata_jobs(world)[-1]
    assert len(metadata_jobs(world)) == earlier + 1
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert container["image"] == "kafka:next"
    assert container["command"][-1] == "4.2"
    assert live_version(await world.cluster.stateful_set("firn-broker-classic")) == before, (
        "not before the Job has ended"
    )
    job["status"] = {"conditions": [{"type": "Complete", "status": "True"}]}
    pods_before = dict(world.cluster.pod_states)
    await world.settle()
    assert live_version(await world.cluster.stateful_set("firn-broker-classic")) == "4.2"
    assert world.cluster.pod_states == pods_before, "finalizing restarts nothing"
    assert event_reasons(world).count("MetadataVersionFinalised") == earlier + 1


async def test_a_metadata_version_that_cannot_be_finalized_is_reported() -> None:
    world = World()
    world.cluster.create(gen.topic())
    await world.settle()
    world.start(upgraded("9.9"))
    await world.settle()
    (job,) = metadata_jobs(world)
    assert world.operator.board.fleet("classic").degraded == "", "a running Job is no problem"
    job["status"] = {"conditions": [{"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded"}]}
    await world.settle()
    fleet_health = world.operator.board.fleet("classic")
    assert fleet_health.problem is None
    assert f"kubectl -n firn-system logs job/{job['metadata']['name']}" in fleet_health.degraded
    assert "9.9" in fleet_health.degraded
    assert event_reasons(world).count("Degraded") == 1
    assert world.conditions()["Ready"] == ("True", "AllReady")
    assert "Reconciling" not in world.conditions()
    world.start(upgraded(None))
    world.operator.board.fleets["classic"] = fleet_health
    await world.settle()
    assert world.operator.board.fleet("classic").degraded == ""
    assert event_reasons(world).count("Recovered") == 1


def finalize(tmp_path: Path, mapping: str) -> list[str]:
    """Run the Job's command with a recorder in place of Kafka's tool, which knows ``mapping``, and return the calls."""
    tool = tmp_path / "kafka-features.sh"
    tool.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/calls\ncase "$*" in *version-mapping*) {mapping} ;; esac\n')
    tool.chmod(0o755)
    job = metadata_version.build(fleet(), "4.2")
    shell, flag, script, *arguments = job["spec"]["template"]["spec"]["containers"][0]["command"]
    script = script.replace("/opt/kafka/bin", str(tmp_path))
    subprocess.run([shell, flag, script, *arguments], timeout=30, check=False)
    return (tmp_path / "calls").read_text().splitlines()


def test_all_features_are_finalized_except_the_dynamic_quorum(tmp_path: Path) -> None:
    mapping = "printf 'metadata.version=29 (4.2)\nkraft.version=1\ntransaction.version=2\nshare.version=1\n'"
    server = "--bootstrap-server firn-broker-classic-bootstrap.firn-system.svc:9092"
    assert finalize(tmp_path, mapping) == [
        f"{server} version-mapping --release-version 4.2",
        f"{server} upgrade --feature metadata.version=29 --feature transaction.version=2 --feature share.version=1",
    ]


def test_an_unknown_release_finalizes_nothing(tmp_path: Path) -> None:
    assert len(finalize(tmp_path, "exit 1")) == 1


async def test_a_broker_that_does_not_become_ready_stops_the_roll() -> None:
    world = World()
    world.cluster.create(gen.topic())
    await world.settle()
    configurations = [place[3] for place in world.cluster.objects if place[3].startswith("firn-broker-classic-")]
    world.cluster.broken_images.add("kafka:broken")
    world.start(upgraded(None, "kafka:broken"))
    await world.settle()
    down = [pod.name for pod in world.cluster.pod_states.values() if not pod.ready]
    assert down == ["firn-broker-classic-2"], "the other brokers keep their configuration"
    assert world.conditions()["Ready"] == ("True", "AllReady")
    assert world.conditions()["Reconciling"] == ("True", "RollingOut")
    assert "firn-broker-classic-2" in world.message("Reconciling")
    assert event_reasons(world).count("Degraded") == 1
    assert "RolledOut" not in event_reasons(world)
    world.start(upgraded(None, "kafka:mended"))
    await world.settle()
    live = await world.cluster.stateful_set("firn-broker-classic")
    assert live is not None
    assert (live.updated, live.ready, live.partition) == (3, 3, 0)
    assert "Reconciling" not in world.conditions()
    assert event_reasons(world).count("RolledOut") == 1
    assert configurations == [
        place[3] for place in world.cluster.objects if place[3].startswith("firn-broker-classic-")
    ]


async def test_an_old_config_map_stays_while_a_broker_uses_it() -> None:
    def configurations() -> set[str]:
        kept = names.quorum("classic")
        maps = {place[3] for place in world.cluster.objects if place[1] == "ConfigMap" and place[3] != kept}
        return {name for name in maps if "broker-classic" in name}

    world = World()
    await world.settle()
    before = configurations()
    world.topics.under_replicated = 1
    world.start(gen.config(profiles={"classic": {"config": {"num.io.threads": "9"}}}))
    await world.settle()
    assert before < configurations()
    world.topics.under_replicated = 0
    await world.settle()
    assert len(configurations()) == 1
    assert not before & configurations()


async def test_a_scale_down_is_rejected_and_reported_once() -> None:
    world = World()
    await world.settle()
    world.start(gen.config(profiles={"classic": {"replicas": 1}}))
    await world.settle()
    live = await world.cluster.stateful_set("firn-broker-classic")
    assert live is not None
    assert live.replicas == 3
    assert [reason for _, reason, _ in world.cluster.events].count("ScaleDownRefused") == 1


async def scaled_by_another_client(world: World, replicas: int) -> int:
    """Let another client scale the brokers, and return their number after the operator has settled."""
    place = ("apps/v1", "StatefulSet", "firn-system", "firn-broker-classic")
    world.cluster.objects[place]["spec"]["replicas"] = replicas
    await world.settle()
    live = await world.cluster.stateful_set("firn-broker-classic")
    assert live is not None
    return live.replicas


@pytest.mark.parametrize("replicas", [4, 1, 0])
async def test_brokers_that_another_client_removes_come_back(replicas: int) -> None:
    world = World(gen.config(profiles={"classic": {"replicas": 5}}))
    await world.settle()
    world.start(gen.config(profiles={"classic": {"replicas": 3}}))
    await world.settle()
    assert await scaled_by_another_client(world, replicas) == 5


async def test_brokers_that_another_client_adds_stay_and_are_reported() -> None:
    world = World()
    await world.settle()
    assert await scaled_by_another_client(world, 9) == 9
    told = [message for _, reason, message in world.cluster.events if reason == "ScaleDownRefused"]
    assert len(told) == 1
    assert "another client raised the number of brokers of profile classic from 3 to 9" in told[0]
    assert await scaled_by_another_client(world, 4) == 9


@pytest.mark.parametrize(
    ("then", "left"),
    [
        (None, []),
        ({"type": "LoadBalancer", "hosts": ["a", "b", "c"]}, ["", "-0", "-1", "-2"]),
    ],
    ids=["removed", "another kind"],
)
async def test_external_services_follow_the_configuration(then: Any, left: list[str]) -> None:
    def outside() -> list[str]:
        place_names = (place[3] for place in world.cluster.objects if place[1] == "Service" and "external" in place[3])
        return sorted(name.removeprefix("firn-broker-classic-external") for name in place_names)

    world = World(gen.config(profiles={"classic": {"external": {"host": "h"}}}))
    await world.settle()
    assert outside() == ["", "-0", "-1", "-2"]
    world.start(gen.config(profiles={"classic": {"external": then}}))
    await world.operator_only()
    assert outside() == left, "at once"
    await world.settle()
    kept = {place[3] for place in world.cluster.objects if place[1] == "Service" and "broker" in place[3]}
    assert kept >= {"firn-broker-classic", "firn-broker-classic-bootstrap"}


async def test_brokers_of_a_profile_that_leaves_the_configuration_stay() -> None:
    world = World(gen.config(profiles={"classic": {}, "second": {}}))
    await world.settle()
    world.start(gen.config(profiles={"classic": {}}))
    await world.settle()
    assert await world.cluster.stateful_set("firn-broker-second") is not None


# Health


def health_of(
    states: Sequence[PodState], admin: FleetState | Exception, ours: bool = True
) -> tuple[Reason | None, str]:
    result = health.fleet_health("classic", fleet() if ours else None, states, admin)  # type: ignore[arg-type]
    return result.problem, result.message


DOWN = UnavailableError("connection refused")


@pytest.mark.parametrize(
    ("states", "admin", "ours", "reason"),
    [
        pytest.param(pods("a", "a", "a"), UP, True, None, id="all brokers are up"),
        pytest.param(pods("a", "a", "a", down=(1,)), FleetState(2, 3), True, None, id="one of three is down"),
        pytest.param(pods("a", "a", "a", down=(0, 1)), FleetState(3, 3), True, Reason.BROKER_STARTING, id="too few brokers for a write"),
        pytest.param([], FleetState(3, 0), False, None, id="an existing Kafka answers"),
        pytest.param([], DOWN, True, Reason.BROKER_STARTING, id="no pods yet"),
        pytest.param(pods("a", "a", "a", down=(0, 1, 2)), DOWN, True, Reason.BROKER_STARTING, id="starting"),
        pytest.param(pods("a", "a", "a"), DOWN, True, Reason.BROKER_UNREACHABLE, id="ready and silent"),
        pytest.param(pods("a", "a", "a"), AccessDeniedError("no"), True, Reason.ACCESS_DENIED, id="access is denied"),
        pytest.param([], DOWN, False, Reason.BROKER_UNREACHABLE, id="an existing Kafka is silent"),
        pytest.param([], AccessDeniedError("no"), False, Reason.ACCESS_DENIED, id="an existing Kafka denies access"),
        pytest.param(
            [gen.broken_pod("firn-broker-classic-0", waiting_reason="ImagePullBackOff")], DOWN, True, Reason.BROKER_UNREACHABLE,
            id="an image that cannot be pulled",
        ),
    ],
)  # fmt: skip
def test_the_health_of_a_fleet_has_its_reason(
    states: list[PodState], admin: FleetState | Exception, ours: bool, reason: Reason | None
) -> None:
    assert health_of(states, admin, ours)[0] == reason


def test_the_health_names_an_image_that_cannot_be_pulled() -> None:
    broken = [gen.broken_pod("firn-broker-classic-0", waiting_reason="ErrImagePull")]
    assert "kafka:4.2" in health_of(broken, DOWN)[1]


def test_the_health_names_a_failing_broker_of_a_working_fleet() -> None:
    crashed = gen.broken_pod("firn-broker-classic-1", waiting_reason="CrashLoopBackOff", last_exit_code=1)
    states = [*pods("a"), crashed, gen.pod("firn-broker-classic-2")]
    well = health.fleet_health("classic", fleet(), states, FleetState(2, 3))
    assert well.problem is None
    assert "firn-broker-classic-1 keeps terminating" in well.degraded
    assert health.fleet_health("classic", fleet(), pods("a", "a", "a"), UP).degraded == ""


NAMELESS = {"external": {"type": "LoadBalancer", "hosts": ["a.example"]}}
"""Values with which no fleet of three brokers can be rendered."""


async def test_a_roll_that_waits_for_long_is_reported() -> None:
    world = World()
    await world.settle()
    world.topics.under_replicated, world.topics.lagging_topics = 1, ("clicks-of-another-team",)
    world.start(gen.config(profiles={"classic": {"image": {"image": "kafka:next"}}}))
    for _ in range(100):
        await world.step()
        world.clock.advance(5.0)
    told = [message for name, reason, message in world.cluster.events if reason == "Degraded"]
    assert len(told) == 1
    assert (
        "until the replicas of 1 under-replicated partition(s) are in sync (topics clicks-of-another-team)" in told[0]
    )
    assert "also if it is a topic of another client" in told[0]
    world.topics.under_replicated = 0
    await world.settle()
    assert "Recovered" in [reason for _, reason, _ in world.cluster.events]


async def uninstalled(replicas: int) -> World:
    """Install a fleet of one broker, let it grow to three, uninstall it, and install it with ``replicas``."""
    world = World(gen.config(profiles={"classic": {"replicas": 1}}))
    await world.settle()
    world.start(gen.config(profiles={"classic": {"replicas": 3}}))
    await world.settle()
    for live in list(world.cluster.objects.values()):
        if live["metadata"].get("ownerReferences"):
            world.cluster._remove(live)
    world.cluster.pod_states.clear()
    world.start(gen.config(profiles={"classic": {"replicas": replicas}}))
    await world.settle()
    return world


@pytest.mark.parametrize("replicas", [1, 3])
async def test_a_reinstalled_fleet_has_the_quorum_and_the_brokers_of_its_volumes(replicas: int) -> None:
    world = await uninstalled(replicas)
    live = await world.cluster.stateful_set("firn-broker-classic")
    assert live is not None
    assert (live.manifest["metadata"]["annotations"][layout.VOTERS], live.replicas) == ("1", 3)


def test_a_record_of_an_earlier_version_has_only_the_voters() -> None:
    record = {"metadata": {"name": "firn-broker-classic-quorum"}, "data": {"voters": "3"}}
    assert layout.kept_size(record) == layout.Size(3, 3)


@pytest.mark.parametrize("data", [{"voters": "many"}, {"voters": "1", "replicas": "many"}])
async def test_a_quorum_that_cannot_be_read_stops_a_new_fleet(data: dict[str, str]) -> None:
    world = World()
    record = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": names.quorum("classic"), "namespace": "firn-system"},
    }
    place = ("v1", "ConfigMap", "firn-system", names.quorum("classic"))
    world.cluster.objects[place] = {**record, "data": data}
    world.cluster.create(gen.topic())
    await world.settle()
    assert await world.cluster.stateful_set("firn-broker-classic") is None
    assert names.quorum("classic") in world.message("TopicReady")


async def test_an_invalid_profile_stops_only_its_own_topics() -> None:
    world = World(gen.config(profiles={"classic": {}, "odd": NAMELESS}))
    world.cluster.create(gen.topic("good"))
    world.cluster.create(gen.topic("bad", profile="odd"))
    await world.settle()
    assert world.conditions("good")["Ready"] == ("True", "AllReady")
    assert world.conditions("bad")["TopicReady"] == ("False", "BrokerUnreachable")
    assert "external.hosts" in world.message("TopicReady", "bad")
    assert world.conditions("bad")["Stalled"] == ("True", "FastFailures")


@pytest.mark.parametrize("replicas", [3, 1], ids=["too few names", "fewer brokers configured than exist"])
async def test_an_invalid_setting_stops_no_topic_of_running_brokers(replicas: int) -> None:
    world = World()
    world.cluster.create(gen.topic())
    await world.settle()
    before = dict(world.cluster.pod_states)
    outside = {"bootstrapServers": "kafka.example:9092", "namespaces": ["demo"]}
    world.start(gen.config(profiles={"classic": {"replicas": replicas, **NAMELESS}, "outside": outside}))
    await world.settle()
    assert world.conditions()["Ready"] == ("True", "AllReady")
    assert "external.hosts: 3 brokers" in world.operator.board.fleet("classic").degraded
    assert event_reasons(world).count("Degraded") == 1
    assert world.cluster.pod_states == before
    world.start(gen.config())
    await world.settle()
    assert world.operator.board.fleet("classic").degraded == ""
