"""Find functions with names of vague words only, and modules that share a name.

`python -m tests.house.words` writes the current numbers to words.csv.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

VAGUE = frozenset(Path(__file__).with_name("vague.txt").read_text("utf-8").split())
"""Words that are vague without a noun or verb of the field."""


@cache
def parse_module(path: Path) -> ast.Module:
    """Return the cached syntax tree of a file."""
    return ast.parse(path.read_text("utf-8"))


def find_vague_functions(root: Path) -> Iterator[str]:
    """Yield `path:line: name` of each function with a name of vague words only."""
    for path in sorted((root / "optsched").rglob("*.py")):
        for node in ast.walk(parse_module(path)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            parts = re.findall(r"[a-z]+", node.name.lower())
            if not node.name.startswith("__") and parts and VAGUE.issuperset(parts):
                yield f"{path.relative_to(root)}:{node.lineno}: {node.name}"


def find_shared_module_names(root: Path) -> list[str]:
    """Return the module names that occur twice or more, once for each further module."""
    names = Counter(
        path.stem for path in (root / "optsched").rglob("*.py") if not path.stem.startswith("__")
    )
    return [name for name, number in sorted(names.items()) for _ in range(number - 1)]
