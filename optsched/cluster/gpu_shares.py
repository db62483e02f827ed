"""GPUs and NPUs that tasks share by memory and cores, as registered by their device plugins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from optsched.units.quantity import is_decimal

NO_LIMIT = 1 << 40
"""Stands for an unlimited number of tasks per device."""

ALL_CORES = 100

NVIDIA = "NVIDIA"
"""The value of `SharedGpu.family` for vGPUs."""

_MOST_DIGITS = 6


class Instance(NamedTuple):
    """The MIG slices of one profile: the profile's name, memory per slice, number of slices."""

    name: str
    memory: int
    number: int


@dataclass(frozen=True, slots=True)
class Geometry:
    """One way in which MIG can partition a GPU into slices."""

    name: str
    instances: tuple[Instance, ...]

    def locate_slice(self, text: str) -> tuple[int, int] | None:
        """Return the index of a slice's profile, and the slice's index within this profile.

        `text` is the slice's position in the geometry, a decimal number. Returns None if no slice
        has this position.
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
        """Return the geometry position of slice `number` of the profile with index `kind`."""
        return sum(i.number for i in self.instances[:kind]) + number


class Template(NamedTuple):
    """A vNPU template of an NPU chip type: its name and memory."""

    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class Chip:
    """An NPU chip type; tasks can share its devices only if it has templates.

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
        """Return the smallest template with at least the requested memory.

        A template with an empty name stands for the whole device. Returns None if the request
        exceeds `capacity`.
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
        The device model, which tasks may request.
    is_healthy
        Whether the device is healthy; an unhealthy device accepts no further tasks.
    geometries
        The MIG partitions of the GPU, in mode `mig`.
    npu
        The chip name of an NPU; empty for a GPU.
    chip
        The chip type of an NPU, or None if unknown; an NPU of unknown type is not shared.
    network
        Number of the network that connects this NPU to others on the node; None if not reported.
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
        """`NVIDIA` for a vGPU, the chip name for an NPU, empty for a GPU shared by memory."""
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
        Percentage of each device's cores; a request for `ALL_CORES` gets an exclusive device.
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
    `instance` names a MIG slice (`geometry-position`) or an NPU template, or is empty. `npu` is the
    chip name of an NPU, empty for a GPU.
    """

    key: str
    memory: int
    cores: int = 0
    container: int = 0
    instance: str = ""
    npu: str = ""
