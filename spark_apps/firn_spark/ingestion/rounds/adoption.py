"""Adoption: a table whose newest commit is of another topic is continued only if that is meant.

A topic that was re-created in the same Kafka cluster begins at its start. A topic of another cluster may hold the
same records again, such as a mirror has. So it needs ``spec.ingestion.adopt``, which names the earlier topic and the
first offsets to land.
"""

from typing import Any

from firn.model import names
from firn.model.errors import ConflictError, NotReadyError
from firn.model.jobs import IngestJob
from firn.model.progress import Offsets
from firn_spark.kafka.admin import Kafka, TopicInfo, offsets_of
from firn_spark.tables.commits import Landed, shared_offsets


def check_resource(job: IngestJob, table: Any, landed: Landed | None, *, replaced: bool = False) -> bool:
    """Return whether a shared table lost the offsets of the topic of ``spec.ingestion.adopt``, so that those of the spec count.

    ``landed`` is the newest commit of the resource, which continues only its own earlier topics. So without one it would begin at
    the start of a log that may have the same records again. ``replaced``: the table replaced another, and begins as a new one.
    Raises ConflictError if another resource has landed the topic, or if the spec has no offsets of a topic that ended.
    """
    adopted = job.adopt.topic_id if job.adopt is not None else ""
    if job.adopt is None or landed is not None or not adopted or not job.table.shared:
        return False
    known = shared_offsets(table)
    if known is None or not known.topics:
        return False
    found = known.topics.get(adopted)
    if found is not None:
        raise ConflictError(
            f"table {job.table.identifier}: IcebergTopic {found.resource} has landed topic {adopted} of spec.ingestion.adopt; create this"
            f" IcebergTopic again with the name {found.resource}, or without adopt to land all records of its log"
        )
    if replaced:
        return False
    if not job.adopt.offsets:
        raise ConflictError(
            f"table {job.table.identifier}: it has no offsets of topic {adopted} of spec.ingestion.adopt, because no topic of this id landed"
            " there, or because Kafka has not had it for a month; set the first offsets to land in spec.ingestion.adopt.offsets, or remove"
            " adopt to land all records of the log again"
        )
    return True


def first_offsets(job: IngestJob, table: Any, landed: Landed, live: TopicInfo, kafka: Kafka) -> Offsets | None:
    """Return the offsets at which ``live`` continues a table of another topic; None: at its start, as a re-created topic.

    The log may have deleted records from an adopted offset on. They count as lost, like those of any topic.
    Raises ConflictError if the other topic is not known to be of this Kafka cluster and the spec does not adopt its
    table, and the errors of `adopted_offsets`.
    """
    if job.adopt is None or not job.adopt.topic_id or job.adopt.topic_id != landed.topic_id:
        key = (
            names.of_topic(names.TABLE_KAFKA_CLUSTER, landed.topic_id)
            if job.table.shared
            else names.TABLE_KAFKA_CLUSTER
        )
        recorded, present = table.properties().get(key), kafka.cluster_id()
        if (recorded or "") != present:
            # A table names no cluster if no driver has prepared it since an upgrade from version 0.1.0 or 0.2.0.
            where = f"Kafka cluster {recorded}" if recorded else "an unknown Kafka cluster"
            if not present:
                raise ConflictError(
                    f"table {job.table.identifier}: its records are of topic {landed.topic_id} in {where}, and profile "
                    f"{job.profile} does not report its cluster id; grant the driver's user Describe on the cluster, or "
                    "set spec.ingestion.adopt with this topicId and the first offsets to land"
                )
            raise ConflictError(
                f"table {job.table.identifier}: its records are of topic {landed.topic_id} in {where}, and profile "
                f"{job.profile} is Kafka cluster {present}; to continue the table from this cluster, set spec.ingestion.adopt "
                "with this topicId and the first offsets to land"
            )
        return None
    return adopted_offsets(job, live, kafka)


def adopted_offsets(job: IngestJob, live: TopicInfo, kafka: Kafka) -> Offsets:
    """Return the first offsets of ``spec.ingestion.adopt``: of partitions that it does not list, the start of the log.

    Raises NotReadyError if the log does not reach them yet.
    """
    given = job.adopt.offsets if job.adopt is not None else {}
    parts = {job.topic: live.partitions}
    starts, ends = offsets_of(kafka.starts(parts)[job.topic]), offsets_of(kafka.ends(parts)[job.topic])
    offsets = {part: given.get(part, starts[part]) for part in live.partitions}
    short = [part for part, offset in offsets.items() if offset > ends[part]]
    if short:
        part = short[0]
        raise NotReadyError(
            f"topic {job.topic}: partition {part} ends at offset {ends[part]}, before offset {offsets[part]} of spec.ingestion.adopt; "
            "waiting for the log to reach it, or correct the offset"
        )
    return offsets
