"""How far a queue may exceed what it deserves: the annotation `volcano.sh/overuse-tolerance`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.api import wellknown
from optsched.cluster.amounts import amounts
from optsched.cluster.snapshot import Tolerance
from optsched.units import QuantityError, parse_amount

if TYPE_CHECKING:
    from optsched.api.queue import Queue

PPM: Final = 1_000_000

_EXAMPLE: Final = "write 0, a part such as 0.2 or 20%, or amounts such as cpu=4,nvidia.com/gpu=2"


def tolerance(queue: Queue) -> tuple[Tolerance | None, str]:
    """The tolerance of a queue, None without one, and what is wrong with it; empty when nothing."""
    text = queue.overuse_tolerance.strip()
    if not text:
        return None, ""
    found = _amounts(text) if "=" in text else _fraction(text)
    if found is None:
        name = f"annotation {wellknown.OVERUSE_TOLERANCE}"
        return None, f"{name}: {text!r} can not be read: {_EXAMPLE}"
    return found, ""


def _fraction(text: str) -> Tolerance | None:
    try:
        part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        return None
    return Tolerance(round(part * PPM)) if 0 <= part < PPM else None


def _amounts(text: str) -> Tolerance | None:
    found: dict[str, int] = {}
    for pair in text.split(","):
        name, _, amount = (piece.strip() for piece in pair.partition("="))
        try:
            found[name] = parse_amount(name, amount)
        except QuantityError:
            return None
        if not name:
            return None
    return Tolerance(amounts=amounts(found))
