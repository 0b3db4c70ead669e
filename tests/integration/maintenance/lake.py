"""The world of the maintenance tests: tables that the code of ingestion fills, runs, and their results."""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

from firn.model.errors import ExitCode
from firn.model.jobs import Column, IngestJob, RecordSchema, TableTarget
from firn.model.maintenance import MaintenanceRun, RunReport, TableReport, TableWork, unpack
from firn.tables import rows
from firn.tables.ownership import Claimant
from firn_spark.failpoints import Failpoints
from firn_spark.leases import Files, Leases
from firn_spark.maintenance.application import Run
from firn_spark.tables.commits import Committer, Extras, newest, read_landed
from firn_spark.tables.java_tables import Tables
from firn_spark.worker.landing import LandingPlan, TopicLanding, land
from tests.servers.s3 import S3
from tests.unit.spark import records
from tests.unit.spark.tables import results

CATALOG = "tidy_lake"
DAY = 86_400_000
FIELDS = (
    Column(name="id", type="long", required=True),
    Column(name="name", type="string"),
    Column(name="at", type="timestamptz"),
)
NOON = "2024-05-05T12:00:00Z"


def ago(days: float) -> str:
    """Return a time as records have it."""
    return (datetime.now(UTC) - timedelta(days=days)).isoformat()


class Topic:
    """A table under ingestion, without its topic. The code of ingestion lands and commits its rows."""

    def __init__(self, lake: "Lake", fields: tuple[Column, ...] = FIELDS, **changes: Any) -> None:
        name = f"t_{uuid.uuid4().hex[:8]}"
        table = {"catalog": lake.catalog, "namespace": f"ns_{lake.suffix}", "name": name, **changes}
        self.job = IngestJob(
            uid=f"uid-{name}", namespace="tests", name=name, generation=1, group="test", profile="classic", topic="t",
            record_schema=RecordSchema(format="Json", fields=fields), table=TableTarget(**table), freshness_ms=1000,
        )  # fmt: skip
        self.lake = lake
        self.tables = lake.tables
        self.table = self.tables.ensure(self.job)
        self.committer = Committer(self.tables, f"writer/{name}", Failpoints())
        self.spec = self.tables.spec(self.table)
        self.landed = read_landed(self.table)
        self.end = 0

    @property
    def identifier(self) -> str:
        """Return the name under which Spark reads the table for the test."""
        return f"{self.lake.reader}.{self.job.table.namespace}.{self.job.table.name}"

    @property
    def uuid(self) -> str:
        """Return the UUID of the table."""
        return str(self.table.operations().current().uuid())

    def ingest(
        self,
        commits: int = 1,
        count: int = 10,
        at: str | Sequence[str] = NOON,
        timestamp_ms: int | None = None,
        keep_ms: int | None = None,
        more: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Make ``commits`` commits of ``count`` rows each, with consecutive offsets and these record timestamps.

        ``more`` are members of all records beside id, name and at.
        """
        for _ in range(commits):
            times = [at] * count if isinstance(at, str) else list(at)
            values = [
                json.dumps(
                    {"id": self.end + n, "name": f"n{self.end + n}", "at": times[n % len(times)], **more}
                ).encode()
                for n in range(count)
            ]
            written = {} if timestamp_ms is None else {"timestamp": [timestamp_ms * 1000] * count}
            batch = records.batch(values, offset=list(range(self.end, self.end + count)), **written)
            plan = LandingPlan({"t": TopicLanding(self.job, self.spec)}, ingested_at=0)
            output = results(land(iter([batch]), plan))["t"]
            assert "error" not in output, output
            files = [json.dumps(descriptor) for descriptor in output["data"]]
            self.end += count
            self.landed = self.committer.commit(
                self.table, files, self.landed, "topic-id", 1, {0: self.end}, Extras(keep_ms=keep_ms)
            )

    def fresh(self) -> Any:
        table = self.tables.load(self.lake.catalog, self.job.table.namespace, self.job.table.name)
        assert table is not None
        return table

    def work(self, **parts: Any) -> TableWork:
        return TableWork(
            uid=self.job.uid, namespace="tests", name=self.job.name, table=self.job.table,
            table_uuid=self.uuid, **parts,
        )  # fmt: skip

    # What is there

    def rows(self) -> list[dict[str, Any]]:
        frame = self.lake.spark.read.format("iceberg").load(self.identifier)
        rows = [row.asDict(recursive=True) for row in frame.collect()]
        return sorted(rows, key=lambda row: row["_kafka"]["offset"] if row["_kafka"] else -1)

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]

    def check(self) -> None:
        """Check that every row exists once, and that the offsets are those of the last commit."""
        assert self.ids() == list(range(self.end))
        landed = newest(self.fresh())
        assert landed is not None
        assert dict(landed.offsets) == {0: self.end}

    def data_files(self) -> list[dict[str, Any]]:
        return self.metadata("data_files")

    def delete_files(self) -> list[dict[str, Any]]:
        return self.metadata("delete_files")

    def metadata(self, name: str) -> list[dict[str, Any]]:
        frame = self.lake.spark.read.format("iceberg").load(f"{self.identifier}.{name}")
        return [row.asDict(recursive=True) for row in frame.collect()]

    def kinds(self) -> list[str | None]:
        """Return ``firn.kind`` of the snapshots up to the newest, oldest first."""
        table = self.fresh()
        kinds, snapshot = [], table.currentSnapshot()
        while snapshot is not None:
            kinds.append(snapshot.summary().get("firn.kind"))
            snapshot = table.snapshot(snapshot.parentId()) if snapshot.parentId() is not None else None
        return kinds[::-1]

    def sql(self, text: str) -> None:
        self.lake.spark.sql(text.format(t=self.identifier))

    def sql_rows(self, text: str) -> list[Any]:
        return list(self.lake.spark.sql(text.format(t=self.identifier)).collect())

    def dead_letters(self) -> Any:
        return self.tables.create(
            self.job.table,
            f"{self.job.table.name}__dlq",
            rows.dead_letter_columns(),
            ("day(ingested_at)",),
            (),
            Claimant("uid"),
        )

    def objects(self) -> set[str]:
        """Return the files at the table's location in the bucket, relative to it."""
        root = self.lake.path(str(self.table.location()))
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


class Lake:
    """The lake of one test. Runs use the catalog ``catalog``, and Spark reads the tables through ``reader``."""

    def __init__(
        self,
        contract: MaintenanceRun,
        spark: Any,
        tables: Tables,
        storage: S3,
        directory: Path,
        catalog: str = CATALOG,
        reader: str = CATALOG,
    ) -> None:
        self.catalog, self.reader = catalog, reader
        self.contract = contract.model_copy(
            update={"name": f"run-{uuid.uuid4().hex[:8]}", "leases_directory": str(directory / "leases")}
        )
        self.spark = spark
        self.tables = tables
        self.storage = storage
        self.directory = directory
        self.suffix = uuid.uuid4().hex[:8]

    def topic(self, **changes: Any) -> Topic:
        return Topic(self, **changes)

    def path(self, location: str) -> Path:
        """Return the path of the file in which the S3 server stores an object."""
        return self.storage.directory / "buckets" / location.removeprefix("s3://")

    def leases(self, holder: str | None = None) -> Leases:
        return Leases(
            Files(str(self.contract.leases_directory)),
            holder or f"{self.contract.name}/{uuid.uuid4().hex[:6]}",
            self.contract.lease_seconds,
        )

    def prepare(self, *works: TableWork, failpoints: str | Failpoints = "", **changes: Any) -> Run:
        run = self.contract.model_copy(update={"tables": works, **changes})
        points = Failpoints(failpoints) if isinstance(failpoints, str) else failpoints
        return Run(run, self.spark, self.leases(), points)

    def run(self, *works: TableWork, failpoints: str = "", **changes: Any) -> TableReport:
        """Run work in this process to a good end, and return the first table's report."""
        run = self.prepare(*works, failpoints=failpoints, **changes)
        code = run.work()
        assert code == ExitCode.DONE, run.report()
        return run.report().tables[0]

    def spawn(self, *works: TableWork, failpoints: str = "", **changes: Any) -> "Process":
        return Process(self, self.contract.model_copy(update={"tables": works, **changes}), failpoints)


class Process(AbstractContextManager["Process"]):
    """Start the process of a run, as the image does. The end of the with block kills it if it still runs."""

    def __init__(self, lake: Lake, run: MaintenanceRun, failpoints: str) -> None:
        file = lake.directory / "run.json"
        file.write_text(run.model_dump_json())
        self.message = lake.directory / "termination-log"
        self.message.write_text("")
        self.log = lake.directory / "run.log"
        root = Path(__file__).parents[3]
        environment = {
            **os.environ,
            "PYTHONPATH": f"{root}{os.pathsep}{root / 'spark_apps'}",
            "FIRN_FAILPOINTS": failpoints,
            "FIRN_TERMINATION_LOG": str(self.message),
            "SPARK_LOCAL_DIRS": str(lake.directory),
        }
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, str(root / "spark_apps" / "maintain.py"), str(file)],
                env=environment,
                stdout=output,
                stderr=output,
            )

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(30)

    def wait(self, seconds: float = 240) -> int:
        return self.process.wait(seconds)

    def report(self) -> RunReport:
        return unpack(self.message.read_text())

    def log_tail(self) -> str:
        return self.log.read_text()[-4000:]
