from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from optsched.cluster.reasons import ReasonCode
from optsched.cluster.snapshot import Claim, Queue, Snapshot
from optsched.cluster.task import TaskStatus
from optsched.formats.codec.pods.reader import DecodeOptions
from optsched.formats.snapshots.assembly import Assembled, assemble
from tests.formats.objects import CSI, csi_node, group, node, pod, queue, thing

GROUP = {"annotations": {"scheduling.k8s.io/group-name": "g"}}


def snapshot(*objects: Any, **options: Any) -> Snapshot:
    found = assemble(objects, DecodeOptions(**options))
    assert found.problems == ()
    return found.snapshot


def told(found: Assembled) -> list[str]:
    return [str(problem) for problem in found.problems]


def test_nothing_is_still_a_cluster():
    assert snapshot() == Snapshot(0, queues=(Queue("default"), Queue("root", reclaimable=False)))


def test_a_cluster_in_any_order():
    objects = [
        node("n2"),
        pod("p2", **GROUP),
        queue("lab"),
        pod("p1", spec={"nodeName": "n2"}, status={"phase": "Running"}, **GROUP),
        node("n1"),
        group("g", {"minMember": 2}),
        pod("solo", annotations={"scheduling.volcano.sh/queue-name": "lab"}),
    ]
    found = snapshot(*objects)
    assert [n.name for n in found.nodes] == ["n1", "n2"]
    assert [q.name for q in found.queues] == ["default", "lab", "root"]
    assert [g.key for g in found.gangs] == ["ns/g", "ns/pod:solo"]
    gang = found.gang_by_key["ns/g"]
    assert [t.key for t in gang.tasks] == ["ns/p2", "ns/p1"]  # the older pod comes first
    assert found.node_by_name["n2"].residents == (gang.tasks[1],)
    assert found.gang_by_key["ns/pod:solo"].queue == "lab"
    assert list(found.namespaces) == ["ns"]


def test_residents_are_everybody_who_holds_resources():
    objects = [
        node("n1"),
        pod("other", spec={"nodeName": "n1", "schedulerName": "x"}, status={"phase": "Running"}),
        pod("leaving", spec={"nodeName": "n1"}, deletionTimestamp="2026-01-01T00:00:00Z"),
        pod("done", spec={"nodeName": "n1"}, status={"phase": "Succeeded"}),
        pod("bound", spec={"nodeName": "n1"}),
    ]
    residents = snapshot(*objects).nodes[0].residents
    assert [(t.name, t.status) for t in residents] == [
        ("bound", TaskStatus.BOUND),
        ("leaving", TaskStatus.RELEASING),
        ("other", TaskStatus.RUNNING),
    ]


def test_pods_that_are_gone_or_not_ours_are_left_out():
    found = assemble(
        [
            pod("gone", deletionTimestamp="2026-01-01T00:00:00Z"),
            pod("theirs", spec={"schedulerName": None}),
            pod("theirs-2", spec={"schedulerName": "other"}, status={"phase": "Succeeded"}),
            pod("theirs-3", spec={"schedulerName": "other"}),
        ]
    )
    assert found.snapshot.gangs == ()
    assert found.elsewhere == {"default-scheduler": 1, "other": 1}


def test_pods_that_name_a_missing_group():
    gang = snapshot(pod("b", **GROUP), pod("a", **GROUP)).gangs[0]
    assert gang.problem is not None
    assert gang.problem.code is ReasonCode.POD_GROUP_NOT_FOUND
    assert [t.key for t in gang.tasks] == ["ns/b", "ns/a"]
    assert gang.problem.message == "PodGroup ns/g, which pod ns/a names, does not exist"


def test_a_group_of_another_namespace_is_another_group():
    found = snapshot(group("g", namespace="a"), group("g", namespace="b"))
    assert [g.key for g in found.gangs] == ["a/g", "b/g"]


def test_namespaces():
    marks = {"scheduling.volcano.sh/queue-name": "lab"}
    listed = thing("v1", "Namespace", "ml")
    listed["metadata"].update(labels={"team": "x"}, annotations=marks)
    found = snapshot(listed, pod("p", namespace="ml"), pod("q", namespace=""))
    assert found.namespaces == {
        "default": {"kubernetes.io/metadata.name": "default"},
        "ml": {"team": "x", "kubernetes.io/metadata.name": "ml"},
    }
    assert [(g.key, g.queue) for g in found.gangs] == [
        ("default/pod:q", "default"),
        ("ml/pod:p", "lab"),
    ]


def test_priority_classes_are_looked_up_whatever_the_order():
    found = snapshot(
        pod("p", spec={"priorityClassName": "high"}),
        group("g", {"priorityClassName": "high"}),
        thing("scheduling.k8s.io/v1", "PriorityClass", "high", value=7),
    )
    assert [g.priority for g in found.gangs] == [7, 7]


def test_claims():
    found = snapshot(
        thing("v1", "PersistentVolumeClaim", "c", "ns", spec={"volumeName": "v"}),
        thing("v1", "PersistentVolume", "v", spec={}),
        thing("v1", "PersistentVolumeClaim", "d", "", spec={"storageClassName": "late"}),
        thing(
            "storage.k8s.io/v1", "StorageClass", "late", volumeBindingMode="WaitForFirstConsumer"
        ),
    )
    assert found.claims == {
        "default/d": Claim("default/d", waits_for_consumer=True),
        "ns/c": Claim("ns/c"),
    }


def test_how_many_volumes_a_node_attaches():
    found = snapshot(node("n1"), node("n2"), csi_node("n1", csi=2), csi_node("n3", csi=1))
    assert [n.attach_limits for n in found.nodes] == [((CSI, 2),), ()]


def test_age_without_a_creation_time_is_the_place_in_the_order():
    dated = pod("old", creationTimestamp="1970-01-01T00:00:30Z")
    found = snapshot(queue("q"), group("z"), group("a"), dated)
    assert [(g.name, g.created_ms) for g in found.gangs] == [
        ("a", 2),
        ("pod:old", 30_000),
        ("z", 1),
    ]
    assert found.taken_ms == 30_000
    assert assemble([queue("q")], taken_ms=5).snapshot.taken_ms == 5


def test_a_dump_says_when_it_was_taken():
    dump = {
        "apiVersion": "optsched.io/v1alpha1",
        "kind": "Snapshot",
        "metadata": {"name": "snapshot"},
        "takenAt": "1970-01-01T00:01:00Z",
    }
    assert snapshot(dump, queue("q")).taken_ms == 60_000
    assert told(assemble([{**dump, "takenAt": "now"}]))[0].startswith('Snapshot: takenAt: "now" is')


def test_the_last_of_two_counts_and_is_reported():
    found = assemble([queue("q", weight=2), queue("q", weight=3)], where=["a.yaml:1", "b.yaml:4"])
    assert found.snapshot.queue_by_name["q"].weight == 3
    assert told(found) == ["b.yaml:4: Queue q: occurs more than once; the last occurrence applies"]


def test_one_bad_object_never_loses_another():
    bad_pod = pod("bad", spec={"containers": [{"resources": {"requests": {"cpu": "two"}}}]})
    found = assemble(
        [
            3,
            {"kind": "Pod"},
            {"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "ns"}},
            bad_pod,
            pod("lost", spec={"nodeName": "n9"}),
            queue("q", weight=0.5),
            group("g", {"minMember": -1, "priorityClassName": "none"}),
            node(taints=[{"key": "a", "effect": "x"}]),
            thing("v1", "PersistentVolume", "v", spec=7),
            thing("storage.k8s.io/v1", "StorageClass", "s", volumeBindingMode="Later"),
            pod("good"),
        ]
    )
    assert {g.key: g.problem is None for g in found.snapshot.gangs} == {
        "ns/g": False,
        "ns/pod:bad": True,
        "ns/pod:good": True,
        "ns/pod:lost": True,
    }
    assert found.snapshot.gang_by_key["ns/pod:bad"].tasks[0].problem is not None
    assert [(p.kind, p.key, p.path) for p in found.problems] == [
        ("", "", ""),
        ("", "", ""),
        ("Pod", "", "metadata.name"),
        ("Pod", "ns/bad", "spec.containers[0].resources.requests[cpu]"),
        ("Queue", "q", "spec.weight"),
        ("PodGroup", "ns/g", "spec.minMember"),
        ("PodGroup", "ns/g", "spec.priorityClassName"),
        ("Node", "n1", "spec.taints[0].effect"),
        ("Pod", "ns/lost", "spec.nodeName"),
        ("PersistentVolume", "v", "spec"),
        ("StorageClass", "s", "volumeBindingMode"),
    ]


def test_kinds_that_nobody_reads_are_counted():
    job = thing("batch.volcano.sh/v1alpha1", "Job", "j", "ns")
    found = assemble([job, {**job, "metadata": {"name": "k"}}, thing("v1", "ConfigMap", "c", "ns")])
    assert found.ignored == {"batch.volcano.sh/v1alpha1 Job": 2, "v1 ConfigMap": 1}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)


@given(
    st.sampled_from(
        [
            *("Pod", "Node", "Namespace", "PersistentVolume", "PersistentVolumeClaim"),
            *("CSINode", "StorageClass"),
        ]
    ),
    st.fixed_dictionaries(
        {"name": st.just("x") | anything},
        optional={
            name: anything
            for name in ("namespace", "labels", "annotations", "creationTimestamp", "uid")
        },
    ),
    anything,
    anything,
)
def test_nothing_that_json_can_hold_raises(kind: str, metadata: Any, spec: Any, status: Any):
    version = "storage.k8s.io/v1" if kind in ("CSINode", "StorageClass") else "v1"
    made = {
        "apiVersion": version,
        "kind": kind,
        "metadata": metadata,
        "spec": spec,
        "status": status,
    }
    assert assemble([made, pod("good")]).snapshot.gang_by_key["ns/pod:good"].problem is None
