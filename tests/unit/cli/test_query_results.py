"""``firn sql`` prints results in each format."""

import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from firn_operator.cli import main, query
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
