"""Evaluate the texts that an expression can have, from the source alone.

A text is a template: a name in braces stands for a value. The evaluation follows local variables, arguments and returned
values, so that a message that several functions build together is one whole text.
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from math import prod
from pathlib import Path

from hack.support.places import REPOSITORY
from hack.vocabulary.sources import parsed

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_ROOTS = (REPOSITORY, *(REPOSITORY / name for name in ("operator", "controllers", "broker", "spark_apps")))
_LONGEST_WAY = 10
"""Steps from a message to the source of a part of it."""
_MOST_TEXTS = 16
"""Texts of one expression. With more of them, the parts stay placeholders."""
_MOST_OF_A_CALL = 5
"""Texts of a call inside a text. A function that returns more of them describes a value."""
_TRANSPARENT = frozenset({"str", "steady", "without_secrets", "sorted", "fromkeys", "tuple", "list"})
"""Functions that return their first argument, as far as its words matter."""
_NAMELESS = frozenset({"self", "str", "int", "len", "repr", "type", "sorted", "names", "map", "args", "strerror"})
"""Names and attributes that say nothing about a value."""


@dataclass(frozen=True, eq=False)
class Scope:
    """A function of a file, in one call of it. ``arguments`` has the expressions of the call, if that is known."""

    source: "Source"
    function: Function | None = None
    outer: "Scope | None" = None
    arguments: Mapping[str, "tuple[ast.expr, Scope]"] = field(default_factory=dict)


class Source:
    """A file of the product: its functions, the calls of them, and its imports from other files of the product."""

    def __init__(self, path: Path) -> None:
        self.tree = parsed(path)
        self.nodes: list[tuple[ast.AST, Scope]] = []
        """Every node, with the scope around it."""
        self.functions: dict[str, list[tuple[Function, Scope]]] = defaultdict(list)
        self._calls: dict[str, list[tuple[ast.Call, Scope]]] = defaultdict(list)
        self._imports = dict(_imports(self.tree))
        self._visit(self.tree, Scope(self))

    def _visit(self, node: ast.AST, scope: Scope) -> None:
        self.nodes.append((node, scope))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            self.functions[node.name].append((node, scope))
        if isinstance(node, Function):
            scope = Scope(self, node, scope)
        if isinstance(node, ast.Call) and (name := _own_name(node.func)) is not None:
            self._calls[name].append((node, scope))
        for child in ast.iter_child_nodes(node):
            self._visit(child, scope)

    def in_each_call(self, scope: Scope, way: int = 3) -> Iterator[Scope]:
        """Yield ``scope`` with the arguments of each call of its function in this file; as it is without calls."""
        function = scope.function
        calls = self._calls[function.name] if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) else []
        if function is None or not calls or way == 0:
            yield scope
            return
        for call, caller in calls:
            for outer in self.in_each_call(caller, way - 1):
                yield Scope(self, function, scope.outer, _bound(function, call, outer))

    def elsewhere(self, node: ast.expr) -> "tuple[Source, str] | None":
        """Return the file and the name to which an imported name, or an attribute of an imported module, refers."""
        match node:
            case ast.Name(id=name) if name in self._imports and self._imports[name][1] is not None:
                path, original = self._imports[name]
                return source(path), original or ""
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module in self._imports:
                path, original = self._imports[module]
                return (source(path), name) if original is None else None
        return None


@cache
def source(path: Path) -> Source:
    """Return the source of a file."""
    return Source(path)


def texts(node: ast.AST, scope: Scope, way: int = _LONGEST_WAY) -> list[str]:
    """Return the texts that ``node`` can have; none if it is no text."""
    if way == 0:
        return []
    match node:
        case ast.Constant(str() as text):
            return [text]
        case ast.JoinedStr(values=values):
            return _joined(values, scope, way - 1)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _joined((left, right), scope, way - 1)
        case ast.IfExp(body=first, orelse=second):
            return _either((first, second), scope, way - 1)
        case ast.BoolOp(values=values):
            return _either(values, scope, way - 1)
        case ast.NamedExpr(value=value) | ast.Await(value=value) | ast.Subscript(value=value, slice=ast.Slice()):
            return texts(value, scope, way - 1)
        case ast.Name(id=name):
            return _texts_of_variable(name, scope, way - 1) or _texts_of_import(node, scope, way - 1)
        case ast.Attribute():
            return _texts_of_import(node, scope, way - 1)
        case ast.Call():
            return _texts_of_call(node, scope, way - 1)
    return []


def items(node: ast.AST, scope: Scope, way: int = _LONGEST_WAY) -> list[str]:
    """Return the texts of the elements that ``node``, a collection, can have."""
    match node:
        case ast.List(elts=elements) | ast.Tuple(elts=elements) | ast.Set(elts=elements):
            return [text for each in elements for text in texts(each, scope, way)]
        case ast.ListComp(elt=each) | ast.GeneratorExp(elt=each) | ast.SetComp(elt=each):
            return texts(each, scope, way)
        case ast.Call(args=[first, *_]) if ast.unparse(node.func).rpartition(".")[2] in _TRANSPARENT:
            return items(first, scope, way)
        case ast.Name(id=name) if scope.function is not None:
            return [text for each in _own_nodes(scope.function) for text in _added(each, name, scope, way)]
    return []


def placeholder(node: ast.AST) -> str:
    """Return the noun in an expression: a key, an attribute or a name that says what the value is."""
    called = {id(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)}
    for part in ast.walk(node):
        match part:
            case (
                ast.Subscript(slice=ast.Constant(str() as word))
                | ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(str() as word), *_])
            ):
                return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", word).lower()
            case ast.Subscript(slice=ast.Name()) | ast.Call(func=ast.Attribute(attr="get"), args=[ast.Name(), *_]):
                return "value"
            case ast.Attribute(attr="__name__"):
                return "class"
            case ast.Attribute(attr=word) | ast.Name(id=word) if id(part) not in called and word not in _NAMELESS:
                return word.strip("_").lower()
    return "value"


def _joined(parts: Iterable[ast.expr], scope: Scope, way: int) -> list[str]:
    values, candidates = [], []
    for part in parts:
        value = part.value if isinstance(part, ast.FormattedValue) else part
        quoted = isinstance(part, ast.FormattedValue) and part.conversion == ord("r")
        each = [] if quoted else texts(value, scope, way)
        values.append(value)
        candidates.append([] if isinstance(value, ast.Call) and len(each) > _MOST_OF_A_CALL else each)
    if not any(candidates):
        return []
    blanks = [[f"{{{placeholder(value)}}}"] for value in values]
    if prod(max(1, len(each)) for each in candidates) > _MOST_TEXTS:
        candidates = [each if len(each) == 1 else [] for each in candidates]
    return ["".join(each) for each in product(*(each or blank for each, blank in zip(candidates, blanks, strict=True)))]


def _either(values: Iterable[ast.expr], scope: Scope, way: int) -> list[str]:
    candidates = [(value, texts(value, scope, way)) for value in values]
    if not any(each for _, each in candidates):
        return []
    return _some(
        text
        for value, each in candidates
        for text in each or ([] if isinstance(value, ast.Constant) else [f"{{{placeholder(value)}}}"])
    )


def _texts_of_variable(name: str, scope: Scope, way: int) -> list[str]:
    inner: Scope | None = scope
    while inner is not None and inner.function is not None:
        if name in inner.arguments:
            return texts(*inner.arguments[name], way)
        if name in _parameters(inner.function):
            return []
        if name in _variables(inner.function):
            return _assigned(inner.function, name, inner, way)
        inner = inner.outer
    return _assigned(scope.source.tree, name, Scope(scope.source), way)


def _texts_of_import(node: ast.expr, scope: Scope, way: int) -> list[str]:
    target = scope.source.elsewhere(node)
    return _assigned(target[0].tree, target[1], Scope(target[0]), way) if target is not None else []


def _assigned(block: ast.AST, name: str, scope: Scope, way: int) -> list[str]:
    candidates: list[str] = []
    for node in _own_nodes(block):
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=target)], value=value)
                | ast.AnnAssign(target=ast.Name(id=target), value=ast.expr() as value)
                | ast.NamedExpr(target=ast.Name(id=target), value=value)
            ) if target == name:
                candidates += texts(value, scope, way)
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=value):
                for place, each in enumerate(targets):
                    if isinstance(each, ast.Name) and each.id == name:
                        candidates += _element(value, place, scope, way)
            case ast.AugAssign(target=ast.Name(id=target), op=ast.Add(), value=value) if target == name:
                candidates += [text + more for text in candidates for more in texts(value, scope, way)]
    return _some(candidates)


def _element(node: ast.expr, place: int, scope: Scope, way: int) -> list[str]:
    match node:
        case ast.Tuple(elts=elements) if place < len(elements):
            return texts(elements[place], scope, way)
        case ast.IfExp(body=first, orelse=second):
            return [*_element(first, place, scope, way), *_element(second, place, scope, way)]
        case ast.Await(value=value):
            return _element(value, place, scope, way)
        case ast.Call() if way:
            return [text for value, inner in _returned(node, scope) for text in _element(value, place, inner, way - 1)]
    return []


def _texts_of_call(call: ast.Call, scope: Scope, way: int) -> list[str]:
    name = ast.unparse(call.func).rpartition(".")[2]
    if name == "join" and isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Constant):
        return items(call.args[0], scope, way)
    if name in _TRANSPARENT and call.args:
        return texts(call.args[0], scope, way)
    return _some(text for value, inner in _returned(call, scope) for text in texts(value, inner, way))


def _returned(call: ast.Call, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    name = _own_name(call.func)
    functions = scope.source.functions[name] if name is not None else []
    if not functions and (target := scope.source.elsewhere(call.func)) is not None:
        functions = target[0].functions[target[1]]
    for function, outer in functions:
        inner = Scope(outer.source, function, outer, _bound(function, call, scope))
        for node in _own_nodes(function):
            if isinstance(node, ast.Return) and node.value is not None:
                yield node.value, inner


def _added(node: ast.AST, name: str, scope: Scope, way: int) -> list[str]:
    match node:
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if target == name:
            return items(value, scope, way)
        case ast.Call(func=ast.Attribute(value=ast.Name(id=target), attr="append"), args=[value]) if target == name:
            return texts(value, scope, way)
    return []


def _some(candidates: Iterable[str]) -> list[str]:
    """Return the distinct texts, without an empty one beside others; none if they are too many."""
    distinct = list(dict.fromkeys(candidates))
    distinct = [text for text in distinct if text] or distinct
    return distinct if len(distinct) <= _MOST_TEXTS else []


def _own_name(node: ast.expr) -> str | None:
    """Return the name of a function of the same file that a call calls; None for a method of another object."""
    match node:
        case ast.Name(id=name) | ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
            return name
    return None


def _parameters(function: Function) -> list[str]:
    arguments = function.args
    return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def _bound(function: Function, call: ast.Call, scope: Scope) -> dict[str, tuple[ast.expr, Scope]]:
    names = [name for name in _parameters(function) if name not in ("self", "cls")]
    bound = {name: (value, scope) for name, value in zip(names, call.args, strict=False)}
    return bound | {each.arg: (each.value, scope) for each in call.keywords if each.arg is not None}


@cache
def _own_nodes(block: ast.AST) -> tuple[ast.AST, ...]:
    """Return the nodes of a function or module in their order, without those of the functions inside it."""
    nodes: list[ast.AST] = []
    pending = [*ast.iter_child_nodes(block)][::-1]
    while pending:
        node = pending.pop()
        nodes.append(node)
        if not isinstance(node, Function | ast.ClassDef):
            pending += [*ast.iter_child_nodes(node)][::-1]
    return tuple(nodes)


@cache
def _variables(function: Function) -> frozenset[str]:
    return frozenset(
        node.id for node in _own_nodes(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )


def _imports(tree: ast.Module) -> Iterator[tuple[str, tuple[Path, str | None]]]:
    """Yield imported names, each with the file and the name there; None for a module as a whole."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            place = node.module.replace(".", "/")
            for each in node.names:
                for root in _ROOTS:
                    if (module := root / place / f"{each.name}.py").is_file():
                        yield each.asname or each.name, (module, None)
                    elif (module := root / f"{place}.py").is_file():
                        yield each.asname or each.name, (module, each.name)
