"""Compare Firn and its peers on wide records: taxi trips with 29 typed values, in batches with lz4.

The contestants land the same topic twice: into columns of timestamps, and into columns of texts in their place. A peer whose
reader of timestamps is slow loses the first comparison for this reason alone, so the lower ratio counts.
"""

from __future__ import annotations

from collections.abc import Iterator

from hack.bench.contestants.ingestion import class_archive, compiled
from hack.bench.contestants.lake import lake
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options
from hack.bench.peers.race import Workload, compared, prepare, race
from hack.bench.records import trips
from hack.bench.records.measurements import create_topics, fill, read_through
from hack.support.progress import say, step

TOPIC = "trips"
PARTITIONS = 5
CODEC = "lz4"


def measure(options: Options) -> Iterator[Figure]:
    """Fill the topic and let all contestants land it, with timestamps and with texts in their place."""
    prepare(options.peers)
    compiled()
    class_archive()
    rows = options.trips
    with lake(options.directory / "trips") as stores:
        bootstrap = stores.kafka.bootstrap
        with step(f"producing {rows:,} trips"):
            create_topics(bootstrap, [TOPIC], PARTITIONS)
            size = fill(bootstrap, TOPIC, rows, PARTITIONS, CODEC, trips.Generator().generate)
        say(f"{size / rows:.0f} bytes per record; read once in {read_through(bootstrap, TOPIC, PARTITIONS):.1f} s")
        for prefix, columns in (("trips", trips.COLUMNS), ("trips_texts", trips.TEXTS)):
            yield from compared(prefix, *race(stores, Workload(TOPIC, rows, columns), options.peers, options.repeats))
