"""docs/security.md names existing tests."""

from __future__ import annotations

import re

import pytest

from tests.docs.test_compatibility import functions_of
from tests.support.pages import ROOT

PAGE = (ROOT / "docs" / "security.md").read_text("utf-8")
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ") and "::" in line]


def test_there_are_promises() -> None:
    assert len(ROWS) >= 9


@pytest.mark.parametrize("row", ROWS)
def test_a_promise_names_tests_that_exist(row: str) -> None:
    promise, cell = (part.strip() for part in row.strip("|").split(" | ", 1))
    assert promise.endswith(".")
    for name in re.findall(r"`([^`]+)`", cell):
        path, _, function = name.partition("::")
        assert function in functions_of(path), name
