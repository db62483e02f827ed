"""Numbers and times as reports write them."""

from __future__ import annotations

from typing import Final

from optsched.study.durations import duration_text

UNKNOWN: Final = "–"
_SECOND, _MINUTE, _HOUR, _DAY = 1000, 60_000, 3_600_000, 86_400_000
_STEPS: Final = tuple(
    step * unit
    for unit, steps in (
        (1, (1, 2, 5, 10, 20, 50, 100, 200, 500)),
        (_SECOND, (1, 2, 5, 10, 15, 30)),
        (_MINUTE, (1, 2, 5, 10, 15, 30)),
        (_HOUR, (1, 2, 3, 6, 12)),
        (_DAY, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)),
    )
    for step in steps
)


def moment(at_ms: float) -> str:
    """An instant of a trace, exact to the millisecond: 0, 90s, 2h15m, 3d4h."""
    left = round(at_ms)
    if left == 0:
        return "0"
    words = []
    for name, unit in (("d", _DAY), ("h", _HOUR), ("m", _MINUTE), ("s", _SECOND), ("ms", 1)):
        number, left = divmod(left, unit)
        if number:
            words.append(f"{number}{name}")
    return " ".join(words)


def span(length_ms: float) -> str:
    """A length of time with three figures or so."""
    return duration_text(length_ms / 1000)


def seconds(value: float | None) -> str:
    """A length of time in seconds, as `span`."""
    if value is None:
        return UNKNOWN
    return f"{1000 * value:.1f} ms" if 0 < value < 1 else duration_text(value)


def percent(part: float | None, digits: int = 1) -> str:
    """A part of one."""
    return UNKNOWN if part is None else f"{100 * part:.{digits}f} %"


def plain(value: float | None, digits: int = 2) -> str:
    """A number with thin spaces between thousands."""
    if value is None:
        return UNKNOWN
    text = f"{value:,.{digits}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace(",", "\u202f")


def counted(number: int, what: str) -> str:
    """`1 node`, `3 nodes`."""
    return f"{plain(number)} {what}" if number == 1 else f"{plain(number)} {what}s"


def time_ticks(end_ms: int, most: int = 8) -> list[tuple[int, str]]:
    """Round instants from 0 to an end, and what to write there."""
    step = next((s for s in _STEPS if end_ms / s <= most), end_ms)
    return [(at, moment(at)) for at in range(0, end_ms + 1, step)]


def part_ticks(top: float) -> list[float]:
    """Round parts of one, from 0 to at least a top."""
    step = next((s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25) if top / s <= 5), 0.25)
    number = max(1, -int(-(top - 1e-9) // step))
    return [round(i * step, 4) for i in range(number + 1)]


def short(name: str, most: int) -> str:
    """A name that takes no more room than it has: its middle is left out."""
    if len(name) <= most:
        return name
    head = (most - 1) // 2
    return f"{name[:head]}…{name[len(name) - (most - 1 - head) :]}"
