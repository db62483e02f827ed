"""Tests of evictions end to end: the victims, their preemptors, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Allocate, Evict, LevelStatus, Nominate
from optsched.cluster.node_resources import GpuShare, GpuShareRequest, SharedGpu
from optsched.cluster.relocation import with_terminating
from optsched.cluster.selectors import LabelSelector, NodeSelector, NodeTerm, Operator, Requirement
from optsched.cluster.snapshot import Budget, Claim, GangPhase, Queue
from optsched.cluster.task import DeviceRequest, HostPort, PodTerm, SpreadTerm
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, judge_actions, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.evictions import MODEL
from tests.support.small import GPU, HOST, ZONE, cluster, gang, node, running, runs, shape

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Gang, Node, Snapshot
    from optsched.cluster.task import TaskShape

LIMITS = Limits(budget_ms=None, num_workers=1)


VGPU = "{name: deviceshare, arguments: {deviceshare.VGPUEnable: true}}"


def decide(
    snapshot: Snapshot, shares: str = "capacity", *, solver: bool = True, vgpu: bool = False
) -> Plan:
    model = MODEL.replace("SHARES", shares)
    model = model.replace("{name: nodeorder}", f"{VGPU}, {{name: nodeorder}}") if vgpu else model
    policy = parse_policy(model, "test.yaml")
    around = SessionContext(solver=InProcess() if solver else None, limits=LIMITS)
    report = run_session(snapshot, policy, around)
    assert report.trace.violations == ()
    return report.plan


def evicted(plan: Plan) -> list[str]:
    return sorted(a.task.removeprefix("ns/") for a in plan.actions if isinstance(a, Evict))


def nominated(plan: Plan) -> dict[str, str]:
    return {a.task.removeprefix("ns/"): a.node for a in plan.actions if isinstance(a, Nominate)}


def nodes(number: int, gpu: int = 8) -> list[Node]:
    return [node(f"n{i}", cpu=64, gpu=gpu) for i in range(number)]


@pytest.mark.parametrize("solver", [True, False], ids=["cp-sat", "greedy"])
def test_the_more_important_gang_of_a_queue_takes_the_room_of_the_less_important(solver: bool):
    low = runs(gang("low", ("w", 1, shape(1, 8)), priority=1), "n0")
    high = gang("high", ("w", 1, shape(1, 8)), priority=2)
    plan = decide(cluster(nodes(1), [low, high]), solver=solver)
    assert evicted(plan) == ["low-w-0"]
    assert nominated(plan) == {"high-w-0": "n0"}
    assert plan.pending["ns/high"].code.value == "WaitingForReleasedResources"


def test_equals_do_not_preempt_each_other():
    first = runs(gang("first", ("w", 1, shape(1, 8)), priority=1), "n0")
    second = gang("second", ("w", 1, shape(1, 8)), priority=1)
    assert evicted(decide(cluster(nodes(1), [first, second]))) == []


def test_fewest_victims_go_first_and_among_as_few_the_least_important():
    many = [runs(gang(f"small{i}", ("w", 1, shape(1, 1)), priority=1), "n0") for i in range(8)]
    one = runs(gang("big", ("w", 1, shape(1, 8)), priority=3), "n1")
    other = runs(gang("other", ("w", 1, shape(1, 8)), priority=2), "n2")
    want = gang("want", ("w", 1, shape(1, 8)), priority=9)
    plan = decide(cluster(nodes(3), [*many, one, other, want]))
    assert evicted(plan) == ["other-w-0"]
    level = next(r for r in plan.certificate.levels if r.name == "victims")
    assert (level.value, level.bound, level.status) == (1, 1, LevelStatus.OPTIMAL)


def test_a_surplus_is_given_once():
    low = runs(gang("low", ("w", 3, shape(1, 8)), least=2, priority=1), "n0", "n1", "n2")
    high = [gang(f"high-{i}", ("w", 1, shape(1, 8)), priority=2) for i in range(2)]
    assert len(evicted(decide(cluster(nodes(3), [low, *high])))) == 3


def test_a_gang_gives_its_surplus_or_leaves_as_a_whole():
    elastic = runs(gang("elastic", ("w", 4, shape(1, 2)), least=3, priority=1), *["n0"] * 4)
    rigid = runs(gang("rigid", ("w", 4, shape(1, 2)), priority=1), *["n1"] * 4)
    small = gang("want", ("w", 1, shape(1, 2)), priority=2)
    assert len(evicted(decide(cluster(nodes(2), [elastic, rigid, small])))) == 1
    large = gang("want", ("w", 1, shape(1, 8)), priority=2)
    gone = evicted(decide(cluster(nodes(2), [elastic, rigid, large])))
    assert len(gone) == 4
    assert len({key.partition("-")[0] for key in gone}) == 1


def test_a_gang_that_can_not_be_helped_costs_nobody_anything():
    low = runs(gang("low", ("w", 1, shape(1, 8)), priority=1), "n0")
    high = gang("high", ("w", 2, shape(1, 8)), priority=2)
    assert evicted(decide(cluster(nodes(1), [low, high]))) == []


@pytest.mark.parametrize(
    "spared",
    [
        {"preemptable": False},
        {"started_ms": 1, "cooldown_ms": 10_000_000},
        {"priority": 2_000_000_000},
    ],
    ids=["says so", "cooling down", "keeps the cluster up"],
)
def test_whom_nobody_may_evict(spared: dict[str, int]):
    low = runs(gang("low", ("w", 1, shape(1, 8)), priority=1), "n0")
    low = replace(low, tasks=tuple(replace(t, **spared) for t in low.tasks))
    high = gang("high", ("w", 1, shape(1, 8)), priority=2)
    assert evicted(decide(cluster(nodes(1), [low, high], now_ms=1000))) == []


def test_who_never_preempts_waits():
    low = runs(gang("low", ("w", 1, shape(1, 8)), priority=1), "n0")
    high = gang("high", ("w", 1, shape(1, 8)), priority=2)
    high = replace(
        high, tasks=tuple(replace(t, shape=replace(t.shape, preempts=False)) for t in high.tasks)
    )
    assert evicted(decide(cluster(nodes(1), [low, high]))) == []


def test_a_disruption_budget_holds():
    lows = [
        runs(gang(f"low{i}", ("w", 1, shape(1, 4)), priority=1, labels={"app": "x"}), "n0")
        for i in range(2)
    ]
    high = gang("high", ("w", 1, shape(1, 8)), priority=2)
    some = LabelSelector((Requirement("app", Operator.IN, ("x",)),))
    before = cluster(nodes(1), [*lows, high])
    for allowed, gone in ((1, 0), (2, 2)):
        budget = Budget("ns/b", some, allowed)
        assert len(evicted(decide(replace(before, budgets=(budget,))))) == gone


def queues(**deserved: int) -> list[Queue]:
    return [Queue(name, deserved=((GPU, n),)) for name, n in deserved.items()]


def test_a_queue_takes_back_what_is_due_to_it_and_no_more():
    jobs = [runs(gang(f"a{i}", ("w", 1, shape(1, 1)), queue="a"), f"n{i // 8}") for i in range(16)]
    want = gang("b", ("w", 8, shape(1, 1)), queue="b")
    plan = decide(cluster(nodes(2), [*jobs, want], queues(a=8, b=8)))
    assert len(evicted(plan)) == 8
    assert all(a.action == "reclaim" for a in plan.actions if isinstance(a, Evict))
    more = gang("b", ("w", 9, shape(1, 1)), queue="b")
    assert evicted(decide(cluster(nodes(2), [*jobs, more], queues(a=8, b=8)))) == []


@pytest.mark.parametrize("engine", ["cpsat", "none"])
def test_a_queue_above_its_gpus_reclaims_none_because_it_has_fewer_cpus_than_it_deserves(
    engine: str,
):
    """Both queues hold more GPUs and fewer CPUs than they deserve."""
    held = [
        runs(gang(f"{q}{i}", ("w", 1, shape(1, 1)), queue=q), "n0") for q in "ab" for i in "0123"
    ]
    want = gang("want", ("w", 1, shape(1, 1)), queue="a")
    listed = [Queue(name, deserved=(("cpu", 32_000), (GPU, 3))) for name in "ab"]
    model = MODEL.replace("SHARES", "capacity").replace("engine: cpsat", f"engine: {engine}")
    around = SessionContext(solver=InProcess(), limits=LIMITS)
    snapshot = cluster(nodes(1), [*held, want], listed)
    assert evicted(run_session(snapshot, parse_policy(model, "test.yaml"), around).plan) == []


@pytest.mark.parametrize("engine", ["cpsat", "none"])
@pytest.mark.parametrize(("lender", "with_terminating"), [("a", False), ("guest", True)])
def test_siblings_evict_each_other_only_for_what_is_due_to_one_of_them(
    engine: str, lender: str, with_terminating: bool
):
    """A parent's entitlement lets no child reclaim from the other; both would alternate."""
    queues = [Queue("org", deserved=((GPU, 12),))]
    queues += [Queue("a", parent="org"), Queue("b", parent="org"), Queue("guest")]
    held = runs(gang("held", ("w", 8, shape(1, 1)), least=1, queue=lender), *["n0"] * 8)
    claim = gang("claim", ("w", 4, shape(1, 1)), least=1, queue="b")
    model = MODEL.replace("SHARES", "capacity, arguments: {ancestorReclaimLevel: 1}")
    model = model.replace("engine: cpsat", f"engine: {engine}")
    around = SessionContext(solver=InProcess(), limits=LIMITS)
    snapshot = cluster(nodes(1), [held, claim], queues)
    report = run_session(snapshot, parse_policy(model, "test.yaml"), around)
    assert bool(evicted(report.plan)) is with_terminating
    assert report.trace.repairs == ()


def test_fewest_victims_are_not_proved_if_a_guarantee_allows_fewer():
    """The single pod of c is within the entitlement of c, so the pods of b are reclaimed first."""
    lends = [runs(gang(f"b{i}", ("w", 1, shape(1, 1)), queue="b"), "n0") for i in range(4)]
    keeps = runs(gang("c", ("w", 1, shape(1, 4)), queue="c"), "n1")
    want = gang("want", ("w", 1, shape(1, 4)), queue="a")
    a, c = queues(a=4, c=4)
    listed = [replace(a, guarantee=((GPU, 4),)), Queue("b"), c]
    model = MODEL.replace("SHARES", "capacity").replace("fair-share, ", "")
    policy, snapshot = parse_policy(model, "x"), cluster(nodes(2, 4), [*lends, keeps, want], listed)
    plan = run_session(snapshot, policy, SessionContext(solver=InProcess(), limits=LIMITS)).plan
    fewer = (
        Evict("ns/c-w-0", "n1", "reclaim", "ns/want"),
        Nominate("ns/want-w-0", "n1", "ns/want"),
    )
    assert judge_actions(snapshot, policy, fewer).violations == ()
    victims = next(level for level in plan.certificate.levels if level.name == "victims")
    assert len(evicted(plan)) == victims.value == 4
    assert victims.bound == 1


def test_fewest_victims_are_not_proved_for_the_minimum_and_the_rest_of_a_gang():
    """The first pod of want takes n0, whose pod loses no work, but both pods fit n1.

    The pods of want have a spread term, so that the victims are not chosen jointly.
    """
    spread = SpreadTerm(9, HOST, X, "ns")
    want = gang("want", ("w", 2, shape(1, 2, spread=(spread,))), least=1, queue="a")
    small = runs(gang("small", ("w", 1, shape(1, 2)), queue="b"), "n0")
    large = runs(gang("large", ("w", 1, shape(1, 4)), queue="b"), "n1")
    rest = runs(gang("rest", ("w", 1, shape(1, 2)), queue="b"), "n2")
    large = replace(large, tasks=(replace(large.tasks[0], started_ms=1),))
    rest = replace(rest, tasks=(replace(rest.tasks[0], preemptable=False),))
    made = [node(f"n{i}", cpu=64, gpu=gpu) for i, gpu in enumerate((2, 4, 2))]
    gangs = [small, large, rest, want]
    snapshot = cluster(made, gangs, queues(a=4, b=2), now_ms=3_600_000)
    plan = decide(snapshot)
    fewer = (
        Evict("ns/large-w-0", "n1", "reclaim", "ns/want"),
        *(Nominate(f"ns/want-w-{i}", "n1", "ns/want") for i in range(2)),
    )
    judged = judge_actions(snapshot, parse_policy(MODEL.replace("SHARES", "capacity"), "x"), fewer)
    assert judged.violations == ()
    mine = {level.name: level for level in plan.certificate.levels}
    for better in judged.levels[:4]:
        assert mine[better.name].bound == better.value
    assert evicted(plan) == ["large-w-0", "small-w-0"]
    assert not plan.certificate.is_proved


def test_the_lender_keeps_what_is_due_to_it():
    jobs = [runs(gang(f"a{i}", ("w", 1, shape(1, 1)), queue="a"), "n0") for i in range(8)]
    want = gang("b", ("w", 3, shape(1, 1)), queue="b")
    assert evicted(decide(cluster(nodes(1), [*jobs, want], queues(a=6, b=3)))) == []
    assert len(evicted(decide(cluster(nodes(1), [*jobs, want], queues(a=5, b=3))))) == 3


def test_a_queue_that_is_not_reclaimable_keeps_everything():
    jobs = [runs(gang(f"a{i}", ("w", 1, shape(1, 1)), queue="a"), "n0") for i in range(8)]
    want = gang("b", ("w", 3, shape(1, 1)), queue="b")
    a, b = queues(a=1, b=8)
    closed = [replace(a, reclaimable=False), b]
    assert evicted(decide(cluster(nodes(1), [*jobs, want], closed))) == []


def test_an_elastic_gang_reclaims_all_that_is_due_and_not_its_minimum_alone():
    jobs = [runs(gang(f"a{i}", ("w", 1, shape(1, 1)), queue="a"), "n0") for i in range(8)]
    want = gang("b", ("w", 6, shape(1, 1)), least=1, queue="b")
    assert len(evicted(decide(cluster(nodes(1), [*jobs, want], queues(a=4, b=4))))) == 4


def test_nothing_is_evicted_twice_for_the_same_room():
    low = runs(gang("low", ("w", 1, shape(1, 8)), priority=1), "n0")
    high = gang("high", ("w", 1, shape(1, 8)), priority=2)
    before = cluster(nodes(1), [low, high])
    plan = decide(before)
    waiting = with_terminating(before, {"ns/low-w-0"})
    named = tuple(replace(t, nominated_node="n0") for t in high.tasks)
    gangs = tuple(replace(g, tasks=named) if g.key == high.key else g for g in waiting.gangs)
    again = decide(replace(waiting, gangs=gangs))
    assert evicted(plan) == ["low-w-0"]
    assert evicted(again) == []
    assert nominated(again) == {"high-w-0": "n0"}


def test_room_that_was_made_is_not_for_a_third_gang():
    high = gang("high", ("w", 1, shape(1, 8)), priority=2)
    named = replace(high, tasks=tuple(replace(t, nominated_node="n0") for t in high.tasks))
    thief = gang("thief", ("w", 1, shape(1, 8)), priority=5, created_ms=-1)
    plan = decide(cluster(nodes(1), [named, thief]))
    assert [a.task for a in plan.actions if isinstance(a, Allocate)] == ["ns/high-w-0"]


@pytest.mark.parametrize("solver", [True, False], ids=["cp-sat", "greedy"])
def test_a_void_nomination_of_one_pod_leaves_the_others_of_its_gang_their_nodes(solver: bool):
    """Another pod has taken n2 since the nomination, and no pod is terminating."""
    high = gang("high", ("w", 3, shape(1, 8)), least=2, priority=2)
    tasks = (replace(task, nominated_node=f"n{i}") for i, task in enumerate(high.tasks))
    thief = gang("thief", ("w", 1, shape(1, 8)), priority=5, created_ms=-1)
    taken = runs(gang("taken", ("w", 1, shape(1, 8)), priority=9), "n2")
    before = cluster(nodes(3), [replace(high, tasks=tuple(tasks)), thief, taken])
    binds = decide(before, solver=solver).binds
    assert binds == {"ns/high-w-0": "n0", "ns/high-w-1": "n1"}


def test_a_void_nomination_binds_nobody():
    high = gang("high", ("w", 1, shape(1, 8)), priority=2)
    named = replace(high, tasks=tuple(replace(t, nominated_node="gone") for t in high.tasks))
    plan = decide(cluster(nodes(1), [named]))
    assert [a.node for a in plan.actions if isinstance(a, Allocate)] == ["n0"]


NOT_BESIDE_X = PodTerm(
    LabelSelector((Requirement("app", Operator.IN, ("x",)),)), ("ns",), None, HOST
)


def test_affinity_holds_after_the_evictions():
    term = NOT_BESIDE_X
    keeper = runs(gang("keeper", ("w", 1, shape(1)), priority=9, labels={"app": "x"}), "n0")
    lows = [runs(gang(f"low{i}", ("w", 1, shape(1, 8)), priority=1), f"n{i}") for i in range(2)]
    high = gang("high", ("w", 1, shape(1, 8, pod_anti_affinity=(term,))), priority=5)
    plan = decide(cluster(nodes(2), [keeper, *lows, high]))
    assert nominated(plan) in ({"high-w-0": "n1"}, {})
    assert set(evicted(plan)) <= {"low1-w-0"}


@pytest.mark.parametrize(
    "fields",
    [{"pod_anti_affinity": (NOT_BESIDE_X,)}, {"host_ports": (HostPort("TCP", "0.0.0.0", 80),)}],
    ids=["anti-affinity", "host port"],
)
def test_who_is_in_the_way_leaves_though_there_is_room(fields: dict[str, object]):
    low = runs(gang("low", ("w", 1, shape(1, **fields)), priority=1, labels={"app": "x"}), "n0")
    high = gang("high", ("w", 1, shape(1, **fields)), priority=2)
    before = cluster(nodes(1), [low, high])
    plan = decide(before)
    assert evicted(plan) == ["low-w-0"]
    assert nominated(plan) == {"high-w-0": "n0"}
    named = tuple(replace(t, nominated_node="n0") for t in high.tasks)
    waiting = with_terminating(before, {"ns/low-w-0"})
    gangs = tuple(replace(g, tasks=named) if g.key == high.key else g for g in waiting.gangs)
    again = decide(replace(waiting, gangs=gangs))
    assert (evicted(again), nominated(again)) == ([], {"high-w-0": "n0"})
    gone = decide(cluster(nodes(1), [replace(high, tasks=named)]))
    assert [a.node for a in gone.actions if isinstance(a, Allocate)] == ["n0"]


X = LabelSelector((Requirement("app", Operator.IN, ("x",)),))


def test_room_is_made_near_those_that_the_gang_wants_near():
    keeper = runs(gang("keeper", ("w", 1, shape(1)), priority=9, labels={"app": "x"}), "n1")
    lows = [runs(gang(f"low{i}", ("w", 1, shape(1, 8)), priority=1), f"n{i}") for i in range(3)]
    near = PodTerm(X, ("ns",), None, HOST)
    high = gang("high", ("w", 1, shape(1, 8, pod_affinity=(near,))), priority=5)
    plan = decide(cluster(nodes(3), [keeper, *lows, high]))
    assert (evicted(plan), nominated(plan)) == (["low1-w-0"], {"high-w-0": "n1"})


def test_those_that_the_gang_wants_near_do_not_leave_for_it():
    wanted = runs(gang("wanted", ("w", 1, shape(1, 8)), priority=1, labels={"app": "x"}), "n0")
    near = PodTerm(X, ("ns",), None, HOST)
    high = gang("high", ("w", 1, shape(1, 8, pod_affinity=(near,))), priority=5)
    assert evicted(decide(cluster(nodes(1), [wanted, high]))) == []


def zoned(number: int, gpu: int = 8) -> list[Node]:
    return [node(f"n{i}", cpu=64, gpu=gpu, labels={ZONE: "ab"[i % 2]}) for i in range(number)]


def test_room_is_made_so_that_a_gang_comes_to_lie_evenly():
    lows = [
        runs(gang(f"low{i}", ("w", 1, shape(1, 8)), priority=1 + i % 2), f"n{i}") for i in range(6)
    ]
    even = SpreadTerm(1, ZONE, X, "ns")
    high = gang("high", ("w", 4, shape(1, 8, spread=(even,))), priority=5, labels={"app": "x"})
    plan = decide(cluster(zoned(6), [*lows, high]))
    assert len(evicted(plan)) == 4
    zones = sorted("ab"[int(n[1:]) % 2] for n in nominated(plan).values())
    assert zones == ["a", "a", "b", "b"]
    level = next(r for r in plan.certificate.levels if r.name == "victims")
    assert level.status is LevelStatus.OPTIMAL


def test_no_room_is_made_yet_near_a_gang_that_waits_itself():
    lows = [
        runs(gang(f"low{i}", ("w", 1, shape(1, 8)), priority=1), f"n{i // 2}") for i in range(4)
    ]
    first = gang("first", ("w", 1, shape(1, 8)), priority=9, labels={"app": "x"}, created_ms=-1)
    near = PodTerm(X, ("ns",), None, HOST)
    second = gang("second", ("w", 1, shape(1, 8, pod_affinity=(near,))), priority=5)
    plan = decide(cluster(nodes(2, gpu=16), [*lows, first, second]))
    assert len(evicted(plan)) == 1
    assert set(nominated(plan)) == {"first-w-0"}


def test_a_gang_that_keeps_its_own_apart_makes_room_on_as_many_nodes():
    lows = [runs(gang(f"low{i}", ("w", 1, shape(1, 8)), priority=1), f"n{i}") for i in range(3)]
    own = gang(
        "high",
        ("w", 2, shape(1, 4, pod_anti_affinity=(NOT_BESIDE_X,))),
        priority=2,
        labels={"app": "x"},
    )
    plan = decide(cluster(nodes(3), [*lows, own]))
    assert len(evicted(plan)) == 2
    assert len(set(nominated(plan).values())) == 2


def test_what_is_preempted_elsewhere_can_make_room_below_a_ceiling():
    full = [Queue("default", capability=((GPU, 4),))]
    low = runs(gang("low", ("w", 1, shape(1, 4)), priority=1), "n0")
    there = NodeSelector((NodeTerm((Requirement(HOST, Operator.IN, ("n1",)),)),))
    high = gang("high", ("w", 1, shape(1, 4, node_affinity=there)), priority=2)
    plan = decide(cluster(nodes(2), [low, high], full))
    assert evicted(plan) == ["low-w-0"]
    assert [a.node for a in plan.actions if isinstance(a, Allocate)] == ["n1"]


def elastic(least: int, *running_priorities: int) -> Gang:
    """Return a gang with tasks running on n0, and a waiting one of higher priority."""
    made = gang("own", ("w", len(running_priorities) + 1, shape(1, 4)), least=least)
    *first, last = made.tasks
    run = [
        replace(running(t, "n0"), priority=p)
        for t, p in zip(first, running_priorities, strict=True)
    ]
    return replace(made, tasks=(replace(last, priority=9), *run), phase=GangPhase.RUNNING)


@pytest.mark.parametrize("solver", [True, False], ids=["cp-sat", "greedy"])
def test_an_important_task_takes_the_place_of_a_lesser_one_of_its_gang(solver: bool):
    plan = decide(cluster(nodes(1), [elastic(1, 5, 3)]), solver=solver)
    assert evicted(plan) == ["own-w-1"]
    assert nominated(plan) == {"own-w-2": "n0"}


@pytest.mark.parametrize(
    ("least", "priorities"), [(2, (5, 3)), (1, (9, 9))], ids=["minimum", "no lesser one"]
)
def test_a_gang_keeps_its_own_minimum_and_equals(least: int, priorities: tuple[int, ...]):
    assert evicted(decide(cluster(nodes(1), [elastic(least, *priorities)]))) == []


def chosen(plans: Sequence[Plan]) -> list[tuple[object, ...]]:
    return [plan.actions for plan in plans]


def test_the_same_snapshot_gives_the_same_victims():
    lows = [
        runs(gang(f"low{i}", ("w", 1, shape(1, 2)), priority=1), f"n{i % 3}") for i in range(12)
    ]
    high = gang("high", ("w", 2, shape(1, 6)), priority=5)
    before = cluster(nodes(3), [*lows, high])
    first, second = chosen([decide(before), decide(before)])
    assert first == second


def test_who_can_not_be_helped_is_told_whose_share_is_in_the_way():
    jobs = [runs(gang(f"a{i}", ("w", 1, shape(1, 1)), queue="a"), "n0") for i in range(8)]
    want = gang("b", ("w", 1, shape(1, 3)), queue="b")
    reason = decide(cluster(nodes(1), [*jobs, want], queues(a=6, b=3))).pending["ns/b"]
    assert reason.code.value == "QueueDeservedExceeded"
    assert reason.message == (
        "3 nvidia.com/gpu are requested, 0 nvidia.com/gpu will be idle, queue a may return "
        "up to 2 nvidia.com/gpu (a holds 8 nvidia.com/gpu, deserves 6 nvidia.com/gpu)"
    )


def test_queues_that_matter_less_give_back_first():
    queues = [
        Queue("lower", priority=50),
        Queue("upper", priority=100),
        Queue("owner", deserved=((GPU, 8),)),
    ]
    lower = runs(gang("lower", ("w", 1, shape(1, 8)), queue="lower", priority=9), "n0")
    upper = runs(gang("upper", ("w", 1, shape(1, 8)), queue="upper", priority=1), "n1")
    owner = gang("owner", ("w", 1, shape(1, 8)), queue="owner")
    assert evicted(decide(cluster(nodes(2), [lower, upper, owner], queues))) == ["lower-w-0"]


def test_a_queue_that_keeps_what_it_lends_is_named():
    queues = [Queue("lender", reclaimable=False), Queue("owner", deserved=((GPU, 8),))]
    lent = runs(gang("lent", ("w", 1, shape(1, 8)), queue="lender"), "n0")
    owner = gang("owner", ("w", 1, shape(1, 8)), queue="owner")
    plan = decide(cluster(nodes(1), [lent, owner], queues))
    assert evicted(plan) == []
    assert str(plan.pending["ns/owner"]) == (
        "QueueDeservedExceeded: queue lender holds 8 nvidia.com/gpu, deserves 0 nvidia.com/gpu, "
        "and is not reclaimable"
    )


def test_a_queue_that_keeps_what_it_lends_is_named_beside_lenders_that_return_too_little():
    queues = [
        Queue("keeper", reclaimable=False),
        Queue("lender", deserved=((GPU, 4),)),
        Queue("owner", deserved=((GPU, 8),)),
    ]
    kept = runs(gang("kept", ("w", 1, shape(1, 8)), queue="keeper"), "n0")
    jobs = [runs(gang(f"l{i}", ("w", 1, shape(1, 1)), queue="lender"), "n1") for i in range(5)]
    owner = gang("owner", ("w", 1, shape(1, 8)), queue="owner")
    plan = decide(cluster(nodes(2), [kept, *jobs, owner], queues))
    assert evicted(plan) == []
    assert str(plan.pending["ns/owner"]) == (
        "QueueDeservedExceeded: 8 nvidia.com/gpu are requested, 3 nvidia.com/gpu will be idle, "
        "queue lender may return up to 1 nvidia.com/gpu (lender holds 5 nvidia.com/gpu, deserves "
        "4 nvidia.com/gpu); queue keeper holds 8 nvidia.com/gpu, deserves 0 nvidia.com/gpu, "
        "and is not reclaimable"
    )


def test_a_card_is_cleared_although_the_node_has_as_much_free_in_sum():
    shared_gpus = tuple(SharedGpu(f"GPU-{i}", 1000, 4, "hami-core") for i in range(2))
    there = replace(node("n0", cpu=64), shared_gpus=shared_gpus)

    def holding(name: str, at: int, priority: int) -> Gang:
        half = shape(1, shared_gpus=(GpuShareRequest(1, 500),))
        made = runs(gang(name, ("w", 1, half), priority=priority), "n0")
        use = (GpuShare(f"GPU-{at}", 500),)
        return replace(made, tasks=tuple(replace(t, shared_gpus=use) for t in made.tasks))

    lows = [holding("first", 0, 2), holding("second", 1, 1)]
    high = gang("high", ("w", 1, shape(1, shared_gpus=(GpuShareRequest(1, 1000),))), priority=5)
    plan = decide(cluster([there], [*lows, high]), vgpu=True)
    assert (evicted(plan), nominated(plan)) == (["second-w-0"], {"high-w-0": "n0"})
    level = next(r for r in plan.certificate.levels if r.name == "victims")
    assert level.status is LevelStatus.OPTIMAL


def test_a_volume_that_can_be_reached_from_some_nodes_gets_room_there():
    lows = [runs(gang(f"low{i}", ("w", 1, shape(1, 8)), priority=1 + i), f"n{i}") for i in range(2)]
    there = NodeSelector((NodeTerm((Requirement(HOST, Operator.IN, ("n1",)),)),))
    high = gang("high", ("w", 1, shape(1, 8, claims=("ns/data",))), priority=5)
    before = cluster(nodes(2), [*lows, high])
    plan = decide(replace(before, claims={"ns/data": Claim("ns/data", there)}))
    assert (evicted(plan), nominated(plan)) == (["low1-w-0"], {"high-w-0": "n1"})


# --- parts of GPUs -------------------------------------------------------------------------------


def part(milli: int) -> TaskShape:
    return shape(1, device=DeviceRequest(1, milli))


def test_parts_of_gpus_are_freed_and_kept_for_whom_they_were_freed():
    """The remaining pods use 300 thousandths each: on one GPU, they leave no capacity for 700."""
    stay = [runs(gang(f"stay{i}", ("w", 1, part(300)), priority=9), "n0") for i in range(2)]
    low = runs(gang("low", ("w", 1, part(700)), priority=1), "n0")
    high = gang("high", ("w", 2, part(700)), priority=5)
    before = cluster(nodes(1, gpu=2), [*stay, low, high])
    plan = decide(before)
    assert evicted(plan) == ["low-w-0"]
    assert nominated(plan) == {"high-w-0": "n0", "high-w-1": "n0"}
    named = tuple(replace(t, nominated_node="n0") for t in high.tasks)
    waiting = with_terminating(before, {"ns/low-w-0"})
    gangs = tuple(replace(g, tasks=named) if g.key == high.key else g for g in waiting.gangs)
    again = decide(replace(waiting, gangs=gangs))
    assert (evicted(again), nominated(again)) == ([], nominated(plan))
    gone = decide(cluster(nodes(1, gpu=2), [*stay, replace(high, tasks=named)]))
    assert [a.node for a in gone.actions if isinstance(a, Allocate)] == ["n0", "n0"]
    assert evicted(gone) == []


def test_the_very_gpu_is_freed_that_is_needed():
    """The GPU holds 500, 300 and 200 thousandths, so 800 require the first two pods to leave."""
    lows = [
        runs(gang(f"low{i}", ("w", 1, part(milli)), priority=1), "n0")
        for i, milli in enumerate([500, 300, 200])
    ]
    high = gang("high", ("w", 1, part(800)), priority=2)
    plan = decide(cluster(nodes(1, gpu=1), [*lows, high]))
    assert evicted(plan) == ["low0-w-0", "low1-w-0"]
    (level,) = [r for r in plan.certificate.levels if r.name == "victims"]
    assert (level.value, level.bound, level.status) == (2, 2, LevelStatus.OPTIMAL)


def test_nobody_leaves_for_a_part_that_no_eviction_frees():
    keep = runs(gang("keep", ("w", 1, part(400)), priority=9), "n0")
    low = runs(gang("low", ("w", 1, part(300)), priority=1), "n0")
    high = gang("high", ("w", 1, part(700)), priority=5)
    assert evicted(decide(cluster(nodes(1, gpu=1), [keep, low, high]))) == []


def test_a_whole_gpu_is_freed_of_all_who_share_it():
    lows = [runs(gang(f"low{i}", ("w", 1, part(300)), priority=1), "n0") for i in range(3)]
    high = gang("high", ("w", 1, shape(1, 1)), priority=2)
    plan = decide(cluster(nodes(1, gpu=1), [*lows, high]))
    assert len(evicted(plan)) == 3
