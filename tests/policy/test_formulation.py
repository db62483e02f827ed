from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from optsched.cli.plugin_reference import format_index
from optsched.plugins.objectives.levels import LEVELS

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "models" / "formulation"
RULES = ROOT / "optsched" / "plugins"


def named_pages() -> set[str]:
    """Return the documentation pages that docstrings of modules name."""
    found: set[str] = set()
    for path in sorted(RULES.rglob("*.py")):
        doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        found |= set(re.findall(r"models/formulation/(\w+)\.md", doc))
    return found


def pages() -> list[Path]:
    return sorted(p for p in PAGES.glob("*.md") if p.name != "README.md")


def test_modules_name_every_page_and_no_other() -> None:
    stems = [p.stem for p in pages()]
    assert len(stems) > 15
    assert sorted(named_pages()) == stems


def test_the_index_lists_every_page_as_its_last_line_says() -> None:
    text = (PAGES / "README.md").read_text("utf-8")
    assert format_index(text, pages()) == text, "run python -m optsched.cli.plugin_reference"
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \|", text, re.M)
    assert rows == [(p.stem, p.stem) for p in pages()]


def test_a_page_without_a_last_line_for_the_index_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "new.md"
    page.write_text("# new\n\n**Purpose.** Nothing.\n", "utf-8")
    with pytest.raises(ValueError, match=r"new\.md ends without a line"):
        format_index("", [page])


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.stem)
def test_pages_say_what_is_promised_and_where_it_comes_from(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.startswith(f"# {page.stem}\n\n**Purpose.** ")
    assert "**Source.**" in text
    assert text.count("```") % 2 == 0


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda p: p.stem)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_index_lists_the_levels_in_their_order() -> None:
    text = (PAGES / "README.md").read_text("utf-8")
    assert re.findall(r"^\| `([a-z-]+)` \|", text, re.M) == list(LEVELS)
