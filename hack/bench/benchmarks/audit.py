"""Measure the full audit of small tables: one run with as many tables as a run may have, and one with a single table.

Each table has a minute of commits of few records. The runs have the chart's default size: one core, one table at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from firn.model.jobs import TableTarget
from firn.model.maintenance import TABLES_PER_RUN, AuditWork, TableReport, TableWork, unpack
from hack.bench.benchmarks.trickle import await_landed
from hack.bench.contestants.ingestion import PROFILE, ingestion, job
from hack.bench.contestants.lake import NAMESPACE, Lake, lake
from hack.bench.contestants.maintenance import Outcome, process, run_of
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options
from hack.bench.records.measurements import create_topics, produce_paced
from hack.support.places import REPOSITORY
from hack.support.progress import step

FRESHNESS_SECONDS = 5.0
SECONDS = 60.0
CORES = 1
HEAP = "1g"


def measure(options: Options) -> Iterator[Figure]:
    """Fill the tables, and audit them."""
    with lake(options.directory / "audit") as stores:
        names = [f"audit_{number:04d}" for number in range(TABLES_PER_RUN)]
        create_topics(stores.kafka.bootstrap, names)
        targets = stores.create_topic_tables(names)
        contracts = [job(target.name, target, FRESHNESS_SECONDS) for target in targets]
        with (
            ingestion(stores.directory / "firn", stores, contracts, cores=CORES, heap="768m") as firn,
            step(f"{len(names)} topics, a record each second in each, {SECONDS:g} s"),
        ):
            places = [(name, 0) for name in names]
            written = produce_paced(stores.kafka.bootstrap, places, len(names), SECONDS)
            await_landed(firn, sum(map(len, written.values())))
        with step(f"auditing {len(names)} tables"):
            reports, many = audited(stores, "many", targets)
        with step("auditing one table"):
            _, one = audited(stores, "one", targets[:1])
    scale = f"for {len(names)} tables"
    yield Figure("audit_run", many.seconds, f"s {scale}", "lower")
    yield Figure("audit_run_of_one", one.seconds, "s for one table", "lower")
    yield Figure("audit_table", sum(report.seconds for report in reports) / len(reports), "s for each table", "lower")
    yield Figure("audit_cpu", many.usage.samples[-1].cpu, f"CPU s {scale}", "lower")
    yield Figure("audit_peak_memory", many.usage.peak_bytes / 1e6, "MB (PSS of all processes)", "lower")


def audited(stores: Lake, name: str, targets: Sequence[TableTarget]) -> tuple[Sequence[TableReport], Outcome]:
    """Carry out a run, and return its reports. Raises RuntimeError if an audit did not end, or found wrong offsets."""
    directory = stores.directory / name
    directory.mkdir()
    catalog = stores.catalog()
    works = [
        TableWork(
            uid=target.name,
            namespace=NAMESPACE,
            name=target.name,
            table=target,
            table_uuid=str(catalog.load_table((NAMESPACE, target.name)).metadata.table_uuid),
            audit=AuditWork(profile=PROFILE, topic=target.name),
        )
        for target in targets
    ]
    run = run_of(stores, name, works, cores=CORES, heap=HEAP)
    run = run.model_copy(update={"kafka": {PROFILE: stores.kafka.connection}})
    message = directory / "message"
    outcome = process(directory, run, [str(REPOSITORY / "spark_apps" / "maintain.py")], message)
    reports = unpack(message.read_text()).tables
    for report in reports:
        if report.audit is None or report.audit.wrong or not report.audit.offsets:
            raise RuntimeError(f"table {report.uid}: {report.outcome}: {report.message} {report.audit}")
    return reports, outcome
