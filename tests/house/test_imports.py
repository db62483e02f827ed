"""No modules import each other in a circle, not even for types alone."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter

from tests.house.names import parse_module
from tests.support.pages import ROOT

SOURCE = ROOT / "optsched"


def name_module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def find_imports() -> dict[str, set[str]]:
    """The modules that each module imports, under `TYPE_CHECKING` and in functions as well.

    The root package is left out: it loads names of `optsched.library` when they are used, and
    modules import its version.
    """
    trees = {
        name_module(str(path.relative_to(ROOT))): parse_module(path)
        for path in sorted(SOURCE.rglob("*.py"))
    }
    del trees["optsched"]
    found: dict[str, set[str]] = {}
    for module, tree in trees.items():
        named = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                assert not node.level, f"{module} imports relatively"
                named |= {f"{node.module}.{a.name}" for a in node.names} | {str(node.module)}
            elif isinstance(node, ast.Import):
                named |= {a.name for a in node.names}
        found[module] = (named & trees.keys()) - {module}
    return found


def find_circle(imports: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_there_is_no_circle() -> None:
    imports = find_imports()
    assert len(imports) > 100
    assert find_circle(imports) == []


def test_a_circle_is_found() -> None:
    assert set(find_circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
