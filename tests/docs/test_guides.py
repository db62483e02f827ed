"""The guides agree with the code, in sentences of at most 25 words."""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Any

import pytest

from optsched.formats.files.yaml_text import Document, read_yaml
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

DOCS = ROOT / "docs"
GUIDES = [
    DOCS / f"{name}.md"
    for name in ("architecture", "concepts", "models", "sizing", "troubleshooting", "upgrade")
]
_NOT_PROSE = re.compile(r"^```.*?^```$|^#.*?$", re.M | re.S)


def cells(page: Path) -> list[list[str]]:
    """Return the cells of all table rows on a page."""
    lines = [line for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def sentences(page: Path) -> list[str]:
    """Return the sentences of the paragraphs, lists and cells of a page."""
    text = re.sub(r"\]\([^)]*\)", "]", _NOT_PROSE.sub("", page.read_text("utf-8")))
    text = re.sub(r" *\| *|\n(?=[-|\n]|\d\. )", "\n\n", text)
    return [s for part in re.split(r"\n\n+", text) for s in re.split(r"[.:?!](?:\s+|$)", part)]


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_sentences_are_short(page: Path) -> None:
    assert [s for s in sentences(page) if len(s.split()) > 25] == []


# --- architecture --------------------------------------------------------------------------------


def test_packages_are_those_of_the_contract_in_their_order() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    layers = next(c["layers"] for c in contracts["contracts"] if c["id"] == "rooms")
    section = (DOCS / "architecture.md").read_text("utf-8").split("\n## Packages and imports\n")[1]
    shown = re.findall(r"^\| (`.*?`) \|", section.split("\n## ")[0], re.M)
    assert [names(cell) for cell in shown] == [layer.split(" | ") for layer in layers]


def test_files_of_the_architecture_exist() -> None:
    paths = re.findall(
        r"`((?:optsched|tests)/[^`]+)`", (DOCS / "architecture.md").read_text("utf-8")
    )
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


# --- troubleshooting -----------------------------------------------------------------------------


def test_codes_and_metrics_of_troubleshooting_exist() -> None:
    text = (DOCS / "troubleshooting.md").read_text("utf-8")
    metrics = (DOCS / "scheduler.md").read_text("utf-8")
    reasons = (DOCS / "pending.md").read_text("utf-8")
    found = set(re.findall(r"`(optsched_\w+?)(?: \d)?`", text))
    assert found
    assert [name for name in found if f"`{name}`" not in metrics] == []
    first = text.split("## A job is pending")[1].split("## Half a gang")[0]
    codes = {n for n in re.findall(r"`([A-Z][a-z]+[A-Z]\w+|Impossible)`", first)}
    assert [code for code in codes - {"FailedCreate"} if f"`{code}`" not in reasons] == []


def test_symptoms_are_the_sections_of_the_page() -> None:
    text = (DOCS / "troubleshooting.md").read_text("utf-8")
    shown = re.findall(r"\| \[([^]]+)\]\(#([a-z-]+)\) \|", text)
    titles = re.findall(r"^## (.*)$", text, re.M)
    assert sorted(title for title, _ in shown) == sorted(titles)
    assert [a for t, a in shown if t.lower().replace(" ", "-") != a] == []


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


# --- sizing --------------------------------------------------------------------------------------


def test_figures_of_sessions_are_those_of_the_benchmark() -> None:
    measured = (ROOT / "bench" / "growth.py").read_text("utf-8").split("| scenario |")[1]
    expected = re.findall(r"^\| [a-z-]+ \| .* \| ([0-9.]+) \| [0-9.]+ \|$", measured, re.M)
    table = (DOCS / "sizing.md").read_text("utf-8").split("## Session time")[1].split("## ")[0]
    assert re.findall(r"\| ([0-9.]+) \|$", table, re.M) == expected
    assert len(expected) == 8


def test_resources_are_those_of_the_chart() -> None:
    chart = ROOT / "deploy" / "helm" / "optsched" / "config" / "components.yaml"
    (parts,) = [p.value for p in read_yaml(chart.read_text("utf-8")) if isinstance(p, Document)]
    assert isinstance(parts, dict)
    name_of = {"scheduler": "scheduler", "controllers": "controller", "webhook": "admission"}
    rows = {row[0]: row[1:] for row in cells(DOCS / "sizing.md") if row[0] in name_of}
    for name, part in name_of.items():
        resources = parts[part]["resources"]
        requests, limits = resources["requests"], resources["limits"]
        assert rows[name] == [requests["cpu"], requests["memory"], limits["memory"]]
        assert set(limits) == {"memory"}


def test_requests_are_those_of_the_page_on_the_scheduler() -> None:
    pages = [(DOCS / f"{name}.md").read_text("utf-8") for name in ("scheduler", "sizing")]
    tables = [re.findall(r"^\| \d+ \| [0-9.]+ \| [0-9.]+ \| [0-9.]+ \|$", p, re.M) for p in pages]
    assert tables[0] == tables[1] != []
