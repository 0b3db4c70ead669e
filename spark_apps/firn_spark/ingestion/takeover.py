"""Takeover of a table from a stopped connector of the Apache Iceberg sink of Kafka Connect.

A task of the sink writes files. In one transaction, it sends their names to the control topic, and commits the offsets
of their records in the connector's consumer group (Worker.receive, Channel.send). The sink's coordinator later commits
the files to the table. The summary of this snapshot has the offsets of the control topic before which every event is
done. The coordinator commits the same offsets in a consumer group of its own (Coordinator.doCommit).

So the offsets of the connector's group say which records are in the table, if no event with files waits behind both of
these places. The driver's first commit sets the sink's key in its summary to the end of the control topic. A coordinator
that still runs then commits none of the events before it (Coordinator.commitToTable).
"""

import json
from dataclasses import dataclass
from itertools import islice
from typing import Any

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import CorruptDataError, FirnError, NotReadyError
from firn.model.jobs import IngestJob, SinkCommits
from firn.model.progress import Offsets
from firn_spark.jvm import texts
from firn_spark.kafka.admin import Kafka, TopicInfo, offsets_of
from firn_spark.kafka.sink_events import data_written
from firn_spark.tables.commits import INGEST, Landed, OtherWriter, history, newest_summary, wrote_last

_WAITING = Reason.WAITING_FOR_CONNECTOR
_KEYS = "kafka.connect.offsets."
MOST_SNAPSHOTS = 200
"""Newest snapshots among which `check_named` looks for a connector, except in shared tables. Each one costs a call of Java."""


@dataclass(frozen=True, slots=True)
class Takeover:
    """The first offsets to land, and the sink's state that the first commit replaces."""

    offsets: Offsets
    sink: OtherWriter


def key_of(job: IngestJob) -> str:
    """Return the key of the sink that ``job`` names; empty without one."""
    sink = job.adopt.connect if job.adopt is not None else None
    return _key(sink) if sink is not None else ""


def is_due(job: IngestJob, sink: SinkCommits, table: Any, landed: Landed | None, kafka: Kafka) -> bool:
    """Return whether ``sink`` wrote the table last: no record has landed, or it continued the table after ingestion.

    If another engine has expired the snapshots that show this, the offsets of the sink's group decide. Raises the errors of `Kafka`.
    """
    if landed is None:
        return True
    is_last = wrote_last(table, _key(sink))
    return is_last if is_last is not None else _has_moved(job, sink, table, kafka)


def _has_moved(job: IngestJob, sink: SinkCommits, table: Any, kafka: Kafka) -> bool:
    """Return whether the sink has read records since the topic took the table over, as far as the table says where it was."""
    known = _Place.read(table.properties().get(names.TABLE_CONNECTOR))
    if known is None or known.group != sink.group:
        return False
    offsets = kafka.group_offsets(sink.group, job.topic, tuple(known.offsets))
    return any(offset > known.offsets[part] for part, offset in offsets.items() if part in known.offsets)


@dataclass(frozen=True, slots=True)
class _Place:
    """The consumer group of a connector, and its offsets, when the topic took the table over."""

    group: str
    offsets: Offsets

    @classmethod
    def read(cls, text: str | None) -> "_Place | None":
        """Read the table property; None if it has no valid value."""
        try:
            value = json.loads(text or "")
            return cls(str(value["group"]), {int(part): int(offset) for part, offset in value["offsets"].items()})
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

    def __str__(self) -> str:
        return json.dumps({"group": self.group, "offsets": {str(part): at for part, at in self.offsets.items()}})


def find(
    job: IngestJob, sink: SinkCommits, table: Any, landed: Landed | None, live: TopicInfo, kafka: Kafka
) -> Takeover:
    """Return where ``sink``, which has to be stopped, ended in each partition of ``live``.

    If ``landed`` is of the same topic and further, records before it are in the table too. Raises NotReadyError (WaitingForConnector) if the
    connector runs or the place is not known exactly, and the errors of `Kafka`.
    """
    key = _key(sink)
    recorded = newest_summary(table, key)
    offsets = job.adopt.offsets if job.adopt is not None else {}
    if recorded is None and landed is not None and not offsets:
        raise NotReadyError(
            f"table {job.table.identifier}: the connector has read records after the topic took the table over, and the snapshots that show"
            " its commits have expired, so rows may be in the table twice; stop the connector, delete such rows, and list the first offsets"
            " in spec.ingestion.adopt.offsets",
            reason=_WAITING,
        )
    if recorded is None and landed is None:
        raise NotReadyError(
            f"table {job.table.identifier}: no snapshot has the key {key} of the Iceberg sink; correct "
            "spec.ingestion.adopt.connect or spec.table, or start the connector again, wait until it has committed, and stop it",
            reason=_WAITING,
        )
    check_stopped(sink, kafka)
    control = _control_topic(sink, kafka)
    ends = _settled_ends(sink, control, kafka)
    done = _done(key, recorded) if recorded is not None else {}
    listed = bool(offsets)
    if not listed:
        coordinated = kafka.group_offsets(_coordinator(sink), sink.control_topic, control.partitions)
        begun = {part: max(done.get(part, 0), coordinated.get(part, 0)) for part in done.keys() | coordinated.keys()}
        _check_committed(job, sink, table, begun, ends, kafka)
        offsets = _group_offsets(job, sink, live, kafka)
    value = json.dumps({str(part): max(end, done.get(part, 0)) for part, end in ends.items()})
    first = _first(job, offsets, live, kafka)
    if landed is not None and landed.topic_id == live.topic_id:
        if not listed:
            _check_doubled(job, table, key, landed.offsets, first)
        first = {part: max(offset, landed.offsets.get(part, 0)) for part, offset in first.items()}
    place = _Place(sink.group, kafka.group_offsets(sink.group, job.topic, live.partitions))
    return Takeover(first, OtherWriter(key, recorded, value, str(place)))


def _check_doubled(job: IngestJob, table: Any, key: str, landed: Offsets, ended: Offsets) -> None:
    """Raise NotReadyError if the connector committed more rows after ingestion than there are records which had not landed.

    ``ended``: the next offset of the connector.
    """
    rows, before = 0, None
    for snapshot in history(table):
        summary = texts(snapshot.summary())
        if summary.get(names.SUMMARY_KIND) == INGEST:
            before = snapshot
            break
        if key in summary:
            rows += int(summary.get("added-records", 0))
    new = sum(max(0, offset - landed.get(part, 0)) for part, offset in ended.items())
    if before is not None and rows > new:
        raise NotReadyError(
            f"table {job.table.identifier}: the connector was resumed and committed {rows} rows after the topic took the table over, and only"
            f" {new} of their records had not landed, so rows are in the table twice; stop the connector, and roll the table back to snapshot"
            f" {before.snapshotId()}, after which the topic lands the records itself; or list the first offsets in"
            " spec.ingestion.adopt.offsets to keep these rows",
            reason=_WAITING,
        )


def check_named(job: IngestJob, table: Any) -> None:
    """Raise NotReadyError if a connector wrote the table last, and the contract names neither it nor a start.

    Call it for a table without landed offsets. The default start would land the records of the connector again.
    """
    if job.adopt is not None or job.start_from.kind != "Earliest":
        return
    shared = bool(job.table.shared_by)
    for snapshot in history(table) if shared else islice(history(table), MOST_SNAPSHOTS):
        summary = texts(snapshot.summary())
        if summary.get(names.SUMMARY_KIND) == INGEST and not shared:
            return
        key = next((key for key in summary if key.startswith(_KEYS)), None)
        if key is not None:
            raise NotReadyError(
                f"table {job.table.identifier}: a snapshot has the key {key} of the Iceberg sink, so records of topic {job.topic} may be in the"
                " table already; set spec.ingestion.adopt.connect to continue where the connector ended, or set spec.ingestion.startFrom to a"
                " timestamp or Latest",
                reason=_WAITING,
            )


def _key(sink: SinkCommits) -> str:
    """Return the key of the sink's state in the summaries of its snapshots (Coordinator)."""
    return f"{_KEYS}{sink.control_topic}.{sink.group}"


def _coordinator(sink: SinkCommits) -> str:
    """Return the consumer group of the sink's coordinator."""
    return f"{sink.group}-coord"


def check_stopped(sink: SinkCommits, kafka: Kafka) -> None:
    """Raise NotReadyError if a consumer group of the sink has members."""
    for group in (sink.group, _coordinator(sink)):
        members = kafka.group_members(group)
        if members:
            raise NotReadyError(
                f"consumer group {group} has {members} members, so the connector runs; stop the connector, and keep its configuration "
                "for a way back; after a stop, wait until Kafka removes the members",
                reason=_WAITING,
            )


def _control_topic(sink: SinkCommits, kafka: Kafka) -> TopicInfo:
    found = kafka.topics([sink.control_topic])[sink.control_topic]
    if isinstance(found, NotReadyError):
        raise NotReadyError(
            f"control topic {sink.control_topic} does not exist in profile {kafka.profile}; correct "
            "spec.ingestion.adopt.connect.controlTopic",
            reason=_WAITING,
        ) from found
    if isinstance(found, FirnError):
        raise found
    return found


def _settled_ends(sink: SinkCommits, control: TopicInfo, kafka: Kafka) -> Offsets:
    """Return the ends of the control topic. Raises NotReadyError while a transaction is open."""
    parts = {sink.control_topic: control.partitions}
    ends = offsets_of(kafka.ends(parts)[sink.control_topic])
    if ends != offsets_of(kafka.high_watermarks(parts)[sink.control_topic]):
        raise NotReadyError(
            f"control topic {sink.control_topic} has an open transaction of a connector; waiting for Kafka to end it, which takes "
            "about a minute after the connector was killed",
            reason=_WAITING,
        )
    return ends


def _done(key: str, recorded: str) -> Offsets:
    """Return the offsets of the control topic before which every event is in the table."""
    try:
        return {int(part): int(offset) for part, offset in json.loads(recorded).items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise CorruptDataError(f"snapshot summary: {key} has no offsets, but {recorded[:80]!r}") from error


def _check_committed(
    job: IngestJob, sink: SinkCommits, table: Any, begun: Offsets, ends: Offsets, kafka: Kafka
) -> None:
    """Raise NotReadyError if files of the sink wait for their commit, or if that is not known.

    ``begun`` are the offsets of the control topic at which the sink's coordinator would continue.
    """
    starts = offsets_of(kafka.starts({sink.control_topic: tuple(ends)})[sink.control_topic])
    for part, offset in begun.items():
        if starts.get(part, 0) > offset:
            raise NotReadyError(
                f"control topic {sink.control_topic}: partition {part} begins at offset {starts[part]}, and the connector's last commit "
                f"was at offset {offset}, so files that wait for a commit may be unknown; start the connector again, wait until it "
                "has committed, and stop it, or list the first offsets in spec.ingestion.adopt.offsets",
                reason=_WAITING,
            )
    firsts = {part: max(starts[part], begun.get(part, 0)) for part in ends}
    target, uuid = job.table, str(table.uuid()).replace("-", "")
    files = 0
    for value in kafka.committed(sink.control_topic, firsts, ends):
        try:
            event = data_written(value)
        except CorruptDataError as error:
            raise CorruptDataError(
                f"control topic {sink.control_topic}: {error}; correct spec.ingestion.adopt.connect.controlTopic, or list the first offsets"
                " in spec.ingestion.adopt.offsets"
            ) from error
        if event is None or event.group != sink.group:
            continue
        if (event.namespace, event.table) == ((target.namespace,), target.name) and event.table_uuid in ("", uuid):
            files += event.files
    if files:
        raise NotReadyError(
            f"table {target.identifier}: files that the connector has written wait for their commit ({files}); start the connector again, "
            "wait until it has committed, and stop it",
            reason=_WAITING,
        )


def _group_offsets(job: IngestJob, sink: SinkCommits, live: TopicInfo, kafka: Kafka) -> Offsets:
    offsets = kafka.group_offsets(sink.group, job.topic, live.partitions)
    if not offsets:
        raise NotReadyError(
            f"topic {job.topic}: consumer group {sink.group} has no offsets of it, because they expired or the connector reads another "
            "topic; correct spec.ingestion.adopt.connect or spec.topicName, or list the first offsets in spec.ingestion.adopt.offsets",
            reason=_WAITING,
        )
    return offsets


def _first(job: IngestJob, offsets: Offsets, live: TopicInfo, kafka: Kafka) -> Offsets:
    """Return the first offset of each partition. A partition that the sink has not read begins at its start."""
    parts = {job.topic: live.partitions}
    starts, ends = offsets_of(kafka.starts(parts)[job.topic]), offsets_of(kafka.ends(parts)[job.topic])
    first = {part: offsets.get(part, starts[part]) for part in live.partitions}
    beyond = next((part for part, offset in first.items() if offset > ends[part]), None)
    if beyond is not None:
        raise NotReadyError(
            f"topic {job.topic}: partition {beyond} ends at offset {ends[beyond]}, before offset {first[beyond]} of the connector, "
            "because the topic was created again or is another one; correct spec.topicName or spec.profile, or list the first offsets "
            "in spec.ingestion.adopt.offsets",
            reason=_WAITING,
        )
    return first
