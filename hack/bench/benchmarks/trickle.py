"""Measure one ingestion application with many topics of few records: the freshness of their tables, and its memory.

The ingestion group has one core. It serves 200 topics, and then five times as many. The tables are on an S3 server. On the local
disk, Java starts a process for the permissions of each file, and a commit would take twice the CPU time.

All topics, all tables and the driver are new at the start. The ``settled`` figures leave out records that were produced before
every topic had its first commit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hack.bench.contestants.ingestion import Ingestion, ingestion, job
from hack.bench.contestants.lake import NAMESPACE, lake
from hack.bench.measuring import commits
from hack.bench.measuring.figures import Figure
from hack.bench.measuring.process_tree import Sampler
from hack.bench.options import Options
from hack.bench.records.measurements import create_topics, produce_paced
from hack.support.progress import say, step
from tests.servers.process import await_true
from tests.servers.s3 import s3

FRESHNESS_SECONDS = 60.0
SECONDS_PER_RECORD = 5.0
"""Seconds between the records of a topic."""
CORES = 1
DELAY = "s from produced to committed"


@dataclass(frozen=True)
class Group:
    """An ingestion group: ``factor`` times `Options.topics`, and the heap of its driver. ``name`` begins its figures."""

    name: str
    factor: int
    heap: str


GROUPS = (Group("trickle", 1, "384m"), Group("trickle_many", 5, "512m"))


def measure(options: Options) -> Iterator[Figure]:
    """Measure each group on a lake of its own, one after the other."""
    for group in GROUPS:
        yield from serve(options, group)


def serve(options: Options, group: Group) -> Iterator[Figure]:
    """Serve the topics, produce few records to each, and measure the time of each record's commit."""
    topics = group.factor * options.topics
    with s3(options.directory / f"{group.name}-s3") as bucket, lake(options.directory / group.name, bucket) as stores:
        names = [f"trickle_{number:04d}" for number in range(topics)]
        with step(f"creating {topics} topics and tables"):
            create_topics(stores.kafka.bootstrap, names)
            targets = stores.create_topic_tables(names)
        contracts = [job(target.name, target, FRESHNESS_SECONDS) for target in targets]
        with (
            ingestion(stores.directory / "firn", stores, contracts, cores=CORES, heap=group.heap) as firn,
            Sampler(firn.pid, interval=1.0).sampling() as usage,
        ):
            started = time.time()
            seconds = 60 * options.minutes
            with step(f"{topics} topics, a record every {SECONDS_PER_RECORD:g} s in each, {options.minutes:g} minutes"):
                places = [(name, 0) for name in names]
                written = produce_paced(stores.kafka.bootstrap, places, topics / SECONDS_PER_RECORD, seconds)
            await_landed(firn, sum(map(len, written.values())))
            until = time.time()
        catalog = stores.catalog()
        histories = {name: commits.history(catalog.load_table((NAMESPACE, name))) for name in names}
        late = {name: commits.delays(moments, histories[name], until) for (name, _), moments in written.items()}
        made = sum(map(len, histories.values()))
        begun = max(history[0].time if history else until for history in histories.values())
        settled = {
            name: delays
            for (name, _), moments in written.items()
            if (delays := [delay for moment, delay in zip(moments, late[name], strict=True) if moment >= begun])
        }
        if not settled:
            say("no record was produced after the last topic had its first commit; --minutes sets a longer time")
        everything, steady = (
            [delay for delays in of_topics.values() for delay in delays] for of_topics in (late, settled)
        )
        for name, value, unit in (
            ("delay_p50", commits.percentile(everything, 0.5), DELAY),
            ("delay_p99", commits.percentile(everything, 0.99), DELAY),
            ("delay_longest", max(everything), DELAY),
            ("all_begun", begun - started, "s from the start of service until every topic has its first commit"),
            *(
                [
                    ("settled_delay_p50", commits.percentile(steady, 0.5), DELAY),
                    ("settled_delay_p99", commits.percentile(steady, 0.99), DELAY),
                ]
                if steady
                else []
            ),
            ("peak_memory", usage.peak_bytes / 1e6, "MB (PSS of all processes)"),
            ("cpu", usage.cpu_between(started, until) / (until - started) * 60, "CPU s per minute"),
            ("commits", made, "commits"),
        ):
            yield Figure(f"{group.name}_{name}", value, unit, "lower")
        for name, of_topics in (("topics_fresh", late), *([("settled_topics_fresh", settled)] if steady else [])):
            fresh = share_fresh(of_topics, FRESHNESS_SECONDS)
            yield Figure(f"{group.name}_{name}", fresh, "share whose every record was committed within 60 s", "higher")


def await_landed(firn: Ingestion, rows: int) -> None:
    """Wait until the driver has landed so many rows, also late ones."""

    def landed() -> bool:
        firn.assert_alive()
        return firn.rows >= rows

    try:
        await_true(f"{rows} rows landed", landed, 3 * FRESHNESS_SECONDS)
    except AssertionError as error:
        firn.assert_alive()
        say(str(error))


def share_fresh(late: Mapping[str, Sequence[float]], bound: float) -> float:
    """Return the share of topics whose records were all committed within ``bound`` seconds."""
    return sum(max(delays, default=0.0) <= bound for delays in late.values()) / len(late)
