"""Looks for topics of a shared table that Kafka no longer has, so that a commit can remove their offsets and properties.

The table keeps the offsets of a topic that may ever have records again: without them, all of its records would land once more.
Kafka never uses an id again. So the offsets of a topic without an IcebergTopic end after its brokers had no topic of this id
for `firn.model.progress.ENDED_MS`. Only new topics make the table grow, so the driver looks when it prepares one.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import structlog

from firn.model import names
from firn.model.errors import FirnError, NotReadyError
from firn.model.jobs import IngestJob
from firn.model.progress import Look, SharedOffsets, TopicCommit, View
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.jvm import texts
from firn_spark.kafka.admin import Kafka, TopicInfo
from firn_spark.tables.commits import shared_offsets

log = structlog.get_logger()

PAUSE = 3600.0
"""Least seconds between two looks of a driver for one table and profile. Thousands of topics may begin at once."""


class EndedTopics:
    """Asks the brokers about the topics of shared tables."""

    def __init__(
        self,
        kafkas: Callable[[str], Kafka],
        contracts: Callable[[], Mapping[str, IngestJob] | None],
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        """``contracts`` returns those of all IcebergTopics of the group; None while they are not known."""
        self._kafkas = kafkas
        self._contracts = contracts
        self._now_ms = now_ms
        self._looked: dict[tuple[str, str], float] = {}
        """Table and profile -> time of the last look, in monotonic seconds."""
        self._lock = threading.Lock()

    def look(self, topic: Topic, table: Any) -> Look | None:
        """Return which topics of ``table`` the brokers have, for the first commit of ``topic``; None if it has one, or after a recent look.

        An answer without a certain result counts as none.
        """
        known = shared_offsets(table) if topic.view is not None else None
        contracts = self._contracts()
        if known is None or contracts is None or topic.job.topic_id in known.topics or not self._is_due(topic.job):
            return None
        try:
            kafka = self._kafkas(topic.job.profile)
            asked = _asked(topic.job, known, texts(table.properties()), kafka.cluster_id())
            continued = _continued(contracts.values(), topic.job.table.identifier, known)
            answers = kafka.topics({each.topic for topic_id, each in asked.items() if topic_id not in continued})
        except FirnError as error:
            log.warning("the brokers did not say which topics of a shared table ended", error=str(error))
            return None
        present = {topic_id for topic_id, each in asked.items() if _id(answers.get(each.topic)) == topic_id}
        absent = {
            topic_id: each.commit
            for topic_id, each in asked.items()
            if topic_id not in continued and _id(answers.get(each.topic)) not in (None, topic_id)
        }
        return Look(self._now_ms(), frozenset(present | continued), absent)

    def _is_due(self, job: IngestJob) -> bool:
        key, now = (job.table.identifier, job.profile), time.monotonic()
        with self._lock:
            if now - self._looked.get(key, now - PAUSE) < PAUSE:
                return False
            self._looked[key] = now
            return True


def _continued(contracts: Iterable[IngestJob], table: str, known: SharedOffsets) -> set[str]:
    """Return the topics that an IcebergTopic of the group continues: its own, or the earlier one until its own has a commit."""
    jobs = [job for job in contracts if job.table.identifier == table]
    found = [known.of(View(job.topic_id or "", job.table.shared_by)) for job in jobs]
    return {each[0] for each in found if each is not None} | {job.topic_id for job in jobs if job.topic_id}


def _asked(job: IngestJob, known: SharedOffsets, properties: Mapping[str, str], cluster: str) -> dict[str, TopicCommit]:
    """Return the commits of the topics of this Kafka cluster whose IcebergTopics are or were in the group of ``job``."""
    return {
        topic_id: commit
        for topic_id, commit in known.topics.items()
        if commit.topic
        and commit.group == job.group
        and cluster
        and properties.get(names.of_topic(names.TABLE_KAFKA_CLUSTER, topic_id)) == cluster
    }


def _id(answer: TopicInfo | FirnError | None) -> str | None:
    """Return the id of a topic, empty if the brokers have no topic of the name, and None if that is not known."""
    if isinstance(answer, NotReadyError):
        return ""
    return answer.topic_id if isinstance(answer, TopicInfo) else None
