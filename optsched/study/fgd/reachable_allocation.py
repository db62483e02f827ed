"""Search for a high GPU allocation of a pod list; compare it with FGD and with a bound."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from optsched.study.fgd.plan_check import find_unplaced_that_fit, milli_of_plan, wrong_with_plan
from optsched.study.fgd.planned_allocation import (
    arrived_pods,
    layout_of,
    place_in_batches,
    plan_from_replay,
    plan_of,
    plan_slots,
    plan_with_moves,
    pool_of,
    select_helpful_slots,
)
from optsched.study.fgd.scoring_policies import POLICIES
from optsched.study.fgd.trace_replay import replay
from optsched.study.fgd.workload import arrivals
from optsched.study.gpu_packing.search import Running, allocate, improve_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from optsched.problem.arrays import I64
    from optsched.study.fgd.plan_check import PodPlacement
    from optsched.study.fgd.workload import Workload
    from optsched.study.gpu_packing.node_pool import Layout, Pool

BATCHES: Final = (1, 10, 100, 1000)
"""Batch sizes in the published experiment, in pods."""


class WrongPlan(AssertionError):
    """Raised for a plan that violates a constraint; its allocation must not be reported."""


@dataclass(frozen=True, eq=False, slots=True)
class Experiment:
    """The pods that arrive under one random seed until all GPUs are requested, placed by FGD."""

    workload: Workload
    classes: I64  # Class (T,) of each pod.
    pool: Pool  # The nodes, and one pod per element of `classes`.
    fgd: Layout  # Number of pods of each class on each node under FGD.
    placed: list[PodPlacement]  # Placement of each placed pod under FGD.
    rank: I64  # Rank of each node, by which FGD breaks ties between nodes, shape (N,).

    def percent(self, milli: float) -> float:
        """Convert thousandths of a GPU to a percentage of all GPUs."""
        return 100 * milli / self.workload.total_milli

    def check_plan(self, plan: Sequence[PodPlacement]) -> float:
        """Return the percentage of GPUs that a plan allocates; pods may be left unplaced.

        Raises WrongPlan if the plan is infeasible or places fewer pods without GPUs than FGD.
        """
        runs, due = (sum(not at.devices for at in some) for some in (plan, self.placed))
        fewer = f"{runs} pods without GPUs run, but {due} under FGD"
        return self._percent_of(plan, [fewer] if runs < due else [])

    def check_online_plan(self, plan: Sequence[PodPlacement]) -> float:
        """Return the percentage of GPUs that a plan allocates; all pods that fit must be placed.

        Raises WrongPlan if the plan is infeasible or an unplaced pod fits on a node.
        """
        return self._percent_of(
            plan, find_unplaced_that_fit(self.workload, self.classes.tolist(), plan)
        )

    def _percent_of(self, plan: Sequence[PodPlacement], unfair: Sequence[str]) -> float:
        classes = self.classes.tolist()
        if wrong := [*wrong_with_plan(self.workload, classes, plan), *unfair]:
            raise WrongPlan(wrong[0])
        return self.percent(milli_of_plan(self.workload, classes, plan))


def build_experiment(workload: Workload, seed: int) -> Experiment:
    """Replay the arrivals of one random seed under FGD, which places each pod when it arrives."""
    run = arrivals(workload, seed)
    classes = arrived_pods(workload, run)
    history = replay(workload, POLICIES["06-FGD"](workload), [run])
    node, device = (a[0, : len(classes)] for a in (history.node_of, history.device_of))
    pool = pool_of(workload, classes)
    placed = plan_from_replay(workload, classes, node, device)
    return Experiment(
        workload, classes, pool, layout_of(pool, classes, node, device), placed, run.rank
    )


@dataclass(frozen=True, slots=True)
class OfflineAllocation:
    """Percentages of GPUs that are allocated if all pods may move."""

    reached: float  # Percentage of GPUs that the best placement found by the search allocates.
    fgd: float  # Percentage of GPUs that FGD allocates.
    bound: float  # Upper bound on the percentage of GPUs that any placement allocates.
    rounds: int  # Number of neighbourhoods searched.


def allocate_offline(
    experiment: Experiment, clock: Callable[[], float], seconds: float, seed: int
) -> OfflineAllocation:
    """Search for the best placement of all pods for `seconds`, and return its GPU allocation.

    Raises WrongPlan if `Experiment.check_plan` rejects the plan.
    """
    found = allocate(experiment.pool, clock, seconds, seed, experiment.fgd)
    return OfflineAllocation(
        reached=experiment.check_plan(plan_of(experiment.pool, experiment.classes, found.layout)),
        fgd=experiment.check_plan(plan_of(experiment.pool, experiment.classes, experiment.fgd)),
        bound=experiment.percent(np.inf if found.bound is None else found.bound.milli),
        rounds=found.rounds,
    )


def allocate_online(experiment: Experiment, sizes: Sequence[int] = BATCHES) -> dict[int, float]:
    """For each batch size, return the percentage of GPUs that are allocated if no pod moves.

    Raises WrongPlan if `Experiment.check_online_plan` rejects a plan.
    """
    workload, classes = experiment.workload, experiment.classes.tolist()
    slots = select_helpful_slots(workload, plan_slots(workload), experiment.rank)
    return {
        size: experiment.check_online_plan(
            place_in_batches(workload, classes, slots, size, experiment.rank)
        )
        for size in sizes
    }


def allocate_with_moves(
    experiment: Experiment, percent: float, clock: Callable[[], float], seconds: float
) -> tuple[float, int]:
    """Return the percentage of allocated GPUs if few pods move, and the number of moved pods.

    The search starts from the placement by FGD. At most `percent` percent of the placed pods may
    move to another node or other GPUs, or be removed. The search ends after `seconds`, as measured
    by `clock`.

    Raises WrongPlan if more than `percent` percent of the pods move, or if `Experiment.check_plan`
    rejects the plan.
    """
    most = int(len(experiment.placed) * percent / 100)
    pods = [(at.node, int(experiment.classes[at.pod]), at.devices) for at in experiment.placed]
    layout, staying = improve_layout(
        experiment.pool, experiment.fgd, Running(pods, most), clock, seconds
    )
    plan = plan_with_moves(experiment.pool, experiment.classes, experiment.placed, layout, staying)
    moved = len(set(experiment.placed) - set(plan))
    if moved > most:
        raise WrongPlan(f"{moved} pods move, but at most {most} may")
    return experiment.check_plan(plan), moved
