"""DuckDB in memory, which answers ``firn sql`` and compares offsets for ``firn audit``. It reaches neither files nor the network."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import duckdb

from firn_operator.cli import memory

MEMORY_LIMIT = "256MB"
"""Memory of DuckDB."""
_MOST_SPILLED = "1GB"
"""Most bytes that an audit writes to its temporary directory when its memory is full."""

_CLOSED = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    # Without this, a name in a statement could mean a variable of Python.
    "python_enable_replacements": "false",
    "threads": "2",
}
"""Settings that keep statements from files, the network, extensions and objects of this process."""


@contextmanager
def connect(memory_limit: str = MEMORY_LIMIT, *, spills: bool = False) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open an empty database, in which times with a zone are in UTC. A statement cannot change its settings.

    ``spills``: when the memory is full, write to a temporary directory, which only this process can read. DuckDB lets statements read
    this directory, so only statements of Firn may spill.
    """
    with ExitStack() as opened:
        spill = {"temp_directory": ""}
        if spills:
            folder = opened.enter_context(tempfile.TemporaryDirectory(prefix=memory.folder_prefix()))
            spill = {"temp_directory": folder, "max_temp_directory_size": _MOST_SPILLED}
        connection = opened.enter_context(duckdb.connect(config={"memory_limit": memory_limit, **_CLOSED, **spill}))
        # DuckDB would print a progress bar to stdout, before the result.
        for setting in ("enable_progress_bar_print = false", "TimeZone = 'UTC'", "lock_configuration = true"):
            connection.execute(f"SET {setting}")
        yield connection
