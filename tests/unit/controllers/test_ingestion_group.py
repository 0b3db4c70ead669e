"""The driver of a group: rendered objects, changes that restart it, and its health."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from firn.model import names
from firn.model.conditions import Reason
from firn.model.config import Config
from firn.model.jobs import GroupSettings
from firn.model.progress import GroupProgress
from firn_controllers import children
from firn_controllers.cache.contracts import Need
from firn_controllers.children import Owner
from firn_controllers.ingestion_group import health, service, settings, stateful_set
from firn_controllers.ingestion_group.health import ObservedGroup
from firn_controllers.ingestion_group.layout import group_labels
from firn_controllers.ports import Manifest, PodState
from tests import gen
from tests.fakes.world import World

OWNER = Owner("firn-system", "config-uid")
UID = "uid-demo-flights"
SECURE: dict[str, Any] = {
    "secure": {
        "bootstrapServers": "kafka:9093",
        "security": {
            "tls": True,
            "ca": {"secret": "ca", "key": "ca.crt"},
            "sasl": {"mechanism": "PLAIN", "username": "u", "password": {"secret": "kafka", "key": "password"}},
        },
    }
}


def rendered(
    config: Config | None = None,
    group: str = "default",
    in_use: bool = True,
    needed: frozenset[Need] | None = None,
) -> Manifest:
    config = config or gen.config()
    contents = settings.group_settings(config, group, needed=needed)
    return stateful_set.build(config, contents, OWNER, group_labels(group), in_use=in_use)


def pod_spec(manifest: Manifest) -> Manifest:
    spec: Manifest = manifest["spec"]["template"]["spec"]
    return spec


def test_the_driver_knows_the_identity_of_its_pod() -> None:
    fields = {
        variable["name"]: variable["valueFrom"]["fieldRef"]["fieldPath"]
        for variable in pod_spec(rendered())["containers"][0]["env"]
        if "valueFrom" in variable
    }
    assert fields["POD_UID"] == "metadata.uid"


def test_settings_have_profiles_and_catalogs_with_secret_paths() -> None:
    config = gen.config(profiles={"classic": {}, **SECURE})
    contents = settings.group_settings(config, "default")
    assert contents.kafka["classic"].bootstrap_servers == "firn-broker-classic-bootstrap.firn-system.svc:9092"
    secure = contents.kafka["secure"]
    assert (secure.protocol, secure.ca_path, secure.sasl_username, secure.sasl_password_path) == (
        "SASL_SSL", "/etc/firn/secrets/ca/ca.crt", "u", "/etc/firn/secrets/kafka/password",
    )  # fmt: skip
    lake = contents.catalogs["lake"]
    assert lake.properties == {"user": "firn"}
    assert lake.secret_properties == {"password": "/etc/firn/secrets/firn-postgres/password"}
    assert contents.bytes_per_commit == 128 * 2**20


READS = {
    "properties": {"aws_region": "eu-1"},
    "secretProperties": {"aws_access_key_id": {"secret": "reader", "key": "id"}},
}


def secrets(manifest: Manifest) -> set[str]:
    return {volume["secret"]["secretName"] for volume in pod_spec(manifest)["volumes"] if "secret" in volume}


def test_a_driver_reads_the_bucket_with_credentials_of_its_own() -> None:
    config = gen.config(profiles={"classic": {}, "waves": gen.diskless(directReads=READS)})
    direct = settings.group_settings(config, "default").direct["waves"]
    assert direct.address == "http://firn-broker-waves-bootstrap.firn-system.svc:9095"
    assert direct.token_path == "/etc/firn/secrets/firn-direct-reads-waves/token"
    assert direct.url == "s3://firn/diskless/waves"
    assert direct.properties == {"aws_endpoint": "http://s3:7070", "aws_region": "eu-1"}
    assert direct.secret_properties == {"aws_access_key_id": "/etc/firn/secrets/reader/id"}
    assert {"reader", "firn-direct-reads-waves"} <= secrets(rendered(config))
    assert "firn-s3" not in secrets(rendered(config)), "these keys can write and delete"
    assert "reader" not in config.secret_names(), "the operator and runs do not read the bucket"


def test_each_driver_and_run_mounts_its_own_credential_of_an_existing_kafka() -> None:
    def login(name: str) -> dict[str, Any]:
        return {
            "sasl": SECURE["secure"]["security"]["sasl"] | {"username": name, "password": {"secret": name, "key": "p"}}
        }

    drivers = {"groups": {name: login(f"ingest-{name}") for name in ("default", "big")}, "maintenance": login("runs")}
    config = gen.config(profiles={"classic": {}, "secure": SECURE["secure"] | {"drivers": drivers}})
    ours = {"kafka", "runs", "ingest-default", "ingest-big"}
    for group in ("default", "big"):
        assert secrets(rendered(config, group)) & ours == {f"ingest-{group}"}
        connection = settings.group_settings(config, group).kafka["secure"]
        assert (connection.sasl_username, connection.ca_path) == (f"ingest-{group}", "/etc/firn/secrets/ca/ca.crt")
    assert set(config.secret_names()) & ours == {"kafka"}, "the operator"


def test_only_drivers_that_may_serve_a_profile_get_its_credentials() -> None:
    def of_group(group: list[str], profile: list[str]) -> bool:
        waves = gen.diskless(directReads=READS, namespaces=profile)
        config = gen.config(profiles={"classic": {}, "waves": waves}, groups={"default": {"namespaces": group}})
        mounted = "reader" in secrets(rendered(config))
        assert mounted == ("waves" in settings.group_settings(config, "default").direct)
        return mounted

    assert of_group([], [])
    assert of_group(["a"], [])
    assert of_group([], ["a"])
    assert of_group(["a", "b"], ["b", "c"])
    assert not of_group(["a"], ["b"])


def test_with_access_drivers_ask_over_tls_with_the_token_of_their_account() -> None:
    waves = gen.diskless(directReads=READS, access={"certificate": {"selfSigned": {}}})
    config = gen.config(profiles={"classic": {}, "waves": waves})
    found = settings.group_settings(config, "default")
    direct, kafka = found.direct["waves"], found.kafka["waves"]
    assert direct.address == "https://firn-broker-waves-bootstrap.firn-system.svc:9095"
    assert (direct.token_path, direct.listener_ca_path) == (kafka.sasl_token_path, kafka.ca_path)
    assert "firn-direct-reads-waves" not in secrets(rendered(config))
    opening = settings.group_settings(config, "default", opening=frozenset({"waves"}))
    assert opening.direct == {}, "until the brokers have the secure listener, the driver has no token"


def test_a_driver_without_direct_reads_has_the_template_of_the_release_before() -> None:
    config = gen.config(profiles={"classic": {}, "waves": gen.diskless()})
    document = settings.group_settings(config, "default").model_dump(mode="json")
    assert "direct" not in document
    assert (
        children.digest(document)
        == rendered(config)["spec"]["template"]["metadata"]["annotations"][stateful_set.SETTINGS_HASH]
    )


def test_settings_with_direct_reads_read_back_unchanged() -> None:
    config = gen.config(profiles={"classic": {}, "waves": gen.diskless(directReads=READS)})
    contents = settings.group_settings(config, "default")
    assert GroupSettings.model_validate_json(contents.model_dump_json()) == contents


def test_settings_name_tokens_only_if_a_profile_has_them() -> None:
    """Otherwise an upgrade of the operator would restart every driver."""
    document = settings.group_settings(gen.config(profiles={"classic": {}, **SECURE}), "default").model_dump()
    assert "sasl_tokens" not in document["kafka"]["classic"] | document["kafka"]["secure"]


def test_settings_have_the_kubernetes_cluster_and_its_predecessors() -> None:
    contents = settings.group_settings(gen.config(formerClusters=["cluster-0"]), "default", "cluster-1")
    assert (contents.cluster, contents.former_clusters) == ("cluster-1", ("cluster-0",))


def test_the_settings_file_reads_back_unchanged() -> None:
    contents = settings.group_settings(gen.config(), "default")
    data = settings.build(contents, OWNER, group_labels("default"))["data"]
    assert GroupSettings.model_validate_json(data["group.json"]) == contents


def test_every_secret_is_mounted_at_its_path() -> None:
    spec = pod_spec(rendered(gen.config(profiles={"classic": {}, **SECURE})))
    mounted = {mount["mountPath"]: mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for secret in ("ca", "kafka", "firn-postgres"):
        source = volumes[mounted[f"{names.SECRETS_PATH}/{secret}"]]["secret"]
        assert (source["secretName"], source["optional"]) == (secret, True), (
            "a missing Secret stops only topics that need it"
        )


def test_settings_have_the_image_and_account_of_executors() -> None:
    groups = {"default": {"executors": {"instances": 2}, "image": {"image": "spark:canary"}}}
    contents = settings.group_settings(gen.config(groups=groups), "default")
    assert (contents.executor_image, contents.service_account) == ("spark:canary", "firn-ingest")
    assert contents.executors is not None
    assert contents.executors.instances == 2
    assert settings.group_settings(gen.config(), "default").executor_image is None


def test_a_group_has_one_pod_while_a_topic_uses_it() -> None:
    assert rendered()["spec"]["replicas"] == 1
    assert rendered(in_use=False)["spec"]["replicas"] == 0
    assert children.template_hash(rendered()) == children.template_hash(rendered(in_use=False))


def test_the_service_has_the_ports_that_executors_and_operator_look_for() -> None:
    ports = {
        port["name"]: port["port"] for port in service.build("default", OWNER, group_labels("default"))["spec"]["ports"]
    }
    assert ports == {"progress": 8080, "driver": 7078, "block-manager": 7079}


def test_a_job_contract_is_not_selected_as_a_driver() -> None:
    assert group_labels("default").keys() - {names.LABEL_GROUP}, "job contracts have the label of the group, too"


def changed(**changes: Any) -> Config:
    return gen.config(**changes)


@pytest.mark.parametrize(
    ("config", "restarts"),
    [
        pytest.param(gen.config(), False, id="an equal configuration"),
        pytest.param(gen.config(workers=3, resync="1m", logLevel="debug"), False, id="the operator's own settings"),
        pytest.param(gen.config(groups={"default": {}, "big": {"memory": "9Gi"}}), False, id="another group"),
        pytest.param(gen.config(groups={"default": {"namespaces": ["demo"]}}), False, id="the namespaces of a profile"),
        pytest.param(gen.config(profiles={"classic": {"heap": "2g"}, "outside": {"bootstrapServers": "kafka.example:9092"}}), False,
                     id="the heap of brokers"),
        pytest.param(gen.config(groups={"default": {"memory": "4Gi"}}), True, id="memory"),
        pytest.param(gen.config(groups={"default": {"cores": 4}}), True, id="cores"),
        pytest.param(gen.config(groups={"default": {"sparkConf": {"a": "b"}}}), True, id="Spark's settings"),
        pytest.param(gen.config(images={"spark": {"image": "firn-spark:2"}, "kafka": {"image": "kafka:4.2"}}), True, id="the image"),
        pytest.param(gen.config(profiles={"classic": {}, **SECURE}), False, id="a profile that no topic uses"),
    ],
)  # fmt: skip
def test_a_setting_restarts_the_driver_only_if_it_must(config: Config, restarts: bool) -> None:
    used: frozenset[Need] = frozenset({("profiles", "classic"), ("catalogs", "lake")})
    after, before = rendered(config, needed=used), rendered(needed=used)
    assert (children.template_hash(after) != children.template_hash(before)) == restarts


async def test_topics_join_and_leave_without_a_restart() -> None:
    world = World()
    world.cluster.create(gen.topic("first"))
    await world.settle()
    before = dict(world.cluster.pod_states)
    world.cluster.create(gen.topic("second", schema=None))
    world.cluster.create(gen.topic("third", table={"formatVersion": 3}))
    await world.settle()
    world.cluster.remove("first")
    await world.settle()
    assert world.cluster.pod_states == before


async def test_the_pod_ends_with_the_last_topic_and_returns_with_the_next() -> None:
    world = World()
    world.cluster.create(gen.topic())
    await world.settle()
    world.cluster.remove("flights")
    await world.settle()
    assert "firn-ingest-default-0" not in world.cluster.pod_states
    world.cluster.create(gen.topic())
    await world.settle()
    assert "firn-ingest-default-0" in world.cluster.pod_states
    assert world.conditions()["Ready"] == ("True", "AllReady")


async def test_an_unused_group_has_no_objects() -> None:
    world = World()
    world.cluster.create(gen.topic())
    await world.settle()
    assert not [place for place in world.cluster.objects if place[3] == "firn-ingest-big"]


def of_group(world: World, group: str) -> set[str]:
    return {place[1] for place in world.cluster.objects if place[3] == names.ingestion(group)}


async def in_group_big(**spec: Any) -> World:
    """Return a world with a topic in group big and one in group default, and an operator whose configuration lacks
    big."""
    world = World()
    world.cluster.create(gen.topic("kept"))
    world.cluster.create(gen.topic(ingestion={"group": "big"}, **spec))
    await world.settle()
    world.start(gen.config(groups={"default": {}}))
    return world


async def test_a_removed_group_ends_before_the_objects_of_its_executors() -> None:
    world = await in_group_big()
    await world.operator_only()
    assert of_group(world, "big") == {"Service", "ConfigMap"}
    await world.settle()
    assert of_group(world, "big") == set()
    assert of_group(world, "default") == {"StatefulSet", "Service", "ConfigMap"}
    assert [pod_name for pod_name in world.cluster.pod_states if "ingest" in pod_name] == ["firn-ingest-default-0"]
    assert world.conditions()["SpecValid"] == ("False", "GroupNotFound")
    assert world.cluster.contracts().keys() >= {UID}, "the contract waits for an existing group"
    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(ingestion={"group": "default"}))
    await world.settle()
    assert world.conditions()["Ready"] == ("True", "AllReady")


async def test_data_is_dropped_after_the_driver_has_ended() -> None:
    world = await in_group_big(deletionPolicy={"topic": "Delete", "table": "Delete"})
    world.cluster.remove("flights")
    for _ in range(5):
        await world.operator_only()
        world.clock.advance(5.0)
    assert "lake.demo.flights" in world.tables.tables
    await world.settle()
    assert "lake.demo.flights" not in world.tables.tables


async def test_new_settings_restart_the_driver() -> None:
    world = World()
    world.cluster.create(gen.topic())
    await world.settle()
    before = world.cluster.pod_states["firn-ingest-default-0"].template_hash
    world.start(gen.config(groups={"default": {"cores": 3}, "big": {}}))
    await world.settle()
    assert world.cluster.pod_states["firn-ingest-default-0"].template_hash != before
    assert json.loads(_data(world, "firn-ingest-default")["group.json"])["cores"] == 3


def _data(world: World, name: str) -> dict[str, str]:
    data: dict[str, str] = world.cluster.objects["v1", "ConfigMap", "firn-system", name]["data"]
    return data


# Health

NOW, STALE = 1000.0, 15.0


def problem_of(pods: list[PodState], age: float | None) -> Reason | None:
    document = GroupProgress(group="default", started=1.0)
    read = None if age is None else (document, NOW - age)
    observed = ObservedGroup("default", "n", image="i", pods=pods, report=read, now=NOW, stale_after=STALE)
    return health.group_health(observed).problem


@pytest.mark.parametrize(
    ("pods", "age", "reason"),
    [
        pytest.param([gen.pod()], 3.0, None, id="ready and reporting"),
        pytest.param([gen.pod(ready=False)], 3.0, None, id="reporting, and not ready"),
        pytest.param([gen.pod()], 60.0, Reason.BACKING_OFF, id="ready and silent"),
        pytest.param([gen.pod()], None, Reason.BACKING_OFF, id="ready without any report"),
        pytest.param([gen.pod(ready=False)], None, Reason.STARTING, id="starting"),
        pytest.param([], 3.0, Reason.STARTING, id="no pod, after earlier reports"),
        pytest.param([gen.broken_pod()], 3.0, Reason.STARTING, id="not running, after earlier reports"),
        pytest.param([gen.pod(deleting=True)], 3.0, Reason.STARTING, id="being deleted"),
    ],
)
def test_the_health_of_a_group_has_its_reason(pods: list[PodState], age: float | None, reason: Reason | None) -> None:
    assert problem_of(pods, age) is reason


@pytest.mark.parametrize(
    ("group", "mebibytes"),
    [
        pytest.param({}, 128, id="the default has room for the maximum"),
        pytest.param({"cores": 2}, 70, id="two tasks share it"),
        pytest.param({"cores": 2, "heap": "512m"}, 110, id="the rest beside the heap"),
        pytest.param({"cores": 8}, 16, id="never less than files need"),
        pytest.param({"cores": 8, "memory": "16Gi"}, 128, id="a large pod"),
        pytest.param({"memory": "256Mi"}, 16, id="less memory than heap"),
        pytest.param({"cores": 8, "executors": {"instances": 2}}, 128, id="executors: the driver's cores do not count"),
        pytest.param({"executors": {"instances": 2, "cores": 3}}, 30, id="tasks of one executor"),
        pytest.param({"executors": {"instances": 2, "overhead": "768m"}}, 110, id="the memory of an executor beside its heap"),
    ],
)  # fmt: skip
def test_the_buffer_of_a_task_follows_the_memory_of_the_pod(group: dict[str, Any], mebibytes: int) -> None:
    contents = settings.group_settings(gen.config(groups={"default": group}), "default")
    assert contents.buffer_bytes // 2**20 == mebibytes


def test_the_out_of_memory_message_explains_the_arithmetic() -> None:
    group = gen.config(groups={"default": {"memory": "512Mi", "heap": "400m"}}).groups["default"]
    assert "512Mi" in settings.memory_hint(group)
    assert settings.memory_hint(gen.config().groups["default"]) == ""


@pytest.mark.parametrize(
    ("pods", "uids", "read_after", "released"),
    [
        pytest.param([], None, 0.0, True, id="no pod"),
        pytest.param([gen.broken_pod()], None, 0.0, True, id="a pod that does not run"),
        pytest.param([gen.pod()], [], 5.0, True, id="the driver no longer names it"),
        pytest.param([gen.pod()], ["u"], 5.0, False, id="the driver still names it"),
        pytest.param([gen.pod()], [], 1.0, False, id="a report too early to count"),
        pytest.param([gen.pod()], None, 0.0, False, id="no report"),
    ],
)
def test_the_release_of_a_topic_follows_pods_and_progress(
    pods: list[PodState], uids: list[str] | None, read_after: float, released: bool
) -> None:
    document = None
    if uids is not None:
        topics = [gen.progress(uid) for uid in uids]
        document = (GroupProgress(group="g", started=1.0, topics=topics), NOW + read_after)
    assert health.released("u", pods, document, NOW, 3.0) is released


Change = Callable[[World], None]


async def test_a_missing_executor_is_reported_and_the_driver_still_trusted() -> None:
    world = World(gen.config(groups={"default": {"executors": {"instances": 1}}, "big": {}}))
    world.cluster.create(gen.topic())
    await world.settle()
    assert world.conditions()["IngestionReady"] == ("False", "Starting")
    labels = {**names.EXECUTOR_ROLE, names.LABEL_GROUP: "default"}
    waits = gen.broken_pod("exec-1", labels=labels, unschedulable="0/1 nodes are available: 1 Insufficient cpu.")
    world.cluster.pod_states[waits.name] = waits
    world.driver.report_fields[UID] = {"state": "Running", "lag_records": 5, "lag_seconds": 1e4, "last_commit": 1.0}
    await world.settle()
    assert world.conditions()["IngestionReady"] == ("False", "Unschedulable")
    assert world.conditions()["Fresh"] == ("False", "Behind")
    world.cluster.pod_states[waits.name] = gen.pod(waits.name, labels=labels)
    await world.settle()
    assert world.conditions()["Ready"] == ("True", "AllReady")


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (gen.broken_pod(waiting_reason="ErrImagePull"), "ImagePullFailed"),
        (gen.broken_pod(unschedulable="0/1 nodes are available: 1 Insufficient cpu."), "Unschedulable"),
        (gen.broken_pod(last_exit_code=137, last_exit_reason="OOMKilled", restarts=1), "OutOfMemory"),
        (gen.broken_pod(last_exit_code=1, restarts=2), "BackingOff"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_topics_report_a_broken_driver_until_it_recovers(broken: PodState, reason: str) -> None:
    world = World()
    world.cluster.create(gen.topic())
    await world.settle()
    well = world.cluster.pod_states["firn-ingest-default-0"]
    world.pods_run = False
    world.cluster.pod_states[well.name] = gen.broken_pod(
        **{key: getattr(broken, key) for key in ("waiting_reason", "unschedulable", "last_exit_code", "last_exit_reason", "restarts")},
        labels=well.labels, template_hash=well.template_hash,
    )  # fmt: skip
    await world.settle()
    assert world.conditions()["IngestionReady"] == ("False", reason)
    assert world.conditions()["Ready"][0] == "False"
    assert world.conditions()["Fresh"] == ("Unknown", "Unknown")
    world.cluster.pod_states[well.name] = well
    await world.settle()
    assert world.conditions()["Ready"] == ("True", "AllReady")
