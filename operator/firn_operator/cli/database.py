"""DuckDB in memory, which answers ``firn sql`` and compares offsets for ``firn audit``."""

import duckdb

MEMORY_LIMIT = "256MB"
"""Memory of DuckDB. Beyond it, DuckDB writes to the temporary directory."""

_CLOSED = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
"""Settings that keep DuckDB from downloading extensions."""


def connect(memory_limit: str = MEMORY_LIMIT) -> duckdb.DuckDBPyConnection:
    """Open an empty database without a progress bar. DuckDB would print the bar to stdout, before the result."""
    connection = duckdb.connect(config={"memory_limit": memory_limit, **_CLOSED})
    connection.execute("SET enable_progress_bar_print = false")
    return connection
