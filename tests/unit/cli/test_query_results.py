"""``firn sql`` prints results in each format."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from firn.model import names
from firn.model.errors import InvalidSpecError, UnavailableError
from firn_operator.cli import audit, letters, main, memory, query
from tests import gen


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.yaml"
    path.write_text(gen.config().model_dump_json(by_alias=True, exclude_defaults=True))
    return str(path)


def test_structs_are_json_in_csv(config: str) -> None:
    statement = """select 1 as id, {'a': 'x"y', 'b': '\\xff'::blob} as s, null::int[] as l, [{'k': 'v'}] as headers"""
    result = CliRunner().invoke(main.app, ["sql", statement, "--config", config, "--output", "csv"])
    assert result.exception is None, result.output
    cells = ["1", '"{""a"": ""x\\""y"", ""b"": ""0xff""}"', "", '"[{""k"": ""v""}]"']
    assert result.stdout == '"id","s","l","headers"\n' + ",".join(cells) + "\n"


def test_an_interrupt_ends_a_query_at_once(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    handlers: list[Any] = []

    def run(*_: object, **__: object) -> pa.Table:
        handlers.append(signal.getsignal(signal.SIGINT))
        return pa.table({"id": [1]})

    monkeypatch.setattr(query, "run", run)
    assert CliRunner().invoke(main.app, ["sql", "select 1", "--config", config]).exit_code == 0
    assert handlers == [signal.SIG_DFL]


def test_only_in_the_operators_container_the_memory_is_bounded(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    bounds: list[Any] = []
    monkeypatch.setattr(memory, "bound", lambda most, message: bounds.append((most, message)))
    assert CliRunner().invoke(main.app, ["sql", "select 1", "--config", config]).exit_code == 0
    assert bounds == []
    monkeypatch.setattr(names, "CONFIG_PATH", config)
    assert CliRunner().invoke(main.app, ["sql", "select 1"]).exit_code == 0
    assert bounds == [(512 * 1024**2, query.TOO_MUCH_MEMORY)]
    monkeypatch.setenv("FIRN_QUERY_MEMORY", str(10 * 1024**3))
    assert CliRunner().invoke(main.app, ["sql", "select 1"]).exit_code == 0
    assert bounds[1:] == [(8 * 1024**3, query.TOO_MUCH_MEMORY)]


@pytest.mark.parametrize(
    ("command", "message"),
    [("dlq list", letters.TOO_MUCH_MEMORY), ("dlq show", letters.TOO_MUCH_MEMORY), ("audit", audit.TOO_MUCH_MEMORY)],
)
def test_commands_that_read_tables_bound_their_memory_first(
    command: str, message: str, config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def bound(most: int, message: str) -> None:
        raise InvalidSpecError(message)

    monkeypatch.setattr(memory, "bound", bound)
    monkeypatch.setattr(names, "CONFIG_PATH", config)
    assert str(CliRunner().invoke(main.app, [*command.split(), "shop/orders"]).exception) == message


def test_the_operators_container_runs_one_command_at_a_time(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(names, "CONFIG_PATH", config)
    program = f"""
import sys
sys.path[:0] = {sys.path!r}
from firn_operator.cli import memory
memory.stay_alone("firn audit")
print(flush=True)
sys.stdin.read()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with other:
        assert other.stdout is not None
        other.stdout.readline()
        refused = CliRunner().invoke(main.app, ["dlq", "list", "shop/orders"]).exception
    assert isinstance(refused, UnavailableError)
    assert str(refused).startswith(
        "firn dlq list: firn audit runs in the operator's container, which has memory for one"
    )
    memory.stay_alone("firn dlq list")
    assert (tmp_path / "firn-command.lock").read_text() == "firn dlq list"


def test_the_operators_container_runs_no_statement(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIRN_QUERY_POD", "firn-query-0")
    monkeypatch.setenv("POD_NAMESPACE", "data")
    monkeypatch.setattr(names, "CONFIG_PATH", config)
    refused = CliRunner().invoke(main.app, ["sql", "select 1"]).exception
    assert isinstance(refused, InvalidSpecError)
    assert "run kubectl -n data exec firn-query-0 -- firn sql" in str(refused)


def test_a_cut_result_says_so_on_standard_error(config: str) -> None:
    command = ["sql", "select * from range(9)", "--config", config, "--output", "json", "--max-rows", "2"]
    result = CliRunner().invoke(main.app, command)
    assert result.stdout == '[{"range": 0}, {"range": 1}]\n'
    assert "firn sql shows the first 2: add a LIMIT or a filter, or raise --max-rows" in result.stderr
