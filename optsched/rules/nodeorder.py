"""Prefer nodes by load, balance, preferred affinity and soft taints.

Mathematics: models/formulation/nodeorder.md. Volcano: `pkg/scheduler/plugins/nodeorder`; the parts
are scorers of kube-scheduler, each from 0 to 100 times its weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.task import TaintEffect
from optsched.rules.base import Rule
from optsched.units import CPU, MEMORY

if TYPE_CHECKING:
    from optsched.domain.task import Taint, TaskShape
    from optsched.problem.arrays import F64, I64
    from optsched.problem.problem import Problem
    from optsched.rules.base import Scorer

TOP = 100.0
_TOP = int(TOP)


@dataclass(frozen=True)
class NodeOrder(Rule):
    """The weighted sum of scorers; a weight of 0 switches one off."""

    name = "nodeorder"

    least_requested: int = 1
    most_requested: int = 0
    balanced_resource: int = 1
    node_affinity: int = 2
    taint_toleration: int = 3

    def scorer(self, problem: Problem, task_class: int) -> Scorer | None:
        """See `Rule`: load of CPU and memory once the task has come, and how even it is."""
        cpu, memory = problem.resources.index(CPU), problem.resources.index(MEMORY)
        asked = problem.classes.request[task_class].tolist()
        least, most, even = self.least_requested, self.most_requested, self.balanced_resource

        def score(used: I64, offered: I64) -> F64:
            cpus, bytes_ = np.maximum(offered[:, cpu], 1), np.maximum(offered[:, memory], 1)
            busy_cpu = np.minimum(used[:, cpu] + asked[cpu], cpus)
            busy_memory = np.minimum(used[:, memory] + asked[memory], bytes_)
            total = np.zeros(len(used))
            if least:
                free = (cpus - busy_cpu) * _TOP // cpus
                free += (bytes_ - busy_memory) * _TOP // bytes_
                total += least * (free // 2)
            if most:
                busy = busy_cpu * _TOP // cpus + busy_memory * _TOP // bytes_
                total += most * (busy // 2)
            if even:
                apart = np.abs(busy_cpu / cpus - busy_memory / bytes_)
                total += even * np.floor(TOP - apart * (TOP / 2))  # half the distance deviates
            return total

        return score

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """See `Rule`: preferred node affinity and PreferNoSchedule taints, best node 100."""
        shape = problem.classes.shapes[task_class]
        score: F64 | None = None
        if self.node_affinity and shape.preferred_nodes:
            score = self.node_affinity * _preferred(problem, shape)
        if self.taint_toleration:
            shunned = _shunned(problem, shape)
            if shunned is not None:
                soft = self.taint_toleration * (TOP - _scaled(shunned))
                score = soft if score is None else score + soft
        return score


def _scaled(raw: F64) -> F64:
    """Raise to 0..100 so that the largest is 100 (`DefaultNormalizeScore`)."""
    top = raw.max(initial=0.0)
    return raw if top <= 0 else np.floor(raw * TOP / top)


def _preferred(problem: Problem, shape: TaskShape) -> F64:
    raw = np.zeros(problem.num_nodes)
    for weight, term in shape.preferred_nodes:
        raw += weight * problem.columns.matches(term)
    return _scaled(raw)


def _shunned(problem: Problem, shape: TaskShape) -> F64 | None:
    """(N,) soft taints that tasks of a shape do not tolerate; None when there are none."""
    codes, marks = problem.columns.taints()
    number = np.array([sum(_soft(shape, t) for t in taints) for taints in marks], np.float64)
    return number[codes] if number.any() else None


def _soft(shape: TaskShape, taint: Taint) -> bool:
    if taint.effect is not TaintEffect.PREFER_NO_SCHEDULE:
        return False
    return not any(t.tolerates(taint) for t in shape.tolerations)
