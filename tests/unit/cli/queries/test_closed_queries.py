"""`firn sql` reaches the tables that a statement names, and neither files, the network, extensions, settings nor Python's variables."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from firn.model.errors import InvalidSpecError
from firn_operator.cli import database, query
from firn_operator.cli.lake import Lake
from tests import gen

secret = "a variable of this module"
NO_FILES = "neither files, addresses nor extensions"
ONE_SELECT = "one SELECT statement only"


@pytest.fixture
def lake() -> Lake:
    return Lake(gen.config())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("hunter2\n")
    return path


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("SELECT * FROM read_text('{file}')", NO_FILES),
        ("SELECT * FROM read_blob('{file}')", NO_FILES),
        ("SELECT * FROM read_csv('{file}')", NO_FILES),
        ("SELECT * FROM read_csv_auto('{file}')", NO_FILES),
        ("SELECT * FROM sniff_csv('{file}')", NO_FILES),
        ("SELECT * FROM read_json('{file}')", NO_FILES),
        ("SELECT * FROM read_json_auto('{file}')", NO_FILES),
        ("SELECT * FROM read_json_objects('{file}')", NO_FILES),
        ("SELECT * FROM read_json_objects_auto('{file}')", NO_FILES),
        ("SELECT * FROM read_ndjson('{file}')", NO_FILES),
        ("SELECT * FROM read_ndjson_auto('{file}')", NO_FILES),
        ("SELECT * FROM read_ndjson_objects('{file}')", NO_FILES),
        ("SELECT * FROM read_parquet('{file}')", NO_FILES),
        ("SELECT * FROM parquet_scan('{file}')", NO_FILES),
        ("SELECT * FROM parquet_schema('{file}')", NO_FILES),
        ("SELECT * FROM parquet_metadata('{file}')", NO_FILES),
        ("SELECT * FROM parquet_file_metadata('{file}')", NO_FILES),
        ("SELECT * FROM parquet_full_metadata('{file}')", NO_FILES),
        ("SELECT * FROM parquet_kv_metadata('{file}')", NO_FILES),
        ("SELECT * FROM parquet_bloom_probe('{file}', 'a', 1)", NO_FILES),
        ("SELECT * FROM read_duckdb('{file}')", NO_FILES),
        ("SELECT * FROM glob('{folder}/*')", NO_FILES),
        ("SELECT * FROM read_text('http://127.0.0.1:9/x')", NO_FILES),
        ("SELECT * FROM read_parquet('s3://bucket/x')", NO_FILES),
        ("SELECT * FROM '{file}'", "there is no table"),
        ("SELECT * FROM duckdb_secrets()", NO_FILES),
        ("SELECT * FROM query('SELECT * FROM read_text(''{file}'')')", NO_FILES),
        ("SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT * FROM read_text(''{file}'')'))", "json_execute_serialized_sql"),
        ("SELECT getenv('PATH')", "getenv does not exist"),
        ("SELECT * FROM secret", "there is no table secret"),
        ("SELECT * FROM pandas_scan(0)", "pandas_scan"),
        ("SELECT * FROM arrow_scan(0, 0, 0)", "arrow_scan"),
        ("SELECT * FROM enable_profiling(save_location => '{folder}/new')", "DuckDB"),
        ("COPY (SELECT 1) TO '{folder}/new'", ONE_SELECT),
        ("ATTACH '{folder}/new' AS other", ONE_SELECT),
        ("EXPORT DATABASE '{folder}/new'", ONE_SELECT),
        ("INSTALL httpfs", ONE_SELECT),
        ("LOAD httpfs", ONE_SELECT),
        ("CREATE TABLE x AS SELECT 1", ONE_SELECT),
        ("SET memory_limit = '100GB'", ONE_SELECT),
        ("RESET lock_configuration", ONE_SELECT),
        ("PRAGMA enable_profiling", ONE_SELECT),
        ("CALL enable_logging(storage = 'file', storage_path = '{folder}/new')", ONE_SELECT),
    ],
)  # fmt: skip
def test_a_statement_reaches_tables_only(statement: str, message: str, lake: Lake, file: Path) -> None:
    with pytest.raises(InvalidSpecError, match=message) as refused:
        query.run(lake, statement.format(file=file, folder=file.parent))
    assert "hunter2" not in str(refused.value)
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    "statement",
    [
        "SET enable_external_access = true",
        "SET memory_limit = '100GB'",
        "SET threads = 64",
        "SET temp_directory = '/tmp'",
        "SET python_enable_replacements = true",
        "SET autoload_known_extensions = true",
        "RESET lock_configuration",
        "PRAGMA memory_limit = '100GB'",
        "INSTALL httpfs",
        "LOAD httpfs",
        "ATTACH '/tmp/firn-other.db' AS other",
        "COPY (SELECT 1) TO '/tmp/firn-other.csv'",
    ],
)
@pytest.mark.parametrize("spills", [False, True])
def test_the_database_is_closed_even_without_the_check_of_statements(statement: str, spills: bool) -> None:
    with database.connect(spills=spills) as connection, pytest.raises(duckdb.Error, match=r"lock|disabled|Cannot"):
        connection.execute(statement)


def test_no_extension_is_loaded_but_those_inside_duckdb() -> None:
    with database.connect() as connection:
        settings = dict(connection.execute("SELECT name, value FROM duckdb_settings()").fetchall())
    assert settings["autoinstall_known_extensions"] == settings["autoload_known_extensions"] == "false"
    assert settings["allowed_directories"] == "[]"
    assert settings["temp_directory"] == ""


def test_a_function_that_logs_to_files_writes_none(lake: Lake, tmp_path: Path) -> None:
    statement = f"SELECT * FROM enable_logging('QueryLog', storage => 'file', storage_path => '{tmp_path}/log')"
    query.run(lake, statement)
    assert list(tmp_path.iterdir()) == []


def test_an_audit_spills_to_a_directory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with database.connect("24MB", spills=True) as connection:
        (folder,) = tmp_path.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        connection.execute("CREATE TABLE big AS SELECT a, hash(a) AS b FROM range(2_000_000) t(a)")
        assert list(folder.iterdir())
        assert connection.execute("SELECT count(*) FROM big").fetchone() == (2_000_000,)
    assert list(tmp_path.iterdir()) == []


def test_a_command_with_too_much_memory_ends_with_a_message_and_leaves_no_files(tmp_path: Path) -> None:
    program = """
from firn_operator.cli import database, memory
memory.bound(memory.resident() + 50_000_000, "the statement needs too much; do this")
data = []
with database.connect(spills=True):
    while True:
        data.append(bytes(1_000_000) + b"x")
"""
    code = f"import sys; sys.path[:0] = {sys.path!r}; {program}"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", "firn: the statement needs too much; do this\n")
    assert list(tmp_path.iterdir()) == []


def test_a_statement_ends_at_the_deadline_of_its_pod() -> None:
    program = """
import os, time
os.environ["FIRN_QUERY_SECONDS"] = "1"
from firn_operator.cli import database, memory
memory.bound(10**12, "too much")
with database.connect() as connection:
    connection.execute("SELECT count(*) FROM range(100_000_000_000) a(x) WHERE hash(x) = 1")
"""
    code = f"import sys; sys.path[:0] = {sys.path!r}; {program}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "has not ended within 1 s, the value queries.deadlineSeconds: filter more rows" in ended.stderr


def test_the_text_of_a_literal_names_no_table(lake: Lake) -> None:
    result: Any = query.run(lake, "SELECT 'lake.demo.none' AS a -- lake.demo.none")
    assert result.to_pylist() == [{"a": "lake.demo.none"}]
