"""The code of an earlier version, from the history of this repository."""

import json
import shutil
import subprocess
import tarfile
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.integration.ingestion.world import ROOT, Process
from tests.servers.process import cache

COMMIT_0_2_0 = "d6d6a019e2228c405bb7df72556f8d9a00c3fc19"
"""The last commit before the first entry of ``Unreleased`` in CHANGELOG.md. The commits before it still change the notes of 0.2.0."""
NO_HISTORY = "the history of this clone does not have version 0.2.0"


def code_of(commit: str) -> Path:
    """Return a tree with the driver of ``commit``. Skip the test if the clone is shallow.

    The tree stays in the cache, because the driver compiles its decoders there once.
    """
    tree = cache() / "releases" / commit
    if not tree.exists():
        archive = subprocess.run(
            ["git", "archive", commit, "firn", "spark_apps"], cwd=ROOT, capture_output=True, check=False
        )
        if archive.returncode:
            pytest.skip(NO_HISTORY)
        tree.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(dir=tree.parent))
        with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
            files.extractall(draft)
        try:
            draft.rename(tree)
        except OSError:
            shutil.rmtree(draft)  # Another process was first.
    return tree


def report(driver: Process, uid: str) -> dict[str, Any] | None:
    """Return what a driver of any version reports about a topic, None if nothing."""
    answer = driver.get("/progress")
    topics = json.loads(answer.content)["topics"] if answer is not None else ()
    return next((topic for topic in topics if topic["uid"] == uid), None)
