"""The unused parts of all guarantees together stay idle for their queues."""

from __future__ import annotations

from dataclasses import replace

from optsched.cluster.snapshot import Gang, GangPhase, Queue
from optsched.cluster.task import Task, TaskStatus
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.guarantee import Guarantee
from optsched.problem.compile import compile_problem
from optsched.problem.tiers import priority_tiers
from tests.support.engines import Bench, binds, placed_by_gang, reason
from tests.support.small import CPU, cluster, gang, node, running, shape

RULES = RuleSet.of(GangRule(), Guarantee())
NODES = [node("n0", 8), node("n1", 8)]


def cpus(number: int) -> tuple[tuple[str, int], ...]:
    return ((CPU, number * 1000),)


def many(name: str, queue: str, number: int = 16) -> Gang:
    return gang(name, ("w", number, shape(1)), least=1, queue=queue)


def runs(made: Gang, number: int) -> Gang:
    there = tuple(running(t, "n0") for t in made.tasks[:number])
    return replace(made, tasks=(*there, *made.tasks[number:]), phase=GangPhase.RUNNING)


def test_what_is_guaranteed_to_others_stays_free() -> None:
    queues = [Queue("floor", guarantee=cpus(6)), Queue("q")]
    assert placed_by_gang(cluster(NODES, [many("g", "q")], queues), RULES) == {"g": 10}


def test_the_guaranteed_queue_itself_may_take_it_and_more() -> None:
    queues = [Queue("floor", guarantee=cpus(6)), Queue("q")]
    assert placed_by_gang(cluster(NODES, [many("g", "floor")], queues), RULES) == {"g": 16}


def test_a_guarantee_in_use_is_kept_once() -> None:
    queues = [Queue("floor", guarantee=cpus(6)), Queue("q")]
    snapshot = cluster(NODES, [runs(many("old", "floor", 4), 4), many("new", "q")], queues)
    assert placed_by_gang(snapshot, RULES) == {"new": 10, "old": 0}


def test_two_queues_can_not_take_the_floor_of_a_third_together() -> None:
    # Each queue may use 10 of 16 CPUs; Volcano's realCapability lets both queues use 10.
    queues = [Queue("floor", guarantee=cpus(6)), Queue("a"), Queue("b")]
    bench = Bench.of(cluster(NODES, [many("a", "a", 8), many("b", "b", 8)], queues), RULES)
    for decisions in (bench.greedy(), bench.improved().decisions):
        assert (decisions.node_of >= 0).sum() == 10
        assert bench.broken(decisions) == []
    eleven = {f"ns/{g}-w-{i}": n for g, n, k in (("a", "n0", 6), ("b", "n1", 5)) for i in range(k)}
    assert bench.broken(bench.decisions(eleven)) == ["guarantee"]
    assert not bench.direct_allows(eleven)
    assert not bench.configurations_allow(eleven)


def test_resources_without_a_guarantee_are_free_for_all() -> None:
    queues = [Queue("floor", guarantee=(("memory", 6),)), Queue("q")]
    assert placed_by_gang(cluster(NODES, [many("g", "q")], queues), RULES) == {"g": 16}


# --- trees ---------------------------------------------------------------------------------------

TREE = [
    Queue("org", guarantee=cpus(8)),
    Queue("team-a", parent="org", guarantee=cpus(3)),
    Queue("team-b", parent="org"),
    Queue("else"),
]


def test_a_guarantee_of_zero_limits_nobody() -> None:
    queues = [Queue("q", guarantee=((CPU, 0),))]
    lost = replace(node("n1", 8), ready=False)
    old = gang("old", ("w", 8, shape(1)), least=1, queue="q")
    there = replace(old, tasks=tuple(running(t, "n1") for t in old.tasks), phase=GangPhase.RUNNING)
    bench = Bench.of(cluster([node("n0", 4), lost], [there, many("new", "q", 2)], queues), RULES)
    decisions = bench.greedy()
    assert (decisions.node_of >= 0).sum() == 2
    assert bench.broken(decisions) == []


def test_a_guarantee_of_a_parent_serves_all_its_children() -> None:
    # Other queues may use 16 CPUs less the 8 of org; team-b may use all but team-a's 3 CPUs.
    assert placed_by_gang(cluster(NODES, [many("g", "else")], TREE), RULES) == {"g": 8}
    assert placed_by_gang(cluster(NODES, [many("g", "team-b")], TREE), RULES) == {"g": 13}
    assert placed_by_gang(cluster(NODES, [many("g", "team-a")], TREE), RULES) == {"g": 16}


def test_children_that_are_guaranteed_more_than_their_parent_claim_more() -> None:
    tree = [Queue("org", guarantee=cpus(2)), Queue("team", parent="org", guarantee=cpus(5))]
    snapshot = cluster(NODES, [many("g", "else")], [*tree, Queue("else")])
    assert placed_by_gang(snapshot, RULES) == {"g": 11}


# --- what is there to share ----------------------------------------------------------------------


def test_pods_outside_every_gang_take_from_what_queues_share() -> None:
    agent = Task("kube-system/agent", shape(4), TaskStatus.RUNNING, node="n0")
    nodes = [replace(NODES[0], residents=(agent,)), NODES[1]]
    queues = [Queue("floor", guarantee=cpus(6)), Queue("q")]
    assert placed_by_gang(cluster(nodes, [many("g", "q")], queues), RULES) == {"g": 6}


def test_more_guaranteed_than_there_is() -> None:
    # Other queues must not increase the shortfall, but entitled queues may use their guarantee.
    queues = [Queue("a", guarantee=cpus(12)), Queue("b", guarantee=cpus(12)), Queue("q")]
    assert placed_by_gang(cluster(NODES, [many("g", "q")], queues), RULES) == {"g": 0}
    assert placed_by_gang(cluster(NODES, [many("g", "a")], queues), RULES) == {"g": 12}


def test_the_deficit_is_the_first_thing_to_be_made_good() -> None:
    # The gang of the other queue is older; 4 CPUs are idle, and 3 of them are guaranteed.
    queues = [Queue("floor", guarantee=cpus(3)), Queue("q")]
    gangs = [
        gang("old", ("w", 4, shape(1)), queue="q", created_ms=1),
        gang("floor", ("w", 3, shape(1)), queue="floor", created_ms=2),
    ]
    bench = Bench.of(cluster([node("n0", 4)], gangs, queues), RULES)
    answer = bench.improved()
    assert len(binds(bench.actions(answer.decisions))) == 3
    first = answer.results[0]
    assert (first.name, first.value) == ("guarantee deficit", 0)


def test_the_deficit_counts_what_is_asked_for_only() -> None:
    queues = [Queue("floor", guarantee=cpus(4)), Queue("q")]
    snapshot = cluster([node("n0", 8)], [many("g", "floor", 1)], queues)
    problem = compile_problem(snapshot)
    tiers = priority_tiers(problem, problem.priority, 0)
    (level,) = Guarantee().levels(problem, tiers)
    assert level.target.max() == 1000
    nobody = compile_problem(cluster([node("n0", 8)], [many("g", "q", 1)], queues))
    assert Guarantee().levels(nobody, priority_tiers(nobody, nobody.priority, 0)) == ()


def test_the_reason_names_queues_and_what_is_kept_for_them() -> None:
    queues = [Queue("floor", guarantee=cpus(2)), Queue("high", guarantee=cpus(4)), Queue("q")]
    snapshot = cluster(NODES, [gang("g", ("w", 12, shape(1)), queue="q")], queues)
    assert reason(snapshot, RULES, "g") == (
        "ReservedForGuarantees: 12 cpu are requested, queue q may take 10 cpu: "
        "the rest is kept for the guarantees of queues high (4 cpu) and floor (2 cpu)"
    )


def test_guarantees_are_no_reason_where_more_is_asked_for_than_they_keep() -> None:
    queues = [Queue("floor", guarantee=cpus(2)), Queue("q")]
    old = gang("old", ("w", 8, shape(1)), queue="q", phase=GangPhase.RUNNING)
    there = replace(old, tasks=tuple(running(t, "n0") for t in old.tasks))
    snapshot = cluster(NODES, [there, gang("g", ("w", 12, shape(1)), queue="q")], queues)
    assert reason(snapshot, RULES, "g").startswith("NotEnoughResources: ")


def test_the_reason_says_what_is_kept_for_others() -> None:
    queues = [Queue("floor", guarantee=cpus(6)), Queue("q")]
    snapshot = cluster(NODES, [gang("g", ("w", 12, shape(1)), queue="q")], queues)
    assert reason(snapshot, RULES, "g") == (
        "ReservedForGuarantees: 12 cpu are requested, queue q may take 10 cpu: "
        "the rest is kept for the guarantees of queue floor (6 cpu)"
    )
