"""Maven that fails because another Maven fetches the same file is run again."""

from pathlib import Path

import pytest

from hack.localcluster.artifacts import jars
from hack.support.progress import Failure

MAVEN = """#!/bin/sh
echo once more >>{calls}
test $(wc -l <{calls}) -ge {needed}
"""


def install(directory: Path, monkeypatch: pytest.MonkeyPatch, needed: int) -> Path:
    """Put a Maven on the path whose first successful run is number ``needed``. Return the file with a line per run."""
    calls, program = directory / "calls", directory / "mvn"
    program.write_text(MAVEN.format(calls=calls, needed=needed))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=":")
    monkeypatch.setenv("FIRN_CACHE", str(directory / "cache"))
    return calls


def test_a_failed_maven_is_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(tmp_path, monkeypatch, needed=3)
    jars.copy_jars(tmp_path / "pom.xml", tmp_path / "jars", "example")
    assert len(calls.read_text().splitlines()) == 3


def test_a_maven_that_always_fails_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = install(tmp_path, monkeypatch, needed=9)
    with pytest.raises(Failure, match="mvn"):
        jars.copy_jars(tmp_path / "pom.xml", tmp_path / "jars", "example")
    assert len(calls.read_text().splitlines()) == jars.TRIES
