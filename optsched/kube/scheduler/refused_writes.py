"""Handle statuses that the API server refuses, for example because a webhook denies them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from optsched.api.kinds import POD_GROUP
from optsched.cluster.reasons import ReasonCode
from optsched.kube.client.errors import ApiError, Conflict

if TYPE_CHECKING:
    from prometheus_client import Counter

    from optsched.api.kinds import Kind
    from optsched.kube.cache.cluster_cache import ClusterCache
    from optsched.kube.client.errors import KubeError
    from optsched.kube.client.listing import Ref
    from optsched.kube.scheduler.binder import GangBackoff

REMEMBERED: Final = 1_000
"""Maximum number of remembered faults; then all of them are reported again."""

log = logging.getLogger(__name__)


class RefusedWrites:
    """A handler of refused writes.

    One warning is logged per fault, until a write of the same kind in the same namespace succeeds.
    A gang whose phase is refused gets no pods. Such a gang must not reserve a quota, so it is
    excluded from scheduling, with longer delays for later refusals.
    """

    def __init__(self, cache: ClusterCache, gang_backoff: GangBackoff, counter: Counter) -> None:
        """`counter` counts refused writes by kind and reason."""
        self._cache = cache
        self._gang_backoff = gang_backoff
        self._counter = counter
        self._faults: dict[tuple[Kind, str], set[str]] = {}

    def record_refusal(self, ref: Ref, error: KubeError) -> None:
        """Report a refused write, and revoke the assumption that depends on the write."""
        reason = error.reason if isinstance(error, ApiError) else type(error).__name__
        self._counter.labels(ref.kind.kind, reason).inc()
        if len(self._faults) >= REMEMBERED:
            self._faults.clear()
        known = self._faults.setdefault((ref.kind, ref.namespace), set())
        log.log(logging.DEBUG if reason in known else logging.WARNING, _REFUSED, ref, error)
        known.add(reason)
        gang = f"{ref.namespace}/{ref.name}"
        if ref.kind is not POD_GROUP or isinstance(error, Conflict):
            return
        if self._cache.revoke_enqueued(gang):
            message = f"the phase of PodGroup {gang} could not be written: {error}"
            self._gang_backoff.fail(gang, ReasonCode.NOT_ENQUEUED, message)

    def record_success(self, ref: Ref) -> None:
        """Record a successful write, after which a new fault is reported again."""
        self._faults.pop((ref.kind, ref.namespace), None)


_REFUSED: Final = "%s not written: %s"
