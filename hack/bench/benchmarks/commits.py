"""Measure ingestion commits of a topic with 1,000 partitions and a freshness of 10 s, over the hours of a long life.

The benchmark counts commits instead of hours: 386 snapshots stay, which are those of an hour and one of each of 26 hours. Every
thirtieth commit removes the others, as in five minutes. The catalog is in PostgreSQL, and the files are on an S3 server.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator

from firn.model.jobs import CatalogConnection
from firn.model.maintenance import MaintenanceRun
from hack.bench.contestants.lake import CATALOG
from hack.bench.contestants.maintenance import process
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options
from hack.support.progress import step
from tests.servers.postgres import postgres
from tests.servers.process import cache
from tests.servers.s3 import s3

PER_HOUR = 360
WINDOW = PER_HOUR + 26
SLOT = 30
PEER = "the commits of the second hour"


def measure(options: Options) -> Iterator[Figure]:
    """Make the commits of `Options.hours` and compare the last hour with the second."""
    directory = options.directory / "commits"
    directory.mkdir()
    with postgres(directory / "postgres") as database, s3(directory / "s3") as storage:
        secret = directory / "password"
        secret.write_text(database.password)
        connection = CatalogConnection(
            type="sql",
            uri=database.uri,
            warehouse=f"s3://{storage.bucket}/bench",
            properties={"user": database.user, **storage.properties},
            secret_properties={"password": str(secret), **storage.secret_properties},
        )
        jars = ",".join(sorted(str(jar) for jar in (cache() / "jars" / "spark").glob("*.jar")))
        run = MaintenanceRun(
            name="commits", leases_directory=str(directory / "leases"), tables=(), catalogs={CATALOG: connection},
            cores=1, heap="768m", spark_conf={"spark.jars": jars},
        )  # fmt: skip
        count = max(3, round(options.hours)) * PER_HOUR
        command = ["-m", "hack.bench.contestants.committer", str(count), str(WINDOW), str(SLOT)]
        with step(f"{count} commits of a table"):
            outcome = process(directory, run, command, directory / "message")
    result = json.loads(outcome.output.splitlines()[-1])
    hours = [statistics.median(result["milliseconds"][at : at + PER_HOUR]) for at in range(0, count, PER_HOUR)]
    yield Figure("commits_first_hour", hours[0], "ms of a commit (median)", "lower")
    yield Figure("commits_last_hour", hours[-1], "ms of a commit (median)", "lower", PEER, hours[1])
    yield Figure("commits_metadata", result["bytes"] / 1e6, "MB of metadata.json (largest)", "lower")
