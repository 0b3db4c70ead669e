"""Routes: the further tables of a topic, each with an IcebergTopic of its own that the operator makes.

The IcebergTopic with ``spec.routes`` is the parent. It has the Kafka topic, and lands the records that no route takes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from firn.api.v1alpha1.iceberg_topic import IcebergTopic, IcebergTopicSpec, RoutesSpec, RouteTableSpec
from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import RecordSchema, Route, SchemaFormat, TableTarget
from firn.schemas.routes import BINARY, MESSAGE, check_unchanged, registry_schema, value_schema
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.children import digest
from firn_controllers.conditions.render import Verdict
from firn_controllers.conditions.stable_text import steady
from firn_controllers.iceberg_topic.failure import Failure
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.ports import Manifest
from firn_controllers.specs.expressions import compiled

_OF_SCHEMA = ("quality",)
"""Parts of the parent's spec that only fit its own schema."""
_OF_TOPIC = ("routes", "partitions", "config", "topicName", "profile", "table", "schema")
"""Parts of the parent's spec that are about its topic and table."""
_OF_GATE = (names.SCHEMA_REGISTRY, names.SCHEMA_SUBJECT, names.SCHEMA_CONTRACT)
"""Configs of a Kafka topic by which brokers check its records."""


@dataclass(frozen=True, slots=True)
class RoutedTable:
    """A table of ``spec.routes`` and the IcebergTopic that serves it."""

    name: str
    topic: str
    """Name of the IcebergTopic."""
    entry: TopicEntry | None = None
    """The IcebergTopic as it is; None before it exists."""
    problem: str = ""
    """Why the IcebergTopic cannot be created or changed."""

    @property
    def ready(self) -> Verdict:
        """The condition Ready of the IcebergTopic, with its name in the message."""
        if self.problem:
            return Verdict("False", Reason.BAD_ROUTE, self.problem)
        found = self.entry.condition(ConditionType.READY) if self.entry is not None else None
        if found is None:
            return Verdict("Unknown", Reason.PENDING, f"waiting for IcebergTopic {self.topic} of table {self.name}")
        return Verdict(found["status"], Reason(found["reason"]), f"IcebergTopic {self.topic}: {found['message']}")

    def document(self) -> Manifest:
        """Return the entry of ``status.tables``."""
        status: Mapping[str, Any] = self.entry.status if self.entry is not None else {}
        table, ingestion = status.get("table") or {}, status.get("ingestion") or {}
        ready, fresh = self.ready, self.entry.condition(ConditionType.FRESH) if self.entry is not None else None
        known = {
            "identifier": table.get("identifier"),
            "uuid": table.get("uuid"),
            "lastCommitTime": ingestion.get("lastCommitTime"),
            "deadLetters": ingestion.get("deadLetters"),
        }
        return {
            "name": self.name,
            "topic": self.topic,
            "ready": ready.status,
            "reason": str(ready.reason),
            "fresh": fresh["status"] if fresh is not None else "Unknown",
            **{key: value for key, value in known.items() if value is not None},
        }


def routes_ready(tables: tuple[RoutedTable, ...]) -> Verdict:
    """Return the condition about all tables: that of the first one that is not ready."""
    verdicts = [table.ready for table in tables]
    for status in ("False", "Unknown"):
        for verdict in verdicts:
            if verdict.status == status:
                return Verdict(verdict.status, verdict.reason, steady(verdict.message))
    return Verdict("True", Reason.ALL_READY, "all tables of spec.routes are ready")


# The route of a contract


def contract_route(observed: ObservedTopic) -> Route | None:
    """Return the records that the contract lands; None for all, and while they are not known. Raises InvalidSpecError."""
    spec = observed.resource.spec
    if spec.routes is not None and isinstance(observed.schema, RecordSchema):
        values = _values(observed, observed.resource, observed.schema)
        every = tuple(table.match for table in spec.routes.tables)
        return Route(values=values, before=every, otherwise=spec.routes.otherwise)
    found, parent = _listed(observed), observed.parent.resource if observed.parent is not None else None
    if found is None or parent is None or not isinstance(observed.parent_schema, RecordSchema):
        return None
    routes, place = found
    values = _values(observed, parent, observed.parent_schema)
    before = tuple(table.match for table in routes.tables[:place])
    return Route(values=values, match=routes.tables[place].match, before=before)


def _values(observed: ObservedTopic, topic: IcebergTopic, schema: RecordSchema) -> RecordSchema:
    """Return the schema of the value that decides. ``topic`` has the routes, and its values have ``schema``.

    Raises InvalidSpecError if it reads other values than that of the contract in force.
    """
    assert topic.spec.routes is not None
    by = topic.spec.routes.by
    by_writers = _by_writers(topic.spec, topic.spec.routes)
    values = _of_registry(topic.spec, topic.spec.routes) if by_writers else value_schema(schema, by)
    if observed.job is not None and observed.job.job.route is not None:
        check_unchanged(observed.job.job.route.values, values, by)
    return values


def _by_writers(spec: IcebergTopicSpec, routes: RoutesSpec) -> bool:
    """Return whether the value that decides needs the schemas of writers. A topic without a format has that of its routes."""
    if not routes.by.startswith("$"):
        return routes.by == MESSAGE
    own = spec.record_schema
    if own is not None and own.format is not None:
        return own.registry is not None and own.format in BINARY
    return any(schema["format"] in BINARY for schema in _of_registries(spec, routes).values())


def _of_registries(spec: IcebergTopicSpec, routes: RoutesSpec) -> dict[str, dict[str, Any]]:
    """Return the schemas with a registry, of the topic and of its routes, by their field of the spec."""
    own = spec.record_schema
    named = {"spec.schema": own.model_dump(by_alias=True, exclude_none=True) if own is not None else {}} | {
        f"spec.routes.tables[{place}].schema": table.record_schema or {} for place, table in enumerate(routes.tables)
    }
    return {place: schema for place, schema in named.items() if schema.get("registry") and schema.get("format")}


def _of_registry(spec: IcebergTopicSpec, routes: RoutesSpec) -> RecordSchema:
    """Return the schema that reads messages or a field with the registry of all tables. Raises InvalidSpecError (BadRoute)."""
    found = _of_registries(spec, routes)
    if not found:
        raise InvalidSpecError(
            "spec.routes.by: message needs schemas in a registry, and neither spec.schema nor a schema of the routes names a registry; set"
            " registry there, or by: header:NAME or key",
            reason=Reason.BAD_ROUTE,
        )
    first, *others = (
        (place, each["format"], each["registry"].get("name", ""), each["registry"].get("idIn", "Payload"))
        for place, each in found.items()
    )
    for other in others:
        if other[1:] != first[1:]:
            raise InvalidSpecError(
                f"spec.routes.by: with {routes.by}, all schemas need the same format, registry.name and registry.idIn, and {other[0]} differs from"
                f" {first[0]}; change one of them, or set by: header:NAME or key",
                reason=Reason.BAD_ROUTE,
            )
    return registry_schema(SchemaFormat(first[1]), first[2], first[3], routes.by)


def registries(topic: IcebergTopic) -> Mapping[str, str]:
    """Return the schema registries in which a topic looks up the schemas that decide about its records, by the field of its routes."""
    found = topic.spec.routes
    if found is None or not _by_writers(topic.spec, found):
        return {}
    schemas = {
        f"spec.routes.tables[{place}].schema": table.record_schema or {} for place, table in enumerate(found.tables)
    }
    return {
        f"{field}.registry": schema["registry"].get("name", "")
        for field, schema in schemas.items()
        if schema.get("registry")
    }


def awaits_route(observed: ObservedTopic) -> bool:
    """Return whether the contract needs a route that is not known yet. Raises InvalidSpecError."""
    spec = observed.resource.spec
    return (spec.routes is not None or spec.route is not None) and contract_route(observed) is None


def _listed(observed: ObservedTopic) -> tuple[RoutesSpec, int] | None:
    """Return the routes of the parent, and the place of this table among them."""
    parent = observed.parent.resource if observed.parent is not None else None
    routes = parent.spec.routes if parent is not None else None
    if routes is None:
        return None
    name = observed.resource.spec.table.name
    place = next((place for place, table in enumerate(routes.tables) if table.name == name), None)
    return (routes, place) if place is not None else None


# Checks


def route_valid(observed: ObservedTopic) -> Failure | None:
    """Check that a resource with spec.route has a parent with this table, which has the Kafka topic."""
    route, parent = observed.resource.spec.route, observed.parent
    if route is None:
        return None
    own = "the operator sets spec.route itself; delete this IcebergTopic"
    if parent is None or parent.metadata.deletion_timestamp is not None:
        return Failure(Reason.BAD_ROUTE, f"spec.route.of: IcebergTopic {route.of} does not exist; {own}")
    same = parent.resource is not None and parent.profile == observed.entry.profile
    if not same or parent.resource is None or parent.resource.topic_name != observed.resource.topic_name:
        text = f"spec.route.of: IcebergTopic {route.of} does not serve Kafka topic {observed.resource.topic_name} of profile"
        return Failure(Reason.BAD_ROUTE, f"{text} {observed.entry.profile}; {own}")
    if _listed(observed) is None:
        table = observed.resource.spec.table.name
        return Failure(Reason.BAD_ROUTE, f"spec.route.of: IcebergTopic {route.of} has no route to table {table}; {own}")
    if parent.in_conflict:
        return Failure(
            Reason.RESOURCE_CONFLICT,
            f"spec.route.of: IcebergTopic {route.of} does not have the Kafka topic; follow the message of its condition SpecValid",
        )
    try:
        contract_route(observed)
    except InvalidSpecError as error:
        return Failure(Reason.BAD_ROUTE, f"spec.route.of: IcebergTopic {route.of}: {error}")
    return None


def routes_valid(observed: ObservedTopic) -> Failure | None:
    """Check the routes of a topic, and the spec of each IcebergTopic that the operator makes of them."""
    routes = observed.resource.spec.routes
    if routes is None:
        return None
    try:
        problem = next(_problems(observed, routes), None)
        if problem is not None:
            return Failure(Reason.BAD_ROUTE, problem)
        for place, table in enumerate(routes.tables):
            field = f"spec.routes.tables[{place}].match"
            # A quotation without an end, as in \Q, is only valid alone.
            compiled(field, table.match, Reason.BAD_ROUTE)
            compiled(field, rf"\A(?:{table.match})\z", Reason.BAD_ROUTE)
        contract_route(observed)
    except InvalidSpecError as error:
        return Failure(Reason(error.reason), str(error))
    for place, manifest in enumerate(manifests(observed) if isinstance(observed.target, TableTarget) else ()):
        try:
            child = IcebergTopic.parse(manifest)
            child.row_schema()
        except InvalidSpecError as error:
            text = str(error).removeprefix(f"IcebergTopic {manifest['metadata']['name']}: ")
            return Failure(Reason.BAD_SCHEMA, f"spec.routes.tables[{place}]: {text}")
        failure = _gate_serves(observed.resource, child, place)
        if failure is not None:
            return failure
    return None


def _gate_serves(topic: IcebergTopic, table: IcebergTopic, place: int) -> Failure | None:
    """Check that brokers, which have one gate for the topic, check the records of a table by its schema."""
    gate = topic.spec.record_schema.gate if topic.spec.record_schema is not None else "None"
    own = table.spec.record_schema
    if gate == "None" or own is None or own == topic.spec.record_schema:
        return None
    gated = table.spec.model_copy(update={"record_schema": own.model_copy(update={"gate": gate})})
    configs, of_topic = table.model_copy(update={"spec": gated}).topic_configs, topic.topic_configs
    in_payload = own.registry is None or own.registry.id_in == "Payload"
    if not in_payload or any(configs.get(key) != of_topic.get(key) for key in _OF_GATE):
        return Failure(
            Reason.BAD_SCHEMA,
            f"spec.schema.gate: brokers check all records of the topic by spec.schema, and spec.routes.tables[{place}] has values of another"
            " schema; remove gate",
        )
    return None


def _problems(observed: ObservedTopic, routes: RoutesSpec) -> Iterator[str]:
    """Yield what is wrong with the names, and with parts of the spec that routes exclude."""
    spec = observed.resource.spec
    if spec.ingestion.adopt is not None:
        yield "spec.ingestion.adopt: a topic with routes cannot continue a table; remove adopt, or remove routes"
    if spec.ingestion.start_from == "Latest":
        yield (
            "spec.ingestion.startFrom: with Latest, the tables of spec.routes would begin at different records; set Earliest or a timestamp"
        )
    own = observed.target.name if isinstance(observed.target, TableTarget) else ""
    tables = {own.lower(): "the topic's own table"}
    topics: dict[str, str] = {}
    for place, table in enumerate(routes.tables):
        field = f"spec.routes.tables[{place}].name"
        if (table.record_schema or {}).get("gate", "None") != "None":
            yield (
                f"spec.routes.tables[{place}].schema.gate: brokers check all records of the topic by spec.schema.gate; remove gate from the schema"
                " of the route"
            )
        if table.name.endswith(names.DEAD_LETTER_SUFFIX):
            yield (
                f"{field}: names that end in {names.DEAD_LETTER_SUFFIX} are reserved for dead-letter tables; choose another name"
            )
        other = tables.setdefault(table.name.lower(), f"spec.routes.tables[{place}]")
        if other != f"spec.routes.tables[{place}]":
            yield (
                f"{field}: {table.name} is the name of {other}, or differs from it only in case, which query engines ignore; choose another"
                " name"
            )
        name = child_name(observed.resource.metadata.name, table.name)
        if not names.is_resource(name):
            yield (
                f"{field}: the IcebergTopic of table {table.name} would have the name {name}, but {names.RESOURCE_NAMES}; choose another name"
            )
        if topics.setdefault(name, table.name) != table.name:
            yield f"{field}: {topics[name]} and {table.name} give the same name {name} of an IcebergTopic; rename one of them"


# The IcebergTopics of routed tables


def child_name(parent: str, table: str) -> str:
    """Return the name of the IcebergTopic of a table."""
    return f"{parent}-{table.lower().replace('_', '-')}"


def manifests(observed: ObservedTopic) -> tuple[Manifest, ...]:
    """Return the IcebergTopics of all tables of ``spec.routes``, in their order."""
    routes, target = observed.resource.spec.routes, observed.target
    if routes is None or not isinstance(target, TableTarget):
        return ()
    return tuple(_manifest(observed, target, table) for table in routes.tables)


def _manifest(observed: ObservedTopic, target: TableTarget, table: RouteTableSpec) -> Manifest:
    parent = observed.resource
    given = parent.spec.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude_none=True)
    spec = {key: value for key, value in given.items() if key not in _OF_TOPIC}
    own = given.get("table") or {}
    layout = ("partitionBy", "sortBy")
    kept = {key: value for key, value in own.items() if table.record_schema is None or key not in layout}
    chosen = {"partitionBy": table.partition_by, "sortBy": table.sort_by}
    spec["table"] = {
        **kept,
        **{key: list(value) for key, value in chosen.items() if value is not None},
        "catalog": target.catalog,
        "namespace": target.namespace,
        "name": table.name,
    }
    if table.record_schema is not None:
        spec = {key: value for key, value in spec.items() if key not in _OF_SCHEMA}
        spec["schema"] = table.record_schema
    elif "schema" in given:
        spec["schema"] = given["schema"]
    spec |= {"profile": observed.entry.profile, "topicName": parent.topic_name, "route": {"of": parent.metadata.name}}
    labels = {key: value for key, value in parent.metadata.labels.items() if not key.startswith(f"{names.GROUP}/")}
    labels[names.LABEL_ROUTES_OF] = parent.metadata.name
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": "IcebergTopic",
        "name": parent.metadata.name,
        "uid": observed.entry.uid,
        "controller": True,
    }
    return {
        "apiVersion": names.API_VERSION,
        "kind": "IcebergTopic",
        "metadata": {
            "name": child_name(parent.metadata.name, table.name),
            "namespace": parent.metadata.namespace,
            "labels": labels,
            "annotations": {names.TEMPLATE_HASH: digest([labels, observed.entry.uid, spec])},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def is_child(live: TopicEntry, manifest: Manifest) -> bool:
    """Return whether an IcebergTopic is the one that the operator made for the table."""
    spec = manifest["spec"]
    resource = live.resource
    return (
        resource is not None
        and live.parent == (live.name[0], spec["route"]["of"])
        and resource.spec.table.name == spec["table"]["name"]
    )


def taken(name: str, topic: str) -> str:
    """Return why a table has no IcebergTopic: another one has the name."""
    return (
        f"spec.routes: table {name}: IcebergTopic {topic} exists already, and the operator did not make it for this route; delete it, or"
        " create this IcebergTopic again under another name"
    )
