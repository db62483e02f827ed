"""Tests of bids of one session: joint reclaims of queues, and gangs that lose pods."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.cluster.snapshot import Queue
from optsched.plugins.eviction.entitled import Entitled
from optsched.plugins.verification.verify import verify_actions
from optsched.policy.load import parse_policy
from optsched.session.session import SessionContext, run_session
from optsched.session.solve_settings import limits_of
from optsched.solver.cpsat.process import InProcess
from tests.support.evictions import MODEL
from tests.support.small import CPU, GPU, cluster, gang, node, runs, shape

if TYPE_CHECKING:
    from optsched.cluster.decisions import Action, Plan
    from optsched.cluster.snapshot import Gang, Snapshot

GROWING = "{name: gang, enableJobStarving: false}"


def decide(
    snapshot: Snapshot, shares: str = "capacity", *, solver: bool = True, model: str = MODEL
) -> Plan:
    """Return the plan, and check that the verifier refused no candidate."""
    policy = parse_policy(model.replace("SHARES", shares), "test.yaml")
    limits = limits_of(policy, None, deterministic=True, seed=0, gap=None)
    around = SessionContext(solver=InProcess() if solver else None, limits=limits)
    report = run_session(snapshot, policy, around)
    assert report.trace.violations == ()
    return report.plan


def broken(snapshot: Snapshot, *actions: Action) -> list[str]:
    """Return the violations that the rule on evictions reports about actions."""
    rules = parse_policy(MODEL.replace("SHARES", "capacity"), "test.yaml").rules
    guarded = rules.guarded_by(Entitled(rules))
    found = verify_actions(snapshot, actions, guarded)
    return [f"{v.where}: {v.detail}" for v in found if v.rule == "entitled"]


def evicted(plan: Plan) -> list[str]:
    return sorted(a.task.removeprefix("ns/") for a in plan.actions if isinstance(a, Evict))


def placed(plan: Plan) -> dict[str, str]:
    coming = (a for a in plan.actions if isinstance(a, Allocate | Nominate))
    return {a.task.removeprefix("ns/"): a.node for a in coming}


def due(**gpus: int) -> list[Queue]:
    return [Queue(name, deserved=((GPU, n),)) for name, n in sorted(gpus.items())]


both_engines = pytest.mark.parametrize("solver", [True, False], ids=["cp-sat", "greedy"])


@both_engines
@pytest.mark.parametrize("shares", ["capacity", "proportion"])
def test_what_one_gang_leaves_of_a_reclaimed_node_is_not_its_queues(shares: str, solver: bool):
    train = runs(gang("train", ("w", 1, shape(1, 8)), queue="a"), "n0")
    jobs = [gang(f"job{i}", ("w", 1, shape(1, 4)), queue="b") for i in range(2)]
    before = cluster([node("n0", cpu=64, gpu=8)], [train, *jobs], due(a=4, b=4))
    plan = decide(before, shares, solver=solver)
    assert evicted(plan) == ["train-w-0"]
    assert placed(plan) == {"job0-w-0": "n0"}
    assert plan.pending["ns/job1"].code.value == "QueueDeservedExceeded"


def test_the_rest_starts_where_it_is_due_too():
    train = runs(gang("train", ("w", 1, shape(1, 8)), queue="a"), "n0")
    jobs = [gang(f"job{i}", ("w", 1, shape(1, 4)), queue="b") for i in range(2)]
    before = cluster([node("n0", cpu=64, gpu=8)], [train, *jobs], due(a=0, b=8))
    assert len(placed(decide(before))) == 2


def test_a_bid_that_waits_stops_no_other_one():
    train = runs(gang("train", ("w", 1, shape(1, 8)), queue="a"), "n0")
    sweep = runs(gang("sweep", ("w", 1, shape(1, 8)), queue="c"), "n1")
    jobs = [gang(f"job{i}", ("w", 1, shape(1, 4)), queue="b") for i in range(2)]
    hotfix = gang("hotfix", ("w", 1, shape(1, 8)), queue="c", priority=9)
    nodes = [node(f"n{i}", cpu=64, gpu=8) for i in range(2)]
    plan = decide(cluster(nodes, [train, sweep, *jobs, hotfix], due(a=4, b=4, c=8)))
    assert evicted(plan) == ["sweep-w-0", "train-w-0"]
    assert placed(plan) == {"hotfix-w-0": "n1", "job0-w-0": "n0"}


def test_a_lender_that_grows_in_the_session_lends_as_much_more():
    old = runs(gang("old", ("w", 1, shape(1, 2)), queue="a", priority=1), "n1")
    first = gang("first", ("w", 1, shape(1, 2)), queue="a", priority=9)
    second = gang("second", ("w", 1, shape(1, 2)), queue="b", priority=9)
    nodes = [node(f"n{i}", cpu=64, gpu=2) for i in range(2)]
    plan = decide(cluster(nodes, [old, first, second], due(a=2, b=2)))
    assert evicted(plan) == ["old-w-0"]
    assert sorted(placed(plan)) == ["first-w-0", "second-w-0"]


@both_engines
def test_a_gang_that_loses_pods_does_not_bid(solver: bool):
    low = runs(gang("low", ("w", 3, shape(1))), "n0", "n0", "n0")
    mid = runs(gang("mid", ("w", 2, shape(1)), priority=5), "n0")
    high = gang("high", ("w", 1, shape(1)), priority=9)
    plan = decide(cluster([node("n0")], [low, mid, high], [Queue("default")]), solver=solver)
    # Sequentially, `high` takes the capacity of `mid`. Jointly, both start in place of `low`.
    assert evicted(plan) == (["low-w-0", "low-w-1", "low-w-2"] if solver else ["mid-w-0"])
    assert placed(plan) == {"high-w-0": "n0"} | ({"mid-w-1": "n0"} if solver else {})


# --- idle room first, minimums, growth -----------------------------------------------------------


@both_engines
def test_idle_room_is_used_before_pods_leave(solver: bool):
    low = [runs(gang(f"low{i}", ("w", 1, shape(2)), priority=1), "n0") for i in range(2)]
    high = gang("high", ("w", 2, shape(2)), priority=9)
    keep = runs(gang("keep", ("w", 1, shape(2)), priority=9), "n1")
    nodes = [node("n0"), node("n1")]
    plan = decide(cluster(nodes, [*low, keep, high], [Queue("default")]), solver=solver)
    assert len(evicted(plan)) == 1
    assert sorted(placed(plan).values()) == ["n0", "n1"]


@both_engines
def test_no_pod_leaves_for_what_is_more_than_the_minimum(solver: bool):
    low = [runs(gang(f"low{i}", ("w", 1, shape(1)), priority=1), "n0") for i in range(4)]
    high = gang("high", ("w", 4, shape(1)), least=2, priority=9)
    plan = decide(cluster([node("n0")], [*low, high], [Queue("default")]), solver=solver)
    assert len(evicted(plan)) == 2
    again = runs(high, "n1", "n1")
    plan = decide(cluster([node("n0"), node("n1", 2)], [*low, again], [Queue("default")]))
    assert evicted(plan) == []


def test_a_gang_that_lost_a_part_of_its_minimum_preempts_for_that():
    low = [runs(gang(f"low{i}", ("w", 1, shape(1)), priority=1), "n0") for i in range(4)]
    high = runs(gang("high", ("w", 4, shape(1)), least=2, priority=9), "n1")
    plan = decide(cluster([node("n0"), node("n1", 1)], [*low, high], [Queue("default")]))
    assert len(evicted(plan)) == 1


def test_growth_takes_idle_room_and_the_start_waits_for_none_of_it():
    low = [runs(gang(f"low{i}", ("w", 1, shape(1)), priority=1), "n0") for i in range(4)]
    high = gang("high", ("w", 4, shape(1)), least=1, priority=9)
    plan = decide(cluster([node("n0"), node("n1", 2)], [*low, high], [Queue("default")]))
    assert evicted(plan) == []
    assert [a.node for a in plan.actions if isinstance(a, Allocate)] == ["n1", "n1"]


def test_a_policy_may_serve_growth_by_preempting():
    low = [runs(gang(f"low{i}", ("w", 1, shape(1)), priority=1), "n0") for i in range(4)]
    high = gang("high", ("w", 4, shape(1)), least=2, priority=9)
    before = cluster([node("n0")], [*low, high], [Queue("default")])
    assert len(evicted(decide(before, model=MODEL.replace("{name: gang}", GROWING)))) == 4


@pytest.mark.parametrize(("solver", "size"), [(True, 1), (False, 5)], ids=["cp-sat", "greedy"])
@pytest.mark.parametrize("least", [1, 4], ids=["minMember 1", "minMember 4"])
def test_reclaim_serves_every_pod_up_to_what_is_due(least: int, solver: bool, size: int):
    shares = [Queue("a", weight=3), Queue("b", weight=1), Queue("c", weight=1)]
    number = 20 * size
    first = gang("first", ("w", number, shape(1)), least=1, queue="b")
    late = [gang(name, ("w", number, shape(1)), least=least, queue=name) for name in "ac"]
    nodes = [node(f"n{i}", 10) for i in range(number // 10)]
    nodes = [replace(n, allocatable=((CPU, 10_000), ("pods", 99))) for n in nodes]
    there = [f"n{i // 10}" for i in range(number)]
    plan = decide(cluster(nodes, [runs(first, *there), *late], shares), "proportion", solver=solver)
    assert len(evicted(plan)) == 16 * size
    gangs = [key.partition("-")[0] for key in placed(plan)]
    assert (gangs.count("a"), gangs.count("c")) == (12 * size, 4 * size)


# --- gangs that leave whole ----------------------------------------------------------------------


@both_engines
def test_among_as_few_victims_gangs_survive(solver: bool):
    whole = runs(gang("whole", ("w", 1, shape(2)), priority=1), "n0")
    spare = runs(gang("spare", ("w", 3, shape(2)), least=1, priority=5), "n1", "n1", "n0")
    # The greedy search considers nodes one after another.
    number = 2 if solver else 1
    high = gang("high", ("w", number, shape(2)), priority=9)
    before = cluster([node("n0"), node("n1")], [whole, spare, high], [Queue("default")])
    plan = decide(before, solver=solver)
    assert len(evicted(plan)) == number
    assert {key.partition("-")[0] for key in evicted(plan)} == {"spare"}
    assert "gangs that leave whole" not in [r.name for r in plan.certificate.levels]


def test_the_certificate_counts_gangs_that_leave_whole():
    lows = [runs(gang(f"low{i}", ("w", 2, shape(2)), priority=1), "n0", "n1") for i in range(2)]
    high = gang("high", ("w", 1, shape(4)), priority=9)
    plan = decide(cluster([node("n0"), node("n1")], [*lows, high], [Queue("default")]))
    (level,) = [r for r in plan.certificate.levels if r.name == "gangs that leave whole"]
    assert (level.value, level.unit) == (2, "gangs")
    names = [r.name for r in plan.certificate.levels]
    assert names.index("gangs that leave whole") == names.index("victims") + 1


# --- what queues return --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("deserved", "gpu", "leaves"),
    [
        (((GPU, 8),), 8, False),  # the request is within the listed amounts
        (((GPU, 4),), 8, True),  # the use exceeds the listed amounts without a request of GPUs
        (((GPU, 8),), 0, True),  # the queue uses none of the listed resources
        (((CPU, 8000), (GPU, 8)), 8, False),
        (((CPU, 4000), (GPU, 8)), 8, True),
    ],
)
def test_a_pod_returns_what_it_uses_and_its_queue_deserves(
    deserved: tuple[tuple[str, int], ...], gpu: int, leaves: bool
):
    train = runs(gang("train", ("w", 1, shape(8, gpu)), queue="a"), "n0")
    etl = gang("etl", ("w", 1, shape(1)), queue="b")
    shares = [Queue("a", deserved=deserved), Queue("b", deserved=((CPU, 4000),))]
    plan = decide(cluster([node("n0", cpu=8, gpu=8)], [train, etl], shares))
    assert evicted(plan) == (["train-w-0"] if leaves else [])


def test_pods_that_use_nothing_of_what_is_asked_for_stay():
    gpu_pod = shape(0, 1)
    train = runs(
        gang("train", ("cpu", 1, shape(2)), ("gpu", 1, gpu_pod), least=1, queue="a"), "n0", "n0"
    )
    etl = gang("etl", ("w", 1, shape(2)), queue="b")
    shares = [Queue("a"), Queue("b", deserved=((CPU, 4000),))]
    before = cluster([node("n0", cpu=2, gpu=8)], [train, etl], shares)
    assert evicted(decide(before)) == ["train-cpu-0"]
    together = replace(train, min_member=2)
    whole = cluster([node("n0", cpu=2, gpu=8)], [together, etl], shares)
    assert sorted(evicted(decide(whole))) == ["train-cpu-0", "train-gpu-0"]
    actions = [Evict(t.key, "n0", "reclaim", "ns/etl") for t in train.tasks]
    assert broken(before, *actions, Nominate("ns/etl-w-0", "n0", "ns/etl")) == [
        "task ns/train-gpu-0: uses none of the requested resources, reclaim for ns/etl"
    ]


# --- the verifier --------------------------------------------------------------------------------


def two_lenders() -> tuple[Snapshot, list[Action]]:
    """Return a state in which queue a returns two GPUs to b and then two to c.

    Queue c requests four GPUs, and a deserves 4 of its 8.
    """
    lent = [runs(gang(f"a{i}", ("w", 1, shape(1, 2)), queue="a"), "n0") for i in range(4)]
    want = [
        gang(name, ("w", n, shape(1, 2)), least=1, queue=name) for name, n in (("b", 1), ("c", 2))
    ]
    before = cluster([node("n0", cpu=64, gpu=8)], [*lent, *want], due(a=4, b=2, c=4))
    actions: list[Action] = [
        Evict("ns/a0-w-0", "n0", "reclaim", "ns/b"),
        Evict("ns/a1-w-0", "n0", "reclaim", "ns/c"),
        Nominate("ns/b-w-0", "n0", "ns/b"),
        Nominate("ns/c-w-0", "n0", "ns/c"),
    ]
    return before, actions


def test_evictions_are_judged_in_the_order_of_the_plan():
    before, actions = two_lenders()
    assert broken(before, *actions) == []
    later = [Evict("ns/a2-w-0", "n0", "reclaim", "ns/c"), Nominate("ns/c-w-1", "n0", "ns/c")]
    assert broken(before, *actions, *later) == [
        "queue a: would return more than it holds above its deserved share, reclaim for ns/c"
    ]


def test_what_a_lender_gains_counts_as_held():
    before, actions = two_lenders()
    more = gang("more", ("w", 1, shape(1, 2)), queue="a", priority=3)
    before = replace(
        before,
        gangs=tuple(sorted((*before.gangs, more), key=lambda g: g.key)),
        nodes=(*before.nodes, node("n1", cpu=64, gpu=2)),
    )
    later = [Evict("ns/a2-w-0", "n0", "reclaim", "ns/c"), Nominate("ns/c-w-1", "n0", "ns/c")]
    assert broken(before, *actions, *later, Allocate("ns/more-w-0", "n1", "ns/more")) == []


class TestRoomThatTheGangDoesNotUse:
    """An eviction frees capacity for its preemptor, not for other gangs."""

    def lenders(self, *wants: Gang) -> Snapshot:
        """Return a snapshot in which queue a deserves one GPU and holds four on n0; n1 is idle."""
        lent = runs(gang("lent", ("w", 4, shape(1, 1)), least=1, queue="a"), *["n0"] * 4)
        nodes = [node("n0", cpu=4, gpu=4), node("n1", cpu=4, gpu=0)]
        shares = [Queue(q, deserved=((CPU, n * 1000), (GPU, n))) for q, n in (("a", 1), ("b", 4))]
        return cluster(nodes, [lent, *wants], [*shares, Queue("c")])

    def evict(self, *tasks: int) -> list[Action]:
        """Return evictions that reclaim tasks of `lent` for gang `mine`."""
        return [Evict(f"ns/lent-w-{i}", "n0", "reclaim", "ns/mine") for i in tasks]

    def test_a_gang_that_sits_elsewhere(self):
        mine = gang("mine", ("w", 1, shape(1)), queue="b")
        other = gang("other", ("w", 1, shape(1, 1)), queue="c")
        taken = [
            Allocate("ns/mine-w-0", "n1", "ns/mine"),
            Nominate("ns/other-w-0", "n0", "ns/other"),
        ]
        assert broken(self.lenders(mine, other), *self.evict(0), *taken) == [
            "task ns/lent-w-0: evicted for ns/mine, which does not use the released resources"
        ]

    def test_more_than_the_gang_takes(self):
        mine = gang("mine", ("w", 1, shape(1, 1)), queue="b")
        before = self.lenders(mine)
        takes = Nominate("ns/mine-w-0", "n0", "ns/mine")
        assert broken(before, *self.evict(0), takes) == []
        assert broken(before, *self.evict(0, 1), takes) == [
            "task ns/lent-w-1: evicted for ns/mine, which does not use the released resources"
        ]

    def test_as_much_as_all_its_tasks_take(self):
        mine = gang("mine", ("w", 2, shape(1, 1)), queue="b")
        takes = [Nominate(f"ns/mine-w-{i}", "n0", "ns/mine") for i in range(2)]
        assert broken(self.lenders(mine), *self.evict(0, 1), *takes) == []

    def test_a_gang_that_leaves_whole_needs_it_on_one_of_its_nodes(self):
        whole = runs(gang("lent", ("w", 2, shape(1, 1)), queue="a"), "n0", "n1")
        mine = gang("mine", ("w", 1, shape(4)), queue="b")
        nodes = [node("n0", cpu=4, gpu=1), node("n1", cpu=4, gpu=1), node("n2", cpu=4)]
        shares = [Queue("a"), Queue("b", deserved=((CPU, 4000),))]
        before = cluster(nodes, [whole, mine], shares)
        evictions = [Evict(f"ns/lent-w-{i}", f"n{i}", "reclaim", "ns/mine") for i in range(2)]
        assert broken(before, *evictions, Nominate("ns/mine-w-0", "n1", "ns/mine")) == []
        assert broken(before, *evictions, Allocate("ns/mine-w-0", "n2", "ns/mine")) == [
            "task ns/lent-w-0: evicted for ns/mine, which does not use the released resources"
        ]

    def test_a_gang_that_can_spare_what_is_needed_keeps_the_rest(self):
        """The gang `lent` can spare one task, which is enough for `mine`; two tasks must stay."""
        lent = runs(gang("lent", ("w", 3, shape(1)), least=2, queue="a"), "n0", "n1", "n2")
        mine = gang("mine", ("w", 1, shape(1)), queue="b")
        other = gang("other", ("w", 1, shape(1)), queue="c")
        nodes = [node(f"n{i}", cpu=1) for i in range(3)]
        shares = [Queue("a"), Queue("b", deserved=((CPU, 3000),)), Queue("c")]
        before = cluster(nodes, [lent, mine, other], shares)
        evictions = [Evict(f"ns/lent-w-{i}", f"n{i}", "reclaim", "ns/mine") for i in range(3)]
        mine_comes = Nominate("ns/mine-w-0", "n0", "ns/mine")
        other_comes = Nominate("ns/other-w-0", "n1", "ns/other")
        assert broken(before, evictions[0], mine_comes) == []
        assert broken(before, *evictions, mine_comes, other_comes) == [
            "task ns/lent-w-1: evicted for ns/mine, which does not use the released resources"
        ]

    def test_a_quota_of_the_queue_needs_it_on_any_node(self):
        low = runs(gang("low", ("w", 1, shape(2))), "n0")
        high = gang("high", ("w", 1, shape(2)), priority=9)
        nodes = [node("n0", cpu=2), node("n1", cpu=2)]
        actions = [
            Evict("ns/low-w-0", "n0", "preempt", "ns/high"),
            Allocate("ns/high-w-0", "n1", "ns/high"),
        ]
        free = cluster(nodes, [low, high], [Queue("default")])
        full = cluster(nodes, [low, high], [Queue("default", capability=((CPU, 2000),))])
        assert broken(full, *actions) == []
        assert broken(free, *actions) == [
            "task ns/low-w-0: evicted for ns/high, which does not use the released resources"
        ]


def test_a_gang_that_bids_and_loses_is_refused():
    low = runs(gang("low", ("w", 1, shape(1)), priority=1), "n0")
    mid = runs(gang("mid", ("w", 2, shape(1)), least=1, priority=5), "n0")
    high = gang("high", ("w", 1, shape(1)), priority=9)
    before = cluster([node("n0", cpu=2)], [low, mid, high], [Queue("default")])
    actions = [
        Evict("ns/low-w-0", "n0", "preempt", "ns/mid"),
        Evict("ns/mid-w-0", "n0", "preempt", "ns/high"),
        Nominate("ns/mid-w-1", "n0", "ns/mid"),
        Nominate("ns/high-w-0", "n0", "ns/high"),
    ]
    assert "gang ns/mid: has pods evicted for itself and loses pods to ns/high" in broken(
        before, *actions
    )


def test_a_gang_that_has_its_minimum_may_not_preempt():
    low = runs(gang("low", ("w", 1, shape(1)), priority=1), "n0")
    high = runs(gang("high", ("w", 2, shape(1)), least=1, priority=9), "n0")
    before = cluster([node("n0", cpu=2)], [low, high], [Queue("default")])
    actions = [
        Evict("ns/low-w-0", "n0", "preempt", "ns/high"),
        Nominate("ns/high-w-1", "n0", "ns/high"),
    ]
    assert broken(before, *actions) == [
        "task ns/low-w-0: preempted for ns/high, which has enough pods for its minimum"
    ]
