from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from optsched.api import kinds
from optsched.api.wellknown import Subject, format_submitters
from optsched.cluster.dra_devices import DeviceGrant, DeviceId
from optsched.cluster.node_resources import GpuShare
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.relocation import MOVES
from optsched.cluster.task import TaskStatus
from optsched.formats.codec.pods.reader import DecodeOptions, PodDecoder, has_left_cluster
from optsched.formats.snapshots.assembly import READ_KINDS, assemble
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.cache.reflector import Changed, Deleted, Listed
from tests.formats.objects import (
    CSI,
    allocated,
    claiming,
    csi_node,
    device_claim,
    device_class,
    device_slice,
    group,
    node,
    pod,
    queue,
    thing,
    volume,
)
from tests.kube.cluster import Objects, key_of, kind_of
from tests.support.effort import num_examples

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Snapshot

IN_G = {"annotations": {"scheduling.k8s.io/group-name": "g"}}
OPTIONS = DecodeOptions(scheduler_names=("volcano", "optsched"))


class Cluster:
    """A server, a cache that follows it, and the expected contents of the cache."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = Objects()
        self.cache = ClusterCache(OPTIONS)
        self.assumed: dict[str, str] = {}
        self.admitted: dict[str, str] = {}
        self.shown: dict[str, str] = {}
        for obj in objects:
            self.objects.put(obj)
        self.objects.sync(self.cache)

    def put(self, obj: dict[str, Any]) -> None:
        before = self.objects.get(kind_of(obj), key_of(obj))
        self.cache.apply(*self.objects.put(obj))
        if obj["kind"] == "Pod" and (not is_pending(obj) or uid(before) != uid(obj)):
            self.assumed.pop(key_of(obj), None)

    def delete(self, kind: kinds.Kind, key: str) -> None:
        event = self.objects.delete(kind, key)
        if event is not None:
            self.cache.apply(*event)
        if kind == kinds.POD:
            self.assumed.pop(key, None)

    def assume(self, key: str, node: str) -> None:
        obj = self.objects.get(kinds.POD, key)
        pending = obj is not None and is_pending(obj) and key not in self.assumed
        exists = self.objects.get(kinds.NODE, node) is not None
        assert self.cache.can_assume(key, node) is (pending and exists)
        if pending and exists:
            assert self.cache.assume_bound(key, node) == uid(obj)
            self.assumed[key] = node
            gang = PodDecoder(OPTIONS).task(obj).gang if obj else ""
            if gang in self.shown:
                self.admitted.setdefault(gang, self.shown[gang])

    def forget(self, key: str) -> None:
        self.cache.forget(key)
        self.assumed.pop(key, None)

    def snapshot(self) -> Snapshot:
        return self.cache.snapshot(7)

    def expected(self) -> Snapshot:
        objects = self.objects.all()
        for obj in objects:
            if obj["kind"] == "Pod" and key_of(obj) in self.assumed:
                obj["spec"]["nodeName"] = self.assumed[key_of(obj)]
                obj["status"] = {}
        snapshot = assemble(objects, OPTIONS, 7).snapshot
        # The right to join depends on the queue that a gang counts for.
        held = {g.key for g in snapshot.gangs if any(t.status.holds_resources for t in g.tasks)}
        for obj in objects:
            if obj["kind"] == "PodGroup":
                is_upstream = obj["apiVersion"].startswith("scheduling.k8s.io")
                space, _, name = key_of(obj).partition("/")
                key = f"{space}/k8s:{name}" if is_upstream else f"{space}/{name}"
                if key in held & self.admitted.keys() and not is_upstream:
                    obj["spec"]["queue"] = self.admitted[key]
        snapshot = assemble(objects, OPTIONS, 7).snapshot
        gangs = tuple(self.as_admitted(gang) for gang in snapshot.gangs)
        for key in self.admitted.keys() - {gang.key for gang in gangs}:
            del self.admitted[key]
        self.shown = {gang.key: gang.queue for gang in gangs}
        return replace(snapshot, gangs=gangs)

    def as_admitted(self, gang: Gang) -> Gang:
        """Return the gang in the queue for which its pods were bound, if it has bound pods."""
        if not any(task.status.holds_resources for task in gang.tasks):
            self.admitted.pop(gang.key, None)
            return gang
        return replace(gang, queue=self.admitted.setdefault(gang.key, gang.queue))


def uid(obj: dict[str, Any] | None) -> str:
    return obj["metadata"].get("uid", "") if obj else ""


def is_pending(obj: dict[str, Any]) -> bool:
    task = PodDecoder(OPTIONS).task(obj)
    return bool(task.gang) and task.status is TaskStatus.PENDING and not has_left_cluster(obj)


def test_a_podgroup_whose_pods_are_all_another_schedulers_is_not_ours():
    cluster = Cluster()
    cluster.put(group("g", {"minMember": 1}))
    assert [gang.key for gang in cluster.snapshot().gangs] == ["ns/g"]
    named = {"annotations": {"scheduling.k8s.io/group-name": "g"}}
    cluster.put(pod("theirs", {"schedulerName": "other"}, **named))
    assert cluster.snapshot().gangs == ()
    cluster.put(pod("ours", {"schedulerName": "volcano"}, **named))
    assert [task.key for task in cluster.snapshot().gangs[0].tasks] == ["ns/ours"]
    cluster.delete(kinds.POD, "ns/ours")
    assert cluster.snapshot().gangs == ()
    cluster.delete(kinds.POD, "ns/theirs")
    assert [gang.key for gang in cluster.snapshot().gangs] == ["ns/g"]


# --- the contract --------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c"])
node_names = st.sampled_from(["n1", "n2"])
namespaces = st.sampled_from(["ns", "other"])
marks = st.dictionaries(
    st.sampled_from(
        [
            "scheduling.k8s.io/group-name",
            "scheduling.volcano.sh/queue-name",
            "volcano.sh/task-index",
        ]
    ),
    st.sampled_from(["g", "h", "1"]),
)


records = st.sampled_from(
    [
        {},
        *(
            {"optsched.io/submitter": format_submitters([Subject(user)], joined)}
            for user, joined in (("ann", None), ("eve", None), ("eve", ""), ("bob", "u1 h"))
        ),
    ]
)


def listing_queue(name: str, users: str, weight: int) -> dict[str, Any]:
    found = queue(name, weight=weight)
    found["metadata"]["annotations"] = {"optsched.io/users": users}
    return found


@st.composite
def pods(draw: st.DrawFn) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "schedulerName": draw(st.sampled_from(["volcano", "optsched", "other"]))
    }
    status: dict[str, Any] = {"phase": draw(st.sampled_from(["Pending", "Running", "Succeeded"]))}
    more: dict[str, Any] = {"uid": draw(st.sampled_from(["u1", "u2"])), "annotations": draw(marks)}
    more["annotations"] |= draw(records)
    if draw(st.booleans()):
        spec["nodeName"] = draw(node_names)
    if draw(st.booleans()):
        spec["priority"] = draw(st.integers(0, 3))
    elif draw(st.booleans()):
        spec["priorityClassName"] = draw(st.sampled_from(["high", "low"]))
    if draw(st.integers(0, 3)) == 0:
        more["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if draw(st.integers(0, 3)) == 0:
        spec["schedulingGates"] = [{"name": "wait"}]
    if draw(st.integers(0, 2)) == 0:
        spec["schedulingGroup"] = {"podGroupName": draw(st.sampled_from(["g", "h"]))}
    if draw(st.integers(0, 5)) == 0:
        spec["containers"] = [{"name": "c", "resources": {"requests": {"cpu": "lots"}}}]
    if draw(st.integers(0, 2)) == 0:
        spec |= claiming(*draw(st.lists(names, max_size=2, unique=True)))
    return pod(draw(names), spec, status, namespace=draw(namespaces), **more)


def namespace_of(name: str, annotations: dict[str, str], team: str) -> dict[str, Any]:
    space = thing("v1", "Namespace", name)
    space["metadata"] |= {"annotations": annotations, "labels": {"team": team}}
    return space


MEMBERS = (
    *({"type": "Node", "selector": {"exactMatch": {"name": name}}} for name in ("n1", "n2")),
    *({"type": "HyperNode", "selector": {"exactMatch": {"name": f"s{i}"}}} for i in range(3)),
    {"type": "Node", "selector": {"regexMatch": {"pattern": "^n[12]"}}},
    {"type": "Node", "selector": {"labelMatch": {"matchLabels": {"zone": "a"}}}},
)


def hypernode(name: str, tier: int, members: list[dict[str, Any]]) -> dict[str, Any]:
    spec = {"tier": tier, "members": members}
    return thing("topology.volcano.sh/v1alpha1", "HyperNode", name, spec=spec)


def scheduling_group(name: str, namespace: str, version: str, policy: object) -> dict[str, Any]:
    spec = {"schedulingPolicy": policy, "priorityClassName": "high"}
    return thing(f"scheduling.k8s.io/{version}", "PodGroup", name, namespace, spec=spec)


group_specs = st.fixed_dictionaries(
    {
        "minMember": st.integers(0, 3),
        "queue": st.sampled_from(["default", "h"]),
        "priorityClassName": st.sampled_from(["high", "low", ""]),
    }
)


def device_claim_of(version: str, name: str, namespace: str, uids: list[str]) -> dict[str, Any]:
    status = allocated("d0", node_name="n1", uids=tuple(uids)) if uids else None
    marks = {"resource.kubernetes.io/pod-claim-name": "gpu"} if len(uids) == 1 else {}
    made = device_claim(name, len(uids) + 1, status, namespace=namespace, annotations=marks)
    return {**made, "apiVersion": f"resource.k8s.io/{version}"}


claim_specs = st.fixed_dictionaries(
    {"volumeName": st.sampled_from(["", "v"]), "storageClassName": st.just("fast")}
)


def numatopology(name: str, free: str, held: int) -> dict[str, Any]:
    """Return a machine of four CPUs in two NUMA nodes.

    `held` is the number of pods whose allocations are recorded.
    """
    allocations = [{"name": "c", "allocations": {"cpu": "3"}}]
    pods = [{"name": "a", "namespace": "ns", "containerAllocations": allocations}][:held]
    spec = {
        "policies": {"CPUManagerPolicy": "static", "TopologyManagerPolicy": "restricted"},
        "numares": {"cpu": {"allocatable": free}},
        "cpuDetail": {str(n): {"numa": n // 2, "core": n} for n in range(4)},
        "podAllocations": pods,
    }
    return thing("nodeinfo.volcano.sh/v1alpha1", "Numatopology", name, spec=spec)


others = st.one_of(
    st.builds(numatopology, node_names, st.sampled_from(["0-2", "0", "x"]), st.integers(0, 1)),
    st.builds(
        node, node_names, st.fixed_dictionaries({"zone": names}), unschedulable=st.booleans()
    ),
    st.builds(
        group,
        st.sampled_from(["g", "h"]),
        group_specs,
        namespace=namespaces,
        annotations=records,
        uid=st.sampled_from(["u1", "u2"]),
    ),
    st.builds(
        listing_queue,
        st.sampled_from(["default", "h"]),
        st.sampled_from(["", "ann", "ann,eve"]),
        st.integers(1, 2),
    ),
    st.builds(namespace_of, namespaces, marks, names),
    st.builds(
        thing,
        st.just("scheduling.k8s.io/v1"),
        st.just("PriorityClass"),
        st.sampled_from(["high", "low"]),
        value=st.integers(1, 9),
        globalDefault=st.booleans(),
    ),
    st.builds(
        thing,
        st.just("v1"),
        st.just("PersistentVolumeClaim"),
        names,
        namespaces,
        spec=claim_specs,
    ),
    st.builds(
        volume,
        st.just("v"),
        st.sampled_from([{}, {"topology.kubernetes.io/zone": "a__b"}]),
        st.sampled_from(["h", "i"]),
    ),
    st.builds(csi_node, node_names, csi=st.sampled_from([0, 2, None, "many"])),
    st.builds(
        thing,
        st.just("storage.k8s.io/v1"),
        st.just("StorageClass"),
        st.just("fast"),
        provisioner=st.sampled_from(["", CSI]),
        volumeBindingMode=st.sampled_from(["Immediate", "WaitForFirstConsumer"]),
    ),
    st.builds(
        scheduling_group,
        st.sampled_from(["g", "h"]),
        namespaces,
        st.sampled_from(["v1beta1", "v1alpha3"]),
        st.sampled_from([{"basic": {}}, {"gang": {"minCount": 2}}, {"gang": {}}]),
    ),
    st.builds(
        thing,
        st.just("shard.volcano.sh/v1alpha1"),
        st.just("NodeShard"),
        st.sampled_from(["volcano", "batch"]),
        spec=st.fixed_dictionaries({"nodesDesired": st.lists(node_names, max_size=2)}),
        status=st.fixed_dictionaries({"nodesInUse": st.lists(node_names, max_size=2)}),
    ),
    st.builds(
        device_claim_of,
        st.sampled_from(["v1", "v1beta1"]),
        names,
        namespaces,
        st.lists(st.sampled_from(["u1", "u2"]), unique=True),
    ),
    st.builds(device_slice, node_names, names),
    st.builds(device_class, st.just("gpu"), st.sampled_from(["true", "device.x"])),
    st.builds(
        hypernode,
        st.sampled_from(["s0", "s1", "s2"]),
        st.integers(0, 2),
        st.lists(st.sampled_from(MEMBERS), max_size=3),
    ),
)


def fields_of(snapshot: Snapshot) -> tuple[object, ...]:
    parts = (snapshot.nodes, snapshot.gangs, snapshot.queues, snapshot.claims, snapshot.namespaces)
    return tuple(map(id, (*parts, snapshot.topology, snapshot.sharding, snapshot.devices)))


@settings(max_examples=num_examples(120), deadline=None)
@given(st.data())
def test_what_is_kept_is_what_would_be_read_anew(data: st.DataObject):
    cluster = Cluster()
    objects, cache = cluster.objects, cluster.cache
    for _ in range(data.draw(st.integers(1, 25))):
        match data.draw(st.integers(0, 9)):
            case 0 | 1 | 2:
                cluster.put(data.draw(pods()))
            case 3 | 4:
                cluster.put(data.draw(others))
            case 5:
                key = data.draw(
                    st.sampled_from(
                        [(kind_of(o), key_of(o)) for o in objects.all()] or [(kinds.POD, "ns/a")]
                    )
                )
                cluster.delete(*key)
            case 6:
                old = data.draw(st.sampled_from(objects.history or objects.list(kinds.POD)))
                cache.apply(*copy.deepcopy(old))
            case 7:
                cluster.assume(f"{data.draw(namespaces)}/{data.draw(names)}", data.draw(node_names))
            case 8:
                cluster.forget(f"{data.draw(namespaces)}/{data.draw(names)}")
            case _:
                for event in objects.list(data.draw(st.sampled_from(READ_KINDS))):
                    cache.apply(*event)
        if data.draw(st.booleans()):
            assert cluster.snapshot() == cluster.expected()
    before = cluster.snapshot()
    assert before == cluster.expected()
    assert fields_of(cluster.snapshot()) == fields_of(before)


# --- examples ------------------------------------------------------------------------------------


def gang_of(snapshot: Snapshot, key: str = "ns/g") -> Any:
    return snapshot.gang_by_key[key]


def test_only_what_changed_is_new():
    others = [node(f"n{i}") for i in range(5)], [pod(f"o{i}") for i in range(5)]
    cluster = Cluster(*others[0], *others[1], group("g"), pod("p", **IN_G))
    before = cluster.snapshot()
    cluster.put(pod("p", {"nodeName": "n3"}, {"phase": "Running"}, **IN_G))
    after = cluster.snapshot()
    assert [n.name for n, old in zip(after.nodes, before.nodes, strict=True) if n is not old] == [
        "n3"
    ]
    assert [g.key for g, old in zip(after.gangs, before.gangs, strict=True) if g is not old] == [
        "ns/g"
    ]
    assert after.queues is before.queues
    assert after.claims is before.claims
    assert after.namespaces is before.namespaces
    assert gang_of(after).tasks[0].shape is gang_of(before).tasks[0].shape


def test_a_change_that_means_nothing_changes_nothing():
    cluster = Cluster(node("n1"), group("g"), pod("p", {"nodeName": "n1"}, **IN_G))
    before = cluster.snapshot()
    cluster.put(pod("p", {"nodeName": "n1"}, {"conditions": [{"type": "Ready"}]}, **IN_G))
    cluster.put(node("n1"))
    cluster.put(group("g"))
    assert fields_of(cluster.snapshot()) == fields_of(before)


def test_listing_again_reads_nothing_again(monkeypatch: pytest.MonkeyPatch):
    cluster = Cluster(node("n1"), group("g"), pod("p", **IN_G))
    before = cluster.snapshot()
    monkeypatch.setattr(PodDecoder, "task", None)
    cluster.objects.sync(cluster.cache)
    assert fields_of(cluster.snapshot()) == fields_of(before)


def test_a_list_says_what_is_gone():
    cluster = Cluster(node("n1"), node("n2"), pod("a"), pod("b"), queue("q"), group("g"))
    for kind, key in [
        (kinds.NODE, "n1"),
        (kinds.POD, "ns/a"),
        (kinds.QUEUE, "q"),
        (kinds.POD_GROUP, "ns/g"),
    ]:
        cluster.objects.delete(kind, key)
    cluster.objects.sync(cluster.cache)
    found = cluster.snapshot()
    assert [n.name for n in found.nodes] == ["n2"]
    assert [g.key for g in found.gangs] == ["ns/pod:b"]
    assert [q.name for q in found.queues] == ["default", "root"]


def test_a_list_that_starts_anew_does_not_forget_what_it_has_not_reached():
    cluster = Cluster(pod("a"), pod("b"), pod("c"))
    first, *_ = cluster.objects.list(kinds.POD)
    cluster.cache.apply(*first)
    assert len(cluster.snapshot().gangs) == 3
    for event in cluster.objects.list(kinds.POD):
        cluster.cache.apply(*event)
    assert len(cluster.snapshot().gangs) == 3


def test_it_is_synced_once_every_kind_was_listed():
    cache, objects = ClusterCache(), Objects()
    for kind in READ_KINDS:
        assert not cache.is_synced
        cache.apply(kind, Listed((), is_first=True, is_last=False))
        assert not cache.is_synced
        for event in objects.list(kind):
            cache.apply(*event)
    assert cache.is_synced


def test_an_older_state_never_comes_back():
    cluster = Cluster(node("n1"), pod("p"))
    _, pending = cluster.objects.history[-1]
    cluster.put(pod("p", {"nodeName": "n1"}))
    cluster.cache.apply(kinds.POD, pending)
    assert cluster.snapshot().node_by_name["n1"].residents[0].key == "ns/p"
    cluster.delete(kinds.POD, "ns/p")
    cluster.cache.apply(kinds.POD, pending)
    assert cluster.snapshot().gangs == ()


def test_an_old_deletion_does_not_hit_the_pod_that_came_after():
    cluster = Cluster(pod("p", uid="u1"))
    _, deletion = cluster.objects.delete(kinds.POD, "ns/p") or (None, None)
    cluster.put(pod("p", uid="u2"))
    assert isinstance(deletion, Deleted)
    cluster.cache.apply(kinds.POD, deletion)
    assert gang_of(cluster.snapshot(), "ns/pod:p").tasks[0].uid == "u2"


def test_versions_that_are_no_numbers_count_as_new():
    cache, obj = ClusterCache(), pod("p")
    for version in ("x1", "7", "x2"):
        changed = {**obj, "metadata": {**obj["metadata"], "resourceVersion": version}}
        cache.apply(kinds.POD, Changed({**changed, "spec": {**obj["spec"], "nodeName": version}}))
        assert cache.task("ns/p") is not None
        assert cache.task("ns/p").node == version  # type: ignore[union-attr]


def test_a_bind_under_way_counts_until_a_watch_confirms_it():
    cluster = Cluster(node("n1"), group("g"), pod("p", uid="u", **IN_G))
    assert cluster.cache.assume_bound("ns/p", "n1") == "u"
    assumed = cluster.snapshot()
    task = assumed.node_by_name["n1"].residents[0]
    assert (task.status, task.node) == (TaskStatus.BOUND, "n1")
    assert gang_of(assumed).tasks == (task,)
    assert cluster.cache.task("ns/p").status is TaskStatus.PENDING  # type: ignore[union-attr]

    cluster.put(pod("p", status={"conditions": []}, uid="u", labels={"x": "y"}, **IN_G))
    assert gang_of(cluster.snapshot()).tasks[0].node == "n1"

    before = cluster.snapshot()
    cluster.put(pod("p", {"nodeName": "n1"}, uid="u", labels={"x": "y"}, **IN_G))
    assert fields_of(cluster.snapshot()) == fields_of(before)
    cluster.forget("ns/p")
    assert gang_of(cluster.snapshot()).tasks[0].node == "n1"


@pytest.mark.parametrize(
    "contradiction",
    [
        pod("p", {"nodeName": "n2"}, uid="u", **IN_G),
        pod("p", uid="other", **IN_G),
        pod("p", uid="u", deletionTimestamp="2026-01-01T00:00:00Z", **IN_G),
        pod("p", status={"phase": "Failed"}, uid="u", **IN_G),
    ],
)
def test_a_bind_under_way_ends_when_a_watch_contradicts_it(contradiction: dict[str, Any]):
    cluster = Cluster(node("n1"), node("n2"), group("g"), pod("p", uid="u", **IN_G))
    cluster.cache.assume_bound("ns/p", "n1")
    cluster.put(contradiction)
    assert cluster.snapshot().node_by_name["n1"].residents == ()


def test_a_pod_that_terminates_is_evicted_if_it_was_planned_to_be():
    ended = {"deletionTimestamp": "2026-01-01T00:00:00Z", **IN_G}
    cluster = Cluster(node("n1"), group("g"), pod("p", {"nodeName": "n1"}, uid="u", **IN_G))
    assert cluster.cache.assume_evicted("ns/p", "n1") == "u"
    assert gang_of(cluster.snapshot()).tasks[0].is_evicted
    for labels in ({}, {"x": "y"}):
        cluster.put(pod("p", {"nodeName": "n1"}, uid="u", labels=labels, **ended))
        assert gang_of(cluster.snapshot()).tasks[0].is_evicted
    cluster.put(pod("p", {"nodeName": "n1"}, uid="other", **ended))
    assert not gang_of(cluster.snapshot()).tasks[0].is_evicted


def test_a_pod_that_is_deleted_after_its_eviction_was_given_up_is_not_evicted():
    running = pod("p", {"nodeName": "n1"}, uid="u", **IN_G)
    cluster = Cluster(node("n1"), group("g"), running)
    cluster.cache.assume_evicted("ns/p", "n1")
    cluster.cache.forget_eviction("ns/p")
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z", **IN_G}
    cluster.put(pod("p", {"nodeName": "n1"}, uid="u", **deleted))
    assert not gang_of(cluster.snapshot()).tasks[0].is_evicted


def test_only_pending_tasks_can_be_assumed_and_only_on_nodes_that_exist():
    cluster = Cluster(node("n1"), pod("p"), pod("gated", {"schedulingGates": [{"name": "x"}]}))
    can_assume = cluster.cache.can_assume
    assert not can_assume("ns/none", "n1")
    assert not can_assume("ns/gated", "n1")
    assert not can_assume("ns/p", "n2")
    assert can_assume("ns/p", "n1")
    cluster.cache.assume_bound("ns/p", "n1")
    assert not can_assume("ns/p", "n1")


def test_a_gang_counts_as_enqueued_until_a_watch_reports_its_phase() -> None:
    """Otherwise the next session could promise the same quota to another gang."""
    cluster = Cluster(group("g"))

    def phase() -> str:
        return cluster.cache.snapshot(0).gang_by_key["ns/g"].phase.value

    version = cluster.cache.version
    cluster.cache.assume_enqueued("ns/unknown")
    assert cluster.cache.version == version
    cluster.cache.assume_enqueued("ns/g")
    cluster.cache.assume_enqueued("ns/g")
    assert cluster.cache.version == version + 1
    assert phase() == "Inqueue"
    cluster.put(group("g", annotations={"a": "b"}))  # the write of the phase has not landed yet
    assert phase() == "Inqueue"
    cluster.put({**group("g"), "status": {"phase": "Inqueue"}})
    assert phase() == "Inqueue"
    cluster.put({**group("g"), "status": {"phase": "Pending"}})
    assert phase() == "Pending"


def test_the_assumption_that_a_gang_is_enqueued_ends_with_the_term_or_the_podgroup() -> None:
    cluster = Cluster(group("g"))

    def phase() -> str:
        return cluster.cache.snapshot(0).gang_by_key["ns/g"].phase.value

    cluster.cache.assume_enqueued("ns/g")
    cluster.cache.forget_enqueued()
    assert phase() == "Pending"
    cluster.cache.assume_enqueued("ns/g")
    cluster.put(group("g", uid="another"))
    assert phase() == "Pending"


@pytest.mark.parametrize("is_confirmed", [False, True], ids=["not yet written", "written"])
def test_a_podgroup_whose_pods_have_left_is_not_assumed_to_be_enqueued(*, is_confirmed: bool):
    """Otherwise it would reserve resources as long as a finalizer keeps its deleted pod."""
    made = group("podgroup-u")
    made["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}
    ]
    member = pod("p", uid="u", annotations={"scheduling.k8s.io/group-name": "podgroup-u"})
    cluster = Cluster(made, member)
    cluster.cache.assume_enqueued("ns/podgroup-u")

    def phase() -> str:
        return cluster.cache.snapshot(0).gang_by_key["ns/podgroup-u"].phase.value

    assert phase() == "Inqueue"
    if is_confirmed:
        cluster.put({**made, "status": {"phase": "Inqueue"}})
    gone = {**member, "status": {"phase": "Failed"}}
    gone["metadata"] = {**member["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    cluster.put(gone)
    assert phase() == "Pending"
    cluster.put({**made, "status": {"phase": "Inqueue"}})
    assert phase() == "Pending"


def test_a_held_gang_says_why_until_it_is_released():
    cluster = Cluster(group("g"), pod("p", **IN_G))
    before, why = cluster.snapshot(), Reason(ReasonCode.NOT_BOUND, "the server said no")
    cluster.cache.hold_gang("ns/g", why)
    assert gang_of(cluster.snapshot()).problem == why
    cluster.cache.release_gang("ns/g")
    assert cluster.snapshot() == before


def test_its_own_problem_comes_before_being_held():
    cluster = Cluster(pod("p", **IN_G))
    own = gang_of(cluster.snapshot()).problem
    cluster.cache.hold_gang("ns/g", Reason(ReasonCode.NOT_BOUND, "the server said no"))
    assert gang_of(cluster.snapshot()).problem == own


def test_nodes_may_be_chosen_by_label():
    cache, objects = ClusterCache(takes_node=lambda labels: labels.get("pool") == "gpu"), Objects()
    objects.put(node("n1", {"pool": "gpu"}))
    objects.put(node("n2", {"pool": "cpu"}))
    objects.sync(cache)
    assert [n.name for n in cache.snapshot(0).nodes] == ["n1"]
    cache.apply(*objects.put(node("n1", {"pool": "cpu"})))
    assert cache.snapshot(0).nodes == ()


def test_everything_that_matters_grows_the_version():
    cluster = Cluster(node("n1"), pod("p"))
    seen = [cluster.cache.version]

    def grown() -> bool:
        seen.append(cluster.cache.version)
        return seen[-1] > seen[-2]

    cluster.put(pod("p", labels={"x": "y"}))
    assert grown()
    cluster.cache.apply(*cluster.objects.history[0])
    assert not grown()
    cluster.assume("ns/p", "n1")
    assert grown()
    cluster.delete(kinds.POD, "ns/p")
    assert grown()


# --- what pods count for -------------------------------------------------------------------------


def bound(name: str, **more: Any) -> dict[str, Any]:
    """Return a running pod of the gang g."""
    return pod(name, {"nodeName": "n1"}, {"phase": "Running"}, **more)


def test_pods_count_for_the_queue_that_admitted_them_whatever_their_podgroup_says_then() -> None:
    cluster = Cluster(node("n1"), group("g", {"queue": "a"}), bound("p", **IN_G))
    assert gang_of(cluster.snapshot()).queue == "a"
    cluster.put(group("g", {"queue": "b"}))
    assert gang_of(cluster.snapshot()).queue == "a"
    cluster.delete(kinds.POD_GROUP, "ns/g")
    assert gang_of(cluster.snapshot()).queue == "a"
    cluster.put(group("g", {"queue": "b"}))
    assert gang_of(cluster.snapshot()).queue == "a"
    cluster.put(pod("p", {"nodeName": "n1"}, {"phase": "Succeeded"}, **IN_G))
    assert gang_of(cluster.snapshot()).queue == "b", "nothing is held any more"


def test_what_is_being_bound_when_its_podgroup_goes_counts_for_its_queue() -> None:
    cluster = Cluster(node("n1"), group("g", {"queue": "a"}), pod("p", **IN_G))
    cluster.snapshot()
    cluster.cache.assume_bound("ns/p", "n1")
    cluster.delete(kinds.POD_GROUP, "ns/g")
    assert gang_of(cluster.snapshot()).queue == "a"
    cluster.cache.forget("ns/p")
    assert gang_of(cluster.snapshot()).queue == "default"


def test_a_scheduler_that_starts_anew_reads_from_pods_what_they_count_for() -> None:
    noted = {**IN_G["annotations"], "optsched.io/admitted-queue": "a"}
    cluster = Cluster(node("n1"), bound("p", annotations=noted), pod("q", annotations=noted))
    assert gang_of(cluster.snapshot()).queue == "a"
    cluster.delete(kinds.POD, "ns/p")
    assert gang_of(cluster.snapshot()).queue == "default", "no binder has written it"


def test_a_scheduler_that_starts_anew_counts_pods_where_they_were_admitted() -> None:
    """Their PodGroup has moved to another queue, or was created again there, before the start."""
    noted = {**IN_G["annotations"], "optsched.io/admitted-queue": "a"}
    moved = group("g", {"queue": "b"})
    cluster = Cluster(node("n1"), moved, bound("p", annotations=noted), bound("q", **IN_G))
    assert gang_of(cluster.snapshot()).queue == "a"
    cluster.put(pod("p", {"nodeName": "n1"}, {"phase": "Succeeded"}, annotations=noted))
    assert gang_of(cluster.snapshot()).queue == "a", "q still holds resources"
    cluster.delete(kinds.POD, "ns/q")
    assert gang_of(cluster.snapshot()).queue == "b"


# --- PodGroups without pods ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "noted", "is_ours"),
    [
        (("volcano", "optsched"), "", True),
        (("volcano", "optsched"), "research", False),
        (("research",), "", False),
        (("research",), "research", True),
    ],
)
def test_a_podgroup_without_pods_is_for_one_scheduler(
    names: tuple[str, ...], noted: str, *, is_ours: bool
) -> None:
    cache, objects = ClusterCache(DecodeOptions(scheduler_names=names)), Objects()
    made = group("g", {"minMember": 1})
    made["metadata"]["annotations"] = {"optsched.io/scheduler": noted} if noted else {}
    objects.put(made)
    objects.sync(cache)
    assert ("ns/g" in cache.snapshot(7).gang_by_key) is is_ours
    cache.apply(*objects.put(pod("p", {"schedulerName": names[0]}, **IN_G)))
    assert "ns/g" in cache.snapshot(7).gang_by_key, "whose pods are ours is ours"


def test_a_podgroup_that_is_deleted_waits_for_no_pods() -> None:
    """A finalizer keeps the PodGroup in the API; with pods it still counts as a gang."""
    cache, objects = ClusterCache(), Objects()
    made = group("g", {"minMember": 1})
    made["metadata"]["deletionTimestamp"] = "2026-11-26T12:00:00Z"
    objects.put(made)
    objects.sync(cache)
    assert "ns/g" not in cache.snapshot(7).gang_by_key
    cache.apply(*objects.put(pod("p", {"schedulerName": "volcano"}, **IN_G)))
    assert "ns/g" in cache.snapshot(7).gang_by_key


# --- priorities of PodGroups ----------------------------------------------------------------------


def lifted(classes: frozenset[str] | None, *pods: dict[str, Any], **spec: Any) -> ClusterCache:
    """Return a cache whose PodGroup names the class `high`."""
    objects = Objects()
    high = {"metadata": {"name": "high"}, "value": 1000, "kind": "PriorityClass"}
    objects.put({"apiVersion": "scheduling.k8s.io/v1", **high})
    objects.put(group("g", {"priorityClassName": "high", **spec}))
    for each in pods:
        objects.put(each)
    cache = ClusterCache(replace(OPTIONS, lifting_classes=classes))
    objects.sync(cache)
    return cache


def of_g(name: str, priority: int, **annotations: str) -> dict[str, Any]:
    marks = {**IN_G["annotations"], **annotations}
    return pod(name, {"priority": priority}, annotations=marks)


@pytest.mark.parametrize(
    ("pods", "classes", "priority"),
    [
        ((of_g("a", 7), of_g("b", 1000)), frozenset[str](), 7),
        ((of_g("a", 7, **{"volcano.sh/task-priority": "9999"}),), frozenset[str](), 7),
        ((of_g("a", 1000), of_g("b", 2000)), frozenset[str](), 1000),
        ((of_g("a", 7),), frozenset({"low"}), 7),
        ((of_g("a", 7),), frozenset({"high"}), 1000),
        ((of_g("a", 7),), None, 1000),
        ((), frozenset[str](), 1000),
    ],
)
def test_a_podgroup_counts_at_most_as_its_pods_unless_its_class_may_lift_it(
    pods: tuple[dict[str, Any], ...], classes: frozenset[str] | None, priority: int
) -> None:
    cache = lifted(classes, *pods)
    assert gang_of(cache.snapshot(0)).priority == priority
    assert [flaw.key for flaw in cache.flaws] == (["ns/g"] if priority == 7 else [])


def test_a_podgroup_whose_pods_gain_priority_is_reported_no_more() -> None:
    cache = lifted(frozenset(), of_g("a", 7))
    assert gang_of(cache.snapshot(0)).priority == 7
    (flaw,) = cache.flaws
    assert "--tenant-priority-class=high" in flaw.message
    later = of_g("a", 1000)
    later["metadata"]["resourceVersion"] = "9999"
    cache.apply(kinds.POD, Changed(later))
    assert gang_of(cache.snapshot(0)).priority == 1000
    assert cache.flaws == ()


def test_pods_without_their_podgroup_do_not_count_by_what_an_annotation_says() -> None:
    cache = lifted(frozenset(), of_g("a", 7, **{"volcano.sh/task-priority": "9999"}))
    cache.apply(
        kinds.POD_GROUP,
        Deleted(
            {**group("g"), "metadata": {"name": "g", "namespace": "ns", "resourceVersion": "99"}}
        ),
    )
    assert gang_of(cache.snapshot(0)).priority == 7


# --- ends of assumptions --------------------------------------------------------------------------


def test_a_nomination_counts_until_a_watch_confirms_it_and_then_follows_the_server() -> None:
    """Without the end, the nomination would outlast a change by another writer."""
    cluster = Cluster(node("n1"), node("n2"), group("g"), pod("p", uid="u", **IN_G))

    def nominated() -> str:
        return gang_of(cluster.snapshot()).tasks[0].nominated_node

    assert cluster.cache.assume_nominated("ns/p", "n1")
    cluster.put(pod("p", uid="u", labels={"x": "y"}, **IN_G))
    assert nominated() == "n1"
    # The watch reports the nomination together with another change.
    named = {"nominatedNodeName": "n1"}
    cluster.put(pod("p", status=named, uid="u", labels={"x": "z"}, **IN_G))
    assert nominated() == "n1"
    cluster.put(pod("p", status={"nominatedNodeName": "n2"}, uid="u", labels={"x": "z"}, **IN_G))
    assert nominated() == "n2"
    assert cluster.cache.assume_nominated("ns/p", "n1")


def test_nominations_that_are_not_written_can_be_dropped() -> None:
    pods = [pod(name, uid=name, **IN_G) for name in "pq"]
    cluster = Cluster(node("n1"), group("g"), *pods)
    cluster.cache.assume_nominated("ns/p", "n1")
    cluster.assume("ns/q", "n1")
    version = cluster.cache.version
    cluster.cache.forget_nominations()
    assert cluster.cache.version > version
    by_name = {task.name: task for task in gang_of(cluster.snapshot()).tasks}
    assert (by_name["p"].nominated_node, by_name["q"].node) == ("", "n1")


@pytest.mark.parametrize("is_bare", [False, True])
def test_a_record_of_moved_pods_ends_with_its_gang(*, is_bare: bool) -> None:
    """A new object with the same name may arrive before a snapshot shows that the old one left."""
    more = {} if is_bare else IN_G
    key = "ns/pod:p" if is_bare else "ns/g"
    member = pod("p", uid="u", **more)
    cluster = Cluster(node("n1"), group("g", uid="first"), member)
    cluster.snapshot()
    cluster.cache.assume_moves(key, "text")
    assert gang_of(cluster.snapshot(), key).annotations[MOVES] == "text"
    cluster.put(pod("p", uid="other", **more))
    cluster.put(group("g", uid="second"))
    assert MOVES not in gang_of(cluster.snapshot(), key).annotations
    cluster.cache.assume_moves("ns/gone", "text")
    cluster.put(group("gone", uid="third"))
    cluster.put(pod("r", uid="r", annotations={"scheduling.k8s.io/group-name": "gone"}))
    assert MOVES not in gang_of(cluster.snapshot(), "ns/gone").annotations


def test_devices_are_not_assumed_for_a_new_claim_with_the_same_name() -> None:
    claim = device_claim("c", uid="first")
    waits = pod("p", {**claiming("c")}, uid="u", **IN_G)
    cluster = Cluster(node("n1"), device_class(), claim, group("g"), waits)
    cluster.snapshot()
    grant = DeviceGrant("ns/c", (("gpu", DeviceId("d", "n1", "gpu-0")),))
    cluster.cache.assume_bound("ns/p", "n1", devices=(grant,))
    assert cluster.snapshot().devices.claims["ns/c"].allocation is not None
    cluster.put(device_claim("c", uid="first", labels={"x": "y"}))
    assert cluster.snapshot().devices.claims["ns/c"].allocation is not None
    cluster.put(device_claim("c", uid="second"))
    assert cluster.snapshot().devices.claims["ns/c"].allocation is None


@pytest.mark.parametrize("is_listed_first", [False, True])
def test_devices_that_were_freed_before_a_list_are_not_assumed_any_more(
    *, is_listed_first: bool
) -> None:
    """The watch was broken while the claim had devices, so no event shows them."""
    claim = device_claim("c")
    waits = pod("p", {**claiming("c")}, uid="u", **IN_G)
    cluster = Cluster(node("n1"), device_class(), claim, group("g"), waits)
    cluster.snapshot()
    grant = DeviceGrant("ns/c", (("gpu", DeviceId("d", "n1", "gpu-0")),))
    cluster.cache.assume_bound("ns/p", "n1", devices=(grant,))

    def has_devices() -> bool:
        return cluster.snapshot().devices.claims["ns/c"].allocation is not None

    kind = kinds.RESOURCE_CLAIMS[0]
    cluster.put(device_claim("c", labels={"before": "the bind"}))
    _, stored = cluster.objects.put(device_claim("c", status=allocated("d0", node_name="n1")))
    assert isinstance(stored, Changed)
    version = stored.obj["metadata"]["resourceVersion"]
    cluster.objects.put(device_claim("c"))
    if not is_listed_first:
        cluster.cache.record_stored_devices("ns/c", version)
    assert has_devices()
    for event in cluster.objects.list(kind):
        cluster.cache.apply(*event)
    if is_listed_first:
        assert has_devices()
        cluster.cache.record_stored_devices("ns/c", version)
    assert not has_devices()


def test_devices_of_a_failed_bind_do_not_count_when_an_eviction_was_planned_meanwhile() -> None:
    share = GpuShare("0", memory=4)
    cluster = Cluster(node("n1"), group("g"), pod("p", uid="u", **IN_G))
    cluster.cache.assume_bound("ns/p", "n1", (share,))
    assert cluster.cache.assume_evicted("ns/p", "n1") == "u"
    cluster.cache.forget("ns/p")
    cluster.put(pod("p", {"nodeName": "n1"}, uid="u", **IN_G))
    assert gang_of(cluster.snapshot()).tasks[0].shared_gpus == ()


def test_a_confirmed_bind_keeps_its_devices_when_its_eviction_is_given_up() -> None:
    share = GpuShare("0", memory=4)
    cluster = Cluster(node("n1"), group("g"), pod("p", uid="u", **IN_G))
    cluster.cache.assume_bound("ns/p", "n1", (share,))
    cluster.cache.assume_evicted("ns/p", "n1")
    cluster.put(pod("p", {"nodeName": "n1"}, uid="u", **IN_G))
    cluster.cache.forget("ns/p")
    assert gang_of(cluster.snapshot()).tasks[0].shared_gpus == (share,)
