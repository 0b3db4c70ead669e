"""No module imports private names of another module, neither in product code nor in tests."""

import ast
import re
from collections.abc import Iterator

from tests.unit.layout.sources import PRODUCT, files, relative, tree

OURS = {"firn", "firn_operator", "firn_controllers", "firn_broker", "firn_spark", "hack", "tests"}
_PERHAPS = re.compile(r"(?m)^\s*from [\w.]+ import (?:\([^)]*|[^\n(]*)\b_[a-zA-Z]")


def test_no_module_imports_private_names_of_another() -> None:
    assert set(_private_imports()) == set()


def _private_imports() -> Iterator[tuple[str, str]]:
    """Yield every private name of the project that a file imports."""
    for path in files(*PRODUCT, "hack", "tests"):
        if not _PERHAPS.search(path.read_text()):
            continue  # parsing every file would take seconds
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in OURS:
                for alias in node.names:
                    if alias.name.startswith("_") and not alias.name.startswith("__"):
                        yield relative(path), alias.name
