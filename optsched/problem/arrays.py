"""Array types and row operations shared by the modules of `problem`."""

from __future__ import annotations

from itertools import chain, repeat
from operator import itemgetter
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

I64: TypeAlias = npt.NDArray[np.int64]
F64: TypeAlias = npt.NDArray[np.float64]
Bool: TypeAlias = npt.NDArray[np.bool_]

UNPLACED = -1
"""Node index of a task that has no node."""

UNLIMITED = np.int64(2**62)
"""The amount that means "no limit".

Comparing with UNLIMITED is safe, but UNLIMITED + UNLIMITED overflows int64.
"""


LARGEST = np.int64(2**56)
"""An amount larger than the capacity of any real cluster.

Larger amounts are capped at LARGEST so that their sums fit int64.
"""


_MOST = int(LARGEST)


def frozen(*values: object) -> None:
    """Make every array among `values` read-only."""
    for value in values:
        if isinstance(value, np.ndarray):
            value.setflags(write=False)


def table(rows: Sequence[Sequence[int]], width: int) -> I64:
    """Return rows of amounts as an array (len(rows), width); larger amounts become LARGEST."""
    try:
        found = np.array(rows, np.int64).reshape(len(rows), width)
    except OverflowError:
        return table([[min(amount, _MOST) for amount in row] for row in rows], width)
    return np.minimum(found, LARGEST)


def sparse_table(rows: Iterable[Collection[tuple[str, int]]], columns: Mapping[str, int]) -> I64:
    """Return rows of (name, amount) pairs as an array (rows, columns) of amounts.

    `columns` maps a name to a column index; names outside `columns` are ignored. A name that is
    absent from a row gets amount 0. Amounts above LARGEST become LARGEST.
    """
    listed = list(rows)
    found = np.zeros((len(listed), len(columns)), np.int64)
    named = list(chain.from_iterable(listed))
    if not named:
        return found
    number = np.fromiter(
        map(columns.get, map(itemgetter(0), named), repeat(-1)), np.int64, len(named)
    )
    values = list(map(itemgetter(1), named))
    try:
        amounts = np.array(values, np.int64)
    except OverflowError:
        amounts = np.array([min(value, _MOST) for value in values], np.int64)
    at = np.repeat(np.arange(len(listed)), list(map(len, listed)))
    known = number >= 0
    found[at[known], number[known]] = np.minimum(amounts[known], LARGEST)
    return found


def row_groups(columns: Sequence[npt.NDArray[np.generic]]) -> tuple[I64, I64]:
    """Group equal rows; `columns` holds the columns of the rows, each of length n.

    Returns `group_of` (n,) and `first`. `group_of` is the group index of each row; groups are
    numbered from 0 in lexicographic order of their rows. `first` is the index of the first row of
    each group.
    """
    _, first, group_of = np.unique(columns[0], return_index=True, return_inverse=True)
    for column in columns[1:]:
        values, inverse = np.unique(column, return_inverse=True)
        if len(values) < 2:
            continue
        # Renumber the groups after every column, so that `code` stays below n · len(values) and
        # cannot overflow.
        code = group_of * len(values) + inverse
        _, first, group_of = np.unique(code, return_index=True, return_inverse=True)
    return group_of.astype(np.int64), first.astype(np.int64)


def first_positions(values: I64, number: int) -> I64:
    """Return, for each value in 0..number-1, the index of its first occurrence in `values`.

    The result has shape (number,). A value that does not occur gets the index len(values).
    """
    found = np.full(number, len(values))
    found[values[::-1]] = np.arange(len(values) - 1, -1, -1)
    return found


def without_marked(values: I64, marked: Collection[int], number: int) -> I64:
    """Return the elements of `values` (m,) that are not in `marked`; both hold ints < `number`."""
    if not marked:
        return values
    is_kept = np.ones(number, np.bool_)
    is_kept[list(marked)] = False
    return values[is_kept[values]]


def ranges(starts: I64, lengths: I64) -> I64:
    """Return the integers of all ranges [start, start + length) as one array."""
    if not lengths.sum():
        return np.empty(0, np.int64)
    ends = np.cumsum(lengths)
    result: I64 = np.repeat(starts - (ends - lengths), lengths)
    result += np.arange(ends[-1], dtype=np.int64)
    return result
