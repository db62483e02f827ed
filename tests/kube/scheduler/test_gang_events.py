from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from optsched.api.meta import EventType
from optsched.api.podgroup import parse_podgroup
from optsched.api.wellknown import OVERUSE_TOLERANCE
from optsched.cluster.decisions import Evict
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.kube.cache.cluster_cache import ClusterCache
from optsched.kube.client.errors import TooMany
from optsched.kube.scheduler.outcomes import (
    YOUNG_MS,
    Bind,
    Failure,
    GangBindEvents,
    GangReporter,
    Victim,
    evicted,
    not_bound,
    not_evicted,
    overuse_reclaimed,
    scheduled,
)
from optsched.kube.scheduler.status import Outcome
from tests.formats.objects import group, pod, queue
from tests.kube.cluster import Objects
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang, Snapshot
    from optsched.kube.runtime.events import Note

NO_ROOM = Reason(ReasonCode.RESOURCES, "8 cpu are missing")
BIND = Bind("ns/g-0", "u", "n1", "ns/g")
_YOUNG = gang("g", ("w", 2, shape()), uid="u-g")
GANG = replace(
    _YOUNG,
    created_ms=-YOUNG_MS,
    tasks=tuple(replace(task, created_ms=-YOUNG_MS) for task in _YOUNG.tasks),
)
"""Old enough to be told about from the first second on."""


def snapshot(*gangs: Gang, second: int = 0) -> Snapshot:
    return cluster([node("n1")], gangs, now_ms=1000 * second)


class Board:
    """A reporter of gang events, and the reported notes."""

    def __init__(self) -> None:
        self.notes: list[Note] = []
        self._notices = GangReporter(self.notes.append)

    @property
    def due_ms(self) -> int | None:
        return self._notices.due_ms

    def tell(self, what: Snapshot, **reasons: Reason) -> list[str]:
        """Return the objects about which the reporter records notes."""
        self.notes.clear()
        by_key = {f"ns/{name}": reason for name, reason in reasons.items()}
        self._notices.report_pending(Outcome(what, by_key, ()))
        return [str(note.about) for note in self.notes]


ALL = ["PodGroup ns/g", "Pod ns/g-w-0", "Pod ns/g-w-1"]


def test_podgroups_of_kubernetes_are_told_by_their_own_name() -> None:
    upstream = replace(GANG, key="ns/k8s:g")
    board = Board()
    assert board.tell(snapshot(upstream), **{"k8s:g": NO_ROOM}) == ALL
    assert board.notes[0].about.kind.group == "scheduling.k8s.io"


def test_a_gang_and_its_waiting_pods_are_told_why() -> None:
    board = Board()
    assert board.tell(snapshot(GANG), g=NO_ROOM) == ALL
    assert {(n.type, n.reason, n.code, n.message) for n in board.notes} == {
        (
            EventType.WARNING,
            "Unschedulable",
            "NotEnoughResources",
            "NotEnoughResources: 8 cpu are missing",
        )
    }


def test_pods_that_run_are_not_told_and_broken_ones_their_own_reason() -> None:
    broken = Reason(ReasonCode.INVALID_POD, "cpu: lots is no quantity")
    first, second = GANG.tasks
    tasks = (running(first, "n1"), replace(second, problem=broken))
    board = Board()
    told = board.tell(snapshot(replace(GANG, tasks=tasks)), g=NO_ROOM)
    assert told == ["PodGroup ns/g", "Pod ns/g-w-1"]
    assert board.notes[1].code == "InvalidPod"


def test_a_pod_alone_has_no_podgroup_to_tell() -> None:
    board = Board()
    assert board.tell(snapshot(replace(GANG, is_implicit=True)), g=NO_ROOM) == ALL[1:]


def test_only_news_are_told_again() -> None:
    board, before = Board(), snapshot(GANG)
    board.tell(before, g=NO_ROOM)
    assert board.tell(before, g=NO_ROOM) == []
    assert board.tell(before, g=Reason(ReasonCode.PREDICATES, "taints")) == ALL
    grown = replace(GANG, tasks=GANG.tasks[:1])
    assert board.tell(snapshot(grown), g=Reason(ReasonCode.PREDICATES, "taints")) == ALL[:2]


def test_reasons_that_alternate_are_told_once_a_minute() -> None:
    board, fragmented = Board(), Reason(ReasonCode.FRAGMENTED, "no node has 4 cpu idle")
    board.tell(snapshot(GANG), g=NO_ROOM)
    for second in range(1, 60):
        reason = fragmented if second % 2 else NO_ROOM
        assert board.tell(snapshot(GANG, second=second), g=reason) == []
    assert board.tell(snapshot(GANG, second=60), g=fragmented) == ALL
    assert {note.code for note in board.notes} == {"ResourcesFragmented"}


def test_after_a_minute_the_recorder_is_asked_whether_it_is_time() -> None:
    board = Board()
    board.tell(snapshot(GANG), g=NO_ROOM)
    assert board.tell(snapshot(GANG, second=59), g=NO_ROOM) == []
    assert board.tell(snapshot(GANG, second=60), g=NO_ROOM) == ALL


def test_pods_that_have_only_just_come_are_not_told_that_they_wait() -> None:
    first, second = GANG.tasks
    mixed = replace(GANG, tasks=(first, replace(second, created_ms=500)))
    board = Board()
    assert board.tell(snapshot(_YOUNG), g=NO_ROOM) == []
    assert board.due_ms == YOUNG_MS
    assert board.tell(snapshot(mixed, second=1), g=NO_ROOM) == ALL[:2]
    assert board.due_ms == 500 + YOUNG_MS
    assert board.tell(snapshot(mixed, second=2), g=NO_ROOM) == []
    assert board.tell(snapshot(mixed, second=3), g=NO_ROOM) == ALL
    assert board.due_ms is None


def test_the_log_names_a_reason_once(caplog: pytest.LogCaptureFixture) -> None:
    board = Board()
    with caplog.at_level("INFO", "optsched"):
        for second in (0, 60, 120):
            board.tell(snapshot(GANG, second=second), g=NO_ROOM)
        board.tell(snapshot(GANG, second=121))
        board.tell(snapshot(GANG, second=122), g=NO_ROOM)
    told = "ns/g waits: NotEnoughResources: 8 cpu are missing"
    assert caplog.messages == [told, told]


def test_a_gang_that_is_gone_is_not_told() -> None:
    assert Board().tell(snapshot(), g=NO_ROOM) == []


def test_a_podgroup_that_is_about_to_be_made_is_not_missed_at_once() -> None:
    missing = Reason(ReasonCode.POD_GROUP_NOT_FOUND, "it has not been made yet")
    pods = ["Pod ns/g-w-0", "Pod ns/g-w-1"]
    young = snapshot(replace(GANG, key="ns/podgroup-u", uid="", created_ms=5_001), second=10)
    old = snapshot(replace(GANG, key="ns/podgroup-u", uid="", created_ms=5_000), second=10)
    named = snapshot(replace(GANG, key="ns/named", uid="", created_ms=10_000), second=10)
    board = Board()
    assert board.tell(young, **{"podgroup-u": missing}) == []
    assert board.tell(old, **{"podgroup-u": missing}) == pods
    assert board.tell(named, named=missing) == pods


def test_pods_that_are_about_to_be_made_are_not_missed_at_once() -> None:
    lacks = Reason(ReasonCode.NOT_ENOUGH_TASKS, "1 of 3 pods does not exist yet")
    newest = replace(GANG.tasks[1], created_ms=5_001)
    board = Board()
    young = replace(GANG, tasks=(GANG.tasks[0], newest))
    assert board.tell(snapshot(young, second=10), g=lacks) == []
    assert board.tell(snapshot(GANG, second=10), g=lacks) == ALL


def test_binds_are_told_with_kubernetes_own_words() -> None:
    note = scheduled(BIND)
    assert (note.type, note.reason, note.message) == (
        EventType.NORMAL,
        "Scheduled",
        "Successfully assigned ns/g-0 to n1",
    )
    note = not_bound(BIND, Failure("Forbidden", "you may not"))
    assert (str(note.about), note.uid, note.reason, note.message) == (
        "Pod ns/g-0",
        "u",
        "FailedScheduling",
        "binding to n1 failed: you may not",
    )


def test_pods_of_a_gang_that_are_bound_together_may_be_one_event() -> None:
    known, _ = parse_podgroup(group("g", uid="u-g"))
    binds = GangBindEvents({"ns/g": known}.get)
    for number, (name, node_name) in enumerate((("g-1", "n2"), ("g-0", "n1"))):
        binds.add(Bind(f"ns/{name}", f"u{number}", node_name, "ns/g"), 1_000 + number)
    binds.add(Bind("ns/a", "ua", "n1", "pod:a"), 1_500)
    assert binds.collect_due(999) == []
    [together] = binds.collect_due(1_400)
    assert (str(together.about), together.uid, together.reason) == (
        "PodGroup ns/g",
        "u-g",
        "Scheduled",
    )
    assert together.message == "Successfully assigned 2 pods: g-0 to n1, g-1 to n2"
    assert together.at_ms == 1_001, "when the last of them was bound"
    [alone] = binds.collect_due(1_500)
    assert (str(alone.about), alone.at_ms) == ("Pod ns/a", 1_500)
    binds.add(Bind("ns/g-2", "u2", "n1", "ns/g"), 2_000)
    assert [str(note.about) for note in binds.collect_due(2_000)] == ["Pod ns/g-2"]
    for number in (3, 4):
        binds.add(Bind(f"ns/g-{number}", f"u{number}", "n1", "ns/g"), 3_000)
    [later] = binds.collect_due(3_000)
    assert later.key != together.key, "it is another event"


def test_evictions_are_told_with_for_whom() -> None:
    victim = Victim(Evict("ns/old-0", "n1", "reclaim", "ns/g"), "u")
    note = evicted(victim)
    assert (str(note.about), note.uid, note.type) == ("Pod ns/old-0", "u", EventType.NORMAL)
    assert note.reason == "Evict"
    assert note.message == "evicted by reclaim: its resources are for ns/g"
    note = not_evicted(victim, TooMany(429, "TooManyRequests", "the budget says no"))
    assert (note.reason, note.message) == (
        "FailedEvict",
        "reclaim for ns/g failed: 429 TooManyRequests: the budget says no",
    )


@pytest.mark.parametrize(
    ("tolerance", "action", "told"),
    [("0", "reclaim", True), ("0", "preempt", False), ("", "reclaim", False)],
)
def test_a_queue_with_a_limit_is_told_that_it_gives_back(
    tolerance: str, action: str, told: bool
) -> None:
    lender = queue("lab", reclaimable=True)
    lender["metadata"] |= {"uid": "u-q", "annotations": {OVERUSE_TOLERANCE: tolerance}}
    marks = {"scheduling.k8s.io/group-name": "g"}
    runs = pod("g-0", {"nodeName": "n1"}, {"phase": "Running"}, annotations=marks)
    objects, cache = Objects(), ClusterCache()
    for obj in (lender, group("g", {"queue": "lab", "minMember": 1}), runs):
        objects.put(obj)
    objects.sync(cache)
    note = overuse_reclaimed(Victim(Evict("ns/g-0", "n1", action, "ns/big"), "u", "ns/g"), cache)
    assert (note is not None) is told
    if note is not None:
        assert (str(note.about), note.uid, note.reason) == ("Queue lab", "u-q", "OveruseReclaimed")
        assert note.message == (
            "usage is above deserved and volcano.sh/overuse-tolerance=0: "
            "pods are evicted for ns/big"
        )


def test_a_pod_that_moves_is_told_where_its_place_is_kept() -> None:
    note = evicted(Victim(Evict("ns/g-0", "n1", "consolidation", "ns/new", to="n2"), "u"))
    assert note.reason == "Consolidation"
    assert note.message == (
        "evicted by consolidation: its resources are for ns/new; "
        "capacity on n2 is reserved for the pod"
    )


def test_pods_that_a_plugin_wants_elsewhere_are_told_why() -> None:
    eviction = Evict("ns/old-0", "n1", "shuffle", "", plugin="tdm", reason="node n1 is not lent")
    note = evicted(Victim(eviction, "u"))
    assert note.message == "evicted by shuffle for plugin tdm: node n1 is not lent"
    note = not_evicted(Victim(eviction, "u"), TooMany(429, "TooManyRequests", "no"))
    assert note.message == "shuffle for plugin tdm failed: 429 TooManyRequests: no"
