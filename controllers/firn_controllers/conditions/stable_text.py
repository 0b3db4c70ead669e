"""Error texts as conditions may show them: the same failure reads the same each time, and never without end."""

import re

_CHANGING = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # uuid
    r"|\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:[.,]\d+)?(?:Z|[+-]\d{2}:?\d{2})?"  # time
    r"|0x[0-9a-f]+|@[0-9a-f]{6,}"  # address of an object
    r"|(?<=[Aa]ttempt )\d+|(?<=after )\d+(?:\.\d+)? ?m?s\b",
    re.IGNORECASE,
)
LONGEST = 1024


def steady(text: str) -> str:
    """``text`` on one line, cut to `LONGEST`, with ids, times and attempt numbers taken out: they would rewrite status each time."""
    line = " ".join(_CHANGING.sub("…", text).split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
