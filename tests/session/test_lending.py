"""Idle capacity is lent beyond the deserved amounts, and returned when a queue reclaims it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from optsched.cluster.decisions import Allocate, Evict, LevelStatus, Nominate, Plan
from optsched.cluster.relocation import with_terminating
from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.snapshot import Budget, Gang, GangPhase, Queue, Snapshot
from optsched.cluster.task import TaskStatus
from optsched.plugins.verification.verify import verify_actions
from optsched.policy.load import parse_policy
from optsched.session.lending import LENT_FIRST
from optsched.session.session import Report, SessionContext, judge_actions, run_session
from optsched.solver.cpsat.level_model import Limits
from optsched.solver.cpsat.process import InProcess
from tests.support.effort import nightly_except
from tests.support.small import cluster, gang, node, running, runs, shape

MODEL = """
apiVersion: optsched.io/v1alpha1
kind: Model
name: test
meaning: For tests.
actions: ACTIONS
tiers:
- rules: [{name: priority}, {name: gang, enablePreemptable: false}, {name: conformance}]
- rules:
  - {name: predicates}
  - {name: proportion, arguments: {proportion.lendIdle: LENDS}}
  - {name: nodeorder}
levels: [guarantee, admission, fair-share, tasks, node-score]
solver: {engine: ENGINE, budget: 400ms}
"""
ALL = "[enqueue, allocate, preempt, reclaim, backfill]"
EXACT = Limits(budget_ms=None, num_workers=1)
TWO = [Queue("train", weight=4), Queue("dev", weight=1)]
"""Of 32 GPUs that both ask for, train deserves 26 and dev 6."""


def policy(lends: str = "true", actions: str = ALL, engine: str = "cpsat"):
    text = MODEL.replace("LENDS", lends).replace("ACTIONS", actions).replace("ENGINE", engine)
    return parse_policy(text, "test.yaml")


def session(snapshot: Snapshot, *, solver: bool = True, **fields: str) -> Report:
    around = SessionContext(solver=InProcess() if solver else None, limits=EXACT)
    return run_session(snapshot, policy(**fields), around)


def decide(snapshot: Snapshot, *, solver: bool = True, **fields: str) -> Plan:
    report = session(snapshot, solver=solver, **fields)
    assert report.trace.violations == ()
    return report.plan


def nodes(number: int = 4):
    return [node(f"n{i}", cpu=64, gpu=8) for i in range(number)]


def waits(name: str, queue: str, number: int = 1, gpu: int = 8, **fields: object) -> Gang:
    return gang(name, ("w", number, shape(1, gpu)), queue=queue, **fields)


def busy(number: int = 3) -> Gang:
    return runs(waits("r", "train", number), *(f"n{i}" for i in range(number)))


def idle_case(*more: Gang, queues: list[Queue] = TWO) -> Snapshot:
    """Return four nodes where `train` runs on three, `big` waits for two, and `exp` for one."""
    gangs = [busy(), waits("big", "train", 2), *(more or [waits("exp", "dev")])]
    return cluster(nodes(), gangs, queues)


def started(plan: Plan) -> list[str]:
    return sorted({a.gang.removeprefix("ns/") for a in plan.actions if isinstance(a, Allocate)})


def evicted(plan: Plan) -> list[str]:
    return sorted(a.task.removeprefix("ns/") for a in plan.actions if isinstance(a, Evict))


def lent(plan: Plan) -> list[tuple[int, int | None, LevelStatus]]:
    levels = [r for r in plan.certificate.levels if r.name.startswith("lent, ")]
    return [(r.value, r.bound, r.status) for r in levels]


def carried_out(snapshot: Snapshot, plan: Plan) -> Snapshot:
    """Return the snapshot after a plan's evictions, with bound and nominated tasks running."""
    gone = {a.task for a in plan.actions if isinstance(a, Evict)}
    come = {a.task: a.node for a in plan.actions if isinstance(a, Allocate | Nominate)}
    gangs = []
    for each in snapshot.gangs:
        tasks = tuple(
            replace(t, status=TaskStatus.PENDING, node="")
            if t.key in gone
            else running(t, come[t.key])
            if t.key in come
            else t
            for t in each.tasks
        )
        stands = any(t.status is TaskStatus.RUNNING for t in tasks)
        phase = GangPhase.RUNNING if stands else GangPhase.INQUEUE
        gangs.append(replace(each, tasks=tasks, phase=phase))
    bare = [replace(n, residents=()) for n in snapshot.nodes]
    return cluster(bare, gangs, [q for q in snapshot.queues if q.name not in ("default", "root")])


# --- what is lent --------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [True, False], ids=["cp-sat", "greedy"])
def test_idle_devices_are_lent(solver: bool) -> None:
    plan = decide(idle_case(), solver=solver)
    assert started(plan) == ["exp"]
    assert evicted(plan) == []
    assert lent(plan) == [(8, 8, LevelStatus.OPTIMAL)]


@pytest.mark.parametrize(
    "fields",
    [
        {"lends": "false"},
        {"actions": "[enqueue, allocate, preempt, backfill]"},
        {"engine": "none"},
    ],
    ids=["not asked for", "without reclaim", "the pipeline alone"],
)
def test_nothing_is_lent_that_could_not_come_back_and_the_plan_says_so(
    fields: dict[str, str],
) -> None:
    plan = decide(idle_case(), **fields)
    assert started(plan) == []
    assert lent(plan) == []
    needs = "proportion.lendIdle, the action reclaim and a solver"
    why = f"proportion lends nothing: lending requires {needs}"
    assert plan.certificate.kept_idle == (
        f"proportion keeps 1 cpu, 8 nvidia.com/gpu idle, which gangs that wait could use: {why}",
    )
    reasons = {key: (r.code.value, r.message) for key, r in plan.pending.items()}
    code, message = reasons["ns/exp"]
    assert code == "QueueDeservedExceeded"
    assert message.endswith(f"it fits into idle capacity, but {why}")
    assert "idle" not in reasons["ns/big"][1]


NOT_RECLAIMABLE = [TWO[0], replace(TWO[1], reclaimable=False)]
PROTECTING = Budget(
    "ns/pdb", LabelSelector((Requirement("app", Operator.IN, ("exp",)),)), allowed=1
)


@pytest.mark.parametrize(
    ("firm", "queues", "why"),
    [
        (waits("exp", "dev"), NOT_RECLAIMABLE, "queue dev is not reclaimable"),
        (
            replace(
                waits("exp", "dev"),
                tasks=tuple(replace(t, preemptable=False) for t in waits("exp", "dev").tasks),
            ),
            TWO,
            "its pods are not preemptable",
        ),
        (
            replace(
                waits("exp", "dev"),
                tasks=tuple(replace(t, cooldown_ms=1) for t in waits("exp", "dev").tasks),
            ),
            TWO,
            "its pods have a cooldown before eviction",
        ),
    ],
)
def test_what_reclaim_can_not_evict_does_not_borrow(
    firm: Gang, queues: list[Queue], why: str
) -> None:
    plan = decide(idle_case(firm, queues=queues))
    assert started(plan) == []
    assert plan.pending["ns/exp"].message.endswith(f"it fits into idle capacity, but {why}")
    assert plan.certificate.kept_idle[0].endswith(why)


def test_a_disruption_budget_keeps_a_gang_from_borrowing() -> None:
    snapshot = replace(idle_case(waits("exp", "dev", labels={"app": "exp"})), budgets=(PROTECTING,))
    plan = decide(snapshot)
    assert started(plan) == []
    assert plan.certificate.kept_idle[0].endswith("a disruption budget protects its pods")


def test_a_capability_and_the_guarantees_of_others_bind_loans() -> None:
    capped = [TWO[0], replace(TWO[1], capability=(("nvidia.com/gpu", 7),))]
    assert started(decide(idle_case(queues=capped))) == []
    kept = [*TWO, Queue("kept", guarantee=(("nvidia.com/gpu", 1),))]
    plan = decide(idle_case(queues=kept))
    assert started(plan) == []
    assert plan.pending["ns/exp"].code.value == "ReservedForGuarantees"


def test_what_queues_deserve_comes_before_loans() -> None:
    # dev deserves 6 GPUs: two gangs of 2 GPUs are within that, but not the third or one of 8.
    own = [waits(f"own{i}", "dev", gpu=2) for i in range(2)]
    plan = decide(idle_case(waits("exp", "dev"), *own))
    assert started(plan) == ["own0", "own1"]
    assert lent(plan)[0][0] == 0
    small = waits("small", "dev", gpu=4)
    assert started(decide(idle_case(small, *own))) == ["own0", "own1", "small"]


@pytest.mark.parametrize("solver", [True, False])
@pytest.mark.parametrize("loss", ["not ready", "shrunk"])
def test_a_queue_without_rivals_borrows_while_pods_fill_its_share_on_lost_nodes(
    solver: bool, loss: str
) -> None:
    lost = node("n1", cpu=64, gpu=8, ready=False) if loss == "not ready" else node("n1", cpu=64)
    old = runs(waits("old", "default"), "n1")
    gangs = [old, waits("new", "default"), waits("more", "default", gpu=1)]
    plan = decide(cluster([node("n0", cpu=64, gpu=8), lost], gangs), solver=solver)
    assert set(plan.binds.values()) == {"n0"}
    if loss == "not ready":
        whole = [node("n0", cpu=64, gpu=8), replace(lost, ready=True)]
        plan = decide(cluster(whole, gangs), solver=solver)
        assert not any(result.name.startswith("lent") for result in plan.certificate.levels)


def test_growth_of_a_running_gang_is_lent_to() -> None:
    grown = gang("exp", ("w", 4, shape(1, 4)), least=1, queue="dev")
    first = running(grown.tasks[0], "n3")
    grown = replace(grown, tasks=(first, *grown.tasks[1:]), phase=GangPhase.RUNNING)
    plan = decide(idle_case(grown))
    assert len(plan.binds) == 1
    assert lent(plan)[0][0] == 4


def test_growth_beyond_the_share_waits_for_the_share_in_the_session_of_the_start() -> None:
    grows = gang("exp", ("w", 3, shape(1, 4)), least=1, queue="dev")
    snapshot = idle_case(grows)
    plan = decide(snapshot)
    assert plan.binds == {"ns/exp-w-0": "n3"}
    assert str(plan.pending["ns/exp"]) == (
        "QueueDeservedExceeded: queue dev deserves 6 nvidia.com/gpu by its weight, "
        "4 nvidia.com/gpu are in use, 4 nvidia.com/gpu are requested"
    )
    assert plan.certificate.kept_idle == ()
    assert "ns/exp-w-1" in decide(carried_out(snapshot, plan)).binds


def test_the_more_important_gang_borrows_first() -> None:
    gangs = [waits("low", "dev"), waits("high", "dev", priority=5)]
    plan = decide(idle_case(*gangs))
    assert started(plan) == ["high"]


# --- what comes back -----------------------------------------------------------------------------


@pytest.mark.parametrize("solver", [True, False], ids=["cp-sat", "greedy"])
def test_an_entitled_gang_reclaims_what_was_lent_and_it_is_not_lent_again(solver: bool) -> None:
    queues = [Queue("train", weight=1), Queue("dev", weight=1)]
    exp = [waits(f"exp{i}", "dev") for i in range(3)]
    snapshot = cluster(nodes(), [busy(1), *exp], queues)
    plan = decide(snapshot, solver=solver)
    assert started(plan) == ["exp0", "exp1", "exp2"]
    snapshot = carried_out(snapshot, plan)
    claim = waits("claim", "train")
    arrived = cluster(
        [replace(n, residents=()) for n in snapshot.nodes], [*snapshot.gangs, claim], queues
    )
    plan = decide(arrived, solver=solver)
    [gone] = evicted(plan)
    assert [a.gang for a in plan.actions if isinstance(a, Nominate)] == ["ns/claim"]
    assert started(plan) == []
    # While the victim terminates, its gang waits again and gets no nominated capacity.
    waiting = with_terminating(arrived, {f"ns/{gone}"})
    later = decide(waiting, solver=solver)
    assert started(later) == []
    assert [a.gang for a in later.actions if isinstance(a, Nominate)] in ([], ["ns/claim"])
    assert evicted(later) == []
    snapshot = carried_out(arrived, plan)
    # Both queues hold two nodes, and neither reclaims in ten sessions.
    for _ in range(10):
        plan = decide(snapshot, solver=solver)
        assert (started(plan), evicted(plan)) == ([], [])
        snapshot = carried_out(snapshot, plan)


# --- the verifier --------------------------------------------------------------------------------


def test_the_verifier_takes_loans_of_gangs_only_that_reclaim_can_evict() -> None:
    lending, keeping = policy("true").rules, policy("false").rules
    loan = [Allocate("ns/exp-w-0", "n3", "ns/exp")]
    assert verify_actions(idle_case(), loan, lending) == []
    [broken] = verify_actions(idle_case(), loan, keeping)
    assert (broken.rule, broken.where) == ("proportion", "queue dev")
    for snapshot in (
        idle_case(queues=NOT_RECLAIMABLE),
        replace(idle_case(waits("exp", "dev", labels={"app": "exp"})), budgets=(PROTECTING,)),
    ):
        assert {v.rule for v in verify_actions(snapshot, loan, lending)} == {"proportion"}
    # Nominated capacity is not idle.
    promise = [Nominate("ns/exp-w-0", "n3", "ns/exp")]
    assert "proportion" in {v.rule for v in verify_actions(idle_case(), promise, lending)}


@pytest.mark.parametrize("seed", nightly_except(range(24), range(8)))
def test_no_plan_with_loans_is_refused_and_none_is_worse_by_them(seed: int) -> None:
    snapshot = random_shares(np.random.default_rng(seed))
    reports = session(snapshot), session(snapshot, lends="false")
    assert reports[0].trace.violations == reports[1].trace.violations
    with_loans, without = (report.plan for report in reports)
    assert verify_actions(reports[0].problem.snapshot, with_loans.actions, policy().rules) == []
    mine = {r.name: r.value for r in with_loans.certificate.levels}
    # Loans do not change the decisions that precede them.
    assert {r.name: r.value for r in without.certificate.levels}.items() <= mine.items()
    assert set(started(without)) <= set(started(with_loans))
    assert evicted(without) == evicted(with_loans)
    for value, bound, status in lent(with_loans):
        assert bound is not None
        assert value <= bound
        assert (value == bound) is (status is LevelStatus.OPTIMAL)


def random_shares(rng: np.random.Generator) -> Snapshot:
    """Draw weighted queues, some non-reclaimable, with running and waiting gangs."""
    queues = [
        Queue(
            f"q{i}",
            weight=int(rng.integers(1, 5)),
            reclaimable=bool(rng.random() < 0.8),
            guarantee=(("nvidia.com/gpu", 2),) if rng.random() < 0.2 else (),
        )
        for i in range(int(rng.integers(2, 5)))
    ]
    room = {f"n{i}": 8 for i in range(int(rng.integers(2, 5)))}
    gangs = []
    for i in range(int(rng.integers(4, 10))):
        number, gpu = int(rng.integers(1, 4)), int(rng.choice([1, 2, 4, 8]))
        made = gang(
            f"g{i}",
            ("w", number, shape(1, gpu)),
            least=int(rng.integers(1, number + 1)),
            queue=f"q{int(rng.integers(len(queues)))}",
            priority=int(rng.integers(2)),
        )
        if rng.random() < 0.2:
            made = replace(made, tasks=tuple(replace(t, preemptable=False) for t in made.tasks))
        if rng.random() < 0.5:
            tasks = []
            for task in made.tasks:
                where = next((n for n, left in room.items() if left >= gpu), None)
                if where is not None:
                    room[where] -= gpu
                    task = running(task, where)
                tasks.append(task)
            if sum(t.status is TaskStatus.RUNNING for t in tasks) >= made.min_member:
                made = replace(made, tasks=tuple(tasks), phase=GangPhase.RUNNING)
        gangs.append(made)
    return cluster(nodes(len(room)), gangs, queues)


@pytest.mark.parametrize("lends", ["true", "false"])
@pytest.mark.parametrize("seed", range(5))
def test_a_nominated_gang_keeps_its_node_if_the_share_of_its_queue_falls(
    seed: int, lends: str
) -> None:
    """Other gangs of the queue must not use the amounts that only the nominations allow."""
    rng = np.random.default_rng(seed)
    number = int(rng.integers(1, 4))
    old = runs(waits("old", "dev", number), *(f"n{i}" for i in range(number)))
    old = replace(old, tasks=tuple(replace(t, status=TaskStatus.RELEASING) for t in old.tasks))
    new = waits("new", "dev", number, int(rng.integers(5, 9)), created_ms=1000)
    called = (replace(t, nominated_node=f"n{i}") for i, t in enumerate(new.tasks))
    new = replace(new, tasks=tuple(called))
    others = [
        waits(
            f"g{i}",
            str(rng.choice(["train", "dev"])),
            int(rng.integers(1, 3)),
            int(rng.integers(1, 9)),
            priority=int(rng.integers(0, 3)),
            created_ms=int(rng.integers(0, 2000)),
        )
        for i in range(6)
    ]
    for solver in (True, False):
        for idle in (0, 1):
            snapshot = cluster(nodes(number + idle), [old, new, *others], TWO)
            plan = decide(snapshot, solver=solver, lends=lends)
            kept = {a.task: a.node for a in plan.actions if isinstance(a, Nominate)}
            places = {t.key: kept.get(t.key, plan.binds.get(t.key)) for t in new.tasks}
            assert places == {t.key: t.nominated_node for t in new.tasks}


# --- loans before victims ------------------------------------------------------------------------


def beside_idle(*more: Gang, queues: list[Queue] = TWO, **lost: object) -> Snapshot:
    """Return a cluster where `dev` uses its share, an urgent gang waits, and `n3` is idle.

    The six pods of `old` run on `n0`, and can only be evicted together. `big` fits no nodes.
    """
    old = gang("old", ("w", 6, shape(1, 1)), queue="dev")
    gangs = [
        runs(old, *["n0"] * 6),
        runs(waits("r", "train", 2), "n1", "n2"),
        waits("big", "train", 2),
        *(more or [waits("urgent", "dev", gpu=4, priority=5)]),
    ]
    return cluster([*nodes(), *([node("n4", cpu=64, **lost)] if lost else [])], gangs, queues)


def others(queue: Queue | None) -> list[Queue]:
    return [*TWO, *([queue] if queue else [])]


LOST: list[dict[str, object]] = [{}, {"gpu": 8, "ready": False}, {"gpu": 0}]
MORE = [None, Queue("empty", weight=3), Queue("kept", reclaimable=False)]
SIZES = [(1, 4), (2, 3), (1, 6)]
# Every two values of different parameters meet in one of these.
PAIRS = [(LOST[i], MORE[j], SIZES[(i + j) % 3]) for i in range(3) for j in range(3)]


@pytest.mark.parametrize("given", nightly_except(product(LOST, MORE, SIZES), PAIRS))
def test_a_gang_borrows_an_idle_node_before_it_preempts(
    given: tuple[dict[str, object], Queue | None, tuple[int, int]],
) -> None:
    lost, more, (number, gpu) = given
    urgent = waits("urgent", "dev", number, gpu, priority=5)
    snapshot = beside_idle(urgent, queues=others(more), **lost)
    plan = decide(snapshot)
    assert started(plan) == ["urgent"]
    assert evicted(plan) == []
    assert set(plan.binds.values()) == {"n3"}
    assert LENT_FIRST in plan.certificate.limitations
    assert not plan.certificate.is_proved
    for _ in range(9):
        snapshot = carried_out(snapshot, plan)
        plan = decide(snapshot)
        assert not any(isinstance(a, Allocate | Evict) for a in plan.actions)


def test_a_gang_preempts_if_it_fits_no_idle_nodes() -> None:
    urgent = waits("urgent", "dev", 2, 3, priority=5)
    filler = runs(waits("filler", "train", 1, 6), "n3")
    plan = decide(beside_idle(urgent, filler))
    assert len(evicted(plan)) == 6


def test_a_gang_preempts_if_a_more_important_gang_borrows_the_idle_node() -> None:
    two = [*TWO, Queue("other", weight=0)]
    first = waits("first", "other", priority=9)
    urgent = waits("urgent", "dev", gpu=4, priority=5)
    plan = decide(beside_idle(first, urgent, queues=two))
    assert started(plan) == ["first"]
    assert len(evicted(plan)) == 6


def test_a_gang_that_may_not_borrow_preempts() -> None:
    urgent = waits("urgent", "dev", gpu=4, priority=5)
    firm = replace(urgent, tasks=tuple(replace(t, preemptable=False) for t in urgent.tasks))
    assert len(evicted(decide(beside_idle(firm)))) == 6


def test_gangs_borrow_jointly_before_they_preempt() -> None:
    urgent = [waits(f"u{i}", "dev", gpu=2, priority=5) for i in range(3)]
    plan = decide(beside_idle(*urgent))
    assert started(plan) == ["u0", "u1", "u2"]
    assert evicted(plan) == []


def test_gangs_that_find_no_room_preempt_beside_gangs_that_borrow() -> None:
    """Of the gangs of two queues, one borrows the idle node, and the other one preempts."""
    third = [Queue("train", weight=3), Queue("dev", weight=1), Queue("lab", weight=1)]
    old = runs(gang("old", ("w", 6, shape(1, 1)), queue="dev"), *["n0"] * 6)
    aged = runs(gang("aged", ("w", 6, shape(1, 1)), queue="lab"), *["n1"] * 6)
    urgent = [waits(f"u-{q}", q, gpu=6, priority=5) for q in ("dev", "lab")]
    gangs = [old, aged, runs(waits("r", "train"), "n2"), waits("big", "train", 2), *urgent]
    plan = decide(cluster(nodes(), gangs, third))
    assert len(started(plan)) == 1
    assert len(evicted(plan)) == 6
    assert {a.gang for a in plan.actions if isinstance(a, Nominate)} & {"ns/u-dev", "ns/u-lab"}


def draw_busy_queues(rng: np.random.Generator) -> Snapshot:
    """Return a cluster of four nodes, the last one idle, and queues with running and new gangs."""
    queues = [Queue("a", weight=int(rng.integers(1, 4))), Queue("b"), Queue("c")]
    room = [8, 8, 8]
    gangs = []
    for i in range(int(rng.integers(4, 8))):
        queue = str(rng.choice(["a", "b", "c"]))
        number, gpu = int(rng.integers(1, 5)), int(rng.choice([1, 1, 2, 3, 4]))
        order = {"priority": int(rng.integers(0, 3)), "created_ms": int(rng.integers(0, 100))}
        made = waits(f"g{i}", queue, number, gpu, **order)
        if rng.random() < 0.55:
            left, at = list(room), []
            for k in rng.integers(0, 3, number).tolist():
                if left[k] >= gpu:
                    left[k] -= gpu
                    at.append(f"n{k}")
            if len(at) == number:
                room, made = left, runs(made, *at)
        gangs.append(made)
    return cluster(nodes(), gangs, queues)


@pytest.mark.parametrize("seed", [5036, 6033, 7058, 7060, 6063, 6070])
def test_plans_with_loans_instead_of_victims_are_judged_as_certified(seed: int) -> None:
    snapshot = draw_busy_queues(np.random.default_rng(seed))
    plan = decide(snapshot)
    assert LENT_FIRST in plan.certificate.limitations
    judged = judge_actions(snapshot, policy(), plan.actions).levels
    assert {r.name: r.value for r in judged} == {r.name: r.value for r in plan.certificate.levels}
