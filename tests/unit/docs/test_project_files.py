"""The files around the code agree: version, licence, CI, hooks, templates."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import firn
from tests.markdown import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def load(path: str) -> Any:
    return yaml.safe_load((ROOT / path).read_text())


def test_one_version_stands_everywhere() -> None:
    chart = load("charts/firn/Chart.yaml")
    assert {firn.__version__, PROJECT["version"], chart["version"], chart["appVersion"]} == {firn.__version__}


def test_the_newest_version_of_the_changelog_is_this_one_with_its_date() -> None:
    sections = re.findall(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    sections = sections[1:] if sections[0] == "Unreleased" else sections
    assert re.fullmatch(rf"{re.escape(firn.__version__)} - \d{{4}}-\d\d-\d\d", sections[0])
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ - \d{4}-\d\d-\d\d", section) for section in sections)


def test_the_licence_is_the_one_that_the_project_names() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_ci_runs_the_two_commands_of_the_readme() -> None:
    job = load(".github/workflows/ci.yml")["jobs"]["run"]
    commands = [f"make {command}" for command in job["strategy"]["matrix"]["command"]]
    readme = (ROOT / "README.md").read_text().splitlines()
    shown = [line.split("#")[0].strip() for line in readme if re.match(r"make \w+ +#", line)]
    assert sorted(commands) == sorted(shown)
    assert "make ${{ matrix.command }}" in [step.get("run") for step in job["steps"]]


def test_hooks_are_local_and_run_the_tools_of_the_project() -> None:
    repositories = load(".pre-commit-config.yaml")["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]
    for hook in repositories[0]["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].startswith(".venv/bin/")


@pytest.mark.parametrize("path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda path: path.stem)
def test_issue_templates_can_be_read(path: Path) -> None:
    template = yaml.safe_load(path.read_text())
    if path.stem != "config":
        assert {"name", "description", "body"} <= template.keys()
        assert all(item["attributes"]["label"] for item in template["body"])
