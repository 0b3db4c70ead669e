"""Ordered, named, pure checks of a spec. The first that fails is the reason of SpecValid False.

Brokers and catalogs judge later what only they know: values of topic configs, a table that exists already.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from firn.api.v1alpha1.iceberg_topic import ColumnSpec, IcebergTopic
from firn.decoders.checks import MOST_PACKED
from firn.model import names
from firn.model.conditions import Reason
from firn.model.config import Config, DisklessProfile, HasNamespaces, allows
from firn.model.errors import FirnError, InvalidSpecError
from firn.model.jobs import Column, IngestJob, RecordSchema, SchemaFormat, TableTarget
from firn.model.names import OWN_CONFIG
from firn.schemas import changes, protobuf
from firn.schemas.columns import columns_of as found_columns
from firn.tables import evolution, rows, transforms, types
from firn_controllers.cache.contracts import Need
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.iceberg_topic import routes, tenancy
from firn_controllers.iceberg_topic.failure import Check, Failure
from firn_controllers.iceberg_topic.observed import ObservedTopic, target_of
from firn_controllers.specs import quality
from firn_controllers.specs.columns import check_term, is_float

_SHARED_FIELDS = {
    "partition_by": "partitionBy",
    "sort_by": "sortBy",
    "metadata_columns": "metadataColumns",
    "format_version": "formatVersion",
}
"""Fields of a table whose names in a spec differ from those in a contract."""


_CONFIG_KEY = re.compile(r"[a-z][a-z0-9.]*")
_TIMES = frozenset({"year", "month", "day", "hour"})
_BINARY = frozenset({SchemaFormat.AVRO, SchemaFormat.PROTOBUF})
"""Formats whose numbers may be NaN."""
_KINDS = {
    "profiles": "profile",
    "groups": "ingestion group",
    "catalogs": "catalog",
    "registries": "schema registry",
    "salts": "salt",
}
"""Sections of the operator's configuration, and what a message calls their members."""
_ALTERNATIVES = {
    "profiles": "create this IcebergTopic again with another spec.profile",
    "groups": "set another spec.ingestion.group",
    "catalogs": "create this IcebergTopic again with another spec.table.catalog",
    "registries": "set another spec.schema.registry.name",
    "salts": "set another salt in spec.schema.columns",
}
"""Steps to another member of a section. The API refuses a change of spec.profile and spec.table.catalog."""


def profile_exists(observed: ObservedTopic) -> Failure | None:
    """Check that spec.profile names a profile of the configuration."""
    return _check_configured(
        "spec.profile",
        observed.entry.profile,
        observed.config.profiles,
        Reason.PROFILE_NOT_FOUND,
        "add it to profiles there, or create this IcebergTopic again with spec.profile:",
    )


def group_exists(observed: ObservedTopic) -> Failure | None:
    """Check that spec.ingestion.group names an ingestion group of the configuration."""
    return _check_configured(
        "spec.ingestion.group", observed.entry.group, observed.config.groups, Reason.GROUP_NOT_FOUND, "choose"
    )


def catalog_exists(observed: ObservedTopic) -> Failure | None:
    """Check that spec.table.catalog names a catalog of the configuration."""
    if isinstance(observed.target, InvalidSpecError):
        return None
    return _check_configured(
        "spec.table.catalog",
        observed.target.catalog,
        observed.config.catalogs,
        Reason.CATALOG_NOT_FOUND,
        "add it to catalogs there, or create this IcebergTopic again with spec.table.catalog:",
    )


def registry_exists(observed: ObservedTopic) -> Failure | None:
    """Check that the schemas of the spec name registries of the configuration."""
    configured = observed.config.registries
    for field, name in registry_names(observed.resource).items():
        if name not in configured:
            return Failure(
                Reason.REGISTRY_NOT_FOUND, _not_configured(f"{field}.name: {name}", "registries", configured)
            )
    return None


def salts_exist(observed: ObservedTopic) -> Failure | None:
    """Check that the columns name salts of the configuration."""
    configured = observed.config.salts
    for column in columns_of(observed.resource):
        if column.salt is not None and column.salt not in configured:
            what = f"spec.schema.columns: {column.name}: salt {column.salt}"
            return Failure(Reason.BAD_SCHEMA, _not_configured(what, "salts", configured))
    return None


def gate_served(observed: ObservedTopic) -> Failure | None:
    """Check that the brokers of the profile can check records at produce, if spec.schema.gate asks for it."""
    name = observed.entry.profile
    profile, schema = observed.config.profiles[name], observed.resource.spec.record_schema
    if schema is None or schema.gate == "None":
        return None
    registry = schema.registry.name if schema.registry is not None else None
    if not isinstance(profile, DisklessProfile):
        return Failure(
            Reason.BAD_SCHEMA,
            f"spec.schema.gate: only diskless brokers can check records at produce, and profile {name} has Kafka brokers; remove gate,"
            " or create this IcebergTopic again with a profile of kind Diskless",
        )
    size = len(observed.resource.gate_contract) if schema.gate == "Decode" else 0
    if size > MOST_PACKED:
        return Failure(
            Reason.BAD_SCHEMA,
            f"spec.schema.gate: the schema has {size} characters when compressed for the brokers, more than {MOST_PACKED}; make it smaller,"
            " register it in a schema registry, or remove gate",
        )
    if registry is not None and registry not in profile.registries:
        return Failure(
            Reason.BAD_SCHEMA,
            f"spec.schema.gate: the brokers of profile {name} do not ask schema registry {registry}; add it to"
            f" profiles.{name}.registries in the operator's configuration, or remove gate",
        )
    return (
        _gate_reads(observed.schema) if schema.gate == "Decode" and isinstance(observed.schema, RecordSchema) else None
    )


def _gate_reads(schema: RecordSchema) -> Failure | None:
    """Check that brokers can decode all fields of a schema in the spec. Brokers do not know which fields the columns read."""
    if not schema.text or rows.read_fields(schema) is None:
        return None
    try:
        found_columns(schema.model_copy(update={"projection": None}), "the schema")
    except InvalidSpecError as error:
        return Failure(
            Reason.BAD_SCHEMA,
            f"spec.schema.gate: brokers decode all fields, also those that no column reads; remove gate: Decode, or correct the schema: {error}",
        )
    return None


def namespace_allowed(observed: ObservedTopic) -> Failure | None:
    """Check that the configuration allows this namespace to use the profile, the group, the catalog and the schema registry."""
    namespace = observed.entry.name[0]
    catalog = observed.target.catalog if isinstance(observed.target, TableTarget) else ""
    registries = registry_names(observed.resource).values()
    salts = [column.salt for column in columns_of(observed.resource) if column.salt is not None]
    forbidden = _forbidden(observed, observed.entry.profile, observed.entry.group, catalog, registries, salts)
    if forbidden is None:
        return None
    section, name = forbidden
    return Failure(
        Reason.NOT_ALLOWED,
        f"namespace {namespace} may not use {_KINDS[section]} {name}; add the namespace to {section}.{name}.namespaces in the"
        f" operator's configuration, or {_ALTERNATIVES[section]}",
    )


def revoked(observed: ObservedTopic, job: IngestJob) -> bool:
    """Return whether the configuration forbids the topic's namespace to use a member that its job contract names."""
    salts = job.record_schema.salts
    return _forbidden(observed, job.profile, job.group, job.table.catalog, job.registries, salts) is not None


def _forbidden(
    observed: ObservedTopic, profile: str, group: str, catalog: str, registries: Iterable[str], salts: Iterable[str]
) -> tuple[str, str] | None:
    """Return section and name of the first of these members that the topic's namespace may not use, or None."""
    config, namespace = observed.config, observed.entry.name[0]
    sections: list[tuple[str, Mapping[str, HasNamespaces], str]] = [
        ("profiles", config.profiles, profile),
        ("groups", config.groups, group),
        ("catalogs", config.catalogs, catalog),
        *(("registries", config.registries, registry) for registry in registries),
        *(("salts", config.salts, salt) for salt in salts),
    ]
    for section, members, name in sections:
        if name in members and not allows(members[name], namespace):
            return section, name
    return None


def columns_of(resource: IcebergTopic) -> Sequence[ColumnSpec]:
    """Return the computed columns of the spec."""
    schema = resource.spec.record_schema
    return (schema.columns if schema is not None else None) or ()


def registry_names(resource: IcebergTopic) -> Mapping[str, str]:
    """Return the schema registries that the topic reads, by the field of the spec.

    They include the registries of its routes, because messages decide about the records of the topic, too.
    """
    schema = resource.spec.record_schema
    parts = {"spec.schema": schema, "spec.schema.key": schema.key if schema is not None else None}
    own = {
        f"{field}.registry": part.registry.name
        for field, part in parts.items()
        if part is not None and part.registry is not None
    }
    return {**own, **routes.registries(resource)}


def members(resource: IcebergTopic, entry: TopicEntry, config: Config) -> frozenset[Need]:
    """Return the members of the configuration that the driver of a topic needs, as far as the spec can be read."""
    found: set[Need] = {("profiles", entry.profile)}
    found |= {("registries", name) for name in registry_names(resource).values()}
    found |= {("salts", column.salt) for column in columns_of(resource) if column.salt is not None}
    with contextlib.suppress(FirnError):
        found.add(("catalogs", resource.table_target(config.default_catalog).catalog))
    return frozenset(found)


def schema_valid(observed: ObservedTopic) -> Failure | None:
    """Check that every field has a type and a name of its own."""
    if isinstance(observed.schema, InvalidSpecError):
        return Failure(Reason(observed.schema.reason), str(observed.schema))
    return None


def table_name_valid(observed: ObservedTopic) -> Failure | None:
    """Check that the table's name is not that of a dead-letter table."""
    if isinstance(observed.target, InvalidSpecError):
        return Failure(Reason(observed.target.reason), str(observed.target))
    return None


def topic_is_ours(observed: ObservedTopic) -> Failure | None:
    """Check that no older resource owns the Kafka topic."""
    if observed.topic_rival is None:
        return None
    return conflict(f"Kafka topic {observed.resource.topic_name}", observed.topic_rival, observed.entry.name[0])


def table_is_ours(observed: ObservedTopic) -> Failure | None:
    """Check that no older resource owns the table."""
    entry, rival = observed.entry, observed.table_rival
    if rival is None or isinstance(observed.target, InvalidSpecError):
        return None
    if {entry.letters_claim, rival.letters_claim} & {entry.table_claim, rival.table_claim} - {None}:
        return conflict(f"table {observed.target.dead_letters_identifier} of dead letters", rival, entry.name[0])
    failure = conflict(f"table {observed.target.identifier}", rival, entry.name[0])
    if not (entry.shares or rival.shares):
        return failure
    step = "IcebergTopics share a table if all of them have spec.table.shared: true and are in one namespace"
    return replace(failure, message=f"{failure.message}; {step}")


def shared_table_possible(observed: ObservedTopic) -> Failure | None:
    """Check that the spec has nothing that a shared table cannot have."""
    if not observed.entry.shares:
        return None
    spec, adopt = observed.resource.spec, observed.resource.adoption
    if adopt is not None and adopt.connect is not None:
        return Failure(
            Reason.INVALID_SPEC,
            "spec.ingestion.adopt.connect: a connector wrote the table for one topic, so it cannot be shared; remove table.shared by"
            " creating this IcebergTopic again, or remove adopt",
        )
    if spec.routes is not None or spec.route is not None:
        return Failure(
            Reason.INVALID_SPEC,
            "spec.table.shared: a shared table has all records of each of its topics, and routes distribute them; create this IcebergTopic"
            " again without table.shared or without routes",
        )
    if observed.resource.publish is not None:
        return Failure(
            Reason.INVALID_SPEC,
            "spec.quality.publish: the rows of a shared table land on main, so that no topic waits for the checks of another; remove publish,"
            " or create this IcebergTopic again with a table of its own",
        )
    if isinstance(observed.schema, RecordSchema) and observed.schema.evolution.drop == "DropColumn":
        return Failure(
            Reason.INVALID_SPEC,
            "spec.schema.evolution.drop: DropColumn would drop columns that other topics of the shared table may have; set KeepNull",
        )
    return None


def shared_table_agrees(observed: ObservedTopic) -> Failure | None:
    """Check that a shared table is what the oldest of its resources asks for, and that dead letters have a table of their own."""
    target = observed.target
    if not isinstance(target, TableTarget) or not target.shared:
        return None
    for other in observed.older_sharers:
        if names.dead_letters(target.name, other.name[1]) == target.dead_letters:
            return Failure(
                Reason.RESOURCE_CONFLICT,
                f"table {target.identifier}: the dead letters of IcebergTopics {other.name[1]} and {target.shared_by} would both be in table"
                f" {target.dead_letters}; create this IcebergTopic again with a metadata.name that differs in letters or digits",
            )
    lead = next(iter(observed.older_sharers), None)
    wanted = target_of(lead.resource, observed.config.default_catalog) if lead is not None and lead.resource else None
    if lead is None or not isinstance(wanted, TableTarget):
        return None
    mine, theirs = target.model_dump(exclude={"shared_by"}), wanted.model_dump(exclude={"shared_by"})
    different = [_SHARED_FIELDS.get(field, field) for field in mine if mine[field] != theirs[field]]
    if not different:
        return None
    return Failure(
        Reason.INVALID_SPEC,
        f"table {target.identifier} is shared with the older IcebergTopic {lead.name[1]}, and spec.table.{different[0]} is not the same"
        f" there; make it the same in all IcebergTopics of the table",
    )


def history_possible(observed: ObservedTopic) -> Failure | None:
    """Check that brokers can rebuild the records of the topic from its table, if only the table has them."""
    resource, name = observed.resource, observed.entry.profile
    if resource.history != names.SINGLE:
        return None
    profile = observed.config.profiles[name]
    if not isinstance(profile, DisklessProfile) or profile.history is None:
        step = f"set profiles.{name}.history in the operator's configuration"
        if not isinstance(profile, DisklessProfile):
            step = "create this IcebergTopic again with a profile of kind Diskless"
        return Failure(
            Reason.INVALID_SPEC,
            f"spec.storage.history: the brokers of profile {name} do not read tables; set Copy, or {step}",
        )
    schema, table = observed.schema, resource.spec.table
    if isinstance(schema, RecordSchema) and schema.format not in (SchemaFormat.RAW, SchemaFormat.JSON):
        return Failure(
            Reason.INVALID_SPEC,
            f"spec.storage.history: brokers rebuild raw and JSON values only, and spec.schema has format {schema.format}; set Copy",
        )
    reasons = {
        "a table of several topics": table.shared,
        "a topic with routes": resource.spec.routes is not None or resource.spec.route is not None,
        "a sorted table": bool(table.sort_by),
        "a JSON topic whose schema has columns": isinstance(schema, RecordSchema)
        and schema.format is SchemaFormat.JSON
        and schema.projection is not None,
        "a compacted topic": "compact" in resource.spec.config.get("cleanup.policy", ""),
    }
    for what, applies in reasons.items():
        if applies:
            return Failure(
                Reason.INVALID_SPEC, f"spec.storage.history: brokers cannot rebuild the records of {what}; set Copy"
            )
    return None


def config_keys_valid(observed: ObservedTopic) -> Failure | None:
    """Check that topic configs have valid names and values."""
    for key, value in observed.resource.spec.config.items():
        if not _CONFIG_KEY.fullmatch(key):
            return Failure(
                Reason.BAD_TOPIC_CONFIG,
                f"spec.config: {key!r} is not a valid name of a topic config; use one such as retention.ms",
            )
        if key.startswith(OWN_CONFIG):
            return Failure(
                Reason.BAD_TOPIC_CONFIG,
                f"spec.config: the operator sets {key} itself; remove it, and set"
                f" {'spec.storage.history' if key == names.HISTORY else 'spec.schema.gate'}",
            )
        if not value.strip():
            return Failure(
                Reason.BAD_TOPIC_CONFIG,
                f"spec.config: {key} has no value; set one, or remove {key} to use the broker's default",
            )
    return None


def schema_evolves(observed: ObservedTopic) -> Failure | None:
    """Check that the schema is an allowed change of the one that ingestion runs with."""
    if observed.job is None or not isinstance(observed.schema, RecordSchema):
        return None
    before, after = observed.job.job.record_schema, observed.schema
    problems = evolution.problems(before, after)
    if not problems:
        problems = _refused_changes(observed.job.job, after, observed.target)
    # With a registry, each value is read with the schema of its own writer.
    if (
        after.subject is None
        and before.descriptors
        and (before.descriptors, before.message) != (after.descriptors, after.message)
    ):
        problems += _changes_of_messages(before, after)
    if not problems:
        return None
    subject = observed.schema.subject
    if subject is not None:
        return Failure(
            Reason.INCOMPATIBLE_SCHEMA,
            f"subject {subject.name} of schema registry {subject.registry}: {'; '.join(problems)}. The job contract keeps the earlier"
            " schema, and records of the new schema wait. Register a schema that fits the table, or set"
            " spec.schema.evolution.incompatible: DeadLetter or NewColumn",
        )
    return Failure(
        Reason.INCOMPATIBLE_SCHEMA,
        f"spec.schema: {'; '.join(problems)}. Ingestion continues with the previous schema. Restore that schema; or delete this"
        " resource with deletionPolicy Retain, and create it again with another table.name",
    )


def _refused_changes(job: IngestJob, after: RecordSchema, target: TableTarget | InvalidSpecError) -> list[str]:
    found = changes.between(job.record_schema, after)
    if isinstance(target, TableTarget):
        found += changes_of_layout(job.table, target)
    refused = changes.judged(found, after.evolution, "", 0).refused
    return [changes.refusal(refused)] if refused else []


def changes_of_layout(before: TableTarget, after: TableTarget) -> tuple[changes.Change, ...]:
    """Return the changes of partitioning and sort order; none for terms that cannot be read."""
    try:
        return changes.of_layout(before, after)
    except InvalidSpecError:
        return ()  # `partitioning_fits` and `sorting_fits` have the same error.


def _changes_of_messages(before: RecordSchema, after: RecordSchema) -> list[str]:
    try:
        # The operator has not judged fields that no column read before.
        earlier = protobuf.message_of(before.model_copy(update={"projection": after.projection}))
        moved = protobuf.changed_indexes(before, after, "spec.schema.message")
    except InvalidSpecError:
        return []  # The contract is damaged, and the new one replaces it.
    return protobuf.changes(earlier, protobuf.message_of(after)) + moved


def format_version_fits(observed: ObservedTopic) -> Failure | None:
    """Check that the table's format version has the types of all columns."""
    if not isinstance(observed.schema, RecordSchema) or not isinstance(observed.target, TableTarget):
        return None
    if observed.target.format_version >= 3:
        return None
    for column in rows.table_columns(observed.schema, observed.target.metadata_columns):
        if kind := types.has(types.parse(column.type), *types.NEW_IN_V3):
            return Failure(
                Reason.BAD_SCHEMA,
                f"spec.schema: column {column.name} has the type {kind}, which tables of format version {observed.target.format_version} do"
                " not have; set spec.table.formatVersion: 3, or choose another type",
            )
    key = observed.schema.key
    for column in (*observed.schema.fields, *(key.fields if key is not None else ())):
        if column.default is not None:
            return Failure(
                Reason.BAD_SCHEMA,
                f"spec.schema.fields: {column.name}: tables of format version {observed.target.format_version} have no defaults; set"
                " spec.table.formatVersion: 3, or remove default",
            )
    return None


def key_fits(observed: ObservedTopic) -> Failure | None:
    """Check that no field of the values has the name of a column of the key."""
    if not isinstance(observed.schema, RecordSchema):
        return None
    names = {column.name.lower(): column.name for column in rows.schema_columns(observed.schema)}
    for column in rows.key_columns(observed.schema.key):
        if column.name.lower() in names:
            return Failure(
                Reason.BAD_SCHEMA,
                f"spec.schema.key: field {names[column.name.lower()]} of the values has the name of column {column.name} of the key;"
                " choose another spec.schema.key.columns, or rename the field",
            )
    return None


def partitioning_fits(observed: ObservedTopic) -> Failure | None:
    """Check that every partition term names a column, with a transform that fits its type, and a partition field of its own."""
    if not isinstance(observed.schema, RecordSchema) or not isinstance(observed.target, TableTarget):
        return None
    columns = rows.columns_of_table(observed.schema, observed.target)
    names: dict[str, str] = {}
    timed: dict[str, str] = {}
    for text in observed.target.partition_by or ():
        field = f"spec.table.partitionBy: {text!r}"
        try:
            term = transforms.parse(text)
            check_term(term, columns)
        except InvalidSpecError as error:
            return Failure(Reason(error.reason), f"spec.table.partitionBy: {error}")
        if observed.schema.format in _BINARY and term.transform == "identity" and is_float(term.column, columns):
            return Failure(
                Reason.BAD_TRANSFORM,
                f"{field}: {term.column} can be NaN in {observed.schema.format}, which Iceberg cannot store as a partition; choose another column",
            )
        if term.field_name in names:
            return Failure(
                Reason.BAD_TRANSFORM,
                f"{field} and {names[term.field_name]!r} both produce the partition field {term.field_name}; remove one of them",
            )
        if term.transform != "identity" and any(column.name == term.field_name for column in columns):
            return Failure(
                Reason.BAD_TRANSFORM,
                f"{field} produces the partition field {term.field_name}, but a column has this name; rename the column or use another transform",
            )
        if term.transform in _TIMES and term.column in timed:
            return Failure(
                Reason.BAD_TRANSFORM,
                f"{field} and {timed[term.column]!r} both partition by the time of {term.column}; keep one of them",
            )
        names[term.field_name] = text
        if term.transform in _TIMES:
            timed[term.column] = text
    return None


def sorting_fits(observed: ObservedTopic) -> Failure | None:
    """Check that every sort term names a column that can be sorted by."""
    if not isinstance(observed.schema, RecordSchema) or not isinstance(observed.target, TableTarget):
        return None
    columns = rows.columns_of_table(observed.schema, observed.target)
    for text in observed.target.sort_by or ():
        try:
            check_term(transforms.parse_sort(text).term, columns)
        except InvalidSpecError as error:
            return Failure(Reason(error.reason), f"spec.table.sortBy: {error}")
    return None


def quality_rules_valid(observed: ObservedTopic) -> Failure | None:
    """Check that every quality rule has a name of its own, and a check that fits the columns of the table."""
    return _check_columns(
        observed,
        "spec.quality.rules",
        lambda columns: quality.check_all("rule", observed.resource.quality_rules, quality.check_rule, columns),
    )


def publish_valid(observed: ObservedTopic) -> Failure | None:
    """Check that every check of publish has a name of its own, and fits the columns of the table."""
    publish = observed.resource.publish
    if publish is None:
        return None
    return _check_columns(
        observed,
        "spec.quality.publish.checks",
        lambda columns: quality.check_all("check", publish.checks, quality.check_publish, columns),
    )


def filter_valid(observed: ObservedTopic) -> Failure | None:
    """Check that the filter fits the columns of the table."""
    condition = observed.resource.filter
    if not condition:
        return None
    return _check_columns(observed, "spec.schema.filter", lambda columns: quality.check_filter(condition, columns))


def _check_columns(observed: ObservedTopic, field: str, check: Callable[[Sequence[Column]], None]) -> Failure | None:
    """Return the failure of ``check``, which gets the columns of the table and raises InvalidSpecError."""
    if not isinstance(observed.schema, RecordSchema) or not isinstance(observed.target, TableTarget):
        return None
    try:
        check(rows.columns_of_table(observed.schema, observed.target))
    except InvalidSpecError as error:
        return Failure(Reason(error.reason), f"{field}: {error}")
    return None


CHECKS: tuple[Check, ...] = (
    profile_exists,
    group_exists,
    catalog_exists,
    registry_exists,
    salts_exist,
    gate_served,
    namespace_allowed,
    schema_valid,
    table_name_valid,
    tenancy.topic_name_allowed,
    tenancy.table_namespace_allowed,
    topic_is_ours,
    table_is_ours,
    shared_table_possible,
    shared_table_agrees,
    history_possible,
    config_keys_valid,
    tenancy.topic_configs_allowed,
    tenancy.table_properties_allowed,
    tenancy.partitions_allowed,
    routes.route_valid,
    routes.routes_valid,
    key_fits,
    format_version_fits,
    schema_evolves,
    partitioning_fits,
    sorting_fits,
    quality_rules_valid,
    publish_valid,
    filter_valid,
)


OF_CONFIGURATION: frozenset[Check] = frozenset(
    {
        profile_exists,
        group_exists,
        catalog_exists,
        registry_exists,
        salts_exist,
        gate_served,
        history_possible,
        namespace_allowed,
        tenancy.topic_name_allowed,
        tenancy.table_namespace_allowed,
        tenancy.topic_configs_allowed,
        tenancy.table_properties_allowed,
        tenancy.partitions_allowed,
    }
)
"""Checks whose result depends on the operator's configuration."""


def first_failure(observed: ObservedTopic, *, without: frozenset[Check] = frozenset()) -> Failure | None:
    """Return why the spec is refused, or None. Checks in ``without`` are left out."""
    made = (check for check in CHECKS if check not in without)
    return next((failure for check in made if (failure := check(observed)) is not None), None)


def _check_configured(
    field: str, name: str, configured: Mapping[str, object], reason: Reason, step: str
) -> Failure | None:
    if name in configured:
        return None
    choice = ", ".join(sorted(configured))
    return Failure(reason, f"{field}: {name} is not in the operator's configuration; {step} one of {choice}")


def _not_configured(what: str, section: str, configured: Mapping[str, object]) -> str:
    """Return the message about a member of a section that may have no members."""
    choice = f", or choose one of {', '.join(sorted(configured))}" if configured else ""
    return f"{what} is not in the operator's configuration; add it to {section} there{choice}"


def conflict(what: str, rival: TopicEntry, tenant: str) -> Failure:
    """Return the failure of a resource of namespace ``tenant`` whose topic or table belongs to an older one.

    The message names no resource of another namespace, because a status must not show one tenant the names of another.
    """
    namespace, name = rival.name
    again = "create this IcebergTopic again with another topicName and table.name"
    if namespace == tenant:
        return Failure(
            Reason.RESOURCE_CONFLICT,
            f"{what} belongs to the older IcebergTopic {namespace}/{name}; delete one of the two IcebergTopics, or {again}",
        )
    return Failure(
        Reason.RESOURCE_CONFLICT,
        f"{what} belongs to an older IcebergTopic of another namespace; {again}, or ask an administrator of Firn: the"
        " operator's log names the owner",
        owner=f"{what} belongs to the older IcebergTopic {namespace}/{name}; delete one of the two IcebergTopics",
    )
