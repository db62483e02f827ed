"""Volumes for claims that wait for the node of their pod.

A claim gets an existing volume that all nodes where the claim is used can reach, or a new one. A
volume is for one claim. Upstream: kube-scheduler, VolumeBinding (`findMatchingVolumes`,
`checkVolumeProvisions`); it takes claim by claim the smallest volume that does, here claims make
way for one another where that helps all.
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
    """The volumes that a claim could get, given the nodes where it is used.

    Attributes
    ----------
    volumes
        Names of volumes that do, those that it should have first.
    is_made
        Whether a volume can be made for it where it gets none of them.

    """

    claim: str
    volumes: tuple[str, ...]
    is_made: bool


@dataclass(frozen=True, slots=True)
class VolumeGrant:
    """What a claim gets before its pod is bound: a volume, or one provisioned for a node."""

    claim: str
    node: str
    volume: str = ""


def volume_request(claim: Claim, nodes: Collection[str], selects: Selects) -> VolumeRequest:
    """What a pending claim could get for a pod on some nodes.

    selects: whether a selector selects a node.
    """
    fitting = (
        volume.name
        for volume in claim.volumes
        if volume.nodes is None or all(selects(volume.nodes, node) for node in nodes)
    )
    return VolumeRequest(claim.key, tuple(fitting), can_provision(claim, nodes, selects))


def can_provision(claim: Claim, nodes: Collection[str], selects: Selects) -> bool:
    """Whether a volume for a claim can be provisioned on some nodes."""
    if not claim.provisions or (claim.selected_node and set(nodes) - {claim.selected_node}):
        return False
    allowed = claim.nodes
    return allowed is None or all(selects(allowed, node) for node in nodes)


class VolumeAssignment:
    """Which claims have which volumes; every claim that can have none made holds one.

    Attributes
    ----------
    claim_by_volume
        The claim that holds a volume.
    short
        Claims that hold none although they need one.

    """

    def __init__(self) -> None:
        self.claim_by_volume: dict[str, str] = {}
        self.short: set[str] = set()
        self._asks: dict[str, VolumeRequest] = {}
        self._volume_of: dict[str, str] = {}

    def volume_of(self, claim: str) -> str:
        """The volume that a claim holds; empty for none."""
        return self._volume_of.get(claim, "")

    def assign(self, ask: VolumeRequest) -> bool:
        """Assign to a claim what it requests; whether that is possible."""
        self._asks[ask.claim] = ask
        self.short.discard(ask.claim)
        held = self._volume_of.get(ask.claim)
        if held is not None and (ask.is_made or held not in ask.volumes):
            self._release_volume(ask.claim)
            held = None
        if ask.is_made or held is not None or self._find_volume(ask.claim):
            return True
        self.short.add(ask.claim)
        return False

    def remove(self, claim: str) -> None:
        """Release what a claim was assigned, for others."""
        self._asks.pop(claim, None)
        self.short.discard(claim)
        if claim in self._volume_of:
            self._release_volume(claim)
        for other in sorted(self.short):
            self.assign(self._asks[other])

    def usable_volumes(self, claim: str, volumes: Iterable[str]) -> list[str]:
        """The volumes of some that a claim may have while all other claims keep one."""
        # Volumes of other claims that could move to others.
        movable: set[str] = set()
        grows = True
        while grows:
            grows = False
            for volume, holder in self.claim_by_volume.items():
                if volume in movable or holder == claim:
                    continue
                others = (v for v in self._asks[holder].volumes if v != volume)
                if any(self.claim_by_volume.get(v, claim) == claim or v in movable for v in others):
                    movable.add(volume)
                    grows = True
        return [v for v in volumes if self.claim_by_volume.get(v, claim) == claim or v in movable]

    def spread(self) -> None:
        """Give claims that could have one made what volumes are left, the smallest that do."""
        for claim, ask in self._asks.items():
            left = (v for v in ask.volumes if v not in self.claim_by_volume)
            if claim not in self._volume_of and (volume := next(left, None)) is not None:
                self._volume_of[claim], self.claim_by_volume[volume] = volume, claim

    def _find_volume(self, claim: str) -> bool:
        """Find a volume for a claim; holders of volumes move on where they can (Kuhn)."""
        came: dict[str, str] = {}
        queue = deque([claim])
        while queue:
            seeker = queue.popleft()
            for volume in self._asks[seeker].volumes:
                if volume in came:
                    continue
                came[volume] = seeker
                holder = self.claim_by_volume.get(volume)
                if holder is None:
                    self._move_on(volume, came)
                    return True
                queue.append(holder)
        return False

    def _move_on(self, volume: str, came: Mapping[str, str]) -> None:
        """Assign a free volume to a claim, its former one to the next claim, and so on."""
        left: str | None = volume
        while left is not None:
            claim = came[left]
            before = self._volume_of.get(claim)
            self._volume_of[claim], self.claim_by_volume[left] = left, claim
            left = before

    def _release_volume(self, claim: str) -> None:
        del self.claim_by_volume[self._volume_of.pop(claim)]


def assign_volumes(
    claims: Mapping[str, Claim], used_on: Mapping[str, Collection[str]], selects: Selects
) -> VolumeAssignment:
    """Volumes for claims that wait and are used on some nodes; see `VolumeAssignment.short`.

    Small claims choose first, as upstream, and those without provisioning before all others.
    """
    asks = [volume_request(claims[key], nodes, selects) for key, nodes in used_on.items()]
    asks.sort(key=lambda ask: (ask.is_made, claims[ask.claim].size_bytes, ask.claim))
    holders = VolumeAssignment()
    for ask in asks:
        holders.assign(ask)
    holders.spread()
    return holders
