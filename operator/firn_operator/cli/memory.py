"""A bound on the memory of a command. Arrow has none, and the kernel would end the whole container without a message."""

import os
import sys
import threading
from pathlib import Path

from firn.model.errors import ExitCode

MOST = 512 * 1024**2
"""Most bytes of memory of a command in the operator's container, which has 1 GiB by default."""
_INTERVAL = 0.05
"""Seconds between two looks at the memory."""
_STATISTICS = Path("/proc/self/statm")


def resident() -> int:
    """Return the bytes of this process in memory."""
    return int(_STATISTICS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bound(most: int, message: str) -> None:
    """End this process with ``message`` and the code for wrong input when it uses more than ``most`` bytes of memory.

    Only for commands that read: they can end anywhere.
    """
    if not _STATISTICS.exists():  # not Linux: the machine of a user
        return

    def watch() -> None:
        while not stop.wait(_INTERVAL):
            if resident() > most:
                print(f"firn: {message}", file=sys.stderr, flush=True)
                os._exit(ExitCode.CONFIGURATION)

    stop = threading.Event()
    threading.Thread(target=watch, name="memory", daemon=True).start()
