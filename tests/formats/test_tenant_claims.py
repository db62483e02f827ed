"""Fields of objects that only the scheduler may write are ignored when a tenant writes them."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.api import kinds
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.formats.snapshots.assembly import READ_KINDS, assemble
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.cache.reflector import Listed
from tests.formats.objects import group, node, pod, queue, thing

CREATED = "2025-06-15T15:00:00Z"
MARKS = {
    "optsched.io/waiting-since": "2001-01-01T00:00:00Z",
    "optsched.io/problem": "Impossible: no",
    "optsched.io/device": "8 1000 A100",
    "optsched.io/vgpus": "8 1000 0 0",
    "optsched.io/owner": "u",
    "optsched.io/numa": "8000 8",
}
ENVELOPE = {
    "apiVersion": "optsched.io/v1alpha1",
    "kind": "Snapshot",
    "takenAt": "2025-06-15T15:00:00Z",
}


def marked(obj: dict[str, Any]) -> dict[str, Any]:
    obj["metadata"].setdefault("annotations", {}).update(MARKS)
    return obj


def read(*objects: dict[str, Any], options: DecodeOptions | None = None) -> Any:
    return assemble(objects, options, taken_ms=7).snapshot


def live(*objects: dict[str, Any], options: DecodeOptions | None = None) -> Any:
    cache = ClusterCache(options or DecodeOptions())
    for kind in READ_KINDS:
        found = [obj for obj in objects if kinds.find_kind(obj["apiVersion"], obj["kind"]) == kind]
        cache.apply(kind, Listed(tuple(found)))
    return cache.snapshot(7)


def claims() -> list[dict[str, Any]]:
    """Return a pod, its PodGroup and a queue with fields that only dumps may contain."""
    member = pod("p", annotations={"scheduling.k8s.io/group-name": "g"})
    objects = [marked(each) for each in (member, group("g"), queue("default"))]
    for number, obj in enumerate(objects):
        obj["metadata"] |= {"creationTimestamp": CREATED, "resourceVersion": str(number + 1)}
        obj["metadata"]["uid"] = f"u{number}"
    return objects


@pytest.mark.parametrize("source", [read, live], ids=["files", "cluster"])
def test_marks_of_dumps_do_not_count_outside_of_a_dump(source: Any) -> None:
    snapshot = source(*claims())
    (gang,) = snapshot.gangs
    (task,) = gang.tasks
    assert gang.waiting_since_ms == gang.created_ms
    assert (gang.problem, task.problem) == (None, None)
    assert all(queue.problem is None for queue in snapshot.queues)
    assert (task.shape.device, task.shape.shared_gpus, task.owner) == (None, (), "")
    assert task.shape.numa == ()


def test_marks_of_dumps_count_in_a_dump() -> None:
    (gang,) = read(*claims(), ENVELOPE).gangs
    assert gang.waiting_since_ms < gang.created_ms
    assert gang.problem is not None
    assert gang.tasks[0].shape.device is not None


@pytest.mark.parametrize("source", [read, live], ids=["files", "cluster"])
def test_only_the_administrator_lets_a_budget_yield_to_guarantees(source: Any) -> None:
    def yields(*more: dict[str, Any], options: DecodeOptions | None = None) -> bool:
        mark = {"optsched.io/yields-to-guarantees": "true"}
        meta = {"uid": "u", "resourceVersion": "1", "annotations": mark}
        budget = thing("policy/v1", "PodDisruptionBudget", "b", "ns", spec={"selector": {}})
        budget["metadata"] |= meta
        (found,) = source(budget, *more, options=options).budgets
        return bool(found.yields_to_guarantees)

    assert not yields()
    assert yields(options=DecodeOptions(guarantees_override_budgets=True))
    assert source is live or yields(ENVELOPE)


def vgpus(limits: dict[str, str], ids: str) -> dict[str, Any]:
    resources = {"containers": [{"name": "c", "resources": {"limits": limits}}], "nodeName": "n1"}
    return pod("p", resources, annotations={"volcano.sh/vgpu-ids-new": ids})


@pytest.mark.parametrize(
    ("limits", "ids", "num_held"),
    [
        ({"volcano.sh/vgpu-number": "1"}, "GPU-a,NVIDIA,1000,0:", 1),
        ({"volcano.sh/vgpu-number": "1"}, "GPU-a,NVIDIA,1000,0:GPU-b,NVIDIA,1000,0:", 0),
        ({"cpu": "1"}, "GPU-a,NVIDIA,1000,0:", 0),
    ],
)
def test_devices_that_a_pod_did_not_request_are_not_its_own(
    limits: dict[str, str], ids: str, num_held: int
) -> None:
    found = assemble([node(), vgpus(limits, ids)], taken_ms=7)
    ((task,),) = (gang.tasks for gang in found.snapshot.gangs)
    assert len(task.shared_gpus) == num_held
    reported = [p for p in found.problems if "names more devices than the pod" in str(p)]
    assert bool(reported) == (num_held == 0)
