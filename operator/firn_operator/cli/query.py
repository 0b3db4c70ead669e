"""``firn sql``: DuckDB over the configured catalogs.

Tables are read as they are now. DuckDB pushes the columns and filters of a statement into the scans, which read the files one after another.
So memory follows the statement, not the tables.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import duckdb
import pyarrow as pa

from firn.model.errors import FirnError, InvalidSpecError
from firn_operator.cli import database
from firn_operator.cli.lake import Lake, readable_schema, translating
from firn_operator.cli.pushdown.dataset import Budget, IcebergDataset
from firn_operator.cli.pushdown.filters import UnknownExpressionError

_SHOW_TABLES = re.compile(r"\s*show\s+(?:all\s+)?tables\s*;?\s*", re.IGNORECASE)
_NO_TABLE = re.compile(r"^Catalog Error: Table with name \"?(.+?)\"? does not exist(?:!| because)", re.MULTILINE)
_METADATA = "firn sql reads tables, and no metadata tables such as files or snapshots"
MOST_ROWS = 10_000
MOST_BYTES = 10 * 1024**3
TOO_MUCH_MEMORY = (
    "the statement needs more memory than firn sql has: select fewer columns, filter or aggregate more rows, lower --max-rows, or use an"
    " engine such as Spark or Trino"
)


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of a statement. ``rows`` are those of the result, ``bytes`` those that its scans read."""

    rows: int = MOST_ROWS
    bytes: int = MOST_BYTES
    memory: str = database.MEMORY_LIMIT


def run(
    lake: Lake, statement: str, limits: Limits | None = None, note: Callable[[str], None] = lambda text: None
) -> pa.Table:
    """Run one SELECT, or list the tables (``show tables``). Timestamps with a zone are in UTC.

    ``note`` gets a line for each column that cannot be read, and one if the result has more rows than the limit. The tables are
    without these columns.

    Raises InvalidSpecError for SQL that DuckDB refuses, for tables that do not exist, and for a statement that exceeds a limit.
    """
    limits = limits or Limits()
    if _SHOW_TABLES.fullmatch(statement):
        return pa.table({"table": pa.array(lake.tables(), pa.string())})
    said: set[str] = set()

    def note_once(text: str) -> None:
        if text not in said:
            said.add(text)
            note(text)

    try:
        return _run(lake, statement, limits, note_once, "SELECT * FROM {}")
    except _PushdownError:
        # The LIMIT keeps the filters in DuckDB.
        return _run(lake, statement, limits, note_once, "SELECT * FROM {} LIMIT 9223372036854775806")


class _PushdownError(Exception):
    """Arrow has no form for a filter that DuckDB pushes into a scan."""


def _run(lake: Lake, statement: str, limits: Limits, note: Callable[[str], None], view: str) -> pa.Table:
    """Run a statement on tables that DuckDB reads through ``view``."""
    sources: dict[str, IcebergDataset] = {}
    with database.connect(limits.memory) as connection:
        try:
            statements = connection.extract_statements(statement)
            if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                raise InvalidSpecError("firn sql runs one SELECT statement only; ingestion alone writes tables")
            budget = Budget(limits.bytes)
            for name in _names(connection, statement, lake.catalogs):
                sources[name] = _source(lake, name, budget, note)
            for number, (name, source) in enumerate(sources.items()):
                alias = f"firn_{number}"
                connection.register(alias, source)
                _create(connection, name, view.format(alias))
            return _first(connection.execute(statement), limits.rows, note)
        except (duckdb.Error, pa.ArrowException) as error:
            if "Arrow Scan Pushdown" in str(error) or any(
                isinstance(each.failure, UnknownExpressionError) for each in sources.values()
            ):
                raise _PushdownError from error
            raise _cause(error, sources) from error


def _source(lake: Lake, name: str, budget: Budget, note: Callable[[str], None]) -> IcebergDataset:
    table = lake.find(name)
    readable, others = readable_schema(table.schema())
    for column, kind in others.items():
        note(f"table {name}: firn sql leaves out column {column}, because it does not read the type {kind}")
    return IcebergDataset(name, table, readable, budget)


def _create(connection: duckdb.DuckDBPyConnection, name: str, view: str) -> None:
    """Create a view with the name of a table."""
    catalog, namespace, _ = name.split(".")
    connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {quoted(catalog)}")
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(catalog)}.{quoted(namespace)}")
    connection.execute(f"CREATE VIEW {'.'.join(map(quoted, name.split('.')))} AS {view}")


def _first(result: duckdb.DuckDBPyConnection, most: int, note: Callable[[str], None]) -> pa.Table:
    """Read ``most`` rows of a result. DuckDB then stops to read the tables."""
    reader = result.fetch_record_batch(min(most + 1, 100_000))
    batches, rows = [], 0
    for batch in reader:
        batches.append(batch.slice(0, most - rows))
        rows += batch.num_rows
        if rows > most:
            note(
                f"the result has more than {most:,} rows, and firn sql shows the first {most:,}: add a LIMIT or a filter, or raise --max-rows"
            )
            break
    return pa.Table.from_batches(batches, reader.schema)


def _cause(error: Exception, sources: Mapping[str, IcebergDataset]) -> FirnError:
    """Return the error of Firn for a failed statement."""
    for name, source in sources.items():
        if source.failure is not None:
            with translating(f"table {name}"):
                raise source.failure
    if isinstance(error, duckdb.OutOfMemoryException):
        return InvalidSpecError(TOO_MUCH_MEMORY)
    return InvalidSpecError(_explained(str(error)))


def _explained(error: str) -> str:
    if "NameListToString" in error:  # a name of more than three parts
        return f"{_METADATA}; tables are named CATALOG.NAMESPACE.NAME"
    missing = _NO_TABLE.search(error)
    if missing is not None:
        return (
            f"there is no table {missing[1]}: tables are named CATALOG.NAMESPACE.NAME, such as lake.shop.orders; firn sql 'show tables' lists"
            " them"
        )
    if "disabled by configuration" in error or "disabled through configuration" in error:
        return f"firn sql reads the tables of the configured catalogs, and neither files, addresses nor extensions. DuckDB: {error}"
    return f"DuckDB: {error}"


def quoted(name: str) -> str:
    """Quote ``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _names(connection: duckdb.DuckDBPyConnection, statement: str, catalogs: Collection[str]) -> list[str]:
    """Return the names CATALOG.NAMESPACE.NAME of the tables in the statement whose catalog is configured."""
    # `get_table_names` fails for statements whose meaning depends on the columns, such as a JOIN with USING.
    ((text,),) = connection.execute("SELECT json_serialize_sql($1::VARCHAR)", [statement]).fetchall()
    try:
        nodes: list[Any] = [json.loads(text)]
    except RecursionError as error:
        raise InvalidSpecError("the statement nests too many expressions: simplify it") from error
    found = set()
    while nodes:
        node = nodes.pop()
        if isinstance(node, list):
            nodes += node
        elif isinstance(node, dict):
            nodes += node.values()
            if node.get("type") == "BASE_TABLE" and node["catalog_name"] in catalogs and node["schema_name"]:
                found.add((node["catalog_name"], node["schema_name"], node["table_name"]))
    if any("$" in name for _, _, name in found):
        raise InvalidSpecError(_METADATA)
    return sorted(".".join(parts) for parts in found)
