"""Runs of other programs."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from hack.support.progress import Failure


def run(
    arguments: Sequence[str | Path],
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
    stdin: str | None = None,
) -> str:
    """Run a program to its end and return its standard output.

    With `log`, both of its outputs go to that file instead. Raises `Failure` with the end of its output if it exits non-zero
    or is not installed.
    """
    words = [str(word) for word in arguments]
    merged = None if environment is None else {**os.environ, **environment}
    try:
        if log is None:
            done = subprocess.run(words, cwd=directory, env=merged, input=stdin, capture_output=True, text=True)
        else:
            log.parent.mkdir(parents=True, exist_ok=True)
            with log.open("w") as output:
                done = subprocess.run(
                    words, cwd=directory, env=merged, input=stdin, stdout=output, stderr=output, text=True
                )
    except FileNotFoundError as error:
        raise Failure(f"{words[0]} is not installed or not on PATH ({error}); install it") from error
    if done.returncode:
        tail = log.read_text(errors="replace")[-3000:] if log else (done.stdout[-1500:] + done.stderr[-3000:])
        where = f" (whole log: {log})" if log else ""
        raise Failure(f"`{' '.join(words[:6])}` failed with exit code {done.returncode}{where}:\n{tail.strip()}")
    return done.stdout or ""
