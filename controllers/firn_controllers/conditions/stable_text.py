"""Error texts for conditions: the same failure has the same text each time, of limited length."""

import re

_CHANGING = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"  # uuid
    r"|\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:[.,]\d+)?(?:Z|[+-]\d{2}:?\d{2})?"  # time
    r"|0x[0-9a-f]+|@[0-9a-f]{6,}"  # address of an object
    r"|(?<=stage )\d+(?:\.\d+)?|(?<=TID )\d+|(?<=task )\d+(?:\.\d+)?|(?<=executor )\d+"  # numbers of a Spark job
    r"|(?<=request id: )[^\s,;)]+"  # id of an object store
    r"|(?<=[Aa]ttempt )\d+|(?<=after )\d+(?:\.\d+)? ?m?s\b",
    re.IGNORECASE,
)
LONGEST = 1024


def steady(text: str) -> str:
    """Return ``text`` on one line, cut to `LONGEST`, without ids, times and the numbers of attempts and tasks.

    They would change the status with each attempt.
    """
    line = " ".join(_CHANGING.sub("…", text).split())
    return line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
