"""``firn recovery-topics``: prints the topics of a diskless profile for ``firn-broker fsck --recover --topics``.

A new coordinator knows no topics. IcebergTopics have their names, ids and configs, and tables have the offsets that have landed. In a new
Kubernetes cluster, IcebergTopics have no status, and the bucket no records. Then tables have the ids and the records too.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from pyiceberg.table import Table

from firn.api.v1alpha1 import IcebergTopic, RetentionPolicy
from firn.model import names
from firn.model.config import Config
from firn.model.errors import InvalidSpecError, UnavailableError
from firn.model.jobs import SchemaFormat
from firn.model.progress import AuditFrom
from firn.tables.rows import record_columns
from firn_controllers.policies.log_retention import configs_of
from firn_operator.adapters.iceberg.tables import landed_snapshot
from firn_operator.cli.audit import is_shared, landed_offsets, landed_topic
from firn_operator.cli.lake import translating

Manifest = dict[str, Any]

TOO_MUCH_MEMORY = "the list of topics needs more memory than the command has: run firn recovery-topics with --config on a machine with more memory"

UNLIMITED = {"retention.ms": "-1", "retention.bytes": "-1"}
"""Configs of a topic whose retention is not known."""
_NAMED = " and ".join(f"{key}={value}" for key, value in UNLIMITED.items())


def known_topics(
    config: Config,
    profile: str,
    manifests: Sequence[Manifest],
    policy_of: Callable[[Manifest], Manifest | None],
    report: Callable[[str], None],
    look_up: Callable[[str], Table | None] | None,
) -> dict[str, Any]:
    """Return the content of the file. ``policy_of`` reads the RetentionPolicy of a topic, ``look_up`` a table unless it is None, and ``report``
    shows what is left out.

    Raises InvalidSpecError if the configuration has no such profile, and UnavailableError if a catalog cannot be read.
    """
    _check_profile(config, profile)
    topics = []
    for manifest in manifests:
        status, meta = manifest.get("status") or {}, manifest["metadata"]
        if status.get("profile") != profile or (manifest.get("spec") or {}).get("route") is not None:
            continue
        place = f"{meta['namespace']}/{meta['name']}"
        if not all(status.get(key) for key in ("topicName", "topicId", "partitions")):
            report(
                f"IcebergTopic {place} is left out: its status names no Kafka topic; repeat the command when it is Ready, or add it by hand"
            )
            continue
        topic = {"name": status["topicName"], "id": status["topicId"], "partitions": status["partitions"]}
        landed = _landed(look_up, manifest, place, report) if look_up is not None else {}
        configs = _configs(manifest, place, policy_of, report)
        topics.append({**topic, "configs": configs, "next": landed})
    return {"topics": topics}


def from_tables(
    config: Config,
    profile: str,
    manifests: Sequence[Manifest],
    policy_of: Callable[[Manifest], Manifest | None],
    report: Callable[[str], None],
    look_up: Callable[[str], Table | None],
) -> dict[str, Any]:
    """Return the content of the file for a bucket without records: the topics whose tables exist, with the data files.

    The arguments and the errors are those of `known_topics`.
    """
    _check_profile(config, profile)
    topics = []
    for manifest in manifests:
        place = f"{manifest['metadata']['namespace']}/{manifest['metadata']['name']}"
        try:
            resource = IcebergTopic.parse(manifest)
            identifier = resource.table_target(config.default_catalog).identifier
        except InvalidSpecError as error:
            report(f"IcebergTopic {place} is left out: {error}")
            continue
        if resource.profile_name(config.default_profile) != profile or resource.spec.route is not None:
            continue
        table = look_up(identifier)
        topic_id = landed_topic(table) if table is not None else None
        if table is None or topic_id is None or is_shared(table):
            cause = "does not exist" if table is None else "has no records of one Kafka topic alone"
            report(f"IcebergTopic {place} is left out: table {identifier} {cause}; its Kafka topic will be a new one")
            continue
        known = {
            **manifest,
            "status": {"table": {"identifier": identifier}, **(manifest.get("status") or {}), "topicId": topic_id},
        }
        landed = _landed(look_up, known, place, report)
        partitions = max(
            resource.spec.partitions or resource.status.partitions or config.profiles[profile].default_partitions,
            *(int(partition) + 1 for partition in landed),
            1,
        )
        found = {"name": resource.topic_name, "id": topic_id, "partitions": partitions, "next": landed}
        # Only the operator knows the RetentionPolicy of a new resource.
        found["configs"] = {**UNLIMITED, **_configs(known, place, policy_of, report)}
        try:
            # Without the landed offsets, new records could get those of rows.
            if landed:
                found["table"] = _rows(resource, table, identifier, topic_id)
        except InvalidSpecError as error:
            report(f"IcebergTopic {place}: the log begins behind the landed records: {error}")
        topics.append(found)
    return {"topics": topics}


def _rows(resource: IcebergTopic, table: Table, identifier: str, topic_id: str) -> dict[str, Any]:
    """Return the data files of a table, and the ids of the columns of a record. Raises InvalidSpecError if these are not its records."""
    schema = resource.record_schema()
    if resource.spec.routes is not None or schema.format is not SchemaFormat.RAW or schema.projection is not None:
        raise InvalidSpecError(
            f"table {identifier} does not have the values as they were produced; read its rows with an Iceberg engine"
        )
    known = AuditFrom.read(table.properties.get(names.TABLE_AUDIT_FROM))
    if known is None or known.topic_id != topic_id or known.mixed:
        raise InvalidSpecError(
            f"table {identifier} may have rows of an earlier Kafka topic with the same offsets; read its rows with an Iceberg engine"
        )
    fields = []
    for name in record_columns(resource.spec.table.metadata_columns):
        try:
            fields.append(table.schema().find_field(name).field_id)
        except ValueError as error:
            raise InvalidSpecError(
                f"table {identifier} has no column {name}; if it was renamed, rename it back, and repeat the command"
            ) from error
    snapshot = landed_snapshot(table)
    with translating(f"table {identifier}"):
        try:
            tasks = list(table.scan(snapshot_id=snapshot.snapshot_id).plan_files()) if snapshot is not None else []
            deleted = any(task.delete_files for task in tasks)
        except ValueError:
            # PyIceberg plans no table with equality deletes.
            deleted = True
    if deleted:
        raise InvalidSpecError(
            f"table {identifier} has delete files; compact it, and repeat the command before firn-broker fsck"
        )
    files = {task.file.file_path: task.file.file_size_in_bytes for task in tasks}
    return {"fields": fields, "files": sorted(files.items())}


def _check_profile(config: Config, profile: str) -> None:
    if profile not in config.profiles:
        raise InvalidSpecError(f"profile {profile} is not in the configuration, which has {sorted(config.profiles)}")


def _configs(
    manifest: Manifest, place: str, policy_of: Callable[[Manifest], Manifest | None], report: Callable[[str], None]
) -> dict[str, str]:
    """Return the configs that the operator sets, so that brokers delete no record before it runs."""
    try:
        own = IcebergTopic.model_validate(manifest).topic_configs
    except ValidationError as error:
        [first, *_] = error.errors()
        key = ".".join(map(str, first["loc"]))
        report(
            f"IcebergTopic {place}: {key}: {first['msg']}; the list has no configs but {_NAMED}; add those of spec.config by hand"
        )
        return dict(UNLIMITED)
    name = ((manifest["status"].get("maintenance") or {}).get("retention") or {}).get("policy")
    policy = policy_of(manifest) if name else None
    if not name:
        return own
    if policy is not None:
        with suppress(ValidationError):
            read = RetentionPolicy.model_validate(policy)
            if read.spec.log is None:
                return own
            if read.enforced and not read.spec.suspend:
                return {**configs_of(read.spec.log), **own}
    # The operator lets configs stay that the policy has set before.
    report(
        f"IcebergTopic {place}: RetentionPolicy {name} sets no retention of the log now, so the list has {_NAMED}; correct this after the"
        " recovery"
    )
    return {**UNLIMITED, **own}


def _landed(
    look_up: Callable[[str], Table | None], manifest: Manifest, place: str, report: Callable[[str], None]
) -> dict[str, int]:
    """Return the greatest offset after those that have landed in any table of the topic, by partition."""
    landed: dict[int, int] = {}
    for identifier in _tables(manifest["status"]):
        table = look_up(identifier)
        if table is None:
            report(
                f"IcebergTopic {place}: table {identifier} does not exist, so the list has no landed offsets of it; check the name in the catalog"
            )
            continue
        try:
            offsets = landed_offsets(table, manifest["status"]["topicId"])
        except UnavailableError as error:
            report(f"IcebergTopic {place}: the list has no landed offsets of table {identifier}: {error}")
            continue
        for partition, offset in offsets.items():
            landed[partition] = max(offset, landed.get(partition, 0))
    return {str(partition): offset for partition, offset in sorted(landed.items())}


def _tables(status: Manifest) -> Iterator[str]:
    for table in (status.get("table"), *(status.get("tables") or ())):
        if identifier := (table or {}).get("identifier"):
            yield identifier
