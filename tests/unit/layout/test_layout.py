"""The shape of the repository, held as tests."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("root", ["operator", "controllers", "broker", "spark_apps"])
def test_a_source_root_is_not_a_package(root: str) -> None:
    # A package named operator would shadow the standard library's for every interpreter started here.
    assert not (ROOT / root / "__init__.py").exists()


def test_imports_go_in_the_direction_of_the_rooms() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_package_face_holds_substance() -> None:
    for face in ROOT.glob("*/firn_*/__init__.py"):
        assert len(face.read_text().splitlines()) <= 40, face
