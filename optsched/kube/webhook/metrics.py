"""Prometheus metrics of the webhook."""

from __future__ import annotations

from typing import Final

from optsched.kube.serving.metrics_server import ProcessMetrics

_SECONDS: Final = tuple(0.00025 * 2**i for i in range(14))


class WebhookMetrics(ProcessMetrics):
    """The metrics of one webhook process.

    `second_looks` counts, by path, the denials that were checked again with freshly read objects.
    `watch_failures` counts failed lists and watches by resource. `expiry` is the Unix time in
    seconds at which the certificate in use expires.
    """

    def __init__(self) -> None:
        super().__init__()
        name = "optsched_admission"
        self._reviews = self.counter(
            f"{name}_reviews", "Requests, by path and result", "path", "result"
        )
        self._seconds = self.histogram(
            f"{name}_review_seconds",
            "Seconds from the start of a request until its answer",
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
            f"{name}_certificate_expiry_seconds", "Epoch seconds at which the certificate expires"
        )
        self._config_reads = self.counter(
            f"{name}_config_reads",
            "Changed contents of the resource groups file, by result",
            "result",
        )
        self._config_rejected = self.gauge(
            f"{name}_config_rejected",
            "1 while the resource groups file is invalid, and its last valid content is used",
        )

    def reviewed(self, path: str, result: str, seconds: float) -> None:
        """Record a review by its result, such as allowed, denied, malformed or busy."""
        self._reviews.labels(path, result).inc()
        self._seconds.labels(path).observe(seconds)

    def config_read(self, problem: str) -> None:
        """Record that the resource groups file changed; `problem` is empty if it is valid."""
        self._config_reads.labels("rejected" if problem else "read").inc()
        self._config_rejected.set(bool(problem))
