"""The reports of a running scheduler: phases, conditions, events, queues, health, metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.api import until
from tests.support.live import FAIL, QUEUES
from tests.support.pages import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.api import Raw
    from tests.support.live import Site

pytestmark = pytest.mark.e2e

SESSIONS = "optsched_sessions_total"
TOO_MANY = "WaitsForItsTurn: more jobs are pending than a session can consider in its time"
HURRIED = """
actions: "enqueue, allocate"
tiers:
- plugins: [{name: priority}, {name: gang}, {name: predicates}, {name: proportion}]
solver: {engine: none, budget: 20ms}
"""


MARKS = {
    "optsched.io/problem": "Impossible: no",
    "optsched.io/waiting-since": "2001-01-01T00:00:00Z",
    "optsched.io/device": "8 1000 A100",
    "optsched.io/vgpus": "8 1000 0 0",
    "optsched.io/numa": "8000 8",
}
"""What only a dump may say: with these believed, no pod fits anywhere."""


# --- PodGroups and queues ------------------------------------------------------------------------


def test_a_podgroup_goes_through_its_phases(site: Site) -> None:
    site.nodes(2)
    queue = site.queue("own")
    site.scheduler()
    site.group("gang", 2, queue, minResources={"cpu": "100"})
    status = site.await_phase("gang", "Pending")
    site.await_waits("gang", "Impossible")
    assert "running" not in status or status["running"] == 0

    site.change_group("gang", minResources={"cpu": "3"})
    site.await_phase("gang", "Inqueue")
    site.await_waits("gang", "NotEnoughTasks")
    site.members("gang", range(3))
    site.await_running("gang", 3)
    status = site.await_phase("gang", "Running")
    since = _since(status, "Scheduled", "True", "tasks in gang are ready to be scheduled")
    assert since >= _since(status, "Unschedulable", "False", "")
    until(lambda: _counts(site, queue) == {"running": 1}, "the queue counts it as running")
    held = {"cpu": "3", "memory": "0", "pods": "3"}
    until(lambda: _allocated(site, queue) == held, "the queue says what it holds")

    site.delete_pod("gang-1")
    site.delete_pod("gang-2")
    status = site.await_phase("gang", "Unknown")
    assert _since(status, "Scheduled", "False", "") >= since
    site.await_waits("gang", "NotEnoughTasks")
    site.members("gang", range(1, 3))
    site.await_running("gang", 3)
    site.end_pod("gang-2", FAIL)
    site.end_pod("gang-0")
    site.end_pod("gang-1")
    status = site.await_phase("gang", "Completed")
    assert (status.get("running", 0), status["succeeded"], status["failed"]) == (0, 2, 1)
    until(lambda: _counts(site, queue) == {"completed": 1}, "the queue counts it as completed")
    held = {"cpu": "0", "memory": "0"}
    until(lambda: _allocated(site, queue) == held, "the queue holds nothing")


def _since(status: Raw, kind: str, value: str, reason: str) -> str:
    condition = next(c for c in status["conditions"] if c["type"] == kind)
    assert (condition["status"], condition.get("reason", "")) == (value, reason)
    time: str = condition["lastTransitionTime"]
    return time


def _counts(site: Site, queue: str) -> Raw:
    status = site.api.get(f"{QUEUES}/{queue}")["status"]
    phases = ("pending", "inqueue", "running", "unknown", "completed")
    return {phase: status[phase] for phase in phases if status.get(phase)}


def _allocated(site: Site, queue: str) -> Raw:
    allocated: Raw = site.api.get(f"{QUEUES}/{queue}")["status"]["allocated"]
    return allocated


def test_the_builtin_queues_exist(site: Site) -> None:
    site.scheduler()
    root = until(lambda: site.api.find(f"{QUEUES}/root"), "root")
    default = until(lambda: site.api.find(f"{QUEUES}/default"), "default")
    assert (root["spec"]["reclaimable"], default["spec"]["reclaimable"]) == (False, True)


# --- what keeps pods waiting ---------------------------------------------------------------------


def test_a_gang_waits_for_a_queue_that_exists_and_is_open(site: Site) -> None:
    site.nodes(1)
    site.scheduler()
    site.gang("gang", 2, queue=f"{site.name}-late")
    site.await_waits("gang", "QueueNotFound", f"{site.name}-late")
    queue = site.queue("late")
    site.await_bound("gang", 2)

    site.api.patch(f"{QUEUES}/{queue}/status", {"status": {"state": "Closed"}})
    until(lambda: _state(site, queue) == "Closed", "the queue is closed")
    # The scheduler may receive pods before it receives their queue.
    site.group("next", 2, queue=queue)
    site.await_waits("next", "QueueNotOpen")
    site.members("next", range(2))
    until(lambda: site.reasons("next-1")["QueueNotOpen"], "its last pod is told")
    assert site.story.num_bound("next") == 0
    site.api.patch(f"{QUEUES}/{queue}/status", {"status": {"state": "Open"}})
    site.await_bound("next", 2)


def _state(site: Site, queue: str) -> str:
    state: str = site.api.get(f"{QUEUES}/{queue}")["status"]["state"]
    return state


def test_what_only_a_dump_may_say_holds_up_no_pod(site: Site) -> None:
    site.nodes(1)
    site.group("marked", 1, annotations=MARKS)
    site.pod("marked-0", annotations={"scheduling.k8s.io/group-name": "marked", **MARKS})
    site.scheduler()
    site.await_bound("marked", 1)
    assert site.events("marked-0", "Unschedulable") == []


def test_pods_wait_for_their_podgroup(site: Site) -> None:
    site.nodes(1)
    site.scheduler()
    site.members("late", range(2))
    until(lambda: site.reasons("late-0")["PodGroupNotFound"] == 1, "the pod is told")
    assert site.story.num_bound("late") == 0
    site.group("late", 2)
    site.await_bound("late", 2)


def test_a_gang_waits_for_pods_that_are_gated(site: Site) -> None:
    site.nodes(1)
    site.scheduler()
    site.group("gang", 2)
    site.members("gang", range(1))
    site.members("gang", range(1, 2), schedulingGates=[{"name": "example.org/data"}])
    site.await_waits("gang", "Gated")
    assert site.story.num_bound("gang") == 0
    site.change_pod("gang-1", {"spec": {"schedulingGates": None}})
    site.await_bound("gang", 2)
    site.await_phase("gang", "Running")


def test_pods_without_a_podgroup_are_scheduled_one_by_one(site: Site) -> None:
    site.nodes(1)
    scheduler = site.scheduler()
    queue = site.queue("own")
    site.gang("gang", 2, queue=queue)
    site.await_bound("gang", 2)
    for i in range(3):
        site.pod(f"alone-{i}", annotations={"scheduling.volcano.sh/queue-name": queue})
    site.await_bound("", 2)
    until(lambda: _waiting_alone(site), "the last one is told")
    waits = {"queue": queue, "code": "NotEnoughResources"}
    scheduler.await_metric(1, "optsched_pending_gangs", **waits)
    until(lambda: _allocated(site, queue).get("pods") == "4", "the queue counts them")
    assert [group["metadata"]["name"] for group in site.groups()] == ["gang"]
    site.complete("gang")
    site.await_bound("", 3)


def _waiting_alone(site: Site) -> bool:
    waiting = [pod.name for pod in site.story.pods("") if not pod.node]
    return [site.reasons(name)["NotEnoughResources"] for name in waiting] == [1]


# --- events --------------------------------------------------------------------------------------


def test_an_event_is_counted_not_repeated(site: Site) -> None:
    site.nodes(1)
    first = site.scheduler()
    site.gang("runs", 1)
    site.await_bound("runs", 1)
    site.gang("waits", 4)
    site.await_waits("waits", "NotEnoughResources")
    until(lambda: site.reasons("waits-3")["NotEnoughResources"], "the last pod is told")
    for i in range(3):
        site.gang(f"other-{i}", 1)
        site.await_bound(f"other-{i}", 1)
    assert first.metric(SESSIONS) >= 4
    before = until(lambda: _event(site, "waits"), "the gang is told")
    assert (before["count"], before["type"]) == (1, "Warning")
    assert before["source"] == {"component": "optsched"}
    (scheduled,) = until(lambda: site.events("other-0-0", "Scheduled"), "event of a bind")
    assert scheduled["message"].startswith(f"Successfully assigned {site.name}/other-0-0 to ")

    first.stop()
    site.scheduler("--scheduled-events", "gangs")
    until(lambda: _event(site, "waits")["count"] == 2, "the next scheduler counts on")
    after = _event(site, "waits")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["lastTimestamp"] >= before["lastTimestamp"]

    site.nodes(1)
    site.await_bound("waits", 4)
    (together,) = until(lambda: site.events("waits", "Scheduled"), "one event of four binds")
    assert together["message"].startswith("Successfully assigned 4 pods: waits-0 to ")
    assert not [e for i in range(4) for e in site.events(f"waits-{i}", "Scheduled")]


def _event(site: Site, group: str) -> Raw:
    found = site.events(group, "Unschedulable")
    told = [e for e in found if e["message"].startswith("NotEnoughResources")]
    assert len(told) <= 1, "it is counted, and not told again"
    return told[0] if told else {}


# --- health and metrics --------------------------------------------------------------------------


def test_it_is_ready_once_all_is_listed(site: Site) -> None:
    site.nodes(1)
    proxy = site.proxy()
    lists = proxy.hold(lambda _, path: path.startswith("/api/v1/nodes?limit="))
    scheduler = site.spawn(kubeconfig=proxy.kubeconfig)
    lists.await_held(1)
    until(lambda: scheduler.port, "it listens")
    assert scheduler.ask("/readyz") == (500, "not all kinds have been listed yet")
    assert scheduler.ask("/healthz") == (200, "ok")
    site.gang("gang", 1)
    assert scheduler.metric(SESSIONS) == 0
    proxy.open(lists)
    scheduler.begin()
    site.await_bound("gang", 1)


def test_metrics_say_what_happens(site: Site) -> None:
    site.nodes(1)
    scheduler = site.scheduler("--solver", "cpsat")
    scheduler.begun()
    queue = site.queue("own", deserved={"cpu": "2"})
    site.gang("runs", 3, queue=queue)
    site.await_running("runs", 3)
    site.gang("waits", 2, queue=queue)
    site.gang("fits", 1, queue=queue)
    site.await_bound("fits", 1)
    metric = scheduler.metric
    scheduler.await_metric(1, "optsched_pending_gangs", queue=queue)
    scheduler.await_metric(4000, "volcano_queue_allocated_milli_cpu", queue_name=queue)
    scheduler.await_metric(4, "volcano_schedule_attempts_total", result="scheduled")
    scheduler.await_metric(1, "volcano_unschedule_job_count")
    latency = "volcano_task_scheduling_latency_milliseconds_count"
    scheduler.await_metric(4, latency, stage="Bound")
    assert metric("optsched_leading") == 1
    assert metric("optsched_violations_total") == metric("optsched_session_errors_total") == 0
    num_sessions = metric(SESSIONS)
    assert metric("optsched_session_seconds_count", phase="solve") >= num_sessions >= 2


# --- the policy file -----------------------------------------------------------------------------


def test_a_policy_is_read_again_and_the_last_good_one_stays(site: Site, tmp_path: Path) -> None:
    site.nodes(1)
    text = (ROOT / "models" / "volcano-default.yaml").read_text()
    policy = tmp_path / "policy.yaml"
    policy.write_text(text)
    election = ("--leader-elect", "--lock-namespace", site.name)
    scheduler = site.scheduler("--config", str(policy), *election)
    site.gang("parts", 6)
    site.await_waits("parts", "Impossible")
    assert scheduler.metric("optsched_policy_rejected") == 0

    _swap(policy, text.replace("allocate,", "alocate,"))
    scheduler.await_metric(1, "optsched_policy_rejected")
    scheduler.await_log("the last valid policy stays in use")
    (event,) = until(lambda: site.events(site.name, "PolicyRejected"), "event on the lease")
    assert "alocate" in event["message"]
    assert event["involvedObject"]["kind"] == "Lease"
    site.gang("fits", 2)
    site.await_bound("fits", 2)
    assert site.story.num_bound("parts") == 0

    _swap(policy, text.replace("  - name: gang\n    enablePreemptable: false\n", ""))
    scheduler.await_metric(0, "optsched_policy_rejected")
    site.await_bound("parts", 2)
    scheduler.await_log(f"policy {policy} reloaded")
    assert site.story.num_bound("parts") == 2

    # A policy from a ConfigMap loads no code that the command line does not name.
    loaded, folder = tmp_path / "loaded", tmp_path / "plugins"
    folder.mkdir()
    (folder / "quiet.py").write_text(f"open({str(loaded)!r}, 'w')\n")
    _swap(policy, f"pluginsDir: {folder}\n{text}")
    scheduler.await_metric(1, "optsched_policy_rejected")
    scheduler.await_log("only from the folder of --plugins-dir")
    assert not loaded.exists()


def _swap(path: Path, text: str) -> None:
    """Replace a file atomically, as kubelet updates a mounted ConfigMap."""
    fresh = path.with_name("fresh")
    fresh.write_text(text)
    fresh.replace(path)


def test_a_session_leaves_the_jobs_for_which_it_has_no_time_to_later_ones(site: Site) -> None:
    """Within 100 ms and a budget of 20 ms, a session considers about 480 different pods.

    Pods that a session has considered keep their reason in later sessions without them.
    """
    site.nodes(1)
    other = site.queue("other")
    policy = site.file("policy.yaml", HURRIED)
    for number in range(600):
        site.pod(f"many-{number}", cpus=100, memory=f"{number + 1}Mi")
    site.scheduler("--config", str(policy))
    events = f"/api/v1/namespaces/{site.name}/events"
    until(
        lambda: [e for e in site.api.items(events) if TOO_MANY in e["message"]],
        "some pods wait for a later session",
    )
    site.gang("small", 1, queue=other)
    site.await_bound("small", 1)

    def reasons() -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for event in sorted(
            site.api.items(events), key=lambda e: e["metadata"]["creationTimestamp"]
        ):
            if event["reason"] == "Unschedulable":
                name, code = event["involvedObject"]["name"], event["message"].partition(":")[0]
                found.setdefault(name, []).append(code)
        return found

    once, both = ["Impossible"], ["WaitsForItsTurn", "Impossible"]
    until(lambda: both in reasons().values(), "a later session considers some of these pods")
    assert {tuple(codes) for codes in reasons().values()} <= {tuple(once), tuple(both), (both[0],)}
