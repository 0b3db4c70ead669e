"""Ruff checks complexity, arguments and imports, and each exemption from these rules is needed and on the list."""

import json
import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from tests.unit.layout.sources import ROOT

RULES = {"C901", "PLR0913", "PLC0415"}
BOUNDS = {"lint.mccabe.max-complexity": 12, "lint.pylint.max-args": 8}
FORMATS = "spark_apps/firn_spark/worker/formats"
KERNELS = {
    f"{FORMATS}/json/kernel.py": {
        "C901": {"_field", "_record", "find_entries"},
        "PLR0913": {"_field", "_record", "_store", "read_records", "read_values", "find_elements", "find_entries"},
    },
    f"{FORMATS}/json/tokens.py": {"C901": {"read_number", "after_value"}},
    f"{FORMATS}/json/variant_kernel.py": {"C901": {"_parsed"}, "PLR0913": {"_parsed", "_written", "encode"}},
    f"{FORMATS}/avro/kernel.py": {
        "C901": {"_after_value", "_value", "find_items"},
        "PLR0913": {"_after_value", "_value", "_row", "_store", "read_rows", "find_items"},
    },
    f"{FORMATS}/protobuf/kernel.py": {
        "C901": {"_row"},
        "PLR0913": {"_row", "_store", "read_rows", "find_items", "read_items"},
    },
}
"""Module -> rule -> compiled functions that are exempt. In them, a call costs time for each record; a branch or an argument costs none."""
EXEMPT = {
    ("operator/firn_operator/cli/main.py", "PLC0415"): "Libraries take seconds to import; each command imports what it needs.",
    ("operator/firn_operator/cli/main.py: def adopt_connect(", "PLR0913"): "Each option of the command is an argument.",
    ("operator/firn_operator/cli/main.py: def dlq_show(", "PLR0913"): "Each option of the command is an argument.",
    ("spark_apps/firn_spark/worker/formats/registry.py", "PLC0415"): "The compiler takes a second and 100 MB; the driver never decodes.",
    ("spark_apps/firn_spark/kafka/tasks.py", "PLC0415"): "The compiler takes a second and 100 MB; the driver never reads records.",
}  # fmt: skip
"""Exempt places and the reason for each: (pattern of per-file-ignores, rule), or ("path: line with a noqa", rule)."""


@dataclass(frozen=True)
class Violation:
    """A place that violates one of the rules, exempt or not."""

    path: str
    line: str
    rule: str


@pytest.fixture
def lint() -> dict[str, Any]:
    """Return Ruff's configuration of rules."""
    document: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    return document


def test_ruff_checks_the_rules_within_the_bounds(lint: dict[str, Any]) -> None:
    assert set(lint["select"]) >= RULES
    assert lint["mccabe"]["max-complexity"] == BOUNDS["lint.mccabe.max-complexity"]
    assert lint["pylint"]["max-args"] == BOUNDS["lint.pylint.max-args"]


def test_only_compiled_functions_of_the_kernel_are_exempt() -> None:
    exempt = {
        (violation.path, violation.rule, function(violation.line))
        for violation in violations("--ignore-noqa")
        if violation.path in KERNELS
    }
    assert exempt == {
        (path, rule, name) for path, rules in KERNELS.items() for rule, names in rules.items() for name in names
    }


def test_every_exemption_is_on_the_list(lint: dict[str, Any]) -> None:
    """A new exemption needs a reason: add it to `EXEMPT`, or split the function."""
    by_pattern = {
        (pattern, rule)
        for pattern, codes in lint["per-file-ignores"].items()
        for rule in RULES
        if any(rule.startswith(code) or code == "ALL" for code in codes)
    }
    by_noqa = {
        (f"{violation.path}: {violation.line}", violation.rule)
        for violation in violations("--ignore-noqa")
        if violation.path not in KERNELS
    }
    assert by_pattern | by_noqa == set(EXEMPT)


def test_every_exemption_is_needed_and_nothing_else_is_exempt() -> None:
    """The second part finds exemptions of any other kind, such as ignored rules and configuration in other folders."""
    bounds = (f"--config={name}={bound}" for name, bound in BOUNDS.items())
    all_violations = violations("--isolated", "--ignore-noqa", "--extend-exclude=.cluster,.venv*", *bounds)
    needed = {place for place in EXEMPT if any(_covers(place, violation) for violation in all_violations)}
    assert needed == set(EXEMPT), "delete the others from the exemptions"
    exempt_otherwise = {
        violation
        for violation in all_violations
        if not any(_covers(place, violation) for place in EXEMPT)
        and function(violation.line) not in KERNELS.get(violation.path, {}).get(violation.rule, ())
    }
    assert exempt_otherwise == set(), "no exemption on the list covers these"


def violations(*options: str) -> set[Violation]:
    """Return what violates the rules in the repository under these options of Ruff."""
    command = [
        str(Path(sys.executable).parent / "ruff"),
        *("check", "--no-cache", "--exit-zero", "--output-format=json", f"--select={','.join(sorted(RULES))}"),
        *options,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    return {
        Violation(
            Path(violation["filename"]).relative_to(ROOT).as_posix(),
            _line(Path(violation["filename"]), violation["location"]["row"]),
            violation["code"],
        )
        for violation in json.loads(done.stdout)
    }


def function(line: str) -> str:
    """Return the name of the function whose definition is on a line."""
    return line.removeprefix("def ").partition("(")[0]


def _line(path: Path, row: int) -> str:
    """Return a line of a file without its comment."""
    return re.sub(r"\s*#.*", "", path.read_text().splitlines()[row - 1]).strip()


def _covers(exempt: tuple[str, str], violation: Violation) -> bool:
    place, rule = exempt
    pattern, _, line = place.partition(": ")
    return rule == violation.rule and fnmatch(violation.path, pattern) and line in ("", violation.line)
