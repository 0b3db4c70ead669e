"""The schemas by which routes decide about records: requested for all tables of a topic together."""

import functools
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from firn.model.errors import NotReadyError
from firn.model.jobs import WriterSchema
from firn_spark.ingestion.topics.refused_schemas import RefusedSchemas
from firn_spark.ingestion.topics.route_schemas import SharedRouteSchemas
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.schemas.registries import Registries, refused_before
from firn_spark.tables.commits import Committer
from firn_spark.tables.java_tables import Tables
from firn_spark.worker.formats.writer_schemas import Reference, Refusal


class Routing:
    """Requests schemas for topics whose routes need those of writers. It does nothing for other topics."""

    def __init__(self, tables: Tables, committer: Committer, registries: Registries) -> None:
        self._tables = tables
        self._committer = committer
        self._registries = registries
        self._schemas = SharedRouteSchemas()
        self._searches = ThreadPoolExecutor(1, thread_name_prefix="search-schemas")

    def share(self, topic: Topic) -> None:
        """Let all contracts of a Kafka topic have the same schemas."""
        if topic.job.route is not None and topic.job.route.by_writers:
            topic.route_schemas = self._schemas.of(topic.job)

    def learn(self, topic: Topic) -> None:
        """Request the schemas that the tasks of a topic need, after its table was read. Raises as `RouteSchemas.learn`."""
        route, schemas = topic.job.route, topic.route_schemas
        if route is None or not route.by_writers:
            return
        if not route.match and topic.table.uuid is not None:
            schemas.keep_in(topic.job.table, topic.table.uuid)
        if topic.job.suspended:
            return
        assert route.values.subject is not None
        schemas.learn(
            functools.partial(self._answer, topic),
            functools.partial(refused_before, route.values.subject.registry),
            lambda: RefusedSchemas(self._committer, functools.partial(self._own_table, topic)),
            time.monotonic(),
            again=topic.reading.repeats > 1,
        )

    def _answer(self, topic: Topic, reference: Reference) -> WriterSchema | Refusal | int:
        """Return the registry's answer. Raises as `Registries.schema`, and NotReadyError for a refusal if the topic halts."""
        assert topic.job.route is not None
        answer = self._registries.find(topic.job.route.values, reference)
        if isinstance(answer, Refusal) and not answer.final and topic.job.on_bad_record == "Halt":
            # Otherwise, the topic's own table would halt at the record, and the other tables would pass it without the schema.
            raise NotReadyError(
                f"topic {topic.job.topic}: {answer.detail}; all tables of the topic wait, because ingestion.onBadRecord is Halt;"
                " register the schema, or set onBadRecord: DeadLetter"
            )
        return answer

    def search(self, topic: Topic) -> None:
        """Ask for the schemas that the registry refused some time ago, beside the rounds."""
        route, now = topic.job.route, time.monotonic()
        if route is not None and not route.match and topic.route_schemas.search_due(now):
            find = functools.partial(self._registries.find, route.values)
            self._searches.submit(topic.route_schemas.search, find, now)

    def _own_table(self, topic: Topic) -> Any:
        """Return the own table of a Kafka topic with routes, also for a contract of a route. Raises FirnError."""
        assert topic.job.route is not None
        by, target = topic.job.route.by, topic.route_schemas.own_table
        if target is None:
            raise NotReadyError(
                f"Kafka topic {topic.job.topic}: routes by {by} need the topic's own table, which the driver has not read yet; if the IcebergTopic"
                " with spec.routes is not Ready, follow its conditions"
            )
        table = self._tables.load(target.catalog, target.namespace, target.name)
        if table is None:
            raise NotReadyError(
                f"table {target.identifier}: the routes by {by} of Kafka topic {topic.job.topic} need it, and it no longer exists; wait until"
                " the operator has created it again, or resume its IcebergTopic"
            )
        return table
