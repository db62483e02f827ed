"""The guides name what the code has, in sentences of at most 25 words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from optsched.formats.text import Document, read_yaml
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DOCS = ROOT / "docs"
GUIDES = [DOCS / f"{name}.md" for name in ("concepts", "models")]
_NOT_PROSE = re.compile(r"^```.*?^```$|^#.*?$", re.M | re.S)


def cells(page: Path) -> list[list[str]]:
    """The cells of all rows of tables on a page."""
    lines = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def sentences(page: Path) -> list[str]:
    """The sentences of the paragraphs, lists and cells of a page."""
    text = re.sub(r"\]\([^)]*\)", "]", _NOT_PROSE.sub("", page.read_text("utf-8")))
    text = re.sub(r" *\| *|\n(?=[-|\n]|\d\. )", "\n\n", text)
    return [s for part in re.split(r"\n\n+", text) for s in re.split(r"[.:?!](?:\s+|$)", part)]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    assert [s for s in sentences(page) if len(s.split()) > 25] == []


# --- models --------------------------------------------------------------------------------------


def model(name: str) -> dict[str, Any]:
    text = (ROOT / "models" / f"{name}.yaml").read_text("utf-8")
    (document,) = [part.value for part in read_yaml(text) if isinstance(part, Document)]
    assert isinstance(document, dict)
    return document


def plugins(name: str) -> set[str]:
    return {rule["name"] for tier in model(name)["tiers"] for rule in tier["rules"]}


SHIPPED = sorted(path.stem for path in (ROOT / "models").glob("*.yaml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_levels_of_a_model_are_those_of_its_file(name: str) -> None:
    rows = [row for row in cells(DOCS / "models.md") if row[0] == f"`{name}`"]
    assert len(rows) == 2
    assert names(rows[0][1]) == model(name)["levels"]


@pytest.mark.parametrize("name", SHIPPED)
def test_plugins_of_a_model_are_those_of_its_file(name: str) -> None:
    row = [row for row in cells(DOCS / "models.md") if row[0] == f"`{name}`"][1]
    named, default = set(names(row[1])), plugins("volcano-default")
    if name == "volcano-default":
        assert named == {*default, *model(name)["actions"]}
    elif "alone" in row[1]:
        assert named >= plugins(name)
    else:
        assert named & {*default, *plugins(name)} == default ^ plugins(name)
