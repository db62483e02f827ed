"""Annotations of a tenant can make GPUs look idle or used; the bind record counts."""

from __future__ import annotations

from typing import Any

import pytest

from optsched.api import kinds
from optsched.cluster.node_resources import GpuShare, NumaPart
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.formats.snapshots.bound_devices import device_message
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.cache.reflector import Changed, Deleted
from tests.formats.objects import node, pod
from tests.kube.cluster import Objects

IDS = "volcano.sh/vgpu-ids-new"
DECISION = "volcano.sh/topology-decision"
OURS = DecodeOptions(device_schedulers=frozenset())
LIMITS = {"cpu": "4", "memory": "1Gi", "volcano.sh/vgpu-number": "1"}
HELD = GpuShare("GPU-a", 1000)
CELL = NumaPart(0, 4)
DECIDED = {DECISION: '{"numa":{"0":{"cpu":"4"}}}'}


def text(key: str) -> dict[str, str]:
    return {IDS: f"{key},NVIDIA,1000,0:"}


def asking(scheduler: str = "volcano", on: str = "", **annotations: str) -> dict[str, Any]:
    containers = [{"name": "c", "resources": {"limits": LIMITS, "requests": LIMITS}}]
    spec: dict[str, Any] = {"schedulerName": scheduler, "containers": containers}
    return pod("p", spec | ({"nodeName": on} if on else {}), uid="u", annotations=annotations)


class Live:
    """A cache that follows a cluster of one node."""

    def __init__(self, *listed: dict[str, Any], options: DecodeOptions = OURS) -> None:
        self.objects, self.cache = Objects(), ClusterCache(options)
        for each in (node("n1"), *listed):
            self.objects.put(each)
        self.objects.sync(self.cache)

    def put(self, obj: dict[str, Any]) -> None:
        self.cache.apply(*self.objects.put(obj))

    def held(self) -> tuple[tuple[GpuShare, ...], tuple[NumaPart, ...]]:
        (resident,) = self.cache.snapshot(0).nodes[0].residents
        return resident.shared_gpus, resident.numa

    def flaws(self) -> list[str]:
        assert {flaw.key for flaw in self.cache.flaws} <= {"ns/p"}
        return [flaw.message for flaw in self.cache.flaws]


def test_a_pod_that_comes_with_a_node_holds_no_device() -> None:
    live = Live()
    claiming = asking(on="n1", **text("GPU-a"), **DECIDED, **{"optsched.io/admitted-queue": "lab"})
    for _ in range(2):
        live.put(claiming)
        assert live.held() == ((), ())
        (message,) = live.flaws()
        assert "was created with its node" in message
        assert live.cache.snapshot(0).gangs[0].queue == "default"
    assert live.cache.uid(kinds.POD, "ns/p") == "u"
    event = live.objects.delete(kinds.POD, "ns/p")
    assert event is not None
    assert isinstance(event[1], Deleted)
    live.cache.apply(*event)
    assert live.flaws() == []


@pytest.mark.parametrize("later", [text("GPU-b"), {}, {**text("GPU-a"), DECISION: "{}"}])
def test_what_was_bound_counts_whatever_is_written_later(later: dict[str, str]) -> None:
    live = Live(asking())
    live.cache.assume_bound("ns/p", "n1", (HELD,), (), (CELL,))
    live.put(asking(on="n1", **text("GPU-a"), **DECIDED))
    assert (live.held(), live.flaws()) == (((HELD,), (CELL,)), [])
    live.put(asking(on="n1", **later))
    assert live.held() == ((HELD,), (CELL,))
    (message,) = live.flaws()
    assert (
        "it was bound with 4 CPUs and 0 GPUs of NUMA node 0, GPU-a, and only these count" in message
    )
    live.put(asking(on="n1", **text("GPU-a"), **DECIDED))
    assert live.flaws() == []


def test_what_another_process_has_bound_counts_as_it_was_first_seen() -> None:
    live = Live(asking())
    for key in ("GPU-a", "GPU-b"):
        live.put(asking(on="n1", **text(key)))
        assert live.held() == ((HELD,), ())
    assert len(live.flaws()) == 1


def test_a_scheduler_that_starts_anew_believes_as_much_as_a_pod_requests() -> None:
    assert Live(asking(on="n1", **text("GPU-a"), **DECIDED)).held() == ((HELD,), (CELL,))
    more = {IDS: "GPU-a,NVIDIA,1000,0:GPU-b,NVIDIA,1000,0:", DECISION: '{"numa":{"0":{"cpu":"5"}}}'}
    live = Live(asking(on="n1", **more))
    assert live.held() == ((), ())
    (message,) = live.flaws()
    assert "names more devices than the pod requests" in message


def test_a_pod_whose_claim_was_written_before_it_is_bound_holds_what_it_is_bound_with() -> None:
    live = Live(asking(**text("GPU-b"), **DECIDED))
    live.cache.assume_bound("ns/p", "n1", (HELD,))
    assert live.held() == ((HELD,), ())
    live.put(asking(on="n1", **text("GPU-a"), **DECIDED))
    assert live.held() == ((HELD,), ())
    assert len(live.flaws()) == 1


@pytest.mark.parametrize(
    ("known", "num_held"), [(frozenset[str](), 0), (frozenset({"hami"}), 1), (None, 1)]
)
def test_pods_of_other_schedulers_hold_devices_if_these_are_known_to_give_any(
    known: frozenset[str] | None, num_held: int
) -> None:
    claiming = asking("hami", on="n1", **text("GPU-a"))
    live = Live(claiming, options=DecodeOptions(device_schedulers=known))
    assert len(live.held()[0]) == num_held
    assert ["--device-scheduler=hami" in message for message in live.flaws()] == [True] * (
        1 - num_held
    )


def test_a_bind_that_failed_is_no_holding() -> None:
    live = Live(asking())
    live.cache.assume_bound("ns/p", "n1", (HELD,))
    live.cache.forget("ns/p")
    live.put(asking(on="n1", **text("GPU-b")))
    assert live.held()[0] == (GpuShare("GPU-b", 1000),)
    again = {**asking(on="n1"), "metadata": {**asking()["metadata"], "uid": "v"}}
    again["metadata"]["resourceVersion"] = "9999"
    live.cache.apply(kinds.POD, Changed(again))
    assert live.held()[0] == ()


def recorded(on: str = "n1", message: object = None) -> dict[str, Any]:
    """Return the pod that eve changed after a bind to n1 with `HELD` and `CELL`."""
    message = device_message(on, (HELD,), (CELL,)) if message is None else message
    condition = {"type": "optsched.io/BoundDevices", "status": "True", "message": message}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}, condition]}
    return asking(on="n1", **text("GPU-b")) | {"status": status}


@pytest.mark.parametrize("known", [frozenset[str](), None])
def test_a_scheduler_that_starts_anew_believes_the_record_of_the_bind(
    known: frozenset[str] | None,
) -> None:
    changed = recorded()
    live = Live(changed, options=DecodeOptions(scheduler_names=("x",), device_schedulers=known))
    assert live.held() == ((HELD,), (CELL,))
    (message,) = live.flaws()
    assert "holds GPU-b, but it was bound with" in message
    del changed["metadata"]["annotations"][IDS]
    changed["metadata"]["annotations"] |= {**text("GPU-a"), **DECIDED}
    live.put(changed)
    assert (live.held(), live.flaws()) == (((HELD,), (CELL,)), [])


@pytest.mark.parametrize(
    "changed",
    [
        recorded(on="n2"),
        recorded(message="{"),
        recorded(message=7),
        recorded(message='{"node":"n1","annotations":{"volcano.sh/vgpu-ids-new":1}}'),
        recorded(message='{"node":"n1","annotations":{"volcano.sh/gpu-index":"x"}}'),
        recorded(message='{"node":"n1"}'),
        recorded(message="[]"),
        asking(on="n1", **text("GPU-b")) | {"status": {"conditions": ["x", None]}},
        asking(on="n1", **text("GPU-b")) | {"status": {"conditions": 1}},
    ],
)
def test_a_record_of_another_bind_or_without_a_reading_counts_as_none(
    changed: dict[str, Any],
) -> None:
    live = Live(changed)
    assert live.held() == ((GpuShare("GPU-b", 1000),), ())


def test_what_this_process_has_bound_counts_before_any_record() -> None:
    live = Live(asking())
    live.cache.assume_bound("ns/p", "n1", (GpuShare("GPU-b", 1000),))
    live.put(recorded())
    assert live.held() == ((GpuShare("GPU-b", 1000),), ())
    assert live.flaws() == []
