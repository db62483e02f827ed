"""NUMA nodes, container images and data sets of a node, and the node shards of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Alignment(StrEnum):
    """The kubelet's topology manager policy, which aligns CPUs and devices to NUMA nodes."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE = "single-numa-node"

    @property
    def is_strict(self) -> bool:
        """Whether the kubelet rejects a pod whose resources it cannot align."""
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
        `namespace/name` and UID of the pod; one of them is empty if the agent does not report it.
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

    With `hard`, the scheduler uses only the nodes of its shard. With `soft`, it prefers them.
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
