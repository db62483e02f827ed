"""docs/solve.md names every option, every exit status and every field of a result."""

from __future__ import annotations

import re

import pytest

from optsched.cli.offline.solve_command import solve
from optsched.cluster.decisions import SolveStatus
from optsched.formats.plan import published_schema
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "solve.md").read_text("utf-8")


@pytest.mark.parametrize("flag", sorted(f for p in solve.params for f in p.opts if f[0] == "-"))
def test_every_option_has_a_row(flag: str) -> None:
    assert flag == "--output" or re.search(rf"^\| `{flag}[ `]", PAGE, re.M)


@pytest.mark.parametrize("name", sorted(published_schema("SolveResult")["properties"]))
def test_every_field_of_a_result_is_told(name: str) -> None:
    table = PAGE.split("## The result")[1].split("\n## ")[0]
    assert name in ("apiVersion", "kind") or f"`{name}`" in table


@pytest.mark.parametrize("ending", SolveStatus)
def test_every_ending_is_told(ending: SolveStatus) -> None:
    assert f"`{ending.value}`" in PAGE
