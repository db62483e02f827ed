"""docs/python.md shows the real output of its code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    from optsched import library

    page = PAGE.read_text("utf-8")
    assert [name for name in library.__all__ if f"`{name}`" not in page] == []
