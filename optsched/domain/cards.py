"""GPUs that tasks share by memory and cores, as a device plugin registers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NO_LIMIT = 1 << 40
"""Tasks on a card that does not limit them."""

ALL_CORES = 100

_MOST_DIGITS = 6


class Instance(NamedTuple):
    """Slices of a GPU that are alike: their name, the memory of each, how many there are."""

    name: str
    memory: int
    number: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """One of the ways in which MIG may cut a GPU."""

    name: str
    instances: tuple[Instance, ...]

    def place(self, text: str) -> tuple[int, int] | None:
        """The kind of slice, and its number among those, that a position names; None for none."""
        if not (text.isdecimal() and text.isascii() and len(text) <= _MOST_DIGITS):
            return None
        left = int(text)
        for kind, instance in enumerate(self.instances):
            if left < instance.number:
                return kind, left
            left -= instance.number
        return None

    def position(self, kind: int, number: int) -> int:
        """The position of a slice: those of the kinds before it come first."""
        return sum(i.number for i in self.instances[:kind]) + number


@dataclass(frozen=True, slots=True)
class Card:
    """One GPU that may be shared.

    Attributes
    ----------
    key
        Its number on the node (GPU sharing by memory), or its UUID (vGPU).
    memory
        In the units of the device plugin, MiB unless it is set up otherwise.
    sharers
        The most tasks at once.
    mode
        How it is shared: `hami-core` or `mig` (vGPU), empty for GPU sharing by memory.
    model
        What it is, for tasks that ask for some.
    is_healthy
        A card that is not takes nothing more.
    geometries
        The ways in which it may be cut, in mode `mig`.
    """

    key: str
    memory: int
    sharers: int = NO_LIMIT
    mode: str = ""
    model: str = ""
    is_healthy: bool = True
    geometries: tuple[Geometry, ...] = ()

    @property
    def is_vgpu(self) -> bool:
        """Whether it is registered as vGPU."""
        return bool(self.mode)


@dataclass(frozen=True, slots=True)
class CardRequest:
    """The vGPUs that one container asks for.

    Attributes
    ----------
    number
        Cards, all different.
    memory
        On each; 0 where `percent` counts.
    percent
        Of the memory of each.
    cores
        Hundredths of the cores of each; all of them mean that nobody shares the card.
    """

    number: int
    memory: int = 0
    percent: int = 0
    cores: int = 0


@dataclass(frozen=True, slots=True)
class CardUse:
    """What a task holds of one card, and which of the containers that ask for cards has it.

    instance: `geometry-position` of a slice that MIG has cut; empty for none.
    """

    key: str
    memory: int
    cores: int = 0
    container: int = 0
    instance: str = ""
