"""Array types and the row operations that the modules of this package share."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

I64: TypeAlias = npt.NDArray[np.int64]
F64: TypeAlias = npt.NDArray[np.float64]
Bool: TypeAlias = npt.NDArray[np.bool_]

UNPLACED = -1
"""Node index of a task without a node."""

UNLIMITED = np.int64(2**62)
"""An amount that stands for no limit. Comparing UNLIMITED is safe, but adding UNLIMITED to itself
overflows."""


LARGEST = np.int64(2**56)
"""An amount larger than any cluster has. Larger amounts are capped at LARGEST, so sums stay
exact."""


_MOST = int(LARGEST)


def frozen(*values: object) -> None:
    """Make every array among the values read-only, in place."""
    for value in values:
        if isinstance(value, np.ndarray):
            value.setflags(write=False)


def table(rows: Sequence[Sequence[int]], width: int) -> I64:
    """Return the amounts as an array (len(rows), width), capped at LARGEST."""
    try:
        found = np.array(rows, np.int64).reshape(len(rows), width)
    except OverflowError:
        most = int(LARGEST)
        return table([[min(amount, most) for amount in row] for row in rows], width)
    return np.minimum(found, LARGEST)


def sparse_table(rows: Iterable[Iterable[tuple[str, int]]], columns: Mapping[str, int]) -> I64:
    """Return named amounts as an array (rows, columns), capped at LARGEST.

    `columns` maps each name to its column index; names that are missing in `columns` are skipped.
    An entry is 0 if its row does not name the column. The run time depends on the number of named
    amounts, not on the number of columns.
    """
    at: list[int] = []
    number: list[int] = []
    amounts: list[int] = []
    count = 0
    for row in rows:
        for name, amount in row:
            column = columns.get(name)
            if column is not None:
                at.append(count)
                number.append(column)
                amounts.append(min(amount, _MOST))
        count += 1
    found = np.zeros((count, len(columns)), np.int64)
    found[at, number] = amounts
    return found


def row_groups(columns: Sequence[npt.NDArray[np.generic]]) -> tuple[I64, I64]:
    """Return the groups of equal rows of several columns.

    Parameters
    ----------
    columns
        At least one array; all arrays have the same length n. Values are compared exactly.

    Returns
    -------
    tuple
        `group_of` (n,), the group of each row, numbered from 0 in ascending order of the columns.
        `first` is the index of the first row of each group.

    """
    code = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, inverse = np.unique(column, return_inverse=True)
        code = code * len(values) + inverse
        # Renumbering after every column keeps the code below n · len(values), so it cannot
        # overflow.
        _, code = np.unique(code, return_inverse=True)
    _, first = np.unique(code, return_index=True)
    return code.astype(np.int64), first.astype(np.int64)


def ranges(starts: I64, lengths: I64) -> I64:
    """Return the concatenated ranges [start, start + length), computed without a loop."""
    if not lengths.sum():
        return np.empty(0, np.int64)
    ends = np.cumsum(lengths)
    result: I64 = np.repeat(starts - (ends - lengths), lengths)
    result += np.arange(ends[-1], dtype=np.int64)
    return result
