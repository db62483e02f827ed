"""Vector bin packing: items that ask for unlike parts of several resources, as `.vbp` files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.study.instances.random_choice import Chance


@dataclass(frozen=True)
class VectorItems:
    """Items of some sizes in bins of 100 in each dimension."""

    # items, kinds: how many items, of how many kinds
    items: int
    kinds: int
    dimensions: int = 2  # how many resources
    largest: int = 60  # of the sizes; the smallest is 5

    def text(self, chance: Chance) -> str:
        """The file: sizes of each kind and how many items it has."""
        numbers = [1] * self.kinds
        for _ in range(self.items - self.kinds):
            numbers[chance.int_below(self.kinds)] += 1
        rows = [
            (*(chance.int_between(5, self.largest) for _ in range(self.dimensions)), number)
            for number in numbers
        ]
        return _text(self.dimensions, 100, rows)


@dataclass(frozen=True)
class CutBins:
    """Bins of 1 000 in each dimension, cut by chance into items that fill them to the last unit.

    So many bins are the optimum, since all of them are full.
    """

    # bins, pieces: how many bins, and items from each
    bins: int
    pieces: int
    dimensions: int = 2  # how many resources

    def text(self, chance: Chance) -> str:
        """The file."""
        least = 1000 // (3 * self.pieces)
        spare, items = 1000 - least * self.pieces, list[tuple[int, ...]]()
        for _ in range(self.bins):
            cuts = []
            for _ in range(self.dimensions):
                at = sorted(chance.int_between(0, spare) for _ in range(self.pieces - 1))
                pairs = zip([0, *at], [*at, spare], strict=True)
                cuts.append([b - a + least for a, b in pairs])
            items += zip(*cuts, strict=True)
        return _text(self.dimensions, 1000, [(*item, 1) for item in sorted(items)])


def _text(dimensions: int, capacity: int, rows: Sequence[tuple[int, ...]]) -> str:
    """A `.vbp` file with bins of one capacity in each dimension."""
    lines = ((dimensions,), (capacity,) * dimensions, (len(rows),), *rows)
    return "".join(f"{' '.join(map(str, line))}\n" for line in lines)
