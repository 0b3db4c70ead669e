"""A topic's part of the `/progress` document."""

from collections.abc import Iterable

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import FencedError, FirnError
from firn.model.progress import TopicProgress
from firn_spark.ingestion.topics.topic import Topic

_Lines = dict[str, tuple[tuple[object, ...], str]]
"""Uid of an idle topic -> the values that determine its line, and the line."""


class ReportLines:
    """The lines of the `/progress` documents of a driver, one document after the other.

    An operator with thousands of topics reads the document every few seconds, and most topics are idle. The driver encodes
    the line of an idle topic again only after a value in it changed.
    """

    def __init__(self) -> None:
        self._lines: _Lines = {}

    def of(self, topics: Iterable[Topic], now: float, wall: float) -> list[str]:
        """Return the line of each topic; ``now`` is monotonic seconds, ``wall`` is Unix seconds."""
        known, self._lines = self._lines, {}
        return [self._line(topic, known, now, wall) for topic in topics]

    def _line(self, topic: Topic, known: _Lines, now: float, wall: float) -> str:
        values, uid = _idle_values(topic, now), topic.job.uid
        before = known.get(uid)
        if values is not None and before is not None and before[0] == values:
            self._lines[uid] = before
            return before[1]
        line = progress_of(topic, now, wall).model_dump_json()
        # A worker may have changed the topic in between.
        if values is not None and _idle_values(topic, now) == values:
            self._lines[uid] = values, line
        return line


def _idle_values(topic: Topic, now: float) -> tuple[object, ...] | None:
    """Return the values that determine the line of an idle topic; None if the line also depends on the time.

    The objects among them are replaced, not changed, except `Recent`, which counts its changes.
    """
    log, table, totals, attempts, reading = topic.log, topic.table, topic.totals, topic.attempts, topic.reading
    if topic.fenced or log.error is not None or attempts.next_at > now or topic.lag_records:
        return None
    return (
        topic.publishing.report, topic.history.report, topic.job, log.live, bool(log.ends), reading.topic, topic.backfilling, topic.prepared,
        topic.halted, attempts.failures, attempts.error, topic.letters.landed is None,
        table.uuid, table.location, table.error, table.landed, table.losses, table.proposed,
        totals.last_commit, totals.rows, totals.dead, totals.skipped, totals.filtered, totals.failed_rules, topic.recent, topic.recent.changes,
    )  # fmt: skip


def progress_of(topic: Topic, now: float, wall: float) -> TopicProgress:
    """Describe a topic's state; ``now`` is monotonic seconds, ``wall`` is Unix seconds."""
    lag = topic.lag_records if topic.measured(now) else None
    error = _error(topic, now)
    state, reason = _state(topic, lag, error, now)
    table, attempts, totals = topic.table, topic.attempts, topic.totals
    return TopicProgress(
        uid=topic.job.uid,
        generation=topic.job.generation,
        state=state,
        reason=reason,
        message=_message(topic, error),
        failures=attempts.failures,
        next_attempt=wall + (attempts.next_at - now) if attempts.next_at > now else None,
        topic_id=topic.log.live.topic_id if topic.log.live is not None else None,
        table_uuid=table.uuid,
        table_location=table.location,
        table_ready=table.uuid is not None and table.error is None,
        table_reason=table.error.reason if table.error is not None else "",
        table_message=str(table.error) if table.error is not None else "",
        last_commit=totals.last_commit,
        has_landed=topic.has_landed,
        lag_records=lag,
        lag_seconds=None if lag is None else max(0.0, now - (topic.waiting_since or now)),
        lag_bytes=None if lag is None else topic.lag_partition_bytes,
        backfilling=topic.backfilling,
        rows=totals.rows,
        dead_letters=totals.dead,
        skipped=totals.skipped,
        filtered=totals.filtered,
        dead_letter_table=topic.job.table.dead_letters_identifier if topic.letters.landed is not None else None,
        halted_at=topic.halted,
        recent=topic.recent.report(),
        losses=table.losses,
        proposed=table.proposed,
        publish=topic.publishing.report if topic.job.publish is not None else None,
        history=topic.history.report if topic.job.table.history == names.SINGLE else None,
        failed_rules={rule.name: totals.failed_rules.get(rule.name, 0) for rule in topic.job.quality_rules},
    )


def _idle(topic: Topic, now: float) -> bool:
    """Return True if the driver that fenced the topic shows no sign of life."""
    return topic.fenced and topic.fence.idle(now)


def _error(topic: Topic, now: float) -> FirnError | None:
    own = topic.attempts.error
    if isinstance(own, FencedError) and _idle(topic, now):
        own = None
    return own or topic.log.error


def _state(topic: Topic, lag: int | None, error: FirnError | None, now: float) -> tuple[str, str]:
    if topic.job.suspended:
        return "Suspended", Reason.SUSPENDED
    if topic.halted is not None:
        return "Halted", Reason.BAD_RECORD_HALT
    idle = _idle(topic, now)
    if topic.fenced and not idle:
        return "Fenced", Reason.FENCED
    if error is not None:
        return "BackingOff", error.reason
    if topic.prepared or idle:
        return ("Running", Reason.RUNNING) if lag else ("CaughtUp", Reason.CAUGHT_UP)
    return "Starting", "Starting"


def _message(topic: Topic, error: FirnError | None) -> str:
    if topic.halted is not None:
        place = f"partition {topic.halted.partition}, offset {topic.halted.offset}"
        return f"{place}: {topic.halted.code} {topic.halted.column}".rstrip()
    if error is not None and str(error):
        return str(error)
    return ""
