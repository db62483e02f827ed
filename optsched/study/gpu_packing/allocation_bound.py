"""No placement gives out more GPUs than this.

The value of the program of `optsched.study.gpu_packing.program` is summed from its prices, whose
bound holds whether or not they are optimal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optsched.study.gpu_packing.program import program_of

if TYPE_CHECKING:
    from optsched.problem.arrays import F64, I64
    from optsched.study.gpu_packing.node_pool import Pool


@dataclass(frozen=True, eq=False, slots=True)
class Bound:
    """The answer of the program."""

    milli: float  # no placement gives out more thousandths of GPUs
    pods: F64  # (K, C) pods of each class on each kind of nodes, fractions of them
    price: F64  # (K,) how much one pod more of a class would add, in thousandths of GPUs
    kind_of: I64  # (N,) kind of each node


def allocation_bound(pool: Pool) -> Bound | None:
    """Solve the program; None where not even its fractions place all pods that must be placed.

    Raises
    ------
    TooManyPatterns
        See `share_patterns`.

    """
    program, kind_of = program_of(pool)
    solved = program.solve()
    if solved is None:
        return None
    price = solved.price[-len(pool.supply) :]
    return Bound(program.milli(solved), program.pods(solved.values), price, kind_of)
