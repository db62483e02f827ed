"""Tests of the zones of volumes: a pod must run in the zone of its existing volume."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.formats.snapshots.assembly import assemble
from optsched.policy import parse_policy
from optsched.session.session import SessionContext, run_session
from tests.conformance.play import solving
from tests.formats.objects import bound_claim, mounting, node, pod, volume

CONF = """actions: enqueue, allocate, backfill
tiers:
- plugins:
  - name: gang
  - name: predicates
    arguments:
      predicate.VolumeZoneEnable: {}
"""
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
OLD_REGION = "failure-domain.beta.kubernetes.io/region"


def chosen(of_volume: dict[str, str], *of_nodes: dict[str, str], on: str = "true") -> list[str]:
    """Return the nodes of pods with a volume, where each node holds one pod."""
    policy = parse_policy(CONF.format(on), "zones.conf")
    nodes = [node(f"n{i}", labels) for i, labels in enumerate(of_nodes)]
    for each in nodes:
        each["status"]["allocatable"]["pods"] = "1"
    pods = [pod(f"p{i}", mounting("v")) for i in range(len(nodes))]
    objects = [*nodes, *pods, bound_claim("v"), volume("v", of_volume)]
    snapshot = assemble(objects).snapshot
    reports = [run_session(snapshot, policy, s) for s in (SessionContext(), solving())]
    assert [r.trace.violations for r in reports] == [(), ()]
    greedy, solved = (sorted(r.plan.binds.values()) for r in reports)
    assert greedy == solved
    return greedy


@pytest.mark.parametrize(
    ("of_volume", "fits"),
    [
        ({ZONE: "a"}, {"a"}),
        ({ZONE: "a__b"}, {"a", "b"}),
        ({ZONE: "a__ b "}, {"a", "b"}),
        ({ZONE: "d"}, set()),
        ({OLD_ZONE: "a"}, {"a"}),
        ({OLD_ZONE: "a__b", ZONE: "b__c"}, {"b"}),
        ({ZONE: "a__"}, {"a", "b", "c"}),
        ({ZONE: ""}, {"a", "b", "c"}),
        ({}, {"a", "b", "c"}),
        ({REGION: "r"}, set()),
    ],
)
def test_a_pod_goes_to_the_zone_of_its_volume(of_volume: dict[str, str], fits: set[str]) -> None:
    zones = ("a", "b", "c")
    nodes = ({ZONE: zone} for zone in zones)
    assert chosen(of_volume, *nodes) == [f"n{i}" for i, z in enumerate(zones) if z in fits]


def test_nodes_that_name_no_zone_are_in_all_of_them() -> None:
    assert chosen({ZONE: "a", REGION: "r"}, {"rack": "x"}, {ZONE: "a"}) == ["n0"]


def test_old_labels_of_nodes_count_for_old_labels_of_volumes_only() -> None:
    nodes = ({OLD_ZONE: "a"}, {OLD_ZONE: "b", ZONE: "a"}, {OLD_REGION: "a"})
    assert chosen({OLD_ZONE: "a"}, *nodes) == ["n0"]
    assert chosen({ZONE: "a"}, *nodes) == ["n1"]


def test_zone_and_region_count_together() -> None:
    nodes = ({ZONE: "a", REGION: "r"}, {ZONE: "a", REGION: "s"}, {ZONE: "b", REGION: "r"})
    assert chosen({ZONE: "a", REGION: "r"}, *nodes) == ["n0"]


def test_the_switch_turns_it_off() -> None:
    assert chosen({ZONE: "a"}, {ZONE: "a"}, {ZONE: "b"}, on="false") == ["n0", "n1"]


def test_who_waits_is_told_where_the_volume_is() -> None:
    objects: list[dict[str, Any]] = [
        node("n0", {ZONE: "b"}),
        pod("p", mounting("v")),
        bound_claim("v"),
        volume("v", {ZONE: "a__c"}),
    ]
    policy = parse_policy(CONF.format("true"), "zones.conf")
    for around in (SessionContext(), solving()):
        plan = run_session(assemble(objects).snapshot, policy, around).plan
        (reason,) = plan.pending.values()
        told = f"did not match the zone of the volume of claim ns/v ({ZONE} a or c)"
        assert str(reason).startswith("NoNodeMatches")
        assert told in str(reason)
