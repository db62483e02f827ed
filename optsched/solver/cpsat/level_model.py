"""Level models and level updates as arrays; this module does not import OR-Tools.

The scheduler sends level models to the solver process, which sends updates back.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from optsched.cluster.decisions import relative_gap

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from optsched.cluster.decisions import LevelStatus, Sense
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.linear import Expression, Rows


@dataclass(frozen=True, eq=False)
class Objective:
    """The objective of one level.

    Attributes
    ----------
    expression, sense
        The expression, and whether it is maximised or minimised.
    at_least
        A value that the level can reach while each earlier level reaches its own `at_least`; None
        if unknown. If the level is minimised, `at_least` is an upper bound on its best value.
    at_most
        An upper bound on the level's value, or a lower bound if the level is minimised; None if
        unknown. The bound holds if every earlier level reaches its own `at_least`.

    """

    expression: Expression
    sense: Sense
    at_least: int | None = None
    at_most: int | None = None


@dataclass(frozen=True, eq=False)
class Configurations:
    """Node classes, and the task classes that may run on the nodes of each node class.

    A configuration is a multiset of tasks that fits on one node.

    Attributes
    ----------
    supply
        (C,) index of the row that counts the placed tasks of each task class. The tasks of a
        configuration enter these rows with a negative sign.
    request
        (C, R) request of one task of each class.
    capacity, multiplicity
        (K, R) idle capacity of one node of each class, and (K,) number of nodes of each class.
    allowed
        (K, C) mask of the task classes that may be placed on nodes of each class.
    start_class, start_tasks
        Node class (P,) and tasks (P, C) of each configuration that the incumbent uses.

    """

    supply: I64
    request: I64
    capacity: I64
    multiplicity: I64
    allowed: Bool
    start_class: I64
    start_tasks: I64


@dataclass(frozen=True, eq=False)
class Placement:
    """The gangs and tasks that the variables of a complete model count.

    Attributes
    ----------
    node_of
        (variables,) index of the node on which the variable counts tasks; -1 for other variables.
    stage
        (variables,) first level whose objective includes the variable's gangs; -1 for variables of
        no gang.
    linking
        (rows,) mask of the rows that equate the tasks of gangs with the tasks on nodes. If a model
        excludes a gang, these rows remove the gang's tasks from the nodes.
    num_rules
        Number of rows that belong to hard rules; later rows define levels.

    """

    node_of: I64
    stage: I64
    linking: Bool
    num_rules: int


@dataclass(frozen=True, eq=False)
class LevelModel:
    """A model whose objectives (levels) are optimised one after another.

    While a level is solved, rows keep the values of all earlier levels.

    Attributes
    ----------
    lower, upper, rows
        Bounds (variables,) of the integer variables, and the rows.
    objectives
        The objectives of the levels, most important first.
    hint
        (variables,) values from which the solver starts, possibly infeasible.
    kin
        (variables,) group of each variable, or -1. Variables of one group count equal gangs or
        equal tasks in different queues. If one variable of a group decreases and another increases
        by the same number, only the sums of queue rows change.
    configurations
        The node classes; None if the model has one variable per node and task class.
    placement
        What the variables count; None if only the complete model can be solved.

    """

    lower: I64
    upper: I64
    rows: Rows
    objectives: tuple[Objective, ...]
    hint: I64
    kin: I64
    configurations: Configurations | None = None
    placement: Placement | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a solve.

    Attributes
    ----------
    budget_ms
        Wall time for all levels in milliseconds; None means no time limit, and no clock is read.
    deterministic
        Maximum work per level, in CP-SAT's deterministic seconds.
    num_workers
        Number of CP-SAT threads; a solve with one thread is reproducible.
    seed
        Seed of all random numbers of the solve.
    gap
        The relative gap |bound − value| / max(1, |value|) at which a level may stop; None requires
        a proof of optimality.
    num_engines
        Maximum number of engines tried one after another while a level is not proved optimal. The
        engines share one budget.

    """

    budget_ms: int | None = 400
    deterministic: float = 10.0
    num_workers: int = 2
    seed: int = 0
    gap: float | None = None
    num_engines: int = 1

    def cap_budget(self, left_ms: int | None) -> Limits:
        """Return limits with a time budget of at most `left_ms`, unchanged if `left_ms` is None."""
        if left_ms is None:
            return self
        return replace(self, budget_ms=min(left_ms, self.budget_ms or left_ms))

    def suffices(self, value: int | None, bound: int | None) -> bool:
        """Return whether the bound proves that the value is optimal or within the relative gap."""
        if value is None or bound is None:
            return False
        return value == bound or (self.gap is not None and relative_gap(value, bound) <= self.gap)


@dataclass(frozen=True, eq=False)
class LevelUpdate:
    """The value, bound and solution of one level.

    Attributes
    ----------
    value, bound
        The level's value in the incumbent, and a bound on its best possible value; None if unknown.
    status
        What the solve has proved about the value of the level.
    solution
        (variables,) a solution in which the level has the value `value`, or None without a
        solution.
    use_class, use_tasks, uses
        Node class (P,), tasks (P, C) and number of nodes (P,) of each configuration in the
        solution.

    """

    level: int
    value: int | None
    bound: int | None
    status: LevelStatus
    solution: I64 | None = None
    use_class: I64 | None = None
    use_tasks: I64 | None = None
    uses: I64 | None = None


@dataclass(frozen=True, eq=False)
class Step:
    """A progress report about one level, sent during or after the solve of the level.

    Attributes
    ----------
    at_s
        Wall-clock seconds since the solve began; without a time limit, CP-SAT's deterministic
        seconds.
    update
        The update of the level. The update has a solution only if the solution is better than
        the last reported solution.

    """

    at_s: float
    update: LevelUpdate


DONE = "all levels done"


def forward_messages(answers: Generator[Any, None, str], take: Callable[[Any], None]) -> str:
    """Pass every message of a solve to `take`; return the reason why the solve ended."""
    while True:
        try:
            take(next(answers))
        except StopIteration as end:
            return str(end.value)
