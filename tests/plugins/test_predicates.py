"""Tests of rules for single nodes: affinity, taints, volumes, ports and GPU shares."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.selectors import (
    NodeSelector,
    NodeTerm,
    Operator,
    Requirement,
    Taint,
    TaintEffect,
    Toleration,
)
from optsched.cluster.snapshot import Claim
from optsched.cluster.task import DeviceRequest, HostPort, TaskShape
from optsched.plugins.devices.gpu_shares import Holding
from optsched.plugins.gangs.gang import Gang as GangRule
from optsched.plugins.nodes.node_filters import HostPorts, NodeAffinity, Taints
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.storage.volumes import Volumes
from tests.support.engines import Bench, binds, reason
from tests.support.small import HOST, ZONE, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optsched.cluster.snapshot import Gang, Node, Snapshot

RULES = RuleSet.of(GangRule(), NodeAffinity(), Taints(), HostPorts(), Volumes())
A, B, BARE = (
    node("na", labels={ZONE: "a", "cores": "64"}),
    node("nb", labels={ZONE: "b"}),
    node("nx"),
)


def one(what: TaskShape, number: int = 1, name: str = "g") -> Gang:
    return gang(name, ("w", number, what), least=1)


def open_nodes(snapshot: Snapshot, task: str = "ns/g-w-0") -> set[str]:
    """Return the nodes that a task may use; verifier, masks and model must agree."""
    bench = Bench.of(snapshot, RULES)
    names = {n.name for n in snapshot.nodes}
    allowed = {n for n in names if not bench.broken(bench.decisions({task: n}))}
    assert {n for n in names if bench.direct_allows({task: n})} == allowed
    for decisions in (bench.greedy(), bench.improved().decisions):
        assert bench.broken(decisions) == []
        assert bool(binds(bench.actions(decisions))) is bool(allowed)
    return allowed


def need(key: str, operator: Operator, *values: str) -> NodeSelector:
    return NodeSelector((NodeTerm((Requirement(key, operator, values),)),))


# --- node affinity -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"node_selector": ((ZONE, "a"),)}, {"na"}),
        ({"node_selector": ((ZONE, "a"), ("cores", "64"))}, {"na"}),
        ({"node_selector": ((ZONE, "a"), ("cores", "32"))}, set()),
        ({"node_affinity": need(ZONE, Operator.EXISTS)}, {"na", "nb"}),
        ({"node_affinity": need(ZONE, Operator.NOT_IN, "a")}, {"nb", "nx"}),
        ({"node_affinity": need("cores", Operator.GT, "32")}, {"na"}),
        ({"node_affinity": NodeSelector()}, set()),
        (
            {
                "node_selector": ((ZONE, "b"),),
                "node_affinity": need("cores", Operator.DOES_NOT_EXIST),
            },
            {"nb"},
        ),
    ],
)
def test_node_selectors_and_affinity(fields: dict[str, object], allowed: set[str]) -> None:
    assert open_nodes(cluster([A, B, BARE], [one(shape(1, **fields))])) == allowed


def test_the_refusal_says_what_was_asked_for() -> None:
    wants = shape(1, node_selector=(("gpu", "a100"),), node_affinity=need(ZONE, Operator.EXISTS))
    assert reason(cluster([A, BARE], [one(wants)]), RULES, "g") == (
        "NoNodeMatches: 1 pod of w with 1 cpu: 0/2 nodes are open to it: "
        "2 nodes did not match nodeSelector gpu=a100 and node affinity (zone)"
    )


# --- taints --------------------------------------------------------------------------------------


def tainted(name: str, effect: TaintEffect) -> Node:
    return node(name, taints=(Taint("spot", "yes", effect),))


MARKED = [
    tainted("n-schedule", TaintEffect.NO_SCHEDULE),
    tainted("n-execute", TaintEffect.NO_EXECUTE),
    tainted("n-soft", TaintEffect.PREFER_NO_SCHEDULE),
    node("n-cordoned", unschedulable=True),
    node("n-plain"),
]


@pytest.mark.parametrize(
    ("tolerations", "allowed"),
    [
        ((), {"n-soft", "n-plain"}),
        ((Toleration("spot", value="yes"),), {"n-soft", "n-plain", "n-schedule", "n-execute"}),
        (
            (Toleration("spot", exists=True, effect=TaintEffect.NO_EXECUTE),),
            {"n-soft", "n-plain", "n-execute"},
        ),
        (
            (Toleration("node.kubernetes.io/unschedulable", exists=True),),
            {"n-soft", "n-plain", "n-cordoned"},
        ),
        ((Toleration(exists=True),), {n.name for n in MARKED}),
    ],
)
def test_taints(tolerations: tuple[Toleration, ...], allowed: set[str]) -> None:
    assert open_nodes(cluster(MARKED, [one(shape(1, tolerations=tolerations))])) == allowed


def test_the_refusal_names_the_taints() -> None:
    assert reason(cluster([MARKED[0], MARKED[3]], [one(shape(1))]), RULES, "g") == (
        "NoNodeMatches: 1 pod of w with 1 cpu: 0/2 nodes are open to it: 2 nodes had untolerated "
        "taints node.kubernetes.io/unschedulable:NoSchedule, spot=yes:NoSchedule"
    )


# --- volumes -------------------------------------------------------------------------------------


def claims(**by_name: Claim) -> Mapping[str, Claim]:
    return {f"ns/{name}": claim for name, claim in by_name.items()}


def using(*names: str) -> TaskShape:
    return shape(1, claims=tuple(f"ns/{n}" for n in names))


IN_A = Claim("ns/local", nodes=need(ZONE, Operator.IN, "a"))
ANYWHERE = Claim("ns/nfs")
LOST = Claim("ns/lost", problem="is lost")


@pytest.mark.parametrize(
    ("names", "allowed"),
    [
        (("nfs",), {"na", "nb"}),
        (("local",), {"na"}),
        (("local", "nfs"), {"na"}),
        (("lost",), set()),
        (("nfs", "missing"), set()),
    ],
)
def test_volumes(names: tuple[str, ...], allowed: set[str]) -> None:
    snapshot = cluster([A, B], [one(using(*names))])
    known = claims(local=IN_A, nfs=ANYWHERE, lost=LOST)
    assert open_nodes(replace(snapshot, claims=known)) == allowed


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("lost", "VolumeUnavailable: persistent volume claim ns/lost: is lost"),
        (
            "gone",
            "VolumeUnavailable: persistent volume claim ns/gone does not exist",
        ),
        (
            "local",
            "NoNodeMatches: 1 pod of w with 1 cpu: 0/1 nodes are open to it: "
            "1 node cannot reach the volumes of ns/local",
        ),
    ],
)
def test_the_refusal_names_the_claim(name: str, sentence: str) -> None:
    snapshot = replace(cluster([B], [one(using(name))]), claims=claims(local=IN_A, lost=LOST))
    assert reason(snapshot, RULES, "g") == sentence


# --- host ports ----------------------------------------------------------------------------------

WEB = HostPort("TCP", "0.0.0.0", 80)
LOCAL_WEB = HostPort("TCP", "10.0.0.1", 80)
OTHER_WEB = HostPort("TCP", "10.0.0.2", 80)


def test_a_port_of_a_node_belongs_to_one_task() -> None:
    bench = Bench.of(cluster([A, B], [one(shape(1, host_ports=(WEB,)), 4)]), RULES)
    for decisions in (bench.greedy(), bench.improved().decisions):
        assert sorted(binds(bench.actions(decisions)).values()) == ["na", "nb"]


def test_ports_that_run_already_are_taken() -> None:
    made = one(shape(1, host_ports=(LOCAL_WEB,)), name="old")
    there = replace(made, tasks=(running(made.tasks[0], "na"),))
    wants = one(shape(1, host_ports=(WEB,)))
    assert open_nodes(cluster([A, B], [there, wants])) == {"nb"}
    assert reason(cluster([A], [there, wants]), RULES, "g") == (
        "NoNodeMatches: 1 pod of w with 1 cpu: 0/1 nodes are open to it: "
        "1 node did not have free host ports (80/TCP)"
    )


@pytest.mark.parametrize(
    ("ports", "together"),
    [
        ((LOCAL_WEB, OTHER_WEB), True),
        ((WEB, LOCAL_WEB), False),
        ((WEB, HostPort("UDP", "0.0.0.0", 80)), True),
    ],
)
def test_ports_of_one_plan_collide_by_address(ports: tuple[HostPort, ...], together: bool) -> None:
    gangs = [one(shape(1, host_ports=(p,)), name=f"g{i}") for i, p in enumerate(ports)]
    bench = Bench.of(cluster([A], gangs), RULES)
    both = {f"ns/g{i}-w-0": "na" for i in range(2)}
    assert bench.broken(bench.decisions(both)) == ([] if together else ["host-ports"])
    assert bench.direct_allows(both) is together
    for decisions in (bench.greedy(), bench.improved().decisions):
        assert len(binds(bench.actions(decisions))) == (2 if together else 1)


# --- parts of GPUs -------------------------------------------------------------------------------


def part(milli: int) -> TaskShape:
    return shape(0, device=DeviceRequest(1, milli))


@pytest.mark.parametrize(
    ("parts", "devices", "fits"),
    [
        ([], 0, True),
        ([500, 500], 1, True),
        ([600, 500], 1, False),
        ([600, 600, 400, 400], 2, True),
        ([700, 700, 600], 2, False),
        ([500, 400, 400, 300, 200, 200], 2, True),  # best fit needs backtracking for these shares
        ([400, 400, 400, 300, 300, 200], 2, True),  # a solution is 400+400+200 and 400+300+300
        ([1000], -1, False),
    ],
)
def test_parts_are_packed_in_whatever_way_fits(parts: list[int], devices: int, fits: bool) -> None:
    assert Holding(devices, 0, tuple(sorted(parts, reverse=True))).fits is fits


@pytest.mark.timeout(20)
def test_packing_that_fails_does_not_take_for_ever() -> None:
    # The 23 shares add up to 5 960 of 6 000 thousandths; trying every order would be too slow.
    parts = {410: 2, 350: 5, 310: 4, 290: 2, 230: 2, 170: 2, 130: 6}
    shares = tuple(part for part, number in parts.items() for _ in range(number))
    assert not Holding(6, 0, shares).fits


def test_parts_share_a_device_and_whole_gpus_do_not() -> None:
    nodes = [node("n0", gpu=2)]
    gangs = [one(part(400), 3, "parts"), one(shape(0, gpu=1), 1, "whole")]
    bench = Bench.of(cluster(nodes, gangs), RULES)
    two = {f"ns/parts-w-{i}": "n0" for i in range(2)}
    whole = {"ns/whole-w-0": "n0"}
    assert bench.broken(bench.decisions({**two, **whole})) == []
    assert bench.direct_allows({**two, **whole})
    three = {**two, "ns/parts-w-2": "n0"}
    assert bench.broken(bench.decisions(three)) == []
    assert bench.broken(bench.decisions({**three, **whole})) == ["gpu-shares"]
    assert not bench.direct_allows({**three, **whole})


def test_nodes_without_devices_have_no_part_to_give() -> None:
    snapshot = cluster([node("n0"), node("n1", gpu=1)], [one(part(300))])
    assert open_nodes(snapshot) == {"n1"}
    assert "had no GPU with 300/1000 free" in reason(
        cluster([node("n0")], [one(part(300))]), RULES, "g"
    )


def test_parts_of_pods_that_run_are_taken() -> None:
    made = one(part(700), name="old")
    there = replace(made, tasks=(running(made.tasks[0], "n0"),))
    assert open_nodes(cluster([node("n0", gpu=1)], [there, one(part(300))])) == {"n0"}
    assert open_nodes(cluster([node("n0", gpu=1)], [there, one(part(400))])) == set()


def test_hostname_is_a_label_like_any_other() -> None:
    bound = shape(1, node_selector=((HOST, "nb"),))
    assert open_nodes(cluster([A, B], [one(bound)])) == {"nb"}
