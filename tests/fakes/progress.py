"""Port `Progress` in memory, and a driver that follows its contracts without records."""

from firn.model.clock import Clock
from firn.model.jobs import IngestJob
from firn.model.progress import GroupProgress, TopicProgress
from firn.tables.ownership import Ownership
from tests.fakes.tables import FakeTables


class FakeProgress:
    def __init__(self) -> None:
        self.documents: dict[str, tuple[GroupProgress, float]] = {}
        self.reads = 0

    async def read(self, group: str, max_age: float) -> tuple[GroupProgress, float] | None:
        self.reads += 1
        return self.documents.get(group)


class FakeDriver:
    """Progress reports of the drivers of all groups, derived from the contracts. ``report_fields`` overrides fields of a uid."""

    def __init__(self, progress: FakeProgress, tables: FakeTables, clock: Clock) -> None:
        self._progress = progress
        self._tables = tables
        self._clock = clock
        self.report_fields: dict[str, dict[str, object]] = {}

    def run(self, running: set[str], jobs: list[IngestJob]) -> None:
        """Update the report of every group in ``running``."""
        self._progress.documents = {
            group: (
                GroupProgress(
                    group=group, started=1.0, topics=[self._topic(job) for job in jobs if job.group == group]
                ),
                self._clock.monotonic(),
            )
            for group in running
        }

    def _topic(self, job: IngestJob) -> TopicProgress:
        live = self._tables.tables.get(job.table.identifier)
        if live is None and job.table.format_version == 3:
            live = self._tables.put(job.table, job.record_schema)
        if live is not None and live.target.format_version == 3:
            live.ownership = Ownership(job.uid, job.namespace, live.ownership.cluster)
        fields: dict[str, object] = {
            "uid": job.uid,
            "generation": job.generation,
            "state": "Suspended" if job.suspended else "CaughtUp",
            "topic_id": job.topic_id,
            "table_uuid": live.uuid if live else None,
            "table_location": "s3://firn",
            "table_ready": live is not None,
            "lag_records": 0,
            "lag_seconds": 0.0,
            **self.report_fields.get(job.uid, {}),
        }
        return TopicProgress.model_validate(fields)
