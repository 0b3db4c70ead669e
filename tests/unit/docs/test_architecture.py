"""Check that the architecture stays short, names every room, and lists every key."""

import re
from pathlib import Path

from firn_controllers import reconcile

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


def test_the_page_about_reconciles_lists_every_key() -> None:
    page = (ROOT / "docs/concepts/apply-to-status.md").read_text()
    section = page.partition("## Keys\n")[2].partition("\n## ")[0]
    listed = set(re.findall(r"^\| (\w+) \|", section, re.MULTILINE)) - {"key"}
    assert listed == {
        reconcile.TOPIC, reconcile.POLICY, reconcile.FLEET, reconcile.CATALOG, reconcile.GROUP, reconcile.AUDITS, reconcile.ORPHANS,
    }  # fmt: skip
