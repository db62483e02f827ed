"""Tests of the evicting actions of the pipeline, without a solver."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.cluster.selectors import (
    LabelSelector,
    NodeSelector,
    NodeTerm,
    Operator,
    Requirement,
)
from optsched.cluster.snapshot import Gang, Queue, Snapshot
from optsched.cluster.task import SpreadTerm, Task, TaskStatus
from optsched.plugins.verification.verify import verify_actions
from optsched.policy.load import load_policy, parse_policy
from optsched.policy.policy import SolverKind
from optsched.problem.compile import compile_problem
from optsched.session.session import SessionContext, run_session
from optsched.solver.greedy.pipeline import GreedyOptions, run_greedy
from optsched.solver.greedy.placement import PlacementState
from optsched.solver.greedy.preemption import GreedyPreemption
from optsched.solver.greedy.queue_order import ALONE, GangClasses
from tests.support.contests import Most, crowds
from tests.support.effort import num_examples
from tests.support.small import CPU, HOST, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from optsched.problem.arrays import I64

POLICY = load_policy("volcano-compatible", Path.read_text)
TIGHT = Most(nodes=3, queues=2, gangs=5, members=3)
BY_GANG = ("enqueue", "allocate", "gangpreempt", "gangreclaim", "preempt", "backfill")
each_way = pytest.mark.parametrize("actions", [POLICY.actions, BY_GANG], ids=["tasks", "gangs"])
RELATED = frozenset({"pod_affinity", "pod_anti_affinity", "spread", "host_ports", "device"})


def examples(number: int) -> settings:
    return settings(
        max_examples=num_examples(number),
        deadline=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )


def plan_of(snapshot: Snapshot, **fields: object) -> list[object]:
    """Return the actions of the pipeline, and check that they satisfy every rule."""
    report = run_session(snapshot, replace(POLICY, **fields), SessionContext())  # type: ignore[arg-type]
    assert report.trace.violations == ()
    assert verify_actions(snapshot, report.plan.actions, POLICY.rules) == []
    return list(report.plan.actions)


def evicted(actions: list[object]) -> set[str]:
    return {a.task for a in actions if isinstance(a, Evict)}


def assigned(actions: list[object]) -> set[str]:
    return {a.task for a in actions if isinstance(a, Allocate | Nominate)}


def running_gang(name: str, cpu: int, number: int, *, least: int, **fields: object) -> Gang:
    """Return a gang that runs on the node n0."""
    made = gang(name, ("w", number, shape(cpu)), least=least, **fields)
    return replace(made, tasks=tuple(running(t, "n0") for t in made.tasks))


def waiting(task: Task) -> Task:
    return replace(task, status=TaskStatus.PENDING, node="")


# --- time ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "actions",
    [("allocate", "preempt"), ("allocate", "gangpreempt")],
    ids=["tasks", "gangs"],
)
@pytest.mark.parametrize(("asked", "served"), [(0, 0), (1, 1), (9, 3)])
def test_no_gang_is_asked_once_time_is_up(
    actions: tuple[str, ...], asked: int, served: int
) -> None:
    """Gangs that were handled before the limit keep their nominations."""
    urgent = [
        replace(gang(f"urgent-{i}", ("w", 1, shape(2))), priority=9, created_ms=i) for i in range(3)
    ]
    urgent = [replace(g, tasks=tuple(replace(t, priority=9) for t in g.tasks)) for g in urgent]
    low = running_gang("low", 2, 3, least=0)
    problem = compile_problem(cluster([node("n0", 6)], [low, *urgent]))
    left = iter([False] * asked)
    options = GreedyOptions(actions, is_late=lambda: next(left, True))
    decisions = run_greedy(problem, POLICY.rules, options)
    assert len(decisions.evictions) == served


# --- whatever is asked of it ---------------------------------------------------------------------


@each_way
@examples(400)
@given(snapshot=crowds(frozenset(), TIGHT))
def test_no_plan_is_refused_where_room_is_short(
    actions: tuple[str, ...], snapshot: Snapshot
) -> None:
    plan_of(snapshot, actions=actions)


@each_way
@examples(100)
@given(snapshot=crowds(RELATED, TIGHT))
def test_no_plan_is_refused_where_pods_look_at_each_other(
    actions: tuple[str, ...], snapshot: Snapshot
) -> None:
    plan_of(snapshot, actions=actions)


@each_way
@examples(100)
@given(snapshot=crowds(frozenset({"claims"}), TIGHT))
def test_no_plan_is_refused_where_nodes_attach_few_volumes(
    actions: tuple[str, ...], snapshot: Snapshot
) -> None:
    plan_of(snapshot, actions=actions)


# --- gangs stay whole ----------------------------------------------------------------------------


def test_a_gang_that_gets_a_task_keeps_the_others_that_it_needs() -> None:
    """The last task of `low` is bound in the session in which `high` looks for victims."""
    low = running_gang("low", 1, 3, least=3)
    low = replace(low, tasks=(*low.tasks[:2], waiting(low.tasks[2])))
    high = gang("high", ("w", 1, shape(4)), priority=10)
    actions = plan_of(cluster([node("n0", 3)], [low, high]))
    assert assigned(actions) == {"ns/low-w-2"}
    assert not evicted(actions)


def test_a_gang_short_of_its_minimum_replaces_none_of_its_own_tasks() -> None:
    made = running_gang("torn", 1, 3, least=3)
    waits = [replace(waiting(t), priority=5) for t in made.tasks[1:]]
    torn = replace(made, tasks=tuple(sorted((*waits, made.tasks[0]), key=lambda t: t.order)))
    assert plan_of(cluster([node("n0", 1)], [torn])) == []


def test_who_lost_tasks_for_others_gets_nothing_in_that_session() -> None:
    middle = running_gang("middle", 1, 2, least=1, priority=5)
    more = gang("middle", ("w", 3, shape(1)), priority=5).tasks[2]
    middle = replace(middle, tasks=(*middle.tasks, more))
    low = running_gang("low", 1, 2, least=1)
    high = gang("high", ("w", 3, shape(1)), priority=10)
    actions = plan_of(cluster([node("n0", 4)], [low, middle, high]))
    assert assigned(actions) == {f"ns/high-w-{i}" for i in range(3)}
    assert len(evicted(actions)) == 3


# --- where it costs least ------------------------------------------------------------------------

BY_COST = (("preempt", (("enableTopologyAwarePreemption", True),)),)


def on(where: str, name: str, number: int = 1, **fields: object) -> Gang:
    """Return a job of 2-CPU tasks that runs on a node with a minimum of zero tasks."""
    made = gang(name, ("w", number, shape(2)), least=0, **{"priority": 1, **fields})
    priority = made.priority
    tasks = (replace(running(t, where), priority=priority) for t in made.tasks)
    return replace(made, tasks=tuple(tasks))


def began(made: Gang, at_ms: int) -> Gang:
    return replace(made, tasks=tuple(replace(t, started_ms=at_ms) for t in made.tasks))


@pytest.mark.parametrize(
    ("here", "there"),
    [
        ([on("n0", "a", 2, priority=3)], [on("n1", "b", 2, priority=2)]),
        (
            [on("n0", "a", priority=3), on("n0", "c", priority=2)],
            [on("n1", "b", priority=3), on("n1", "d", priority=1)],
        ),
        ([on("n0", "a", 2)], [on("n1", "b", 1)]),
        ([began(on("n0", "a", 2), 5)], [began(on("n1", "b", 2), 9)]),
    ],
    ids=["highest", "sum", "fewest", "latest"],
)
def test_the_node_is_taken_where_it_costs_least(here: list[Gang], there: list[Gang]) -> None:
    snapshot = cluster(
        [node("n0", 4), node("n1", 4)],
        [*here, *there, gang("high", ("w", 1, shape(4)), priority=10)],
    )
    gone = evicted(plan_of(snapshot, action_arguments=BY_COST))
    assert gone == {t.key for g in there for t in g.tasks}


def test_nobody_goes_where_nobody_has_to() -> None:
    lows = [on("n0", "low", 2), on("n1", "half")]
    high = gang("high", ("w", 2, shape(2)), priority=10)
    snapshot = cluster([node("n0", 4), node("n1", 4)], [*lows, high])
    assert len(evicted(plan_of(snapshot, action_arguments=BY_COST))) == 1


@examples(200)
@given(snapshot=crowds(RELATED, TIGHT))
def test_no_plan_is_refused_wherever_it_costs_least(snapshot: Snapshot) -> None:
    plan_of(snapshot, action_arguments=BY_COST)


def test_a_pod_stays_against_which_a_placed_task_is_spread() -> None:
    """The task of `web` goes to n1; without `low` on n0 the topology spread would be uneven."""
    app = {"app": "web"}
    spread = SpreadTerm(1, HOST, LabelSelector((Requirement("app", Operator.IN, ("web",)),)), "ns")
    old = gang("old", ("w", 1, shape(1)), priority=30, labels=app)
    old = replace(old, tasks=(running(old.tasks[0], "n1"),))
    low = running_gang("low", 1, 1, least=1, labels=app)
    other = running_gang("other", 1, 1, least=1, priority=5)
    web = gang("web", ("w", 1, shape(1, spread=(spread,))), priority=10, labels=app)
    on_n0 = NodeSelector((NodeTerm((Requirement(HOST, Operator.IN, ("n0",)),)),))
    high = gang("high", ("w", 1, shape(1, node_affinity=on_n0)), priority=20)
    snapshot = cluster([node("n0", 2), node("n1", 2)], [old, low, other, web, high])
    actions = plan_of(snapshot)
    assert assigned(actions) == {"ns/web-w-0", "ns/high-w-0"}
    assert evicted(actions) == {"ns/other-w-0"}


# --- minResources --------------------------------------------------------------------------------


@pytest.mark.parametrize(("least", "evicts"), [(2, 2), (3, 0)])
def test_min_resources_count_what_victims_will_free(least: int, evicts: int) -> None:
    low = running_gang("low", 1, 4, least=2)
    high = gang("high", ("w", 2, shape(1)), priority=10, min_resources=((CPU, least * 1000),))
    assert len(evicted(plan_of(cluster([node("n0", 4)], [low, high])))) == evicts


# --- gangs at once -------------------------------------------------------------------------------

GANGS = ("enqueue", "allocate", "gangpreempt")


def test_whole_gangs_leave_for_a_whole_gang_and_no_more_than_it_needs() -> None:
    lows = [running_gang(f"low-{i}", 1, 2, least=2) for i in range(3)]
    high = gang("high", ("w", 2, shape(1)), priority=10)
    actions = plan_of(cluster([node("n0", 6)], [*lows, high]), actions=GANGS)
    assert evicted(actions) == {"ns/low-2-w-0", "ns/low-2-w-1"}
    assert assigned(actions) == {"ns/high-w-0", "ns/high-w-1"}
    assert {a.action for a in actions if isinstance(a, Evict)} == {"gangpreempt"}


def test_what_gangs_can_spare_goes_first() -> None:
    whole = running_gang("a", 1, 2, least=2)
    spare = running_gang("b", 1, 4, least=1, priority=5)
    high = gang("high", ("w", 1, shape(1)), priority=10)
    actions = plan_of(cluster([node("n0", 6)], [whole, spare, high]), actions=GANGS)
    assert len(evicted(actions)) == 1
    assert all(key.startswith("ns/b-") for key in evicted(actions))


@pytest.mark.parametrize(("allowed", "number"), [(True, 2), (False, 0)])
def test_gangs_as_a_whole_can_be_ruled_out(allowed: bool, number: int) -> None:
    low = running_gang("low", 1, 2, least=2)
    high = gang("high", ("w", 2, shape(1)), priority=10)
    said = (("gangpreempt", (("allowWholeBundle", allowed),)),)
    snapshot = cluster([node("n0", 2)], [low, high])
    assert len(evicted(plan_of(snapshot, actions=GANGS, action_arguments=said))) == number


def test_a_gang_grows_beyond_its_minimum_where_plugins_say_that_it_starves() -> None:
    conf = """
    actions: "enqueue, allocate, gangpreempt"
    solver: none
    tiers:
    - plugins:
      - {name: priority}
      - {name: gang, enableJobStarving: STARVING}
      - {name: predicates}
    """
    low = running_gang("low", 1, 5, least=2)
    high = running_gang("high", 1, 1, least=1, priority=10)
    more = gang("high", ("w", 5, shape(1)), priority=10).tasks[1:]
    high = replace(high, tasks=(*high.tasks, *more))
    whole = [running_gang("whole", 1, 2, least=2, priority=5)]
    snapshot = cluster([node("n0", 8)], [low, high, *whole])
    policies = (dedent(conf).replace("STARVING", word) for word in ("true", "false"))
    found = [
        evicted(
            list(run_session(snapshot, parse_policy(text, "a.conf"), SessionContext()).plan.actions)
        )
        for text in policies
    ]
    # Pods of `low` above its minimum go first, and then all of `low`, because four tasks wait.
    assert found == [set(), {t.key for t in low.tasks}]


def test_equals_are_not_preempted() -> None:
    low = running_gang("low", 1, 2, least=2, priority=10)
    high = gang("high", ("w", 2, shape(1)), priority=10)
    assert plan_of(cluster([node("n0", 2)], [low, high]), actions=GANGS) == []


def test_gangs_of_other_queues_give_back_whatever_their_priority() -> None:
    borrower, lender = Queue("borrower", weight=1), Queue("lender", weight=1)
    low = running_gang("big", 1, 4, least=1, priority=10, queue="borrower")
    claim = gang("claim", ("w", 2, shape(1)), queue="lender")
    snapshot = cluster([node("n0", 4)], [low, claim], [borrower, lender])
    actions = plan_of(snapshot, actions=("enqueue", "allocate", "gangreclaim"))
    assert len(evicted(actions)) == 2
    assert assigned(actions) == {"ns/claim-w-0", "ns/claim-w-1"}


def copied(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with three more copies of each gang that waits without a running task."""
    waiting = [g for g in snapshot.gangs if not any(t.node for t in g.tasks)]
    more = [renamed(g, f"{g.key}-{i}") for g in waiting for i in range(3)]
    return replace(snapshot, gangs=tuple(sorted((*snapshot.gangs, *more), key=lambda g: g.key)))


def renamed(of: Gang, key: str) -> Gang:
    tasks = tuple(replace(t, key=f"{key}-{i}", gang=key) for i, t in enumerate(of.tasks))
    return replace(of, key=key, tasks=tasks)


@examples(60)
@given(crowds(frozenset(), TIGHT))
def test_gangs_that_are_alike_fare_as_if_each_were_tried(snapshot: Snapshot) -> None:
    snapshot = copied(snapshot)
    skipped = plan_of(snapshot)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GangClasses, "class_now", lambda *_: ALONE)
        patch.setattr(GangClasses, "has_failed", lambda *_: False)
        patch.setattr(GangClasses, "representatives", lambda *_: None)
        patch.setattr(
            GangClasses,
            "evaluate",
            lambda _, gangs, value: ([value(g) for g in gangs.tolist()], np.arange(len(gangs))),
        )
        assert plan_of(snapshot) == skipped


@pytest.mark.parametrize("model", ["volcano-compatible", "crater", "capacity-hierarchical"])
@examples(60)
@given(crowds(frozenset(), TIGHT))
def test_bounds_on_what_evictions_free_change_no_plan(model: str, snapshot: Snapshot) -> None:
    policy = replace(load_policy(model, Path.read_text), solver=SolverKind.NONE)
    set_up = GangClasses.__init__

    def try_every_gang(self: GangClasses, *given: object) -> None:
        set_up(self, *given)  # type: ignore[arg-type]
        self.is_known = False  # as with a custom plugin, of which no bounds are known

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GangClasses, "few", 0)
        bounded = run_session(snapshot, policy, SessionContext()).plan
        patch.setattr(GangClasses, "__init__", try_every_gang)
        assert run_session(snapshot, policy, SessionContext()).plan.actions == bounded.actions


def test_bounds_on_evictions_include_nominated_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queue a uses more than its share, also after the eviction, but has a nominated task."""
    monkeypatch.setattr(GangClasses, "few", 0)
    low = running_gang("low", 1, 1, least=0, queue="a")
    firm = running_gang("firm", 1, 5, least=5, queue="a", priority=9)
    wish = gang("wish", ("w", 8, shape(1)), queue="b")
    task = gang("late", ("w", 1, shape(2)), queue="a", priority=9)
    late = replace(task, tasks=(replace(task.tasks[0], nominated_node="n0"),))
    queues = [Queue("a"), Queue("b")]
    actions = plan_of(cluster([node("n0", 7)], [low, firm, wish, late], queues))
    assert evicted(actions) == {"ns/low-w-0"}
    assert assigned(actions) == {"ns/late-w-0"}


def test_a_queue_without_a_share_tries_only_nodes_with_victims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []
    evict = GreedyPreemption._evict_on_node

    def counted(self: GreedyPreemption, entry: tuple[int, int], node: int, victims: I64) -> bool:
        tried.append(node)
        return evict(self, entry, node, victims)

    monkeypatch.setattr(GreedyPreemption, "_evict_on_node", counted)
    held = running_gang("held", 1, 8, least=1, queue="full")
    too_large = gang("too-large", ("w", 1, shape(10)), queue="other")
    equal = gang("equal", ("w", 1, shape(2)), queue="full")
    higher = gang("higher", ("w", 1, shape(2)), queue="full", priority=10)
    nodes = [node("n0", 8), node("n1", 4), node("n2", 4)]
    waiting = [too_large, equal, higher]
    actions = plan_of(cluster(nodes, [held, *waiting], [Queue("full"), Queue("other")]))
    assert evicted(actions) == {"ns/held-w-6", "ns/held-w-7"}
    assert tried == [0]


def test_a_gang_is_not_tried_where_one_like_it_has_found_no_victims(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    nodes = GreedyPreemption._nodes

    def counted(
        self: GreedyPreemption, task_class: int, action: str, *rest, **more
    ) -> Iterator[int]:
        looks.append(action)
        return nodes(self, task_class, action, *rest, **more)

    monkeypatch.setattr(GreedyPreemption, "_nodes", counted)
    waiting = [gang(f"w{i}", ("w", 1, shape(4))) for i in range(9)]
    plan_of(cluster([node("n0", 4)], [running_gang("held", 4, 1, least=1), *waiting]))
    assert looks.count("preempt") == 1


def test_a_gang_is_not_tried_where_one_like_it_has_not_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[int] = []
    could_start = PlacementState.could_start

    def counted(self: PlacementState, number: int) -> bool:
        tried.append(number)
        return could_start(self, number)

    monkeypatch.setattr(PlacementState, "could_start", counted)
    monkeypatch.setattr(GangClasses, "few", 0)
    waiting = [gang(f"w{i}", ("w", 1, shape(1 + i % 2 * 3))) for i in range(9)]
    held = running_gang("held", 2, 1, least=1)
    actions = plan_of(cluster([node("n0", 4)], [held, *waiting]))
    assert assigned(actions) == {"ns/w0-w-0", "ns/w2-w-0"}
    # Every second gang requests 4 CPUs, which no node offers. Of the gangs that request 1 CPU, only
    # the first is tried after the last start.
    assert tried == [1, 3, 5]


def test_a_claim_within_a_guarantee_is_tried_where_a_larger_one_has_failed() -> None:
    holder = running_gang("holds", 1, 8, least=1, queue="lab")
    holder = replace(holder, tasks=tuple(replace(t, preemptable=False) for t in holder.tasks))
    asking = [
        gang(name, ("w", number, shape(1)), queue="team")
        for name, number in (("larger", 5), ("less", 2))
    ]
    queues = [Queue("lab"), Queue("team", guarantee=((CPU, 4000),), weight=3)]
    actions = plan_of(cluster([node("n0", 8)], [holder, *asking], queues))
    assert len(evicted(actions)) == 2
    assert assigned(actions) == {"ns/less-w-0", "ns/less-w-1"}
