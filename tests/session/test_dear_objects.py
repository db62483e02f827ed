"""Objects that would delay a session wait with a reason, and other gangs start as usual."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from optsched.api.podgroup import MOST_RESOURCES, MOST_SUB_GROUP_POLICIES
from optsched.formats.codec.pods.task_shape import MOST_REQUIREMENTS, MOST_TERMS
from optsched.formats.snapshots.assembly import assemble
from optsched.session.session import SessionContext, run_session
from tests.formats.objects import claiming, device_claim, group, node, pod
from tests.plugins.test_device_claims import GROUP, POLICY

if TYPE_CHECKING:
    from optsched.cluster.decisions import Plan

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
MANY = MOST_TERMS + 1
EXISTS = {"key": "k", "operator": "Exists"}


def near(index: int) -> dict[str, Any]:
    absent = {"key": f"k{index}", "operator": "DoesNotExist"}
    return {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchExpressions": [absent]},
    }


def resources(number: int) -> list[dict[str, Any]]:
    requests = {f"example.com/r{index:03d}": "1" for index in range(number)}
    return [{"name": "c", "image": "i", "resources": {"requests": requests}}]


def dear(**spec: Any) -> dict[str, Any]:
    found = pod("dear")
    found["spec"].update(spec)
    return found


def plan_of(*objects: dict[str, Any]) -> Plan:
    snapshot = assemble([node("n1"), node("n2"), pod("plain"), *objects]).snapshot
    report = run_session(snapshot, POLICY, SessionContext())
    assert report.trace.violations == ()
    assert "ns/plain" in report.plan.binds
    return report.plan


DEAR: dict[str, tuple[dict[str, Any], str]] = {
    "affinity": (
        dear(affinity={"podAffinity": {REQUIRED: [near(i) for i in range(MANY)]}}),
        f"spec.affinity.podAffinity.{REQUIRED}: {MANY} terms are too many",
    ),
    "anti-affinity": (
        dear(affinity={"podAntiAffinity": {REQUIRED: [near(i) for i in range(MANY)]}}),
        f"spec.affinity.podAntiAffinity.{REQUIRED}: {MANY} terms are too many",
    ),
    "preferred pods": (
        dear(
            affinity={
                "podAffinity": {
                    PREFERRED: [{"weight": 1, "podAffinityTerm": near(i)} for i in range(MANY)]
                }
            }
        ),
        f"spec.affinity.podAffinity.{PREFERRED}: {MANY} terms are too many",
    ),
    "preferred nodes": (
        dear(
            affinity={
                "nodeAffinity": {PREFERRED: [{"weight": 1, "preference": {}} for _ in range(MANY)]}
            }
        ),
        f"spec.affinity.nodeAffinity.{PREFERRED}: {MANY} terms are too many",
    ),
    "spread": (
        dear(
            topologySpreadConstraints=[
                {**near(i), "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"} for i in range(MANY)
            ]
        ),
        f"spec.topologySpreadConstraints: {MANY} terms are too many",
    ),
    "resources": (
        dear(containers=resources(MANY)),
        f"spec.containers: {MANY} resource names are too many",
    ),
    "node selector": (
        dear(nodeSelector={f"k{i}": "v" for i in range(MANY)}),
        f"spec.nodeSelector: {MANY} terms are too many",
    ),
    "node affinity": (
        dear(
            affinity={
                "nodeAffinity": {
                    REQUIRED: {
                        "nodeSelectorTerms": [
                            {"matchExpressions": [EXISTS] * 2}
                            for _ in range(MOST_REQUIREMENTS // 2 + 1)
                        ]
                    }
                }
            }
        ),
        f"spec.affinity.nodeAffinity.{REQUIRED}: {MOST_REQUIREMENTS + 2} requirements are too many",
    ),
    "preferred node affinity": (
        dear(
            affinity={
                "nodeAffinity": {
                    PREFERRED: [
                        {"weight": 1, "preference": {"matchExpressions": [EXISTS] * 20}}
                        for _ in range(MOST_REQUIREMENTS // 20 + 1)
                    ]
                }
            }
        ),
        f"spec.affinity.nodeAffinity.{PREFERRED}: {MOST_REQUIREMENTS + 20} requirements are too "
        "many",
    ),
    "anti-affinity's selector": (
        dear(
            affinity={
                "podAntiAffinity": {
                    REQUIRED: [
                        {
                            "topologyKey": "kubernetes.io/hostname",
                            "labelSelector": {"matchExpressions": [EXISTS] * MOST_REQUIREMENTS},
                            "namespaceSelector": {"matchExpressions": [EXISTS]},
                        }
                    ]
                }
            }
        ),
        f"spec.affinity.podAntiAffinity.{REQUIRED}: {MOST_REQUIREMENTS + 1} requirements are too "
        "many",
    ),
    "claims": (
        dear(**claiming(*(f"c{i}" for i in range(MANY)))),
        f"spec.resourceClaims: {MANY} claims are too many",
    ),
}


@pytest.mark.parametrize(("waiting", "why"), DEAR.values(), ids=DEAR)
def test_a_pod_with_too_much_waits_and_says_why(waiting: dict[str, Any], why: str) -> None:
    plan = plan_of(waiting, device_claim("c0"))
    assert set(plan.binds) == {"ns/plain"}
    assert f"InvalidPod: pod ns/dear: {why}: write at most" in str(plan.pending["ns/pod:dear"])


def test_a_podgroup_with_too_much_waits_and_says_why() -> None:
    number = MOST_RESOURCES + 1
    least = {f"example.com/r{index}": "1" for index in range(number)}
    member = pod("member", annotations={GROUP: "g"})
    plan = plan_of(group("g", {"minMember": 1, "minResources": least}), member)
    assert set(plan.binds) == {"ns/plain"}
    assert f"spec.minResources: {number} resource names are too many" in str(plan.pending["ns/g"])


def test_what_a_running_pod_keeps_away_stays_away() -> None:
    """A pod of another scheduler may have any number of affinity terms."""
    terms = [near(0) for _ in range(MANY)]
    running = dear(affinity={"podAntiAffinity": {REQUIRED: terms}}, nodeName="n1")
    for each in (node_ := node("n1"), node("n2")):
        each["metadata"]["labels"] = {"kubernetes.io/hostname": each["metadata"]["name"]}
    snapshot = assemble([node_, pod("plain"), running]).snapshot
    report = run_session(snapshot, POLICY, SessionContext())
    assert not report.plan.binds


def test_resources_that_no_node_has_are_named_however_many() -> None:
    """Comparing all resources took time cubic in their number."""
    plan = plan_of(dear(containers=resources(60)))
    told = str(plan.pending["ns/pod:dear"])
    assert told.startswith("Impossible: ")
    assert all(f"example.com/r{index:03d}" in told for index in range(60))


def test_a_podgroup_with_too_many_subgroup_policies_waits_and_says_why() -> None:
    number = MOST_SUB_GROUP_POLICIES + 1
    policies = [
        {"name": f"p{i}", "subGroupSize": 1, "matchLabelKeys": ["l"]} for i in range(number)
    ]
    waiting = pod("dear", annotations={GROUP: "g"}, labels={"l": "v"})
    plan = plan_of(group("g", {"minMember": 1, "subGroupPolicy": policies}), waiting)
    reason = f"spec.subGroupPolicy: {number} entries are too many: write at most"
    assert reason in str(plan.pending["ns/g"])
    few = group("g", {"minMember": 1, "subGroupPolicy": policies[1:]})
    assert "ns/dear" in plan_of(few, waiting).binds
