"""The project's own Python files, for the tests of this folder."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
PRODUCT = (
    "firn",
    "operator/firn_operator",
    "controllers/firn_controllers",
    "broker/firn_broker",
    "spark_apps/firn_spark",
)


def files(*folders: str) -> Iterator[Path]:
    """Yield every Python file below these folders of the repository."""
    for folder in folders:
        assert (ROOT / folder).is_dir(), folder
        yield from sorted((ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    """Return a path relative to the repository."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    """Parse a file."""
    return ast.parse(path.read_text())
