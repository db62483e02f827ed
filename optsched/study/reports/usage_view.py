"""GPU hours of queues and users."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.study.accounting.chargeback import HOUR_US
from optsched.study.reports.number_text import UNKNOWN, percent, plain
from optsched.study.reports.page import MOST_ROWS, Cell, Section, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.study.accounting.chargeback import Amounts, Chargeback

_COLUMNS: Final = ("gangs", "GPU hours", "of all", "idle", "lost to others", "lost to nodes",
                   "CPU hours")  # fmt: skip


def usage_section(found: Chargeback) -> Section:
    """Return GPU hours by queue, by user, and by both if there are several of each."""
    whole = found.total
    queues = [([name], amounts) for name, amounts in found.by_queue.items()]
    tables = [_table("By queue", ("queue",), queues, whole)]
    if len(found.by_user) > 1:
        users = [([name], amounts) for name, amounts in found.by_user.items()]
        tables.append(_table("By user", ("user",), users, whole))
    if len(queues) > 1 and len(found.by_user) > 1:
        both = [([c.queue, c.user], c.amounts) for c in found.charges]
        tables.append(_table("By queue and user", ("queue", "user"), both, whole))
    said = "What pods held from when they had a node until they left it. Idle: before their gang "
    return Section(
        "usage", "GPU hours", tables, [f"{said}had its minimum. Lost: to be done again."]
    )


def _table(
    caption: str, heads: tuple[str, ...], rows: Sequence[tuple[list[str], Amounts]], whole: Amounts
) -> Table:
    told = sorted(rows, key=lambda row: (-row[1].held, row[0]))
    note = ""
    if len(told) > MOST_ROWS:
        note = f"The {plain(MOST_ROWS)} of {plain(len(told))} with the most."
    cells = [
        (*(Cell(name or UNKNOWN) for name in names), *_cells(amounts, whole))
        for names, amounts in told[:MOST_ROWS]
    ]
    return Table(caption, (*heads, *_COLUMNS), cells, frozenset(_COLUMNS), note)


def _cells(amounts: Amounts, whole: Amounts) -> list[Cell]:
    part = amounts.held / whole.held if whole.held else 0.0
    return [
        Cell(plain(amounts.jobs), amounts.jobs),
        _hours(amounts.held),
        Cell(percent(part), round(part, 6)),
        *(_hours(n) for n in (amounts.idle, amounts.evicted, amounts.failed, amounts.cpu_held)),
    ]


def _hours(held_us: int) -> Cell:
    return Cell(plain(held_us / HOUR_US), held_us)
