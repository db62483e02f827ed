"""What a session leaves behind is freed at once, without a garbage collection."""

from __future__ import annotations

import gc

import pytest

from tests.oracle.clusters import FAMILIES, draw_cluster
from tests.oracle.sessions import decide, policy_of, snapshot_of, without_solver


@pytest.mark.parametrize("has_solver", [False, True])
@pytest.mark.parametrize("model", ["volcano-default", "crater"])
@pytest.mark.parametrize("family", FAMILIES)
def test_no_object_of_a_session_is_in_a_cycle_of_references(
    family: str, model: str, has_solver: bool
) -> None:
    """The arrays of a session would stay until a full collection, which is rare in large clusters.

    Collections count objects and not bytes.
    """
    policy = policy_of(model) if has_solver else without_solver(policy_of(model))
    snapshot = snapshot_of(draw_cluster(family, 7, 3))
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
    assert [k.__name__ for k in kinds if str(k.__module__).startswith("optsched")] == []
