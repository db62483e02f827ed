"""Rules that replace plugins which exist only in Volcano's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.plugins.extension_points import Blocker, Greedy, Rule, Switch
from optsched.plugins.ruleset import ActiveRule
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from optsched.plugins.accounting import Ledger
    from optsched.plugins.extension_points import NodeModel
    from optsched.problem.arrays import Bool
    from optsched.problem.problem import Problem


class Rejecter(Rule):
    """A rule that votes against enqueueing the PodGroup pgA, and for enqueueing all others."""

    name = "test-rejecter"

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        return _Against([g.name for g in problem.snapshot.gangs].index("pgA"))


class _Against(Greedy):
    def __init__(self, gang: int) -> None:
        self._gang = gang

    def enqueue_vote(self, gang: int) -> int:
        return -1 if gang == self._gang else 1


class DeviceFit(Rule):
    """A rule by which every running task holds a device that every new task needs."""

    name = "device-fit-after-eviction"
    hard_switch = Switch.PREDICATE

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        return True

    def blockers(self, problem: Problem, task_class: int) -> list[Blocker]:
        running = running_tasks(problem)
        return (
            [Blocker(np.arange(len(running)), np.arange(problem.num_nodes))] if len(running) else []
        )

    def constrain_nodes(self, nodes: NodeModel) -> None:
        if nodes.form is None:
            return
        form, supplied = nodes.form, nodes.supplied
        held = supplied[:, np.unique(running_tasks(form.problem).node_of)]
        for variable in held[held >= 0].tolist():
            form.model.add_rows(0, [variable], 1, upper=0)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy:
        return _Held(problem)


class _Held(Greedy):
    def __init__(self, problem: Problem) -> None:
        self._running = running_tasks(problem)
        self._now = np.bincount(self._running.node_of, minlength=problem.num_nodes)
        self._later = self._now.copy()

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool:
        return (self._later if later else self._now) == 0

    def record_eviction(self, victim: int, sign: int) -> None:
        self._later[self._running.node_of[victim]] -= sign


_KNOWN: dict[str, type[Rule]] = {rule.name: rule for rule in (Rejecter, DeviceFit)}


def stand_ins(names: Iterable[str]) -> Iterator[ActiveRule]:
    """Yield the rules that replace the named test plugins, in the first tier."""
    for name in names:
        assert name in _KNOWN, f"the plugin {name} exists in Volcano's tests only"
        yield ActiveRule(_KNOWN[name](), name, 1)
