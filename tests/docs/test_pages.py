"""What the documentation shows is what happens; pages that need a cluster are in tests/e2e."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.support.pages import ROOT, agrees, examples, fences, links, run

if TYPE_CHECKING:
    from pathlib import Path

ON_A_CLUSTER = {"README.md", "cli.md", "frameworks.md", "local.md", "scheduler.md", "snapshot.md"}
FRAMEWORKS = ROOT / "docs" / "frameworks"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


def test_the_index_lists_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in links(index)}
    assert {p for p in index.parent.glob("*.md") if p not in linked} == {index}
    decisions = ROOT / "docs" / "decisions"
    assert [page.name for page in sorted(decisions.glob("*.md"))] == [
        *links(decisions / "README.md"),
        "README.md",
    ]
    assert index in {ROOT / link for link in links(ROOT / "README.md")}


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going"]
    built = subprocess.run(
        [*command, "-c", str(ROOT / ".ci" / "site"), str(ROOT), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode, built.stderr) == (0, "")
    assert "Preemption" in (tmp_path / "searchindex.js").read_text("utf-8")


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if p.name not in ON_A_CLUSTER and p.parent != FRAMEWORKS],
    ids=lambda p: p.name,
)
def test_commands_print_what_is_shown(page: Path) -> None:
    shown = [example for block in fences(page, "console") for example in examples(block)]
    printed = run([example.command for example in shown], {})
    for example, output in zip(shown, printed, strict=True):
        assert agrees(output, example.output), f"$ {example.command}\n{output}"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_nothing_of_the_machine_or_of_how_it_is_made_is_told(page: Path) -> None:
    text = page.read_text("utf-8")
    for word in ("/root", "/home/", "/work/", "shared/", "helper", "session " + "of ours"):
        assert word not in text, word
