"""Reserve CPU and memory for idle devices, so that later tasks can use the devices.

Mathematics: models/formulation/proportions.md. Volcano:
`pkg/scheduler/plugins/resource-strategy-fit`, `proportional`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.plugins.nodes.node_filters import Offers
from optsched.plugins.verification.world import summed, task_usage
from optsched.problem.linear import Expression
from optsched.units import CPU, MEMORY, amount_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.task import Task
    from optsched.plugins.accounting import Ledger
    from optsched.plugins.extension_points import NodeModel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem

SECONDARY = (CPU, MEMORY)


@dataclass(frozen=True, slots=True)
class KeptPerDevice:
    """The CPU and memory to reserve per idle device of a type, in base units."""

    device: str
    cpu_m: int
    mem_bytes: int

    def reserved_amount(self, resource: str) -> int:
        """Return the CPU or memory, in base units, to reserve per idle device."""
        return self.cpu_m if resource == CPU else self.mem_bytes


@dataclass(frozen=True)
class Proportions(Rule):
    """Rule: tasks without devices leave CPU and memory for the idle devices of their nodes."""

    name = "proportions"
    hard_switch = Switch.PREDICATE
    pods_may_help = True

    proportions: tuple[KeptPerDevice, ...] = ()

    def verify(self, world: World) -> Iterator[Violation]:
        """Check the rule on each node, in the placement order that is most likely to satisfy it."""
        for name, placed in world.placed_on.items():
            node = world.snapshot.node_by_name[name]
            offers = node.offers
            present = [p for p in self.proportions if p.device in offers]
            if not present or all(map(self._requests_device, placed)):
                continue
            held = summed(task_usage(t) for t in node.residents)
            for proportion, resource in product(present, SECONDARY):
                kept, device = proportion.reserved_amount(resource), proportion.device
                idle, idle_devices = (
                    max(offers.get(r, 0) - held.get(r, 0), 0) for r in (resource, device)
                )
                slack = idle - kept * idle_devices
                for task in placed:
                    requested = dict(task.shape.request)
                    change = kept * requested.get(device, 0) - requested.get(resource, 0)
                    slack += change if not self._requests_device(task) else max(change, 0)
                if slack < 0:
                    detail = f"lacks {amount_text(resource, -slack)} for idle {device}"
                    yield Violation(self.name, f"node {name}", detail)

    def _requests_device(self, task: Task) -> bool:
        requested = dict(task.shape.request)
        return any(requested.get(p.device, 0) for p in self.proportions)

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """Return whether a class requests no device and must leave resources for idle devices."""
        return bool(self._active_proportions(problem)) and not self._exempt(problem)[task_class]

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Add constraints that leave CPU and memory for the idle devices of each node.

        Per node, device type and resource, Σ request · u − Σ max(kept · devices − request, 0) · u ≤
        slack (see `_Slack`). The first sum is over the task classes without devices, and the second
        sum is over the task classes with devices. The variable u counts the tasks of a class on a
        node, `kept` is the reserve per idle device, and `devices` the number of devices that a task
        requests. The constraint holds only on nodes on which tasks without devices are placed.
        """
        form, supplied = nodes.form, nodes.supplied
        if form is None:
            return
        problem, offers = form.problem, form.problem.derived(Offers)
        active, exempt = self._active_proportions(problem), self._exempt(problem)
        if not active:
            return
        # (N,) variable that is 1 if tasks without devices are placed on the node; -1 if there is
        # none.
        comes = np.full(supplied.shape[1], -1, np.int64)
        counted = (supplied >= 0) & ~exempt[:, None]
        most = int(problem.classes.num_pending.sum())
        for n in np.flatnonzero(counted.any(axis=0)).tolist():
            (comes[n],) = form.model.add_variables(0, 1)
            tasks = supplied[counted[:, n], n]
            factors = np.append(np.ones(len(tasks), np.int64), -most)
            form.model.add_rows(0, np.append(tasks, comes[n]), factors, upper=0)
        for proportion in active:
            bound = np.flatnonzero((offers.offered(proportion.device) > 0) & (comes >= 0)).tolist()
            for resource in SECONDARY:
                _, _, slack, change = _Slack.from_problem(problem, proportion, resource)
                # (C,) change of the slack per task of each class, in the most favourable order.
                change = np.where(exempt, np.maximum(change, 0), change)
                for n in bound:
                    placeable, big = supplied[:, n] >= 0, max(-int(slack[n]), 0)
                    use = Expression.of(
                        np.append(supplied[placeable, n], comes[n]),
                        np.append(-change[placeable], big),
                    )
                    if len(use.variables):
                        upper = int(slack[n]) + big
                        form.model.add_rows(0, use.variables, use.coefficients, upper=upper)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        active = self._active_proportions(problem)
        slack = [_Slack.from_problem(problem, p, r) for p, r in product(active, SECONDARY)]
        return _SlackState(self._exempt(problem), slack) if active else None

    def _active_proportions(self, problem: Problem) -> list[KeptPerDevice]:
        offers = problem.derived(Offers)
        return [p for p in self.proportions if offers.offered(p.device).any()]

    def _exempt(self, problem: Problem) -> Bool:
        """Return the mask (C,) of task classes that request a device in `self.proportions`."""
        offers = problem.derived(Offers)
        exempt = np.zeros(len(problem.classes.shapes), np.bool_)
        for proportion in self.proportions:
            exempt |= offers.requests_of(proportion.device) > 0
        return exempt


class _Slack(NamedTuple):
    """Slack (N,) of nodes for one device type and resource, and its change (C,) per placed task.

    The slack is the idle amount of the resource minus the reserve for idle devices; it may be
    negative. `has_device` (N,) selects the nodes with the device type. `requested` (C,) is the
    request of one task of each class for the resource.
    """

    has_device: Bool
    requested: I64
    slack: I64
    change: I64

    @classmethod
    def from_problem(cls, problem: Problem, proportion: KeptPerDevice, resource: str) -> _Slack:
        offers, device = problem.derived(Offers), proportion.device
        reserved, requested = proportion.reserved_amount(resource), offers.requests_of(resource)
        return cls(
            offers.offered(device) > 0,
            requested,
            offers.idle(resource) - reserved * offers.idle(device),
            reserved * offers.requests_of(device) - requested,
        )


@dataclass(eq=False)
class _SlackState(Greedy):
    """Tracks the slack of each node while tasks are placed.

    `_exempt` (C,) is the mask of task classes that request a device.
    """

    _exempt: Bool
    _slack: Sequence[_Slack]

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        if self._exempt[task_class]:
            return None
        masks = [~s.has_device | (s.slack >= s.requested[task_class]) for s in self._slack]
        allowed: Bool = np.logical_and.reduce(masks)
        return allowed

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        for each in self._slack:
            each.slack[nodes] += counts * each.change[task_class]
