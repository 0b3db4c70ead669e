"""Refuses a new resource whose data exists already and is not its own.

A table may belong to an older resource, under another name of its catalog, to another Kubernetes cluster, or to another
namespace. And data may be under another profile or catalog than the defaults. The status has the defaults that were
chosen at the creation of a resource. A resource that is restored from Git has no status, so after a change of the
defaults it would get an empty topic or table elsewhere.
"""

import asyncio
import logging

from firn.model.conditions import ConditionType, Reason
from firn.model.config import allows
from firn.model.errors import ConflictError, FirnError
from firn.model.jobs import TableTarget
from firn.tables.ownership import Claimant
from firn_controllers.cache.topics import topic_id_claim
from firn_controllers.iceberg_topic import checks, status, tenancy
from firn_controllers.iceberg_topic.failure import Failure
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.ports import FoundTable, Ports, TopicState
from firn_controllers.reconcilers.context import Context

log = logging.getLogger(__name__)

OTHER_CATALOG_SECONDS = 10


async def found_failure(observed: ObservedTopic, context: Context) -> Failure | None:
    """Return why a new resource does not fit the data that exists, or None.

    Raises UnavailableError or AccessDeniedError if the catalog, or brokers that may have the topic, cannot answer.
    """
    target = observed.target
    if holds_table(observed) or not isinstance(target, TableTarget):
        return None
    found = await context.ports.tables.found(target)
    adoption = observed.resource.adoption
    if found is None and adoption is not None and adoption.connect is not None:
        # The operator would create the table, and the driver would wait for a connector that has never written it.
        return Failure(
            Reason.INVALID_SPEC,
            f"spec.ingestion.adopt.connect: table {target.identifier} does not exist, so no connector has written it; create this"
            " IcebergTopic again with the catalog, namespace and name of the connector's table",
        )
    failure = _not_ours(observed, context, target, found) if found is not None else None
    return failure or await _default_changed(observed, context, target, found)


async def has_records_of(observed: ObservedTopic, live: TopicState, context: Context) -> bool:
    """Return whether the resource's table has records of this Kafka topic. Raises the errors of `found_failure`."""
    if not isinstance(observed.target, TableTarget) or topic_id_claim(live.topic_id) is None:
        return False
    found = await context.ports.tables.found(observed.target)
    return found is not None and live.topic_id in (found.topic_id, *found.topic_ids)


def holds_table(observed: ObservedTopic) -> bool:
    """Return whether an earlier reconcile gave the resource its table. An earlier release may have done so."""
    return observed.job is not None or "table" in observed.entry.status


def claimant(observed: ObservedTopic, context: Context) -> Claimant:
    """Return the resource as the owner of its table."""
    former = tuple(observed.config.former_clusters)
    # Until the driver has changed a table of format 3, the table still names its former owner.
    before = status.as_before(observed, ConditionType.TABLE_READY)
    holds = holds_table(observed) and (before is None or before.reason is not Reason.WAITING_FOR_DRIVER)
    return Claimant(
        observed.entry.uid, *observed.entry.name, context.cluster_uid, former, holds=holds, shared=observed.entry.shares
    )


def _not_ours(observed: ObservedTopic, context: Context, target: TableTarget, found: FoundTable) -> Failure | None:
    """Return why a new resource must not have a table that exists, or None."""
    table, resource = found.ownership, claimant(observed, context)
    owner = context.topics.by_uid(table.owner)
    if owner is not None and owner.age < observed.entry.age:
        return checks.conflict(f"table {target.identifier}", owner, observed.entry.name[0])
    try:
        resource.check(target.identifier, table)
    except ConflictError as error:
        return Failure(Reason.RESOURCE_CONFLICT, str(error))
    if resource.owns(table) or resource.has_consent(table):
        return None
    tenant = table.tenant
    if table.owner and not tenant:  # marked by an earlier release, which did not write the namespace
        default = target.namespace == tenancy.default_table_namespace(observed)
        tenant = owner.name[0] if owner is not None else resource.namespace if default else ""
    return tenancy.table_adoption_allowed(observed, target, tenant)


async def _default_changed(
    observed: ObservedTopic, context: Context, target: TableTarget, found: FoundTable | None
) -> Failure | None:
    spec, ports = observed.resource.spec, context.ports
    if spec.table.catalog is None:
        elsewhere = await _catalog_with_table(observed, target, context)
        if elsewhere is not None:
            return _refused(
                f"table {elsewhere.identifier} exists, but the default catalog is {target.catalog}",
                "spec.table.catalog",
                elsewhere.catalog,
            )
    if spec.profile is None and found is not None and found.topic_id:
        profile = await _profile_with_topic(observed, found.topic_id, ports)
        if profile is not None:
            topic, default = observed.resource.topic_name, observed.entry.profile
            return _refused(
                f"table {target.identifier} has the records of Kafka topic {topic} of profile {profile}, but the default profile is {default}",
                "spec.profile",
                profile,
            )
    return None


async def _catalog_with_table(observed: ObservedTopic, target: TableTarget, context: Context) -> TableTarget | None:
    for catalog, settings in sorted(observed.config.catalogs.items()):
        if catalog == target.catalog or not allows(settings, observed.entry.name[0]):
            continue
        if context.board.catalog(catalog).problem is not None:
            continue  # one catalog does not stop the topics of another
        other = target.model_copy(update={"catalog": catalog})
        try:
            async with asyncio.timeout(OTHER_CATALOG_SECONDS):
                found = await context.ports.tables.found(other)
            if found is not None and found.ownership.owner:
                return other
        except (FirnError, TimeoutError) as error:
            log.warning("cannot tell whether table %s exists: %s", other.identifier, error)
    return None


async def _profile_with_topic(observed: ObservedTopic, topic_id: str, ports: Ports) -> str | None:
    name, default = observed.resource.topic_name, observed.entry.profile
    profiles = observed.config.profiles
    others = [key for key in sorted(profiles) if key != default and allows(profiles[key], observed.entry.name[0])]
    # The default comes first: two profiles may be the same brokers.
    for profile in (default, *others):
        live = await ports.topics.describe(profile, name)
        if live is not None and live.topic_id == topic_id:
            return profile if profile != default else None
    return None


def _refused(problem: str, field: str, value: str) -> Failure:
    return Failure(
        Reason.DEFAULT_CHANGED,
        f"{problem}; delete this resource, which has no data yet, and create it with {field}: {value} to continue with that data, or with"
        " another table.name",
    )
