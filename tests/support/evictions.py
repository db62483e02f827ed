"""Draw tiny clusters with running tasks, and list every plan with evictions."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import chain, combinations, permutations, product
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Allocate, Evict, Nominate, Sense
from optsched.cluster.snapshot import GangPhase, Queue
from optsched.plugins.eviction.entitled import PREEMPT, RECLAIM, Entitled
from optsched.plugins.objectives.levels import build_levels
from optsched.plugins.verification.verify import verify_actions
from optsched.problem.compile import compile_problem
from optsched.problem.decisions import Decisions
from optsched.session.repair import drop_invalid
from optsched.session.session import judge_actions
from optsched.session.session_input import find_tiers
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from optsched.solver.preemption.joint.bound import bound_with_evictions
from optsched.solver.preemption.joint.solution import find_victims_jointly
from optsched.solver.preemption.sequential.stage import VictimSearchSettings, nominate_tasks
from tests.support.effort import nightly_except
from tests.support.small import CPU, GPU, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import numpy as np

    from optsched.cluster.decisions import Action, LevelResult
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.cluster.task import Task, TaskShape
    from optsched.plugins.extension_points import AnyLevel
    from optsched.policy.policy import Policy
    from optsched.solver.preemption.joint.bound import EvictionBounds

MODEL = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: test
meaning: For tests.
actions: [enqueue, allocate, preempt, reclaim, backfill]
tiers:
- rules: [{name: priority}, {name: gang}, {name: conformance}]
- rules: [{name: drf}, {name: predicates}, {name: SHARES}, {name: nodeorder}]
levels: [guarantee, admission, fair-share, tasks, node-score]
solver: {engine: cpsat, budget: 400ms}
"""
"""A model with every action that evicts, where SHARES stands for the queue plugin."""

MODELS_OF_SEEDS = nightly_except(
    product((2, 3, 9, 11), ("volcano-default", "crater", "capacity-hierarchical")),
    [
        *product((3, 11), ("volcano-default", "crater", "capacity-hierarchical")),
        (2, "volcano-default"),
        (9, "volcano-default"),
    ],
)
"""Pairs of a seed for `full_cluster` and a model; seeds 2 and 9 have ten times as many plans."""

REACH = frozenset({PREEMPT, RECLAIM})


def full_cluster(rng: np.random.Generator) -> Snapshot:
    """Draw two nodes, up to three queues, four running tasks and three pending tasks."""
    queues = [_queue(rng, f"q{i}") for i in range(int(rng.integers(1, 4)))]
    nodes = [
        node(f"n{i}", cpu=int(rng.integers(2, 5)), gpu=int(rng.integers(0, 3))) for i in range(2)
    ]
    free = {n.name: dict(n.allocatable) for n in nodes}
    gangs: list[Gang] = []
    for i in range(4):
        number = int(rng.integers(1, 3))
        what = _shape(rng)
        least = int(rng.integers(1, number + 1))
        made = gang(f"r{i}", ("w", number, what), least=least)
        tasks = [_placed(rng, task, free) for task in made.tasks]
        stands = tuple(t for t in tasks if t is not None)
        if stands and sum(len(g.tasks) for g in gangs) + len(stands) <= 4:
            least = min(made.min_member, len(stands))
            made = replace(made, tasks=stands, min_member=least, phase=GangPhase.RUNNING)
            gangs.append(_owned(rng, made, queues))
    left = 3
    for i in range(int(rng.integers(1, 4))):
        number = min(int(rng.integers(1, 3)), left)
        if number:
            least = int(rng.integers(1, number + 1))
            made = gang(f"p{i}", ("w", number, _shape(rng)), least=least)
            gangs.append(_owned(rng, made, queues))
            left -= number
    return cluster(nodes, gangs, queues)


def _queue(rng: np.random.Generator, name: str) -> Queue:
    deserved = {CPU: int(rng.integers(1, 4)) * 1000}
    if rng.random() < 0.4:
        deserved[GPU] = int(rng.integers(1, 3))
    has_ceiling = rng.random() < 0.3
    return Queue(
        name,
        weight=int(rng.integers(1, 4)),
        reclaimable=bool(rng.random() < 0.8),
        deserved=tuple(sorted(deserved.items())) if rng.random() < 0.8 else (),
        capability=((CPU, int(rng.integers(2, 6)) * 1000),) if has_ceiling else None,
        guarantee=((CPU, 1000),) if rng.random() < 0.2 else (),
    )


def _shape(rng: np.random.Generator) -> TaskShape:
    return shape(cpu=1 + int(rng.random() < 0.4), gpu=int(rng.random() < 0.2))


def _placed(rng: np.random.Generator, task: Task, free: dict[str, dict[str, int]]) -> Task | None:
    names = [n for n, have in free.items() if _fits(have, task)]
    if not names:
        return None
    name = str(rng.choice(names))
    _take(free[name], task)
    return running(task, name)


def _fits(have: dict[str, int], task: Task) -> bool:
    return all(have.get(r, 0) >= amount for r, amount in task.shape.request)


def _take(have: dict[str, int], task: Task) -> None:
    for r, amount in task.shape.request:
        have[r] = have.get(r, 0) - amount


def _owned(rng: np.random.Generator, made: Gang, queues: Sequence[Queue]) -> Gang:
    queue, priority = str(rng.choice([q.name for q in queues])), int(rng.integers(3))
    tasks = tuple(replace(t, priority=priority) for t in made.tasks)
    return replace(made, queue=queue, priority=priority, tasks=tasks)


def every_plan(snapshot: Snapshot, policy: Policy) -> Iterator[tuple[Action, ...]]:
    """Yield every verified plan, without variants in preemptors or in equal tasks only."""
    rules = policy.rules.guarded_by(Entitled(policy.rules))
    pending = [t for g in snapshot.gangs for t in g.tasks if not t.node]
    stands = [t for g in snapshot.gangs for t in g.tasks if t.node]
    names = ["", *(n.name for n in snapshot.nodes)]
    for gone in chain.from_iterable(combinations(stands, k) for k in range(len(stands) + 1)):
        for where in product(names, repeat=len(pending)):
            pairs = [(t, name) for t, name in zip(pending, where, strict=True) if name]
            if not _is_sound(snapshot, gone, pairs) or (gone and not pairs):
                continue
            for actions in _orders(snapshot, gone, pairs):
                if not verify_actions(snapshot, actions, rules):
                    yield actions
                    break


def _is_sound(snapshot: Snapshot, gone: Sequence[Task], pairs: Sequence[tuple[Task, str]]) -> bool:
    """Return whether placements fit after the evictions, and gangs reach their minimum."""
    number = Counter(task.gang for task, _ in pairs)
    for key, n in number.items():
        each = snapshot.gang_by_key[key]
        if n + sum(bool(t.node) for t in each.tasks) < each.min_member:
            return False
    left = {n.name: dict(n.allocatable) for n in snapshot.nodes}
    leaving = {t.key for t in gone}
    for each in snapshot.nodes:
        for task in each.residents:
            if task.key not in leaving:
                _take(left[each.name], task)
    for task, name in pairs:
        _take(left[name], task)
    return all(amount >= 0 for have in left.values() for amount in have.values())


def _orders(
    snapshot: Snapshot, gone: Sequence[Task], pairs: Sequence[tuple[Task, str]]
) -> Iterator[tuple[Action, ...]]:
    """Yield the variants of a plan with other preemptors and other orders of reclaims."""
    by_key = snapshot.gang_by_key
    placed = sorted({t.gang for t, _ in pairs})
    asking = [[(g, _verb(by_key[t.gang], by_key[g])) for g in placed] for t in gone]
    able = [[(g, verb) for g, verb in some if verb] for some in asking]
    for preemptors in product(*able):
        evictions = [
            Evict(t.key, t.node, verb, g) for t, (g, verb) in zip(gone, preemptors, strict=True)
        ]
        reclaims = [e for e in evictions if e.action == RECLAIM]
        rest = [e for e in evictions if e.action != RECLAIM]
        # After evictions, all tasks are nominated, because binds and nominations count equally on
        # all levels.
        kind = Nominate if gone else Allocate
        coming = tuple(kind(t.key, name, t.gang) for t, name in pairs)
        for ordered in permutations(reclaims):
            yield (*ordered, *rest, *coming)


def _verb(victim: Gang, preemptor: Gang) -> str:
    if victim.queue != preemptor.queue:
        return RECLAIM
    return PREEMPT if victim.priority < preemptor.priority else ""


def levels_of(
    snapshot: Snapshot, policy: Policy, actions: Sequence[Action]
) -> dict[str, LevelResult]:
    """Return the values of actions by level name."""
    return {level.name: level for level in judge_actions(snapshot, policy, actions).levels}


def bounds_of(
    snapshot: Snapshot, policy: Policy, known: Mapping[str, int] | None = None
) -> tuple[Sequence[AnyLevel], EvictionBounds | None]:
    """Return the levels of a snapshot and their bounds.

    The bounds are for a plan with the values `known`, or with poor values by default.
    """
    rules = policy.rules.guarded_by(Entitled(policy.rules))
    problem = compile_problem(snapshot, None)
    tiers = find_tiers(problem, policy)
    levels = build_levels(problem, policy.rules, tiers, policy.levels)
    nothing = {Sense.MAX: 0, Sense.MIN: 10**6}
    values = [(known or {}).get(level.name, nothing[level.sense]) for level in levels]
    solve = (InProcess(), Limits(None, num_workers=1), lambda: None)
    return levels, bound_with_evictions(problem, rules, (tiers, levels), values, REACH, solve)


def plan_jointly(snapshot: Snapshot, policy: Policy) -> tuple[Action, ...] | None:
    """Return the joint solution as evictions and nominations, or None without evictions."""
    rules = policy.rules.guarded_by(Entitled(policy.rules))
    problem = compile_problem(snapshot, None)
    tiers = find_tiers(problem, policy)
    levels = build_levels(problem, policy.rules, tiers, policy.levels)
    settings = VictimSearchSettings(InProcess(), lambda: None, Limits(None, num_workers=1))
    nothing = Decisions.nothing(problem)
    repair = partial(drop_invalid, rules)
    goal = (tiers, levels)
    clearing = find_victims_jointly(problem, rules, goal, nothing, REACH, settings, repair)
    if clearing is None:
        return None
    assigned = (
        nominate_tasks(problem, gang, nominations)
        for gang, nominations in clearing.nominations.items()
    )
    return (*clearing.evictions, *chain.from_iterable(assigned))
