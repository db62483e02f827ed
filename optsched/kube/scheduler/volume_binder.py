"""Bind PersistentVolumeClaims once their pods' nodes are chosen.

An existing volume is reserved for its claim (`spec.claimRef`). To get a new volume, the pod's node
is written to the claim's annotation `volume.kubernetes.io/selected-node`, which provisioners wait
for. After these steps, Kubernetes' volume controllers bind the claims. The pods of a gang are bound
once all its claims are bound. Completed steps are skipped, so a restarted scheduler continues where
the previous process stopped.

kube-scheduler's plugin VolumeBinding performs the same steps (`bindAPIUpdate`, `checkBindings`).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from optsched.api.json_fields import annotations_of
from optsched.api.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, Ref
from optsched.cluster.volumes import VolumeGrant, assign_volumes
from optsched.formats.codec.volumes import BOUND_BY_CONTROLLER, LOST, SELECTED_NODE
from optsched.kube.client.errors import (
    Conflict,
    KubeError,
    NotFound,
    ServerFault,
    TooMany,
    Unreachable,
)
from optsched.kube.client.listing import ref_by_key
from optsched.kube.scheduler.bind_preparation import version_precondition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from optsched.cluster.decisions import Allocate
    from optsched.cluster.snapshot import Claim
    from optsched.kube.cache.cluster_cache import ClusterCache
    from optsched.kube.client.client import Client
    from optsched.kube.runtime.timing import Timing
    from optsched.session.ports import Clock

MAX_CONCURRENT: Final = 16
TRIES: Final = 60
"""Maximum number of attempts per claim; conflicts and an unavailable server cause retries."""
POLL_S: Final = 0.5
_PASSING: Final = (Conflict, ServerFault, TooMany, Unreachable)


@dataclass(frozen=True, slots=True)
class PendingVolumes:
    """The claims that must be bound before a gang's pods are bound.

    `grants` holds the volumes or nodes that must still be requested for claims. `used_on` maps each
    unbound claim to the nodes from which its volume must be reachable. `task_of` maps each unbound
    claim to one task that uses it.
    """

    grants: Sequence[VolumeGrant]
    used_on: Mapping[str, Sequence[str]]
    task_of: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A claim that could not be bound, and the reason."""

    claim: str
    message: str


class Stopped(Exception):
    """Raised if this process no longer leads; the next leader continues the work."""


class VolumeBinder:
    """Binds the volume claims of gangs to volumes."""

    def __init__(
        self,
        api: Client,
        cache: ClusterCache,
        clock: Clock,
        timing: Timing,
        may_bind: Callable[[], bool],
        patience_s: Callable[[], float | None],
    ) -> None:
        """`may_bind` returns whether this process still leads; it is called before every request.

        `patience_s` returns the number of seconds for which pods may wait for volumes, or None if
        the policy has no volume plugin.
        """
        self._api = api
        self._cache = cache
        self._clock = clock
        self._timing = timing
        self._may_bind = may_bind
        self._patience_s = patience_s
        self._under_way: dict[str, VolumeGrant] = {}
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    # --- planning --------------------------------------------------------------------------------

    def find_pending(self, allocated: Sequence[Allocate]) -> PendingVolumes | None:
        """Return the unbound claims of allocated tasks, or None if no volume fits a claim."""
        used_on: dict[str, dict[str, None]] = {}
        task_of: dict[str, str] = {}
        if self._patience_s() is not None:
            for action in allocated:
                task = self._cache.task(action.task)
                for key in () if task is None else task.shape.claims:
                    claim = self._cache.claim(key)
                    if claim is None or claim.waits_for_consumer or claim.problem:
                        used_on.setdefault(key, {})[action.node] = None
                        task_of.setdefault(key, action.task)
        if not used_on:
            return PendingVolumes((), {}, {})
        claims: dict[str, Claim] = {}
        for key in used_on:
            claim = self._cache.claim(key)
            if claim is None or (claim.problem and key not in self._under_way):
                return None
            taken = {g.volume for g in self._under_way.values() if g.volume and g.claim != key}
            available = tuple(v for v in claim.volumes if v.name not in taken)
            claims[key] = replace(claim, volumes=available)
        fresh = {key: nodes for key, nodes in used_on.items() if key not in self._under_way}
        holders = assign_volumes(claims, fresh, self._cache.selects)
        grants = [
            VolumeGrant(key, next(iter(nodes)), holders.volume_by_claim.get(key, ""))
            for key, nodes in fresh.items()
        ]
        if holders.short:
            return None
        for key, nodes in used_on.items():
            # All nodes must be able to reach the volume that is already reserved for the claim.
            held = self._under_way.get(key)
            volume = next((v for v in claims[key].volumes if held and v.name == held.volume), None)
            if volume is not None and volume.nodes is not None:
                selector = volume.nodes
                if not all(self._cache.selects(selector, node) for node in nodes):
                    return None
        self._under_way |= {grant.claim: grant for grant in grants}
        return PendingVolumes(
            grants, {key: tuple(nodes) for key, nodes in used_on.items()}, task_of
        )

    # --- requests --------------------------------------------------------------------------------

    async def provision(self, pending: PendingVolumes) -> Refusal | None:
        """Request volumes and wait until all claims are bound; return the first failure, or None.

        Raises Stopped if this process no longer leads.
        """
        try:
            refusals = await asyncio.gather(
                *(self._request_volume(grant) for grant in pending.grants)
            )
            refusal = next((refusal for refusal in refusals if refusal is not None), None)
            refusal = refusal or await self._until_bound(pending)
            if refusal is not None:
                for grant in pending.grants:
                    if grant.volume or not self._may_bind():
                        continue
                    ref = ref_by_key(PERSISTENT_VOLUME_CLAIM, grant.claim)
                    with suppress(KubeError):
                        claim = await self._api.read(ref)
                        is_same_node = annotations_of(claim).get(SELECTED_NODE) == grant.node
                        if is_same_node and not (claim.get("spec") or {}).get("volumeName"):
                            body = {
                                **version_precondition(claim),
                                "annotations": {SELECTED_NODE: None},
                            }
                            await self._api.patch(ref, {"metadata": body})
            return refusal
        finally:
            self.cancel(pending)

    def cancel(self, pending: PendingVolumes) -> None:
        """Discard a gang's unfinished volume grants, so that other claims may use the volumes."""
        for grant in pending.grants:
            if self._under_way.get(grant.claim) is grant:
                del self._under_way[grant.claim]

    async def _request_volume(self, grant: VolumeGrant) -> Refusal | None:
        """Reserve a volume or select a node for a claim; return the failure, if any."""
        async with self._slots:
            for _ in range(TRIES):
                if not self._may_bind():
                    raise Stopped
                try:
                    message = await self._request_once(grant)
                except NotFound:
                    message = f"claim {grant.claim} or its volume no longer exists"
                except _PASSING:
                    await self._timing.sleep(POLL_S)
                    continue
                except KubeError as e:
                    message = f"claim {grant.claim}: {e}"
                return Refusal(grant.claim, message) if message else None
        return Refusal(grant.claim, f"claim {grant.claim}: its volume could not be requested")

    async def _request_once(self, grant: VolumeGrant) -> str:
        """Try once to reserve a volume or select a node; return the failure, or an empty string.

        Volumes are reserved as in kube-scheduler's `GetBindVolumeToClaim`.
        """
        ref = ref_by_key(PERSISTENT_VOLUME_CLAIM, grant.claim)
        claim = await self._api.read(ref)
        meta = claim["metadata"]
        if meta.get("deletionTimestamp"):
            return f"claim {grant.claim} is being deleted"
        if (claim.get("spec") or {}).get("volumeName"):
            return ""
        if not grant.volume:
            selected = annotations_of(claim).get(SELECTED_NODE)
            if selected and selected != grant.node:
                return f"claim {grant.claim} is being provisioned for node {selected}"
            if not selected:
                select = {**version_precondition(claim), "annotations": {SELECTED_NODE: grant.node}}
                await self._api.patch(ref, {"metadata": select})
            return ""
        ref = Ref(PERSISTENT_VOLUME, "", grant.volume)
        volume = await self._api.read(ref)
        own = {"namespace": meta["namespace"], "name": meta["name"], "uid": meta.get("uid", "")}
        held = (volume.get("spec") or {}).get("claimRef") or {}
        reserved_for = {key: held.get(key) or own[key] for key in own}
        if held and reserved_for != own:
            other = f"{held.get('namespace')}/{held.get('name')}"
            return f"claim {grant.claim}: volume {grant.volume} is reserved for {other}"
        if held.get("uid"):
            return ""
        body: dict[str, Any] = {"metadata": version_precondition(volume)}
        if not held:
            body["metadata"]["annotations"] = {BOUND_BY_CONTROLLER: "yes"}
        kind = {"apiVersion": "v1", "kind": PERSISTENT_VOLUME_CLAIM.kind}
        body["spec"] = {"claimRef": {**kind, **own}}
        await self._api.patch(ref, body)
        return ""

    # --- waiting ---------------------------------------------------------------------------------

    async def _until_bound(self, pending: PendingVolumes) -> Refusal | None:
        patience_s = self._patience_s() or 0.0
        until_s = self._clock.monotonic() + patience_s
        seen: set[str] = set()
        left = sorted(pending.used_on)
        while left:
            for key in tuple(left):
                message = self._check_claim(key, pending, seen)
                if message:
                    return Refusal(key, message)
                if message is None:
                    left.remove(key)
            if left and self._clock.monotonic() >= until_s:
                message = f"claim {left[0]} was not bound within {patience_s:g} s"
                return Refusal(left[0], message)
            if left:
                await self._timing.sleep(POLL_S)
            if not self._may_bind():
                raise Stopped
        return None

    def _check_claim(self, key: str, pending: PendingVolumes, seen: set[str]) -> str | None:
        """Return why a claim cannot be bound; empty while it is pending, None once it is bound."""
        claim = self._cache.claim(key)
        if claim is None or claim.problem == LOST:
            return f"claim {key} {LOST if claim else 'no longer exists'}"
        if self._cache.task(pending.task_of[key]) is None:
            return f"pod {pending.task_of[key]} no longer exists"
        if claim.waits_for_consumer:
            grant = self._under_way.get(claim.key)
            if grant is None or grant.volume:
                return ""
            if claim.selected_node == grant.node:
                seen.add(claim.key)
                return ""
            # A provisioner that cannot provide a volume on the node removes the annotation.
            return f"no volume for claim {claim.key} on {grant.node}" if claim.key in seen else ""
        if claim.problem:
            return ""
        for node in pending.used_on[key]:
            found = self._cache.find_node(node)
            if found is None or not claim.is_reachable(node, found.labels):
                return f"claim {claim.key} is bound to a volume that node {node} cannot reach"
        return None
