"""Sums of intervals over equal stretches of time, on arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]


def bin_means(
    spans: tuple[Ints, Ints], amounts: Floats, rows: Ints, num_rows: int, edges: Floats
) -> Floats:
    """Mean over each stretch of what intervals hold, by row.

    Parameters
    ----------
    spans
        When each interval begins and ends; inside the edges.
    amounts, rows
        The amount of each all the time, and the row for which it counts.
    edges
        Of the stretches, rising.

    Returns
    -------
    Floats
        (num_rows, number of stretches).

    """
    begins, ends = spans
    widths = np.diff(edges)
    last = len(widths) - 1
    first = np.clip(np.searchsorted(edges, begins, "right") - 1, 0, last)
    final = np.clip(np.searchsorted(edges, ends, "left") - 1, 0, last)
    found = np.zeros((num_rows, len(widths)))
    inside = first >= final
    np.add.at(
        found, (rows[inside], first[inside]), (amounts * (ends - begins))[inside].astype(float)
    )
    over = ~inside
    np.add.at(found, (rows[over], first[over]), (amounts * (edges[first + 1] - begins))[over])
    np.add.at(found, (rows[over], final[over]), (amounts * (ends - edges[final]))[over])
    change = np.zeros((num_rows, len(widths) + 1))
    np.add.at(change, (rows[over], first[over] + 1), amounts[over])
    np.add.at(change, (rows[over], final[over]), -amounts[over])
    found += change.cumsum(axis=1)[:, :-1] * widths
    result: Floats = found / widths
    return result


def at_instants(
    spans: tuple[Ints, Ints], amounts: Floats, rows: Ints, num_rows: int, instants: Ints
) -> Floats:
    """The sum of intervals at each of some instants, by row; an interval ends before its end."""
    change = np.zeros((num_rows, len(instants) + 1))
    np.add.at(change, (rows, np.searchsorted(instants, spans[0], "left")), amounts)
    np.add.at(change, (rows, np.searchsorted(instants, spans[1], "left")), -amounts)
    result: Floats = change.cumsum(axis=1)[:, :-1]
    return result


def column(values: Sequence[Any]) -> Ints:
    """Whole numbers as an array, also of none."""
    return np.array(values, dtype=np.int64)
