"""Compare the sections of docstrings with the names and types in the code."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

Function = ast.FunctionDef | ast.AsyncFunctionDef


def list_entries(docstring: str, section: str) -> list[str]:
    """Return the entries of a numpydoc section, without their explanations."""
    if section not in docstring:
        return []
    lines = docstring.splitlines()
    entries: list[str] = []
    is_inside = False
    for line, after in pairwise([*lines, ""]):
        if after and set(after.strip()) == {"-"}:
            is_inside = line.strip() == section
        elif is_inside and line and not line[0].isspace() and set(line) != {"-"}:
            entries.append(line.strip())
    return entries


def list_names(docstring: str, section: str) -> list[str]:
    """Return the names that a section explains, including names that share an explanation."""
    entries = (entry.partition(" : ")[0] for entry in list_entries(docstring, section))
    return [name for entry in entries for name in re.split(r"[,\s]+", entry) if name]


def find_unknown_names(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield the parameters and attributes in docstrings that do not exist in the code."""
    found = {path: list(_definitions(tree.body)) for path, tree in trees.items()}
    classes = {n.name: n for nodes in found.values() for n in nodes if isinstance(n, ast.ClassDef)}
    for path, nodes in found.items():
        for node in nodes:
            docstring = ast.get_docstring(node) or ""
            sections = {each: list_names(docstring, each) for each in ("Parameters", "Attributes")}
            if not any(sections.values()):
                continue
            known = _parameters(node) if isinstance(node, Function) else _members(node, classes)
            for section, names in sections.items():
                for name in names:
                    if name.lstrip("*") not in known:
                        yield f"{path}:{node.lineno}: {node.name}: {section}: {name}"


def find_wrong_returns(trees: Mapping[str, ast.Module]) -> Iterator[str]:
    """Yield the return types in docstrings that differ from the signature."""
    for path, tree in trees.items():
        for node in _definitions(tree.body):
            if not isinstance(node, Function) or node.returns is None:
                continue
            entries = list_entries(ast.get_docstring(node) or "", "Returns")
            returned = _plain(ast.unparse(node.returns))
            # A docstring may show only the beginning of a long type.
            if entries and not _is_beginning(_plain(entries[0]), returned):
                yield f"{path}:{node.lineno}: {node.name} returns {returned}, not {entries[0]}"


def _definitions(body: Sequence[ast.stmt]) -> Iterator[ast.ClassDef | Function]:
    """Yield classes and functions, including nested definitions."""
    for node in body:
        if isinstance(node, ast.ClassDef | Function):
            yield node
        for part in ("body", "orelse", "finalbody"):
            yield from _definitions(getattr(node, part, ()))


def _is_beginning(short: str, whole: str) -> bool:
    return whole == short or whole.startswith(f"{short}[")


def _plain(text: str) -> str:
    return re.sub(r"[\s\"']", "", text)


def _parameters(function: Function) -> set[str]:
    given = function.args
    plain = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {each.arg for each in plain if each is not None}


def _members(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """Return fields, attributes, methods and constructor parameters, including inherited names."""
    found: set[str] = set()
    for each in ast.walk(node):
        if isinstance(each, ast.AnnAssign | ast.Assign):
            targets = [each.target] if isinstance(each, ast.AnnAssign) else each.targets
            found |= _targets(targets)
        elif isinstance(each, Function):
            found.add(each.name)
            found |= _parameters(each) if each.name == "__init__" else set()
    bases = (base.id for base in node.bases if isinstance(base, ast.Name))
    return found.union(*(_members(classes[base], classes) for base in bases if base in classes))


def _targets(targets: Sequence[ast.expr]) -> set[str]:
    parts = [part for target in targets for part in ast.walk(target)]
    names = {part.id for part in parts if isinstance(part, ast.Name)}
    return names | {part.attr for part in parts if isinstance(part, ast.Attribute)}
