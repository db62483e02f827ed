"""Tests of the limit up to which gangs may be enqueued beyond the cluster's capacity."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from optsched.cluster.reasons import ReasonCode
from optsched.cluster.snapshot import Gang, GangPhase, Queue, QueueState
from optsched.cluster.task import TaskStatus
from optsched.plugins.gangs.enqueueing import Overcommit
from optsched.plugins.ordering.gang_order import Priority
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.queue_limits import Capability
from optsched.plugins.shares.weighted_shares import shares_by_weight
from optsched.problem.compile import compile_problem
from optsched.session.decompile import pending_of
from optsched.solver.greedy.pipeline import GreedyOptions, run_greedy
from tests.support.engines import Bench
from tests.support.small import CPU, cluster, gang, node, running, shape

TEN = [node("n0", 10)]


def waits(name: str, needs: int, **fields: object) -> Gang:
    """Return a PodGroup without pods whose minResources request some CPUs."""
    budget = ((CPU, needs * 1000),) if needs else ()
    fields = {"phase": GangPhase.PENDING, **fields}
    return gang(name, min_resources=budget, least=1, **fields)


def runs(cpus: int, **fields: object) -> Gang:
    """Return a running gang of one pod."""
    made = gang("old", ("w", 1, shape(cpus)), phase=GangPhase.RUNNING, **fields)
    return replace(made, tasks=(running(made.tasks[0], "n0"),))


def enqueued(*gangs: Gang, rules: RuleSet | None = None, **cluster_of: object) -> list[str]:
    snapshot = cluster(cluster_of.get("nodes", TEN), gangs, cluster_of.get("queues", ()))
    bench = Bench.of(snapshot, rules or RuleSet.of(Priority(), Overcommit()))
    decisions = bench.greedy(gated=True)
    return [g.name for g, let_in in zip(snapshot.gangs, decisions.enqueued, strict=True) if let_in]


@pytest.mark.parametrize(
    ("factor", "let_in"), [(1.0, ["a", "b"]), (1.2, ["a", "b", "d"]), (2.0, ["a", "b", "c"])]
)
def test_gangs_are_let_in_while_the_cluster_times_the_factor_lasts(
    factor: float, let_in: list[str]
) -> None:
    rules = RuleSet.of(Priority(), Overcommit(factor))
    gangs = [waits("a", 6), waits("b", 4), waits("c", 9), waits("d", 2)]
    assert enqueued(*gangs, rules=rules) == let_in


def test_a_gang_that_names_nothing_is_let_in_whatever_the_state_of_the_cluster() -> None:
    assert enqueued(waits("a", 12), waits("b", 1), waits("c", 0)) == ["a", "c"]


def test_what_is_used_and_what_was_let_in_before_counts() -> None:
    made = gang("old", ("w", 4, shape(1)), phase=GangPhase.RUNNING)
    old = replace(made, tasks=tuple(running(t, "n0") for t in made.tasks))
    before = waits("before", 5, phase=GangPhase.INQUEUE)
    # Of 12 CPUs, 4 are used and 5 are admitted, so 3 remain.
    assert enqueued(old, before, waits("a", 4), waits("b", 3)) == ["b"]


def test_more_important_gangs_are_asked_first() -> None:
    assert enqueued(waits("a", 12), waits("b", 12, priority=5)) == ["b"]


def test_resources_that_are_not_asked_for_are_not_looked_at() -> None:
    made = gang("old", ("w", 1, shape(20)), phase=GangPhase.RUNNING)
    old = replace(made, tasks=(running(made.tasks[0], "n0"),))
    by_memory = replace(waits("m", 0), min_resources=(("memory", 0),))
    assert enqueued(old, by_memory, waits("c", 1)) == ["m"]


def test_gangs_in_queues_that_take_nothing_stay_out() -> None:
    queues = [Queue("closed", state=QueueState.CLOSED)]
    gangs = [waits("a", 1, queue="closed"), waits("b", 1, queue="nowhere"), waits("c", 1)]
    assert enqueued(*gangs, queues=queues) == ["c"]


def test_the_older_of_equal_queues_is_asked_until_it_has_no_more() -> None:
    queues = [Queue("qa", created_ms=1), Queue("qb", created_ms=2)]
    gangs = [waits("a1", 5, queue="qa"), waits("a2", 5, queue="qa"), waits("b1", 7, queue="qb")]
    assert enqueued(*gangs, queues=queues) == ["a1", "a2"]


def test_a_queue_expects_no_more_than_the_cluster_leaves_to_it() -> None:
    queues = [Queue("kept", guarantee=((CPU, 3000),)), Queue("inner", parent="q"), Queue("q")]
    old = runs(1, queue="q", min_resources=((CPU, 1000),))
    gangs = [waits("a", 7, queue="inner"), waits("b", 6, queue="q"), waits("c", 10, queue="kept")]
    rules = RuleSet.of(Priority(), Capability())
    assert enqueued(old, *gangs, rules=rules, queues=queues) == ["b", "c"]


@pytest.mark.parametrize(
    ("fields", "let_in"),
    [
        # In Volcano, resources beyond a gang's minResources are elastic and count as idle.
        ({}, ["a"]),
        ({"min_resources": (("memory", 1),)}, ["a"]),
        ({"min_resources": ((CPU, 3000),)}, ["a"]),
        ({"min_resources": ((CPU, 6000),)}, []),
        # Volcano creates a PodGroup for a bare pod, and sets minResources to its request.
        ({"is_implicit": True}, []),
    ],
)
def test_what_a_running_gang_holds_beyond_its_minimum_counts_as_free(
    fields: dict[str, object], let_in: list[str]
) -> None:
    queues = [Queue("q", capability=((CPU, 8000),))]
    rules = RuleSet.of(Priority(), Capability())
    old = runs(6, queue="q", **fields)
    assert enqueued(old, waits("a", 5, queue="q"), rules=rules, queues=queues) == let_in


# --- shares by weight -----------------------------------------------------------------------------

KEEPS = RuleSet.of(Priority(), Overcommit(keeps_shares=True))


def test_a_queue_enqueues_up_to_its_share_whatever_others_reserve() -> None:
    queues = [Queue("qa"), Queue("qb")]
    squatter = waits("squatter", 12, queue="qa", phase=GangPhase.INQUEUE)
    gangs = [squatter, waits("b1", 3, queue="qb"), waits("b2", 2, queue="qb")]
    assert enqueued(*gangs, queues=queues) == []
    assert enqueued(*gangs, rules=KEEPS, queues=queues) == ["b1", "b2"]
    gangs = [*gangs, waits("b3", 1, queue="qb"), waits("a", 1, queue="qa")]
    assert enqueued(*gangs, rules=KEEPS, queues=queues) == ["b1", "b2"]


def test_what_a_queue_runs_and_has_enqueued_counts_for_its_share() -> None:
    queues = [Queue("qa"), Queue("qb", weight=4)]
    squatter = waits("squatter", 12, queue="qa", phase=GangPhase.INQUEUE)
    before = waits("before", 2, queue="qb", phase=GangPhase.INQUEUE)
    gangs = [squatter, runs(3, queue="qb"), before]
    # 8 of 10 CPUs by weight − 3 used − 2 admitted = 3
    found = enqueued(*gangs, waits("b1", 4, queue="qb"), rules=KEEPS, queues=queues)
    assert found == []
    found = enqueued(*gangs, waits("b1", 3, queue="qb"), rules=KEEPS, queues=queues)
    assert found == ["b1"]


def test_without_others_the_limit_is_that_of_the_cluster() -> None:
    gangs = [waits("a", 6), waits("b", 4), waits("c", 9), waits("d", 2)]
    assert enqueued(*gangs, rules=KEEPS) == ["a", "b", "d"]


def test_shares_by_weight_follow_the_tree() -> None:
    queues = [
        *(Queue("dept", weight=3), Queue("other"), Queue("idle", weight=9)),
        *(Queue("team", parent="dept"), Queue("late", parent="dept", weight=2)),
    ]
    gangs = [waits(f"g-{name}", 1, queue=name) for name in ("root", "dept", "team", "late")]
    gangs += [waits("g-other", 1, queue="other"), waits("default", 1)]
    nodes = [node("n0", 60)]
    problem = compile_problem(cluster(nodes, gangs, queues))
    shares = shares_by_weight(problem)[:, problem.index(CPU)].tolist()
    # The top queues default, dept, other and root's own gangs: 10, 30, 10 and 10 of 60 CPUs.
    # Of the 30, dept's own gangs get 3/6, team 1/6 and late 2/6.
    assert dict(zip(problem.queues.names, shares, strict=True)) == {
        "default": 10_000,
        "dept": 15_000,
        "idle": 0,
        "late": 10_000,
        "other": 10_000,
        "root": 10_000,
        "team": 5_000,
    }


def test_only_the_root_queue_has_gangs() -> None:
    problem = compile_problem(cluster(TEN, [waits("a", 1, queue="root")]))
    shares = shares_by_weight(problem)[:, problem.index(CPU)].tolist()
    assert dict(zip(problem.queues.names, shares, strict=True)) == {"default": 0, "root": 10_000}


# --- reasons --------------------------------------------------------------------------------------


def reason_of(name: str, *gangs: Gang, rules: RuleSet, queues: tuple[Queue, ...] = ()) -> str:
    """Return why a gang is not enqueued."""
    problem = compile_problem(cluster(TEN, gangs, queues))
    decisions = run_greedy(problem, rules, GreedyOptions(("enqueue",)))
    reason = pending_of(problem, decisions, rules)[f"ns/{name}"]
    assert reason.code is ReasonCode.OVERCOMMITTED
    return reason.message


def test_a_reason_names_the_limit_of_the_cluster_and_who_reserves() -> None:
    gangs = [runs(3), waits("before", 2, phase=GangPhase.INQUEUE), waits("a", 4), waits("b", 5)]
    assert reason_of("b", *gangs, rules=RuleSet.of(Priority(), Overcommit())) == (
        "jobs of all queues are admitted up to 12 cpu: 3 cpu are in use, "
        "6 cpu are reserved for ns/a, ns/before, 5 cpu are requested"
    )
    many = [waits(f"n{i}", i, phase=GangPhase.INQUEUE) for i in (1, 2, 3, 4)]
    assert reason_of("b", *many, waits("b", 5), rules=KEEPS) == (
        "jobs of all queues are admitted up to 12 cpu: 0 cpu are in use, "
        "10 cpu are reserved for ns/n4, ns/n3 and 2 more, 5 cpu are requested"
    )


def test_a_reason_names_the_queue_that_is_full_and_who_reserves() -> None:
    dept = Queue("dept", capability=((CPU, 6000),))
    queues = (dept, Queue("team", parent="dept"), Queue("other"))
    rules = RuleSet.of(Priority(), Capability())
    taken = waits("taken", 4, queue="team", phase=GangPhase.INQUEUE)
    elsewhere = waits("elsewhere", 4, queue="other", phase=GangPhase.INQUEUE)
    mine = waits("mine", 3, queue="team")
    found = reason_of("mine", taken, elsewhere, mine, rules=rules, queues=queues)
    assert found == (
        "queue dept, an ancestor of team, may hold 6 cpu: 0 cpu are in use, "
        "4 cpu are reserved for ns/taken, 3 cpu are requested"
    )
    old = runs(4, queue="dept", min_resources=((CPU, 4000),))
    full = reason_of("mine", old, mine, rules=rules, queues=queues)
    assert full == (
        "queue dept, an ancestor of team, may hold 6 cpu: 4 cpu are in use, 3 cpu are requested"
    )


def refusal(gang_waits: Gang, *queues: Queue) -> str:
    """Return code and message of the reason why a gang is not enqueued by capabilities."""
    problem = compile_problem(cluster(TEN, [gang_waits], queues))
    rules = RuleSet.of(Priority(), Capability())
    decisions = run_greedy(problem, rules, GreedyOptions(("enqueue",)))
    reason = pending_of(problem, decisions, rules)["ns/a"]
    return f"{reason.code.value}: {reason.message}"


def test_a_gang_beyond_its_queue_is_not_called_overcommitted() -> None:
    small = Queue("small", capability=((CPU, 2000),))
    assert refusal(waits("a", 3, queue="small"), small) == (
        "QueueCapabilityExceeded: queue small has capability 2 cpu, 0 cpu are in use, "
        "3 cpu are requested"
    )
    kept = [Queue(f"k{i}", guarantee=((CPU, i * 1000),)) for i in (1, 2, 3)]
    assert refusal(waits("a", 5), *kept) == (
        "ReservedForGuarantees: 5 cpu are requested, queue default may take 4 cpu: the rest is "
        "kept for the guarantees of queues k3 (3 cpu), k2 (2 cpu) and k1 (1 cpu)"
    )
    small = Queue("small", capability=((CPU, 5000),))
    assert refusal(waits("a", 6, queue="small"), small, *kept) == (
        "QueueCapabilityExceeded: queue small has capability 5 cpu, 0 cpu are in use, "
        "6 cpu are requested"
    )


def test_a_gang_beyond_the_cluster_is_not_told_of_guarantees() -> None:
    found = refusal(waits("a", 11), Queue("q", capability=((CPU, 20_000),)))
    assert not found.startswith("ReservedForGuarantees")


# --- gangs of which some pods have succeeded ------------------------------------------------------


def ended(made: Gang, *indices: int) -> Gang:
    """Return the gang with only the tasks at some indices, which have succeeded."""
    tasks = tuple(replace(made.tasks[i], status=TaskStatus.SUCCEEDED) for i in indices)
    return replace(made, tasks=tasks)


def half_done(name: str, phase: GangPhase = GangPhase.PENDING, **fields: object) -> Gang:
    """Return a gang of four pods with 2 CPUs each, of which two have succeeded."""
    asked = ((CPU, 8000),)
    made = gang(name, ("w", 4, shape(2)), min_resources=asked, phase=phase, **fields)
    return ended(made, 0, 1)


@pytest.mark.parametrize(("others", "let_in"), [(8, ["a"]), (9, [])])
def test_a_gang_asks_for_what_its_succeeded_pods_do_not_need_again(
    others: int, let_in: list[str]
) -> None:
    assert enqueued(runs(others), half_done("a")) == let_in
    queues = [Queue("q", capability=((CPU, 12_000),))]
    in_queue = runs(others, queue="q", min_resources=((CPU, others * 1000),))
    made = half_done("a", queue="q")
    rules, more = RuleSet.of(Priority(), Capability()), [node("n0", 50)]
    assert enqueued(in_queue, made, rules=rules, queues=queues, nodes=more) == let_in


@pytest.mark.parametrize("keeps_shares", [False, True])
def test_an_enqueued_gang_reserves_what_its_succeeded_pods_do_not_need_again(
    *, keeps_shares: bool
) -> None:
    """The two missing pods need 4 of 12 CPUs, so that 8 remain."""
    rules = RuleSet.of(Priority(), Overcommit(keeps_shares=keeps_shares))
    old = half_done("old", GangPhase.INQUEUE)
    assert enqueued(old, waits("a", 9), waits("b", 8), waits("c", 1), rules=rules) == ["b"]


def test_an_enqueued_gang_reserves_in_its_queue_what_is_missing() -> None:
    queues = [Queue("q", capability=((CPU, 9000),))]
    rules = RuleSet.of(Priority(), Capability())
    old = half_done("old", GangPhase.INQUEUE, queue="q")
    gangs = [waits(name, cpus, queue="q") for name, cpus in (("a", 6), ("b", 5), ("c", 1))]
    assert enqueued(old, *gangs, rules=rules, queues=queues) == ["b"]


@pytest.mark.parametrize(
    ("indices", "missing"),
    [
        ((), 7),
        ((0,), 3),  # the driver
        ((0, 1), 2),
        ((1, 2, 3), 4),
        # More workers than the minimum do not replace the driver.
        ((1, 2, 3, 4, 5), 4),
        ((0, 1, 2, 3, 4, 5), 0),
    ],
)
def test_the_minimum_of_each_role_is_counted_for_itself(
    indices: tuple[int, ...], missing: int
) -> None:
    roles = (("driver", 1, shape(4)), ("worker", 5, shape(1)))
    least = (("driver", 1), ("worker", 3))
    made = gang("g", *roles, least=4, min_role=least, min_resources=((CPU, 7000), ("memory", 5)))
    left = {CPU: missing * 1000, "memory": 5}
    assert dict(ended(made, *indices).missing_resources) == {r: n for r, n in left.items() if n}


def test_succeeded_pods_beyond_the_roles_fill_the_rest_of_the_minimum() -> None:
    roles = (("driver", 1, shape(4)), ("worker", 5, shape(1)))
    asked = ((CPU, 8000),)
    made = gang("g", *roles, least=5, min_role=(("driver", 1),), min_resources=asked)
    assert ended(made, 1, 2, 3, 4, 5).missing_resources == ((CPU, 4000),)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_missing_is_what_the_missing_pods_of_a_job_request(seed: int) -> None:
    """For minResources that are the sum over the minimum, the rule is exact by role."""
    rng = random.Random(seed)
    sizes = {f"r{i}": (rng.randint(1, 4), rng.randint(1, 9)) for i in range(rng.randint(1, 4))}
    asked = ((CPU, sum(n * cpus for n, cpus in sizes.values()) * 1000),)
    roles = [(role, n + rng.randint(0, 2), shape(cpus)) for role, (n, cpus) in sizes.items()]
    least = tuple((role, n) for role, (n, _) in sizes.items())
    total = sum(n for _, n in least)
    made = gang("g", *roles, least=total, min_role=least, min_resources=asked)
    chosen = [i for i in range(len(made.tasks)) if rng.random() < 0.5]
    one = ended(made, *chosen)
    have = Counter(task.role for task in one.tasks)
    lacking = sum(max(n - have[role], 0) * cpus for role, (n, cpus) in sizes.items())
    assert dict(one.missing_resources).get(CPU, 0) == lacking * 1000
    rules, pending = RuleSet.of(Priority(), Overcommit(1.0)), replace(one, phase=GangPhase.PENDING)
    room = [node("n0", 1000)]
    assert enqueued(runs(1000 - lacking), pending, rules=rules, nodes=room) == ["g"]
    if lacking:
        assert enqueued(runs(1001 - lacking), pending, rules=rules, nodes=room) == []
