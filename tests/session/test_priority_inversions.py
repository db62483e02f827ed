"""Gangs that start while more important pods of their queue are preempted."""

from __future__ import annotations

import pytest

from optsched.cluster.decisions import Allocate, Evict, Nominate
from optsched.session.priority_inversions import find_inverted
from tests.oracle.manifests import Cluster
from tests.oracle.sessions import snapshot_of


def _snapshot():
    cluster = Cluster()
    cluster.queue("here")
    cluster.queue("there")
    for name, value in (("middle", 10), ("high", 100)):
        cluster.priority_class(name, value)
    cluster.node("n0", {"cpu": 8})
    for name, queue, priority in (
        ("victim", "here", ("middle", 10)),
        ("low", "here", ("", 0)),
        ("equal", "here", ("middle", 10)),
        ("high", "here", ("high", 100)),
        ("apart", "there", ("", 0)),
    ):
        gang = cluster.gang(name, queue, 1, priority)
        cluster.pod(gang, f"{name}-0", {"cpu": 1}, **({"node": "n0"} if name == "victim" else {}))
    return snapshot_of(cluster)


def _placed(*names: str) -> list[Allocate | Nominate]:
    kinds = (Allocate, Nominate)
    return [kinds[i % 2](f"ml/{name}-0", "n0", f"ml/{name}") for i, name in enumerate(names)]


def test_gangs_below_the_priority_of_a_preempted_pod_of_their_queue_are_inverted():
    evict = Evict("ml/victim-0", "n0", "preempt", "ml/high")
    actions = [evict, *_placed("low", "equal", "high", "apart")]
    assert find_inverted(_snapshot(), actions) == {"ml/low"}


@pytest.mark.parametrize("action", ["reclaim", "consolidate", None])
def test_no_gang_is_inverted_without_a_preempted_pod(action: str | None):
    evictions = [] if action is None else [Evict("ml/victim-0", "n0", action, "ml/high")]
    assert find_inverted(_snapshot(), [*evictions, *_placed("low", "high")]) == set()
