"""No circle of imports between files. `lint-imports` finds circles between folders: the contract is in pyproject.toml."""

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest


def test_no_file_imports_itself_through_others() -> None:
    graph = grimp.build_graph(
        "firn", "firn_operator", "firn_controllers", "firn_broker", "firn_spark", "hack", cache_dir=None
    )
    imports = {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        pytest.fail(" <- ".join(error.args[1]))
