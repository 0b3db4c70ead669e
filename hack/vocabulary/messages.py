"""The reference of messages: every text of conditions, Events and errors, found in the source."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from hack.vocabulary.sources import COMPONENTS, files
from hack.vocabulary.texts import Scope, items, source, texts

CONDITIONS, EVENTS, ERRORS, RULES = "conditions", "Events", "errors", "rules"
_ARGUMENTS = {
    "Announcement": (EVENTS, 2),
    "BadRecordError": (ERRORS, 2),
    "DependencyHealth": (CONDITIONS, 1),
    "Failure": (CONDITIONS, 1),
    "FleetHealth": (CONDITIONS, 1),
    "Form": (RULES, 1),
    "GroupHealth": (CONDITIONS, 1),
    "Refusal": (CONDITIONS, 2),
    "Resolution": (CONDITIONS, 3),
    "Rule": (RULES, 1),
    "Trouble": (CONDITIONS, 1),
    "Verdict": (CONDITIONS, 2),
    "bounded": (RULES, 1),
    "paused_over": (CONDITIONS, 2),
}
"""Calls with a message: its kind, and its place among the arguments."""
_KEYWORDS = frozenset({"message", "problem", "overdue", "degraded", "memory_hint", "wrong", "custom_error_message"})
"""Arguments that are a message in every call."""
_KEYS = {"error_message": ERRORS, "message": None}
"""Keys of dictionaries whose value is a message, and its kind if the component does not decide it."""
_LISTS = frozenset({"notes", "problems", "reasons"})
"""Lists whose elements are messages, and functions that return such a list."""
_RETURNED = frozenset({"problem", "failure"})
"""Last words in the names of functions that return a message or None."""
_NO_MESSAGE = frozenset({"AssertionError", "KeyError", "TypeError", "FailpointError"})
"""Errors that no user sees: bugs and test tools."""
_WORD = re.compile(r"[A-Za-z]{2,}")
_PREFACE = """\
# Messages

`make generate` writes this page from the code. It lists every text of a condition, an Event or an error by the
component that reports it. A name in braces stands for a value, which may be another message of this page.
[Conditions](conditions.md) explains the reasons that accompany them.
"""


def markdown() -> str:
    """Return the whole page."""
    parts = [_PREFACE]
    for component in COMPONENTS:
        page: dict[str, set[str]] = defaultdict(set)
        for path in files(component):
            for kind, text in messages(path):
                page[kind].add(text)
        parts.append(f"## {component}\n")
        for kind in sorted(page):
            parts += [f"### {component}: {kind}\n", "```text", *sorted(page[kind]), "```\n"]
    return "\n".join(parts).rstrip() + "\n"


def messages(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of every message in a file."""
    file = source(path)
    default = ERRORS if "firn_broker" in path.parts else CONDITIONS
    for node, scope in file.nodes:
        for kind, message in _reported(node, scope, default):
            for call in file.in_each_call(scope):
                for text in texts(message, call) or items(message, call):
                    line = " ".join(text.split())
                    if _WORD.search(re.sub(r"\{[^}]*\}", "", line)):
                        yield kind, line


def _reported(node: ast.AST, scope: Scope, default: str) -> Iterator[tuple[str, ast.expr]]:
    """Yield the kind and the expression of each message that ``node`` itself reports."""
    match node:
        case ast.Return(value=ast.expr() as value) if _returns_message(scope.function):
            yield CONDITIONS, value
        case ast.Call():
            yield from _reported_by_call(node, default)
        case ast.Dict(keys=keys, values=values):
            for key, value in zip(keys, values, strict=True):
                if isinstance(key, ast.Constant) and key.value in _KEYS:
                    yield _KEYS[key.value] or default, value
        case ast.AugAssign(target=ast.Name(id=name), op=ast.Add(), value=value) if name in _LISTS:
            yield CONDITIONS, value
        case ast.FunctionDef(name=name) if name in _LISTS:
            yield from (
                (CONDITIONS, each.value)
                for each in ast.walk(node)
                if isinstance(each, ast.Return) and isinstance(each.value, ast.List)
            )
        case ast.Tuple(elts=[ast.Attribute(value=ast.Name(id="ErrorCode")), text]):
            yield ERRORS, text


def _returns_message(function: ast.AST | None) -> bool:
    """Return whether a function returns a message or None. Functions that return a part of a message have another type or name."""
    return (
        isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and function.name.rpartition("_")[2] in _RETURNED
        and function.returns is not None
        and ast.unparse(function.returns) in ("str", "str | None")
    )


def _reported_by_call(call: ast.Call, default: str) -> Iterator[tuple[str, ast.expr]]:
    name = ast.unparse(call.func).rpartition(".")[2]
    kind, place = _ARGUMENTS.get(name, (default, len(call.args)))
    if name in _NO_MESSAGE:
        return
    if place < len(call.args):
        yield kind, call.args[place]
    elif name.endswith(("Error", "Failure")):
        yield from ((ERRORS, argument) for argument in call.args[:2])
    elif name == "print" and any(
        each.arg == "file" and ast.unparse(each.value) == "sys.stderr" for each in call.keywords
    ):
        yield ERRORS, call.args[0]
    elif name == "append" and ast.unparse(call.func).split(".")[-2] in _LISTS:
        yield CONDITIONS, call.args[0]
    yield from ((kind, keyword.value) for keyword in call.keywords if keyword.arg in _KEYWORDS)
