"""The pods that the operator renders, and the rules that all pods of Firn obey."""

from typing import Any

import yaml

from firn.model import names
from firn.model.config import Config, KafkaProfile
from firn.model.jobs import GroupSettings, TableTarget
from firn_controllers.cache.policies import policy_entry
from firn_controllers.children import Owner
from firn_controllers.fleet import builders, kinds
from firn_controllers.fleet.kafka import metadata_version, token_keys
from firn_controllers.fleet.kafka.layout import KafkaFleet
from firn_controllers.iceberg_topic import plan
from firn_controllers.ingestion_group import service, settings
from firn_controllers.ingestion_group import stateful_set as driver
from firn_controllers.ingestion_group.layout import group_labels
from firn_controllers.policies import plan as policy_plan
from firn_controllers.policies.due import Due
from firn_controllers.policies.plan import DueTable, PlannedRun
from firn_controllers.ports import Manifest
from firn_spark import session
from tests import gen

NAMESPACE = "firn-system"
OWNER = Owner(NAMESPACE, "3f0c1d0e-6f2b-4d5e-9c64-0123456789ab")


def config_with_options(**changes: Any) -> Config:
    """Return a configuration with options that add fields to the rendered objects, and these changes."""
    options: dict[str, Any] = {
        "images": {
            "spark": {"image": "firn-spark:1"},
            "kafka": {"image": "kafka:4.2", "pullPolicy": "Always"},
            "broker": {"image": "firn-broker:1"},
            "pullSecrets": ["registry"],
        },
        "profiles": {
            "classic": {
                "external": {"host": "h", "port": 30500},
                "config": {"num.io.threads": "9"},
                "resources": {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "2Gi"}},
                "storage": {"size": "1Gi", "storageClassName": "fast"},
                "metadataVersion": "4.2",
                "scheduling": {
                    "nodeSelector": {"disk": "fast"},
                    "tolerations": [{"key": "kafka", "operator": "Exists"}],
                    "priorityClassName": "system-cluster-critical",
                },
            },
            "waves": gen.diskless(
                external={"host": "h", "port": 30600},
                environment={"A": "b"},
                scheduling={"nodeSelector": {"disk": "none"}},
            ),
        },
        "groups": {"default": {"executors": {"instances": 1}, "environment": {"A": "b"}}},
        "maintenance": {
            "sizes": {"small": {}, "large": {"executors": {"instances": 2}}},
            "environment": {"A": "b"},
            "scheduling": {"nodeSelector": {"disk": "fast"}},
        },
    }
    return gen.config(**{**options, **changes})


def children(config: Config | None = None) -> list[Manifest]:
    """Render an object of each kind and purpose."""
    config = config or config_with_options()
    return [*children_of_fleets(config), *children_of_a_group(config), *children_of_jobs(config)]


def children_of_fleets(config: Config) -> list[Manifest]:
    fleet = kinds.managed_fleet(config, "classic", OWNER, None)
    assert isinstance(fleet, KafkaFleet)
    waves = kinds.managed_fleet(config, "waves", OWNER, None)
    clients = {"authentication": ["OAuth", "Certificate"], "clientCa": {"secret": "sealed-clients"}}
    access = {"certificate": {"secret": "sealed-tls"}, "issuer": "https://cluster", **clients}
    profile = KafkaProfile.model_validate({"access": access, "resources": {"limits": {"memory": "2Gi"}}})
    with_sealed = config.model_copy(update={"profiles": {**config.profiles, "sealed": profile}})
    sealed = kinds.managed_fleet(with_sealed, "sealed", OWNER, None)
    assert isinstance(sealed, KafkaFleet)
    return [
        kinds.config_map(sealed),
        token_keys.build(sealed, "{}"),
        builders.headless_service(sealed),
        builders.bootstrap_service(sealed),
        kinds.stateful_set(sealed, 3),
        metadata_version.build(sealed, "4.2"),
        kinds.config_map(fleet),
        builders.headless_service(fleet),
        builders.bootstrap_service(fleet),
        *builders.external_services(fleet),
        builders.disruption_budget(fleet),
        kinds.stateful_set(fleet, 3),
        metadata_version.build(fleet, "4.2"),
        kinds.config_map(waves),
        builders.headless_service(waves),
        builders.bootstrap_service(waves),
        *builders.external_services(waves),
        builders.disruption_budget(waves),
        kinds.stateful_set(waves, 3),
    ]


def children_of_a_group(config: Config) -> list[Manifest]:
    contents = settings.group_settings(config, "default")
    labels = group_labels("default")
    return [
        settings.build(contents, OWNER, labels),
        service.build("default", OWNER, labels),
        driver.build(config, contents, OWNER, labels, in_use=True),
    ]


def children_of_jobs(config: Config) -> list[Manifest]:
    """Render the contract of a topic, and the contract and Job of a maintenance run."""
    observed = gen.observed(gen.topic(config={"retention.ms": "1"}), config)
    assert isinstance(observed.target, TableTarget)
    maintained = policy_entry(gen.policy("nightly", run={"size": "large"}), config)
    due = Due(gen.NOW, "it was asked for", None, {"topic": "1"})
    batch = PlannedRun((DueTable(observed.entry, observed.target, "uuid", None, due, ""),), "large")
    run = policy_plan.contract(maintained, batch, config, gen.NOW)
    job = plan.contract(observed, "topic-id", table_agreed=True, topic_origin="Created", table_origin="Adopted")
    assert job is not None
    return [
        plan.config_map(job, OWNER),
        policy_plan.config_map(maintained, run, OWNER),
        policy_plan.job(maintained, batch, run, config, OWNER),
    ]


def executor(given: GroupSettings) -> Manifest:
    """Return an executor pod: the driver's template with the fields that Spark adds in client mode."""
    pod: Manifest = yaml.safe_load(session.executor_template(given))
    name = f"{given.application}-1a2b3c-exec-1"
    labels = {
        **names.EXECUTOR_ROLE,
        **given.executor_labels,
        names.LABEL_MANAGED_BY: names.MANAGED_BY,
        "spark-exec-id": "1",
    }
    pod["metadata"] = {"name": name, "labels": labels}
    pod["spec"] |= {
        "hostname": name,
        "restartPolicy": "Never",
        "serviceAccountName": given.service_account,
        "imagePullSecrets": [{"name": secret} for secret in given.pull_secrets],
        "terminationGracePeriodSeconds": 10,
    }
    (container,) = pod["spec"]["containers"]
    container |= {
        "image": given.executor_image,
        "args": ["executor"],
        "env": [{"name": "SPARK_EXECUTOR_POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "ports": [{"name": "blockmanager", "containerPort": session.BLOCK_MANAGER_PORT}],
    }
    container["resources"]["requests"] |= {"cpu": "500m", "memory": "3Gi"}
    container["resources"]["limits"] |= {"memory": "3Gi"}
    return pod


def violations(pod: Manifest) -> list[str]:
    """Return violations of PodSecurity `restricted`, writable root file systems, and missing limits of memory and disk space.

    Source: kubernetes.io/docs/concepts/security/pod-security-standards."""
    problems = [f"{key} is set" for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in pod.get("volumes", []):
        problems += [f"volume {volume['name']} is {kind}" for kind in set(volume) - {"name"} - allowed]
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            problems.append(f"volume {volume['name']} has no sizeLimit")
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        where = f"container {container['name']}: "
        problems += [where + problem for problem in _of_container(container, pod.get("securityContext", {}))]
    return problems


def _of_container(container: Manifest, shared: Manifest) -> list[str]:
    own = container.get("securityContext", {})
    merged = {**shared, **own}
    capabilities = own.get("capabilities", {})
    resources = container.get("resources", {})
    rules = {
        "may run as root": merged.get("runAsNonRoot") is not True or merged.get("runAsUser") == 0,
        "no seccomp profile": merged.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"),
        "privilege escalation": own.get("allowPrivilegeEscalation") is not False,
        "privileged": bool(own.get("privileged")),
        "capabilities": capabilities.get("drop") != ["ALL"] or set(capabilities.get("add", [])) - {"NET_BIND_SERVICE"},
        "writable root file system": own.get("readOnlyRootFilesystem") is not True,
        "no limit of memory": "memory" not in resources.get("limits", {}),
        "no limit of disk space": "ephemeral-storage" not in resources.get("limits", {}),
        "no request of disk space": "ephemeral-storage" not in resources.get("requests", {}),
        "host port": any("hostPort" in port for port in container.get("ports", [])),
    }
    return [problem for problem, violated in rules.items() if violated]
