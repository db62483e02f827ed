"""Prometheus metrics of the controllers, with Volcano's names or the prefix `optsched_`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily

from optsched.kube.serving.metrics_server import ProcessMetrics

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from optsched.api.podgroup import PodGroupPhase

_SECONDS: Final = tuple(0.0005 * 2**i for i in range(16))


class ControllerMetrics(ProcessMetrics):
    """The metrics of one controller process.

    `leading` is 1 while this process leads, else 0. `writes` counts writes by verb and resource.
    `watch_failures` counts failed lists and watches by resource. `depth` is the number of queued
    objects. `count_groups` returns the number of PodGroups by phase and queue; it is called
    whenever metrics are read.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count_groups: Callable[[], Mapping[PodGroupPhase, Mapping[str, int]]] = dict
        self.registry.register(self)
        self.leading = self.gauge("optsched_controllers_leading", "Whether this process leads")
        name = "optsched_controller"
        self._looks = self.counter(
            f"{name}_looks",
            "Reconciliations of objects, by their result",
            "controller",
            "result",
        )
        self._seconds = self.histogram(
            f"{name}_look_seconds",
            "Seconds from the decision on an object until all its writes are done",
            _SECONDS,
            "controller",
        )
        self.writes = self.counter(
            f"{name}_writes", "Writes that the API server accepted", "verb", "resource"
        )
        self.watch_failures = self.counter(
            f"{name}_watch_failures", "Lists and watches that failed", "resource"
        )
        self.depth = self.gauge(f"{name}_waiting", "Objects that wait to be reconciled")

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the number of PodGroups per queue, for each phase."""
        for phase, counts in self.count_groups().items():
            name = f"volcano_queue_pod_group_{phase.value.lower()}_count"
            meaning = f"PodGroups of the queue in phase {phase.value}."
            family = GaugeMetricFamily(name, meaning, labels=("queue_name",))
            for queue, number in counts.items():
                family.add_metric([queue], number)
            yield family

    def reconciled(self, controller: str, result: str, seconds: float | None = None) -> None:
        """Record a reconciliation; `result` is `done`, `stale`, `refused` or `error`."""
        self._looks.labels(controller, result).inc()
        if seconds is not None:
            self._seconds.labels(controller).observe(seconds)
