"""Source roots, __init__ files, and the import contracts in pyproject.toml."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.layout.sources import PRODUCT, ROOT, files, relative


@pytest.mark.parametrize("root", ["operator", "controllers", "broker", "spark_apps"])
def test_a_source_root_is_not_a_package(root: str) -> None:
    # A package named operator would shadow the standard library's for every interpreter that starts here.
    assert not (ROOT / root / "__init__.py").exists()


def test_imports_follow_the_contracts() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_init_file_holds_little_code() -> None:
    faces = [path for path in files(*PRODUCT, "hack") if path.name == "__init__.py"]
    assert {relative(face) for face in faces if len(face.read_text().splitlines()) > 40} == set()
