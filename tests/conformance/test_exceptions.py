from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.exceptions import BY_DESIGN, LATER, MODES, read_exceptions
from tests.conformance.play import alone, play, solving
from tests.conformance.scenarios import Scenario, scenarios
from tests.support.shared import shared

ANTI_AFFINITY = "predicates.TestPodAntiAffinity.00.pod-anti-affinity"
ELSEWHERE = {ANTI_AFFINITY}
"""Volcano scenarios that are not among the shared ones, each run by a test below."""


def test_every_exception_is_about_a_scenario_and_says_why() -> None:
    shared("conformance")
    exceptions = read_exceptions()
    assert sorted(exceptions.keys() - {s.id for s in scenarios()} - ELSEWHERE) == []
    for reasons in exceptions.values():
        assert reasons
        assert reasons.keys() <= set(MODES)
        assert all(r.startswith((LATER, BY_DESIGN)) and len(r) > 25 for r in reasons.values())


def test_exceptions_stand_in_order_so_that_one_is_found() -> None:
    assert list(read_exceptions()) == sorted(read_exceptions())


@pytest.mark.parametrize("mode", MODES)
def test_a_gang_is_not_pipelined_because_no_plugin_votes_on_it(mode: str) -> None:
    """Volcano's TestPodAntiAffinity in predicates_test.go expects no eviction."""
    scenario = Scenario(ANTI_AFFINITY, "actions", _anti_affinity())
    is_pipeline = mode == "pipeline"
    policy = scenario.policy(**({"solver": "none"} if is_pipeline else {}))
    played = play(scenario.snapshot(), policy, alone() if is_pipeline else solving())
    # A pod that does not match the anti-affinity is not evicted.
    assert (played.evicted, played.pipelined) == ({"ns1/worker-1"}, {"ns1/worker-3": "n1"})
    assert mode in read_exceptions()[ANTI_AFFINITY]


def _anti_affinity() -> dict[str, Any]:
    amounts = {"cpu": "12", "memory": "12G", "pods": "2"}
    labels = {"kubernetes.io/hostname": "node1"}
    status = {"allocatable": amounts, "capacity": amounts}
    priorities = {"low": 10, "high": 100000}
    return {
        "schedulerConf": {
            "actions": "allocate, preempt",
            "tiers": [{"plugins": [{"name": "predicates"}, _priority()]}],
            "configurations": [
                {"name": "preempt", "arguments": {"enableTopologyAwarePreemption": True}}
            ],
        },
        "objects": {
            "nodes": [_object("Node", "n1", {}, labels=labels) | {"status": status}],
            "priorityClasses": [
                {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
                | {"metadata": {"name": name}, "value": value}
                for name, value in priorities.items()
            ],
            "queues": [
                _object("Queue", "q1", {"capability": {"cpu": "9", "memory": "9G"}})
                | {"status": {"state": "Open"}}
            ],
            "podGroups": [_group("pg1", 0, "Running", "low"), _group("pg2", 1, "Inqueue", "high")],
            "pods": [
                _pod("worker-1", "pg1", "n1", priorities["high"], is_apart=True),
                _pod("worker-2", "pg1", "n1", priorities["low"]),
                _pod("worker-3", "pg2", "", priorities["high"], is_apart=True),
            ],
        },
        "actual": {},
        "capturedAt": "2026-11-20T18:22:11Z",
    }


def _priority() -> dict[str, Any]:
    off = ("enableJobOrder", "enableTaskOrder", "enableJobPipelined")
    return {"name": "priority", **dict.fromkeys(off, False)}


def _object(kind: str, name: str, spec: dict[str, Any], **meta: Any) -> dict[str, Any]:
    version = "v1" if kind in ("Node", "Pod") else "scheduling.volcano.sh/v1beta1"
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": name, **meta},
        "spec": spec,
    }


def _group(name: str, least: int, phase: str, priority: str) -> dict[str, Any]:
    spec = {"minMember": least, "queue": "q1", "priorityClassName": priority}
    return _object("PodGroup", name, spec, namespace="ns1") | {"status": {"phase": phase}}


def _pod(
    name: str, group: str, node: str, priority: int, *, is_apart: bool = False
) -> dict[str, Any]:
    term = {
        "labelSelector": {"matchExpressions": [{"key": "role", "operator": "Exists"}]},
        "topologyKey": "kubernetes.io/hostname",
    }
    kept = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    spec = {
        "priority": priority,
        "nodeName": node,
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "3", "memory": "3G"}}}],
        **({"affinity": {"podAntiAffinity": kept}} if is_apart else {}),
    }
    labels = {"role": "worker"} if is_apart else {}
    marks = {"scheduling.k8s.io/group-name": group}
    made = _object("Pod", name, spec, namespace="ns1", labels=labels, annotations=marks)
    return made | {"status": {"phase": "Running" if node else "Pending"}}
