"""NUMA nodes inside machines, called cells here: what they have, what pods hold of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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
    """What one container has for itself alone: whole CPUs, and GPUs."""

    cpus: int
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class NumaPart:
    """What is taken of one cell."""

    cell: int
    cpus: int = 0
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class NumaHold:
    """What a pod holds as the agent on its node has seen it.

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
        Pods of which the agent says what they hold; others may hold the rest.
    problem
        Why none of this can be used; empty when it can.

    """

    alignment: Alignment = Alignment.NONE
    cells: tuple[NumaCell, ...] = ()
    holds: tuple[NumaHold, ...] = ()
    problem: str = ""
