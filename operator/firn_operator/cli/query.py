"""``firn sql``: DuckDB over the configured catalogs. Tables are read as they are now, only the columns that a statement uses."""

import json
import re
from collections.abc import Callable, Collection, Iterable
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow

from firn.model.errors import InvalidSpecError
from firn_operator.cli import database
from firn_operator.cli.lake import Lake, readable_schema, scan

_SHOW_TABLES = re.compile(r"\s*show\s+(?:all\s+)?tables\s*;?\s*", re.IGNORECASE)
_NO_TABLE = re.compile(r"^Catalog Error: Table with name \"?([^\"]+?)\"? does not exist")
_METADATA = "firn sql reads tables, and no metadata tables such as files or snapshots"


def run(
    lake: Lake,
    statement: str,
    memory_limit: str = database.MEMORY_LIMIT,
    note: Callable[[str], None] = lambda text: None,
) -> pa.Table:
    """Run one SELECT, or list the tables (``show tables``). Timestamps with a zone are in UTC.

    ``note`` gets a line for each column that cannot be read. The tables are without these columns.

    Raises InvalidSpecError for SQL that DuckDB refuses, and for tables that do not exist.
    """
    if _SHOW_TABLES.fullmatch(statement):
        return pa.table({"table": pa.array(lake.tables(), pa.string())})
    connection = database.connect(memory_limit)
    try:
        connection.execute("SET TimeZone = 'UTC'")
        statements = connection.extract_statements(statement)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise InvalidSpecError("firn sql runs one SELECT statement only; ingestion alone writes tables")
        wanted = _names(statement, lake.catalogs)
        if any("$" in name for name in wanted):
            raise InvalidSpecError(_METADATA)
        tables = {name: lake.find(name) for name in wanted}
        for catalog, namespace in sorted({(name.split(".")[0], name.split(".")[1]) for name in tables}):
            connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {quoted(catalog)}")
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(catalog)}.{quoted(namespace)}")
        readable = {}
        for name, table in tables.items():
            readable[name], others = readable_schema(table.schema())
            for column, kind in others.items():
                note(f"table {name}: firn sql leaves out column {column}, because it does not read the type {kind}")
            _create(connection, name, schema_to_pyarrow(readable[name], include_field_ids=False))
        used = _columns(connection, statement)
        for name, table in tables.items():
            fields = [field.name for field in readable[name].fields]
            columns = [column for column in fields if column in used.get(name, fields)] or fields[:1]
            _fill(connection, name, scan(table, columns))
        return connection.execute(statement).fetch_arrow_table()
    except duckdb.Error as error:
        raise InvalidSpecError(_explained(str(error))) from error
    finally:
        connection.close()


def _explained(error: str) -> str:
    if "NameListToString" in error:  # a name of more than three parts
        return f"{_METADATA}; tables are named CATALOG.NAMESPACE.NAME"
    missing = _NO_TABLE.match(error)
    if missing is None:
        return f"DuckDB: {error}"
    return (
        f"there is no table {missing[1]}: tables are named CATALOG.NAMESPACE.NAME, such as lake.shop.orders; firn sql 'show tables' lists"
        " them"
    )


def _create(connection: duckdb.DuckDBPyConnection, name: str, schema: pa.Schema) -> None:
    connection.register("firn_rows", schema.empty_table())
    connection.execute(f"CREATE TABLE {_path(name)} AS SELECT * FROM firn_rows")
    connection.unregister("firn_rows")


def _fill(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.RecordBatchReader) -> None:
    """Insert the columns that the plan reads. The others stay null, because the plan needs their names and types."""
    connection.register("firn_rows", rows)
    connection.execute(f"INSERT INTO {_path(name)} BY NAME SELECT * FROM firn_rows")
    connection.unregister("firn_rows")


def _path(name: str) -> str:
    return ".".join(quoted(part) for part in name.split("."))


def quoted(name: str) -> str:
    """Quote ``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def _columns(connection: duckdb.DuckDBPyConnection, statement: str) -> dict[str, set[str]]:
    """Return the columns that the plan reads, by table. They include all words of filters, which the plan has as text."""
    plan = connection.execute(f"EXPLAIN (FORMAT json) {statement}").fetchall()[0][1]
    used: dict[str, set[str]] = {}
    for node in _nodes(json.loads(plan)):
        details = node.get("extra_info") or {}
        if not isinstance(details, dict) or "Table" not in details:
            continue
        table = str(details["Table"]).replace('"', "")
        projected = details.get("Projections", [])
        names = projected if isinstance(projected, list) else [projected]
        filters = details.get("Filters", [])
        text = " ".join(filters if isinstance(filters, list) else [str(filters)])
        columns = used.setdefault(table, set())
        columns.update(str(name).split(".")[0].strip('"') for name in names)
        columns.update(re.findall(r"\w+", text))
    return used


def _names(statement: str, catalogs: Collection[str]) -> list[str]:
    """Return the names CATALOG.NAMESPACE.NAME in the statement whose catalog is configured."""
    part = r'(?:"([^"]+)"|([A-Za-z_]\w*))'
    matches = re.findall(rf"(?<![\w.]){part}\s*\.\s*{part}\s*\.\s*{part}", statement)
    names = {
        ".".join(quoted_ or plain for quoted_, plain in zip(name[::2], name[1::2], strict=True)) for name in matches
    }
    return sorted(name for name in names if name.split(".")[0] in catalogs)


def _nodes(plan: Any) -> Iterable[dict[str, Any]]:
    if isinstance(plan, list):
        for part in plan:
            yield from _nodes(part)
    elif isinstance(plan, dict):
        yield plan
        yield from _nodes(plan.get("children", []))
