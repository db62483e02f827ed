"""Pods that name the PodGroup of another user, whose queue may exclude them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from optsched.api import kinds
from optsched.api.wellknown import Subject, format_joined, format_submitters
from optsched.cluster.reasons import FlawCode
from optsched.formats.snapshots.assembly import assemble
from optsched.kube.cache.cluster_cache import ClusterCache
from tests.formats.objects import group, node, pod, queue, thing
from tests.kube.cluster import Objects

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang

ANN = Subject("ann", frozenset({"labs"}))
EVE = Subject("eve", frozenset({"students"}))
GROUP_UID = "uid-of-g"
RUNNING = ({"nodeName": "n1"}, {"phase": "Running"})


def record(*subjects: Subject, joined: str | None = None) -> dict[str, str]:
    return {"optsched.io/submitter": format_submitters(subjects, joined)}


def member(name: str, marks: dict[str, str], *parts: dict[str, Any]) -> dict[str, Any]:
    marks = {"scheduling.k8s.io/group-name": "g", **marks}
    return pod(name, *parts, uid=f"uid-{name}", annotations=marks)


def lab(**lists: str) -> dict[str, Any]:
    """Return a queue with access lists."""
    found = queue("lab")
    found["metadata"]["annotations"] = {f"optsched.io/{key}": text for key, text in lists.items()}
    return found


def of_ann(queue_name: str = "lab", **marks: str) -> dict[str, Any]:
    return group("g", {"queue": queue_name}, uid=GROUP_UID, annotations={**record(ANN), **marks})


class Cluster:
    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects, self.cache = Objects(), ClusterCache()
        for obj in (node("n1"), queue("default"), *objects):
            self.objects.put(obj)
        self.objects.sync(self.cache)

    def put(self, obj: dict[str, Any]) -> None:
        self.cache.apply(*self.objects.put(obj))

    def members(self) -> list[str]:
        gang: Gang = self.cache.snapshot(7).gang_by_key["ns/g"]
        anew = assemble(self.objects.all(), taken_ms=7).snapshot.gang_by_key["ns/g"]
        assert [task.key for task in anew.tasks] == [task.key for task in gang.tasks]
        return [task.name for task in gang.tasks]

    def refused(self) -> list[str]:
        return [flaw.key for flaw in self.cache.flaws if flaw.code is FlawCode.ACCESS]


def test_a_pod_of_a_user_whom_the_queue_does_not_list_is_no_member_and_says_so() -> None:
    """Simultaneous reviews of pod and PodGroup could admit both, because neither sees the other."""
    cluster = Cluster(lab(users="ann"), of_ann(), member("a", record(ANN)))
    cluster.put(member("e", record(EVE)))
    assert cluster.members() == ["a"]
    (flaw,) = cluster.cache.flaws
    assert (flaw.kind, flaw.key) == (kinds.POD, "ns/e")
    assert str(flaw).startswith(
        "Pod ns/e: MayNotJoin: user eve may not use queue lab of PodGroup ns/g, which belongs to"
    )
    assert cluster.cache.uid(kinds.POD, "ns/e") == "uid-e"
    cluster.cache.apply(*(cluster.objects.delete(kinds.POD, "ns/e") or ()))
    assert cluster.members() == ["a"]
    assert cluster.cache.flaws == ()


def test_a_refused_pod_that_left_is_reported_no_more_where_only_pods_of_others_remain() -> None:
    cluster = Cluster(lab(users="ann"), of_ann(), member("e", record(EVE)))
    assert cluster.members() == []
    assert cluster.refused() == ["ns/e"]
    cluster.put(member("k", {}, {"schedulerName": "other"}))
    cluster.cache.apply(*(cluster.objects.delete(kinds.POD, "ns/e") or ()))
    assert "ns/g" not in cluster.cache.snapshot(7).gang_by_key
    assert cluster.refused() == []


@pytest.mark.parametrize(
    "lists", [{}, {"users": "ann,eve"}, {"groups": "labs, students"}, {"namespaces": "ns"}]
)
def test_who_may_use_the_queue_may_join_the_work_of_another(lists: dict[str, str]) -> None:
    cluster = Cluster(lab(**lists), of_ann(), member("e", record(EVE)))
    assert cluster.members() == ["e"]
    assert cluster.refused() == []


def test_pods_without_a_record_and_of_the_same_user_join() -> None:
    """Without the webhook no records exist, and the access lists of queues bind no user."""
    other = Subject("ann", frozenset({"other"}))
    marks = [record(other), {}, {"optsched.io/submitter": "{"}]
    cluster = Cluster(
        lab(users="bob"), of_ann(), *(member(f"p{i}", m) for i, m in enumerate(marks))
    )
    assert cluster.members() == ["p0", "p1", "p2"]


def test_all_submitters_of_a_pod_have_to_be_let_in() -> None:
    cluster = Cluster(lab(users="ann"), of_ann(), member("e", record(ANN, EVE)))
    assert cluster.members() == []
    assert cluster.refused() == ["ns/e"]


def test_a_podgroup_without_a_record_lets_in_whom_the_queue_lists() -> None:
    made = group("g", {"queue": "lab"})
    cluster = Cluster(lab(users="ann"), made, member("a", record(ANN)), member("e", record(EVE)))
    assert cluster.members() == ["a"]


def test_it_follows_the_lists_of_the_queue_and_the_queue_of_the_podgroup() -> None:
    cluster = Cluster(lab(users="ann"), of_ann(), member("e", record(EVE)))
    assert cluster.members() == []
    cluster.put(lab(users="ann,eve"))
    assert cluster.members() == ["e"]
    cluster.put(lab(users="ann"))
    assert cluster.members() == []
    cluster.put(of_ann("default"))
    assert cluster.members() == ["e"]
    assert cluster.refused() == []


def test_a_pod_that_holds_resources_counts_whatever_the_lists_say() -> None:
    cluster = Cluster(lab(users="ann"), of_ann(), member("e", record(EVE), *RUNNING))
    assert cluster.members() == ["e"]
    assert cluster.refused() == []


def test_a_pod_does_not_join_a_gang_that_counts_for_another_queue_than_its_podgroup_says() -> None:
    """Eve moves the PodGroup to her queue, but its running pods keep their queue."""
    cluster = Cluster(lab(users="ann"), of_ann(), member("a", record(ANN), *RUNNING))
    assert cluster.members() == ["a"]
    cluster.put(of_ann("default"))
    cluster.put(member("e", record(EVE)))
    assert cluster.cache.snapshot(7).gang_by_key["ns/g"].queue == "lab"
    assert cluster.refused() == ["ns/e"]
    cluster.put(member("a", record(ANN), {"nodeName": "n1"}, {"phase": "Succeeded"}))
    assert cluster.members() == ["a", "e"]


def test_a_podgroup_of_kubernetes_is_joined_by_whom_its_queue_lists() -> None:
    made = thing(
        "scheduling.k8s.io/v1beta1",
        "PodGroup",
        "g",
        "ns",
        spec={"schedulingPolicy": {"gang": {"minCount": 1}}},
    )
    made["metadata"]["annotations"] = {"scheduling.volcano.sh/queue-name": "lab"}
    spec = {"schedulingGroup": {"podGroupName": "g"}}
    joining = [pod(name, spec, annotations=record(who)) for name, who in (("a", ANN), ("e", EVE))]
    cluster = Cluster(lab(users="ann"), made, *joining)
    gang = cluster.cache.snapshot(7).gang_by_key["ns/k8s:g"]
    assert [task.name for task in gang.tasks] == ["a"]
    assert cluster.refused() == ["ns/e"]


# --- queues that roles open -----------------------------------------------------------------------


@pytest.mark.parametrize("lists", [{}, {"users": "ann"}])
@pytest.mark.parametrize(
    ("joined", "is_member"),
    [
        (format_joined(GROUP_UID, "lab"), True),
        ("", False),
        (format_joined(GROUP_UID, "default"), False),
        (format_joined("uid-of-an-older-one", "lab"), False),
    ],
)
def test_where_roles_count_the_record_says_whether_they_let_a_pod_in(
    joined: str, is_member: bool, lists: dict[str, str]
) -> None:
    cluster = Cluster(lab(**lists), of_ann(), member("e", record(EVE, joined=joined)))
    assert cluster.members() == (["e"] if is_member else [])
    assert cluster.refused() == ([] if is_member else ["ns/e"])


def test_where_roles_count_lists_and_the_same_user_still_do() -> None:
    early = {"joined": ""}
    marks = [record(EVE, **early), record(ANN, **early)]
    pods = [member(f"p{i}", mark) for i, mark in enumerate(marks)]
    cluster = Cluster(lab(users="eve"), of_ann(), *pods)
    assert cluster.members() == ["p0", "p1"]


# --- bare pods, before controllers have created their PodGroups -----------------------------------


def bare(marks: dict[str, str], *parts: dict[str, Any], queue_name: str = "lab") -> dict[str, Any]:
    marks = {"scheduling.volcano.sh/queue-name": queue_name, **marks}
    return pod("b", *parts, uid="uid-b", annotations=marks)


def problem(cluster: Cluster) -> str:
    """Return the diagnostic of the only gang, which has one pod and no PodGroup."""
    (gang,) = cluster.cache.snapshot(7).gangs
    (anew,) = assemble(cluster.objects.all(), taken_ms=7).snapshot.gangs
    assert (anew.problem, anew.queue) == (gang.problem, gang.queue)
    return "" if gang.problem is None else str(gang.problem)


@pytest.mark.parametrize(
    ("lists", "joined", "starts"),
    [
        ({}, None, True),
        ({"users": "ann"}, None, False),
        ({"groups": "students"}, None, True),
        ({"namespaces": "ns"}, "", True),
        ({}, "", False),
        ({}, format_joined("", "lab"), True),
        ({"users": "ann"}, format_joined("", "lab"), True),
        ({}, format_joined("", "default"), False),
        ({}, format_joined(GROUP_UID, "lab"), False),
    ],
)
def test_a_bare_pod_starts_without_a_podgroup_in_a_queue_that_its_user_may_use(
    lists: dict[str, str], joined: str | None, starts: bool
) -> None:
    cluster = Cluster(lab(**lists), bare(record(EVE, joined=joined)))
    message = (
        "PodGroupNotFound: user eve may not use queue lab without a review by admission: pod ns/b "
        "waits until controllers have created a PodGroup for it"
    )
    assert problem(cluster) == ("" if starts else message)
    # A bound pod, or a pod without a recorded user, counts despite the access lists.
    cluster.put(bare(record(EVE, joined=joined), *RUNNING))
    assert problem(cluster) == ""
    cluster.put(bare({}))
    assert problem(cluster) == ""


def test_a_bare_pod_does_not_start_in_a_queue_that_comes_later() -> None:
    cluster = Cluster(bare(record(EVE)))
    problem(cluster)
    cluster.put(lab(users="ann"))
    assert "user eve may not use queue lab" in problem(cluster)
    cluster.put(lab(users="ann, eve"))
    assert problem(cluster) == ""
