"""No modules import each other in a cycle, not even for type annotations."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter

from tests.house.names import parse_module
from tests.support.pages import ROOT

SOURCE = ROOT / "optsched"


def name_module(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def find_imports() -> dict[str, set[str]]:
    """Return the imported modules by module, including imports for types and inside functions.

    The root package is omitted, because it loads names of `optsched.library` lazily, and because
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
