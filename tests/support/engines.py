"""Run each engine on small clusters, with results by name."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Allocate, Nominate, Sense
from optsched.plugins.objectives.levels import build_levels
from optsched.plugins.verification.verify import verify_actions
from optsched.problem.arrays import UNPLACED
from optsched.problem.compile import compile_problem
from optsched.problem.decisions import Decisions
from optsched.problem.linear import Expression
from optsched.problem.tiers import priority_tiers
from optsched.session.decompile import actions_of, pending_of
from optsched.solver import portfolio
from optsched.solver.cpsat.integer_program import Effort, Task, maximize
from optsched.solver.cpsat.integer_program import SolveOutcome as Found
from optsched.solver.cpsat.level_model import Limits, Objective
from optsched.solver.cpsat.level_search import solve_levels
from optsched.solver.cpsat.process import InProcess
from optsched.solver.greedy.pipeline import GreedyOptions, run_greedy
from optsched.solver.model.encoding import Goal, encode_configurations, encode_direct
from tests.support.small import best_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from dataclasses import Field

    from optsched.cluster.decisions import Action
    from optsched.cluster.snapshot import Snapshot
    from optsched.plugins.extension_points import AnyLevel
    from optsched.plugins.ruleset import RuleSet
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.solver.portfolio import Solution

GANG_LEVELS = ("guarantee", "admission", "fair-share", "tasks")
EXACT = Limits(budget_ms=None, num_workers=1)
_EFFORT = Effort(seconds=None, deterministic=10.0, num_workers=1, seed=0)


@dataclass(frozen=True, eq=False)
class Bench:
    """A snapshot and rules, compiled for every engine."""

    problem: Problem
    rules: RuleSet
    tiers: Tiers
    levels: list[AnyLevel]

    @classmethod
    def of(cls, snapshot: Snapshot, rules: RuleSet, levels: Sequence[str] = GANG_LEVELS) -> Bench:
        problem = compile_problem(snapshot)
        tiers = priority_tiers(problem, problem.priority, 60_000)
        return cls(problem, rules, tiers, build_levels(problem, rules, tiers, levels))

    def _repr_pretty_(self, printer, cycle) -> None:
        """Print a short form of this example for Hypothesis."""
        names = ", ".join(a.rule.name for a in self.rules.active)
        printer.text(f"{briefly(self.problem.snapshot)} under {names}")

    # --- solutions -------------------------------------------------------------------------------

    def greedy(self, *, gated: bool = False) -> Decisions:
        """Return the decisions of the pipeline, tier by tier."""
        options = GreedyOptions(tier_of=self.tiers.of, gated=gated)
        return run_greedy(self.problem, self.rules, options)

    def improved(self, start: Decisions | None = None) -> Solution:
        """Return the solver's improvement of the greedy decisions, or of other decisions."""
        decisions = self.greedy() if start is None else start
        incumbent = portfolio.evaluate_greedy(self.problem, decisions, self.levels, "")
        goal = (self.tiers, self.levels)
        return portfolio.improve(
            self.problem, self.rules, goal, incumbent, portfolio.SolveRequest(InProcess(), EXACT)
        )

    def actions(self, decisions: Decisions) -> tuple[Action, ...]:
        return actions_of(self.problem, decisions, self.tiers)

    def broken(self, decisions: Decisions) -> list[str]:
        """Return the names of the rules that decisions violate."""
        found = verify_actions(self.problem.snapshot, self.actions(decisions), self.rules)
        return sorted({v.rule for v in found})

    # --- a given plan ----------------------------------------------------------------------------

    def decisions(self, binds: Mapping[str, str]) -> Decisions:
        """Return the decisions that bind tasks to nodes by name."""
        node = {n.name: i for i, n in enumerate(self.problem.snapshot.nodes)}
        number = {t.key: i for i, t in enumerate(self.problem.tasks)}
        node_of = np.full(len(self.problem.tasks), UNPLACED, np.int64)
        for task, where in binds.items():
            node_of[number[task]] = node[where]
        return replace(Decisions.nothing(self.problem), node_of=node_of)

    def direct_allows(self, binds: Mapping[str, str]) -> bool:
        """Return whether the direct encoding allows exactly the placements `binds`."""
        decisions = self.decisions(binds)
        goal = Goal(self.tiers, (), ())
        encoded = encode_direct(self.problem, self.rules, goal, decisions)
        lower, upper = self._fixed(encoded.form, encoded.model.hint, encoded.model)
        wanted = np.zeros_like(encoded.supplied)
        tasks = np.flatnonzero(decisions.node_of >= 0)
        np.add.at(wanted, (self.problem.task_class[tasks], decisions.node_of[tasks]), 1)
        if (wanted[encoded.supplied < 0] > 0).any():
            return False
        there = encoded.supplied >= 0
        lower[encoded.supplied[there]] = wanted[there]
        if (wanted[there] > upper[encoded.supplied[there]]).any():
            return False
        upper[encoded.supplied[there]] = wanted[there]
        task = Task(lower, upper, encoded.model.rows, Expression.of([], []), encoded.model.hint)
        return maximize(task, _EFFORT).outcome is Found.OPTIMAL

    def configurations_allow(self, binds: Mapping[str, str]) -> bool:
        """Return whether the configuration encoding can place as many tasks of each gang as
        `binds`.
        """
        goal = Goal(self.tiers, (), ())
        encoded = encode_configurations(self.problem, self.rules, goal, self.decisions(binds))
        lower, upper = self._fixed(encoded.form, encoded.model.hint, encoded.model)
        anything = Objective(Expression.of(np.arange(len(lower)), 1), Sense.MAX)
        model = replace(encoded.model, lower=lower, upper=upper, objectives=(anything,))
        (update,) = solve_levels(model, EXACT, lambda: 0.0)
        return update.solution is not None

    def _fixed(self, form, hint, model):
        """Return bounds that fix the variables of gangs and tasks to the hint, and leave others
        free.
        """
        lower, upper = model.lower.copy(), model.upper.copy()
        held = np.unique(np.concatenate([form.start[form.start >= 0], form.placed_variable]))
        lower[held] = upper[held] = hint[held]
        return lower, upper

    def tied_by(self) -> tuple[str, ...]:
        """Return the rules that exclude some gangs from configurations."""
        return portfolio.find_tied_gangs(self.problem, self.rules)[1]


def binds(actions: Sequence[Action]) -> dict[str, str]:
    """Return the node by task of all allocations."""
    return {a.task: a.node for a in actions if isinstance(a, Allocate)}


def promises(actions: Sequence[Action]) -> dict[str, str]:
    """Return the node by task of all nominations."""
    return {a.task: a.node for a in actions if isinstance(a, Nominate)}


def allocations(snapshot: Snapshot, wanted: Mapping[str, str]) -> list[Allocate]:
    """Return Allocate actions for tasks and nodes by name."""
    gang_of = {t.key: g.key for g in snapshot.gangs for t in g.tasks}
    return [Allocate(task, node, gang_of[task]) for task, node in wanted.items()]


def placed_by_gang(snapshot: Snapshot, rules: RuleSet) -> dict[str, int]:
    """Return the number of placed tasks by gang name.

    Check that greedy and solver agree and keep all rules.
    """
    bench = Bench.of(snapshot, rules)
    found = []
    for decisions in (bench.greedy(), bench.improved().decisions):
        assert bench.broken(decisions) == []
        placed = np.bincount(
            bench.problem.gang_of[decisions.node_of >= 0], minlength=bench.problem.num_gangs
        )
        found.append(dict(zip((g.name for g in snapshot.gangs), placed.tolist(), strict=True)))
    assert found[0] == found[1]
    return found[0]


def assert_optimum(snapshot: Snapshot, rules: RuleSet) -> None:
    """Check that greedy and solver keep all rules, and that the solver equals exhaustive search."""
    bench = Bench.of(snapshot, rules, ("admission", "tasks"))
    assert bench.broken(bench.greedy()) == []
    outcome = bench.improved()
    assert bench.broken(outcome.decisions) == []
    best = best_values(bench.problem, bench.rules, bench.levels)
    assert tuple(r.value for r in outcome.results) == best


def assert_rows_as_verified(
    rng: np.random.Generator, snapshot: Snapshot, rules: RuleSet, names: Sequence[str | None]
) -> None:
    """Check that the direct encoding allows a random plan exactly if the verifier accepts it."""
    bench = Bench.of(snapshot, rules, ())
    chosen = {t.key: names[int(rng.integers(len(names)))] for t in bench.problem.tasks}
    plan = {task: where for task, where in chosen.items() if where is not None}
    accepted = not bench.broken(bench.decisions(plan))
    assert bench.direct_allows(plan) is accepted


def reason(snapshot: Snapshot, rules: RuleSet, gang: str) -> str:
    """Return the waiting reason of a gang as text, after the pipeline's decisions."""
    bench = Bench.of(snapshot, rules)
    return str(pending_of(bench.problem, bench.greedy(), rules)[f"ns/{gang}"])


def briefly(value: object) -> str:
    """Return a domain object as text, without fields that have their default value."""
    if is_dataclass(value) and not isinstance(value, type):
        told = [
            f"{f.name}={briefly(getattr(value, f.name))}"
            for f in fields(value)
            if f.init and getattr(value, f.name) != _default(f)
        ]
        return f"{type(value).__name__}({', '.join(told)})"
    if isinstance(value, tuple):
        return f"({', '.join(map(briefly, value))})"
    return str(value) if isinstance(value, Enum) else repr(value)


def _default(field: Field[object]) -> object:
    return field.default if field.default_factory is MISSING else field.default_factory()
