"""The inside of a node: NUMA nodes, images and data sets; and the shards of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping


class Alignment(StrEnum):
    """How a kubelet puts the CPUs and devices of a container on cells (its topology manager)."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE = "single-numa-node"

    @property
    def is_strict(self) -> bool:
        """Whether a pod is turned away where it can not be aligned."""
        return self in (Alignment.RESTRICTED, Alignment.SINGLE)


@dataclass(frozen=True, slots=True)
class NumaNeed:
    """The exclusive resources of one container: whole CPUs, and GPUs."""

    cpus: int
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class NumaPart:
    """The resources in use of one cell."""

    cell: int
    cpus: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class NumaHold:
    """The resources of a pod as the agent on its node has reported them.

    Attributes
    ----------
    key, uid
        The pod, `namespace/name` or by uid; agents know one of them, sometimes both.

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
        In all.
    reserved
        CPUs kept for the system: no pod has them alone.
    free_cpus, free_gpus
        Neither reserved nor held by any pod, as the agent has seen it.

    """

    number: int
    cpus: int
    reserved: int = 0
    free_cpus: int = 0
    gpus: int = 0
    free_gpus: int = 0


@dataclass(frozen=True, slots=True)
class Numa:
    """The inside of a machine.

    Attributes
    ----------
    alignment
        Of its kubelet; `none` where CPUs are not given to containers alone.
    cells
        By number.
    holds
        Pods whose resources the agent reports; others may hold the rest.
    problem
        Why none of this can be used; empty when it can.

    """

    alignment: Alignment = Alignment.NONE
    cells: tuple[NumaCell, ...] = ()
    holds: tuple[NumaHold, ...] = ()
    problem: str = ""


# --- local data -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RequiredData:
    """What a pod needs.

    Attributes
    ----------
    images
        One for each of its containers, with its tag; empty where that does not matter.
    datasets
        In name order.
    """

    images: tuple[str, ...] = ()
    datasets: tuple[str, ...] = ()


@dataclass(frozen=True)
class Store:
    """The contents of a node: (name, bytes) of images and names of data sets, in name order."""

    images: tuple[tuple[str, int], ...] = ()
    datasets: tuple[str, ...] = ()

    @cached_property
    def size_of(self) -> Mapping[str, int]:
        """Bytes by image."""
        return dict(self.images)


NO_REQUIRED_DATA: Final = RequiredData()
NO_LOCAL_DATA: Final = Store()


# --- node shards ----------------------------------------------------------------------------------


class ShardMode(StrEnum):
    """How a scheduler treats the nodes of its shard; the values are Volcano's."""

    NONE = "none"
    SOFT = "soft"
    HARD = "hard"


@dataclass(frozen=True, slots=True)
class Shard:
    """Nodes assigned to one scheduler, and those that it says it uses; in name order."""

    name: str
    wanted: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sharding:
    """The shard of a scheduler, and how strict it is.

    Attributes
    ----------
    name
        The shard of this scheduler.
    shards
        All shards, in name order.
    """

    mode: ShardMode = ShardMode.NONE
    name: str = ""
    shards: tuple[Shard, ...] = ()

    @property
    def own_shard(self) -> Shard | None:
        """The shard of this scheduler; None where it has none."""
        if self.mode is ShardMode.NONE:
            return None
        return next((shard for shard in self.shards if shard.name == self.name), None)

    @property
    def is_missing(self) -> bool:
        """Whether a shard is asked for that does not exist."""
        return self.mode is not ShardMode.NONE and self.own_shard is None

    @cached_property
    def nodes(self) -> frozenset[str] | None:
        """Names of the nodes in our shard that no other shard still uses.

        None where all nodes are ours alike: without sharding, and without a shard of our name.
        """
        if self.own_shard is None:
            return None
        others = (shard.in_use for shard in self.shards if shard.name != self.name)
        return frozenset(self.own_shard.wanted).difference(chain.from_iterable(others))

    def excludes(self, node: str) -> bool:
        """Whether nothing may be placed on a node or evicted from it."""
        return self.mode is ShardMode.HARD and self.nodes is not None and node not in self.nodes


NO_SHARDING: Final = Sharding()
