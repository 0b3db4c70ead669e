"""The generated files in the repository match the models."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from firn.api import crds
from firn.api.files import generated

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return generated()


@pytest.mark.slow
def test_each_generated_file_matches_the_models(files: dict[str, str]) -> None:
    assert [path for path, text in files.items() if (ROOT / path).read_text() != text] == [], "run make generate"


@pytest.mark.slow
def test_no_other_crd_file_exists(files: dict[str, str]) -> None:
    present = {
        str(path.relative_to(ROOT))
        for pattern in ("crds/*.yaml", "charts/firn/templates/crd-*")
        for path in ROOT.glob(pattern)
    }
    assert present == {path for path in files if "crd" in path}


@pytest.mark.slow
@pytest.mark.parametrize("crd", crds.all_crds(), ids=lambda crd: crd["spec"]["names"]["kind"])
def test_a_crd_reads_back_unchanged(files: dict[str, str], crd: crds.Manifest) -> None:
    path = f"crds/firn.dev_{crd['spec']['names']['plural']}.yaml"
    assert yaml.safe_load(files[path]) == crd


@pytest.mark.slow
def test_generate_writes_stale_files_and_check_only_reports_them(files: dict[str, str], tmp_path: Path) -> None:
    shutil.copytree(ROOT / "firn", tmp_path / "firn", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "hack").mkdir()
    for name in ("__init__.py", "generate", "generate.py"):
        shutil.copy(ROOT / "hack" / name, tmp_path / "hack" / name)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, tmp_path / "hack/generate", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"},
        )

    missing = run("--check")
    assert (missing.returncode, missing.stderr.count("run make generate")) == (1, len(files))
    assert not (tmp_path / "crds").exists()
    assert run().stdout.count("wrote") == len(files)
    (tmp_path / "crds/firn.dev_icebergtopics.yaml").write_text("stale")
    stale = run("--check")
    assert (stale.returncode, stale.stderr) == (
        1,
        "crds/firn.dev_icebergtopics.yaml differs from the models: run make generate\n",
    )
