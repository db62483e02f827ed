"""Pods of one user with distinct terms or resources take a session little work for each pod."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from optsched.formats.snapshots.assembly import assemble
from optsched.session.session import SessionContext, run_session
from tests.formats.objects import node, pod, queue
from tests.plugins.test_device_claims import POLICY
from tests.session.test_costly_gangs import FAMILIES
from tests.session.test_dear_objects import REQUIRED, near

if TYPE_CHECKING:
    from types import FrameType

    from optsched.cluster.snapshot import Snapshot

HOST = "kubernetes.io/hostname"


def cluster(pods: list[dict[str, Any]], num_nodes: int) -> Snapshot:
    nodes = [node(f"n{i}") for i in range(num_nodes)]
    for each in nodes:
        each["metadata"]["labels"] = {HOST: each["metadata"]["name"]}
    return assemble([*nodes, queue("default"), *pods]).snapshot


def count_calls(snapshot: Snapshot) -> int:
    """Return the number of calls of functions in a session."""
    number = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal number
        number += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run_session(snapshot, POLICY, SessionContext(period_ms=1000))
    finally:
        sys.setprofile(None)
    return number


def selecting_all(kind: str, number: int) -> list[dict[str, Any]]:
    return [pod(f"p{i:03d}", {"affinity": {kind: {REQUIRED: [near(i)]}}}) for i in range(number)]


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
def test_work_is_in_proportion_to_the_pods_with_terms(kind: str) -> None:
    few = count_calls(cluster(selecting_all(kind, 40), 4))
    assert count_calls(cluster(selecting_all(kind, 160), 4)) < 4.5 * few


@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
def test_pods_that_others_keep_away_are_not_tried_on_each_node(kind: str) -> None:
    on_few_nodes = count_calls(cluster(selecting_all(kind, 80), 4))
    assert count_calls(cluster(selecting_all(kind, 80), 40)) < 1.2 * on_few_nodes


def test_a_lack_of_many_resources_is_explained_with_little_work() -> None:
    """All resources of a pod are raised together."""
    pods = [pod(f"p{i}", FAMILIES["resources"](i)) for i in range(10)]
    assert count_calls(cluster(pods, 2)) < 400_000
