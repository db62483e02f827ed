"""The table of instances, as a part of a page in Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.study.instances.instance_catalogue import gap_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from optsched.cluster.decisions import LevelResult
    from optsched.study.instances.instance_catalogue import Entry

BEGIN: Final = "<!-- table -->"
END: Final = "<!-- end of table -->"


def with_table(page: str, entries: Iterable[Entry]) -> str:
    """The page with the table of some entries between its two marks.

    ValueError for a page without them.
    """
    head, begin, rest = page.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no place for the table: {BEGIN} and {END}")
    lines = "\n".join(_lines(entries))
    return f"{head}{BEGIN}\n{lines}\n{END}{tail}"


def _lines(entries: Iterable[Entry]) -> Iterator[str]:
    yield "| instance | model | level | value | bound | gap |"
    yield "|---|---|---|---:|---:|---:|"
    for entry in entries:
        named = f"{entry.title}{'' if entry.is_stored else ' *'}"
        for best in entry.best:
            for i, level in enumerate(best.levels):
                shown = (named, best.model) if i == 0 else ("", "")
                yield f"| {' | '.join([*shown, *_cells(level)])} |"


def _cells(level: LevelResult) -> Iterator[str]:
    gap = gap_of(level)
    yield f"{level.name} ({level.sense.value}, {level.unit})"
    yield str(level.value)
    yield "unknown" if level.bound is None else str(level.bound)
    yield "unknown" if gap is None else f"{gap:.2%}" if gap else "0"
