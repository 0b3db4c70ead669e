"""Few lines are exempt from the type checks, and none in the APIs of the broker."""

import re
from pathlib import Path

from tests.unit.layout.sources import PRODUCT, files

MOST = 25


def test_the_apis_of_the_broker_have_no_exempt_line() -> None:
    assert {path.name for path in files("broker/firn_broker/apis") if _ignores(path)} == set()


def test_product_code_has_at_most_25_exempt_lines() -> None:
    ignores = {folder: sum(map(_ignores, files(folder))) for folder in PRODUCT}
    assert sum(ignores.values()) <= MOST, ignores


def _ignores(path: Path) -> int:
    """Count the comments that exempt a line from mypy."""
    return len(re.findall(r"#\s*type: ignore", path.read_text()))
