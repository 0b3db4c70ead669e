"""Bounds on the memory and the time of a command. Arrow has none, and the kernel would end the whole container without a message."""

import fcntl
import os
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

from firn.model import names
from firn.model.errors import ExitCode, UnavailableError

MOST = 512 * 1024**2
"""Most bytes of memory of a command in the operator's container, which has 1 GiB by default."""
_INTERVAL = 0.05
"""Seconds between two looks at the memory."""
_STATISTICS = Path("/proc/self/statm")
_LOCK = "firn-command.lock"
"""Name of the file whose lock a command in the operator's container holds until its process ends. The file contains the command."""
_held: list[IO[str]] = []
"""Keeps the locked file open. Python closes a file without references, and the lock ends with it."""


def resident() -> int:
    """Return the bytes of this process in memory."""
    return int(_STATISTICS.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def most() -> int:
    """Return the bytes that a command may use: four fifths of the pod of queries, or `MOST` in the operator's container."""
    limit = os.environ.get(names.QUERY_MEMORY)
    return int(limit) * 4 // 5 if limit else MOST


def bound(most: int, message: str) -> None:
    """End this process with ``message`` and the code for wrong input when it uses more than ``most`` bytes of memory.

    In the pod of queries, a command also ends at its deadline. Only for commands that read: they can end anywhere.
    """
    if not _STATISTICS.exists():  # not Linux: the machine of a user
        return

    def watch() -> None:
        while True:
            time.sleep(_INTERVAL)
            if resident() > most:
                _end(message)
            if seconds and time.monotonic() > begun + seconds:
                _end(
                    f"the statement has not ended within {seconds} s, the value queries.deadlineSeconds: filter more rows, raise the value, or use"
                    " an engine such as Spark or Trino"
                )

    begun = time.monotonic()
    seconds = int(os.environ.get(names.QUERY_SECONDS, "0"))
    threading.Thread(target=watch, name="memory", daemon=True).start()


def stay_alone(command: str) -> None:
    """Raise UnavailableError if another command runs in the operator's container, which has memory for one.

    In the pod of queries, statements share the memory of the pod.
    """
    if names.QUERY_MEMORY in os.environ:
        return
    file = (Path(tempfile.gettempdir()) / _LOCK).open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        other = file.read() or "another command"
        file.close()
        raise UnavailableError(
            f"{command}: {other} runs in the operator's container, which has memory for one such command at a time; try again after it"
            " has ended, or run the command with --config on a machine with more memory"
        ) from None
    file.truncate(0)
    file.write(command)
    file.flush()
    _held.append(file)


def folder_prefix() -> str:
    """Return the beginning of the names of temporary directories that `bound` deletes when it ends this process."""
    return f"firn-{os.getpid()}-"


def _end(message: str) -> None:
    # `os._exit` cleans nothing up, and the directory of an audit could fill the disk of the operator's container.
    for folder in Path(tempfile.gettempdir()).glob(f"{folder_prefix()}*"):
        shutil.rmtree(folder, ignore_errors=True)
    print(f"firn: {message}", file=sys.stderr, flush=True)
    os._exit(ExitCode.CONFIGURATION)
