"""The reachable allocation on a pod list, compared with FGD and the upper bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.study.fgd.plan_check import find_unplaced_that_fit, milli_of_plan, wrong_with_plan
from optsched.study.fgd.planned_allocation import (
    arrived_pods,
    helpful,
    layout_of,
    placed_in_batches,
    plan_as_placed,
    plan_of,
    plan_with_moves,
    planned_slots,
    pool_of,
)
from optsched.study.fgd.scoring_policies import POLICIES
from optsched.study.fgd.trace_replay import replay
from optsched.study.fgd.workload import arrivals
from optsched.study.gpu_packing.search import Running, allocate, improved

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.problem.arrays import I64
    from optsched.study.fgd.plan_check import Placed
    from optsched.study.fgd.workload import Workload
    from optsched.study.gpu_packing.node_pool import Layout, Pool

BATCHES: Final = (1, 10, 100, 1000)
"""Sizes of batches of the published protocol."""


class WrongPlan(AssertionError):
    """A plan can not be carried out."""


@dataclass(frozen=True, eq=False, slots=True)
class Scene:
    """The pods of one seed that arrive until they ask for all GPUs."""

    workload: Workload
    classes: I64  # (T,) class of each
    pool: Pool  # the same as a pool
    fgd: Layout  # where FGD leaves them
    placed: list[Placed]  # the same, pod by pod
    rank: I64  # (N,) which of equally good nodes FGD takes: the one of the least rank

    def percent(self, milli: float) -> float:
        """Thousandths of GPUs as percent of all GPUs."""
        return 100 * milli / self.workload.total_milli

    def checked(self, plan: Sequence[Placed]) -> float:
        """Percent of all GPUs that a plan gives out to pods that are chosen.

        Raises WrongPlan: it breaks a rule, or leaves out more pods without GPUs than FGD does.
        """
        runs, due = (sum(not at.devices for at in some) for some in (plan, self.placed))
        fewer = f"{runs} pods without GPUs run, and {due} under FGD"
        return self._percent_of(plan, [fewer] if runs < due else [])

    def checked_as_they_come(self, plan: Sequence[Placed]) -> float:
        """Percent of all GPUs that a plan gives out to pods of which none is chosen.

        Raises WrongPlan: it breaks a rule, or rejects a pod that fits.
        """
        return self._percent_of(
            plan, find_unplaced_that_fit(self.workload, self.classes.tolist(), plan)
        )

    def _percent_of(self, plan: Sequence[Placed], unfair: Sequence[str]) -> float:
        kinds = self.classes.tolist()
        if wrong := [*wrong_with_plan(self.workload, kinds, plan), *unfair]:
            raise WrongPlan(wrong[0])
        return self.percent(milli_of_plan(self.workload, kinds, plan))


def scene(workload: Workload, seed: int) -> Scene:
    """Let pods arrive, and FGD place them one by one."""
    run = arrivals(workload, seed)
    classes = arrived_pods(workload, run)
    history = replay(workload, POLICIES["06-FGD"](workload), [run])
    node, device = (a[0, : len(classes)] for a in (history.node_of, history.device_of))
    pool = pool_of(workload, classes)
    placed = plan_as_placed(workload, classes, node, device)
    return Scene(workload, classes, pool, layout_of(pool, classes, node, device), placed, run.rank)


@dataclass(frozen=True, slots=True)
class Offline:
    """Percent of all GPUs given out when all pods may move, by FGD, and at most."""

    reached: float
    fgd: float
    bound: float
    rounds: int  # neighbourhoods searched


def offline(here: Scene, clock: Callable[[], float], seconds: float, seed: int) -> Offline:
    """Place all pods again in a time; checked.

    Raises WrongPlan: see `Scene.checked`.
    """
    found = allocate(here.pool, clock, seconds, seed, here.fgd)
    return Offline(
        reached=here.checked(plan_of(here.pool, here.classes, found.layout)),
        fgd=here.checked(plan_of(here.pool, here.classes, here.fgd)),
        bound=here.percent(np.inf if found.bound is None else found.bound.milli),
        rounds=found.rounds,
    )


def online(here: Scene, sizes: Sequence[int] = BATCHES) -> dict[int, float]:
    """Percent of all GPUs allocated, by size of the batches; no pod moves. Checked.

    Raises WrongPlan: see `Scene.checked_as_they_come`.
    """
    workload, kinds = here.workload, here.classes.tolist()
    slots = helpful(workload, planned_slots(workload), here.rank)
    return {
        size: here.checked_as_they_come(placed_in_batches(workload, kinds, slots, size, here.rank))
        for size in sizes
    }


def with_moves(
    here: Scene, percent: float, clock: Callable[[], float], seconds: float, seed: int
) -> tuple[float, int]:
    """Percent given out when few pods of FGD's may move, and how many pods do. Checked.

    `here`: the rest after FGD. `percent`: how many of the pods that run may change their node or
    GPUs, or leave. `clock`, `seconds`, `seed`: as `offline`. Raises WrongPlan: see `Scene.checked`;
    also where more pods move than may.
    """
    most = int(len(here.placed) * percent / 100)
    pods = [(at.node, int(here.classes[at.pod]), at.devices) for at in here.placed]
    layout, staying = improved(here.pool, here.fgd, Running(pods, most), clock, seconds, seed)
    plan = plan_with_moves(here.pool, here.classes, here.placed, layout, staying)
    moved = len(set(here.placed) - set(plan))
    if moved > most:
        raise WrongPlan(f"{moved} pods move, {most} may")
    return here.checked(plan), moved
