"""ResourceClaims in a simulation: the tasks that use each claim, and the devices allocated to it.

The simulation allocates a claim when the first task that uses it is bound. The simulation
deallocates a claim when the last task that uses the claim has left its node, as the ResourceClaim
controller of Kubernetes does (KEP-4381). A terminating pod keeps the devices of its per-pod claims;
the pod that replaces it has new claims.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from optsched.cluster.dra_devices import DeviceAllocation, DeviceGrant

if TYPE_CHECKING:
    from collections.abc import Iterable

    from optsched.cluster.dra_devices import DeviceClaimRequest, Devices
    from optsched.cluster.task import Task, TaskShape

_LEFT: Final = "~"
"""Separator between a claim's key and the time at which its terminating pod is deleted.

No Kubernetes object name contains a `~`.
"""


class ClaimBook:
    """The claims of a cluster, and the tasks that use each claim.

    `devices` holds the devices and claims at the start, and `standing` holds the tasks that have a
    node at the start. `known` holds the UIDs of the simulated pods. A claim that no task in
    `standing` uses stays allocated only if it is reserved for a pod that is not simulated.
    """

    def __init__(self, devices: Devices, standing: Iterable[Task], known: set[str]) -> None:
        self._shown: Devices | None = devices
        self._devices = devices
        self._claims = dict(devices.claims)
        self._users: dict[str, dict[str, str]] = {key: {} for key in self._claims}
        self._others = {
            key: tuple(uid for uid in claim.reserved_for if uid not in known)
            for key, claim in self._claims.items()
        }
        self._shapes: dict[TaskShape, TaskShape] = {}
        for task in standing:
            for key in task.device_claims:
                if key in self._users:
                    self._users[key][task.key] = task.uid
        for key in self._claims:
            self._settle(key)

    @property
    def devices(self) -> Devices:
        """The current devices and claims; the object stays the same until a claim changes."""
        if self._shown is None:
            claims = {key: self._claims[key] for key in sorted(self._claims)}
            self._shown = replace(self._devices, claims=claims)
        return self._shown

    def waiting(self, task: Task) -> Task:
        """Return a pending task with the device requests of its per-pod claims."""
        if not task.device_claims:
            return task
        tied: list[str] = []
        own: list[DeviceClaimRequest] = []
        for key in task.device_claims:
            claim = self._claims.get(key)
            if claim is None or not claim.is_per_pod or claim.problem:
                tied.append(key)
            else:
                own.append(claim.request)
        shape = replace(task.shape, device_claims=tuple(tied), devices=tuple(own))
        return replace(task, shape=self._shapes.setdefault(shape, shape))

    def bind_claims(self, task: Task, node: str, grants: Iterable[DeviceGrant]) -> Task:
        """Add a task as a user of its claims; unallocated claims get the devices in `grants`.

        Returns the task without the device requests of its claims.
        """
        if not task.device_claims:
            return task
        granted = {grant.claim: grant.devices for grant in grants}
        for key in task.device_claims:
            template = self._claims.get(_name(key))
            if key not in self._claims and template is not None:
                # The claim of a terminating pod has a new key, so it may not exist yet.
                self._claims[key] = replace(template, key=key, allocation=None, reserved_for=())
            claim = self._claims.get(key)
            if claim is None:
                continue
            self._users.setdefault(key, {})[task.key] = task.uid
            if claim.allocation is None:
                allocation = DeviceAllocation.on_node(node, granted.get(_name(key), ()))
                self._claims[key] = replace(claim, allocation=allocation)
                self._shown = None
            self._settle(key)
        shape = replace(task.shape, device_claims=(), devices=())
        return replace(task, shape=self._shapes.setdefault(shape, shape))

    def release_claims(self, task: Task) -> None:
        """Remove a task as a user of its claims."""
        for key in task.device_claims:
            if self._users.get(key, {}).pop(task.key, None) is not None:
                self._settle(key)

    def device_grants(self, task: Task) -> tuple[DeviceGrant, ...]:
        """Return the allocated devices of each claim that a task uses."""
        claims = (self._claims.get(key) for key in task.device_claims)
        return tuple(
            DeviceGrant(claim.key, claim.allocation.devices)
            for claim in claims
            if claim is not None and claim.allocation is not None
        )

    def names_leaving(self, task: Task, leaves_ms: int) -> tuple[str, ...]:
        """Return the claim keys of a terminating pod; its per-pod claims get new keys."""
        found = (self._claims.get(key) for key in task.device_claims)
        own = {claim.key for claim in found if claim is not None and claim.is_per_pod}
        return tuple(f"{k}{_LEFT}{leaves_ms}" if k in own else k for k in task.device_claims)

    # --- internal methods ------------------------------------------------------------------------

    def _settle(self, key: str) -> None:
        """Update the pods for which a claim is reserved; with no such pod, deallocate the claim."""
        claim, users = self._claims[key], self._users[key]
        reserved = tuple(sorted({*users.values(), *self._others.get(key, ())}))
        if not reserved and _LEFT in key:
            del self._claims[key], self._users[key]
            self._shown = None
            return
        allocation = claim.allocation if reserved else None
        if (claim.reserved_for, claim.allocation) != (reserved, allocation):
            self._claims[key] = replace(claim, reserved_for=reserved, allocation=allocation)
            self._shown = None


def _name(key: str) -> str:
    """Return the key of a claim as in the trace, without the suffix of terminating pods."""
    return key.partition(_LEFT)[0]
