"""Prometheus metrics of the controllers: Volcano's names where it has one, else `optsched_`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import generate_latest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from optsched.api.podgroup import PodGroupPhase

_SECONDS: Final = tuple(0.0005 * 2**i for i in range(16))


class _Groups:
    """Collects PodGroups by queue and phase whenever metrics are read."""

    def __init__(self) -> None:
        self.count: Callable[[], Mapping[PodGroupPhase, Mapping[str, int]]] = dict

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for phase, counts in self.count().items():
            name = f"volcano_queue_pod_group_{phase.value.lower()}_count"
            meaning = f"PodGroups of the queue in phase {phase.value}."
            family = GaugeMetricFamily(name, meaning, labels=("queue_name",))
            for queue, number in counts.items():
                family.add_metric([queue], number)
            yield family


class ControllerMetrics:
    """Counters and gauges of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._groups = _Groups()
        self._registry.register(self._groups)
        self.leading = Gauge(
            "optsched_controllers_leading",
            "Whether this process works.",
            registry=self._registry,
        )
        self._looks = Counter(
            "optsched_controller_looks",
            "Objects that were looked at, by what came of it.",
            ("controller", "result"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "optsched_controller_look_seconds",
            "From deciding on an object until all of it was written.",
            ("controller",),
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._writes = Counter(
            "optsched_controller_writes",
            "Writes that the API server has taken.",
            ("verb", "resource"),
            registry=self._registry,
        )
        self._watch_failures = Counter(
            "optsched_controller_watch_failures",
            "Lists and watches that failed.",
            ("resource",),
            registry=self._registry,
        )
        self._depth = Gauge(
            "optsched_controller_waiting",
            "Objects that wait to be looked at.",
            registry=self._registry,
        )

    def watch_depth(self, depth: Callable[[], int]) -> None:
        """Count waiting objects whenever metrics are read."""
        self._depth.set_function(depth)

    def watch_groups(self, count: Callable[[], Mapping[PodGroupPhase, Mapping[str, int]]]) -> None:
        """Count PodGroups by phase and queue whenever metrics are read."""
        self._groups.count = count

    def reconciled(self, controller: str, result: str, seconds: float | None = None) -> None:
        """Record a reconciliation; result: done, stale, refused or error."""
        self._looks.labels(controller, result).inc()
        if seconds is not None:
            self._seconds.labels(controller).observe(seconds)

    def wrote(self, verb: str, resource: str) -> None:
        """Record an accepted write."""
        self._writes.labels(verb, resource).inc()

    def watch_failed(self, resource: str) -> None:
        """Record a failed list or watch."""
        self._watch_failures.labels(resource).inc()

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
