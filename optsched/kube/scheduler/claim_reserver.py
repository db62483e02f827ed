"""Allocates devices to ResourceClaims and reserves the claims for pods, before pods are bound.

Allocation and reservation are written as kube-scheduler writes them (KEP-4381): first a finalizer,
so that a claim in use can not be deleted, then both in the status, each with the resource version
that was read. Completed steps are skipped, so every step may be repeated.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from optsched.cluster.dra_devices import DeviceAllocation
from optsched.formats.codec.resource_claims import FINALIZER, granted_fields
from optsched.kube.client.errors import Conflict, KubeError, NotFound, Rejected
from optsched.kube.client.interfaces import Ref

if TYPE_CHECKING:
    from collections.abc import Callable

    from optsched.api.kinds import Kind
    from optsched.cluster.dra_devices import DeviceClass, DeviceGrant
    from optsched.kube.client.interfaces import Api, Raw

TRIES: Final = 8
"""How often a claim is read again after a conflict."""


class ClaimReserver:
    """Reserves claims for pods.

    `kind_of` returns the API version in which a claim is watched, `class_of` a DeviceClass.
    """

    def __init__(
        self,
        api: Api,
        kind_of: Callable[[str], Kind | None],
        class_of: Callable[[str], DeviceClass | None],
    ) -> None:
        self._api = api
        self._kind_of = kind_of
        self._class_of = class_of

    async def reserve(self, grant: DeviceGrant, pod: Ref, uid: str, node: str) -> str:
        """Reserve a claim and its devices for a pod; returns why not, or an empty string.

        Raises KubeError where the outcome is unknown.
        """
        for _ in range(TRIES):
            ref = self._ref(grant.claim)
            if ref is None:
                return f"resource claim {grant.claim} does not exist any more"
            claim: Raw = {}
            try:
                claim = await self._api.read(ref)
                refusal = _refusal(claim, grant)
                if refusal or _is_reserved(claim, uid):
                    return refusal
                await self._write(ref, claim, grant, (pod, uid, node))
            except NotFound:
                return f"resource claim {grant.claim} does not exist any more"
            except Conflict:
                continue
            except Rejected as e:
                devices = (claim.get("spec") or {}).get("devices") or {}
                if devices.get("config"):
                    return f"resource claim {grant.claim} {_NOT_COMPACT}: {e.message}"
                raise
            return ""
        return f"resource claim {grant.claim} is being changed by others all the time"

    async def release(self, grant: DeviceGrant, uid: str) -> None:
        """Undo `reserve` for a pod that was not bound, if possible."""
        ref = self._ref(grant.claim)
        if ref is None or not grant.devices:
            return
        with suppress(KubeError):
            claim = await self._api.read(ref)
            if not _is_reserved(claim, uid) or _refusal(claim, grant):
                return
            others = [r for r in _status(claim).get("reservedFor") or () if r.get("uid") != uid]
            gone = {"reservedFor": others} if others else {"reservedFor": None, "allocation": None}
            await self._api.patch(ref, {"metadata": _version(claim), "status": gone}, "status")

    def _ref(self, key: str) -> Ref | None:
        kind = self._kind_of(key)
        namespace, _, name = key.partition("/")
        return None if kind is None else Ref(kind, namespace, name)

    async def _write(
        self, ref: Ref, claim: Raw, grant: DeviceGrant, consumer: tuple[Ref, str, str]
    ) -> None:
        pod, uid, node = consumer
        status = _status(claim)
        reserved = [*(status.get("reservedFor") or ())]
        fresh: dict[str, Any] = {}
        if not status.get("allocation"):
            finalizers = claim["metadata"].get("finalizers") or []
            if FINALIZER not in finalizers:
                meta = {**_version(claim), "finalizers": [*finalizers, FINALIZER]}
                claim = await self._api.patch(ref, {"metadata": meta})
            allocation = DeviceAllocation.on_node(node, grant.devices)
            fresh["allocation"] = granted_fields(claim, allocation, self._class_of)
        reserved.append({"resource": "pods", "name": pod.name, "uid": uid})
        body = {"metadata": _version(claim), "status": {**fresh, "reservedFor": reserved}}
        await self._api.patch(ref, body, "status")


_NOT_COMPACT: Final = (
    "can not be changed by whoever writes JSON: its parameters for drivers stand with spaces "
    "between them; create it again without these"
)
"""The server stores parameters without spaces, and then treats them as changed."""


def _status(claim: Raw) -> dict[str, Any]:
    status = claim.get("status")
    return status if isinstance(status, dict) else {}


def _version(claim: Raw) -> dict[str, Any]:
    return {"resourceVersion": claim["metadata"].get("resourceVersion")}


def _is_reserved(claim: Raw, uid: str) -> bool:
    return any(each.get("uid") == uid for each in _status(claim).get("reservedFor") or ())


def _refusal(claim: Raw, grant: DeviceGrant) -> str:
    """Return how a claim differs from what the plan assumed; empty if it does not."""
    allocation = _status(claim).get("allocation")
    if not allocation:
        return "" if grant.devices else f"resource claim {grant.claim} has lost its devices"
    if not grant.devices:
        return ""
    results = (allocation.get("devices") or {}).get("results") or ()
    found = {(r.get("request"), r.get("driver"), r.get("pool"), r.get("device")) for r in results}
    if found == {(request, *device) for request, device in grant.devices}:
        return ""
    return f"resource claim {grant.claim} has got other devices"
