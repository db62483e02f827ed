"""docs/python.md shows the real output of its code."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

from optsched import library
from optsched.cli.offline.simulate_command import simulate
from optsched.study.comparison.comparison_table import Comparison
from tests.support.pages import ROOT, fences

if TYPE_CHECKING:
    import pytest

PAGE = ROOT / "docs" / "python.md"


def test_it_prints_what_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    shown = fences(PAGE, "text")
    blocks = fences(PAGE, "python")
    assert len(blocks) == len(shown) == 3
    for code, output in zip(blocks, shown, strict=True):
        exec(code, names)
        assert capsys.readouterr().out == output


def test_every_name_is_on_the_page() -> None:
    page = PAGE.read_text("utf-8")
    assert [name for name in library.__all__ if f"`{name}`" not in page] == []


def test_results_of_a_comparison_have_the_names_on_the_page() -> None:
    names = set(re.findall(r"`found\.(\w+)", PAGE.read_text("utf-8")))
    assert {"mean_of_model", "difference", "verdict"} <= names
    assert {name for name in names if not hasattr(Comparison, name)} == set()


def test_default_models_are_those_on_the_page() -> None:
    text = " ".join(PAGE.read_text("utf-8").split())
    python = inspect.signature(library.simulate).parameters["model"].default
    ((command,),) = [p.default for p in simulate.params if p.name == "model"]
    assert (
        f"The default model of the function `optsched.simulate` is `{python}`; the default model "
        f"of the command `optsched simulate` is `{command}`." in text
    )
