"""No class has more than 400 lines, and no function more than 60."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.layout.sources import PRODUCT, files, tree

LONGEST_CLASS = 400
LONGEST_FUNCTION = 60
KERNELS = {"_field", "_record", "find_entries"}
"""Functions of the compiled JSON reader. A call costs time for each record."""


@pytest.mark.slow
def test_no_class_is_longer_than_400_lines() -> None:
    long = {name for kind, name, lines, _ in _definitions() if kind is ast.ClassDef and lines > LONGEST_CLASS}
    assert long == set(), f"classes of more than {LONGEST_CLASS} lines"


def test_no_function_is_longer_than_60_lines() -> None:
    functions = [item for item in _definitions() if item[0] is not ast.ClassDef and item[2] > LONGEST_FUNCTION]
    kernels = {name for _, name, _, path in functions if "kernel" in path.name}
    long = {name for _, name, _, path in functions if "kernel" not in path.name}
    assert kernels == KERNELS, "kernels are exempt by name"
    assert long == set(), f"functions of more than {LONGEST_FUNCTION} lines"


def _definitions() -> Iterator[tuple[type, str, int, Path]]:
    """Yield kind, name, number of lines and file of every class and function."""
    for path in files(*PRODUCT, "hack"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                yield type(node), node.name, node.end_lineno - node.lineno + 1, path
