"""Documentation pages show real output, and tests/e2e covers the pages that need a cluster."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from itertools import groupby
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from optsched.cli.main import main
from tests.support.pages import ROOT, agrees, examples, fences, links, run

if TYPE_CHECKING:
    from collections.abc import Iterable
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


@pytest.mark.parametrize("builder", ["dummy", pytest.param("html", marks=pytest.mark.nightly)])
def test_the_site_builds_without_warnings(tmp_path: Path, builder: str) -> None:
    """Both builders resolve references, but the HTML builder takes longer than all other tests
    here.
    """
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going", "-b", builder]
    built = subprocess.run(
        [*command, "-c", str(ROOT / ".ci" / "site"), str(ROOT), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (built.returncode, built.stderr) == (0, "")
    if builder == "html":
        assert "Preemption" in (tmp_path / "searchindex.js").read_text("utf-8")


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if p.name not in ON_A_CLUSTER and p.parent != FRAMEWORKS],
    ids=lambda p: p.name,
)
def test_commands_print_what_is_shown(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    shown = [example for block in fences(page, "console") for example in examples(block)]
    printed = [
        output
        for is_plain, some in groupby(shown, lambda example: is_own(example.command))
        for output in (run_own if is_plain else run_in_shell)([e.command for e in some])
    ]
    for example, output in zip(shown, printed, strict=True):
        assert agrees(output, example.output), f"$ {example.command}\n{output}"


SHELL = re.compile("[|<>;&$`*\n]")


def is_own(command: str) -> bool:
    """Return whether a command runs optsched without shell syntax."""
    return command.startswith("optsched ") and not SHELL.search(command)


def run_own(commands: Iterable[str]) -> list[str]:
    """Return the output of optsched commands in this process, because starting
    processes is slow.
    """
    environment = {"TERM": "dumb"}
    words = [shlex.split(command)[1:] for command in commands]
    return [CliRunner().invoke(main, each, env=environment).output for each in words]


def run_in_shell(commands: Iterable[str]) -> list[str]:
    return run(list(commands), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_nothing_of_the_machine_or_of_how_it_is_made_is_told(page: Path) -> None:
    text = page.read_text("utf-8")
    for word in ("/root", "/home/", "/work/", "shared/", "helper", "session " + "of ours"):
        assert word not in text, word
