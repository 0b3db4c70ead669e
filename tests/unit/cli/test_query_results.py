"""``firn sql`` prints results in each format."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from firn_operator.cli import main
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
