"""All writes except binds and evictions, such as status patches and creations of queues.

`RefusedWrites` handles writes that the API server rejects, for example because a webhook denies a
status.

A pod that is deleted despite its disruption budgets needs the condition DisruptionTarget. The
eviction API sets DisruptionTarget before it deletes a pod, so that job controllers do not count the
pod as failed.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from optsched.api.hypernode import nodeshard_status_patch
from optsched.api.json_fields import uid_of, version_of, with_condition
from optsched.api.kinds import NODE_SHARD, POD, POD_GROUP, QUEUE, Ref
from optsched.cluster.reasons import ReasonCode
from optsched.cluster.snapshot import DEFAULT_QUEUE, ROOT_QUEUE
from optsched.cluster.task import TaskStatus
from optsched.formats.codec.pods.reader import is_standing
from optsched.kube.client.client import patch_current
from optsched.kube.client.errors import AlreadyExists, Conflict, NotFound
from optsched.kube.scheduler.bind_preparation import (
    ClaimDeallocation,
    GateOpening,
    deallocate_claim,
    open_gate_unplaced,
)
from optsched.kube.scheduler.status import StatusPatch
from optsched.units import format_time

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from prometheus_client import Counter

    from optsched.api.hypernode import NodeShard
    from optsched.api.json_fields import Manifest
    from optsched.api.kinds import Kind
    from optsched.cluster.node_resources import Sharding
    from optsched.kube.cache.cluster_cache import ClusterCache
    from optsched.kube.client.client import Client
    from optsched.kube.client.errors import KubeError
    from optsched.kube.client.listing import Raw
    from optsched.kube.scheduler.binder import GangBackoff

log = logging.getLogger(__name__)

DISRUPTION_TARGET: Final = "DisruptionTarget"
BY_SCHEDULER: Final = "PreemptionByScheduler"
"""The reason in DisruptionTarget, as in kube-scheduler (`PodReasonPreemptionByScheduler`)."""

NOT_DELETED: Final = "DeletionWithdrawn"
_RESET_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class DisruptionReset:
    """Data to reset the condition DisruptionTarget of a pod that was not deleted after all.

    `uid` is the pod's UID. `now_ms` is the time in milliseconds since the Unix epoch. `message`
    gives the cause.
    """

    ref: Ref
    uid: str
    now_ms: int
    message: str


async def mark_disruption(
    api: Client, ref: Ref, pod: Manifest, known: Manifest, message: str, now_ms: int
) -> Raw:
    """Set a pod's condition DisruptionTarget to True; return the stored pod.

    `known` is the metadata that the stored pod must match; otherwise the patch fails with
    `Conflict`.
    """
    condition = _condition("True", BY_SCHEDULER, message, now_ms)
    body = {"metadata": known, "status": {"conditions": with_condition(pod, condition)}}
    return await api.patch(ref, body, "status")


async def reset_disruption(api: Client, reset: DisruptionReset) -> None:
    """Set the condition DisruptionTarget to False, unless the pod has finished or terminates."""
    condition = _condition("False", NOT_DELETED, reset.message, reset.now_ms)

    def reset_condition(pod: Raw) -> Raw | None:
        if uid_of(pod) != reset.uid or not is_standing(pod):
            return None
        is_marked = any(
            (each.get("type"), each.get("status"), each.get("reason"))
            == (DISRUPTION_TARGET, "True", BY_SCHEDULER)
            for each in (pod.get("status") or {}).get("conditions") or ()
        )
        if not is_marked:
            return None
        return {
            "metadata": {"uid": reset.uid, "resourceVersion": version_of(pod)},
            "status": {"conditions": with_condition(pod, condition)},
        }

    await patch_current(api, reset.ref, reset_condition, _RESET_TRIES, "status")


def _condition(status: str, reason: str, message: str, now_ms: int) -> Raw:
    return {
        "type": DISRUPTION_TARGET,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": format_time(now_ms),
    }


@dataclass(frozen=True, slots=True)
class Creation:
    """An object to create, unless an object with the same name exists."""

    ref: Ref
    body: Raw


Write: TypeAlias = StatusPatch | Creation | GateOpening | DisruptionReset | ClaimDeallocation


def make_writer(
    api: Client,
    may_write: Callable[[], bool],
    cache: ClusterCache | None = None,
    on_success: Callable[[Ref], None] = lambda _: None,
) -> Callable[[Ref, Write], Awaitable[None]]:
    """Return a function that executes a write; AlreadyExists and NotFound count as success.

    `may_write` returns whether this process still leads; otherwise writes are dropped. `cache`
    holds the known objects. A status patch is dropped if the object was deleted, or if the object
    is a pod that is not pending. `on_success` is called after each successful write.
    """

    async def write(_: Ref, what: Write) -> None:
        if not may_write():
            return
        if cache is not None and isinstance(what, StatusPatch):
            if what.ref.kind == POD:
                task = cache.task(what.ref.key)
                is_needed = task is not None and task.status is TaskStatus.PENDING
            else:
                is_needed = cache.exists(what.ref)
            if not is_needed:
                return
        with suppress(AlreadyExists, NotFound):
            if isinstance(what, Creation):
                await api.create(what.ref, what.body)
            elif isinstance(what, GateOpening):
                await open_gate_unplaced(api, what)
            elif isinstance(what, DisruptionReset):
                await reset_disruption(api, what)
            elif isinstance(what, ClaimDeallocation):
                await deallocate_claim(api, what)
            else:
                await api.patch(what.ref, what.body, what.subresource)
        on_success(what.ref)

    return write


def write_key(ref: Ref, what: str) -> Ref:
    """Return a write-queue key that differs from the key of the object's status write."""
    return Ref(ref.kind, ref.namespace, f"{ref.name}/{what}")


BUILTIN_QUEUES: Final = tuple(
    Creation(
        Ref(QUEUE, "", name),
        {
            "apiVersion": QUEUE.api_version,
            "kind": QUEUE.kind,
            "metadata": {"name": name},
            "spec": {"weight": 1, "reclaimable": reclaimable},
        },
    )
    for name, reclaimable in ((DEFAULT_QUEUE, True), (ROOT_QUEUE, False))
)
"""The queues `default` and `root`, which Volcano's scheduler also creates (cache/cache.go)."""


def shard_patch(
    sharding: Sharding, shards: Mapping[str, NodeShard], now_ms: int
) -> StatusPatch | None:
    """Return the status patch of this scheduler's NodeShard, or None if it is up to date.

    `sharding` is the shard used in the last session. `shards` holds the server's NodeShards, keyed
    by name.
    """
    shard, used = shards.get(sharding.name), sharding.nodes
    if shard is None or used is None:
        return None
    assigned = set(shard.wanted)
    in_use, to_remove, to_add = (sorted(part) for part in (used, used - assigned, assigned - used))
    known = (shard.in_use, shard.to_remove, shard.to_add)
    if [sorted(part) for part in known] == [in_use, to_remove, to_add]:
        return None
    body = nodeshard_status_patch(in_use, to_remove, to_add, now_ms)
    return StatusPatch(Ref(NODE_SHARD, "", shard.name), body, "status")


MAX_REMEMBERED: Final = 1_000
"""Maximum number of remembered (kind, namespace) pairs for which a write was rejected."""


class RefusedWrites:
    """Handles writes that the server rejects.

    Rejections of one kind in one namespace for one reason cause one warning, until a write of this
    kind succeeds in the namespace. If a gang's phase is rejected, the gang gets no pods and must
    not reserve quota. The gang is therefore excluded from scheduling, with a delay that grows with
    each rejection.
    """

    def __init__(
        self,
        cache: ClusterCache,
        gang_backoff: GangBackoff,
        counter: Counter,
        on_refusal: Callable[[Ref, KubeError], None] = lambda _ref, _error: None,
    ) -> None:
        """`counter` counts rejected writes by kind and reason.

        `on_refusal` is called after each rejection.
        """
        self._cache = cache
        self._gang_backoff = gang_backoff
        self._counter = counter
        self._on_refusal = on_refusal
        self._faults: dict[tuple[Kind, str], set[str]] = {}

    def record_refusal(self, ref: Ref, error: KubeError) -> None:
        """Report a rejected write, and revoke the assumption that depends on the write."""
        reason = error.label
        self._counter.labels(ref.kind.kind, reason).inc()
        if len(self._faults) >= MAX_REMEMBERED:
            self._faults.clear()
        known = self._faults.setdefault((ref.kind, ref.namespace), set())
        level = logging.DEBUG if reason in known else logging.WARNING
        log.log(level, "%s not written: %s", ref, error)
        known.add(reason)
        is_of_gang = ref.kind is POD_GROUP and not isinstance(error, Conflict)
        if is_of_gang and self._cache.revoke_enqueued(ref.key):
            message = f"the phase of PodGroup {ref.key} could not be written: {error}"
            self._gang_backoff.fail(ref.key, ReasonCode.NOT_ENQUEUED, message)
        self._on_refusal(ref, error)

    def record_success(self, ref: Ref) -> None:
        """Record a successful write, so that the next rejection logs a warning again."""
        self._faults.pop((ref.kind, ref.namespace), None)
