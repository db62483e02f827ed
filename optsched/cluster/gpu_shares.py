"""GPUs and NPUs that tasks share by memory and cores, as a device plugin registers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

NO_LIMIT = 1 << 40
"""Tasks on a card that does not limit them."""

ALL_CORES = 100

NVIDIA = "NVIDIA"
"""The family of vGPUs; that of numbered cards is empty, that of NPUs is the name of their chip."""

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

    def locate_slice(self, text: str) -> tuple[int, int] | None:
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


class Template(NamedTuple):
    """One of the parts into which a chip may be cut: its name, and the memory of each."""

    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class Chip:
    """How NPUs of one kind are shared: in parts by templates, or whole.

    Attributes
    ----------
    name
        The name that its device plugin gives it, such as `Ascend310P`.
    memory
        What one device offers.
    capacity
        The largest request: one beyond the largest template gets a whole device.
    templates
        From the one with the least memory on.
    """

    name: str
    memory: int
    capacity: int
    templates: tuple[Template, ...]

    def cut(self, memory: int) -> Template | None:
        """The part for so much memory; without a name for all of one, None where that is more."""
        for template in self.templates:
            if memory <= template.memory:
                return template
        return Template("", self.memory) if memory <= self.capacity else None


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """One GPU or NPU that may be shared.

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
        Its kind, for tasks that request one.
    is_healthy
        A card that is not takes nothing more.
    geometries
        The ways in which it may be cut, in mode `mig`.
    npu
        Of an NPU, the name of its chip; else empty.
    chip
        How the device is divided; None where that is unknown, and then it takes no shares.
    network
        Of an NPU, which of those on its node it is wired to; None where nothing is said.
    """

    key: str
    memory: int
    sharers: int = NO_LIMIT
    mode: str = ""
    model: str = ""
    is_healthy: bool = True
    geometries: tuple[Geometry, ...] = ()
    npu: str = ""
    chip: Chip | None = None
    network: int | None = None

    @property
    def family(self) -> str:
        """Which requests it is for: see `NVIDIA`."""
        return self.npu or (NVIDIA if self.mode else "")

    @property
    def is_vgpu(self) -> bool:
        """Whether it is registered as vGPU."""
        return self.family == NVIDIA


@dataclass(frozen=True, slots=True)
class GpuShareRequest:
    """The vGPUs, or the NPUs of one chip, that one container asks for.

    Attributes
    ----------
    number
        Cards, all different.
    memory
        On each; 0 where `percent` counts.
    percent
        Of the memory of each.
    cores
        Hundredths of the cores of each; all of them mean that the card is not shared.
    npu
        The chip of NPUs; empty for vGPUs.
    """

    number: int
    memory: int = 0
    percent: int = 0
    cores: int = 0
    npu: str = ""


@dataclass(frozen=True, slots=True)
class GpuShare:
    """What a task holds of one card, and which of the containers that ask for such has it.

    instance: `geometry-position` of a slice that MIG has cut, or the template of an NPU; empty for
    none. npu: the chip of an NPU.
    """

    key: str
    memory: int
    cores: int = 0
    container: int = 0
    instance: str = ""
    npu: str = ""
