"""ResourceClaims, DeviceClasses and ResourceSlices from watches, in several API versions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from optsched.api import kinds
from optsched.cluster.dra_devices import NO_DEVICES, DeviceAllocation, Devices
from optsched.formats.codec.resource_claims import (
    Stock,
    parse_device_claim,
    parse_device_class,
    parse_slice,
    stock_of,
)
from optsched.kube.cache.parsed_store import store_or_drop

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.api.kinds import Kind
    from optsched.cluster.dra_devices import DeviceClaim, DeviceClass, DeviceGrant
    from optsched.formats.codec.resource_claims import Slice
    from optsched.kube.client.interfaces import Raw

V = TypeVar("V")


class DeviceStore:
    """Devices and claims; devices that are about to be allocated count as allocated."""

    def __init__(self) -> None:
        self._claims: dict[Kind, dict[str, DeviceClaim]] = {k: {} for k in kinds.RESOURCE_CLAIMS}
        self._classes: dict[Kind, dict[str, DeviceClass]] = {k: {} for k in kinds.DEVICE_CLASSES}
        self._slices: dict[Kind, dict[str, Slice]] = {k: {} for k in kinds.RESOURCE_SLICES}
        self._assumed: dict[str, tuple[str, DeviceAllocation]] = {}
        self._shown = NO_DEVICES
        self._is_stale = False
        self._are_slices_stale = False

    def apply_object(self, kind: Kind, key: str, obj: Raw | None) -> None:
        """Apply a state of an object; None for a deleted one."""
        self._is_stale = True
        if kind in self._claims:
            claim = None if obj is None else parse_device_claim(obj)[0]
            store_or_drop(self._claims[kind], key, claim)
            if claim is None or claim.allocation is not None:
                self._assumed.pop(key, None)
        elif kind in self._classes:
            store_or_drop(
                self._classes[kind], key, None if obj is None else parse_device_class(obj)[0]
            )
        else:
            self._are_slices_stale = True
            store_or_drop(self._slices[kind], key, None if obj is None else parse_slice(obj)[0])

    def claim(self, key: str) -> DeviceClaim | None:
        """Return a claim in the newest API version that is served; None if there is none."""
        known = (claims.get(key) for claims in self._claims.values())
        return next((claim for claim in known if claim is not None), None)

    def claim_kind(self, key: str) -> Kind | None:
        """Return the API version in which a claim is watched; None if there is none."""
        return next((kind for kind, claims in self._claims.items() if key in claims), None)

    def assume(self, task: str, node: str, grant: DeviceGrant) -> None:
        """Count devices as allocated to a claim until a watch confirms it, or `forget`."""
        self._is_stale = True
        self._assumed[grant.claim] = (task, DeviceAllocation.on_node(node, grant.devices))

    def forget(self, task: str) -> None:
        """Drop what was assumed for a task."""
        for claim in [c for c, (owner, _) in self._assumed.items() if owner == task]:
            del self._assumed[claim]
            self._is_stale = True

    def devices(self) -> Devices:
        """Return all devices and claims; the very same object until one changes."""
        if not self._is_stale:
            return self._shown
        claims = _newest(list(self._claims.values()))
        for key, (_, allocation) in self._assumed.items():
            if key in claims and claims[key].allocation is None:
                claims[key] = replace(claims[key], allocation=allocation)
        stock = Stock(self._shown.on_node, self._shown.elsewhere, self._shown.in_flux)
        if self._are_slices_stale:
            stock = stock_of(_newest(list(self._slices.values())).values())
        found = Devices(claims, _newest(list(self._classes.values())), *stock)
        if found != self._shown:
            self._shown = found
        self._is_stale = self._are_slices_stale = False
        return self._shown


def _newest(versions: Sequence[Mapping[str, V]]) -> dict[str, V]:
    """Return values by key, in order; the first of several versions counts."""
    found: dict[str, V] = {}
    for each in reversed(versions):
        found.update(each)
    return {key: found[key] for key in sorted(found)}
