"""`make bench`: run benchmarks, print a line of JSON for each figure, and append it to bench/results.jsonl."""

import argparse
import importlib
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from hack.bench.measuring.figures import Figure, Results
from hack.bench.measuring.repeats import repeated
from hack.bench.options import Options
from hack.support.places import REPOSITORY
from hack.support.progress import say

BENCHMARKS = (
    "ingest",
    "trips",
    "registry",
    "peers",
    "direct",
    "decode",
    "files",
    "freshness",
    "trickle",
    "scale",
    "follow",
    "debt",
    "compaction",
    "audit",
    "sustained",
    "broker",
    "merges",
    "history",
    "rendered",
    "backfills",
    "limits",
    "neighbours",
    "secure",
    "gate",
    "commits",
)

OWN_REPEATS = frozenset(
    {"ingest", "trips", "registry", "peers", "direct", "compaction", "broker", "merges", "secure", "backfills"}
)
"""Benchmarks that let Firn and its peers run in turn. Each of the others is repeated as a whole."""

_SIZES = {
    "rows": "number of records of ingest, registry, peers and direct, and highest number of sustained",
    "trips": "number of records of trips",
    "minutes": "minutes of files, freshness, trickle, sustained and merges; compaction has 100 files of 1 MiB, and 10 of 16 MiB, per minute",
    "topics": "number of topics of trickle, which also serves five times as many",
    "resources": "number of IcebergTopics of scale, and of tables of debt",
    "megabytes": "megabytes that broker, secure and backfills write, and read, on each contestant",
    "hours": "hours whose commits the benchmark commits makes",
    "repeats": "number of runs, whose figures are medians",
}


def _measured(name: str, options: Options) -> Iterator[Figure]:
    """Yield the figures of a benchmark. Each run of a repeated one has a directory of its own."""
    measure = importlib.import_module(f"hack.bench.benchmarks.{name}").measure
    if name in OWN_REPEATS:
        return repeated(name, lambda _: measure(options), 1)

    def once(turn: int) -> Iterable[Figure]:
        directory = options.directory / f"{name}{turn}"
        directory.mkdir()
        directory.chmod(0o755)
        figures: Iterable[Figure] = measure(replace(options, directory=directory))
        return figures

    return repeated(name, once, options.repeats)


def main() -> int:
    """Run the benchmarks of the command line. After a failed one, the next one runs."""
    defaults = Options(Path())
    parser = argparse.ArgumentParser(prog="hack/bench/run", description=__doc__)
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help=f"one of {', '.join(BENCHMARKS)}; without NAME, all of them"
    )
    for name, meaning in _SIZES.items():
        default = getattr(defaults, name)
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{meaning} (default: %(default)s)")
    parser.add_argument(
        "--peers",
        type=lambda text: tuple(filter(None, text.split(","))),
        default=defaults.peers,
        help=f"peers of ingest, trips, registry and peers, separated by commas (default: {','.join(defaults.peers)})",
    )
    parser.add_argument("--keep", action="store_true", help="keep the temporary directory with tables and logs")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; choose from {', '.join(BENCHMARKS)}")
    # Standard output has only figures. The output of programs that benchmarks start goes to standard error.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    results = Results(REPOSITORY / "bench" / "results.jsonl", output)
    failed = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # The exception ends all processes that were started.
    directory = Path(tempfile.mkdtemp(prefix="firn-bench-"))
    directory.chmod(0o755)  # The database runs as another user.
    try:
        for name in arguments.names or BENCHMARKS:
            sizes = {size: getattr(arguments, size) for size in _SIZES}
            options = Options(directory, **sizes, peers=arguments.peers)
            try:
                results.add(_measured(name, options))
            except Exception:
                traceback.print_exc()
                failed.append(name)
    finally:
        if arguments.keep:
            say(f"tables and logs are in {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if failed:
        say(f"failed benchmarks: {', '.join(failed)}; the tracebacks above have the causes")
    return 1 if failed else 0
