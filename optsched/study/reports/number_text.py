"""Format numbers, times and names for reports."""

from __future__ import annotations

import unicodedata
from typing import Final

from optsched.study.comparison.compared_metrics import duration_text

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
    """Format a trace time, exact to the millisecond: 0, 1m 30s, 2h 15m, 3d 4h."""
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
    """Format a duration in milliseconds with about three digits."""
    return duration_text(length_ms / 1000)


def seconds(value: float | None) -> str:
    """Format a duration in seconds like `span`, or in milliseconds if it is under one second."""
    if value is None:
        return UNKNOWN
    return f"{1000 * value:.1f} ms" if 0 < value < 1 else duration_text(value)


def percent(part: float | None, digits: int = 1) -> str:
    """Format a fraction of 1 as a percentage."""
    return UNKNOWN if part is None else f"{100 * part:.{digits}f} %"


def plain(value: float | None, digits: int = 2) -> str:
    """Format a number with thin spaces as thousands separators."""
    if value is None:
        return UNKNOWN
    text = f"{value:,.{digits}f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return text.replace(",", "\u202f")


def count_text(number: int, what: str) -> str:
    """Format a number with a noun, such as `1 node` or `3 nodes`."""
    return f"{plain(number)} {what}" if number == 1 else f"{plain(number)} {what}s"


def time_unit(length_ms: float) -> tuple[str, int]:
    """Return the time unit for an axis of the given length: its name and length in milliseconds."""
    units = (("d", _DAY), ("h", _HOUR), ("min", _MINUTE), ("s", _SECOND))
    return next((u for u in units if length_ms >= 2 * u[1]), ("ms", 1))


def time_ticks(end_ms: int, most: int = 8) -> list[tuple[int, str]]:
    """Return round instants from 0 to `end_ms`, with labels in the unit from `time_unit`."""
    step = next((s for s in _STEPS if end_ms / s <= most), end_ms)
    _, unit_ms = time_unit(end_ms)
    return [(at, plain(at / unit_ms)) for at in range(0, end_ms + 1, step)]


def part_ticks(top: float) -> list[float]:
    """Return round fractions of 1 as axis ticks, from 0 to the first one that is at least `top`."""
    step = next((s for s in (0.01, 0.02, 0.05, 0.1, 0.2, 0.25) if top / s <= 5), 0.25)
    number = max(1, -int(-(top - 1e-9) // step))
    return [round(i * step, 4) for i in range(number + 1)]


def shorten(name: str, most: int) -> str:
    """Shorten a name to at most `most` characters, with an ellipsis in the middle."""
    if len(name) <= most:
        return name
    head = (most - 1) // 2
    return f"{name[:head]}…{name[len(name) - (most - 1 - head) :]}"


# --- width of text -------------------------------------------------------------------------------

FONT: Final = 12.0
"""Font size of charts, in drawing units."""
_NARROW: Final = frozenset("iIjl.,:;|!'/ ()[]ft-r\u202f")
_BROAD: Final = frozenset("mwMW@%—…&×")
_BREAKS: Final = frozenset("/-_. :")


def text_width(text: str, size: float = FONT, *, bold: bool = False) -> float:
    """Return an estimate of the width of `text` that is large enough for common fonts."""
    width = 0.0
    for char in text:
        if char in _NARROW:
            width += 0.42
        elif char in _BROAD or not char.isascii():
            width += 0.0 if unicodedata.combining(char) else 1.05
        else:
            width += 0.78 if char.isupper() else 0.65
    return width * size * (1.1 if bold else 1.0)


def fit_name(name: str, max_width: float, size: float = FONT, *, bold: bool = False) -> str:
    """Shorten a name in the middle so that it fits on a line of width `max_width`."""
    most = len(name)
    while most > 1 and text_width(shorten(name, most), size, bold=bold) > max_width:
        most -= 1
    return shorten(name, most)


def wrap_name(name: str, max_width: float, most: int, *, bold: bool = False) -> list[str]:
    """Break a name into at most `most` lines, after punctuation if possible.

    A name that is too long is shortened in the middle.
    """
    length = min(len(name), 40 * most)
    lines = _lines(shorten(name, length), max_width, bold=bold)
    while len(lines) > most and length > most:
        length -= 1
        lines = _lines(shorten(name, length), max_width, bold=bold)
    return lines


def _lines(name: str, max_width: float, *, bold: bool) -> list[str]:
    """Break a name into lines of at most `max_width`, after punctuation if possible."""
    found: list[str] = []
    while text_width(name, bold=bold) > max_width and len(name) > 1:
        end = len(name) - 1
        while end > 1 and text_width(name[:end], bold=bold) > max_width:
            end -= 1
        cut = next((i for i in range(end, end // 2, -1) if name[i - 1] in _BREAKS), end)
        while cut > 1 and unicodedata.combining(name[cut]):
            cut -= 1
        found.append(name[:cut])
        name = name[cut:]
    return [*found, name]
