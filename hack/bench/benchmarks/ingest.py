"""Compare the ingestion of a filled topic by Firn and by its peers: the Iceberg sinks of Kafka Connect and of Flink.

All read the same topic, and use the same catalog and the same disk, one after the other. At the end, Firn alone lands the
same records from topics whose batches are compressed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hack.bench.contestants.ingestion import class_archive, compiled
from hack.bench.contestants.lake import lake
from hack.bench.measuring.figures import Figure
from hack.bench.measuring.repeats import median
from hack.bench.options import Options
from hack.bench.peers.race import BACKLOGGED, FIGURES, FIRN, LATER, Run, Workload, compared, prepare, race, run
from hack.bench.records.measurements import COLUMNS, create_topics, fill, read_through
from hack.support.progress import say, step

TOPIC = "measurements"
PARTITIONS = 4
CODECS = ("lz4", "zstd")


def measure(options: Options) -> Iterator[Figure]:
    """Fill the topic, let all contestants land it in turn, and compare them."""
    prepare(options.peers)
    compiled()
    class_archive()
    with lake(options.directory / "ingest") as stores:
        with step(f"producing {options.rows:,} records"):
            create_topics(stores.kafka.bootstrap, [TOPIC], PARTITIONS)
            size = fill(stores.kafka.bootstrap, TOPIC, options.rows, PARTITIONS)
        say(
            f"{size / options.rows:.0f} bytes per record; read once in {read_through(stores.kafka.bootstrap, TOPIC, PARTITIONS):.1f} s"
        )
        ours, theirs = race(stores, Workload(TOPIC, options.rows, COLUMNS), options.peers, options.repeats)
        yield from compared("ingest", ours, theirs)
        for codec in CODECS:
            topic = f"{TOPIC}-{codec}"
            with step(f"producing {options.rows:,} records with {codec}"):
                create_topics(stores.kafka.bootstrap, [topic], PARTITIONS)
                fill(stores.kafka.bootstrap, topic, options.rows, PARTITIONS, codec)
            workload = Workload(topic, options.rows, COLUMNS)
            runs = [run(stores, workload, FIRN) for _ in range(options.repeats)]
            yield from _compressed(codec, runs, ours)


def _compressed(codec: str, runs: Sequence[Run], plain: Sequence[Run]) -> Iterator[Figure]:
    """Yield the medians of runs on a compressed topic, beside those without compression."""
    values, others = [each.values() for each in runs], [each.values() for each in plain]
    for name in (BACKLOGGED, LATER):
        unit, better = FIGURES[name]
        value, other = median([each[name] for each in values]), median([each[name] for each in others])
        yield Figure(f"ingest_{codec}_{name}", value, unit, better, "Firn without compression", other)
