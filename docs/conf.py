"""Sphinx configuration of the documentation site (`make docs`).

The source directory is the repository, so that a link works the same on a forge and on the site. The navigation is made from the links of each
folder's index.md: the pages need no directives of the generator.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#:\s]+\.md)\)")

project = "Firn"
author = "The Firn authors"
copyright = author
release = version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_parser", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = [
    "docs/**",
    "crds/samples/README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CODE_OF_CONDUCT.md",
    "CONTRIBUTING.md",
    "GLOSSARY.md",
    "SECURITY.md",
]
# Sphinx does not enter the folders that it excludes: a cluster's state holds whole root file systems.
exclude_patterns = [path.name for path in ROOT.iterdir() if path.is_dir() and path.name not in ("docs", "crds")]
myst_heading_anchors = 4
nitpicky = True

html_theme = "furo"
html_title = f"Firn {release}"
html_extra_path = ["site/root"]
html_static_path = ["site/static"]
html_css_files = ["firn.css"]
highlight_language = "text"
html_show_sphinx = False
html_copy_source = False
html_theme_options = {
    "sidebar_hide_name": False,
    "light_css_variables": {"color-brand-primary": "#0b6e8f", "color-brand-content": "#0b6e8f"},
    "dark_css_variables": {"color-brand-primary": "#5cc8e6", "color-brand-content": "#5cc8e6"},
}
copybutton_exclude = ".linenos, .gp"


def navigation(page: str, text: str) -> list[str]:
    """List the pages below an index page: first those that it links, in its order, then the others of its folder.

    A page of another folder of docs/ is below the index of that folder only.
    """
    folder = Path(page).parent
    linked = [(ROOT / folder / link).resolve().relative_to(ROOT) for link in LINK.findall(text)]
    others = sorted(path.relative_to(ROOT) for path in (ROOT / folder).glob("*.md"))
    below = [path for path in linked if path.parent in (folder, folder / path.parent.name) or path.parts[0] != "docs"]
    pages = dict.fromkeys([*below, *(() if page == root_doc else others)])
    return [
        "/" + str(path.with_suffix(""))
        for path in pages
        if str(path.with_suffix("")) != page and (ROOT / path).is_file()
    ]


def add_navigation(app: Any, page: str, source: list[str]) -> None:
    """Append the hidden table of contents that the theme's sidebar shows."""
    if Path(page).name == "index":
        source[0] += "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(navigation(page, source[0])) + "\n```\n"


def setup(app: Any) -> None:
    """Register the hook with Sphinx."""
    app.connect("source-read", add_navigation)
