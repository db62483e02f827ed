"""Prometheus metrics of the scheduler, with Volcano's names or the prefix `optsched_`.

Metrics are computed from session reports, not in the code that makes decisions. Metrics of queues,
objective levels and pending gangs describe the last session, so a deleted object has no time
series.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
from prometheus_client.core import GaugeMetricFamily

from optsched.cluster.amounts import amount_of
from optsched.kube.serving.metrics_server import ProcessMetrics
from optsched.plugins.shares.proportion import deserved_shares
from optsched.plugins.shares.tree_fairness import HierarchicalDrf
from optsched.units import CPU, GPU, MEMORY, PODS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from prometheus_client import Counter

    from optsched.policy.policy import Policy
    from optsched.problem.arrays import I64
    from optsched.session.session import Report

_MS: Final = tuple(5.0 * 2**i for i in range(15))
"""Buckets of Volcano's histograms (pkg/scheduler/metrics), from 5 ms to 82 s."""

_CLEARING: Final = frozenset({"preempt", "reclaim", "gangpreempt", "gangreclaim"})
"""Actions that evict pods; the solver decides the evictions of these actions jointly."""

_SECONDS: Final = tuple(0.001 * 2**i for i in range(15))


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """A queue's allocated, requested and deserved amounts in the last session, in base units."""

    allocated: Mapping[str, int]
    request: Mapping[str, int]
    deserved: Mapping[str, int]
    weight: int

    @property
    def share(self) -> float:
        """The largest ratio allocated / deserved over all resources."""
        parts = ((self.allocated.get(r, 0), due) for r, due in self.deserved.items())
        return max((used / due if due else float(used > 0) for used, due in parts), default=0.0)

    @property
    def is_overused(self) -> bool:
        """Whether the queue's allocation reaches the deserved amount of every resource."""
        due = {resource: amount for resource, amount in self.deserved.items() if amount}
        return bool(due) and all(self.allocated.get(r, 0) >= a for r, a in due.items())


@dataclass(frozen=True, slots=True)
class Figures:
    """The values of the gauges that describe the last session.

    `wasted` is the number of GPUs held by gangs below their minMember, keyed by queue.
    """

    queues: Mapping[str, QueueFigures] = field(default_factory=dict)
    gaps: Mapping[str, int] = field(default_factory=dict)
    pending: Mapping[tuple[str, str], int] = field(default_factory=dict)
    wasted: Mapping[str, int] = field(default_factory=dict)


def figures_of(report: Report, policy: Policy) -> Figures:
    """Compute the gauges from a session report."""
    plan, problem = report.plan, report.problem
    gangs = (*problem.snapshot.gangs, *report.separated)
    queue_of = {gang.key: gang.queue for gang in gangs}
    waiting = collections.Counter(
        (queue_of[g], reason.code.value) for g, reason in plan.pending.items()
    )
    gaps = {level.name: level.gap for level in plan.certificate.levels}
    arrays, drf = problem.queues, policy.rules.find_rule("drf")
    deserved: I64 | None = None
    if policy.rules.find_rule("proportion") is not None:
        deserved = deserved_shares(problem)
    elif drf is not None and isinstance(drf.rule, HierarchicalDrf):
        deserved = drf.rule.deserved(problem)
    if deserved is None:
        deserved = arrays.deserved
    queues: dict[str, QueueFigures] = {}
    for i, name in enumerate(arrays.names):
        allocated, request, due = (
            dict(zip(problem.resources, row[i].tolist(), strict=True))
            for row in (arrays.allocated, arrays.requested, deserved)
        )
        queues[name] = QueueFigures(allocated, request, due, int(arrays.weight[i]))
    wasted: dict[str, int] = {}
    for g in np.flatnonzero(problem.num_ready < problem.min_member).tolist():
        gang = problem.snapshot.gangs[g]
        standing = (t for t in gang.tasks if t.status.is_standing)
        held = sum(amount_of(t.shape.request, GPU) for t in standing)
        if held:
            wasted[gang.queue] = wasted.get(gang.queue, 0) + held
    return Figures(
        queues=queues,
        gaps={name: gap for name, gap in gaps.items() if gap is not None},
        pending=waiting,
        wasted=wasted,
    )


def _family(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, f"{meaning}.", labels=labels)


def _amount_families(
    kind: str, by_queue: Mapping[str, Mapping[str, int]]
) -> Iterator[GaugeMetricFamily]:
    """Yield Volcano's gauges of CPU, memory and scalar resources, such as allocated CPU."""
    name = f"volcano_queue_{kind}"
    cpu = _family(f"{name}_milli_cpu", f"CPU {kind}, in thousandths", "queue_name")
    memory = _family(f"{name}_memory_bytes", f"Memory {kind}", "queue_name")
    scalar = _family(f"{name}_scalar_resources", f"Other {kind}", "queue_name", "resource")
    for queue, amounts in by_queue.items():
        cpu.add_metric([queue], amounts.get(CPU, 0))
        memory.add_metric([queue], amounts.get(MEMORY, 0))
        for resource, amount in amounts.items():
            if resource not in (CPU, MEMORY):
                factor = 1 if resource == PODS else 1000
                scalar.add_metric([queue, resource], amount * factor)
    yield from (cpu, memory, scalar)


class PodMetrics:
    """Counters of the binds and evictions of pods.

    `evictions` counts evicted pods by action and plugin; the label for the plugin is empty unless a
    plugin moved the pod. `spared` counts the planned evictions that were not sent, by reason.
    `count_waiting` counts the waiting evictions by the event that they wait for.
    """

    def __init__(self, metrics: ProcessMetrics, attempts: Counter) -> None:
        """`attempts` counts tasks and gangs by result."""
        self._attempts = attempts
        name = "volcano_task_scheduling_latency_milliseconds"
        self._task = metrics.histogram(
            name, "Time from the plan until the pod is bound", _MS, "stage"
        )
        name = "optsched_bind_failures"
        self._bind_failures = metrics.counter(name, "Failed binds, by reason", "reason")
        self.evictions = metrics.counter("optsched_evictions", "Evicted pods", "action", "plugin")
        name = "optsched_evictions_spared"
        self.spared = metrics.counter(name, "Evictions not sent, by reason", "reason")
        self.count_waiting: Callable[[], Mapping[str, int]] = dict
        metrics.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the number of waiting evictions by the event that they wait for."""
        found = _family("optsched_evictions_waiting", "Evictions without an answer", "for")
        for reason, number in self.count_waiting().items():
            found.add_metric([reason], number)
        yield found

    def bound(self, seconds: float) -> None:
        """Record a bind that was confirmed `seconds` seconds after it was planned."""
        self._attempts.labels("scheduled").inc()
        self._task.labels("Bound").observe(seconds * 1000)

    def not_bound(self, reason: str) -> None:
        """Record a failed bind."""
        self._attempts.labels("error").inc()
        self._bind_failures.labels(reason).inc()


class SessionMetrics:
    """Session counters and durations.

    `skipped` counts sessions that were skipped because they would repeat the last plan. `errors`
    counts sessions that raised an error. `plugin_failures` counts errors in extension points by
    plugin.
    """

    def __init__(self, metrics: ProcessMetrics, attempts: Counter) -> None:
        """`attempts` counts tasks and gangs by result."""
        counter = metrics.counter
        self._attempts = attempts
        name = "volcano_e2e_scheduling_latency_milliseconds"
        self._e2e = metrics.histogram(name, "Time from snapshot to plan", _MS)
        name = "volcano_open_session_duration_milliseconds"
        self._open = metrics.histogram(name, "Time from snapshot to problem", _MS)
        name = "volcano_action_scheduling_latency_milliseconds"
        self._action = metrics.histogram(name, "Time of decisions by action", _MS, "action")
        self._sessions = counter("optsched_sessions", "Sessions by engine", "engine")
        self.skipped = counter("optsched_sessions_skipped", "Sessions skipped as repetitions")
        self.errors = counter("optsched_session_errors", "Sessions that raised an error")
        self._violations = counter(
            "optsched_violations", "Rule violations in plans that were not executed"
        )
        self._repairs = counter("optsched_repairs", "Gangs dropped from plans that broke a rule")
        self._cut_searches = counter(
            "optsched_device_searches_cut",
            "Searches for devices of ResourceClaims that ended without a result",
            "limit",
        )
        name = "optsched_session_seconds"
        self._phases = metrics.histogram(name, "Time of sessions by phase", _SECONDS, "phase")
        self.plugin_failures = counter(
            "optsched_plugin_failures", "Errors of plugins, counted once per session", "plugin"
        )

    def decided(self, report: Report, policy: Policy, seconds: float) -> None:
        """Record a session; `seconds` is the time until its binds and evictions were started."""
        self._sessions.labels(report.plan.certificate.engine).inc()
        self._e2e.observe(seconds * 1000)
        spent = report.trace.seconds
        for phase, part in spent.items():
            self._phases.labels(phase).observe(part)
        self._open.observe(spent.get("compile", 0.0) * 1000)
        deciding = spent.get("greedy", 0.0) + spent.get("solve", 0.0)
        self._action.labels("allocate").observe(deciding * 1000)
        for action in _CLEARING.intersection(policy.actions):
            self._action.labels(action).observe(spent.get("victims", 0.0) * 1000)
        self._violations.inc(len(report.trace.violations))
        self._repairs.inc(sum(len(repair.dropped) for repair in report.trace.repairs))
        for limit, number in report.trace.num_cut_searches.items():
            self._cut_searches.labels(limit).inc(number)
        self._attempts.labels("unschedulable").inc(len(report.plan.pending))


class Metrics(ProcessMetrics):
    """All metrics of one scheduler.

    `sessions` holds session metrics, and `pods` the metrics of binds and evictions.
    `policy_rejected` is 1 while the policy file is invalid. `leading` is 1 while this process
    leads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._figures = Figures()
        self.registry.register(self)
        name = "volcano_schedule_attempts"
        attempts = self.counter(name, "Tasks and gangs by result", "result")
        self.sessions = SessionMetrics(self, attempts)
        self.pods = PodMetrics(self, attempts)
        self._wasted = self.counter(
            "optsched_wasted_gpu_seconds", "GPU seconds held by gangs below their minimum", "queue"
        )
        self._counted_s = 0.0
        self._counted: set[str] = set()
        self.watch_failures = self.counter("optsched_watch_failures", "Failed watches", "kind")
        name = "optsched_writes_refused"
        self.refused_writes = self.counter(name, "Refused writes of statuses", "kind", "reason")
        self._dropped = self.counter("optsched_events_dropped", "Events dropped")
        self._num_dropped = 0
        name = "optsched_policy_rejected"
        self.policy_rejected = self.gauge(name, "1 while the policy file is invalid")
        self.leading = self.gauge("optsched_leading", "1 while this process leads")

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges that describe the last session."""
        figures = self._figures
        for kind in ("allocated", "request", "deserved"):
            by_queue = {name: getattr(queue, kind) for name, queue in figures.queues.items()}
            yield from _amount_families(kind, by_queue)
        share = _family(
            "volcano_queue_share", "Largest ratio of allocated to deserved amounts", "queue_name"
        )
        weight = _family("volcano_queue_weight", "Weight", "queue_name")
        over = _family(
            "volcano_queue_overused",
            "1 if the queue has used up its deserved amounts",
            "queue_name",
        )
        for name, queue in figures.queues.items():
            share.add_metric([name], queue.share)
            weight.add_metric([name], queue.weight)
            over.add_metric([name], queue.is_overused)
        yield from (share, weight, over)
        gap = _family(
            "optsched_level_gap", "Distance between the value and the bound of a level", "level"
        )
        for level, distance in figures.gaps.items():
            gap.add_metric([level], distance)
        pending = _family("optsched_pending_gangs", "Pending gangs, by reason", "queue", "code")
        for (queue_name, code), number in figures.pending.items():
            pending.add_metric([queue_name, code], number)
        jobs = _family("volcano_unschedule_job_count", "Pending gangs")
        jobs.add_metric([], sum(figures.pending.values()))
        wasted = _family("optsched_wasted_gpus", "GPUs held by gangs below their minimum", "queue")
        for queue_name, gpus in figures.wasted.items():
            wasted.add_metric([queue_name], gpus)
        yield from (gap, pending, jobs, wasted)

    def session(self, report: Report, policy: Policy, seconds: float) -> None:
        """Record a session; `seconds` is the time until its binds and evictions were started."""
        self.sessions.decided(report, policy, seconds)
        self._figures = figures_of(report, policy)
        # A deleted queue must not keep its time series.
        for queue in self._counted - self._figures.queues.keys():
            self._wasted.remove(queue)
            self._counted.discard(queue)

    def add_wasted_time(self, now_s: float) -> None:
        """Add the GPU seconds wasted between the last call and the monotonic time `now_s`."""
        seconds, self._counted_s = now_s - self._counted_s, now_s
        for queue, gpus in self._figures.wasted.items():
            self._wasted.labels(queue).inc(gpus * seconds)
            self._counted.add(queue)

    def clear_figures(self) -> None:
        """Drop the gauges of the last session, because another process may lead."""
        self._figures = Figures()

    def dropped(self, events: int) -> None:
        """Record `events`, the total number of dropped events."""
        self._dropped.inc(events - self._num_dropped)
        self._num_dropped = events
