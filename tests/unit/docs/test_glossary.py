"""Check that the glossary names the code as it is."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GLOSSARY = ROOT / "GLOSSARY.md"
SOURCES = ("firn", "controllers", "operator", "broker", "spark_apps")
ROW = re.compile(r"\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \| (?P<code>[^|]*) \|")


def rows() -> list[re.Match[str]]:
    """Return the rows of all tables, headings excluded."""
    matches = [match for line in GLOSSARY.read_text().split("\n") if (match := ROW.fullmatch(line))]
    return [match for match in matches if match["term"] not in ("term", "key")]


@pytest.fixture(scope="module")
def code() -> str:
    """Return the text of all product code."""
    return "\n".join(path.read_text() for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py")))


def test_each_term_has_one_row() -> None:
    terms = [term for row in rows() for term in row["term"].split(", ")]
    assert len(terms) == len(set(terms))


@pytest.mark.slow
def test_names_in_the_last_column_exist_in_the_code(code: str) -> None:
    wrong = [
        f"{row['term']}: {name}"
        for row in rows()
        for name in re.findall(r"`([^`]+)`", row["code"])
        if not re.search(rf"\b{re.escape(name)}\b", code)
    ]
    assert not wrong, "\n".join(wrong)
