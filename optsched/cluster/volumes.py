"""Volumes for PVCs that bind only after their pod has a node (`WaitForFirstConsumer`).

A claim is bound to an existing volume or to a provisioned one. An existing volume must be reachable
from all nodes where the claim is used, and only one claim can be bound to it. The plugin
VolumeBinding of kube-scheduler (`findMatchingVolumes`, `checkVolumeProvisions`) binds one claim
after the other to the smallest volume that fits. Unlike kube-scheduler, this module reassigns
volumes so that more claims can be bound.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from optsched.cluster.selectors import NodeSelector
    from optsched.cluster.snapshot import Claim

    Selects: TypeAlias = Callable[[NodeSelector, str], bool]


@dataclass(frozen=True, slots=True)
class VolumeRequest:
    """The volumes that suit a claim: all nodes where the claim is used can reach these volumes.

    Attributes
    ----------
    volumes
        Names of existing volumes that fit the claim, in order of preference.
    is_made
        Whether a volume can be provisioned for the claim.
    """

    claim: str
    volumes: tuple[str, ...]
    is_made: bool


@dataclass(frozen=True, slots=True)
class VolumeGrant:
    """The volume that a plan assigns to a claim; if `volume` is empty, a volume is provisioned."""

    claim: str
    node: str
    volume: str = ""


class VolumeAssignment:
    """An assignment of existing volumes to claims; claims that need an existing volume come first.

    Attributes
    ----------
    claim_by_volume
        Maps the name of an assigned volume to its claim.
    volume_by_claim
        Maps a claim to the name of its assigned volume.
    short
        Claims that get no volume: none is available, and none can be provisioned.
    """

    def __init__(self) -> None:
        self.claim_by_volume: dict[str, str] = {}
        self.short: set[str] = set()
        self._requests: dict[str, VolumeRequest] = {}
        self.volume_by_claim: dict[str, str] = {}

    def assign(self, request: VolumeRequest) -> bool:
        """Assign a volume to a claim that needs an existing one; return False if there is none."""
        claim = request.claim
        self._requests[claim] = request
        self.short.discard(claim)
        held = self.volume_by_claim.get(claim)
        if held is not None and (request.is_made or held not in request.volumes):
            self._release_volume(claim)
            held = None
        if request.is_made or held is not None or self._find_volume(claim):
            return True
        self.short.add(claim)
        return False

    def remove(self, claim: str) -> None:
        """Remove a claim; its volume may then be assigned to a claim in `short`."""
        self._requests.pop(claim, None)
        self.short.discard(claim)
        if claim in self.volume_by_claim:
            self._release_volume(claim)
        for other in sorted(self.short):
            self.assign(self._requests[other])

    def _release_volume(self, claim: str) -> None:
        del self.claim_by_volume[self.volume_by_claim.pop(claim)]

    def usable_volumes(self, claim: str, volumes: Iterable[str]) -> list[str]:
        """Return the volumes that a claim can get while every other claim keeps a volume."""
        # `movable` holds the assigned volumes whose claims could get another volume instead.
        movable: set[str] = set()
        grows = True
        while grows:
            grows = False
            for volume, holder in self.claim_by_volume.items():
                if volume in movable or holder == claim:
                    continue
                others = (v for v in self._requests[holder].volumes if v != volume)
                if any(self.claim_by_volume.get(v, claim) == claim or v in movable for v in others):
                    movable.add(volume)
                    grows = True
        return [v for v in volumes if self.claim_by_volume.get(v, claim) == claim or v in movable]

    def spread(self) -> None:
        """Assign unused volumes, smallest first, to claims that could get a provisioned volume."""
        for claim, request in self._requests.items():
            unassigned = (v for v in request.volumes if v not in self.claim_by_volume)
            if claim not in self.volume_by_claim and (volume := next(unassigned, None)) is not None:
                self.volume_by_claim[claim], self.claim_by_volume[volume] = volume, claim

    def _find_volume(self, claim: str) -> bool:
        """Assign a volume to a claim; other claims change volumes along an augmenting path (Kuhn).

        Returns whether an augmenting path exists.
        """
        claim_on_path: dict[str, str] = {}
        queue = deque([claim])
        while queue:
            seeker = queue.popleft()
            for volume in self._requests[seeker].volumes:
                if volume in claim_on_path:
                    continue
                claim_on_path[volume] = seeker
                holder = self.claim_by_volume.get(volume)
                if holder is not None:
                    queue.append(holder)
                    continue
                # The volume is unassigned, so the augmenting path ends at this volume.
                assigned: str | None = volume
                while assigned is not None:
                    changed = claim_on_path[assigned]
                    before = self.volume_by_claim.get(changed)
                    self.volume_by_claim[changed], self.claim_by_volume[assigned] = (
                        assigned,
                        changed,
                    )
                    assigned = before
                return True
        return False


def assign_volumes(
    claims: Mapping[str, Claim], used_on: Mapping[str, Collection[str]], selects: Selects
) -> VolumeAssignment:
    """Assign volumes to waiting claims; `used_on` maps each claim to the nodes where it is used.

    Claims for which no volume can be provisioned are assigned first, and smaller claims are
    assigned before larger claims, as in kube-scheduler. `VolumeAssignment.short` holds the claims
    that get no volume. `selects(selector, node)` returns whether a selector selects a node.
    """
    requests: list[VolumeRequest] = []
    for key, nodes in used_on.items():
        claim = claims[key]
        fitting = tuple(
            volume.name
            for volume in claim.volumes
            if volume.nodes is None or all(selects(volume.nodes, node) for node in nodes)
        )
        is_elsewhere = claim.selected_node and set(nodes) - {claim.selected_node}
        is_made = claim.provisions and not is_elsewhere
        if is_made and (allowed := claim.nodes) is not None:
            is_made = all(selects(allowed, node) for node in nodes)
        requests.append(VolumeRequest(claim.key, fitting, is_made))
    requests.sort(key=lambda r: (r.is_made, claims[r.claim].size_bytes, r.claim))
    assignment = VolumeAssignment()
    for request in requests:
        assignment.assign(request)
    assignment.spread()
    return assignment
