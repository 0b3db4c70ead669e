"""Judges the IcebergTopics of a template before they are made, with the checks of an IcebergTopic that need no I/O."""

from collections import OrderedDict
from dataclasses import replace

from firn.model.config import Config
from firn.model.errors import FirnError, NotReadyError
from firn.model.jobs import RecordSchema
from firn_controllers.cache.topics import EPOCH, topic_entry
from firn_controllers.children import digest
from firn_controllers.conditions.health import DependencyHealth
from firn_controllers.conditions.stable_text import steady
from firn_controllers.fleet.health import FleetHealth
from firn_controllers.iceberg_topic import checks, tenancy
from firn_controllers.iceberg_topic.failure import Check
from firn_controllers.iceberg_topic.observed import ObservedTopic, schema_of, target_of
from firn_controllers.ingestion_group.health import GroupHealth
from firn_controllers.topic_sets.template import Refusal, Rendered

MOST_KNOWN = 1000
"""Verdicts in memory. A template whose specs differ more than in names has one for each topic."""


class Judge:
    """Refuses IcebergTopics that would have SpecValid False. It judges specs that differ only in names once."""

    def __init__(self, config: Config, *, configured: bool) -> None:
        """``configured``: check what the configuration allows, too."""
        self._config = config
        # The number of partitions that a namespace may still use changes all the time.
        self._without: frozenset[Check] = frozenset({tenancy.partitions_allowed})
        if not configured:
            self._without |= checks.OF_CONFIGURATION
        self._known: OrderedDict[str, str] = OrderedDict()
        """Digest of a spec without the names of topic and table -> the message of its failure; empty if it is valid."""

    def judged(self, rendered: Rendered) -> Rendered:
        """Return an IcebergTopic with its refusal, if a check fails."""
        if rendered.resource is None:
            return rendered
        spec = {key: value for key, value in rendered.manifest["spec"].items() if key != "topicName"}
        table = {key: value for key, value in (spec.get("table") or {}).items() if key != "name"}
        key = digest({**spec, "table": table})
        message = self._known.get(key)
        if message is None:
            message = self._known[key] = self._failure(rendered)
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
        if not message:
            return rendered
        refusal = Refusal(rendered.topic, "InvalidSpec", steady(f"template: {message}"))
        return replace(rendered, resource=None, table=None, refusal=refusal)

    def _failure(self, rendered: Rendered) -> str:
        assert rendered.resource is not None
        resource = rendered.resource
        schema: RecordSchema | FirnError = schema_of(resource)
        if isinstance(schema, RecordSchema) and schema.has_found_columns:
            schema = NotReadyError("checks of a template ask no schema registry, and compile no Protobuf")
        observed = ObservedTopic(
            config=self._config,
            entry=topic_entry(rendered.manifest, self._config),
            resource=resource,
            schema=schema,
            target=target_of(resource, self._config.default_catalog),
            topic_rival=None,
            table_rival=None,
            fleet=FleetHealth(),
            catalog=DependencyHealth(),
            group=GroupHealth(),
            progress=None,
            job=None,
            now=EPOCH,
        )
        failure = checks.first_failure(observed, without=self._without)
        return failure.message if failure is not None else ""
