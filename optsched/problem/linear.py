"""An integer linear model as arrays, built by plugins and read by solvers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

from optsched.problem.arrays import UNLIMITED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from optsched.problem.arrays import I64


def _ints(values: ArrayLike) -> I64:
    found: I64 = np.asarray(values, np.int64)
    return found if found.ndim else found.reshape(1)


def _aligned(*parts: ArrayLike) -> list[I64]:
    """Repeat the elements of arrays of length 1, so that all arrays have the same length.

    Repeating is much faster than `np.broadcast_arrays`.
    """
    arrays = [_ints(part) for part in parts]
    lengths = {len(array) for array in arrays} - {1}
    if not lengths:
        return arrays
    if len(lengths) > 1:
        raise ValueError(f"arrays of lengths {sorted(lengths)} cannot be aligned")
    (length,) = lengths
    return [array if len(array) == length else array.repeat(length) for array in arrays]


@dataclass(frozen=True, eq=False)
class Expression:
    """A linear expression Σ coefficient·variable + constant.

    Attributes
    ----------
    variables, coefficients
        (k,) variables of the expression and their coefficients.

    """

    variables: I64
    coefficients: I64
    constant: int = 0

    @classmethod
    def of(cls, variables: ArrayLike, coefficients: ArrayLike, constant: int = 0) -> Self:
        """Return Σ coefficient·variable + constant, without terms whose coefficient is zero."""
        numbers, factors = _aligned(variables, coefficients)
        used = factors != 0
        return cls(numbers[used].copy(), factors[used].copy(), constant)

    def value(self, solution: I64) -> int:
        """Return the value of the expression in a solution, which has one value per variable."""
        return self.constant + int(solution[self.variables] @ self.coefficients)


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a model: lower[i] ≤ Σ coefficient·variable ≤ upper[i] for each row i.

    Attributes
    ----------
    row, variable, coefficient
        (nnz,) row, variable and coefficient of each nonzero term, sorted by row.
    lower, upper
        (rows,) bounds of each row; ±UNLIMITED means no bound.

    """

    row: I64
    variable: I64
    coefficient: I64
    lower: I64
    upper: I64

    def with_lower_bounds(self, held: Sequence[tuple[Expression, int]]) -> Rows:
        """Return these rows with a new row for each pair in `held`: expression ≥ value."""
        first = len(self.lower)
        at = [np.full(len(goal.variables), first + i) for i, (goal, _) in enumerate(held)]
        lower = [value - goal.constant for goal, value in held]
        return Rows(
            np.concatenate([self.row, *at]).astype(np.int64),
            np.concatenate([self.variable, *(goal.variables for goal, _ in held)]),
            np.concatenate([self.coefficient, *(goal.coefficients for goal, _ in held)]),
            np.append(self.lower, lower).astype(np.int64),
            np.append(self.upper, np.full(len(held), UNLIMITED)),
        )


class LinearModel:
    """A model of bounded integer variables and linear rows, which cannot be removed."""

    def __init__(self) -> None:
        self._lower: list[I64] = []
        self._upper: list[I64] = []
        self._row: list[I64] = []
        self._variable: list[I64] = []
        self._coefficient: list[I64] = []
        self._row_lower: list[I64] = []
        self._row_upper: list[I64] = []
        self._few: list[tuple[int, Sequence[int], Sequence[int], int, int]] = []
        self.num_variables = 0
        self.num_rows = 0

    def add_variables(self, lower: ArrayLike, upper: ArrayLike) -> I64:
        """Add one integer variable per pair of bounds, and return the variable indices."""
        low, high = _aligned(lower, upper)
        self._lower.append(low)
        self._upper.append(high)
        first, self.num_variables = self.num_variables, self.num_variables + len(low)
        return np.arange(first, self.num_variables, dtype=np.int64)

    def add_rows(
        self,
        row: ArrayLike,
        variable: ArrayLike,
        coefficient: ArrayLike,
        *,
        lower: ArrayLike = -UNLIMITED,
        upper: ArrayLike = UNLIMITED,
    ) -> I64:
        """Add linear rows, given as parallel arrays of terms, and return the indices of the rows.

        Parameters
        ----------
        row, variable, coefficient
            Row, variable and coefficient of each term; rows are numbered from 0 in each call. Terms
            with coefficient 0 are dropped.
        lower, upper
            Bounds of the rows, one element per row or a single element for all rows. At least one
            of `lower` and `upper` has one element per row, which determines the number of rows.

        """
        self._flush()
        low, high = _aligned(lower, upper)
        at, numbers, factors = _aligned(row, variable, coefficient)
        counts = factors != 0
        self._row.append(at[counts] + self.num_rows)
        self._variable.append(numbers[counts])
        self._coefficient.append(factors[counts])
        self._row_lower.append(low)
        self._row_upper.append(high)
        first, self.num_rows = self.num_rows, self.num_rows + len(low)
        return np.arange(first, self.num_rows, dtype=np.int64)

    def add_row(
        self,
        variables: Sequence[int],
        coefficients: Sequence[int],
        *,
        lower: int = -int(UNLIMITED),
        upper: int = int(UNLIMITED),
    ) -> None:
        """Add one row.

        For many rows with few variables, `add_row` is faster than `add_rows`.
        """
        self._few.append((self.num_rows, variables, coefficients, lower, upper))
        self.num_rows += 1

    def _flush(self) -> None:
        """Append the rows buffered by `add_row` to the arrays."""
        few, self._few = self._few, []
        if not few:
            return
        rows, variables, coefficients, lower, upper = zip(*few, strict=True)
        factors = _ints([f for each in coefficients for f in each])
        counts = factors != 0
        lengths = [len(each) for each in variables]
        self._row.append(np.repeat(_ints(rows), lengths)[counts])
        self._variable.append(_ints([v for each in variables for v in each])[counts])
        self._coefficient.append(factors[counts])
        self._row_lower.append(_ints(lower))
        self._row_upper.append(_ints(upper))

    def add_indicator(self, variables: Sequence[int], most: int) -> int:
        """Add and return a binary variable that is 1 if any of `variables` is positive.

        `most` is an upper bound of each variable in `variables`.
        """
        (flag,) = self.add_variables(0, 1).tolist()
        self.add_row([*variables, flag], [*[1] * len(variables), -most * len(variables)], upper=0)
        return int(flag)

    def add_limit(
        self,
        uses: Sequence[tuple[int, int]],
        releases: Sequence[tuple[int, int]],
        idle: int,
        most: int,
    ) -> None:
        """Add rows that require Σ amount·uses ≤ idle + Σ amount·releases, in base units.

        `uses` and `releases` are (variable, amount per task) pairs: the variables count tasks that
        use or release capacity. If `idle` is negative and `releases` does not make up for the
        deficit, all variables in `uses` must be 0. `most` is an upper bound of each variable in
        `uses`.
        """
        uses = [(v, amount) for v, amount in uses if amount]
        if not uses:
            return
        variables = [v for v, _ in (*uses, *releases)]
        factors = [*(a for _, a in uses), *(-a for _, a in releases)]
        if idle < 0 and releases:
            variables.append(self.add_indicator([v for v, _ in uses], most))
            self.add_row(variables, [*factors, -idle], upper=0)
            return
        self.add_row(variables, factors, upper=max(idle, 0))

    def add_entries(self, row: ArrayLike, variable: ArrayLike, coefficient: ArrayLike) -> None:
        """Add terms to existing rows; a variable may occur only once in a row."""
        entries = _aligned(row, variable, coefficient)
        self._row.append(entries[0])
        self._variable.append(entries[1])
        self._coefficient.append(entries[2])

    @property
    def bounds(self) -> tuple[I64, I64]:
        """The lower and upper bounds of all variables."""
        return _joined(self._lower), _joined(self._upper)

    @property
    def rows(self) -> Rows:
        """All rows of the model, with terms sorted by row."""
        self._flush()
        row = _joined(self._row)
        order = np.argsort(row, kind="stable")
        return Rows(
            row[order],
            _joined(self._variable)[order],
            _joined(self._coefficient)[order],
            _joined(self._row_lower),
            _joined(self._row_upper),
        )


def _joined(parts: list[I64]) -> I64:
    return np.concatenate(parts) if parts else np.empty(0, np.int64)
