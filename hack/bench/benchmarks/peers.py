"""Compare the peers of ingestion with themselves: with the settings of the other benchmarks, and with one of them changed."""

from __future__ import annotations

from collections.abc import Iterator

from hack.bench.contestants.lake import lake
from hack.bench.measuring.figures import Figure
from hack.bench.measuring.repeats import median
from hack.bench.options import Options
from hack.bench.peers.race import BACKLOGGED, CHOSEN, FIGURES, LATER, PEERS, Run, Workload, prepare, run
from hack.bench.peers.settings import variants
from hack.bench.records.measurements import COLUMNS, TEXTS, create_topics, fill, read_through
from hack.support.progress import step

TOPIC = "measurements"
PARTITIONS = 4


def measure(options: Options) -> Iterator[Figure]:
    """Fill the topic of `ingest`, and let each peer land it with each of its settings in turn."""
    prepare(options.peers)
    with lake(options.directory / "peers") as stores:
        bootstrap = stores.kafka.bootstrap
        with step(f"producing {options.rows:,} records"):
            create_topics(bootstrap, [TOPIC], PARTITIONS)
            fill(bootstrap, TOPIC, options.rows, PARTITIONS)
        read_through(bootstrap, TOPIC, PARTITIONS)
        workload, of_texts = (Workload(TOPIC, options.rows, columns) for columns in (COLUMNS, TEXTS))
        for peer in options.peers:
            settings = {"chosen": CHOSEN[peer], **variants(CHOSEN[peer])}
            runs: dict[str, list[Run]] = {name: [] for name in settings}
            for _ in range(options.repeats):
                for name, made in runs.items():
                    made.append(run(stores, of_texts if settings[name].texts else workload, peer, settings[name]))
            yield from _compared(peer, runs)


def _compared(peer: str, runs: dict[str, list[Run]]) -> Iterator[Figure]:
    """Yield the medians with the chosen settings, each beside those of a variant. A ratio above 1 speaks for the former."""
    values = {name: [each.values() for each in made] for name, made in runs.items()}
    for name in list(runs)[1:]:
        for figure in (BACKLOGGED, LATER):
            unit, better = FIGURES[figure]
            chosen, other = (median([each[figure] for each in values[one]]) for one in ("chosen", name))
            yield Figure(f"peers_{peer}_{name}_{figure}", chosen, unit, better, f"{PEERS[peer]} with {name}", other)
