"""Packs due tables into runs, and builds the ConfigMap and Job of a run. Pure.

Image contract: an entry point that runs its arguments, with ``firn-maintain FILE`` on PATH.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from firn.api.v1alpha1 import CompactionPolicy, RetentionPolicy
from firn.model import durations, names, quantities
from firn.model.config import Config, KafkaProfile, security_references
from firn.model.errors import ExitCode
from firn.model.jobs import TableTarget
from firn.model.maintenance import AuditWork, MaintenanceRun, ReplayWork, RetentionWork, TableWork
from firn.tables import table_properties
from firn_controllers import children
from firn_controllers.cache.policies import LONGEST_REQUEST, PolicyEntry
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.ingestion_group.settings import catalog_connection, kafka_connection, registry_connection
from firn_controllers.ingestion_group.stateful_set import UID
from firn_controllers.policies.due import Due
from firn_controllers.policies.runs import COMPONENT_RUN, MARK, MarkedTable, RunMark
from firn_controllers.ports import Manifest, TableDebt

LARGE = "large"
GRACE_SECONDS = 60
"""Seconds after ``run.deadline``, from the creation of the run, until Kubernetes ends a run that has not ended itself."""


AUDITED_SHARE = 10
"""The columns of partition and offset have at most this part of a file's bytes."""


@dataclass(frozen=True, slots=True)
class DueTable:
    """A table that is due."""

    topic: TopicEntry
    target: TableTarget
    table_uuid: str
    debt: TableDebt | None
    due: Due
    last_run: str
    """Name of the table's last run; empty without one."""
    replay: ReplayWork | None = None
    """The work of a DeadLetterReplay."""
    sharers: tuple[str, ...] = ()
    """Names of the other IcebergTopics of a shared table, whose dead letters the run works on, too."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """The tables of a run, and the size of its pod."""

    tables: tuple[DueTable, ...]
    size: str
    room: int = 0
    """Number of further small tables that could share the run."""


def planned_runs(policy: PolicyEntry, waiting: Sequence[DueTable], config: Config, free: int) -> list[PlannedRun]:
    """Pack due tables into at most ``free`` runs: requested tables first, then those that have waited longest.

    Small tables share a run. A large table has its own.
    """
    assert policy.terms is not None
    maintenance = config.maintenance
    limit = quantities.size(maintenance.large_table)
    line = sorted(waiting, key=lambda table: (not table.due.requests, table.due.since, table.topic.name))
    runs: list[PlannedRun] = []
    small: list[DueTable] = []
    place = 0
    for table in line:
        if _bytes(policy, table) >= limit:
            runs.append(PlannedRun((table,), LARGE if LARGE in maintenance.sizes else policy.terms.size))
            continue
        if not small:
            place = len(runs)
        small.append(table)
        if len(small) == maintenance.tables_per_run:
            runs.insert(place, PlannedRun(tuple(small), policy.terms.size))
            small = []
    if small:
        runs.insert(place, PlannedRun(tuple(small), policy.terms.size, maintenance.tables_per_run - len(small)))
    return runs[: max(0, free)]


def _bytes(policy: PolicyEntry, table: DueTable) -> int:
    """Return the bytes that a run has to read of the table at most."""
    if table.debt is None:
        return 0
    if policy.kind == "Audit":
        return table.debt.data_bytes // AUDITED_SHARE
    resource = policy.resource
    if isinstance(resource, CompactionPolicy):
        everything = resource.work(everything=table.due.everything).everything
        return table.debt.data_bytes if everything else table.debt.due_bytes
    return table.debt.data_bytes if resource is not None and resource.spec.rows is not None else 0


def run_name(policy: PolicyEntry, batch: PlannedRun) -> str:
    """Return the name of a run, which is the same for the same tables, slot and requests after the same runs.

    So no run is created twice. A run with other work has another name, because the run that was stopped may still
    exist.
    """
    tables = sorted(
        (table.topic.uid, str(table.due.slot), sorted(table.due.requests.items()), table.last_run)
        for table in batch.tables
    )
    return names.run(policy.name[1], children.digest([policy.uid, work_hash(policy), tables])[:10])


def contract(policy: PolicyEntry, batch: PlannedRun, config: Config, now: datetime) -> MaintenanceRun:
    """Return the contract of a run that is created ``now``.

    All attempts share one deadline, waiting for node and image included, as they do in the Job. Kubernetes would end an
    attempt with a later deadline before it could report.
    """
    terms = policy.terms
    assert terms is not None
    size = config.maintenance.sizes[batch.size]
    image = config.maintenance.image or config.images.spark
    tables = []
    for table in batch.tables:
        namespace, topic = table.topic.name
        tables.append(
            TableWork(
                uid=table.topic.uid,
                namespace=namespace,
                name=topic,
                table=table.target,
                table_uuid=table.table_uuid,
                sharers=table.sharers,
                **_work(policy, table),
            )
        )
    used = sorted({table.target.catalog for table in batch.tables})
    profiles = sorted({work.audit.profile for work in tables if work.audit is not None})
    registries = _registries(batch, config)
    deadline_ms = round(terms.deadline.total_seconds() * 1000)
    return MaintenanceRun(
        name=run_name(policy, batch),
        namespace=config.namespace,
        tables=tuple(tables),
        catalogs={name: catalog_connection(config.catalogs[name]) for name in used},
        kafka={
            name: kafka_connection(
                name, config.profiles[name], config.namespace, credential=config.driver_credential(name, None)
            )
            for name in profiles
        },
        registries={name: registry_connection(config.registries[name]) for name in registries},
        salts={name: config.salts[name].value.path for name in _salts(batch, config)},
        deadline_ms=deadline_ms,
        until_ms=int(now.timestamp() * 1000) + deadline_ms,
        cores=size.cores,
        heap=size.heap,
        executors=size.executors,
        executor_image=image.image if size.executors else None,
        executor_pull_policy=image.pull_policy,
        executor_storage=size.ephemeral_storage if size.executors else None,
        executor_storage_request=size.ephemeral_storage_request if size.executors else None,
        pull_secrets=tuple(config.images.pull_secrets) if size.executors else (),
        service_account=config.maintenance.service_account,
        spark_conf=config.maintenance.spark_conf,
    )


def _registries(batch: PlannedRun, config: Config) -> list[str]:
    """Return the schema registries that the replays of a run need, as far as they are configured."""
    named = {name for table in batch.tables if table.replay is not None for name in table.replay.job.registries}
    return sorted(named & config.registries.keys())


def _salts(batch: PlannedRun, config: Config) -> list[str]:
    """Return the salts that the replays of a run need, as far as they are configured."""
    schemas = [table.replay.job.record_schema for table in batch.tables if table.replay is not None]
    return sorted({name for schema in schemas for name in schema.salts} & config.salts.keys())


def _work(policy: PolicyEntry, table: DueTable) -> dict[str, Any]:
    """Return the work on one table, by its key in the contract."""
    if table.replay is not None:
        return {"replay": table.replay}
    match policy.resource:
        case CompactionPolicy() as compaction:
            return {"compaction": compaction.work(everything=table.due.everything)}
        case RetentionPolicy() as retention:
            return {"retention": _retention(retention, table.target)}
    assert table.topic.resource is not None
    routes = table.topic.resource.spec.routes
    others = [table.target.model_copy(update={"name": each.name}) for each in routes.tables] if routes else ()
    return {
        "audit": AuditWork(profile=table.topic.profile, topic=table.topic.resource.topic_name, others=tuple(others))
    }


def _retention(resource: RetentionPolicy, target: TableTarget) -> RetentionWork | None:
    """Return the work of a RetentionPolicy on one table.

    The number of metadata files is a property of the table, which a run sets. If the topic's spec sets it, the spec
    takes precedence, because the operator would set it back.
    """
    work = resource.work()
    if work is not None and {table_properties.CLEAN, table_properties.KEEP} & target.properties.keys():
        return work.model_copy(update={"metadata_keep": None})
    return work


def policy_labels(policy: PolicyEntry) -> dict[str, str]:
    """Return the labels of the runs of a policy of this name, whatever its uid."""
    namespace, named = policy.name
    return run_labels(policy.kind, namespace, named)


def run_labels(kind: str, namespace: str, named: str) -> dict[str, str]:
    """Return the labels of the runs of a policy."""
    return {
        children.COMPONENT: COMPONENT_RUN,
        names.LABEL_POLICY_KIND: kind,
        names.LABEL_POLICY_NAMESPACE: namespace,
        names.LABEL_POLICY: named,
    }


def config_map(policy: PolicyEntry, run: MaintenanceRun, owner: children.Owner) -> Manifest:
    """Build the ConfigMap with the run's contract."""
    labels = {**policy_labels(policy), names.LABEL_RUN: run.name}
    data = {names.RUN_PATH.rsplit("/", 1)[1]: run.model_dump_json()}
    return children.child_object("v1", "ConfigMap", run.name, owner, labels, data=data)


def run_mode(policy: PolicyEntry, batch: PlannedRun) -> Literal["DryRun", "Enforce"] | None:
    """Return the mode of a run; None for a run that deletes no data, whatever its policy says."""
    replays = [table.replay for table in batch.tables if table.replay is not None]
    if replays:
        return "Enforce" if replays[0].enforce else "DryRun"
    return policy.resource.spec.mode if isinstance(policy.resource, RetentionPolicy) else None


def work_hash(policy: PolicyEntry) -> str:
    """Return a hash of the data that runs of a RetentionPolicy may delete; empty for a CompactionPolicy."""
    if not isinstance(policy.resource, RetentionPolicy):
        return ""
    wanted = policy.resource.work()
    return children.digest(wanted.model_dump(mode="json")) if wanted is not None else ""


def run_mark(policy: PolicyEntry, batch: PlannedRun) -> RunMark:
    """Return the annotation by which the operator recognises the run later."""
    return RunMark(
        kind=policy.kind,
        mode=run_mode(policy, batch),
        work=work_hash(policy),
        generation=policy.generation,
        tables=tuple(
            MarkedTable(uid=table.topic.uid, slot=table.due.slot, requests=dict(table.due.requests))
            for table in batch.tables
        ),
    )


def job(policy: PolicyEntry, batch: PlannedRun, run: MaintenanceRun, config: Config, owner: children.Owner) -> Manifest:
    """Build the run's Job.

    A pod that ends with an exit code that no retry cures fails the Job. A pod that is lost with its node does not
    count.
    """
    terms = policy.terms
    assert terms is not None
    labels = {**policy_labels(policy), names.LABEL_RUN: run.name, names.LABEL_POLICY_UID: policy.uid}
    hopeless = [int(ExitCode.CONFIGURATION), int(ExitCode.CORRUPT)]
    spec = {
        "backoffLimit": terms.retries,
        "activeDeadlineSeconds": math.ceil(terms.deadline.total_seconds()) + GRACE_SECONDS,
        "ttlSecondsAfterFinished": durations.milliseconds(config.maintenance.ttl) // 1000,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": "run", "operator": "In", "values": hopeless},
                },
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
            ]
        },
        "template": _template(batch.size, run, config, labels),
    }
    annotations = {MARK: run_mark(policy, batch).model_dump_json(exclude_defaults=True)}
    return children.child_object("batch/v1", "Job", run.name, owner, labels, annotations=annotations, spec=spec)


def _template(size_name: str, run: MaintenanceRun, config: Config, labels: dict[str, str]) -> Manifest:
    maintenance = config.maintenance
    size = maintenance.sizes[size_name]
    image = maintenance.image or config.images.spark
    secrets = {reference.secret for name in run.catalogs for reference in config.catalogs[name].references()}
    authorities = [authority for name in run.catalogs for authority in config.catalogs[name].authorities]
    for name in run.kafka:
        profile = config.profiles[name]
        if isinstance(profile, KafkaProfile):
            security = profile.security_with(config.driver_credential(name, None))
            secrets |= {reference.secret for reference in security_references(security)}
    for name in run.registries:
        secrets |= {reference.secret for reference in config.registries[name].references()}
        authorities += config.registries[name].authorities
    secrets |= {config.salts[name].value.secret for name in run.salts}
    volumes, mounts = children.secret_volumes(sorted(secrets))
    access = {name: access for name, access in config.closed_profiles.items() if name in run.kafka}
    access_volumes, access_mounts = children.access_volumes(access)
    trust_volumes, trust_mounts = children.trust_volumes(authorities)
    volumes, mounts = [*volumes, *access_volumes, *trust_volumes], [*mounts, *access_mounts, *trust_mounts]
    amounts = {"requests": {"cpu": size.cpu, "memory": size.memory}, "limits": {"memory": size.memory}}
    resources = children.with_ephemeral_storage(amounts, size.ephemeral_storage_request, size.ephemeral_storage)
    container = {
        "name": "run",
        "image": image.image,
        "imagePullPolicy": image.pull_policy,
        "args": ["firn-maintain", names.RUN_PATH],
        "env": _environment(maintenance.environment),
        "resources": resources,
        # A run that cannot pack a report leaves the last lines of its log there.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": children.container_security(),
        "volumeMounts": [
            {"name": "run", "mountPath": names.RUN_PATH.rsplit("/", 1)[0], "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *mounts,
        ],
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "serviceAccountName": maintenance.service_account,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 60,
        "securityContext": children.pod_security(UID),
        **children.scheduling(maintenance.scheduling),
        **children.pull_secrets(config.images.pull_secrets),
        "containers": [container],
        "volumes": [
            {"name": "run", "configMap": {"name": run.name}},
            children.scratch_volume(resources),
            *volumes,
        ],
    }
    return children.pod_template(labels, {}, spec)


def _environment(more: dict[str, str]) -> list[dict[str, Any]]:
    fields = {"POD_NAME": "metadata.name", "POD_NAMESPACE": "metadata.namespace", "POD_IP": "status.podIP"}
    ours = {"HOME": "/tmp", "SPARK_LOCAL_DIRS": "/tmp"} | more
    return [
        *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
        *({"name": name, "value": value} for name, value in sorted(ours.items())),
    ]


def run_requests(policy: PolicyEntry, topic: TopicEntry) -> dict[str, str]:
    """Return the values of ``firn.dev/run-now`` that concern a topic. They request no audit."""
    if policy.kind == "Audit":
        return {}
    mine = topic.resource.metadata.annotations.get(names.RUN_NOW) if topic.resource else None
    given = {"topic": mine[:LONGEST_REQUEST] if mine else None, "policy": policy.request}
    return {who: value for who, value in given.items() if value}
