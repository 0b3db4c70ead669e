"""Paths of the repository, of its cluster's state, and of the cache that outlives both."""

from __future__ import annotations

import os
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def cluster_directory() -> Path:
    """The directory of everything that belongs to this checkout's cluster (`FIRN_CLUSTER`, by default `.cluster`)."""
    return Path(os.environ.get("FIRN_CLUSTER") or REPOSITORY / ".cluster").absolute()


def cache_directory(*parts: str) -> Path:
    """A directory of the cache of slow results (`FIRN_CACHE`, by default `~/.cache/firn`), made when missing."""
    directory = Path(os.environ.get("FIRN_CACHE") or Path.home() / ".cache" / "firn").absolute().joinpath(*parts)
    directory.mkdir(parents=True, exist_ok=True)
    return directory
