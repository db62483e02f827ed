"""GPUs and NPUs that tasks share by memory and cores, as registered by a device plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from optsched.units.digits import is_decimal

NO_LIMIT = 1 << 40
"""The maximum number of tasks that is assumed for a device without such a limit."""

ALL_CORES = 100

NVIDIA = "NVIDIA"
"""The family name of vGPUs. GPUs that are shared by memory have an empty family name, and NPUs have
their chip name."""

_MOST_DIGITS = 6


class Instance(NamedTuple):
    """Equal MIG slices of a GPU: profile name, memory of each slice, and number of slices."""

    name: str
    memory: int
    number: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """A partition into which MIG can divide a GPU."""

    name: str
    instances: tuple[Instance, ...]

    def locate_slice(self, text: str) -> tuple[int, int] | None:
        """Return the profile index of the slice at a position, and its number in the profile.

        Returns None if the text is not the position of a slice.
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
        """Return the position of a slice, counted over all profiles in their order."""
        return sum(i.number for i in self.instances[:kind]) + number


class Template(NamedTuple):
    """A template (vNPU size) of a chip: its name and its memory."""

    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class Chip:
    """A chip type of NPUs, which are shared by templates or only as whole devices.

    Attributes
    ----------
    name
        The name of the chip in its device plugin, such as `Ascend310P`.
    memory
        Memory of one device, in the unit of the device plugin.
    capacity
        The largest possible memory request. A request that exceeds the largest template gets a
        whole device.
    templates
        Templates by memory, smallest first.
    """

    name: str
    memory: int
    capacity: int
    templates: tuple[Template, ...]

    def cut(self, memory: int) -> Template | None:
        """Return the smallest template for a memory request.

        A template with an empty name stands for a whole device. Returns None if the request exceeds
        `capacity`.
        """
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
        Index of the GPU on its node (GPU sharing by memory), or UUID of the device (vGPU).
    memory
        Memory of the device in the unit of the device plugin, MiB by default.
    sharers
        Maximum number of tasks that may share the device.
    mode
        The way in which the device is shared: `hami-core` or `mig` for vGPUs, empty for GPU sharing
        by memory.
    model
        The device model, for tasks that request a model.
    is_healthy
        Whether the device is healthy; an unhealthy device gets no further tasks.
    geometries
        The MIG partitions of the GPU, in mode `mig`.
    npu
        The chip name of an NPU; empty for a GPU.
    chip
        The division of an NPU, or None if unknown. An NPU without a known chip is not shared.
    network
        Number of the NPU network (on the node) that contains this NPU, or None if the network is
        not reported.
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
        """`NVIDIA` for a vGPU device, the chip name for an NPU, else empty."""
        return self.npu or (NVIDIA if self.mode else "")

    @property
    def is_vgpu(self) -> bool:
        """Whether the device is registered as a vGPU device."""
        return self.family == NVIDIA


@dataclass(frozen=True, slots=True)
class GpuShareRequest:
    """The vGPUs, or the NPUs of one chip, that one container requests.

    Attributes
    ----------
    number
        Number of different devices that the container requests.
    memory
        Memory on each device; 0 if the container requests a percentage (`percent`).
    percent
        Percentage of the memory of each device.
    cores
        Percentage of the cores of each device; with `ALL_CORES`, the device is not shared.
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

    `container` is the index of the container among the pod's containers that request shares.
    `instance` is the position of a MIG slice (`geometry-position`), the template of an NPU, or
    empty. `npu` is the chip name of an NPU, and empty for a GPU.
    """

    key: str
    memory: int
    cores: int = 0
    container: int = 0
    instance: str = ""
    npu: str = ""
