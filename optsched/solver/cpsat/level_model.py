"""The messages to and from the solver process: plain arrays, no OR-Tools."""

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
    """One level.

    Attributes
    ----------
    at_least
        A value that is known to be reachable while all levels above are at theirs, in the sense's
        own direction; None when nothing is known.
    at_most
        A bound that holds as long as no level above falls short of its `at_least`, in the sense's
        own direction; None when none is known.

    """

    expression: Expression
    sense: Sense
    at_least: int | None = None
    at_most: int | None = None


@dataclass(frozen=True, eq=False)
class Configurations:
    """Node classes, to be filled by configurations: multisets of task classes that fit one node.

    Attributes
    ----------
    supply
        (C,) row of the model that counts the placements of a class; every use of a configuration
        adds minus its tasks to it.
    request
        (C, R) what a task takes.
    capacity, multiplicity
        (K, R) room of a node of each class, (K,) nodes in it.
    allowed
        (K, C) classes that a node may get.
    start_class, start_tasks
        (P,), (P, C) configurations in use in the incumbent: node class, tasks.

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
    """The meaning of the variables of a complete model, with which parts of it can be solved.

    Attributes
    ----------
    node_of
        (variables,) node on which a variable counts tasks; -1 for all other variables.
    stage
        (variables,) the first level on which the gangs of a variable count; -1 for variables that
        belong to no gang.
    linking
        (rows,) rows in which the placements of gangs equal the supply of nodes. Where gangs are
        left out, nodes can supply as much less.
    num_rules
        Rows of hard rules; those that follow define levels.

    """

    node_of: I64
    stage: I64
    linking: Bool
    num_rules: int


@dataclass(frozen=True, eq=False)
class LevelModel:
    """Levels to be solved one after the other, each with those above it held at their values.

    Attributes
    ----------
    lower, upper, rows
        Integer variables and rows.
    objectives
        In order of importance.
    hint
        One value a variable, possibly neither complete nor feasible.
    kin
        (variables,) variables with the same number, if it is not negative, count the same gangs or
        tasks in different queues: moving some from one to another changes no row but those of
        queues.
    configurations
        None when the model is complete.
    placement
        None where only the whole model can be solved.

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
    """When to stop.

    Attributes
    ----------
    budget_ms
        Wall time for all levels; None reads no clock at all.
    deterministic
        Solver work for each level in CP-SAT's deterministic seconds; it binds where no clock does.
    num_workers
        Threads of CP-SAT; 1 makes it reproducible.
    seed
        For everything random.
    gap
        Relative gap that is good enough for a level: |bound − value| / max(1, |value|). None for
        the optimum alone.
    num_engines
        How many engines may be tried one after the other where the first does not prove every
        level; they share the budget.

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
        Its number.
    value, bound
        Reached, and not to be beaten; None where unknown.
    solution
        (variables,) a solution of the model with this value; None when none was found.
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
    """Something new about the level at hand, while it is being solved or when it is done.

    Attributes
    ----------
    at_s
        Seconds since the solve began; without a budget CP-SAT's deterministic seconds.
    update
        The present knowledge; with a solution where it is a new one.

    """

    at_s: float
    update: LevelUpdate


DONE = "all levels done"


def forward_messages(answers: Generator[Any, None, str], take: Callable[[Any], None]) -> str:
    """Pass on every message of a search; returns its result."""
    while True:
        try:
            take(next(answers))
        except StopIteration as end:
            return str(end.value)
