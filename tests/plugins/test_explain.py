"""Tests of the reasons of waiting gangs: rules come first, then resources of nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from optsched.cluster.reasons import ReasonCode
from optsched.cluster.selectors import LabelSelector, Operator, Requirement, Taint, TaintEffect
from optsched.cluster.snapshot import GangPhase, Queue
from optsched.cluster.task import DeviceRequest, HostPort, PodTerm, SpreadTerm, TaskStatus
from optsched.plugins.gangs.enqueueing import Overcommit
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.nodes.node_filters import HostPorts, NodeAffinity, Taints
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.scores.packing import Binpack
from optsched.plugins.shares.queue_limits import Capability
from optsched.plugins.topology.pod_affinity import PodAffinity
from optsched.plugins.topology.spread import Spread
from optsched.session.decompile import pending_keys, pending_of
from tests.support.engines import Bench, binds, reason
from tests.support.small import CPU, ZONE, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Node, Snapshot
    from optsched.cluster.task import TaskShape
    from optsched.problem.problem import Problem

RULES = RuleSet.of(
    *(GangRule(), NodeAffinity(), Taints(), HostPorts(), PodAffinity(), Spread(), Capability()),
    Binpack(),
)


def why(nodes: list[Node], *gangs: Gang, queues: tuple[Queue, ...] = ()) -> str:
    """Return the reason of the first gang."""
    return reason(cluster(nodes, gangs, queues), RULES, gangs[0].name)


def asks(number: int, what: TaskShape, **fields: object) -> Gang:
    return gang("g", ("w", number, what), **fields)


# --- what will never be --------------------------------------------------------------------------


def test_there_are_no_nodes() -> None:
    assert why([], asks(1, shape(1))) == "NoNodes: the cluster has no nodes"


def test_no_node_is_large_enough() -> None:
    assert why([node("n0", 4), node("n1", 2)], asks(1, shape(5))) == (
        "Impossible: 1 pod of w with 5 cpu: no node that it may use offers more than 4 cpu"
    )


def test_no_node_that_is_large_enough_may_be_used() -> None:
    spot = (Taint("spot", "", TaintEffect.NO_SCHEDULE),)
    nodes = [node("n0", 4), node("n1", 8, taints=spot), node("n2", 8, ready=False)]
    assert why(nodes, asks(1, shape(5))) == (
        "Impossible: 1 pod of w with 5 cpu: no node that it may use offers more than 4 cpu; "
        "1 node had the status NotReady, 1 node had untolerated taints spot:NoSchedule"
    )


def test_all_nodes_together_are_too_small() -> None:
    assert why([node("n0", 4), node("n1", 4)], asks(5, shape(2))) == (
        "Impossible: 5 pods of w with 2 cpu: even an empty cluster has room for 4 only: "
        "too little cpu"
    )


def test_nodes_without_the_resource_offer_nothing_of_it() -> None:
    assert why([node("n0", 4)], asks(1, shape(1, gpu=1))) == (
        "Impossible: 1 pod of w with 1 cpu, 1 nvidia.com/gpu: "
        "no node that it may use offers more than 0 nvidia.com/gpu"
    )


def test_all_nodes_are_closed_to_it() -> None:
    wants = shape(1, node_selector=((ZONE, "c"),))
    nodes = [
        node("n0", labels={ZONE: "a"}),
        node("n1", labels={ZONE: "b"}),
        node("n2", ready=False),
    ]
    assert why(nodes, asks(1, wants)) == (
        "NoNodeMatches: 1 pod of w with 1 cpu: 0/3 nodes are open to it: "
        f"2 nodes did not match nodeSelector {ZONE}=c, 1 node had the status NotReady"
    )


# --- what is not free now ------------------------------------------------------------------------


def busy(name: str, where: str, cpu: int) -> Gang:
    """Return a running gang of one task."""
    made = gang(name, ("w", 1, shape(cpu)), phase=GangPhase.RUNNING)
    return replace(made, tasks=(running(made.tasks[0], where),))


def test_too_little_is_free() -> None:
    nodes = [node("n0", 4), node("n1", 4)]
    taken = [busy("a", "n0", 3), busy("b", "n1", 2)]
    assert why(nodes, asks(2, shape(2)), *taken) == (
        "NotEnoughResources: room for 1 of 2 pods of w with 2 cpu: "
        "1/2 nodes could take one; 1 node had too little cpu"
    )


def test_where_every_node_takes_some_no_node_is_named() -> None:
    nodes = [node("n0", 4), node("n1", 4)]
    assert why(nodes, asks(3, shape(2)), busy("a", "n0", 2), busy("b", "n1", 2)) == (
        "NotEnoughResources: room for 2 of 3 pods of w with 2 cpu: 2/2 nodes could take one"
    )


def test_enough_is_free_but_not_on_one_node() -> None:
    nodes = [node("n0", 4), node("n1", 4)]
    taken = [busy("a", "n0", 2), busy("b", "n1", 2)]
    assert why(nodes, asks(1, shape(3)), *taken) == (
        "ResourcesFragmented: room for 0 of 1 pod of w with 3 cpu: 4 cpu are free, but at most "
        "2 cpu on one node; 2 nodes had too little cpu"
    )


def test_enough_of_two_resources_is_free_but_not_on_the_same_nodes() -> None:
    nodes = [node("n0", 4, gpu=4), node("n1", 8, gpu=4)]
    made = gang("b", ("w", 1, shape(1, gpu=3)), phase=GangPhase.RUNNING)
    gpus = replace(made, tasks=(running(made.tasks[0], "n1"),))
    assert why(nodes, asks(1, shape(3, gpu=2)), busy("a", "n0", 2), gpus) == (
        "ResourcesFragmented: room for 0 of 1 pod of w with 3 cpu, 2 nvidia.com/gpu: enough cpu "
        "and nvidia.com/gpu are free, but not on the same nodes; 1 node had too little cpu, "
        "1 node had too little nvidia.com/gpu"
    )


def test_two_resources_are_spread_over_the_nodes() -> None:
    nodes = [node("n0", 4, gpu=4), node("n1", 4, gpu=4)]
    made = gang("b", ("w", 2, shape(2, gpu=2)), phase=GangPhase.RUNNING)
    tasks = tuple(running(task, f"n{i}") for i, task in enumerate(made.tasks))
    assert why(nodes, asks(1, shape(3, gpu=3)), replace(made, tasks=tasks)) == (
        "ResourcesFragmented: room for 0 of 1 pod of w with 3 cpu, 3 nvidia.com/gpu: "
        "4 cpu and 4 nvidia.com/gpu are free, but at most 2 cpu and 2 nvidia.com/gpu on one node; "
        "2 nodes had too little cpu, 2 nodes had too little nvidia.com/gpu"
    )


def test_roles_that_fit_one_by_one_but_not_together() -> None:
    mixed = gang("g", ("ps", 1, shape(3)), ("w", 1, shape(2)))
    assert why([node("n0", 5)], mixed, busy("b", "n0", 1)) == (
        "ResourcesFragmented: each of its roles fits alone, but not all of them fit together"
    )


def test_nodes_that_are_closed_to_roles_are_told_once() -> None:
    spot = (Taint("spot", "", TaintEffect.NO_SCHEDULE),)
    mixed = gang("g", ("ps", 1, shape(3)), ("w", 1, shape(2)))
    nodes = [node("n0", 5), node("n1", 4, taints=spot)]
    assert why(nodes, mixed, busy("b", "n0", 1)) == (
        "ResourcesFragmented: each of its roles fits alone, but not all of them fit together; "
        "1 node had untolerated taints spot:NoSchedule"
    )


def test_at_most_four_kinds_of_refusal_are_told_the_most_frequent_first() -> None:
    wants = shape(1, node_selector=((ZONE, "c"),), host_ports=(HostPort("TCP", "0.0.0.0", 80),))
    web = gang("web", ("w", 1, shape(1, host_ports=(HostPort("TCP", "0.0.0.0", 80),))))
    spot = (Taint("spot", "", TaintEffect.NO_SCHEDULE),)
    c = {ZONE: "c"}
    nodes = [
        node("port", 4, labels=c),
        node("small", 1, labels=c),
        *(node(f"tainted{i}", labels=c, taints=spot) for i in range(2)),
        *(node(f"other{i}") for i in range(3)),
        node("down", labels=c, ready=False),
    ]
    there = replace(web, tasks=(running(web.tasks[0], "port"),), phase=GangPhase.RUNNING)
    assert why(nodes, asks(1, wants), busy("b", "small", 1), there) == (
        "NotEnoughResources: room for 0 of 1 pod of w with 1 cpu: 0/8 nodes could take one; "
        f"3 nodes did not match nodeSelector {ZONE}=c, 2 nodes had untolerated taints "
        "spot:NoSchedule, 1 node did not have free host ports (80/TCP), "
        "1 node had the status NotReady"
    )


class Cordons(Taints):
    """A rule with the words of another rule."""

    def refusal(self, problem: Problem, task_class: int) -> str:
        return "did not suit"


class Zones(NodeAffinity):
    """A rule with the words of another rule."""

    def refusal(self, problem: Problem, task_class: int) -> str:
        return "did not suit"


def test_nodes_that_rules_exclude_with_the_same_words_are_counted_together() -> None:
    spot = (Taint("spot", "", TaintEffect.NO_SCHEDULE),)
    nodes = [node("a", labels={ZONE: "c"}, taints=spot), node("b"), node("c")]
    wants = asks(1, shape(1, node_selector=((ZONE, "c"),)))
    rules = RuleSet.of(GangRule(), Zones(), Cordons(), Binpack())
    assert reason(cluster(nodes, [wants], ()), rules, "g") == (
        "NoNodeMatches: 1 pod of w with 1 cpu: 0/3 nodes are open to it: 3 nodes did not suit"
    )


# --- pods beside each other ----------------------------------------------------------------------

APP = LabelSelector((Requirement("app", Operator.IN, ("x",)),))
APART = (PodTerm(APP, ("ns",), None, ZONE),)
ZONES = [
    node("a0", labels={ZONE: "a"}),
    node("a1", labels={ZONE: "a"}),
    node("b0", labels={ZONE: "b"}),
]


def test_pods_that_can_not_stand_beside_each_other() -> None:
    shy = asks(3, shape(1, pod_anti_affinity=APART), labels={"app": "x"})
    assert why(ZONES, shy) == (
        "Impossible: 3 pods of w with 1 cpu: even an empty cluster has room for 2 only: "
        "refused by pod-affinity"
    )


def test_pods_that_other_pods_keep_apart_for_now() -> None:
    shy = asks(3, shape(1, pod_anti_affinity=APART), labels={"app": "x"})
    there = gang("old", ("w", 1, shape(1)), labels={"app": "x"}, phase=GangPhase.RUNNING)
    there = replace(there, tasks=(running(there.tasks[0], "b0"),))
    two = replace(shy, tasks=shy.tasks[:2], min_member=2)
    assert why(ZONES, two, there) == (
        "PodRelationsUnsatisfied: pod-affinity: room for 1 of its 2 pods together"
    )


def test_ports_that_run_out() -> None:
    assert why(ZONES, asks(4, shape(1, host_ports=(HostPort("TCP", "0.0.0.0", 80),)))) == (
        "Impossible: 4 pods of w with 1 cpu: even an empty cluster has room for 3 only: "
        "refused by host-ports"
    )


def test_a_spread_that_can_not_be_even() -> None:
    # Zone b holds one task, so that zone a may hold two at most.
    nodes = [node("a0", 9, labels={ZONE: "a"}), node("b0", 1, labels={ZONE: "b"})]
    wants = shape(1, spread=(SpreadTerm(1, ZONE, APP, "ns"),))
    assert why(nodes, asks(4, wants, labels={"app": "x"})) == (
        "PodRelationsUnsatisfied: topology-spread: room for 3 of its 4 pods together"
    )


def test_parts_of_gpus_that_are_left_over() -> None:
    parts = asks(3, shape(0, device=DeviceRequest(1, 600)))
    assert why([node("n0", gpu=2)], parts) == (
        "Impossible: 3 pods of w with 600/1000 of a GPU: even an empty cluster has room "
        "for 2 only: refused by gpu-shares"
    )
    held = gang("old", ("w", 1, shape(0, gpu=1)), phase=GangPhase.RUNNING)
    held = replace(held, tasks=(running(held.tasks[0], "n0"),))
    assert why([node("n0", gpu=3)], parts, held) == (
        "ResourcesFragmented: gpu-shares: room for 2 of its 3 pods together"
    )


def test_pods_that_nobody_wants_near() -> None:
    lonely = asks(1, shape(1, pod_affinity=APART))
    assert why(ZONES, lonely) == (
        "NoNodeMatches: 1 pod of w with 1 cpu: 0/3 nodes are open to it: 3 nodes did not satisfy "
        "pod affinity or anti-affinity"
    )


# --- order of reasons ----------------------------------------------------------------------------


def test_a_queue_that_is_full_comes_before_what_nodes_lack() -> None:
    queue = Queue("q", capability=((CPU, 1000),))
    big, full = asks(2, shape(1), queue="q"), busy("b", "n0", 1)
    assert why([node("n0", 2)], big, full, queues=(queue,)).startswith("QueueCapabilityExceeded: ")
    assert why([node("n0", 1)], big, queues=(queue,)).startswith("Impossible: ")


def test_best_effort_and_parts_are_named_as_such() -> None:
    full = node("n0")
    full = replace(full, allocatable=((CPU, 1000), ("pods", 1)))
    other = gang("other", ("w", 1, shape(0)), created_ms=0)
    idle = gang("g", ("", 1, shape(0)), created_ms=1)
    assert why([full], idle, other) == (
        "NotEnoughResources: room for 0 of 1 pod with no requests: "
        "0/1 nodes could take one; 1 node had no capacity for another pod"
    )


def test_room_that_another_gang_could_not_use_is_told_as_such() -> None:
    # No task is placed, so that all capacity is idle.
    bench = Bench.of(cluster([node("n0", 4)], [asks(2, shape(1))]), RULES)
    pending = pending_of(bench.problem, bench.decisions({}), RULES)
    assert pending["ns/g"].code is ReasonCode.OUTRANKED


# --- gangs that have some of their tasks ---------------------------------------------------------


def told(snapshot: Snapshot) -> dict[str, str]:
    bench = Bench.of(snapshot, RULES)
    pending = pending_of(bench.problem, bench.greedy(), RULES)
    return {key.removeprefix("ns/"): str(reason) for key, reason in pending.items()}


def test_what_is_left_of_a_gang_decides_not_what_it_has_got() -> None:
    mixed = gang("g", ("a", 1, shape(1)), ("b", 1, shape(1, gpu=1)), least=1)
    assert told(cluster([node("n0", 4)], [mixed])) == {
        "g": "Impossible: 1 pod of b with 1 cpu, 1 nvidia.com/gpu: "
        "no node that it may use offers more than 0 nvidia.com/gpu"
    }


def test_a_gang_that_grows_asks_for_one_more() -> None:
    assert told(cluster([node("n0", 3)], [asks(5, shape(1), least=2)])) == {
        "g": "NotEnoughResources: room for 0 of 1 pod of w with 1 cpu: "
        "0/1 nodes could take one; 1 node had too little cpu"
    }


def test_gangs_that_are_alike_and_got_different_things_have_their_own_reasons() -> None:
    gangs = [
        gang(name, ("a", 1, shape(1)), ("b", 1, shape(2)), least=1, created_ms=born)
        for born, name in enumerate(("first", "second"))
    ]
    found = told(cluster([node("n0", 2)], [*gangs, busy("old", "n0", 1)]))
    assert "1 pod of b with 2 cpu" in found["first"]
    assert "1 pod of a with 1 cpu" in found["second"]


def test_a_gang_that_has_everything_needs_no_reason() -> None:
    snapshot = cluster([node("n0", 4)], [asks(2, shape(1)), gang("h", ("w", 9, shape(1)))])
    assert told(snapshot).keys() == {"h"}


@pytest.mark.parametrize("leaves", [True, False])
def test_room_that_is_kept_where_pods_leave(leaves: bool) -> None:
    old = busy("old", "n0", 4)
    if leaves:
        old = replace(
            old, tasks=(replace(old.tasks[0], status=TaskStatus.RELEASING),), min_member=0
        )
    snapshot = cluster([node("n0", 4)], [asks(1, shape(2)), old])
    code = "WaitingForReleasedResources" if leaves else "NotEnoughResources"
    assert told(snapshot)["g"].startswith(f"{code}: ")
    assert binds(Bench.of(snapshot, RULES).actions(Bench.of(snapshot, RULES).greedy())) == {}


def test_idle_capacity_is_kept_for_gangs_with_nominated_nodes() -> None:
    leaves = running(gang("old", ("w", 1, shape(2))).tasks[0], "n0")
    old = gang("old", phase=GangPhase.RUNNING)
    old = replace(old, tasks=(replace(leaves, status=TaskStatus.RELEASING),))
    gangs = [gang("a", ("w", 1, shape(4))), gang("b", ("w", 1, shape(1))), old]
    bench = Bench.of(cluster([node("n0", 4)], gangs), RULES)
    nothing = bench.decisions({})
    nominated = replace(nothing, nominated=np.array([0, -1]))
    assert str(pending_of(bench.problem, nominated, RULES)["ns/b"]) == (
        "Outranked: idle capacity suffices for it, but is reserved for ns/a until pods terminate"
    )
    told = str(pending_of(bench.problem, nothing, RULES)["ns/b"])
    assert told.startswith("Outranked: idle capacity suffices for it, but no plan was found")


# --- enqueueing ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "waits"), [(1, True), (2, False)])
def test_a_gang_that_runs_does_not_wait_for_enqueueing(number: int, waits: bool) -> None:
    """The phase is still Pending, and the limit counts the running pods of the gang twice."""
    made = gang("g", ("w", 2, shape(2)), min_resources=((CPU, 4000),))
    there = tuple(running(t, "n0") for t in made.tasks[:number])
    made = replace(made, tasks=there, phase=GangPhase.PENDING)
    bench = Bench.of(cluster([node("n0", 4)], [made]), RuleSet.of(GangRule(), Overcommit()))
    decisions = bench.greedy(gated=True)
    assert decisions.refused.tolist() == [True]
    found = pending_of(bench.problem, decisions, bench.rules)
    assert list(found) == pending_keys(bench.problem, decisions)
    assert [str(reason.code) for reason in found.values()] == ["ClusterOvercommitted"] * waits
