"""No module uses private names of another module, neither in product code nor in hack and tests.

A module may import a private name, read it as an attribute of a module or class, or pass it to `setattr` and the like.
Private attributes of objects are not covered: a name does not show the class of an object."""

import ast
import re
from collections.abc import Iterator, Mapping

import pytest

from tests.unit.layout.sources import PRODUCT, files, relative, tree

OURS = {"firn", "firn_operator", "firn_controllers", "firn_broker", "firn_spark", "hack", "tests"}
_PERHAPS = re.compile(
    r"""(?m)^\s*from [\w.]+ import (?:\([^)]*|[^\n(]*)\b_[a-zA-Z]"""  # an import
    r"""|(?<!\bself)(?<!\bcls)\._[a-zA-Z]"""  # an attribute, also in a dotted string
    r"""|[,=]\s*["']_[a-zA-Z]"""  # an argument
)


def test_no_module_uses_private_names_of_another() -> None:
    # Parsing every file would take seconds.
    suspects = (path for path in files(*PRODUCT, "hack", "tests") if _PERHAPS.search(path.read_text()))
    assert {(relative(path), name) for path in suspects for name in private_names(tree(path))} == set()


@pytest.mark.parametrize(
    ("use", "name"),
    [
        ("from firn.records.keys import _batch", "firn.records.keys._batch"),
        ("from firn.records import keys\nkeys._batch()", "firn.records.keys._batch"),
        ("from firn.records import keys as k\nk._batch()", "firn.records.keys._batch"),
        ("import firn.records.keys\nfirn.records.keys._batch()", "firn.records.keys._batch"),
        ("import firn.records.keys as k\nk._batch()", "firn.records.keys._batch"),
        ("from firn.records import keys\nkeys.Newest._held = 0", "firn.records.keys.Newest._held"),
        ("from firn.records.keys import Newest\nNewest._held", "firn.records.keys.Newest._held"),
        ("from firn.records import keys\nmonkeypatch.setattr(keys, '_batch', f)", "firn.records.keys._batch"),
        ("from firn.records import keys\npatch.object(keys, '_batch', f)", "firn.records.keys._batch"),
        ("from firn.records import keys\nsetattr(keys, '_batch', f)", "firn.records.keys._batch"),
        (
            "from firn.records import keys\nmonkeypatch.setattr(keys, name='_batch', value=f)",
            "firn.records.keys._batch",
        ),
        ("monkeypatch.setattr('firn.records.keys._batch', f)", "firn.records.keys._batch"),
    ],
)
def test_each_use_of_a_private_name_is_found(use: str, name: str) -> None:
    assert list(private_names(ast.parse(use))) == [name]


@pytest.mark.parametrize(
    "use",
    [
        "from __future__ import annotations",
        "from firn import __version__",
        "from pyspark import SparkContext\nSparkContext._gateway",
        "from firn.records import keys\nkeys.Newest(1)._held",
        "from firn.records import keys\nself._held = keys.HELD",
        "from firn.records import keys\nnames.replace('-', '_')",
    ],
)
def test_other_names_are_allowed(use: str) -> None:
    assert list(private_names(ast.parse(use))) == []


def private_names(module: ast.Module) -> Iterator[str]:
    """Yield each private name of another module of the project that a module uses, with its module."""
    imported = _imported(module)
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            yield from filter(_has_private_part, (f"{node.module}.{alias.name}" for alias in node.names))
        elif isinstance(node, ast.Attribute) and _is_private(node.attr):
            if (owner := _owner(node.value, imported)) is not None:
                yield f"{owner}.{node.attr}"
        elif isinstance(node, ast.Call):
            yield from _named_by_a_string(node, imported)


def _imported(module: ast.Module) -> dict[str, str]:
    """Return what the imports of the project bind: local name -> full name."""
    names: dict[str, str] = {}
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and _is_ours(node.module or ""):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if _is_ours(alias.name):
                    package = alias.name.partition(".")[0]
                    names[alias.asname or package] = alias.name if alias.asname else package
    return names


def _owner(value: ast.expr, imported: Mapping[str, str]) -> str | None:
    """Return the full name of an imported module, or of an attribute of it."""
    if isinstance(value, ast.Name):
        return imported.get(value.id)
    if isinstance(value, ast.Attribute) and (owner := _owner(value.value, imported)) is not None:
        return f"{owner}.{value.attr}"
    return None


def _named_by_a_string(call: ast.Call, imported: Mapping[str, str]) -> Iterator[str]:
    """Yield the private names that a call gets as strings: `setattr(module, "_name", ...)`, `patch("module._name")`."""
    strings = [
        argument.value
        for argument in (*call.args, *(keyword.value for keyword in call.keywords))
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
    owner = _owner(call.args[0], imported) if call.args else None
    if owner is not None:
        yield from (f"{owner}.{text}" for text in strings if _is_private(text) and text.isidentifier())
    yield from (text for text in strings if _is_ours(text) and _has_private_part(text))


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in OURS


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _has_private_part(name: str) -> bool:
    return any(map(_is_private, name.split(".")))
