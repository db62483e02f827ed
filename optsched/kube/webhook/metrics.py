"""Prometheus metrics of the webhook."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest

_SECONDS: Final = tuple(0.00025 * 2**i for i in range(14))


class WebhookMetrics:
    """Counters and gauges of one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._reviews = Counter(
            "optsched_admission_reviews",
            "Requests, by what came of them.",
            ("path", "result"),
            registry=self._registry,
        )
        self._seconds = Histogram(
            "optsched_admission_review_seconds",
            "From the body of a request until its answer.",
            ("path",),
            registry=self._registry,
            buckets=_SECONDS,
        )
        self._looks = Counter(
            "optsched_admission_second_looks",
            "Denials for which objects were read again.",
            ("path",),
            registry=self._registry,
        )
        self._watch_failures = Counter(
            "optsched_admission_watch_failures",
            "Lists and watches that failed.",
            ("resource",),
            registry=self._registry,
        )
        self._expiry = Gauge(
            "optsched_admission_certificate_expiry_seconds",
            "Epoch seconds at which the certificate ends.",
            registry=self._registry,
        )

        self._config_reads = Counter(
            "optsched_admission_config_reads",
            "Contents of the file of resource groups that were new, by whether they are good.",
            ("result",),
            registry=self._registry,
        )
        self._config_rejected = Gauge(
            "optsched_admission_config_rejected",
            "1 while the file of resource groups is unusable, and an older content is in force.",
            registry=self._registry,
        )

    def reviewed(self, path: str, result: str, seconds: float) -> None:
        """Record an answered request; result: allowed, denied, malformed, busy or error."""
        self._reviews.labels(path, result).inc()
        self._seconds.labels(path).observe(seconds)

    def reviewed_again(self, path: str) -> None:
        """Record that objects were read again because a denial depends on them."""
        self._looks.labels(path).inc()

    def watch_failed(self, resource: str) -> None:
        """Record a failed list or watch."""
        self._watch_failures.labels(resource).inc()

    def expires(self, epoch_s: float) -> None:
        """Record when the certificate in use ends."""
        self._expiry.set(epoch_s)

    def config_read(self, problem: str) -> None:
        """Record a new content of the resource groups file; problem: empty if it is valid."""
        self._config_reads.labels("rejected" if problem else "read").inc()
        self._config_rejected.set(bool(problem))

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)
