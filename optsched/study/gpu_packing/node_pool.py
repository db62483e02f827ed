"""Nodes, pod classes with their requests, and layouts (pod counts per node)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.gpu_accounting import WHOLE

if TYPE_CHECKING:
    from optsched.problem.arrays import I64, Bool


@dataclass(frozen=True, eq=False, slots=True)
class Nodes:
    """The capacities of N nodes."""

    # Capacity in milli-CPU, in MiB of memory, and in GPUs, shape (N,).
    cpu_m: I64
    memory_mib: I64
    num_gpu: I64
    model: I64  # Index of each node's GPU model among Y models, shape (N,).

    def select(self, rows: I64) -> Nodes:
        """Return the nodes at the indices `rows`."""
        return Nodes(*(a[rows] for a in (self.cpu_m, self.memory_mib, self.num_gpu, self.model)))


@dataclass(frozen=True, eq=False, slots=True)
class Requests:
    """The requests of K pod classes."""

    # Requested milli-CPU, MiB of memory, number of GPUs, and thousandths of each GPU, shape (K,). A
    # whole GPU has 1000 thousandths, a GPU share fewer.
    cpu_m: I64
    memory_mib: I64
    number: I64
    milli: I64
    reach: Bool  # Whether a class may run on a GPU model, shape (K, Y).

    @property
    def worth(self) -> I64:
        """GPU capacity that one pod of each class requests, in thousandths of a GPU, shape (K,)."""
        return self.number * self.milli

    @property
    def is_share(self) -> Bool:
        """Whether each class requests a GPU share, shape (K,)."""
        found: Bool = (self.number == 1) & (self.milli < WHOLE)
        return found


@dataclass(frozen=True, eq=False, slots=True)
class Pool(Requests):
    """Pods by class, and the nodes on which the pods may be placed."""

    supply: I64  # Number of pods of each class, shape (K,).
    must: Bool  # Whether all pods of a class must be placed, shape (K,).
    nodes: Nodes

    @property
    def sizes(self) -> I64:
        """The distinct sizes of the requested GPU shares in thousandths, ascending, shape (Z,)."""
        return np.unique(self.milli[self.is_share])

    @property
    def size_of(self) -> I64:
        """Index of each class's GPU share in `sizes`, shape (K,); -1 if the class requests none."""
        found: I64 = np.where(self.is_share, self.sizes.searchsorted(self.milli), -1)
        return found

    @property
    def whole_gpus(self) -> I64:
        """Number of whole GPUs that each class requests, shape (K,)."""
        found: I64 = np.where(self.is_share, 0, self.number)
        return found

    @property
    def max_pods_per_node(self) -> I64:
        """Upper bound on the number of pods of each class on each node, shape (K, N).

        The bound is the minimum over all resources of the number of pods that fit if only this
        resource is limited.
        """
        nodes, worth = self.nodes, self.worth
        found = np.where(self.reach[:, nodes.model], self.supply[:, None], 0)
        limits = (
            (self.cpu_m, nodes.cpu_m),
            (self.memory_mib, nodes.memory_mib),
            (worth, WHOLE * nodes.num_gpu),
        )
        for size, capacity in limits:
            fitting = capacity // np.maximum(size, 1)[:, None]
            found = np.where((size > 0)[:, None], np.minimum(found, fitting), found)
        return found

    @property
    def total(self) -> int:
        """GPU capacity of all nodes, in thousandths of a GPU."""
        return WHOLE * int(self.nodes.num_gpu.sum())


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """Pod counts per node and class, and GPU share counts per GPU and size."""

    pods: I64  # Number of pods of each class on each node, shape (N, K).
    # Number of GPU shares of each size on each device, shape (N, D, Z). Pods with whole GPUs use
    # GPUs without GPU shares.
    shares: I64

    def allocated(self, pool: Pool) -> int:
        """Return the allocated GPU capacity, in thousandths of a GPU."""
        return int((self.pods @ pool.worth).sum())

    def free(self, pool: Pool) -> I64:
        """Return the idle GPU capacity of each node in thousandths of a GPU, shape (N,)."""
        found: I64 = WHOLE * pool.nodes.num_gpu - self.pods @ pool.worth
        return found

    def waiting(self, pool: Pool) -> I64:
        """Return the number of unplaced pods of each class, shape (K,)."""
        found: I64 = pool.supply - self.pods.sum(axis=0)
        return found


def empty_layout(pool: Pool) -> Layout:
    """Return a layout without pods."""
    nodes = len(pool.nodes.cpu_m)
    devices = int(pool.nodes.num_gpu.max(initial=0))
    return Layout(
        np.zeros((nodes, len(pool.supply)), np.int64),
        np.zeros((nodes, devices, len(pool.sizes)), np.int64),
    )
