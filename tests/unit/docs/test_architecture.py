"""Check that the architecture stays short and names every room."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ARCHITECTURE = ROOT / "ARCHITECTURE.md"
LONGEST_WORDS = 2_500


def test_the_page_is_short() -> None:
    assert len(ARCHITECTURE.read_text().split()) <= LONGEST_WORDS


def test_every_room_is_named() -> None:
    text = ARCHITECTURE.read_text()
    packages = ("controllers/firn_controllers", "operator/firn_operator", "broker/firn_broker", "spark_apps/firn_spark")
    rooms = [room for package in packages for room in (ROOT / package).iterdir() if (room / "__init__.py").exists()]
    assert rooms
    assert not [room.name for room in rooms if f"{room.name}/" not in text]
