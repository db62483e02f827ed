"""Cycles among dependencies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def find_cycle(waits_for: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return a cycle, with its first name again at the end; empty if there is none.

    Takes linear time. Names without dependencies may be missing from the mapping.
    """
    done: set[str] = set()
    for start in waits_for:
        cycle = _cycle_from(start, waits_for, done)
        if cycle:
            return cycle
    return ()


def _cycle_from(
    start: str, waits_for: Mapping[str, Sequence[str]], done: set[str]
) -> tuple[str, ...]:
    if start in done:
        return ()
    position = {start: 0}
    ahead = [iter(waits_for.get(start, ()))]
    while ahead:
        name = next(ahead[-1], None)
        if name is None:
            ahead.pop()
            done.add(position.popitem()[0])
        elif name in position:
            path = list(position)[position[name] :]
            return (*path, name)
        elif name not in done:
            position[name] = len(ahead)
            ahead.append(iter(waits_for.get(name, ())))
    return ()
