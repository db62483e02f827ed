"""Count the words that the project replaces by terms of the field.

`python -m tests.house.words` writes the current numbers to words.csv. The numbers may only fall.
"""

from __future__ import annotations

import ast
import csv
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tests.house.names import find_shared_module_names, find_vague_functions, parse_module

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("words.csv")

TERMS = {
    "alike": "equal, of one class",
    "anew": "again",
    "ask": "request",
    "asked": "request, requested",
    "asking": "requesting",
    "asks": "requests",
    "beside": "next to, in addition to",
    "booking": "reservation",
    "bookings": "reservations",
    "card": "GPU",
    "cards": "GPUs",
    "deal": "allocate",
    "deals": "allocates",
    "dealt": "allocated",
    "endings": "exit codes",
    "exits": "leaving gangs",
    "face": "extension point",
    "faces": "extension points",
    "fences": "constraints",
    "ghost": "terminating pod",
    "gone": "terminating",
    "haunts": "terminating pods",
    "heard": "received",
    "leavers": "victims",
    "loner": "bare pod",
    "loners": "bare pods",
    "news": "progress",
    "nobody": "no pod, no gang",
    "picture": "report data",
    "promise": "nomination",
    "promised": "nominated",
    "promises": "nominations",
    "relay": "progress callback",
    "room": "idle, capacity",
    "said": "reported",
    "says": "reports",
    "screen": "console",
    "seat": "nomination",
    "seated": "nominated",
    "seats": "nominations",
    "somebody": "another gang, the controller",
    "story": "timeline",
    "surroundings": "context",
    "tell": "report",
    "teller": "progress callback",
    "tells": "reports",
    "told": "reported, assumed",
    "want": "request",
    "wants": "requests",
    "whoever": "the user, the caller",
    "wish": "preference",
    "wishes": "preferences",
}


class Place(NamedTuple):
    """A word in an identifier or in prose, with its file and line."""

    word: str
    kind: str
    path: Path
    line: int


def find_words(root: Path) -> Iterator[Place]:
    """Yield every word of `TERMS` in names and docstrings of the package, and in its pages."""
    for path in sorted((root / "optsched").rglob("*.py")):
        tree = parse_module(path)
        for name, line in _names(path, tree):
            parts = re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", name).lower())
            yield from (Place(word, "name", path, line) for word in parts if word in TERMS)
        for text, line in _docstrings(tree):
            yield from _in_prose(text, path, line)
    for path in sorted([root / "README.md", *(root / "docs").rglob("*.md")]):
        yield from _in_prose(_without_code(path.read_text("utf-8")), path, 1)


def count_words(places: Iterable[Place]) -> Counter[tuple[str, str]]:
    """Return the number of occurrences of each word in names and in prose."""
    return Counter((place.word, place.kind) for place in places)


def count_all(root: Path) -> Counter[tuple[str, str]]:
    """Return the numbers of replaced words, of vague functions and of shared module names.

    The keys are pairs of word and kind.
    """
    found = count_words(find_words(root))
    found["(functions)", "vague"] = len(list(find_vague_functions(root)))
    found["(modules)", "shared"] = len(find_shared_module_names(root))
    return found


def read_table() -> Counter[tuple[str, str]]:
    """Return the maximum numbers of words.csv."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return Counter(
            {(row["word"], row["kind"]): int(row["most"]) for row in csv.DictReader(file)}
        )


def write_table() -> None:
    """Write the current numbers to words.csv."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(("word", "kind", "most"))
        rows.writerows((*key, number) for key, number in sorted(count_all(ROOT).items()))


def _names(path: Path, tree: ast.Module) -> Iterator[tuple[str, int]]:
    yield path.stem, 1
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


def _docstrings(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node)
            if text:
                yield text, getattr(node, "lineno", 1)


def _in_prose(text: str, path: Path, first_line: int) -> Iterator[Place]:
    for number, line in enumerate(_without_quotes(text).splitlines()):
        for word in re.findall(r"[a-z]+", line.lower()):
            if word in TERMS:
                yield Place(word, "prose", path, first_line + number)


def _without_code(text: str) -> str:
    """Replace fenced blocks by empty lines, so that line numbers do not change."""
    return re.sub(r"```.*?```", lambda m: "\n" * m.group().count("\n"), text, flags=re.DOTALL)


def _without_quotes(text: str) -> str:
    """Remove names in backticks and targets of links."""
    return re.sub(r"`[^`\n]*`|\]\([^)\n]*\)", "", text)


if __name__ == "__main__":
    write_table()
