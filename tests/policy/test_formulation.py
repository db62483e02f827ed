from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from optsched.plugins.objectives.levels import LEVELS

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "models" / "formulation"
RULES = ROOT / "optsched" / "plugins"


def named_pages() -> dict[str, str]:
    """The page that each module's docstring names."""
    found = {}
    for path in sorted(RULES.rglob("*.py")):
        doc = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        if match := re.search(r"models/formulation/(\w+)\.md", doc):
            found[path.stem] = match[1]
    return found


def pages() -> list[Path]:
    return sorted(p for p in PAGES.glob("*.md") if p.name != "README.md")


def test_every_page_has_a_module_of_its_name_and_no_page_is_missing() -> None:
    """Modules that a plugin is split into may name the page of the plugin, too."""
    named, stems = named_pages(), [p.stem for p in pages()]
    assert len(stems) > 15
    assert sorted(set(named.values())) == stems
    assert sorted(module for module, page in named.items() if module == page) == stems


def test_the_index_lists_every_page_once_as_a_rule() -> None:
    rows = re.findall(r"^\| \[(\w+)\]\((\w+)\.md\) \|", (PAGES / "README.md").read_text(), re.M)
    assert all(name == target for name, target in rows)
    assert sorted(name for name, _ in rows) == [p.stem for p in pages()]


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.stem)
def test_pages_say_what_is_promised_and_where_it_comes_from(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text.startswith(f"# {page.stem}\n\n**Promise.** ")
    assert "**Source.**" in text
    assert text.count("```") % 2 == 0


@pytest.mark.parametrize("page", sorted(PAGES.glob("*.md")), ids=lambda p: p.stem)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)\)", page.read_text("utf-8"))
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_index_lists_the_levels_in_their_order() -> None:
    text = (PAGES / "README.md").read_text("utf-8")
    assert re.findall(r"^\| `([a-z-]+)` \|", text, re.M) == list(LEVELS)
