"""Which nodes a class may use before anything is placed, and how many of its tasks fit there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.problem.arrays import I64, Bool
    from optsched.problem.problem import Problem
    from optsched.rules.base import Rule
    from optsched.rules.ruleset import RuleSet


def static_mask(problem: Problem, rules: Sequence[Rule], task_class: int) -> Bool | None:
    """(N,) ready nodes that no rule excludes for a class whatever else is placed; None when all."""
    allowed: Bool | None = None if problem.ready.all() else problem.ready
    for rule in rules:
        mask = rule.mask(problem, task_class)
        if mask is not None:
            allowed = mask if allowed is None else allowed & mask
    return allowed


def allowed_nodes(problem: Problem, rules: RuleSet) -> Bool:
    """(C, N) ready nodes that no rule excludes, class by class."""
    allowed = np.ones((len(problem.classes.shapes), problem.num_nodes), np.bool_)
    for task_class in range(len(allowed)):
        mask = static_mask(problem, rules.masking, task_class)
        if mask is not None:
            allowed[task_class] = mask
    return allowed


def rooms(problem: Problem, rules: RuleSet) -> I64:
    """(C, N) tasks of a class that fit on a node by themselves."""
    idle = problem.idle
    fits = np.zeros((len(problem.classes.shapes), problem.num_nodes), np.int64)
    for task_class, request in enumerate(problem.classes.request):
        asked = np.flatnonzero(request)
        fits[task_class] = (idle[:, asked] // request[asked]).min(axis=1, initial=2**62)
    return np.where(allowed_nodes(problem, rules), fits, 0)
