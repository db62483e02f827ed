"""Each sample has its page, each page has its samples, and the index links to all pages."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.jobs import documents
from tests.support.pages import ROOT, examples, fences, links

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = sorted((ROOT / "deploy" / "samples").glob("*"))
PAGES = sorted((ROOT / "docs" / "frameworks").glob("*.md"))
INDEX = ROOT / "docs" / "frameworks.md"
TEMPLATES = {"spark-podgroup.yaml"}
"""Samples that a framework completes, so that no command of the pages applies them."""


def linked(page: Path) -> set[Path]:
    return {(page.parent / link).resolve() for link in links(page)}


def page_of(sample: Path) -> Path:
    """Return the page of a sample. The name of a sample begins with the name of its page."""
    [page] = [p for p in PAGES if sample.stem == p.stem or sample.stem.startswith(f"{p.stem}-")]
    return page


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_a_sample_has_a_page_that_applies_it(sample: Path) -> None:
    page = page_of(sample)
    commands = [e.command for block in fences(page, "console") for e in examples(block)]
    is_applied = any(f"-f deploy/samples/{sample.name}" in command for command in commands)
    assert sample in linked(page)
    assert is_applied != (sample.name in TEMPLATES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_has_a_sample_and_is_in_the_index(page: Path) -> None:
    assert page in {page_of(sample) for sample in SAMPLES}
    assert page in linked(INDEX)
    assert page.read_text("utf-8").startswith("# ")


def test_the_index_names_all_samples() -> None:
    text = INDEX.read_text("utf-8")
    assert [s.name for s in SAMPLES if f"`{s.name}`" not in text] == []


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_samples_ask_for_what_they_take(sample: Path) -> None:
    """Every container of a sample has requests, because a gang without requests fits any node."""
    containers = [c for body in documents(sample) for c in containers_of(body)]
    assert [c["name"] for c in containers if "requests" not in c.get("resources", {})] == []


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.stem)
def test_scripts_of_samples_can_be_read(sample: Path) -> None:
    """A syntax check finds errors in scripts that no test runs."""
    containers = [c for body in documents(sample) for c in containers_of(body)]
    for each in containers:
        words = [*each.get("command", ()), *each.get("args", ())]
        if "-c" not in words:
            continue
        interpreter, script = words[0], words[words.index("-c") + 1]
        if interpreter.startswith("python"):
            compile(script, str(sample), "exec")
        else:
            done = subprocess.run(["bash", "-n"], input=script, text=True, check=False)
            assert done.returncode == 0, script


def containers_of(obj: object) -> list[dict[str, Any]]:
    """Return all containers of an object except init containers."""
    if isinstance(obj, list):
        return [found for each in obj for found in containers_of(each)]
    if not isinstance(obj, dict):
        return []
    own = obj.get("containers", [])
    return [*own, *(found for key, each in obj.items() for found in containers_of(each))]
