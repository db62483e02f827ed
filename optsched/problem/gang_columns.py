"""Encode properties of gangs as arrays, which the next problem reuses for unchanged gangs."""

from __future__ import annotations

from functools import cached_property
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np

from optsched.problem.arrays import frozen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.shapes import GangRow, Stake

_Array = TypeVar("_Array", bound="npt.NDArray[np.generic]")
_Key = TypeVar("_Key")
_Object = TypeVar("_Object")
_STAKE: Callable[[GangRow], Stake] = attrgetter("stake")


class GangColumns:
    """Numbers, flags and shared objects of gangs, computed on the first read and then cached.

    All arrays have one read-only element for each gang row (G,). The argument of each method is a
    pure function of a row. The caller passes the same function object in each session, because the
    function is the key of the cache.
    """

    def __init__(self, rows: tuple[GangRow, ...], previous: GangColumns | None = None) -> None:
        self._rows = rows
        self._numbers: dict[Callable[[GangRow], int], I64] = {}
        self._flags: dict[Callable[[GangRow], bool], Bool] = {}
        self._ids: dict[Callable[[GangRow], object], I64] = {}
        if previous is None or not previous._rows:
            return
        # `id(row)` is a safe key, because the previous columns keep their rows in memory.
        index_of = dict(zip(map(id, previous._rows), range(len(previous._rows)), strict=True))
        before = np.fromiter(map(index_of.get, map(id, rows), repeat(-1)), np.int64, len(rows))
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
        for object_of, ids in previous._ids.items():
            self._ids[object_of] = carry_over(ids, list(map(id, map(object_of, new_rows))))

    @cached_property
    def stakes(self) -> tuple[I64, list[Stake]]:
        """The stake of each gang as an index (G,) into a list of distinct stakes, and the list."""
        stake_of, stakes = self.codes(_STAKE)
        frozen(stake_of)
        return stake_of, stakes

    def numbers(self, number_of: Callable[[GangRow], int]) -> I64:
        """Return (G,) a number of each gang."""
        return _read(self._numbers, number_of, map(number_of, self._rows), np.int64)

    def flags(self, is_so: Callable[[GangRow], bool]) -> Bool:
        """Return (G,) whether a gang has a property."""
        return _read(self._flags, is_so, map(is_so, self._rows), np.bool_)

    def codes(
        self, object_of: Callable[[GangRow], _Object], chosen: Bool | None = None
    ) -> tuple[I64, list[_Object]]:
        """Return an object of each gang as an index (G,) into a list of objects, and the list.

        Objects are equal only if they are identical. Each row or its gang must keep its object in
        memory. The list is in the order of the first gang with the object. Gangs outside the mask
        `chosen` (G,) have the index -1.
        """
        ids = _read(self._ids, object_of, map(id, map(object_of, self._rows)), np.int64)
        gangs = np.arange(len(ids)) if chosen is None else np.flatnonzero(chosen)
        found = np.full(len(ids), -1, np.int64)
        found[gangs], first = group_values(ids[gangs])
        return found, [object_of(self._rows[i]) for i in gangs[first].tolist()]


def _read(
    known: dict[_Key, _Array], key: _Key, values: Iterable[int], dtype: type[np.generic]
) -> _Array:
    """Return the array of a key, and store `values` as a read-only array if no array is known."""
    if key not in known:
        found = np.array(list(values), dtype)
        frozen(found)
        known[key] = cast("_Array", found)
    return known[key]


def group_values(values: I64) -> tuple[I64, I64]:
    """Return the group (n,) of each value, and the index of the first element of each group.

    Equal values form a group. Groups are numbered in the order of their first elements.
    """
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank[inverse], first[order]
