"""Everything around the planned resources that a person may read: configuration, topics, policies, job contracts.

A part that the person may not read becomes a note about the checks that the plan leaves out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import yaml
from pydantic import ValidationError

from firn.api.v1alpha1.iceberg_topic import IcebergTopic, projected, with_columns
from firn.model import names
from firn.model.conditions import Reason
from firn.model.config import Config
from firn.model.errors import AccessDeniedError, FirnError, InvalidSpecError, NotReadyError
from firn.model.jobs import IngestJob, RecordSchema, TableTarget
from firn.schemas import protobuf
from firn_controllers.cache.policies import KINDS, Kind, PolicyCache, policy_entry
from firn_controllers.cache.topics import TopicCache, TopicEntry, topic_entry
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.fleet.health import FleetHealth
from firn_controllers.iceberg_topic import checks
from firn_controllers.iceberg_topic.failure import Check
from firn_controllers.iceberg_topic.observed import LiveJob, ObservedTopic, schema_of, target_of
from firn_controllers.ingestion_group.health import GroupHealth
from firn_controllers.policies.outcome import PolicyBinding, TopicMaintenance
from firn_operator.cli.resources.connection import Collection, Connection, config_maps, right, topics
from firn_operator.cli.resources.drafts import PLURALS, Draft

UNKNOWN = "default"
"""Name for a default of a configuration that cannot be read."""


@dataclass(slots=True)
class Policies:
    """The policies before and after the plan, and the kinds that could be read."""

    live: PolicyCache = field(default_factory=PolicyCache)
    wanted: PolicyCache = field(default_factory=PolicyCache)
    kinds: set[Kind] = field(default_factory=set)


class Surroundings:
    """Reads each part once, when it is needed first."""

    def __init__(self, connection: Connection, release: str, drafts: Sequence[Draft], now: datetime) -> None:
        """``release`` is the namespace of the operator."""
        self._connection = connection
        self._release = release
        self._now = now
        self.unchecked: list[str] = []
        """Checks that the plan leaves out for all resources."""
        self._denied_contracts = False
        found = self._read_config()
        self.without: frozenset[Check] = checks.OF_CONFIGURATION if found is None else frozenset()
        self.config = found or assumed_config(release, drafts)
        self.policies = self._read_policies(drafts)
        self.topics = self._read_topics(drafts)

    def observe(self, manifest: dict[str, Any], live: dict[str, Any] | None, *, wanted: bool) -> ObservedTopic:
        """Return the observation of a topic as the live object or as the wanted one. Raises InvalidSpecError.

        ``wanted`` chooses the policies after the plan.
        """
        entry = topic_entry(manifest, self.config)
        resource = entry.resource
        if resource is None:
            raise entry.problem or InvalidSpecError(f"IcebergTopic {entry.name[1]} cannot be read")
        job = self._contract(live)
        parent = self.topics.get(entry.parent) if entry.parent is not None else None
        return ObservedTopic(
            config=self.config,
            entry=entry,
            resource=resource,
            schema=_schema(resource, job),
            target=target_of(resource, self.config.default_catalog),
            topic_rival=self.topics.rival(entry, entry.topic_claims),
            table_rival=self.topics.table_rival(entry),
            older_sharers=self.topics.older_sharers(entry),
            fleet=FleetHealth(),
            catalog=DependencyHealth(),
            group=GroupHealth(),
            progress=None,
            job=job,
            now=self._now,
            other_partitions=self._other_partitions(entry),
            parent=parent,
            parent_schema=_schema(parent.resource, None)
            if parent is not None and parent.resource is not None
            else None,
            maintenance=self._maintenance(entry, wanted=wanted),
        )

    # Configuration

    def _read_config(self) -> Config | None:
        place = f"ConfigMap {self._release}/{names.CONFIG_OBJECT}"
        left_out = "profiles, groups, catalogs, registries and the limits of namespaces (a default is shown as default), because"
        try:
            found = self._connection.read(config_maps(self._release), names.CONFIG_OBJECT)
        except AccessDeniedError as error:
            self.unchecked.append(f"{left_out} {right(error)}")
            return None
        text = ((found or {}).get("data") or {}).get("config.yaml")
        if text is None:
            self.unchecked.append(
                f"{left_out} {place} does not exist; name the operator's namespace with --release-namespace"
            )
            return None
        try:
            return Config.model_validate(yaml.safe_load(text))
        except (ValidationError, yaml.YAMLError):
            self.unchecked.append(
                f"{left_out} {place} is of another version of Firn; use the firn of the operator's image"
            )
            return None

    # Topics

    def _read_topics(self, drafts: Sequence[Draft]) -> TopicCache:
        cache = TopicCache()
        for manifest in self._listed_topics(drafts):
            cache.put(topic_entry(manifest, self.config))
        for number, draft in enumerate(drafts):
            if draft.kind == "IcebergTopic" and draft.wanted is not None:
                if draft.live is None:
                    moment = self._now + timedelta(seconds=number)
                    draft.wanted["metadata"]["creationTimestamp"] = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
                cache.put(topic_entry(draft.wanted, self.config))
        return cache

    def _listed_topics(self, drafts: Sequence[Draft]) -> Iterable[dict[str, Any]]:
        try:
            return self._connection.list(topics(None))
        except AccessDeniedError as error:
            self.unchecked.append(f"conflicts with topics and tables of other namespaces, because {right(error)}")
        found = []
        for namespace in _namespaces(drafts):
            try:
                found += self._connection.list(topics(namespace))
            except AccessDeniedError as error:
                self.unchecked.append(
                    f"conflicts with topics and tables of namespace {namespace}, because {right(error)}"
                )
        return found

    def _other_partitions(self, entry: TopicEntry) -> int:
        profile = self.config.profiles.get(entry.profile)
        if profile is None or profile.tenancy.partitions_per_namespace is None:
            return 0
        return self.topics.other_partitions(entry, profile.default_partitions)

    # Policies

    def _read_policies(self, drafts: Sequence[Draft]) -> Policies:
        policies = Policies()
        for kind in KINDS:
            try:
                for namespace in _namespaces(drafts):
                    for manifest in self._connection.list(Collection(PLURALS[kind], namespace)):
                        entry = policy_entry({**manifest, "kind": kind}, self.config)
                        policies.live.put(entry)
                        policies.wanted.put(entry)
                policies.kinds.add(kind)
            except AccessDeniedError as error:
                self.unchecked.append(f"the effects of a {kind}, because {right(error)}")
        for draft in drafts:
            if draft.kind in KINDS and draft.wanted is not None:
                policies.wanted.put(policy_entry(draft.wanted, self.config))
        return policies

    def _maintenance(self, entry: TopicEntry, *, wanted: bool) -> TopicMaintenance:
        cache = self.policies.wanted if wanted else self.policies.live
        return TopicMaintenance(
            {kind: PolicyBinding(cache.resolve(kind, entry)) for kind in KINDS if kind in self.policies.kinds}
        )

    # Job contracts

    def _contract(self, live: dict[str, Any] | None) -> LiveJob | None:
        """Return the contract in force. If it cannot be read, return that of the live spec, if the operator follows it."""
        if live is None:
            return None
        found = None
        if not self._denied_contracts:
            try:
                found = LiveJob.read(
                    self._connection.read(config_maps(self._release), names.job(live["metadata"]["uid"]))
                )
            except AccessDeniedError as error:
                self._denied_contracts = True
                self.unchecked.append(
                    f"the schema in force, for which the plan takes the live spec, because {right(error)}"
                )
        return found or live_contract(topic_entry(live, self.config), self.config)


def live_contract(entry: TopicEntry, config: Config) -> LiveJob | None:
    """Return the contract that a live spec asks for; None if the operator has not followed this spec."""
    resource = entry.resource
    followed = entry.spec_valid == Reason.VALID and entry.status.get("observedGeneration") == entry.generation
    if resource is None or not followed:
        return None
    schema, target = schema_of(resource), target_of(resource, config.default_catalog)
    if not isinstance(schema, RecordSchema) or not isinstance(target, TableTarget):
        return None
    if target.shared and not entry.status.get("topicId"):
        return None
    job = IngestJob(
        version=2 if target.shared else 1,
        uid=entry.uid,
        namespace=entry.name[0],
        name=entry.name[1],
        generation=entry.generation,
        group=entry.group,
        profile=entry.profile,
        topic=resource.topic_name,
        topic_id=entry.status.get("topicId"),
        record_schema=schema,
        table=target,
        freshness_ms=resource.freshness_ms,
    )
    return LiveJob(job, frozenset(resource.topic_configs))


def _schema(resource: IcebergTopic, job: LiveJob | None) -> RecordSchema | FirnError:
    """Return the schema of a topic. Only the operator asks registries and compiles Protobuf, so the contract has the columns."""
    schema = schema_of(resource)
    if not isinstance(schema, RecordSchema) or not schema.has_found_columns:
        return schema
    in_force = job.job.record_schema if job is not None else None
    if schema.subject is None:
        if in_force is None or in_force.text != schema.text or not in_force.descriptors:
            return NotReadyError("the Protobuf text was not compiled")
        try:
            whole = protobuf.with_found_message(
                schema.model_copy(update={"descriptors": in_force.descriptors}), in_force
            )
            found = with_columns(whole, "spec.schema.text")
            return projected(found, schema.projection)
        except InvalidSpecError as error:
            return error
    if in_force is not None and in_force.subject == schema.subject and in_force.fields:
        try:
            return projected(in_force.model_copy(update={"incompatible": schema.incompatible}), schema.projection)
        except InvalidSpecError as error:
            return error
    return NotReadyError(f"subject {schema.subject.name} of schema registry {schema.subject.registry} was not asked")


def _namespaces(drafts: Sequence[Draft]) -> list[str]:
    return sorted({draft.namespace for draft in drafts if not draft.foreign and draft.kind in PLURALS})


def assumed_config(release: str, drafts: Sequence[Draft]) -> Config:
    """Return a configuration with every name that the drafts use, for a person who may not read the real one."""
    profiles: set[str | None] = {UNKNOWN}
    catalogs: set[str | None] = {UNKNOWN}
    groups: set[str | None] = {UNKNOWN}
    registries: set[str | None] = set()
    salts: set[str | None] = set()
    for draft in drafts:
        if draft.kind != "IcebergTopic" or draft.wanted is None:
            continue
        for manifest in (draft.live or {}, draft.wanted):
            spec, status = manifest.get("spec") or {}, manifest.get("status") or {}
            profiles |= {spec.get("profile"), status.get("profile")}
            catalogs |= {
                (spec.get("table") or {}).get("catalog"),
                ((status.get("table") or {}).get("identifier") or "").partition(".")[0],
            }
            groups |= {(spec.get("ingestion") or {}).get("group"), (status.get("ingestion") or {}).get("group")}
            salts |= {column.get("salt") for column in (spec.get("schema") or {}).get("columns") or []}
            registries.add(((spec.get("schema") or {}).get("registry") or {}).get("name"))
    return Config.model_validate(
        {
            "namespace": release,
            "images": {"spark": {"image": "unknown"}, "kafka": {"image": "unknown"}},
            "defaultProfile": UNKNOWN,
            "profiles": {name: {} for name in _known(profiles)},
            "defaultCatalog": UNKNOWN,
            "catalogs": {
                name: {"type": "rest", "uri": "http://unknown", "warehouse": "unknown"} for name in _known(catalogs)
            },
            "defaultGroup": UNKNOWN,
            "groups": {name: {} for name in _known(groups)},
            "registries": {name: {"url": "http://unknown"} for name in _known(registries)},
            "salts": {name: {"value": {"secret": "unknown", "key": "unknown"}} for name in _known(salts)},
        }
    )


def _known(found: Iterable[str | None]) -> list[str]:
    return sorted(name for name in found if name)
