"""Lines of text on a terminal or in a pipe."""

import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rich.console import Console
from rich.text import Text

Style = Literal["", "good", "bad", "dim", "head"]
_STYLES = {"": "", "good": "green", "bad": "bold red", "dim": "dim", "head": "bold"}
_CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")
"""Characters that could change the terminal. Messages may quote records of producers."""
_NARROWEST = 60
"""Columns of a terminal below which lines are not wrapped by words."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the screen. ``indent``: the column at which its continuation begins."""

    text: str
    style: Style = ""
    indent: int = 0


def show(lines: Sequence[Line], *, wrap: bool = True) -> None:
    """Print lines, in colour and wrapped by words on a terminal. Pipes get each line whole."""
    console = Console(highlight=False, soft_wrap=True)
    width = console.width if wrap and console.is_terminal and console.width >= _NARROWEST else 0
    for line in (replace(line, text=_CONTROL.sub("?", line.text)) for line in lines):
        # The text of a command stays whole, so that it can be copied.
        parts = [line.text]
        if width and line.indent and len(line.text) > width:
            parts = textwrap.wrap(
                line.text,
                width,
                subsequent_indent=" " * line.indent,
                break_long_words=False,
                break_on_hyphens=False,
                replace_whitespace=False,
            )
        for part in parts:
            console.print(Text(part, _STYLES[line.style]))
