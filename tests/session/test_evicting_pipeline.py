"""The pipeline's evicting plan is computed once, while the solver process works."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.policy.load import load_policy
from optsched.session.session import SessionContext, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess, WorkerProcess
from tests.solver.cpsat.test_progress_updates import levels
from tests.support.evictions import full_cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from optsched.solver.cpsat.level_model import LevelModel
    from optsched.solver.cpsat.process import OnStep, Solved

EXACT = Limits(budget_ms=None, deterministic=2.0, num_workers=1)
POLICY = load_policy("volcano-default", Path.read_text)


@dataclass
class Overlapping(InProcess):
    """A solver that runs overlapped tasks before it solves."""

    tasks: list[Callable[[], object]] = field(default_factory=list)
    num_tasks: int = 0

    @contextmanager
    def overlap(self, task: Callable[[], object]) -> Iterator[None]:
        self.tasks.append(task)
        yield
        self.tasks.clear()

    def solve(self, model: LevelModel, limits: Limits, on_step: OnStep = None) -> Solved:
        while self.tasks:
            self.num_tasks += 1
            self.tasks.pop()()
        return super().solve(model, limits, on_step)


def test_a_session_decides_the_same():
    snapshot = full_cluster(np.random.default_rng(2))
    solver = Overlapping()
    plans = [
        run_session(snapshot, POLICY, SessionContext(solver=each, limits=EXACT)).plan
        for each in (InProcess(), solver)
    ]
    assert solver.num_tasks == 1
    assert plans[0].actions == plans[1].actions
    assert plans[0].certificate == plans[1].certificate


def test_without_pods_to_evict_nothing_is_overlapped():
    snapshot = full_cluster(np.random.default_rng(2))
    idle = type(snapshot)(0, queues=snapshot.queues, nodes=snapshot.nodes)
    solver = Overlapping()
    run_session(idle, POLICY, SessionContext(solver=solver, limits=EXACT))
    assert not solver.num_tasks


@pytest.mark.slow
def test_a_task_runs_once_while_the_process_solves():
    solver, model, ran = WorkerProcess(), levels(), list[str]()
    try:
        with solver.overlap(lambda: ran.append("task")):
            first, second = (solver.solve(model, EXACT) for _ in range(2))
    finally:
        solver.close()
    assert ran == ["task"]
    expected = InProcess().solve(model, EXACT)
    assert [u.value for u in first.updates] == [u.value for u in expected.updates]
    assert [u.value for u in second.updates] == [u.value for u in expected.updates]


@pytest.mark.slow
def test_answers_beside_a_task_that_fails_are_not_taken_for_those_to_the_next_solve():
    solver, model = WorkerProcess(), levels()

    def fail() -> None:
        raise RuntimeError("a task that fails")

    try:
        with pytest.raises(RuntimeError, match="a task that fails"), solver.overlap(fail):
            solver.solve(model, EXACT)
        solved = solver.solve(model, EXACT)
    finally:
        solver.close()
    expected = InProcess().solve(model, EXACT)
    assert [u.value for u in solved.updates] == [u.value for u in expected.updates]
