"""What the pages about clusters show is what happens on one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from optsched.local.files import cache_directory
from tests.support.pages import ROOT, agrees, examples, fences, run

if TYPE_CHECKING:
    from pathlib import Path

    from optsched.local.assets import Assets

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize("page", ["scheduler.md", "snapshot.md"])
def test_commands_print_what_is_shown(
    assets: Assets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str
) -> None:
    (block,) = fences(ROOT / "docs" / page, "console")
    shown = examples(block)
    cache = tmp_path / "cache" / "optsched"
    cache.mkdir(parents=True)
    (cache / "bin").symlink_to(cache_directory(os.environ) / "bin")
    (tmp_path / "kubectl").symlink_to(assets.path("kubectl"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    printed = run([example.command for example in shown], {"OPTSCHED_CACHE": str(cache)})
    for example, output in zip(shown, printed, strict=True):
        assert agrees(output, example.output), f"$ {example.command}\n{output}"
