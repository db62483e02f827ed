"""docs/compatibility.md has a row for every promise, and names existing tests."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "compatibility.md").read_text("utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in PAGE.splitlines()
    if re.match(r"\| [A-Z]+-?\d", line)
]
PROMISED = {
    *("A6b", "A13", "A14", "G-1", "G-1q", "G-2", "G-3", "G-4", "G-5", "G-7", "G-8"),
    *(f"G-6{part}" for part in "abcd"),
    *(f"Q{i}" for i in range(1, 27)),
    *(f"S{i}" for i in range(1, 23)),
    *(f"E{i}" for i in range(1, 8)),
    *(f"X{i}" for i in range(1, 7)),
    *(f"J{i}" for i in range(1, 28)),
    *(f"J11{part}" for part in "abcdefg"),
    *(f"L{i}" for i in range(13)),
    *(f"JP{i}" for i in range(6)),
    *("S1b", "E3b", "T5"),
    *(f"F{i}" for i in range(1, 19)),
    *(f"K{i}" for i in range(1, 31)),
    *("A4", "A5"),
    *(f"C{i}" for i in range(1, 11)),
}


@cache
def functions_of(path: str) -> frozenset[str]:
    """Return the names of the top-level functions of a file."""
    tree = ast.parse((ROOT / path).read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, kinds))


def test_every_promise_has_one_row() -> None:
    assert sorted(row[0] for row in ROWS) == sorted(PROMISED)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_a_row_names_tests_that_exist(row: list[str]) -> None:
    _, promise, status, cell = row
    names = re.findall(r"`([^`]+)`", cell)
    assert promise
    assert re.match(r"(yes|in part|not yet)\b", status)
    assert bool(names) == (status != "not yet")
    for name in names:
        path, _, function = name.partition("::")
        assert function in functions_of(path), name
        assert function.startswith("test_"), name
