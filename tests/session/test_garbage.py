"""The objects of a session are freed immediately, without a garbage collection."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

import pytest

from optsched.cluster.selectors import LabelSelector, Operator, Requirement
from optsched.cluster.task import PodTerm
from tests.oracle.clusters import FAMILIES, draw_cluster
from tests.oracle.sessions import decide, policy_of, snapshot_of, without_solver
from tests.support.effort import nightly_except
from tests.support.small import cluster, gang, node, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Snapshot
    from optsched.policy.policy import Policy


@pytest.mark.parametrize("has_solver", nightly_except([False, True], [True]))
@pytest.mark.parametrize("model", nightly_except(["volcano-default", "crater"], ["crater"]))
@pytest.mark.parametrize("family", FAMILIES)
def test_no_object_of_a_session_is_in_a_cycle_of_references(
    family: str, model: str, has_solver: bool
) -> None:
    """Arrays in cycles would stay until a full collection, which is rare in large clusters.

    Collections depend on the number of objects, not of bytes.
    """
    policy = policy_of(model) if has_solver else without_solver(policy_of(model))
    snapshot = snapshot_of(draw_cluster(family, 7, 3))
    assert left_in_cycles(snapshot, policy) == []


def test_preferences_of_pods_leave_none_either() -> None:
    apps = LabelSelector((Requirement("app", Operator.IN, ("a",)),))
    term = PodTerm(apps, ("ns",), None, "rack")
    near = shape(1, preferred_pods=((100, term),))
    nodes = [node(f"n{number}", 4, labels={"rack": f"r{number}"}) for number in range(3)]
    snapshot = cluster(nodes, [gang("g", ("w", 2, near), labels={"app": "a"})])
    policy = without_solver(policy_of("volcano-default"))
    assert left_in_cycles(snapshot, policy) == []


def left_in_cycles(snapshot: Snapshot, policy: Policy) -> list[str]:
    """Return the classes of objects that only a garbage collection frees after a session."""
    gc.collect()
    gc.disable()
    try:
        decide(snapshot, policy, 0.02)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
        kinds = {type(found) for found in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    return [k.__name__ for k in kinds if str(k.__module__).startswith("optsched")]
