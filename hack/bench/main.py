"""`make bench`: run benchmarks (all, or those named) and print a line of JSON per figure; also appended to bench/results.jsonl."""

import argparse
import importlib
import os
import shutil
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from hack.bench.measuring.figures import Results
from hack.bench.options import Options
from hack.support.places import REPOSITORY
from hack.support.progress import say

BENCHMARKS = (
    "ingest",
    "decode",
    "files",
    "trickle",
    "scale",
    "follow",
    "debt",
    "compaction",
    "sustained",
    "broker",
    "limits",
)

_SIZES = {
    "rows": "records of ingest, at most of sustained",
    "minutes": "length of files, trickle and sustained, size of compaction",
    "topics": "topics of trickle",
    "resources": "IcebergTopics of scale, tables of debt",
    "megabytes": "what broker moves each way, on each contestant",
    "repeats": "runs of ingest, figures are medians",
}


def main() -> int:
    """Run what the command line names; a benchmark that fails does not keep the next from running."""
    defaults = Options(Path())
    parser = argparse.ArgumentParser(prog="hack/bench/run", description=__doc__)
    parser.add_argument(
        "names", metavar="NAME", nargs="*", help=f"one of {', '.join(BENCHMARKS)}; all when none is given"
    )
    for name, meaning in _SIZES.items():
        default = getattr(defaults, name)
        parser.add_argument(f"--{name}", type=type(default), default=default, help=f"{meaning} (default: %(default)s)")
    parser.add_argument(
        "--keep", action="store_true", help="leave the temporary directory, with tables and logs, where it is"
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(BENCHMARKS):
        parser.error(f"no benchmark is called {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    # Only figures go to standard output: what the programs say that benchmarks start goes to standard error.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    results = Results(REPOSITORY / "bench" / "results.jsonl", output)
    failed = []
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that everything started is ended
    directory = Path(tempfile.mkdtemp(prefix="firn-bench-"))
    directory.chmod(0o755)  # the database runs as a user of its own
    try:
        for name in arguments.names or BENCHMARKS:
            options = Options(directory, **{size: getattr(arguments, size) for size in _SIZES})
            try:
                results.add(importlib.import_module(f"hack.bench.benchmarks.{name}").measure(options))
            except Exception:
                traceback.print_exc()
                failed.append(name)
    finally:
        if arguments.keep:
            say(f"kept: {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0
