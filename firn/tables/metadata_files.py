"""Metadata files of tables by their paths. They show whether another table uses the same location."""

import heapq
import re
from collections.abc import Iterable

_HOME = re.compile(r"^(.*)/metadata/[^/]*\.metadata\.json(\.gz)?$")
_FIRST = re.compile(r"/0*-[^/]*\.metadata\.json(\.gz)?$")
_NEWEST = 20
"""Number of metadata files, the newest ones, that are read for their table's uuid."""


def home(path: str) -> str | None:
    """Return the location of the table whose metadata file this is; None if it is no metadata file."""
    match = _HOME.match(path)
    return match.group(1) if match is not None else None


def first_and_newest(unknown: Iterable[tuple[str, float]]) -> set[str]:
    """Return the paths of metadata files to read, to find other tables: the first files of tables, and the newest files.

    ``unknown``: paths of metadata files to which the table does not refer, with their times of writing.
    """
    first: set[str] = set()
    newest: list[tuple[float, str]] = []
    for path, written in unknown:
        if _FIRST.search(path):
            first.add(path)
        if len(newest) < _NEWEST:
            heapq.heappush(newest, (written, path))
        else:
            heapq.heappushpop(newest, (written, path))
    return first | {path for _, path in newest}
