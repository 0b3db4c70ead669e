"""Paths of the repository, of its cluster's state, and of the cache, which outlives both."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def cluster_directory() -> Path:
    """Return the directory of this checkout's cluster (`FIRN_CLUSTER`, by default `.cluster`)."""
    return Path(os.environ.get("FIRN_CLUSTER") or REPOSITORY / ".cluster").absolute()


def cache_directory(*parts: str) -> Path:
    """Return a directory of the cache (`FIRN_CACHE`, by default `~/.cache/firn`), created if it is missing."""
    directory = Path(os.environ.get("FIRN_CACHE") or Path.home() / ".cache" / "firn").absolute().joinpath(*parts)
    directory.mkdir(parents=True, exist_ok=True)
    return directory
