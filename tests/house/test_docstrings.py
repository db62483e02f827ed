"""The sections of docstrings agree with the names and types in the code."""

from __future__ import annotations

import ast

from tests.house.docstrings import find_unknown_names, find_wrong_returns
from tests.house.names import parse_module
from tests.support.pages import ROOT

WRONG = '''
class Base:
    """A base.

    Attributes
    ----------
    size, old
        Both.

    """

    size: int


class Heir(Base):
    """An heir.

    Attributes
    ----------
    size
        Inherited.
    kept
        Its own.

    """

    def __init__(self) -> None:
        self.kept = 1


def count(given: int, *rest: int) -> list[int]:
    """Count.

    Parameters
    ----------
    given, *rest
        Numbers.
    gone : int
        No more.

    Returns
    -------
    tuple
        Of them.

    """
'''


def parse_all() -> dict[str, ast.Module]:
    files = [p for room in ("optsched", "bench") for p in sorted((ROOT / room).rglob("*.py"))]
    return {str(p.relative_to(ROOT)): parse_module(p) for p in files}


def test_docstrings_explain_what_is_there() -> None:
    trees = parse_all()
    assert len(trees) > 100
    assert [*find_unknown_names(trees), *find_wrong_returns(trees)] == []


def test_what_is_not_there_is_found() -> None:
    trees = {"wrong.py": ast.parse(WRONG)}
    assert list(find_unknown_names(trees)) == [
        "wrong.py:2: Base: Attributes: old",
        "wrong.py:31: count: Parameters: gone",
    ]
    assert list(find_wrong_returns(trees)) == ["wrong.py:31: count returns list[int], not tuple"]
