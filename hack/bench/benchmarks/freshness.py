"""Compare how soon records are in the table: Firn with a freshness of 5 s, and the Iceberg sink of Kafka Connect with that commit interval.

Each reads a topic of its own that gets 5,000 records a second, one after the other. Both write zstd.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import chain

from hack.bench.contestants.contestant import Contestant
from hack.bench.contestants.ingestion import class_archive, compiled, ingestion, job
from hack.bench.contestants.lake import NAMESPACE, Lake, lake
from hack.bench.measuring import commits
from hack.bench.measuring.commits import Commit
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options
from hack.bench.peers.sink import NAME, jars, sink
from hack.bench.records.measurements import create_topics, produce_paced
from hack.support.progress import step
from tests.servers.process import await_true

PARTITIONS = 4
PER_SECOND = 5000.0
FRESHNESS_SECONDS = 5.0
LONGEST_WAIT = 180.0


def measure(options: Options) -> Iterator[Figure]:
    """Produce to a topic of each contestant while it lands the records, for half of the time each."""
    jars()
    compiled()
    class_archive()
    with lake(options.directory / "freshness") as stores:
        (target,) = stores.create_topic_tables(["firn"])
        stores.create_plain_table("sink")
        contracts = [job("firn", target, FRESHNESS_SECONDS)]
        directory = stores.directory / "run"
        ours = delays(stores, "firn", options, lambda: ingestion(directory, stores, contracts, cores=2, heap="384m"))
        theirs = delays(
            stores, "sink", options, lambda: sink(stores.directory / "sink", stores, "sink", "sink", FRESHNESS_SECONDS)
        )
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        mine, peer = commits.percentile(ours, share), commits.percentile(theirs, share)
        yield Figure(f"freshness_delay_{name}", mine, "s from produced to committed", "lower", NAME, peer)


def delays(
    stores: Lake, name: str, options: Options, start: Callable[[], AbstractContextManager[Contestant]]
) -> list[float]:
    """Return the seconds from each record of the topic to the commit with it. Topic and table have the same name.

    The sink's commits have no offsets of the topic, so the n-th row counts as the n-th record.
    """
    create_topics(stores.kafka.bootstrap, [name], PARTITIONS)
    catalog = stores.catalog()
    with start() as contestant:
        seconds = 30 * options.minutes
        with step(f"{name}: {PER_SECOND:.0f} records a second for {seconds:.0f} s"):
            places = [(name, part) for part in range(PARTITIONS)]
            written = produce_paced(stores.kafka.bootstrap, places, PER_SECOND, seconds)
        rows = sum(map(len, written.values()))

        def landed() -> bool:
            contestant.assert_alive()
            return commits.landed(catalog.load_table((NAMESPACE, name))) >= rows

        await_true(f"{name}: {rows} rows", landed, LONGEST_WAIT)
    history = [
        Commit(commit.time, commit.rows, offsets={0: commit.rows})
        for commit in commits.history(catalog.load_table((NAMESPACE, name)))
    ]
    return commits.delays(sorted(chain.from_iterable(written.values())), history, time.time())
