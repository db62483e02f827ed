"""F of the paper in floating point, added up in the order in which its simulator adds.

Where nothing changes but the order of additions, the score falls on 49 or on 50; so the order is
part of the protocol. `optsched.plugins.devices.fragmentation` has the same measure in integers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.study.fgd.workload import Workload

_AT_ONCE = 2048


@dataclass(frozen=True, eq=False, slots=True)
class Fragments:
    """Typical pods, those with GPUs (M,) apart from those without (C,)."""

    # share, cpu_m, number: (M,) of those with GPUs
    share: F64
    cpu_m: I64
    number: I64
    # size, milli: (M,) index of their requests of one GPU in milli (Z,), the sizes that occur
    size: I64
    milli: I64
    reach: Bool  # (M, Y) models that they may have
    # idle_share, idle_cpu_m: (C,) of those without
    idle_share: F64
    idle_cpu_m: I64

    @classmethod
    def from_workload(cls, workload: Workload) -> Self:
        """Typical pods of a workload."""
        requests, typical, share = workload.requests, workload.typical, workload.share
        takes = requests.milli[typical] > 0
        gpu, idle = typical[takes], typical[~takes]
        milli, size = np.unique(requests.milli[gpu], return_inverse=True)
        return cls(
            share=share[takes],
            cpu_m=requests.cpu_m[gpu],
            number=requests.number[gpu],
            size=size,
            milli=milli,
            reach=requests.reach[gpu],
            idle_share=share[~takes],
            idle_cpu_m=requests.cpu_m[idle],
        )

    def amount(self, cpu_m: I64, free: I64, model: I64) -> F64:
        """(S,) F of states with CPU (S,), GPUs (S, D) and models (S,), in thousandths of a GPU."""
        parts = range(0, len(cpu_m), _AT_ONCE)
        found = [
            self._shared_gpu_fragments(*(a[i : i + _AT_ONCE] for a in (cpu_m, free, model)))
            for i in parts
        ]
        return np.concatenate([*found, np.zeros(0)])

    def _shared_gpu_fragments(self, cpu_m: I64, free: I64, model: I64) -> F64:
        total = free.sum(axis=1).astype(np.float64)
        room = free.T[:, None, :]
        suffices = room >= self.milli[:, None]  # (D, Z, S)
        enough = suffices.sum(axis=0, dtype=np.int8)[self.size] >= self.number[:, None]
        small = (room * ~suffices).sum(axis=0).astype(np.float64)
        has_cpu, can = cpu_m >= self.cpu_m[:, None], self.reach[:, model]
        all_of_it = self.share[:, None] * total
        some_of_it = self.share[:, None] * small[self.size]
        lacking_both = _added(all_of_it, can & ~enough & ~has_cpu)
        lacking_gpu = _added(np.where(enough, some_of_it, all_of_it), can & has_cpu)
        lacking_cpu = _added(all_of_it, can & enough & ~has_cpu)
        found = lacking_both + lacking_gpu + lacking_cpu
        idle, has_cpu = self.idle_share[:, None] * total, cpu_m >= self.idle_cpu_m[:, None]
        found = found + _added(idle, has_cpu) + _added(idle, ~has_cpu)
        return found if can.all() else found + _added(all_of_it, ~can)


def _added(values: F64, where: Bool) -> F64:
    """(S,) sums over the first axis, row after row."""
    found: F64 = np.add.reduce(values * where, axis=0)
    return found
