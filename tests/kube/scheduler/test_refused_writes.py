"""Refused writes of statuses are reported once, and reserve no quota."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry, Counter

from optsched.api.kinds import POD_GROUP, Ref
from optsched.cluster.snapshot import GangPhase
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.client.errors import Conflict, Forbidden, KubeError
from optsched.kube.scheduler.binder import GangBackoff
from optsched.kube.scheduler.status_writer import MAX_REMEMBERED, RefusedWrites
from tests.formats.objects import group, node, pod
from tests.kube.fakes import FakeApi, FakeClock

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang

DENIED = Forbidden(403, "Forbidden", "denied by a webhook")
CHANGED = Conflict(409, "Conflict", "the object has been modified")


class World:
    """A PodGroup without pods and a PodGroup with a pod, and a handler of refused writes."""

    def __init__(self) -> None:
        member = pod("p", annotations={"scheduling.k8s.io/group-name": "full"})
        queued = {"scheduling.volcano.sh/group-scheduler": "volcano"}
        api = FakeApi(node("n1"), group("empty", annotations=queued), group("full"), member)
        self.clock, self.cache = FakeClock(), ClusterCache()
        api.tell(self.cache)
        self.registry = CollectorRegistry()
        counter = Counter("refused", "Refused", ("kind", "reason"), registry=self.registry)
        self.backoff = GangBackoff(self.cache, self.clock)
        self.writes = RefusedWrites(self.cache, self.backoff, counter)

    def gang(self, name: str) -> Gang:
        return self.cache.snapshot(0).gang_by_key[f"ns/{name}"]

    def num_refused(self) -> float:
        labels = {"kind": "PodGroup", "reason": "Forbidden"}
        return self.registry.get_sample_value("refused_total", labels) or 0.0


def of(name: str, namespace: str = "ns") -> Ref:
    return Ref(POD_GROUP, namespace, name)


def test_one_fault_is_one_warning_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    for name in ("a", "b", "a"):
        world.writes.record_refusal(of(name), DENIED)
    world.writes.record_refusal(of("c", "other"), DENIED)
    assert [record.getMessage() for record in caplog.records] == [
        "PodGroup ns/a not written: 403 Forbidden: denied by a webhook",
        "PodGroup other/c not written: 403 Forbidden: denied by a webhook",
    ]
    assert world.num_refused() == 4
    world.writes.record_success(of("d"))
    world.writes.record_refusal(of("b"), DENIED)
    assert len(caplog.records) == 3


def test_reasons_that_a_webhook_makes_up_add_no_series() -> None:
    """A webhook puts a number into the reason of each denial."""
    world = World()
    for number in range(200):
        world.writes.record_refusal(of("g"), Forbidden(403, f"denial {number}", ""))
    found = [sample for family in world.registry.collect() for sample in family.samples]
    refused = [sample for sample in found if sample.name == "refused_total"]
    assert [(sample.labels["reason"], sample.value) for sample in refused] == [("403", 200)]
    assert world.writes._faults == {(POD_GROUP, "ns"): {"403"}}


def test_faults_of_many_namespaces_are_forgotten() -> None:
    world = World()
    for number in range(2 * MAX_REMEMBERED):
        world.writes.record_refusal(of("g", f"ns-{number}"), DENIED)
        assert len(world.writes._faults) <= MAX_REMEMBERED


@pytest.mark.parametrize(
    ("name", "error", "is_held"),
    [("empty", DENIED, True), ("empty", CHANGED, False), ("full", DENIED, False)],
)
def test_a_gang_whose_phase_is_refused_waits_unless_it_has_pods(
    name: str, error: KubeError, *, is_held: bool
) -> None:
    world = World()
    world.cache.assume_enqueued(f"ns/{name}")
    assert world.gang(name).phase is GangPhase.INQUEUE
    world.writes.record_refusal(of(name), error)
    gang = world.gang(name)
    assert (gang.phase is GangPhase.PENDING) is is_held
    assert (gang.problem is not None) is is_held
    if is_held:
        assert str(gang.problem) == (
            "EnqueueFailed: the phase of PodGroup ns/empty could not be written: 403 Forbidden: "
            "denied by a webhook; next attempt in 1 s"
        )
        world.clock.seconds += 2
        world.backoff.release_due()
        assert world.gang(name).problem is None
