"""Tests of limits of attached volumes, in every engine and the verifier."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from optsched.cluster.decisions import Evict, Nominate
from optsched.cluster.snapshot import Claim
from optsched.formats.snapshots.assembly import assemble
from optsched.plugins.gangs.gang import Gang
from optsched.plugins.ruleset import RuleSet
from optsched.plugins.storage.volume_limits import VolumeLimits
from optsched.policy import parse_policy, without_solver
from optsched.problem.compile import compile_problem
from optsched.session.session import SessionContext, run_session
from tests.conformance.play import solving
from tests.formats.objects import (
    CSI,
    bound_claim,
    csi_node,
    group,
    mounting,
    node,
    pod,
    thing,
    volume,
)
from tests.support.effort import num_examples
from tests.support.engines import assert_optimum, assert_rows_as_verified
from tests.support.small import cluster, gang, running, shape
from tests.support.small import node as small_node

if TYPE_CHECKING:
    from optsched.cluster.decisions import Plan
    from optsched.cluster.snapshot import Snapshot

CONF = """actions: enqueue, allocate, preempt, backfill
tiers:
- plugins:
  - name: priority
  - name: gang
- plugins:
  - name: predicates
    arguments:
      predicate.NodeVolumeLimitsEnable: {}
"""
GROUP = "scheduling.k8s.io/group-name"


def plans(*objects: dict[str, Any], on: str = "true") -> list[Plan]:
    """Return the plans of a session without and with a solver."""
    snapshot, policy = assemble(objects).snapshot, parse_policy(CONF.format(on), "limits.conf")
    found = [
        run_session(snapshot, without_solver(policy), SessionContext()),
        run_session(snapshot, policy, solving()),
    ]
    assert [r.trace.violations for r in found] == [(), ()]
    return [r.plan for r in found]


def waits(plan: Plan) -> str:
    """Return the reason of the only waiting gang."""
    (reason,) = plan.pending.values()
    return str(reason)


def evicted(plan: Plan) -> list[str]:
    return [a.task for a in plan.actions if isinstance(a, Evict)]


def nominated(plan: Plan) -> list[str]:
    return [a.task for a in plan.actions if isinstance(a, Nominate)]


def volumes(*names: str) -> list[dict[str, Any]]:
    """Return volumes, and bound claims of the same names."""
    return [each(name) for name in names for each in (volume, bound_claim)]


def runs(name: str, where: str, *claims: str, **status: Any) -> dict[str, Any]:
    """Return a running pod of another scheduler."""
    spec = {"schedulerName": "default-scheduler", "nodeName": where, **mounting(*claims)}
    return pod(name, spec, {"phase": "Running", **status})


# --- what is counted -----------------------------------------------------------------------------


def test_a_node_attaches_as_many_volumes_as_it_may() -> None:
    here = [node("n1"), csi_node("n1", csi=2), *volumes("a", "b", "c")]
    for plan in plans(*here, *(pod(f"p{c}", mounting(c)) for c in "abc")):
        assert len(plan.binds) == 2
        assert "NoNodeMatches" in waits(plan)
        assert f"cannot attach 1 more volume of driver {CSI} (limit 2)" in waits(plan)
    for plan in plans(*here, pod("p", mounting("a", "b", "c"))):
        assert f"cannot attach 3 more volumes of driver {CSI} (limit 2)" in waits(plan)


def test_a_volume_that_pods_of_a_node_share_counts_once() -> None:
    here = [node("n1"), csi_node("n1", csi=1), *volumes("a", "b"), runs("r", "n1", "a")]
    for plan in plans(*here, pod("p", mounting("a")), pod("q", mounting("a"))):
        assert len(plan.binds) == 2
    for plan in plans(*here, pod("p", mounting("b"))):
        assert not plan.binds
    twice = [volume("c", handle="a"), bound_claim("c")]
    for plan in plans(*here, *twice, pod("p", mounting("c"))):
        assert len(plan.binds) == 1


def test_a_gang_that_shares_a_volume_attaches_it_once_on_each_node() -> None:
    marked = [pod(f"g-{i}", mounting("a"), annotations={GROUP: "g"}) for i in range(6)]
    nodes = [node("n1"), node("n2")]
    for each in nodes:
        each["status"]["allocatable"]["pods"] = "3"
    limits = [csi_node("n1", csi=1), csi_node("n2", csi=1)]
    gang = [group("g", {"minMember": 6}), *marked, *volumes("a", "b")]
    for plan in plans(*nodes, *limits, *gang):
        assert len(plan.binds) == 6
    for plan in plans(*nodes, limits[0], csi_node("n2", csi=0), *gang):
        assert not plan.binds
        # The pods request one volume together, and only the second node has no attachment for it.
        assert f"cannot attach 1 more volume of driver {CSI} (limits 0 to 1)" in waits(plan)


def test_nodes_and_drivers_without_a_number_attach_any() -> None:
    asking = [pod(f"p{c}", mounting(c)) for c in "abc"]
    unlimited = thing("storage.k8s.io/v1", "CSINode", "n1", spec={"drivers": [{"name": CSI}]})
    for there in ([], [csi_node("n1", other=0)], [unlimited], [csi_node("n2", csi=0)]):
        for plan in plans(node("n1"), *there, *volumes(*"abc"), *asking):
            assert len(plan.binds) == 3


def test_a_claim_that_is_not_bound_counts_for_who_will_make_its_volume() -> None:
    late = thing(
        "storage.k8s.io/v1",
        "StorageClass",
        "late",
        provisioner=CSI,
        volumeBindingMode="WaitForFirstConsumer",
    )
    spec = {"storageClassName": "late"}
    claims = [thing("v1", "PersistentVolumeClaim", c, "ns", spec=spec) for c in ("x", "p-e")]
    ephemeral = {"volumes": [{"name": "e", "ephemeral": {"volumeClaimTemplate": {}}}]}
    asking = [pod("p", ephemeral), pod("q", mounting("x"))]
    for plan in plans(node("n1"), csi_node("n1", csi=1), late, *claims, *asking):
        assert len(plan.binds) == 1
        assert CSI in waits(plan)
    for plan in plans(node("n1"), csi_node("n1", csi=2), late, *claims, *asking):
        assert len(plan.binds) == 2


def test_what_is_not_of_a_csi_driver_is_not_counted() -> None:
    plain = thing("v1", "PersistentVolume", "a", spec={"hostPath": {"path": "/a"}})
    here = [node("n1"), csi_node("n1", csi=0), plain, bound_claim("a")]
    for plan in plans(*here, pod("p", mounting("a")), pod("q")):
        assert len(plan.binds) == 2


def test_with_too_many_attached_only_those_come_that_bring_none() -> None:
    here = [node("n1"), csi_node("n1", csi=1), *volumes("a", "b", "c"), runs("r", "n1", "a", "b")]
    asking = [pod("p", mounting("a")), pod("q", mounting("c")), pod("plain")]
    for plan in plans(*here, *asking):
        assert sorted(plan.binds) == ["ns/p", "ns/plain"]


def test_the_switch_turns_it_off() -> None:
    here = [node("n1"), csi_node("n1", csi=0), *volumes("a"), pod("p", mounting("a"))]
    assert [len(plan.binds) for plan in plans(*here, on="false")] == [1, 1]


def test_where_nobody_can_run_out_the_rule_has_no_say() -> None:
    rule = VolumeLimits()
    roomy = replace(small_node("n0"), attach_limits=((CSI, 2),))
    asking = gang("g", ("w", 1, shape(1, claims=("ns/a", "ns/b"))))
    claims = {f"ns/{c}": Claim(f"ns/{c}", driver=CSI, handle=c) for c in "ab"}
    for snapshot in (
        cluster([roomy], [asking]),
        replace(cluster([roomy], [asking]), claims=claims),
        replace(cluster([small_node("n0")], [asking]), claims=claims),
    ):
        problem = compile_problem(snapshot)
        assert rule.open(problem, None) is None  # type: ignore[arg-type]
        assert rule.mask(problem, 0) is None
        assert not rule.ties_nodes(problem, 0)


# --- victims -------------------------------------------------------------------------------------


def of_gang(name: str, priority: int, *pods: dict[str, Any]) -> list[dict[str, Any]]:
    made = thing("scheduling.k8s.io/v1", "PriorityClass", f"c{priority}", value=priority)
    marked = group(name, {"minMember": 1, "priorityClassName": f"c{priority}"})
    for each in pods:
        each["metadata"]["annotations"] = {GROUP: name}
        each["spec"]["priorityClassName"] = f"c{priority}"
    return [made, marked, *pods]


def low(name: str, claim: str) -> dict[str, Any]:
    spec = {"nodeName": "n1", **mounting(claim)}
    return pod(name, spec, {"phase": "Running"})


def test_who_has_a_volume_attached_leaves_for_one_that_needs_its_place() -> None:
    here = [node("n1"), csi_node("n1", csi=2), *volumes("a", "b", "c")]
    busy = of_gang("low", 1, low("l-a", "a"), low("l-b", "b"))
    for plan in plans(*here, *busy, *of_gang("high", 9, pod("h", mounting("c")))):
        assert len(evicted(plan)) == 1
        assert "ns/h" in nominated(plan)


def test_nobody_leaves_for_a_volume_that_others_keep_attached() -> None:
    here = [node("n1"), csi_node("n1", csi=1), *volumes("a", "c"), runs("r", "n1", "a")]
    busy = of_gang("low", 1, low("l-a", "a"))
    for plan in plans(*here, *busy, *of_gang("high", 9, pod("h", mounting("c")))):
        assert not evicted(plan)
        assert not nominated(plan)


def test_all_who_share_a_volume_leave_before_it_is_detached() -> None:
    here = [node("n1"), csi_node("n1", csi=2), *volumes("a", "b", "c", "d")]
    busy = of_gang("low", 1, *(low(f"l-{i}", c) for i, c in enumerate("aabb")))
    for each in busy:
        if each["kind"] == "PodGroup":
            each["spec"]["minMember"] = 0
    for plan in plans(*here, *busy, *of_gang("high", 9, pod("h", mounting("c", "d")))):
        assert len(evicted(plan)) == 4
    for plan in plans(*here, *busy, *of_gang("high", 9, pod("h", mounting("c")))):
        assert evicted(plan) in (["ns/l-0", "ns/l-1"], ["ns/l-2", "ns/l-3"])


def test_a_volume_of_a_pod_that_is_leaving_is_waited_for() -> None:
    here = [node("n1"), csi_node("n1", csi=1), *volumes("a", "c")]
    leaving = runs("r", "n1", "a")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for plan in plans(*here, leaving, pod("h", mounting("c"))):
        assert not plan.binds
        assert "ns/h" in nominated(plan)


def test_a_volume_that_is_waited_for_is_not_attached_yet() -> None:
    here = [node("n1"), csi_node("n1", csi=1), *volumes("a", "c")]
    leaving = runs("r", "n1", "a")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    for plan in plans(*here, leaving, pod("h0", mounting("c")), pod("h1", mounting("c"))):
        assert not plan.binds
        assert nominated(plan)


# --- against trying everything -------------------------------------------------------------------


def random_volumes(rng: np.random.Generator) -> Snapshot:
    """Draw two nodes with few attachments, some in use, and gangs that share volumes."""
    keys = [f"ns/c{i}" for i in range(6)]
    claims = {
        key: Claim(key, driver=str(rng.choice(["x", "y"])), handle=str(rng.choice(["", "0", "1"])))
        for key in keys
    }

    def asked() -> tuple[str, ...]:
        return tuple(sorted(rng.choice(keys, int(rng.integers(0, 3)), replace=False).tolist()))

    gangs = [
        gang(f"g{g}", ("w", int(rng.integers(1, 4)), shape(1, claims=asked())), least=1)
        for g in range(3)
    ]
    there = gang("r", ("w", 2, shape(1, claims=asked())))
    there = replace(there, tasks=tuple(running(t, f"n{i}") for i, t in enumerate(there.tasks)))
    nodes = [
        small_node(
            f"n{n}",
            64,
            attach_limits=tuple((d, int(rng.integers(0, 3))) for d in "xy" if rng.random() < 0.8),
        )
        for n in range(2)
    ]
    return replace(cluster(nodes, [*gangs, there]), claims=claims)


@pytest.mark.parametrize("seed", range(num_examples(60)))
def test_the_optimum_is_what_trying_everything_finds(seed: int) -> None:
    assert_optimum(random_volumes(np.random.default_rng(seed)), RuleSet.of(Gang(), VolumeLimits()))


@pytest.mark.parametrize("seed", range(num_examples(200)))
def test_rows_allow_just_what_the_verifier_accepts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    snapshot = random_volumes(rng)
    assert_rows_as_verified(rng, snapshot, RuleSet.of(VolumeLimits()), [None, "n0", "n1"])
