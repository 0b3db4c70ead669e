"""The Markdown pages of the repository: links, anchors, code blocks and examples."""

import functools
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[1]
HEREDOC = re.compile(r"<<-?'?(EOF|END)'?\n(.*?)\n\s*\1", re.DOTALL)


@functools.cache
def files() -> frozenset[str]:
    """Return the repository's files, committed or about to be."""
    done = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return frozenset(name for name in done.stdout.splitlines() if (ROOT / name).is_file())


@functools.cache
def pages() -> tuple[str, ...]:
    """Return all Markdown pages of the repository, as paths from its root."""
    return tuple(sorted(name for name in files() if name.endswith(".md")))


@dataclass(frozen=True)
class Block:
    """A code block: its page, its first line, its language and its text."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        """Return ``page:line``."""
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Example:
    """A YAML document of a page."""

    place: str
    value: Any


@functools.cache
def _tokens(page: str) -> tuple[Token, ...]:
    return tuple(MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text()))


def _inline(page: str) -> Iterator[tuple[int, Token]]:
    line = 0
    for token in _tokens(page):
        line = token.map[0] + 1 if token.map else line
        for child in token.children or ():
            yield line, child


def targets(page: str) -> Iterator[tuple[int, str]]:
    """Yield line and target of each link and each image of a page."""
    for line, token in _inline(page):
        target = (
            token.attrGet("href")
            if token.type == "link_open"
            else token.attrGet("src")
            if token.type == "image"
            else None
        )
        if target is not None:
            yield line, str(target)


def code_spans(page: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each inline code of a page."""
    for line, token in _inline(page):
        if token.type == "code_inline":
            yield line, token.content


def headings(page: str) -> list[str]:
    """Return the headings of a page as plain text."""
    tokens = _tokens(page)
    texts = []
    for index, token in enumerate(tokens):
        if token.type == "heading_open":
            children = tokens[index + 1].children or ()
            texts.append("".join(child.content for child in children if child.type in ("text", "code_inline")))
    return texts


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, made as GitHub and the site's generator make them."""
    seen: dict[str, int] = {}
    slugs = set()
    for heading in headings(page):
        slug = re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        slugs.add(slug if count == 0 else f"{slug}-{count}")
    return slugs


def blocks(page: str) -> list[Block]:
    """Return the fenced code blocks of a page."""
    return [
        Block(page, token.map[0] + 1 if token.map else 0, token.info.strip(), token.content)
        for token in _tokens(page)
        if token.type == "fence"
    ]


def examples() -> list[Example]:
    """Return every YAML document of every page: those of YAML blocks, and here-documents of shell blocks."""
    values = []
    for page in pages():
        for block in blocks(page):
            if block.language == "yaml":
                texts = [block.text]
            else:
                texts = [match[1] for match in HEREDOC.findall(block.text)]
            for text in texts:
                values += [Example(block.place, value) for value in yaml.safe_load_all(text) if value is not None]
    return values


def resources() -> list[Example]:
    """Return the examples that are resources of Firn."""
    return [
        example
        for example in examples()
        if isinstance(example.value, dict) and str(example.value.get("apiVersion")).startswith("firn.dev/")
    ]
