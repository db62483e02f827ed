"""GPUs that tasks share by memory and cores, as a device plugin registers them."""

from __future__ import annotations

from dataclasses import dataclass

NO_LIMIT = 1 << 40
"""Tasks on a card that does not limit them."""

ALL_CORES = 100


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
    """

    key: str
    memory: int
    sharers: int = NO_LIMIT
    mode: str = ""
    model: str = ""
    is_healthy: bool = True

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
    """What a task holds of one card, and which of the containers that ask for cards has it."""

    key: str
    memory: int
    cores: int = 0
    container: int = 0
