"""Write figures of benchmarks as lines of JSON, each with the peer's value if the figure has a peer."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TextIO

Better = Literal["higher", "lower"]


@dataclass(frozen=True)
class Figure:
    """A measured value. ``better`` names the better direction. ``peer`` names the peer of ``peer_value``, and
    another run if it is one."""

    name: str
    value: float | None
    unit: str
    better: Better
    peer: str | None = None
    peer_value: float | None = None

    @property
    def ratio(self) -> float | None:
        """Return the quotient of both values, above 1 if Firn is better than the peer. None without two values."""
        if self.value is None or self.peer_value is None:
            return None
        ours, theirs = (self.value, self.peer_value) if self.better == "higher" else (self.peer_value, self.value)
        return rounded(ours / theirs) if theirs else None

    def line(self, machine: str) -> str:
        """Return the line of JSON."""
        values = asdict(self) | {"ratio": self.ratio, "machine": machine}
        values["value"], values["peer_value"] = rounded(self.value), rounded(self.peer_value)
        return json.dumps(
            {key: values[key] for key in ("name", "value", "unit", "peer", "peer_value", "ratio", "machine")}
        )


def rounded(value: float | None) -> float | None:
    """Round to four significant digits, and larger values to whole numbers."""
    if value is None:
        return None
    short = float(f"{value:.4g}")
    return round(value) if abs(value) >= 1000 else short


def machine() -> str:
    """Return the machine's cores, processor, memory and kernel, and the Python of this process, as one line."""
    cpus = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in cpus if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    python = f"Python {platform.python_version()} ({sys.base_prefix})"
    return f"{os.cpu_count()} x {model}, {memory:.0f} GiB, {platform.system()} {platform.release()}, {python}"


class Results:
    """A printer of figures, which also appends them to a file, each as soon as it is measured."""

    def __init__(self, file: Path, output: TextIO = sys.stdout) -> None:
        self._file = file
        self._output = output
        self._machine = machine()

    def add(self, figures: Iterable[Figure]) -> None:
        """Print and store a line for each figure."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as kept:
            for figure in figures:
                line = figure.line(self._machine)
                print(line, file=self._output, flush=True)
                print(line, file=kept, flush=True)
