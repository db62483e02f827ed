"""Tests of rules that watch single nodes, after decisions have been placed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.task import DeviceRequest, HostPort, PodTerm
from optsched.plugins.accounting import Outcome
from optsched.plugins.devices.gpu_shares import GpuShares
from optsched.plugins.explanations.explain import PlacedState
from optsched.plugins.nodes.node_filters import HostPorts, NodeAffinity
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.topology.pod_affinity import PodAffinity
from tests.support.engines import Bench
from tests.support.small import HOST, ZONE, cluster, gang, node, shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.snapshot import Gang
    from optsched.plugins.extension_points import Rule

WEB = (HostPort("TCP", "0.0.0.0", 80),)
APART = (PodTerm(LabelSelector((Requirement("app", Operator.IN, ("x",)),)), ("ns",), None, HOST),)
NODES = [node(f"n{i}", 4, gpu=1, labels={ZONE: "a"}) for i in range(3)]
PORTS, APARTS, AFFINITY, SHARES = HostPorts(), PodAffinity(), NodeAffinity(), GpuShares()
WATCHING: tuple[Rule, ...] = (AFFINITY, PORTS, APARTS, SHARES)


def standing(binds: Mapping[str, str], *gangs: Gang) -> PlacedState:
    """Return the placed state after binding tasks of the namespace `ns`."""
    bench = Bench.of(cluster(NODES, gangs), RuleSet.of(), ())
    decisions = bench.decisions({f"ns/{task}": where for task, where in binds.items()})
    return PlacedState(Outcome(bench.problem, decisions), WATCHING)


def open_to(found: PlacedState, task_class: int = 0) -> list[list[bool]]:
    return [mask.tolist() for _, mask in found.masks(task_class)]


WITH_PORTS = gang("g", ("w", 3, shape(1, host_ports=WEB)))


def test_only_rules_with_a_say_in_this_problem_watch() -> None:
    found = standing({}, WITH_PORTS)
    assert [rule for rule, _ in found.masks(0)] == [PORTS]
    nobody = standing({}, gang("g", ("w", 1, shape(1))))
    assert list(nobody.masks(0)) == []


def test_what_has_been_decided_counts() -> None:
    found = standing({"g-w-0": "n0", "g-w-1": "n2"}, WITH_PORTS)
    assert open_to(found) == [[False, True, False]]


def test_what_comes_and_goes_again_leaves_no_trace() -> None:
    found = standing({"g-w-0": "n0"}, WITH_PORTS)
    at, one = np.array([1]), np.array([1])
    found.placed(0, at, one)
    assert open_to(found) == [[False, False, True]]
    found.placed(0, at, -one)
    assert open_to(found) == [[False, True, True]]


def test_classes_see_what_others_have_taken() -> None:
    parts = gang("part", ("w", 1, shape(0, device=DeviceRequest(1, 700))))
    smaller = gang("small", ("w", 1, shape(0, device=DeviceRequest(1, 400))))
    found = standing({"part-w-0": "n1"}, parts, smaller)
    assert open_to(found, 0) == open_to(found, 1) == [[True, False, True]]


# --- all at once ---------------------------------------------------------------------------------

ROOM = np.full((1, 3), 4)


def test_as_many_as_stand_beside_each_other() -> None:
    shy = gang("g", ("w", 4, shape(1, pod_anti_affinity=APART)), labels={"app": "x"})
    found = standing({}, shy)
    assert found.most_together([(0, 4)], ROOM) == 3
    assert found.most_together([(0, 2)], ROOM) == 2
    assert standing({"g-w-0": "n1"}, shy).most_together([(0, 4)], ROOM) == 2


def test_nodes_take_no_more_than_they_have_room_for() -> None:
    plain = gang("g", ("w", 9, shape(1)))
    found = standing({}, plain)
    assert found.most_together([(0, 9)], np.array([[2, 0, 1]])) == 3
    assert found.most_together([(0, 2), (0, 2)], np.array([[2, 0, 1], [2, 0, 1]])) == 3


def test_trying_leaves_no_trace() -> None:
    found = standing({}, WITH_PORTS)
    before = open_to(found)
    assert found.most_together([(0, 3)], ROOM) == 3
    assert open_to(found) == before
    assert found.most_together([(0, 3)], ROOM) == 3


def test_nothing_asked_is_nothing_found() -> None:
    assert standing({}, WITH_PORTS).most_together([], np.zeros((0, 3), np.int64)) == 0
