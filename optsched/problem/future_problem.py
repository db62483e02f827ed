"""Variants of a problem that ignore some resident pods in affinity, spread and port counts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.cluster.task import TaskStatus
from optsched.problem.problem import cached_by_problem
from optsched.problem.relations import build_relations
from optsched.problem.running import running_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from optsched.cluster.task import Task
    from optsched.problem.problem import Problem


@cached_by_problem
def without_terminating(problem: Problem) -> Problem:
    """Return a variant of the problem whose relations ignore terminating pods; cached."""
    return _minding(problem, lambda task: task.status is not TaskStatus.RELEASING)


@cached_by_problem
def without_gangs(problem: Problem) -> Problem:
    """Return a variant whose relations ignore terminating pods and running gang tasks; cached."""
    if not _depends_on_residents(problem):
        return problem
    runs = {task.key for task in running_tasks(problem).tasks}
    leaves = TaskStatus.RELEASING
    return _minding(problem, lambda t: t.status is not leaves and t.key not in runs)


def without_residents(problem: Problem, gone: Collection[str]) -> Problem:
    """Return a variant without terminating pods, and without pods whose keys are in `gone`."""
    nodes = problem.snapshot.nodes

    def stays(task: Task) -> bool:
        return task.status is not TaskStatus.RELEASING and task.key not in gone

    residents = [task for node in nodes for task in node.residents]
    left = {task.key for task in residents if not stays(task)}
    if not left:
        return problem
    kept = tuple(
        node
        if all(map(stays, node.residents))
        else replace(node, residents=tuple(filter(stays, node.residents)))
        for node in nodes
    )
    devices = problem.snapshot.devices
    devices = devices.release_claims(devices.freed(residents, left))
    old = problem.relations
    relations = build_relations(kept, problem.columns, old.terms, old.ports, old.coming)
    snapshot = replace(problem.snapshot, nodes=kept, devices=devices)
    return replace(problem, snapshot=snapshot, relations=relations)


def _depends_on_residents(problem: Problem) -> bool:
    """Return whether affinity terms, spread terms or host ports depend on resident pods."""
    return bool(problem.relations.terms or problem.relations.ports)


def _minding(problem: Problem, minds: Callable[[Task], bool]) -> Problem:
    """Return a variant whose relations count only the residents for which `minds` returns True."""
    relations, nodes = problem.relations, problem.snapshot.nodes
    if not _depends_on_residents(problem):
        return problem
    if all(minds(task) for node in nodes for task in node.residents):
        return problem
    kept = [replace(n, residents=tuple(filter(minds, n.residents))) for n in nodes]
    terms, ports, coming = relations.terms, relations.ports, relations.coming
    relations = build_relations(kept, problem.columns, terms, ports, coming)
    return replace(problem, relations=relations)
