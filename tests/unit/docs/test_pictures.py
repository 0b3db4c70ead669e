"""Pictures match their source, and a page shows each of them."""

import subprocess
import sys

from tests import markdown
from tests.markdown import ROOT


def test_pictures_match_their_source() -> None:
    command = [sys.executable, str(ROOT / "docs/pictures/draw.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_page_shows_each_picture() -> None:
    shown = {target.rpartition("/")[2] for page in markdown.pages() for _, target in markdown.targets(page)}
    assert {path.name for path in (ROOT / "docs/pictures").glob("*.svg")} <= shown
