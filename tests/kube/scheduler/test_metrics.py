from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from prometheus_client.parser import text_string_to_metric_families

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.snapshot import Queue
from optsched.kube.scheduler.loop import _log_session as log_session
from optsched.kube.scheduler.metrics import Metrics, QueueFigures
from optsched.plugins.extension_points import Violation
from optsched.policy.load import load_policy
from optsched.policy.policy import without_solver
from optsched.session.repair import Repair
from optsched.session.session import SessionContext, run_session
from tests.kube.fakes import FakeClock
from tests.support.small import cluster, gang, node, running, shape

if TYPE_CHECKING:
    from optsched.cluster.snapshot import Gang
    from optsched.session.session import Report

POLICY = without_solver(load_policy("volcano-default", Path.read_text))
TEAM = Queue("team", weight=3)
SMALL = gang("small", ("w", 2, shape(1, gpu=1)), queue="team")
FAULT = Reason(ReasonCode.INVALID_POD, "for a test")
FIRST, SECOND = SMALL.tasks
HALF = replace(SMALL, tasks=(running(FIRST, "n1"), replace(SECOND, problem=FAULT)))
LARGE = gang("large", ("w", 1, shape(9)), queue="team")


def decide(*gangs: Gang, queues: tuple[Queue, ...] = (TEAM,)) -> Report:
    return run_session(
        cluster([node("n1", cpu=4, gpu=8)], gangs, queues), POLICY, SessionContext(FakeClock())
    )


def samples(metrics: Metrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return every sample by name and label values, in the order of the label names."""
    families = text_string_to_metric_families(metrics.exposition().decode())
    found = (sample for family in families for sample in family.samples)
    return {(s.name, tuple(v for _, v in sorted(s.labels.items()))): s.value for s in found}


def after(*reports: Report) -> dict[tuple[str, tuple[str, ...]], float]:
    metrics = Metrics()
    for report in reports:
        metrics.session(report, POLICY, 0.25)
    return samples(metrics)


def test_metrics_are_selected_by_name() -> None:
    """Also metrics that are only counted when they are read, such as the waiting evictions."""
    metrics = Metrics()
    metrics.session(decide(SMALL), POLICY, 0.25)
    metrics.pods.count_waiting = lambda: {"nomination": 2}
    sessions = b'optsched_sessions_total{engine="greedy"} 1.0\n'
    waiting = b'optsched_evictions_waiting{for="nomination"} 2.0\n'
    assert metrics.exposition(["optsched_sessions_total"]).endswith(sessions)
    assert metrics.exposition(["optsched_evictions_waiting"]).endswith(waiting)
    both = metrics.exposition(["optsched_sessions_total", "optsched_evictions_waiting"])
    assert sessions in both
    assert waiting in both
    assert both.count(b"# TYPE") == 2
    assert metrics.exposition(["optsched_unknown"]) == b""


def test_a_session_is_counted_and_timed() -> None:
    found = after(decide(SMALL), decide(SMALL))
    assert found["optsched_sessions_total", ("greedy",)] == 2
    assert found["volcano_e2e_scheduling_latency_milliseconds_sum", ()] == 500
    assert found["volcano_open_session_duration_milliseconds_count", ()] == 2
    name = "volcano_action_scheduling_latency_milliseconds_count"
    assert found[name, ("allocate",)] == 2
    phases = {labels[0] for name, labels in found if name == "optsched_session_seconds_count"}
    assert phases == {"reserve", "compile", "greedy", "solve", "verify", "lend", "explain"}


def test_each_repair_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    report = decide(SMALL)
    assert after(report)["optsched_repairs_total", ()] == 0
    broken = Violation("gang", "gang ns/large", "1 task would run, but minMember is 2")
    repairs = (Repair(("ns/large", "ns/other"), broken), Repair(("ns/third",), broken))
    report = replace(report, trace=replace(report.trace, repairs=repairs))
    assert after(report)["optsched_repairs_total", ()] == 3
    with caplog.at_level("WARNING"):
        log_session(7, report)
    assert [record.getMessage() for record in caplog.records] == [
        "session 7: dropped ns/large, ns/other from a plan that broke a rule: "
        "gang: gang ns/large: 1 task would run, but minMember is 2",
        "session 7: dropped ns/third from a plan that broke a rule: "
        "gang: gang ns/large: 1 task would run, but minMember is 2",
    ]


def test_searches_for_devices_that_limits_ended_are_counted() -> None:
    report = decide(SMALL)
    assert not [name for name, _ in after(report) if "searches_cut" in name]
    cut = {"search": 2, "selectors": 1}
    report = replace(report, trace=replace(report.trace, num_cut_searches=cut))
    found = after(report, report)
    assert found["optsched_device_searches_cut_total", ("search",)] == 4
    assert found["optsched_device_searches_cut_total", ("selectors",)] == 2


def test_queues_are_as_volcano_tells_them() -> None:
    first, second = SMALL.tasks
    found = after(decide(replace(SMALL, tasks=(running(first, "n1"), second))))
    of_team = {name: value for (name, labels), value in found.items() if labels == ("team",)}
    assert of_team["volcano_queue_allocated_milli_cpu"] == 1000
    assert of_team["volcano_queue_request_milli_cpu"] == 2000
    assert of_team["volcano_queue_deserved_milli_cpu"] >= 2000
    assert of_team["volcano_queue_allocated_memory_bytes"] == 0
    assert of_team["volcano_queue_weight"] == 3
    assert of_team["volcano_queue_overused"] == 0
    assert 0 < of_team["volcano_queue_share"] <= 0.5
    assert found["volcano_queue_allocated_scalar_resources", ("team", "pods")] == 1
    name = "volcano_queue_allocated_scalar_resources"
    assert found[name, ("team", "nvidia.com/gpu")] == 1000


def test_gangs_that_wait_are_counted_by_queue_and_reason() -> None:
    report = decide(SMALL, LARGE)
    found = after(report)
    code = report.plan.pending["ns/large"].code.value
    assert found["optsched_pending_gangs", (code, "team")] == 1
    assert found["volcano_unschedule_job_count", ()] == 1
    assert found["volcano_schedule_attempts_total", ("unschedulable",)] == 1


def test_gpus_of_gangs_below_their_minimum_are_wasted() -> None:
    whole = replace(SMALL, tasks=tuple(running(task, "n1") for task in SMALL.tasks))
    metrics = Metrics()
    metrics.add_wasted_time(5.0)
    metrics.session(decide(HALF), POLICY, 0.1)
    metrics.add_wasted_time(5.5)
    metrics.add_wasted_time(8.0)
    found = samples(metrics)
    assert found["optsched_wasted_gpus", ("team",)] == 1
    assert found["optsched_wasted_gpu_seconds_total", ("team",)] == 3
    metrics.session(decide(whole), POLICY, 0.1)
    metrics.add_wasted_time(100.0)
    found = samples(metrics)
    assert ("optsched_wasted_gpus", ("team",)) not in found
    assert found["optsched_wasted_gpu_seconds_total", ("team",)] == 3
    metrics.session(decide(queues=()), POLICY, 0.1)
    assert not [labels for _, labels in samples(metrics) if "team" in labels]


def test_levels_show_how_far_they_are_from_their_bounds() -> None:
    report = decide(SMALL, LARGE)
    found = after(report)
    shown = {labels[0]: v for (name, labels), v in found.items() if name == "optsched_level_gap"}
    levels = report.plan.certificate.levels
    assert shown == {level.name: level.gap for level in levels if level.gap is not None}
    assert shown


def test_what_is_gone_leaves_no_trace() -> None:
    found = after(decide(SMALL, LARGE), decide(queues=()))
    assert not [labels for _, labels in found if "team" in labels]
    assert not [name for name, _ in found if name == "optsched_pending_gangs"]
    assert found["volcano_unschedule_job_count", ()] == 0


def test_who_stood_down_shows_no_queues() -> None:
    metrics = Metrics()
    metrics.session(decide(SMALL), POLICY, 0.1)
    metrics.clear_figures()
    assert not [labels for _, labels in samples(metrics) if "team" in labels]


def test_what_happens_is_counted() -> None:
    metrics = Metrics()
    metrics.pods.bound(0.02)
    metrics.pods.not_bound("Forbidden")
    metrics.sessions.skipped.inc()
    metrics.sessions.errors.inc()
    metrics.watch_failures.labels("pods").inc()
    metrics.pods.evictions.labels("reclaim", "").inc()
    metrics.pods.spared.labels("ended").inc()
    metrics.pods.count_waiting = lambda: {"nomination": 2}
    metrics.dropped(5)
    metrics.dropped(7)
    metrics.policy_rejected.set(True)
    metrics.leading.set(True)
    found = samples(metrics)
    assert found["volcano_schedule_attempts_total", ("scheduled",)] == 1
    assert found["volcano_schedule_attempts_total", ("error",)] == 1
    name = "volcano_task_scheduling_latency_milliseconds_sum"
    assert found[name, ("Bound",)] == 20
    assert found["optsched_bind_failures_total", ("Forbidden",)] == 1
    assert found["optsched_watch_failures_total", ("pods",)] == 1
    assert found["optsched_evictions_total", ("reclaim", "")] == 1
    assert found["optsched_evictions_spared_total", ("ended",)] == 1
    assert found["optsched_evictions_waiting", ("nomination",)] == 2
    assert found["optsched_events_dropped_total", ()] == 7
    for name in ("sessions_skipped_total", "session_errors_total", "policy_rejected", "leading"):
        assert found[f"optsched_{name}", ()] == 1


def test_broken_rules_are_counted() -> None:
    report = decide(SMALL)
    violations = (Violation("gang", "ns/small", "half of it"),) * 2
    metrics = Metrics()
    metrics.session(
        replace(report, trace=replace(report.trace, violations=violations)), POLICY, 0.1
    )
    assert samples(metrics)["optsched_violations_total", ()] == 2


@pytest.mark.parametrize(
    ("allocated", "deserved", "share", "is_overused"),
    [
        ({}, {}, 0.0, False),
        ({"cpu": 1}, {"cpu": 4}, 0.25, False),
        ({"cpu": 4, "memory": 1}, {"cpu": 4, "memory": 2}, 1.0, False),
        ({"cpu": 4, "memory": 2}, {"cpu": 4, "memory": 2}, 1.0, True),
        ({"cpu": 1}, {"cpu": 0}, 1.0, False),
        ({"cpu": 6, "memory": 9}, {"cpu": 4, "memory": 0}, 1.5, True),
    ],
)
def test_shares(
    allocated: dict[str, int], deserved: dict[str, int], share: float, is_overused: bool
) -> None:
    figures = QueueFigures(allocated, {}, deserved, 1)
    assert (figures.share, figures.is_overused) == (share, is_overused)
