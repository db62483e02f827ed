"""States of nodes as rows: which pods fit on them, and their states with one pod more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.gpu_accounting import WHOLE

if TYPE_CHECKING:
    from optsched.problem.arrays import I64, Bool
    from optsched.study.gpu_packing.node_pool import Requests


@dataclass(frozen=True, eq=False, slots=True)
class States:
    """S states that nodes are in."""

    # cpu_m, memory_mib: (S,) what is left
    cpu_m: I64
    memory_mib: I64
    free: I64  # (S, D) thousandths left of each GPU
    num_gpu: I64  # (S,) GPUs of the node
    model: I64  # (S,) number of their model
    # (S,) sorts of pods with GPUs on it, as bits: bit 0 for parts of one, bit n for n whole ones
    sorts: I64

    @property
    def idle_gpu_milli(self) -> I64:
        """(S,) thousandths left of all GPUs."""
        found: I64 = self.free.sum(axis=1)
        return found

    def select(self, rows: I64) -> States:
        """States (len(rows),) among these."""
        parts = (self.cpu_m, self.memory_mib, self.free, self.num_gpu, self.model, self.sorts)
        return States(*(part[rows] for part in parts))


def fits_one_more(states: States, requests: Requests) -> Bool:
    """(S, K) whether one more pod of each class fits."""
    enough = (states.free[:, None, :] >= requests.milli[:, None]).sum(axis=2) >= requests.number
    found: Bool = enough & requests.reach[:, states.model].T
    found &= states.cpu_m[:, None] >= requests.cpu_m
    found &= states.memory_mib[:, None] >= requests.memory_mib
    return found


def sort_of(requests: Requests) -> I64:
    """(K,) the sort of each class as a bit; 0 without GPUs."""
    found: I64 = np.where(
        requests.is_share, 1, np.where(requests.number > 0, 1 << requests.number, 0)
    )
    return found


def tightest(free: I64, milli: I64) -> I64:
    """(S,) the GPU with the least room that suffices for milli (S,); the first of several."""
    fits = np.where(free >= milli[:, None], free, WHOLE + 1)
    found: I64 = fits.argmin(axis=1)
    return found


def with_pods(free: I64, requests: Requests, classes: I64, devices: I64) -> I64:
    """(S, D) GPUs with one more pod of classes (S,): a part on its device, or the first idle ones.

    Where a pod does not fit, the row is meaningless.
    """
    left = free.copy()
    sharing = np.flatnonzero(requests.is_share[classes])
    left[sharing, devices[sharing]] -= requests.milli[classes[sharing]]
    whole = np.flatnonzero(~requests.is_share[classes])
    idle = left[whole] == WHOLE
    taken = idle & (idle.cumsum(axis=1) <= requests.number[classes[whole], None])
    left[whole] = np.where(taken, 0, left[whole])
    return left
