"""Budgets that yield to guarantees: a setting of the administrator, off by default."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Evict, LevelStatus
from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.snapshot import Budget, Queue
from optsched.plugins.eviction.victims import SYSTEM_PRIORITY, GuaranteedReclaims, Victims
from optsched.plugins.verification.world import World
from tests.session.test_guarantees_hold import contest, cpus
from tests.session.test_victims import decide, evicted, runs
from tests.support.small import cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.cluster.decisions import LevelResult
    from optsched.cluster.snapshot import Snapshot

both_shares = pytest.mark.parametrize("shares", ["capacity", "proportion"])
both_engines = pytest.mark.parametrize("solver", [True, False], ids=["cp-sat", "greedy"])


def keep(allowed: int = 0, *, yields: bool = True) -> Budget:
    return Budget("ns/keep", LabelSelector(), allowed, yields)


def labelled(app: str) -> LabelSelector:
    return LabelSelector((Requirement("app", Operator.IN, (app,)),))


def under(snapshot: Snapshot, *budgets: Budget) -> Snapshot:
    return replace(snapshot, budgets=budgets)


# --- sessions ------------------------------------------------------------------------------------


@both_engines
@both_shares
@pytest.mark.parametrize("allowed", [0, 1, 3])
def test_a_queue_gets_its_guarantee_although_a_budget_protects_the_pods(
    shares: str, allowed: int, *, solver: bool
) -> None:
    snapshot = under(contest(4, {}), keep(allowed))
    assert len(evicted(decide(snapshot, shares, solver=solver))) == 4
    firm = under(contest(4, {}), keep(allowed, yields=False))
    assert evicted(decide(firm, shares, solver=solver)) == []


@both_engines
@pytest.mark.parametrize(("asked", "floor"), [(5, 4), (2, 0), (2, 1)])
def test_a_budget_holds_against_claims_beyond_a_guarantee(
    asked: int, floor: int, *, solver: bool
) -> None:
    snapshot = contest(asked, {}, floor=floor)
    assert evicted(decide(under(snapshot, keep()), solver=solver)) == []
    assert evicted(decide(under(snapshot, keep(asked - 1)), solver=solver)) == []
    assert len(evicted(decide(under(snapshot, keep(asked)), solver=solver))) == asked


@both_engines
@pytest.mark.parametrize("allowed", [3, 4])
def test_a_budget_that_does_not_yield_holds_together_with_one_that_does(
    allowed: int, *, solver: bool
) -> None:
    """The API server evicts no pod of two budgets."""
    other = Budget("ns/other", LabelSelector(), allowed)
    assert evicted(decide(under(contest(4, {}), keep(), other), solver=solver)) == []


@both_engines
def test_annotations_and_budgets_together_do_not_protect(*, solver: bool) -> None:
    snapshot = contest(4, {"preemptable": False})
    assert len(evicted(decide(under(snapshot, keep()), solver=solver))) == 4


@both_engines
@both_shares
def test_a_gang_that_leaves_whole_does_not_keep_a_queue_from_its_guarantee(
    shares: str, *, solver: bool
) -> None:
    snapshot = under(contest(2, {}, least=8), keep())
    assert len(evicted(decide(snapshot, shares, solver=solver))) == 8


@both_engines
@pytest.mark.parametrize(("asked", "floor", "victims"), [(3, 3, 3), (3, 2, 2), (6, 4, 4)])
def test_pods_beyond_the_minimum_override_budgets_up_to_the_guarantee(
    asked: int, floor: int, victims: int, *, solver: bool
) -> None:
    snapshot = contest(asked, {}, floor=floor)
    waits = gang("asks", ("w", asked, shape(1)), queue="team", least=1)
    gangs = tuple(waits if g.name == "asks" else g for g in snapshot.gangs)
    plan = decide(under(replace(snapshot, gangs=gangs), keep()), solver=solver)
    assert len(evicted(plan)) == victims


@both_engines
def test_preemption_within_a_queue_overrides_no_budget(*, solver: bool) -> None:
    low = runs(gang("low", ("w", 1, shape(8)), priority=1, queue="team"), "n")
    high = gang("high", ("w", 1, shape(8)), priority=2, queue="team")
    team = contest(1, {}).queue_by_name["team"]
    team = replace(team, guarantee=cpus(8), deserved=cpus(8))
    snapshot = cluster([node("n", 8)], [low, high], [team])
    assert evicted(decide(under(snapshot, keep()), solver=solver)) == []
    assert evicted(decide(under(snapshot, keep(1)), solver=solver)) == ["low-w-0"]


@both_engines
def test_no_budget_is_overridden_if_other_evictions_help(*, solver: bool) -> None:
    snapshot = contest(2, {})
    holds = snapshot.gang_by_key["ns/holds"]
    tasks = tuple(
        replace(t, labels={"app": "kept"} if i < 6 else {}) for i, t in enumerate(holds.tasks)
    )
    kept = Budget("ns/keep", labelled("kept"), 0, True)
    gangs = tuple(replace(g, tasks=tasks) if g is holds else g for g in snapshot.gangs)
    plan = decide(under(replace(snapshot, gangs=gangs), kept), solver=solver)
    assert evicted(plan) == ["holds-w-6", "holds-w-7"]


@both_engines
def test_evictions_within_a_guarantee_count_for_the_other_victims(*, solver: bool) -> None:
    """The first gang takes the guarantee, and spends what the budget allows for the second."""
    snapshot = contest(4, {})
    first = gang("asks", ("w", 2, shape(1)), queue="team", priority=5)
    second = gang("more", ("w", 3, shape(1)), queue="team", priority=1)
    holds = snapshot.gang_by_key["ns/holds"]
    both = cluster([node("n", 8)], [holds, first, second], snapshot.queues, now_ms=10)
    plan = decide(under(both, keep(4)), solver=solver)
    assert len(evicted(plan)) == 2
    assert len(evicted(decide(under(both, keep(5)), solver=solver))) == 5


def test_own_pods_and_protected_pods_of_another_queue_leave_together() -> None:
    low = runs(gang("low", ("w", 1, shape(4)), priority=1, queue="team"), "n")
    lent = runs(gang("lent", ("w", 4, shape(1)), queue="lab", least=1), *["n"] * 4)
    asks = gang("asks", ("w", 1, shape(8)), priority=2, queue="team")
    lab = Queue("lab")
    team = Queue("team", deserved=cpus(12), guarantee=cpus(12))
    nodes = [node("m", 4), node("n", 8)]
    snapshot = cluster(nodes, [low, lent, asks], [lab, team], now_ms=10)
    covers_lab = Budget("ns/keep", labelled("lab"), 0, True)
    tasks = tuple(replace(t, labels={"app": "lab"}) for t in lent.tasks)
    gangs = tuple(replace(g, tasks=tasks) if g.name == "lent" else g for g in snapshot.gangs)
    plan = decide(under(replace(snapshot, gangs=gangs), covers_lab))
    assert evicted(plan) == ["lent-w-0", "lent-w-1", "lent-w-2", "lent-w-3", "low-w-0"]


@both_engines
def test_reasons_name_a_budget_only_if_it_protects_against_the_gang(*, solver: bool) -> None:
    beyond = decide(under(contest(5, {}), keep()), solver=solver)
    assert "because of the disruption budget ns/keep" in str(beyond.pending["ns/asks"])
    some = decide(under(contest(5, {}), keep(4)), solver=solver)
    if solver:
        assert "ns/keep allows 4 more evictions, but 5" in str(some.pending["ns/asks"])
    # Within the guarantee, only the pod of the system is in the way.
    system = runs(gang("system", ("w", 1, shape(1)), queue="team"), "n")
    system = replace(system, tasks=(replace(system.tasks[0], priority=SYSTEM_PRIORITY),))
    holds = runs(gang("holds", ("w", 3, shape(1)), least=1, queue="lab"), *["n"] * 3)
    asks = gang("asks", ("w", 1, shape(4)), queue="team")
    for floor, is_named in ((5, False), (4, True)):
        queues = contest(1, {}, floor=floor).queues
        stuck = cluster([node("m", 2), node("n", 4)], [system, holds, asks], queues, now_ms=10)
        pending = decide(under(stuck, keep()), solver=solver).pending["ns/asks"]
        assert ("ns/keep" in str(pending)) == is_named


# --- bounds --------------------------------------------------------------------------------------


def level(snapshot: Snapshot, name: str) -> LevelResult:
    (found,) = (r for r in decide(snapshot).certificate.levels if r.name == name)
    return found


def test_bounds_hold_for_plans_that_override_budgets() -> None:
    """The plan keeps the budget, although a plan with fewer victims would override it."""
    kept = runs(gang("kept", ("w", 1, shape(4)), queue="lab"), "n0")
    kept = replace(kept, tasks=(replace(kept.tasks[0], labels={"app": "kept"}),))
    small = [runs(gang(f"small{i}", ("w", 1, shape(1)), queue="lab"), "n1") for i in range(4)]
    asks = gang("asks", ("w", 1, shape(4)), queue="team")
    queues = [Queue("lab"), Queue("team", deserved=cpus(4), guarantee=cpus(4))]
    nodes = [node("n0", 4), node("n1", 4)]
    snapshot = cluster(nodes, [kept, *small, asks], queues, now_ms=10)
    budget = Budget("ns/keep", labelled("kept"), 0, True)
    assert evicted(decide(under(snapshot, budget))) == [f"small{i}-w-0" for i in range(4)]
    victims = level(under(snapshot, budget), "victims")
    assert (victims.value, victims.bound, victims.status) == (4, 1, LevelStatus.FEASIBLE)
    firm = level(under(snapshot, replace(budget, yields_to_guarantees=False)), "victims")
    assert (firm.value, firm.status) == (4, LevelStatus.OPTIMAL)


def test_a_plan_that_overrides_a_budget_can_be_proved() -> None:
    snapshot = under(contest(4, {}), keep())
    assert decide(snapshot).certificate.is_proved
    assert level(snapshot, "victims").value == 4


# --- verifier ------------------------------------------------------------------------------------


def violations(snapshot: Snapshot, *evictions: Evict) -> list[str]:
    bare = replace(snapshot, budgets=())
    placed = [a for a in decide(bare).actions if not isinstance(a, Evict)]
    world = World(snapshot, (*evictions, *placed))
    return [str(v.detail) for v in Victims().verify_evictions(world)]


def reclaims(number: int, action: str = "reclaim") -> list[Evict]:
    return [Evict(f"ns/holds-w-{i}", "n", action, "ns/asks") for i in range(number)]


def test_the_verifier_tells_reclaims_within_a_guarantee_from_other_evictions() -> None:
    snapshot = under(contest(2, {}), keep())
    assert violations(snapshot, *reclaims(2)) == []
    assert violations(snapshot, *reclaims(2, "gangreclaim")) == []
    refusal = ["2 evicted, 0 allowed"]
    assert violations(snapshot, *reclaims(2, "preempt")) == refusal
    assert violations(under(contest(2, {}), keep(yields=False)), *reclaims(2)) == refusal
    assert violations(under(contest(2, {}, floor=1), keep()), *reclaims(2)) == refusal
    assert violations(under(contest(2, {}, floor=0), keep()), *reclaims(2)) == refusal
    assert violations(under(contest(2, {}, floor=0), keep(2)), *reclaims(2)) == []


def test_the_verifier_counts_only_the_other_victims() -> None:
    """Of a budget that allows one eviction, one pod leaves beyond the guarantee, and two within."""
    snapshot = contest(2, {})
    mover = Evict("ns/holds-w-7", "n", "consolidate", "ns/asks", to="n")
    assert violations(under(snapshot, keep(1)), *reclaims(2), mover) == []
    assert violations(under(snapshot, keep()), *reclaims(2), mover) == ["1 evicted, 0 allowed"]


# --- evictions that may override budgets ---------------------------------------------------------


def overriding(snapshot: Snapshot) -> dict[str, str]:
    plan = decide(snapshot)
    return GuaranteedReclaims(World(snapshot, plan.actions)).find_reclaims()


def test_each_reclaim_within_a_guarantee_is_known() -> None:
    """A budget may also change, or be created, after the snapshot was taken."""
    for budgets in [(), (keep(),), (keep(4),)]:
        found = overriding(under(contest(4, {}), *budgets))
        assert (len(found), set(found.values())) == (4, {"team"})
    assert overriding(contest(5, {})) == {}
    assert overriding(contest(2, {}, floor=0)) == {}


def test_growth_beyond_the_guarantee_is_no_reclaim_within_it() -> None:
    snapshot = contest(6, {}, floor=2)
    waits = gang("asks", ("w", 6, shape(1)), queue="team", least=1)
    gangs = tuple(waits if g.name == "asks" else g for g in snapshot.gangs)
    snapshot = replace(snapshot, gangs=gangs)
    assert len(evicted(decide(snapshot))) > 2
    assert overriding(snapshot) == {}


def test_only_gangs_that_fit_the_guarantee_together_reclaim_within_it() -> None:
    snapshot = contest(4, {})
    gangs = [gang(name, ("w", 3, shape(1)), queue="team") for name in ("asks", "more")]
    holds = snapshot.gang_by_key["ns/holds"]
    both = cluster([node("n", 8)], [holds, *gangs], snapshot.queues, now_ms=10)
    plan = decide(both)
    assert len(evicted(plan)) == 6
    found = GuaranteedReclaims(World(both, plan.actions)).find_reclaims()
    assert len(found) == 3
    preemptors = {a.task: a.preemptor for a in plan.actions if isinstance(a, Evict)}
    assert len({preemptors[task] for task in found}) == 1
