"""Keep the worst habits of wording out of pages and docstrings. The style itself is in CONTRIBUTING.md."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for pattern in ("*.md", "docs/**/*.md", "crds/**/*.md", ".github/**/*.md")
    for path in ROOT.glob(pattern)
    if not path.is_relative_to(ROOT / "build")
)
PACKAGES = (
    "firn",
    "controllers/firn_controllers",
    "operator/firn_operator",
    "broker/firn_broker",
    "spark_apps",
    "hack",
    "tests",
)
CODE = re.compile(r"`+[^`]*`+")
LONGEST_LINE = 120
LONGEST_SENTENCE = 25
PHRASES = re.compile(
    r"\b(for good|anew|afresh|nobody|somebody|whoever|whomever|made up for|(?:is|are|was) owed|comes to|goes away"
    r"|told|wholly|in vain|take[sn]? up (?:again|its)|nothing to who)\b",
    re.IGNORECASE,
)
"""Phrases that hide the component that acts, or that another verb says more plainly."""
OPENINGS = re.compile(
    r"(See|What|Where|Who|Whom|Whoever|Whether|One|Somebody|Nobody|Something|As `|The same|Answer\.$)\b|Answer\.$"
)
"""Docstrings begin with an imperative verb, or with the noun that an attribute stands for."""
SENTENCE_OPENINGS = re.compile(r"(Who|Whom|Whoever|Whether|Somebody|Nobody)\b")


@dataclass(frozen=True)
class Passage:
    """A paragraph, list item or table cell of a page. ``line`` is its first line."""

    line: int
    text: str


def passages(page: str) -> Iterator[Passage]:
    """Yield the prose of a Markdown page, without code."""
    code, start, lines = False, 0, list[str]()
    for number, line in enumerate([*page.split("\n"), ""], 1):
        text = line.strip()
        fence = text.startswith("```")
        item = re.match(r"([-*]|\d+\.) +", text)
        if lines and (fence or not text or text.startswith(("|", "#")) or item):
            yield Passage(start, " ".join(lines))
            lines = []
        if fence:
            code = not code
        elif code or not text:
            continue
        elif text.startswith("|"):
            yield from (Passage(number, cell.strip()) for cell in text.strip("|").split("|"))
        elif text.startswith("#"):
            yield Passage(number, text.lstrip("# "))
        else:
            start = start if lines else number
            lines.append(text[item.end() :] if item else text)


def sentences(passage: Passage) -> list[str]:
    """Return the sentences of a passage, with the text of links in place of the links."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", passage.text)
    return re.split(r"(?<=[.!?]) +|(?<=:) +(?=[A-Z`])", re.sub(r"(?<=[.!?:])\*\* ", " ", plain))


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring, those of attributes included."""
    nodes: list[ast.stmt | ast.Module] = [ast.parse(source)]
    while nodes:
        body: list[ast.stmt] = getattr(nodes.pop(), "body", [])
        for statement in body:
            match statement:
                case ast.Expr(ast.Constant(str() as text)):
                    yield statement.lineno, text.strip()
                case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                    nodes.append(statement)


@pytest.mark.parametrize("page", PAGES)
def test_pages_name_the_component_that_acts(page: str) -> None:
    wrong = []
    for passage in passages((ROOT / page).read_text()):
        text = CODE.sub("``", passage.text)
        wrong += [f"{passage.line}: {match.group()!r}" for match in PHRASES.finditer(text)]
        for sentence in sentences(passage):
            if SENTENCE_OPENINGS.match(sentence) and not sentence.endswith("?"):
                wrong.append(f"{passage.line}: begins {sentence[:40]!r}")
            if len(sentence.split()) > LONGEST_SENTENCE:
                wrong.append(f"{passage.line}: {len(sentence.split())} words: {sentence[:60]}...")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_prose_are_short(page: str) -> None:
    code, wrong = False, list[str]()
    for number, line in enumerate((ROOT / page).read_text().split("\n"), 1):
        if line.strip().startswith("```"):
            code = not code
        elif not code and not line.strip().startswith("|") and len(line) > LONGEST_LINE:
            wrong.append(f"{number}: {len(line)} characters")
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_begin_with_a_verb_or_a_noun(package: str) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0] if text else ''}"
        for path in sorted((ROOT / package).rglob("*.py"))
        for line, text in docstrings(path.read_text())
        if OPENINGS.match(text) or PHRASES.search(CODE.sub("", text))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_a_fence_is_alone_in_its_line(page: str) -> None:
    """Code in the line of the fence is not shown."""
    fences = [line for line in (ROOT / page).read_text().splitlines() if line.strip().startswith("```")]
    assert not [line for line in fences if not re.fullmatch(r"\s*```(\S+)?", line)]
