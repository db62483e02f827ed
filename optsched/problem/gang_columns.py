"""Encode gang properties as arrays, which the next problem reuses for unchanged gangs."""

from __future__ import annotations

from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from optsched.problem.arrays import first_positions, frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.shapes import GangRow, Stake

_Array = TypeVar("_Array", bound="npt.NDArray[np.generic]")
_Key = TypeVar("_Key")
_Object = TypeVar("_Object")
_STAKE: Callable[[GangRow], Stake] = attrgetter("stake")
_FEW_VALUES = 64
"""Integers in a range up to this width are always grouped by counting, not by sorting."""


class GangColumns:
    """Properties of gangs as arrays, each computed when first read and then cached.

    All arrays are read-only and have one element per gang row (G,). The argument of a method is a
    pure function of a gang row. This function is also the cache key, so callers pass the same
    function object in each session.

    Attributes
    ----------
    index_before
        (G,) index of the same gang row in the previous columns, or -1 for a new row.

    """

    def __init__(
        self,
        rows: tuple[GangRow, ...],
        previous: GangColumns | None = None,
        index_before: I64 | None = None,
    ) -> None:
        """Carry over the columns of `previous`; if `index_before` is None, it is computed."""
        self._rows = rows
        self._numbers: dict[Callable[[GangRow], int], I64] = {}
        self._flags: dict[Callable[[GangRow], bool], Bool] = {}
        self._codes: dict[Callable[[GangRow], object], tuple[I64, list[object]]] = {}
        self.index_before = np.full(len(rows), -1, np.int64)
        if previous is None or not previous._rows:
            return
        before = find_objects(rows, previous._rows) if index_before is None else index_before
        self.index_before = before
        fresh = np.flatnonzero(before < 0)
        new_rows = [rows[i] for i in fresh.tolist()]

        def carry_over(values: _Array, found: list[int]) -> _Array:
            carried = cast("_Array", values[before])
            carried[fresh] = found
            frozen(carried)
            return carried

        for number_of, numbers in previous._numbers.items():
            self._numbers[number_of] = carry_over(numbers, list(map(number_of, new_rows)))
        for is_so, flags in previous._flags.items():
            self._flags[is_so] = carry_over(flags, list(map(is_so, new_rows)))
        for object_of, (codes, objects) in previous._codes.items():
            known = list(objects)
            found = _number_objects(list(map(object_of, new_rows)), known)
            self._codes[object_of] = _in_order(carry_over(codes, found), known)

    @property
    def stakes(self) -> tuple[I64, list[Stake]]:
        """Each gang's `Stake` as an index (G,) into a list of distinct stakes, and that list."""
        return self.codes(_STAKE)

    def numbers(self, number_of: Callable[[GangRow], int]) -> I64:
        """Return `number_of(row)` for each gang row, as an array (G,)."""
        return _read(self._numbers, number_of, map(number_of, self._rows), np.int64)

    def flags(self, is_so: Callable[[GangRow], bool]) -> Bool:
        """Return `is_so(row)` for each gang row, as a mask (G,)."""
        return _read(self._flags, is_so, map(is_so, self._rows), np.bool_)

    def codes(
        self, object_of: Callable[[GangRow], _Object], chosen: Bool | None = None
    ) -> tuple[I64, list[_Object]]:
        """Return the index (G,) of each row's object in a list of objects, and the list.

        Objects are compared by identity and listed in order of first use. Gangs outside the mask
        `chosen` (G,) have index -1.
        """
        if object_of not in self._codes:
            known: list[object] = []
            found = _number_objects(list(map(object_of, self._rows)), known)
            self._codes[object_of] = _in_order(np.array(found, np.int64), known)
        codes, objects = cast("tuple[I64, list[_Object]]", self._codes[object_of])
        if chosen is None:
            return codes, objects
        codes_of_chosen = codes[chosen]
        groups, first = group_values(codes_of_chosen)
        codes = np.full(len(codes), -1, np.int64)
        codes[chosen] = groups
        return codes, [objects[i] for i in codes_of_chosen[first].tolist()]


def find_objects(objects: Sequence[object], known: Sequence[object]) -> I64:
    """Return the index (m,) of each object in the list `known`, or -1 for other objects."""
    # `id(each)` is a safe key, because both lists keep their objects in memory.
    index_of = dict(zip(map(id, known), range(len(known)), strict=True))
    return np.fromiter(map(index_of.get, map(id, objects), repeat(-1)), np.int64, len(objects))


def _number_objects(objects: Sequence[object], known: list[object]) -> list[int]:
    """Return the index of each object in `known`, appending new objects to `known`."""
    # `id(each)` is a safe key because the list keeps its objects alive.
    number = dict(zip(map(id, known), range(len(known)), strict=True))
    found = []
    for each in objects:
        index = number.setdefault(id(each), len(known))
        if index == len(known):
            known.append(each)
        found.append(index)
    return found


def _in_order(codes: I64, objects: Sequence[object]) -> tuple[I64, list[object]]:
    """Renumber the objects and their codes in the order of first use."""
    groups, first = group_values(codes)
    frozen(groups)
    return groups, [objects[i] for i in codes[first].tolist()]


def _read(
    known: dict[_Key, _Array], key: _Key, values: Iterable[int], dtype: type[np.generic]
) -> _Array:
    """Return the cached array of a key; if there is none, cache `values` as a read-only array."""
    if key not in known:
        found = np.array(list(values), dtype)
        frozen(found)
        known[key] = cast("_Array", found)
    return known[key]


def group_values(values: I64) -> tuple[I64, I64]:
    """Return each value's group index (n,), and the index of each group's first element.

    Equal values form a group. Groups are numbered in order of their first elements.
    """
    number = len(values)
    low = int(values.min()) if number else 0
    width = int(values.max()) - low + 1 if number else 0
    if width > 2 * number + _FEW_VALUES:
        _, at_first, at = np.unique(values, return_index=True, return_inverse=True)
    else:
        # Counting is faster than sorting if the values lie close together.
        at = values - low
        at_first = first_positions(at, width)
    first: I64 = np.sort(at_first[at_first < number])
    rank = np.empty(len(at_first), np.int64)
    rank[at[first]] = np.arange(len(first))
    return rank[at], first
