"""GPUs and NPUs that tasks share by memory and cores, as their device plugin registers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from optsched.units.digits import is_decimal

NO_LIMIT = 1 << 40
"""The maximum number of tasks per device, if the device plugin sets no maximum."""

ALL_CORES = 100

NVIDIA = "NVIDIA"
"""The family name of vGPUs. GPUs shared by memory have an empty family name, and NPUs have the name
of their chip.
"""

_MOST_DIGITS = 6


class Instance(NamedTuple):
    """Equal MIG slices of a GPU: profile name, memory per slice and number of slices."""

    name: str
    memory: int
    number: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """A partition into which MIG can divide a GPU."""

    name: str
    instances: tuple[Instance, ...]

    def locate_slice(self, text: str) -> tuple[int, int] | None:
        """Return the profile index of a slice and the slice's index within that profile.

        `text` is the slice's position, a decimal number. Returns None if no slice has this
        position.
        """
        if not is_decimal(text, _MOST_DIGITS):
            return None
        left = int(text)
        for kind, instance in enumerate(self.instances):
            if left < instance.number:
                return kind, left
            left -= instance.number
        return None

    def position(self, kind: int, number: int) -> int:
        """Return the position of a slice, counted over all profiles in order."""
        return sum(i.number for i in self.instances[:kind]) + number


class Template(NamedTuple):
    """A vNPU template of a chip: its name and memory."""

    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class Chip:
    """An NPU chip type; its devices are shared by templates, or used only as whole devices.

    Attributes
    ----------
    name
        The name of the chip in its device plugin, such as `Ascend310P`.
    memory
        Memory of one device, in the unit of the device plugin.
    capacity
        The largest memory request that a device can serve. A request above the largest template
        gets a whole device.
    templates
        Templates in ascending order of memory.
    """

    name: str
    memory: int
    capacity: int
    templates: tuple[Template, ...]

    def cut(self, memory: int) -> Template | None:
        """Return the smallest template that serves a memory request.

        A template with an empty name means the whole device. Returns None if the request exceeds
        `capacity`.
        """
        for template in self.templates:
            if memory <= template.memory:
                return template
        return Template("", self.memory) if memory <= self.capacity else None


@dataclass(frozen=True, slots=True)
class SharedGpu:
    """A GPU or NPU that tasks can share.

    Attributes
    ----------
    key
        Index of the GPU on its node (GPU sharing by memory), or UUID of the device (vGPU).
    memory
        Device memory in the unit of the device plugin, MiB by default.
    sharers
        Maximum number of tasks that may share the device.
    mode
        How the device is shared: `hami-core` or `mig` for vGPUs, empty for GPU sharing by memory.
    model
        The device model, for tasks that request a model.
    is_healthy
        Whether the device is healthy; an unhealthy device accepts no further tasks.
    geometries
        The MIG partitions of the GPU, in mode `mig`.
    npu
        The chip name of an NPU; empty for a GPU.
    chip
        The chip type of an NPU, or None if unknown; an NPU of unknown type is not shared.
    network
        Number of the network on the node that connects this NPU, or None if it is not reported.
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
        """`NVIDIA` for a vGPU, the chip name for an NPU, empty otherwise."""
        return self.npu or (NVIDIA if self.mode else "")

    @property
    def is_vgpu(self) -> bool:
        """Whether the device is registered as a vGPU device."""
        return self.family == NVIDIA


@dataclass(frozen=True, slots=True)
class GpuShareRequest:
    """The vGPUs, or the NPUs of one chip type, that one container requests.

    Attributes
    ----------
    number
        Number of distinct devices.
    memory
        Memory on each device; 0 if the container requests a percentage instead.
    percent
        Percentage of each device's memory.
    cores
        Percentage of each device's cores; a device of which `ALL_CORES` are requested is not
        shared.
    npu
        The chip name of NPUs; empty for vGPUs.
    """

    number: int
    memory: int = 0
    percent: int = 0
    cores: int = 0
    npu: str = ""


@dataclass(frozen=True, slots=True)
class GpuShare:
    """The share of one device that a task holds.

    `container` is the container's index among the containers of the pod that request shares.
    `instance` is a MIG slice (`geometry-position`), an NPU template, or empty. `npu` is the chip
    name of an NPU, empty for a GPU.
    """

    key: str
    memory: int
    cores: int = 0
    container: int = 0
    instance: str = ""
    npu: str = ""
