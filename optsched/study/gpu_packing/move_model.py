"""A few nodes filled again, where most pods have to stay on their devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from ortools.sat.python import cp_model

from optsched.study.gpu_packing.repack_model import Refill, solved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64
    from optsched.study.gpu_packing.node_pool import Layout, Pool

_Var: TypeAlias = cp_model.IntVar


@dataclass(frozen=True, slots=True)
class Present:
    """Pods of one class that run on the same devices of a node."""

    node: int
    kind: int
    devices: tuple[int, ...]
    number: int
    staying: int  # how many of them stay, of the number there is


@dataclass(frozen=True, slots=True)
class Moves:
    """The pods before any move, how many of them may leave, and the cost of each."""

    present: Sequence[Present]
    most: int
    price: int


def repack_moving(
    pool: Pool, start: Layout, worth: I64, moves: Moves, effort: float, seed: int
) -> tuple[Layout, list[int]]:
    """Place pods so that they are worth the most less the price of moves.

    Parameters
    ----------
    pool, start, worth, effort, seed
        As `optsched.study.gpu_packing.repack_model.repack`; devices are not interchangeable.
    moves
        Pods that should stay.

    Returns
    -------
    tuple
        The placement, and how many of the earlier pods stay.

    """
    present = moves.present
    refill = Refill(pool, ordered=False)
    stay = _Stay(refill, present, moves.most)
    refill.maximize(worth, [(moves.price, v) for v in stay.variables])
    refill.hint(start)
    stay.hint()
    solver = solved(refill.model, effort, seed)
    if solver is None:
        return start, [p.staying for p in present]
    found, staying = refill.read(solver, start), [solver.value(v) for v in stay.variables]
    before = int((start.pods @ worth).sum()) + moves.price * sum(p.staying for p in present)
    if int((found.pods @ worth).sum()) + moves.price * sum(staying) < before:
        return start, [p.staying for p in present]
    return found, staying


class _Stay:
    """Pods that stay: no more than there are of their class, their size and on their devices."""

    def __init__(self, refill: Refill, present: Sequence[Present], most: int) -> None:
        self._model, self._present, self._refill = refill.model, present, refill
        self.variables = [self._model.new_int_var(0, p.number, "") for p in present]
        by_kind: dict[tuple[int, int], list[_Var]] = {}
        by_part: dict[tuple[int, int, int], list[_Var]] = {}
        for p, var in zip(present, self.variables, strict=True):
            by_kind.setdefault((p.node, p.kind), []).append(var)
            part = refill.size_of(p.kind)
            if part >= 0:
                by_part.setdefault((p.node, p.devices[0], part), []).append(var)
            else:
                # Devices of one's own are not shared by others.
                for device in p.devices:
                    shared = self._refill.shared.get((p.node, device))
                    if shared is not None:
                        self._model.add(var + shared <= 1)
        # Those that left for nodes elsewhere may be all of their class.
        for key, those in by_kind.items():
            self._model.add(sum(those) <= refill.pods.get(key, 0))
        for part_key, those in by_part.items():
            self._model.add(sum(those) <= refill.parts.get(part_key, 0))
        number = sum(p.number for p in present)
        self._model.add(cp_model.LinearExpr.sum(self.variables) >= number - most)

    def hint(self) -> None:
        """Pods stay that stayed before."""
        for p, var in zip(self._present, self.variables, strict=True):
            self._model.add_hint(var, p.staying)
