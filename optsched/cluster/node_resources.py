"""Shared GPUs and NPUs, NUMA nodes and local data of nodes, and the node shards of a cluster.

Tasks can share the memory and cores that a device plugin registers for a GPU or NPU. Local data are
container images and data sets.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

from optsched.units.quantity import is_decimal

if TYPE_CHECKING:
    from collections.abc import Mapping


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

        `text` is the position of the slice in the MIG geometry, a decimal number. Returns None if
        no slice has this position.
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
        """Return the position in the MIG geometry of slice `number` of profile `kind`."""
        return sum(i.number for i in self.instances[:kind]) + number


class Template(NamedTuple):
    """A vNPU template of an NPU chip type: its name and memory."""

    name: str
    memory: int


@dataclass(frozen=True, slots=True)
class Chip:
    """An NPU chip type; tasks can share its devices only if the type has templates.

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
        Number of the network that connects this NPU to other NPUs on the node; None if not
        reported.
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


# --- NUMA nodes -----------------------------------------------------------------------------------


class Alignment(StrEnum):
    """The kubelet's topology manager policy, which aligns CPUs and devices to NUMA nodes."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE = "single-numa-node"

    @property
    def is_strict(self) -> bool:
        """Whether the kubelet rejects a pod whose resources cannot be aligned."""
        return self in (Alignment.RESTRICTED, Alignment.SINGLE)


@dataclass(frozen=True, slots=True)
class NumaNeed:
    """The exclusive CPUs and GPUs that one container requests."""

    cpus: int
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class NumaPart:
    """The CPUs and GPUs that a pod holds on one NUMA node (cell)."""

    cell: int
    cpus: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class NumaHold:
    """The NUMA resources that a pod holds, as reported by the agent on its node.

    Attributes
    ----------
    key, uid
        `namespace/name` and UID of the pod; a field that the agent does not report is empty.
    """

    key: str
    uid: str
    parts: tuple[NumaPart, ...]


@dataclass(frozen=True, slots=True)
class NumaCell:
    """One NUMA node.

    Attributes
    ----------
    cpus, gpus
        Total number of CPUs and of GPUs of the NUMA node.
    reserved
        Number of CPUs reserved for the system, which no container gets exclusively.
    free_cpus, free_gpus
        Number of CPUs and of GPUs that the agent reports as neither reserved nor held by a pod.
    """

    number: int
    cpus: int
    reserved: int = 0
    free_cpus: int = 0
    gpus: int = 0
    free_gpus: int = 0


@dataclass(frozen=True, slots=True)
class Numa:
    """The NUMA nodes of a Kubernetes node.

    Attributes
    ----------
    alignment
        Topology manager policy of the kubelet; `none` if no container gets exclusive CPUs.
    cells
        NUMA nodes, sorted by number.
    holds
        The NUMA resources that pods hold according to the agent. Pods that the agent does not
        report may hold further resources.
    problem
        The reason that the agent's report is invalid; empty if it is valid.
    """

    alignment: Alignment = Alignment.NONE
    cells: tuple[NumaCell, ...] = ()
    holds: tuple[NumaHold, ...] = ()
    problem: str = ""


# --- local data -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequiredData:
    """The images and data sets that a pod needs.

    Attributes
    ----------
    images
        The image (with tag) of each container; empty if scheduling ignores the pod's images.
    datasets
        Names of the data sets, in order.
    """

    images: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Store:
    """Data stored on a node: images as (name, bytes) pairs, and the sorted names of data sets."""

    images: tuple[tuple[str, int], ...] = ()
    datasets: tuple[str, ...] = ()

    @cached_property
    def size_of(self) -> Mapping[str, int]:
        """Size of each image in bytes, by image name."""
        return dict(self.images)


NO_REQUIRED_DATA: Final = RequiredData()
NO_LOCAL_DATA: Final = Store()


# --- node shards ----------------------------------------------------------------------------------


class ShardMode(StrEnum):
    """Whether a scheduler may use nodes outside its shard; the values are those of Volcano's API.

    With `hard`, the scheduler uses only nodes in its shard. With `soft`, the scheduler prefers
    nodes in its shard.
    """

    NONE = "none"
    SOFT = "soft"
    HARD = "hard"


@dataclass(frozen=True, slots=True)
class Shard:
    """The nodes assigned to one scheduler, and the nodes that this scheduler reports as in use."""

    name: str
    wanted: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sharding:
    """The node shards of a cluster, from the view of one scheduler.

    Attributes
    ----------
    name
        Name of this scheduler's shard.
    shards
        All shards of the cluster, sorted by name.
    """

    mode: ShardMode = ShardMode.NONE
    name: str = ""
    shards: tuple[Shard, ...] = ()

    @property
    def own_shard(self) -> Shard | None:
        """The shard of this scheduler; None if sharding is off or the shard does not exist."""
        if self.mode is ShardMode.NONE:
            return None
        return next((shard for shard in self.shards if shard.name == self.name), None)

    @property
    def is_missing(self) -> bool:
        """Whether sharding is on but this scheduler's shard does not exist."""
        return self.mode is not ShardMode.NONE and self.own_shard is None

    @cached_property
    def nodes(self) -> frozenset[str] | None:
        """Names of the nodes in this scheduler's shard that no other shard reports as in use.

        None if sharding is off or this scheduler's shard does not exist.
        """
        if self.own_shard is None:
            return None
        others = (shard.in_use for shard in self.shards if shard.name != self.name)
        return frozenset(self.own_shard.wanted).difference(chain.from_iterable(others))

    def excludes(self, node: str) -> bool:
        """Return whether this scheduler must neither place nor evict pods on a node."""
        return self.mode is ShardMode.HARD and self.nodes is not None and node not in self.nodes


NO_SHARDING: Final = Sharding()
