"""Read the product's source: its files and the texts in them."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hack.support.places import REPOSITORY

COMPONENTS = {
    "Operator": ("controllers/firn_controllers", "operator/firn_operator"),
    "Ingestion driver and maintenance runs": ("spark_apps/firn_spark",),
    "Broker": ("broker/firn_broker",),
    "Shared by all components": (
        "firn/decoders",
        "firn/model",
        "firn/protoc.py",
        "firn/quality",
        "firn/sasl",
        "firn/schema_registry.py",
        "firn/schemas",
        "firn/tables",
        "firn/records",
    ),
    "CustomResourceDefinitions": ("firn/api/v1alpha1", "firn/api/crds.py", "firn/api/model.py"),
}
"""Components as users know them, and the folders and files of their code."""


def files(component: str) -> Iterator[Path]:
    """Yield the Python files of a component."""
    for name in COMPONENTS[component]:
        place = REPOSITORY / name
        assert place.exists(), name
        yield from sorted(place.rglob("*.py")) if place.is_dir() else [place]


@cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text())


def template(node: ast.AST) -> str | None:
    """Return the text of a string or f-string, with placeholders such as ``{partition}``; None for other expressions."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(_parts(node))
    return None


def _parts(node: ast.JoinedStr) -> Iterator[str]:
    """Yield the texts and the placeholders. Different expressions with one noun get a number."""
    seen: dict[str, list[str]] = {}
    for part in node.values:
        if isinstance(part, ast.Constant):
            yield str(part.value)
            continue
        noun = _placeholder(part)
        expressions = seen.setdefault(noun, [])
        if ast.dump(part) not in expressions:
            expressions.append(ast.dump(part))
        number = expressions.index(ast.dump(part)) + 1
        yield f"{{{noun}}}" if number == 1 else f"{{{noun} {number}}}"


def _placeholder(node: ast.AST) -> str:
    """Return the noun in an expression: the last name or attribute that is no method."""
    methods = {id(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
    for part in ast.walk(node):
        if isinstance(part, ast.Attribute) and id(part) not in methods:
            return part.attr.strip("_").lower()
        if isinstance(part, ast.Name) and id(part) not in methods and part.id not in _PLAIN:
            return part.id.strip("_").lower()
    return "value"


_PLAIN = {"self", "str", "int", "sorted", "names"}


def documented_members(path: Path, name: str) -> dict[str, str]:
    """Return the members of an enum by value, each with the docstring below it, in the order of the source."""
    module = parsed(path)
    (enum,) = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == name)
    members: dict[str, str] = {}
    for member, below in zip(enum.body, [*enum.body[1:], None], strict=True):
        if isinstance(member, ast.Assign):
            assert isinstance(member.value, ast.Constant)
            text = template(below.value) if isinstance(below, ast.Expr) else None
            members[str(member.value.value)] = " ".join((text or "").split())
    return members


def cell(text: str) -> str:
    """Return a text as the cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")
