"""Links of all Markdown pages lead to existing targets."""

import itertools
import re
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

import pytest

from tests import markdown

PAGES = markdown.pages()
FOLDERS = sorted({str(PurePosixPath(page).parent) for page in PAGES if page.startswith("docs/")})
ROOMS = "firn|controllers|operator|broker|spark_apps|charts|crds|docs|hack|requirements|tests"
PATH = re.compile(rf"({ROOMS})/[\w./\-{{}},]+")


def resolve(page: str, target: str) -> str:
    """Return the file that a relative link of a page names, as a path from the repository's root."""
    parts: list[str] = []
    for part in (PurePosixPath(page).parent / unquote(target)).parts:
        if part == "..":
            assert parts, f"{page}: {target} leaves the repository"
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files_and_headings(page: str) -> None:
    problems = []
    for line, target in markdown.targets(page):
        url = urlsplit(target)
        if url.scheme or url.netloc:
            continue
        file = resolve(page, url.path) if url.path else page
        if file not in markdown.files():
            problems.append(f"{page}:{line}: {target}: no such file (a link to a folder does not work on the site)")
        elif url.fragment and url.fragment not in markdown.anchors(file):
            problems.append(f"{page}:{line}: {target}: {file} has no such heading")
    assert problems == []


@pytest.mark.parametrize("page", PAGES)
def test_links_to_other_sites_use_https(page: str) -> None:
    schemes = {urlsplit(target).scheme for _, target in markdown.targets(page)}
    assert schemes <= {"", "https"}


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_index_of_a_folder_links_each_of_its_pages(folder: str) -> None:
    index = f"{folder}/index.md"
    linked = {resolve(index, urlsplit(target).path) for _, target in markdown.targets(index)}
    own = {page for page in PAGES if str(PurePosixPath(page).parent) == folder and page != index}
    assert own <= linked


def test_the_first_page_links_each_folder() -> None:
    linked = {resolve("docs/index.md", urlsplit(target).path) for _, target in markdown.targets("docs/index.md")}
    assert {f"{folder}/index.md" for folder in FOLDERS if folder != "docs"} <= linked


def alternatives(path: str) -> list[str]:
    """Expand the braces of a path as a shell does."""
    match = re.search(r"\{([^{}]*)\}", path)
    if match is None:
        return [path]
    words = match[1].split(",")
    expanded = (alternatives(path[: match.start()] + word + path[match.end() :]) for word in words)
    return list(dict.fromkeys(itertools.chain.from_iterable(expanded)))


@pytest.mark.parametrize("page", [page for page in PAGES if page != "CHANGELOG.md"])
def test_paths_in_code_exist(page: str) -> None:
    files = markdown.files()
    problems = []
    for line, text in markdown.code_spans(page):
        if not PATH.fullmatch(text):
            continue
        for path in alternatives(text):
            if not {path, f"{path}.py"} & files and not any(file.startswith(f"{path.rstrip('/')}/") for file in files):
                problems.append(f"{page}:{line}: {path}")
    assert problems == []


def test_braces_in_paths_expand_as_in_a_shell() -> None:
    assert alternatives("a/{b,c/{d,e}}.py") == ["a/b.py", "a/c/d.py", "a/c/e.py"]


@pytest.mark.parametrize(
    ("text", "anchors"),
    [
        ("# A `b` and c", {"a-b-and-c"}),
        ("# Upgrade\n\n# Upgrade", {"upgrade", "upgrade-1"}),
        ('## 1. What\'s "new"?', {"1-whats-new"}),
    ],
)
def test_anchors_are_those_of_forges(
    text: str, anchors: set[str], tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = f"{tmp_path}/page.md"
    with open(page, "w") as file:
        file.write(text)
    assert markdown.anchors(page) == anchors


def test_pages_that_code_and_the_chart_name_exist() -> None:
    named = set()
    for file in markdown.files():
        if file.startswith(("broker/", "charts/", "controllers/", "firn/", "hack/", "operator/", "spark_apps/")):
            named |= set(re.findall(r"\bdocs/[\w/-]+\.md\b", (markdown.ROOT / file).read_text(errors="replace")))
    assert named
    assert named <= markdown.files()
