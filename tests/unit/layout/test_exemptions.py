"""Each exemption in pyproject.toml from a rule of complexity, arguments or imports is needed."""

import json
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

from tests.unit.layout.sources import PRODUCT, ROOT

RULES = {"C901", "PLR0913", "PLC0415"}


def test_every_exemption_is_needed() -> None:
    lint = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert lint["mccabe"]["max-complexity"] == 12
    assert lint["pylint"]["max-args"] == 8
    exempt = {
        (pattern, code)
        for pattern, codes in lint["per-file-ignores"].items()
        for code in codes
        if code in RULES and not pattern.startswith("tests/")
    }
    violations = _violations()
    unused = {
        (pattern, code)
        for pattern, code in exempt
        if not any(_covers(pattern, code, violation) for violation in violations)
    }
    assert unused == set(), "delete these from per-file-ignores"


def _covers(pattern: str, code: str, violation: tuple[str, str]) -> bool:
    path, rule = violation
    return rule == code and fnmatch(path, pattern)


def _violations() -> set[tuple[str, str]]:
    """Return the file and rule of every violation, exempt or not."""
    command = [
        str(Path(sys.executable).parent / "ruff"),
        *("check", "--isolated", "--no-cache", "--exit-zero", "--output-format=json", f"--select={','.join(RULES)}"),
        *("--config=lint.mccabe.max-complexity=12", "--config=lint.pylint.max-args=8"),
        *(*PRODUCT, "hack"),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return {
        (Path(violation["filename"]).relative_to(ROOT).as_posix(), violation["code"])
        for violation in json.loads(done.stdout)
    }
