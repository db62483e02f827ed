"""Prometheus metrics of the webhook."""

from __future__ import annotations

from typing import Final

from optsched.kube.serving.exposition import ProcessMetrics

_SECONDS: Final = tuple(0.00025 * 2**i for i in range(14))


class WebhookMetrics(ProcessMetrics):
    """Counters and gauges of one process.

    second_looks: by path, denials for which objects were read again.
    watch_failures: by resource.
    expiry: epoch seconds at which the certificate in use ends.
    """

    def __init__(self) -> None:
        super().__init__()
        name = "optsched_admission"
        self._reviews = self.counter(
            f"{name}_reviews", "Requests, by what came of them", "path", "result"
        )
        self._seconds = self.histogram(
            f"{name}_review_seconds",
            "From the body of a request until its answer",
            _SECONDS,
            "path",
        )
        self.second_looks = self.counter(
            f"{name}_second_looks", "Denials for which objects were read again", "path"
        )
        self.watch_failures = self.counter(
            f"{name}_watch_failures", "Lists and watches that failed", "resource"
        )
        self.expiry = self.gauge(
            f"{name}_certificate_expiry_seconds", "Epoch seconds at which the certificate ends"
        )
        self._config_reads = self.counter(
            f"{name}_config_reads",
            "Contents of the file of resource groups that were new, by whether they are good",
            "result",
        )
        self._config_rejected = self.gauge(
            f"{name}_config_rejected",
            "1 while the file of resource groups is unusable, and an older content is in force",
        )

    def reviewed(self, path: str, result: str, seconds: float) -> None:
        """Record an answered request; result: allowed, denied, malformed, busy or error."""
        self._reviews.labels(path, result).inc()
        self._seconds.labels(path).observe(seconds)

    def config_read(self, problem: str) -> None:
        """Record a new content of the resource groups file; problem: empty if it is valid."""
        self._config_reads.labels("rejected" if problem else "read").inc()
        self._config_rejected.set(bool(problem))
