"""Sphinx's settings for the documentation site; `make site` builds it.

Pages stand where they are in the project, so that links lead to the same files here and there.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import join, normpath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
INDEX = "docs/README"
PROJECT = ("/CHANGELOG", "/SECURITY", "/THIRD-PARTY")
# The pages that stand for all pages of a folder.
WITH_FOLDERS = {
    "docs/decisions/README": "docs/decisions",
    "docs/frameworks": "docs/frameworks",
    "models/formulation/README": "models/formulation",
}
_ROW = re.compile(r"^\| \[[^\]]+\]\(([^)#]+)\) \|", re.M)

project = "optsched"
html_title = "optsched"
extensions = ["myst_parser"]
root_doc = INDEX
include_patterns = [
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "THIRD-PARTY.md",
    "docs/**.md",
    "instances/README.md",
    "models/formulation/**.md",
]
myst_heading_anchors = 4
html_theme = "furo"
html_copy_source = False
# Folders have no page of their own.
nitpick_ignore = [("myst", "../deploy/samples"), ("myst", "../deploy/manifests")]
# Examples show shells, Go templates and JSON with comments, which no lexer reads as a whole.
suppress_warnings = ["misc.highlighting_failure"]


def setup(app: Sphinx) -> None:
    """Add what the index and the pages with pages of their own do not say for Sphinx."""
    app.connect("source-read", add_contents)


def add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    """Give a page the table of contents that readers of the files get from its tables."""
    if name == INDEX:
        for section in source[0].split("\n## ")[1:]:
            links = _ROW.findall(section)
            source[0] += _contents(section.partition("\n")[0], (_page(link) for link in links))
        source[0] += _contents("Project", ("/instances/README", *PROJECT))
    if name in WITH_FOLDERS:
        folder = ROOT / WITH_FOLDERS[name]
        pages = (f"/{WITH_FOLDERS[name]}/{page.stem}" for page in sorted(folder.glob("*.md")))
        source[0] += _contents("Pages", (page for page in pages if page != f"/{name}"))


def _page(link: str) -> str:
    return "/" + normpath(join("docs", link)).removesuffix(".md")


def _contents(title: str, pages: Iterable[str]) -> str:
    names = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{names}\n```\n"
