"""Rows of the exact joint model that allow evictions only on nodes used by entitled gangs.

The verifier rejects a plan whose preemptor does not use the capacity of its victims. Without these
rows, the model could evict tasks for a gang on nodes that the gang does not use. Other queues could
then use the capacity without being entitled to reclaim it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.solver.preemption.joint.entitlement import EntitledClasses
    from optsched.solver.preemption.joint.joint_model import JointModel


class Presence:
    """Adds the rows that allow victims only on nodes used by entitled gangs."""

    def __init__(self, joint: JointModel, able: EntitledClasses) -> None:
        self._joint, self._able = joint, able
        self._coming: dict[tuple[int, bytes], I64] = {}

    def add_rows(self) -> None:
        """Add rows for every group of victims.

        If a gang is evicted entirely or by subgroups, an entitled gang must use the node of one of
        the evicted tasks. Otherwise, an entitled gang must use the victim's node.
        """
        joint, groups, form = self._joint, self._joint.groups, self._joint.form
        # Limit tasks on nodes to placed tasks, so that each task justifies victims on only one
        # node.
        for task_class, row in enumerate(joint.supplied):
            mine = row[row >= 0]
            placed = form.placed(
                np.ones_like(form.placed_factor), form.gangs.class_of == task_class
            )
            factors = np.append(np.ones(len(mine), np.int64), -placed.coefficients)
            form.model.add_rows(0, np.append(mine, placed.variables), factors, upper=0)
        first = groups.tasks[np.unique(groups.of_task, return_index=True)[1]]
        gangs = form.problem.snapshot.gangs
        lost = [gangs[g] for g in joint.facts.running.gang_of[first].tolist()]
        for k, (gang, j) in enumerate(zip(lost, groups.gang.tolist(), strict=True)):
            in_groups = bool(gang.role_minimums or gang.sub_groups)
            if j >= 0 and (in_groups or gang.min_member > 1):
                self._add_group(k, groups.gang == j)
                if not in_groups:
                    self._add_group(k, np.arange(len(groups)) == k, [int(joint.whole[j])])
            else:
                self._add_group(k, np.arange(len(groups)) == k)

    def _add_group(self, k: int, mine: Bool, unless: Sequence[int] = ()) -> None:
        """Allow victims of group `k` only if an entitled gang uses a node of groups `mine` (K,).

        If a binary variable in `unless` is 1, the row does not limit the victims.
        """
        joint, groups, able = self._joint, self._joint.groups, self._able
        gangs = joint.form.gangs
        evict, reclaim, count = int(joint.evict[k]), int(joint.reclaim[k]), int(groups.count[k])
        sets = np.unique(joint.node_set[groups.node[mine]])
        sets = sets[sets >= 0]
        if reclaim != evict:
            priority = joint.form.problem.priority[gangs.members[gangs.member_start[:-1]]]
            own = (gangs.queue_of == groups.queue[k]) & (priority > groups.priority[k])
            come = self._find_tasks(own & able.preempt, sets)
            preempted = {evict: 1} if reclaim < 0 else {evict: 1, reclaim: -1}
            self._add_limit(preempted, 0, [*come, *unless], count)
        for pair in joint.pairs if reclaim >= 0 else ():
            if pair.lender == groups.queue[k]:
                come = self._find_tasks(pair.kind.classes & able.reclaim, sets)
                reclaimed = {reclaim: 1, pair.variable: count}
                self._add_limit(reclaimed, count, [*come, *unless], count)

    def _add_limit(
        self, columns: Mapping[int, int], upper: int, lifting: Sequence[int], by: int
    ) -> None:
        """Add the row Σ factor · variable ≤ upper + by · Σ lifting.

        `columns` maps each variable to its factor. `lifting` holds variables that raise the limit.
        """
        factors = [*columns.values(), *[-by] * len(lifting)]
        self._joint.form.model.add_rows(0, [*columns, *lifting], factors, upper=upper)

    def _find_tasks(self, gang_classes: Bool, sets: I64) -> list[int]:
        """Return the variables that count tasks of some gang classes (H,) on some node sets."""
        gangs = self._joint.form.gangs
        classes = np.unique(gangs.class_of[gang_classes[gangs.gang_class_of]])
        found = [self._tasks_of(c, gang_classes)[sets] for c in classes.tolist()]
        variables = np.concatenate([np.empty(0, np.int64), *found])
        return [int(v) for v in variables if v >= 0]

    def _tasks_of(self, task_class: int, gang_classes: Bool) -> I64:
        """Return variables (M,) that count a class's tasks in some gang classes (H,) per node set.

        A variable is -1 where no task fits. Separate variables are needed because `supplied` counts
        the tasks of all gang classes.
        """
        form = self._joint.form
        supplied: I64 = self._joint.supplied[task_class]
        gangs, key = form.gangs, (task_class, gang_classes.tobytes())
        if key in self._coming:
            return self._coming[key]
        mine = (gangs.class_of == task_class) & gang_classes[gangs.gang_class_of]
        possible = np.flatnonzero(supplied >= 0)
        model, all_tasks = form.model, supplied[possible]
        coming = model.add_variables(0, model.bounds[1][all_tasks])
        rows, ones = np.arange(len(possible)), np.ones(len(possible), np.int64)
        model.add_rows(
            np.append(rows, rows),
            np.append(coming, all_tasks),
            np.append(ones, -ones),
            upper=np.zeros(len(possible), np.int64),
        )
        placed = form.placed(np.ones_like(form.placed_factor), mine)
        model.add_rows(
            0,
            np.append(coming, placed.variables),
            np.append(ones, -placed.coefficients),
            upper=0,
        )
        found: I64 = np.full_like(supplied, -1)
        found[possible] = coming
        self._coming[key] = found
        return found
