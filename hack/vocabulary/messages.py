"""The reference of messages: every text of conditions, Events and errors, found in the source."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from hack.vocabulary.sources import COMPONENTS, files, parsed, template

_SENTENCE = re.compile(r"[a-z]{2,}[,:;)]? [a-z{(]|[}:,;)] [a-z]{2,}")
_KEYWORDS = frozenset({"message", "problem"})
"""Names of variables and arguments that hold a message."""
_PREFACE = """\
# Messages

`make generate` writes this page from the code. It lists every text of a condition, an Event or an error by the
component that reports it. A name in braces stands for a value. Some messages are joined from several of these texts.
[Conditions](conditions.md) explains the reasons that accompany them.
"""


def markdown() -> str:
    """Return the whole page."""
    parts = [_PREFACE]
    for component in COMPONENTS:
        texts: dict[str, set[str]] = defaultdict(set)
        for path in files(component):
            for kind, text in _messages(path):
                texts[kind].add(text.strip())
        parts.append(f"## {component}\n")
        for kind in sorted(texts):
            parts += [f"### {component}: {kind}\n", "```text", *sorted(texts[kind]), "```\n"]
    return "\n".join(parts).rstrip() + "\n"


def _messages(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of every message in a file."""
    decides = "firn_controllers" in path.parts
    pending: list[tuple[ast.AST, str | None]] = [(parsed(path), None)]
    while pending:
        node, kind = pending.pop()
        kind = _kind(node, kind)
        text = template(node)
        if text is not None:
            if (
                _SENTENCE.search(text)
                and "\n" not in text
                and (kind not in (None, "log") or (decides and kind is None))
            ):
                yield kind or "conditions and Events", text
            continue
        docstrings = {id(it) for it in ast.iter_child_nodes(node) if isinstance(it, ast.Expr) and template(it.value)}
        pending += [(child, kind) for child in ast.iter_child_nodes(node) if id(child) not in docstrings]


def _kind(node: ast.AST, outer: str | None) -> str | None:
    """Return what the texts inside ``node`` are: ``outer`` unless the node itself says it."""
    if isinstance(node, ast.Call):
        name = ast.unparse(node.func)
        last = name.rpartition(".")[2]
        if name.startswith(("log.", "logger.", "logging.", "re.")):
            return "log"
        if last.endswith(("Error", "Failure")) and last != "AssertionError":
            return "errors"
        if last == "Announcement":
            return "Events"
        if last == "Rule":
            return "rules"
        if last in ("Verdict", "Trouble", "BadRecord"):
            return "conditions and Events"
    if isinstance(node, ast.keyword) and node.arg in _KEYWORDS:
        return outer or "errors"
    if isinstance(node, ast.Assign | ast.AnnAssign) and outer is None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(ast.unparse(target).rpartition(".")[2].strip("_") in _KEYWORDS for target in targets):
            return "errors"
    return outer
