"""The messages to and from the solver process: plain arrays, without OR-Tools."""

from __future__ import annotations

from dataclasses import dataclass
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
    at_least
        A value that is known to be reachable while all earlier levels have their `at_least`, in the
        sense of the level; None if unknown.
    at_most
        A bound that holds as long as no earlier level is worse than its `at_least`, in the sense of
        the level; None if unknown.

    """

    expression: Expression
    sense: Sense
    at_least: int | None = None
    at_most: int | None = None


@dataclass(frozen=True, eq=False)
class Configurations:
    """Node classes to be filled by configurations: multisets of task classes that fit one node.

    Attributes
    ----------
    supply
        (C,) row of the model that counts the placements of a class; every use of a configuration
        subtracts its tasks from the row.
    request
        (C, R) request of a task.
    capacity, multiplicity
        (K, R) idle capacity of a node of each class, (K,) number of its nodes.
    allowed
        (K, C) task classes that may be placed on a node of each class.
    start_class, start_tasks
        (P,), (P, C) node class and tasks of configurations that the incumbent uses.

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
    """The meaning of the variables of a complete model; it allows parts of the model to be solved.

    Attributes
    ----------
    node_of
        (variables,) node on which a variable counts tasks; -1 for all other variables.
    stage
        (variables,) the first level that counts the gangs of a variable; -1 for variables that
        belong to no gang.
    linking
        (rows,) rows that equate the placements of gangs with the supply of nodes. If gangs are left
        out, nodes can supply less accordingly.
    num_rules
        Number of rows of hard rules; the rows after them define levels.

    """

    node_of: I64
    stage: I64
    linking: Bool
    num_rules: int


@dataclass(frozen=True, eq=False)
class LevelModel:
    """Levels to be solved sequentially, each with the earlier levels held at their values.

    Attributes
    ----------
    lower, upper, rows
        Integer variables and rows.
    objectives
        The objectives of the levels, the most important first.
    hint
        One value per variable, possibly neither complete nor feasible.
    kin
        (variables,) group of a variable, -1 for none. Variables of one group count equal gangs or
        tasks in different queues: a shift between them changes no rows but those of queues.
    configurations
        The node classes; None if the model has variables for all placements.
    placement
        The meaning of variables; None if only the whole model can be solved.

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
        Wall time for all levels; with None no clock is read.
    deterministic
        Solver work for each level in CP-SAT's deterministic seconds; it binds where no clock does.
    num_workers
        Number of CP-SAT threads; a solve with 1 is reproducible.
    seed
        Seed of all random numbers.
    gap
        Relative gap that suffices for a level: |bound − value| / max(1, |value|). None requires
        the optimum.
    num_engines
        The most engines that may be tried sequentially while a level is unproved; they share the
        budget.

    """

    budget_ms: int | None = 400
    deterministic: float = 10.0
    num_workers: int = 2
    seed: int = 0
    gap: float | None = None
    num_engines: int = 1

    def suffices(self, value: int | None, bound: int | None) -> bool:
        """Return whether a level with this value and bound needs no more work."""
        if value is None or bound is None:
            return False
        return value == bound or (self.gap is not None and relative_gap(value, bound) <= self.gap)


@dataclass(frozen=True, eq=False)
class LevelUpdate:
    """The progress of one level.

    Attributes
    ----------
    level
        Number of the level.
    value, bound
        The value reached, and the bound that no solution beats; None if unknown.
    solution
        (variables,) a solution of the model with this value; None if none was found.
    use_class, use_tasks, uses
        (P,), (P, C), (P,) the configurations of the solution.

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
    """Progress on the present level, while it is being solved or when it is done.

    Attributes
    ----------
    at_s
        Seconds since the solve began; without a budget CP-SAT's deterministic seconds.
    update
        The present state of the level; it has a solution only if that is a better one.

    """

    at_s: float
    update: LevelUpdate


DONE = "all levels done"


def forward_messages(answers: Generator[Any, None, str], take: Callable[[Any], None]) -> str:
    """Pass every message of a search to `take`, and return the result of the search."""
    while True:
        try:
            take(next(answers))
        except StopIteration as end:
            return str(end.value)
