"""What the pages about clusters show is what happens on one, of the reader's own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from optsched.local.files import cache_directory
from tests.support.pages import ROOT, agrees, examples, fences, run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from optsched.local.assets import Assets

pytestmark = pytest.mark.e2e

PAGES = (
    "README.md",
    *(f"docs/{name}.md" for name in ("cli", "frameworks", "local", "scheduler", "snapshot")),
)
BLOCKS = [(page, i) for page in PAGES for i in range(len(fences(ROOT / page, "console")))]
UP = (
    "optsched local up --nodes 4 2>&1",
    "export KUBECONFIG=$(optsched local kubeconfig)",
    "kubectl wait --for=condition=Ready node --all",
)
GOES_BEFORE = {("docs/local.md", 1): UP}
"""What a reader has done who comes to a block."""


@pytest.fixture
def machine(
    assets: Assets, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, str]]:
    """The environment of a reader who has kubectl, and built everything before."""
    cache, commands = tmp_path_factory.mktemp("pages"), tmp_path_factory.mktemp("bin")
    (cache / "bin").symlink_to(cache_directory(os.environ) / "bin")
    (commands / "kubectl").symlink_to(assets.path("kubectl"))
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    environment = {"OPTSCHED_CACHE": str(cache), "PATH": path}
    yield environment
    run(["optsched local down --wipe || true"], environment)


@pytest.mark.parametrize(("page", "block"), BLOCKS)
def test_commands_print_what_is_shown(machine: Mapping[str, str], page: str, block: int) -> None:
    before = GOES_BEFORE.get((page, block), ())
    shown = examples(fences(ROOT / page, "console")[block])
    printed = run([*before, *(example.command for example in shown)], machine)
    for example, output in zip(shown, printed[len(before) :], strict=True):
        assert agrees(output, example.output), f"$ {example.command}\n{output}"
