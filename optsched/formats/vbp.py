"""Vector bin packing as `.vbp` files: dimensions, capacities, number of rows, sizes and how many.

The format of VPSolver (Brandão and Pedroso) and of Vectorpack's instances (Mommessin et al.), some
of which have sizes below zero.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from optsched.domain.packing import ItemKind, VectorPacking
from optsched.formats.numbers import Numbers, text_of
from optsched.formats.problems import InstanceError

if TYPE_CHECKING:
    from pathlib import Path


def read_vbp(file: Path) -> VectorPacking:
    """An instance of a file; items with the same sizes become one kind.

    Raises
    ------
    InstanceError
        The file can not be read, or an item fits into no bin; the message has file, line, what is
        there and what belongs there.

    """
    return parse_vbp(text_of(file), file.stem)


def parse_vbp(text: str, name: str) -> VectorPacking:
    """The same of a text.

    Raises
    ------
    InstanceError
        As `read_vbp`.

    """
    numbers = Numbers(name, text)
    dimensions = numbers.next("number of dimensions")
    if not dimensions:
        raise numbers.error("number of dimensions", 0, "is too small: write 1 or more")
    capacity = numbers.several(dimensions, "capacity")
    number_of: Counter[tuple[int, ...]] = Counter()
    for i in range(numbers.next("number of rows")):
        sizes = tuple(numbers.signed(f"size {d} of row {i}") for d in range(dimensions))
        number_of[sizes] += numbers.next(f"number of items of row {i}")
    numbers.end()
    kinds = tuple(ItemKind(sizes, number) for sizes, number in number_of.items() if number)
    if not kinds:
        raise InstanceError(f"{name}: there is no item")
    _fit(name, capacity, kinds)
    return VectorPacking(name, capacity, kinds)


def _fit(name: str, capacity: tuple[int, ...], kinds: tuple[ItemKind, ...]) -> None:
    """Where no size is below zero, which would make room for others, each item fits alone."""
    for d, most in enumerate(capacity):
        sizes = [kind.sizes[d] for kind in kinds]
        if min(sizes) >= 0 and max(sizes) > most:
            message = f"size {d} of an item: {max(sizes)} is too large: write 0 to {most}"
            raise InstanceError(f"{name}: {message}")
