"""ResourceClaims, DeviceClasses and ResourceSlices as watches tell of them, in several versions."""

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
    """What there is to be claimed; devices that are about to be allocated count as taken."""

    def __init__(self) -> None:
        self._claims: dict[Kind, dict[str, DeviceClaim]] = {k: {} for k in kinds.RESOURCE_CLAIMS}
        self._classes: dict[Kind, dict[str, DeviceClass]] = {k: {} for k in kinds.DEVICE_CLASSES}
        self._slices: dict[Kind, dict[str, Slice]] = {k: {} for k in kinds.RESOURCE_SLICES}
        self._assumed: dict[str, tuple[str, DeviceAllocation]] = {}
        self._shown = NO_DEVICES
        self._is_stale = False
        self._are_slices_stale = False

    def apply_object(self, kind: Kind, key: str, obj: Raw | None) -> None:
        """Take a state of an object; None for one that does not exist any more."""
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
        """A claim as the server has it, in the newest version that it tells of."""
        known = (claims.get(key) for claims in self._claims.values())
        return next((claim for claim in known if claim is not None), None)

    def claim_kind(self, key: str) -> Kind | None:
        """The version of a claim."""
        return next((kind for kind, claims in self._claims.items() if key in claims), None)

    def assume(self, task: str, node: str, grant: DeviceGrant) -> None:
        """Count devices as allocated to a claim until a watch says so, or the task is forgotten."""
        self._is_stale = True
        self._assumed[grant.claim] = (task, DeviceAllocation.on_node(node, grant.devices))

    def forget(self, task: str) -> None:
        """Do not assume any more what was assumed for a task."""
        gone = [claim for claim, (owner, _) in self._assumed.items() if owner == task]
        for claim in gone:
            del self._assumed[claim]
            self._is_stale = True

    def devices(self) -> Devices:
        """All of it; the very same as before where nothing has changed."""
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
    """By key, in order; of several versions the first counts."""
    found: dict[str, V] = {}
    for each in reversed(versions):
        found.update(each)
    return {key: found[key] for key in sorted(found)}
