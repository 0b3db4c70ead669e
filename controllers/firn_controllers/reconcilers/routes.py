"""The IcebergTopics of the tables of ``spec.routes``: created and updated with the IcebergTopic that has the routes.

Kubernetes deletes them with that IcebergTopic, which owns them.
"""

from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.model.errors import AccessDeniedError, ConflictError, InvalidSpecError
from firn_controllers.conditions.stable_text import steady
from firn_controllers.iceberg_topic import routes
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.iceberg_topic.routes import RoutedTable
from firn_controllers.iceberg_topic.status import TopicFindings
from firn_controllers.ports import Manifest, TopicState
from firn_controllers.reconcilers.context import Context
from firn_controllers.topic_sets.template import Rendered


class RoutedTables:
    """Makes the IcebergTopics of routed tables follow the spec of their parent."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._agreed: dict[str, tuple[str, int]] = {}
        """Uid of an IcebergTopic whose spec agreed -> digest of the wanted one, and its generation."""

    async def agree(self, observed: ObservedTopic, findings: TopicFindings) -> tuple[RoutedTable, ...]:
        """Create and update the IcebergTopics if the parent has its Kafka topic and a valid spec. Return all of them."""
        follows = findings.failure is None and isinstance(findings.topic, TopicState)
        spec = observed.resource.spec.routes
        wanted = routes.manifests(observed) if follows else ()
        if spec is None or not wanted:
            return ()
        tables = [each.name for each in spec.tables]
        self._agreed = {uid: each for uid, each in self._agreed.items() if self._context.topics.by_uid(uid) is not None}
        return tuple([await self._table(name, manifest) for name, manifest in zip(tables, wanted, strict=True)])

    async def _table(self, name: str, manifest: Manifest) -> RoutedTable:
        metadata = manifest["metadata"]
        topic, place = metadata["name"], (metadata["namespace"], metadata["name"])
        live = self._context.topics.get(place)
        if live is not None and not routes.is_child(live, manifest):
            return RoutedTable(name, topic, None, routes.taken(name, topic))
        if live is not None and live.metadata.deletion_timestamp is not None:
            return RoutedTable(name, topic, live)
        rendered = Rendered(topic, manifest, IcebergTopic.parse(manifest))
        if live is None or not rendered.agrees(live, self._agreed):
            try:
                wanted = manifest if live is None else rendered.over(live)
                self._context.topic_applied(await self._context.ports.cluster.apply_topic(wanted, create=live is None))
            except (AccessDeniedError, InvalidSpecError) as error:
                return RoutedTable(name, topic, live, steady(f"spec.routes: table {name}: {error}"))
            except ConflictError:
                return RoutedTable(name, topic, live, routes.taken(name, topic))
        return RoutedTable(name, topic, self._context.topics.get(place))
