"""Compare messages with the reference page, which lists every message as a template."""

import re
from functools import cache

from hack.support.places import REPOSITORY

_PYDANTIC = "Input should be .*"
"""Pydantic writes the problem of a field that has the wrong type."""
_PAGE = REPOSITORY / "docs" / "reference" / "messages.md"


@cache
def _templates() -> tuple[re.Pattern[str], ...]:
    blocks = re.findall(r"```text\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    parts = ([re.escape(part) for part in re.split(r"\{[^}]*\}", line)] for line in lines)
    return tuple(re.compile(each, re.DOTALL) for each in [_PYDANTIC, *map(".*".join, parts)])


@cache
def _listed(message: str) -> bool:
    """Return True if a template fits the message, with or without the subject before its first colon."""
    texts = (message, message.partition(": ")[2])
    return any(template.fullmatch(text) for text in texts if text for template in _templates())


def check_listed(message: str) -> None:
    """Fail if the page has neither the message nor each of its parts, which semicolons separate."""
    text = " ".join(message.split())
    if text and not _listed(text):
        missing = [part for part in text.split("; ") if not _listed(part)]
        assert not missing, f"{_PAGE.name} lacks {missing} of {message!r}"
