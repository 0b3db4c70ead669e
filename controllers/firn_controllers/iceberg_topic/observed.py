"""Everything that a decision about one IcebergTopic rests on, observed first, in one frozen value."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pydantic import ValidationError

from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.model import names
from firn.model.config import Config
from firn.model.errors import FirnError, InvalidSpecError
from firn.model.jobs import IngestJob, RecordSchema, TableTarget
from firn.model.progress import HaltedAt, TopicProgress
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.fleet.health import FleetHealth
from firn_controllers.ingestion_group.health import GroupHealth
from firn_controllers.policies.log_retention import LogRetention, log_retention
from firn_controllers.policies.outcome import TopicMaintenance
from firn_controllers.ports import Manifest

OWNED_CONFIG = f"{names.GROUP}/topic-config"
"""Annotation of a job ConfigMap: names of the topic configs that the spec has set, so that a removed one is unset."""
SEEN_RESUME = f"{names.GROUP}/resume-seen"
"""Annotation of a job ConfigMap: the value of ``firn.dev/resume`` that has been acted upon."""
RESUME_HALT = f"{names.GROUP}/resume-halt"
"""Annotation of a job ConfigMap: ``PARTITION:OFFSET`` at which the topic was halted when that value was new."""
POLICY_CONFIG = f"{names.GROUP}/topic-config-of-policy"
"""Annotation of a job ConfigMap: names of the topic configs that a RetentionPolicy has set."""
TOPIC_ORIGIN = f"{names.GROUP}/topic-origin"
TABLE_ORIGIN = f"{names.GROUP}/table-origin"


@dataclass(frozen=True, slots=True)
class LiveJob:
    """The job contract in force, and what the operator remembers in its annotations."""

    job: IngestJob
    owned_config: frozenset[str] = frozenset()
    seen_resume: str | None = None
    topic_origin: str | None = None
    """``Created`` or ``Adopted``: the origin of the Kafka topic."""
    table_origin: str | None = None
    policy_config: frozenset[str] = frozenset()
    resume_halt: str | None = None
    """The record at which the topic was halted when ``seen_resume`` was new; None if it was not halted."""

    @classmethod
    def read(cls, config_map: Manifest | None) -> "LiveJob | None":
        """Return the contract in a ConfigMap.

        None if it is missing or cannot be read; the operator then writes it again.
        """
        if config_map is None:
            return None
        annotations = config_map["metadata"].get("annotations") or {}
        try:
            job = IngestJob.model_validate_json((config_map.get("data") or {})["job.json"])
            owned = json.loads(annotations.get(OWNED_CONFIG, "[]"))
            of_policy = json.loads(annotations.get(POLICY_CONFIG, "[]"))
        except (KeyError, ValidationError, ValueError):
            return None
        return cls(
            job,
            frozenset(owned),
            annotations.get(SEEN_RESUME),
            annotations.get(TOPIC_ORIGIN),
            annotations.get(TABLE_ORIGIN),
            frozenset(of_policy),
            annotations.get(RESUME_HALT),
        )


def schema_of(resource: IcebergTopic) -> RecordSchema | InvalidSpecError:
    """Return the schema of the spec, or the error in it."""
    try:
        return resource.row_schema()
    except InvalidSpecError as error:
        return error


def target_of(resource: IcebergTopic, default_catalog: str) -> TableTarget | InvalidSpecError:
    """Return the table of the spec, or the error in it."""
    try:
        return resource.table_target(default_catalog)
    except InvalidSpecError as error:
        return error


@dataclass(frozen=True, slots=True)
class ObservedTopic:
    """An IcebergTopic and its dependencies at one moment.

    ``schema`` and ``target`` are errors if the spec is wrong there. ``schema`` is an error, too, if the
    schema registry does not answer, or does not have it.
    """

    config: Config
    entry: TopicEntry
    resource: IcebergTopic
    schema: RecordSchema | FirnError
    target: TableTarget | InvalidSpecError
    topic_rival: TopicEntry | None
    """The older resource that owns the Kafka topic."""
    table_rival: TopicEntry | None
    """The older resource that owns the table, and does not share it with this one."""
    fleet: FleetHealth
    catalog: DependencyHealth
    group: GroupHealth
    progress: TopicProgress | None
    job: LiveJob | None
    now: datetime
    other_partitions: int = 0
    """The partitions of the namespace's other topics in the profile, if the profile limits them."""
    parent: TopicEntry | None = None
    """The resource of ``spec.route.of``."""
    parent_schema: RecordSchema | FirnError | None = None
    """The schema of ``parent``. None if it is not known yet, or there is no parent."""
    maintenance: TopicMaintenance = field(default_factory=TopicMaintenance)
    """The policies that govern the topic, and the maintenance debt of its table."""
    older_sharers: Sequence[TopicEntry] = ()
    """The older resources that share the table with this one, the oldest first. The policies of that one govern the table."""
    table_maintenance: TopicMaintenance | None = None
    """The policies of the oldest resource that shares the table, and the replays of all. None if no other resource shares it."""

    @property
    def topic_configs(self) -> dict[str, str]:
        """Return the topic configs of the spec. Brokers check the Protobuf message that the contract has columns of."""
        known = self.schema if isinstance(self.schema, RecordSchema) else self.job and self.job.job.record_schema
        return self.resource.topic_configs_of(known.found_message if known else "")

    @property
    def profile_dependency(self) -> str:
        """Name of the brokers, as a dependency that may fail the topic."""
        return f"profile {self.entry.profile}"

    @property
    def catalog_dependency(self) -> str:
        """Name of the catalog, as a dependency that may fail the topic; empty if the spec names none."""
        return f"catalog {self.target.catalog}" if isinstance(self.target, TableTarget) else ""

    @property
    def registry_dependency(self) -> str:
        """Name of the schema registry, as a dependency that may fail the topic; empty if the spec names none."""
        schema = self.resource.spec.record_schema
        of_key = schema.key.registry if schema is not None and schema.key is not None else None
        registry = (schema.registry if schema is not None else None) or of_key
        return f"schema registry {registry.name}" if registry is not None else ""

    @property
    def annotations(self) -> Mapping[str, str]:
        """Annotations of the resource."""
        return self.resource.metadata.annotations

    @property
    def log_retention(self) -> LogRetention:
        """The topic configs that a RetentionPolicy asks for. The parent of a routed table sets those of the topic."""
        if self.entry.parent is not None:
            return LogRetention()
        return log_retention(self.maintenance)

    @property
    def owned_config(self) -> frozenset[str]:
        """Names of the topic configs that are unset unless spec or policy want them."""
        if self.job is None:
            return frozenset()
        return self.job.owned_config | (frozenset() if self.log_retention.held else self.job.policy_config)

    @property
    def paused(self) -> bool:
        """True if an annotation pauses reconciliation."""
        return self.annotations.get(names.PAUSE) == "true"

    @property
    def deleting(self) -> bool:
        """True if the resource is being deleted."""
        return self.resource.metadata.deletion_timestamp is not None

    @property
    def halted_at(self) -> HaltedAt | None:
        """The record at which ingestion stopped, as the driver reports it, or else as status shows it."""
        if self.progress is not None:
            return self.progress.halted_at if self.progress.state == "Halted" else None
        remembered: Any = (self.entry.status.get("ingestion") or {}).get("haltedAt")
        return HaltedAt.model_validate(remembered) if remembered else None
