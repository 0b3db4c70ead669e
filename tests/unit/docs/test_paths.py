"""Check that the paths in the architecture exist, and that it stays short."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
LONGEST_WORDS = 2_500
TOP = ("broker", "charts", "controllers", "crds", "docs", "firn", "hack", "operator", "spark_apps", "tests")


def test_paths_exist() -> None:
    paths = re.findall(r"`([a-z_]+/[\w/.-]*)`", ARCHITECTURE.read_text())
    wrong = [path for path in paths if path.split("/")[0] in TOP and not (ROOT / path).exists()]
    assert paths
    assert not wrong


def test_it_is_short() -> None:
    assert len(ARCHITECTURE.read_text().split()) <= LONGEST_WORDS


def test_every_room_is_named() -> None:
    text = ARCHITECTURE.read_text()
    packages = ("controllers/firn_controllers", "operator/firn_operator", "broker/firn_broker", "spark_apps/firn_spark")
    rooms = [room for package in packages for room in (ROOT / package).iterdir() if (room / "__init__.py").exists()]
    assert rooms
    assert not [room.name for room in rooms if f"{room.name}/" not in text]
