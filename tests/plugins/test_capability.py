"""Tests of the capabilities of queues and of their ancestors."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optsched.cluster.snapshot import GangPhase, Queue
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.shares.queue_limits import Capability
from tests.support.engines import Bench, placed_by_gang, reason
from tests.support.small import CPU, GPU, cluster, gang, node, running, shape

RULES = RuleSet.of(GangRule(), Capability())
NODES = [node("n0", 8, gpu=2), node("n1", 8, gpu=2)]


def cpus(number: int) -> tuple[tuple[str, int], ...]:
    return ((CPU, number * 1000),)


def many(name: str, queue: str, number: int = 20, **fields: object):
    return gang(name, ("w", number, shape(1)), least=1, queue=queue, **fields)


def test_a_queue_takes_no_more_than_its_capability() -> None:
    queues = [Queue("q", capability=cpus(3)), Queue("free")]
    snapshot = cluster(NODES, [many("a", "q"), many("b", "free", 8)], queues)
    assert placed_by_gang(snapshot, RULES) == {"a": 3, "b": 8}


def test_what_runs_counts() -> None:
    made = many("old", "q", 2, phase=GangPhase.RUNNING)
    there = replace(made, tasks=tuple(running(t, "n0") for t in made.tasks))
    snapshot = cluster(NODES, [there, many("new", "q")], [Queue("q", capability=cpus(3))])
    assert placed_by_gang(snapshot, RULES) == {"new": 1, "old": 0}


def test_resources_that_are_not_named_are_not_limited() -> None:
    on_gpus = gang("g", ("w", 4, shape(1, gpu=1)), queue="q")
    snapshot = cluster(NODES, [on_gpus], [Queue("q", capability=((GPU, 4),))])
    assert placed_by_gang(snapshot, RULES) == {"g": 4}


def test_a_capability_of_nothing_stops_those_who_ask_for_it_alone() -> None:
    gangs = [gang("gpu", ("w", 1, shape(1, gpu=1)), queue="q"), many("cpu", "q", 2)]
    snapshot = cluster(NODES, gangs, [Queue("q", capability=((GPU, 0),))])
    assert placed_by_gang(snapshot, RULES) == {"cpu": 2, "gpu": 0}


TREE = [
    Queue("org", capability=cpus(6)),
    Queue("team-a", parent="org", capability=cpus(5)),
    Queue("team-b", parent="org"),
    Queue("user", parent="team-b", capability=cpus(9)),
]


def test_ancestors_bind_whatever_their_children_are_allowed() -> None:
    # Volcano checks ancestors only with enableHierarchy.
    assert placed_by_gang(cluster(NODES, [many("g", "user")], TREE), RULES) == {"g": 6}


def test_siblings_share_what_their_parent_may_take() -> None:
    bench = Bench.of(cluster(NODES, [many("a", "team-a"), many("b", "user")], TREE), RULES)
    for decisions in (bench.greedy(), bench.improved().decisions):
        assert (decisions.node_of >= 0).sum() == 6
        assert bench.broken(decisions) == []
    ones = {f"ns/a-w-{i}": "n0" for i in range(4)}
    others = {f"ns/b-w-{i}": "n1" for i in range(3)}
    assert bench.broken(bench.decisions({**ones, **others})) == ["capability"]
    assert not bench.direct_allows({**ones, **others})
    assert not bench.configurations_allow({**ones, **others})


def test_a_queue_above_its_ceiling_may_not_grow_in_what_it_is_above_of() -> None:
    # The capability was lowered while four pods were running.
    made = gang("old", ("w", 4, shape(1)), queue="q", phase=GangPhase.RUNNING)
    there = replace(made, tasks=tuple(running(t, "n0") for t in made.tasks))
    gangs = [there, many("cpu", "q", 2), gang("gpu", ("w", 2, shape(0, gpu=1)), queue="q")]
    snapshot = cluster(NODES, gangs, [Queue("q", capability=cpus(3))])
    assert placed_by_gang(snapshot, RULES) == {"cpu": 0, "gpu": 2, "old": 0}


@pytest.mark.parametrize(
    ("queue", "number", "sentence"),
    [
        (
            "team-a",
            6,
            "QueueCapabilityExceeded: queue team-a has capability 5 cpu, 0 cpu are in use, "
            "6 cpu are requested",
        ),
        (
            "user",
            7,
            "QueueCapabilityExceeded: queue org, an ancestor of user, has capability 6 cpu, "
            "0 cpu are in use, 7 cpu are requested",
        ),
    ],
)
def test_the_reason_names_the_queue_whose_ceiling_binds(
    queue: str, number: int, sentence: str
) -> None:
    snapshot = cluster(NODES, [gang("g", ("w", number, shape(1)), queue=queue)], TREE)
    assert reason(snapshot, RULES, "g") == sentence
