"""The compiler runs once for all programs of a module, and a long build shows its progress."""

import os
import re
import stat
from pathlib import Path

import pytest

from hack.localcluster.artifacts import tools
from hack.support.progress import Failure

GO = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$1" in
  env) echo go1.26; echo amd64 ;;
  list) printf 'a\\nb\\nc\\nd\\n' ;;
  build)
    printf 'a\\nb\\n' >&2
    sleep "$SECONDS_OF_A_BUILD"
    [ -z "$BROKEN" ] || { echo "undefined: x" >&2; exit 1; }
    while [ "$1" != -o ]; do shift; done
    for name in kube coredns helm pause; do echo program > "$2$name"; done ;;
esac
"""


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the command lines of a fake Go compiler."""
    compiler = tmp_path / "bin" / "go"
    compiler.parent.mkdir()
    compiler.write_text(GO)
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{compiler.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("SECONDS_OF_A_BUILD", "0")
    monkeypatch.setenv("BROKEN", "")
    monkeypatch.setenv("FIRN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "calls"


def builds(calls: Path) -> list[str]:
    return [line for line in calls.read_text().splitlines() if line.startswith("build ")]


def test_one_run_of_the_compiler_builds_all_programs_once(calls: Path) -> None:
    built = tools.build_together(["kube", "coredns", "helm"])
    assert {name: path.read_text() for name, path in built.items()} == dict.fromkeys(
        ("kube", "coredns", "helm"), "program\n"
    )
    (build,) = builds(calls)
    assert build.split()[-3:] == [".", "./coredns", "helm.sh/helm/v3/cmd/helm"]
    assert tools.build_together(["kube", "coredns", "helm"]) == built
    assert tools.build("helm") == built["helm"]
    assert len(builds(calls)) == 1
    tools.build_together(["helm", "pause"])
    assert builds(calls)[1].split()[-1] == "./pause", "only the missing program is built"
    assert len(builds(calls)[1].split()) == len(build.split()) - 2


def test_a_long_build_shows_how_many_packages_are_compiled(
    calls: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tools, "PROGRESS_SECONDS", 0.1)
    monkeypatch.setenv("SECONDS_OF_A_BUILD", "1")
    tools.build("kube")
    assert re.search(r"building kube: 2 of 4 packages compiled", capfd.readouterr().err)


def test_a_broken_build_shows_the_output_of_the_compiler_and_leaves_nothing(
    calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKEN", "yes")
    with pytest.raises(Failure, match="undefined: x"):
        tools.build("kube")
    monkeypatch.setenv("BROKEN", "")
    assert tools.build("kube").read_text() == "program\n"
