"""Metrics of one process in Prometheus' text format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


class ProcessMetrics:
    """A factory of metrics in a separate registry.

    The parameter `meaning` of its methods is a help text without a full stop.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry(support_collectors_without_names=True)

    def counter(self, name: str, meaning: str, *labels: str) -> Counter:
        """Return a new counter; Prometheus adds `_total` to its name."""
        return Counter(name, f"{meaning}.", labels, registry=self.registry)

    def gauge(self, name: str, meaning: str) -> Gauge:
        """Return a new gauge in the registry of the process."""
        return Gauge(name, f"{meaning}.", registry=self.registry)

    def histogram(
        self, name: str, meaning: str, buckets: Sequence[float], *labels: str
    ) -> Histogram:
        """Return a new histogram in the registry of the process."""
        return Histogram(name, f"{meaning}.", labels, registry=self.registry, buckets=buckets)

    def exposition(self, names: Collection[str] = ()) -> bytes:
        """Return the metrics with the given names, or all metrics, in Prometheus' text format."""
        if not names:
            return generate_latest(self.registry)
        return generate_latest(self.registry.restricted_registry(names))
