"""Shared cases about waiting reasons, and small clusters of the same types."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import optsched
from optsched.cluster.reasons import ReasonCode
from optsched.cluster.snapshot import GangPhase, Queue
from optsched.policy.load import load_policy
from optsched.policy.policy import without_solver
from optsched.session.session import SessionContext, run_session
from tests.support.shared import shared
from tests.support.small import CPU, cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.reasons import Reason
    from optsched.cluster.snapshot import Snapshot

POLICY = without_solver(load_policy("volcano-default", lambda _: ""))


def reason(snapshot: Snapshot, key: str) -> Reason:
    """Return the reason for which a gang waits under the default model."""
    return run_session(snapshot, POLICY, SessionContext()).plan.pending[key]


def case(name: str) -> Snapshot:
    return optsched.read(shared("cases", "decisions", name))


# --- shared cases --------------------------------------------------------------------------------


def test_a_minimum_that_can_do_without_the_largest_pods_is_possible() -> None:
    found = reason(case("impossible_wrong.yaml"), "ml/g")
    assert found.code is ReasonCode.RESOURCES
    assert found.message.startswith("room for 1 of 2 pods of t0 with 7 cpu, 8 nvidia.com/gpu")


def test_a_pod_larger_than_any_node_is_impossible_not_over_its_share() -> None:
    found = reason(case("imp.yaml"), "ml/pod:lonely")
    assert found.code is ReasonCode.IMPOSSIBLE
    assert found.message.endswith("no node that it may use offers more than 32 cpu")


def test_a_resource_that_no_node_has_is_impossible_before_pods_exist() -> None:
    found = reason(case("imp3.yaml"), "ml/g")
    assert found.code is ReasonCode.IMPOSSIBLE
    assert "1 example.com/fpga" in found.message


# --- small clusters ------------------------------------------------------------------------------


def test_which_pods_make_up_the_minimum_is_a_choice() -> None:
    mixed = gang("g", ("a", 3, shape(1, 8)), ("b", 3, shape(1)), least=5)
    old = gang("old", ("w", 1, shape(1, 4)), phase=GangPhase.RUNNING)
    held = replace(old, tasks=(running(old.tasks[0], "n0"),))
    nodes = [node(name, 8, 8) for name in ("n0", "n1")]
    found = reason(cluster(nodes, [mixed, held]), "ns/g")
    assert (found.code, found.message) == (
        ReasonCode.RESOURCES,
        "room for 1 of 2 pods of a with 1 cpu, 8 nvidia.com/gpu: 1/2 nodes could take one; "
        "1 node had too little nvidia.com/gpu",
    )


def test_all_of_its_pods_are_too_many_where_a_minimum_is_not() -> None:
    nodes = [node(name, 8, 8) for name in ("n0", "n1")]
    whole = gang("g", ("a", 3, shape(1, 8)), ("b", 3, shape(1)))
    found = reason(cluster(nodes, [whole]), "ns/g")
    assert found.code is ReasonCode.IMPOSSIBLE
    assert found.message.endswith("has room for 5 only: too little nvidia.com/gpu")


def test_impossible_comes_before_shares_guarantees_and_capabilities() -> None:
    queues = [
        Queue("vip", guarantee=((CPU, 2000),)),
        Queue("q", capability=((CPU, 3000),)),
    ]
    found = reason(
        cluster([node("n0", 4)], [gang("g", ("w", 1, shape(5)), queue="q")], queues), "ns/g"
    )
    assert found.code is ReasonCode.IMPOSSIBLE
    assert "4 cpu" in found.message


def test_what_is_short_is_named_not_what_stands_next_to_it() -> None:
    nodes = [node("n0", 4, 8), node("n1", 4, 8)]
    found = reason(cluster(nodes, [gang("g", ("w", 3, shape(4, 1)))]), "ns/g")
    assert (found.code, found.message) == (
        ReasonCode.IMPOSSIBLE,
        "3 pods of w with 4 cpu, 1 nvidia.com/gpu: even an empty cluster has room for "
        "2 only: too little cpu",
    )
