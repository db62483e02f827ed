"""Classes of pods that request GPUs or parts of one, nodes, and the pods on them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.gpu_accounting import WHOLE
from optsched.problem.arrays import row_groups

if TYPE_CHECKING:
    from optsched.problem.arrays import I64, Bool


@dataclass(frozen=True, eq=False, slots=True)
class Nodes:
    """N nodes."""

    # cpu_m, memory_mib, num_gpu: (N,) their capacity
    cpu_m: I64
    memory_mib: I64
    num_gpu: I64
    model: I64  # (N,) number of the model of their GPUs, of Y

    def select(self, rows: I64) -> Nodes:
        """Nodes (len(rows),) among these."""
        return Nodes(*(a[rows] for a in (self.cpu_m, self.memory_mib, self.num_gpu, self.model)))


@dataclass(frozen=True, eq=False, slots=True)
class Requests:
    """The requests of pods of K classes."""

    # cpu_m, memory_mib, number, milli: (K,) CPU, memory, GPUs, and thousandths of each of these;
    # parts are of one GPU
    cpu_m: I64
    memory_mib: I64
    number: I64
    milli: I64
    reach: Bool  # (K, Y) models of nodes that they may run on

    @property
    def worth(self) -> I64:
        """(K,) thousandths of GPUs that one pod takes."""
        return self.number * self.milli

    @property
    def is_share(self) -> Bool:
        """(K,) whether a part of one GPU is asked for."""
        found: Bool = (self.number == 1) & (self.milli < WHOLE)
        return found


@dataclass(frozen=True, eq=False, slots=True)
class Pool(Requests):
    """Pods of classes and the nodes that they may go to."""

    supply: I64  # (K,) pods that there are
    must: Bool  # (K,) classes of which all have to be placed
    nodes: Nodes

    @property
    def sizes(self) -> I64:
        """(Z,) parts of a GPU that are asked for, ascending."""
        return np.unique(self.milli[self.is_share])

    @property
    def size_of(self) -> I64:
        """(K,) index of the part that is asked for; -1 for others."""
        found: I64 = np.where(self.is_share, self.sizes.searchsorted(self.milli), -1)
        return found

    @property
    def whole_gpus(self) -> I64:
        """(K,) GPUs that are asked for as a whole."""
        found: I64 = np.where(self.is_share, 0, self.number)
        return found

    @property
    def max_pods_per_node(self) -> I64:
        """(K, N) pods of a class that fit an empty node by each of its resources alone."""
        nodes, worth = self.nodes, self.worth
        found = np.where(self.reach[:, nodes.model], self.supply[:, None], 0)
        rooms = (
            (self.cpu_m, nodes.cpu_m),
            (self.memory_mib, nodes.memory_mib),
            (worth, WHOLE * nodes.num_gpu),
        )
        for size, room in rooms:
            fitting = room // np.maximum(size, 1)[:, None]
            found = np.where((size > 0)[:, None], np.minimum(found, fitting), found)
        return found

    @property
    def total(self) -> int:
        """Thousandths of GPUs that all nodes have."""
        return WHOLE * int(self.nodes.num_gpu.sum())

    def restrict(self, nodes: I64, supply: I64) -> Pool:
        """Some of the nodes, and other numbers of pods (K,)."""
        return replace(self, nodes=self.nodes.select(nodes), supply=supply)


def node_kinds(nodes: Nodes) -> tuple[I64, I64]:
    """Kinds of nodes (N,) that are alike, and the first node of each."""
    return row_groups([nodes.cpu_m, nodes.memory_mib, nodes.num_gpu, nodes.model])


@dataclass(frozen=True, eq=False, slots=True)
class Layout:
    """Who is where."""

    pods: I64  # (N, K) pods of each class on each node
    # (N, D, Z) pods of each part of a GPU on each device; whole ones are on the other devices
    shares: I64

    def allocated(self, pool: Pool) -> int:
        """Thousandths of GPUs given out."""
        return int((self.pods @ pool.worth).sum())

    def free(self, pool: Pool) -> I64:
        """(N,) thousandths of GPUs left."""
        found: I64 = WHOLE * pool.nodes.num_gpu - self.pods @ pool.worth
        return found

    def waiting(self, pool: Pool) -> I64:
        """(K,) pods that are nowhere."""
        found: I64 = pool.supply - self.pods.sum(axis=0)
        return found


def empty_layout(pool: Pool) -> Layout:
    """Nobody is anywhere."""
    nodes = len(pool.nodes.cpu_m)
    devices = int(pool.nodes.num_gpu.max(initial=0))
    return Layout(
        np.zeros((nodes, len(pool.supply)), np.int64),
        np.zeros((nodes, devices, len(pool.sizes)), np.int64),
    )
