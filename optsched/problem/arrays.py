"""Array types and row operations that the modules of the package `problem` share."""

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
"""Node index of a task without a node."""

UNLIMITED = np.int64(2**62)
"""The amount that means "no limit".

Comparisons with UNLIMITED are safe, but UNLIMITED + UNLIMITED overflows int64.
"""


LARGEST = np.int64(2**56)
"""An amount that no real cluster reaches.

Amounts above LARGEST are capped, so that sums fit int64.
"""


_MOST = int(LARGEST)


def frozen(*values: object) -> None:
    """Make every array among the arguments read-only, in place."""
    for value in values:
        if isinstance(value, np.ndarray):
            value.setflags(write=False)


def table(rows: Sequence[Sequence[int]], width: int) -> I64:
    """Return rows of amounts as an array (len(rows), width); amounts are capped at LARGEST."""
    try:
        found = np.array(rows, np.int64).reshape(len(rows), width)
    except OverflowError:
        return table([[min(amount, _MOST) for amount in row] for row in rows], width)
    return np.minimum(found, LARGEST)


def sparse_table(rows: Iterable[Collection[tuple[str, int]]], columns: Mapping[str, int]) -> I64:
    """Return mappings of named amounts as an array (rows, columns), capped at LARGEST.

    `columns` maps each name to a column index; amounts with a name outside `columns` are ignored.
    An array element is 0 if the mapping of the row does not name the column. The run time depends
    on the number of named amounts, not on the number of columns.
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
    """Return the groups of rows that are equal in all given columns.

    Parameters
    ----------
    columns
        One or more arrays of equal length n. Row i consists of element i of each array.

    Returns
    -------
    tuple
        `group_of` (n,) contains the group number of each row. Groups are numbered from 0, in
        lexicographic order of the rows in the groups. `first` contains the index of the first row
        of each group.

    """
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        code = code * len(values) + inverse
        # Groups are renumbered after every column. Due to the renumbering, the combined code stays
        # below n · len(values) and cannot overflow.
        _, code = np.unique(code, return_inverse=True)
    _, first = np.unique(code, return_index=True)
    return code.astype(np.int64), first.astype(np.int64)


def without_marked(values: I64, marked: Collection[int], number: int) -> I64:
    """Return the values (m,) that are not among `marked`; all values are from 0 to `number` - 1."""
    if not marked:
        return values
    is_kept = np.ones(number, np.bool_)
    is_kept[list(marked)] = False
    return values[is_kept[values]]


def ranges(starts: I64, lengths: I64) -> I64:
    """Return the integer ranges [start, start + length) as one array, without a Python loop."""
    if not lengths.sum():
        return np.empty(0, np.int64)
    ends = np.cumsum(lengths)
    result: I64 = np.repeat(starts - (ends - lengths), lengths)
    result += np.arange(ends[-1], dtype=np.int64)
    return result
