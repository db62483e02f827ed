"""The five deterministic policies of the FGD paper as node scores, rounded as in FGD's simulator.

The policies are node scores, not optsched models. Each policy truncates its scores to integers from
0 to 100, so many nodes have equal scores; ties are broken at random. The allocation curves
therefore depend on the rounding. The closest optsched plugins are
`optsched.plugins.devices.fragmentation` for FGD, without rounding, and `binpack` for BestFit. The
formulas are from `pkg/simulator/plugin/*_score.go` in the simulator. In the formulas, C is a node's
idle CPU in milli-CPU, and G is its idle GPU capacity in thousandths of a GPU. The pod's requests
for CPU and GPUs, in the same units, are c and g.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, Self

import numpy as np

from optsched.cluster.gpu_accounting import WHOLE
from optsched.problem.arrays import row_groups
from optsched.study.gpu_packing.node_pool import Requests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import numpy.typing as npt

    from optsched.problem.arrays import F64, I64, Bool
    from optsched.study.fgd.workload import Workload


@dataclass(frozen=True, eq=False, slots=True)
class States:
    """The idle resources of S nodes, and the types of the pods on each node."""

    # Idle CPU (S,) in milli-CPU, and idle memory (S,) in MiB.
    cpu_m: I64
    memory_mib: I64
    free: I64  # Idle capacity of each GPU in thousandths, shape (S, D).
    num_gpu: I64  # Number of GPUs on each node, shape (S,).
    model: I64  # Index of each node's GPU model, shape (S,).
    # Types of the GPU pods on each node as a bit set, shape (S,). Bit 0 stands for a GPU share, bit
    # n for n whole GPUs.
    sorts: I64

    @property
    def idle_gpu_milli(self) -> I64:
        """Total idle GPU capacity of each node in thousandths of a GPU, shape (S,)."""
        found: I64 = self.free.sum(axis=1)
        return found

    def select(self, rows: I64) -> States:
        """Return the node states at the indices `rows`."""
        parts = (self.cpu_m, self.memory_mib, self.free, self.num_gpu, self.model, self.sorts)
        return States(*(part[rows] for part in parts))


def fits_one_more(states: States, requests: Requests) -> Bool:
    """Return whether one more pod of each class fits on each node, shape (S, K)."""
    enough = (states.free[:, None, :] >= requests.milli[:, None]).sum(axis=2) >= requests.number
    found: Bool = enough & requests.reach[:, states.model].T
    found &= states.cpu_m[:, None] >= requests.cpu_m
    found &= states.memory_mib[:, None] >= requests.memory_mib
    return found


def sort_of(requests: Requests) -> I64:
    """Return each class's bit in `States.sorts`, shape (K,); 0 for classes that request no GPU."""
    found: I64 = np.where(
        requests.is_share, 1, np.where(requests.number > 0, 1 << requests.number, 0)
    )
    return found


def with_pods(free: I64, requests: Requests, classes: I64, devices: I64) -> I64:
    """Return each GPU's idle capacity after one more pod is placed on each node, shape (S, D).

    `classes` (S,) holds the classes of the placed pods. `devices` (S,) holds the GPU for each GPU
    share; other pods take the first idle GPUs. The idle capacity is meaningless for nodes on which
    the pod does not fit.
    """
    left = free.copy()
    sharing = np.flatnonzero(requests.is_share[classes])
    left[sharing, devices[sharing]] -= requests.milli[classes[sharing]]
    whole = np.flatnonzero(~requests.is_share[classes])
    idle = left[whole] == WHOLE
    taken = idle & (idle.cumsum(axis=1) <= requests.number[classes[whole], None])
    left[whole] = np.where(taken, 0, left[whole])
    return left


_AT_ONCE = 2048


@dataclass(frozen=True, eq=False, slots=True)
class Fragments:
    """The typical pods by which the fragmentation F is measured: M classes with GPUs, C without.

    F is the idle GPU capacity that a typical pod cannot use, averaged over the typical pods and
    weighted by their frequency.
    """

    # For each class with GPUs: its fraction of all pods, CPU request and number of GPUs, shape
    # (M,).
    share: F64
    cpu_m: I64
    number: I64
    size: I64  # Index of each class's request per GPU in `milli`, shape (M,).
    milli: I64  # Distinct requests per GPU in thousandths, shape (Z,).
    reach: Bool  # Whether a class may run on a GPU model, shape (M, Y).
    # For each class without GPUs: its fraction of all pods, and its CPU request, shape (C,).
    idle_share: F64
    idle_cpu_m: I64

    @classmethod
    def from_workload(cls, workload: Workload) -> Self:
        """Select the typical pods of a workload."""
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
        """Return the fragmentation F of each node in thousandths of a GPU, shape (S,).

        `cpu_m` (S,) is the idle CPU, `free` (S, D) the idle capacity of each GPU, and `model` (S,)
        the GPU model.
        """
        found = []
        # Process at most `_AT_ONCE` states together to limit the memory of the (M, S) arrays.
        for start in range(0, len(cpu_m), _AT_ONCE):
            block = slice(start, start + _AT_ONCE)
            total = free[block].sum(axis=1).astype(np.float64)
            idle_gpus = free[block].T[:, None, :]
            suffices = idle_gpus >= self.milli[:, None]  # Shape (D, Z, S).
            enough = suffices.sum(axis=0, dtype=np.int8)[self.size] >= self.number[:, None]
            small = (idle_gpus * ~suffices).sum(axis=0).astype(np.float64)
            has_cpu, can = cpu_m[block] >= self.cpu_m[:, None], self.reach[:, model[block]]
            all_of_it = self.share[:, None] * total
            some_of_it = self.share[:, None] * small[self.size]
            lacking_both = _added(all_of_it, can & ~enough & ~has_cpu)
            lacking_gpu = _added(np.where(enough, some_of_it, all_of_it), can & has_cpu)
            lacking_cpu = _added(all_of_it, can & enough & ~has_cpu)
            amount = lacking_both + lacking_gpu + lacking_cpu
            idle = self.idle_share[:, None] * total
            has_cpu = cpu_m[block] >= self.idle_cpu_m[:, None]
            amount = amount + _added(idle, has_cpu) + _added(idle, ~has_cpu)
            found.append(amount if can.all() else amount + _added(all_of_it, ~can))
        return np.concatenate([*found, np.zeros(0)])


def _added(values: F64, where: Bool) -> F64:
    """Sum `values` over the first axis where `where` is true, in row order; return shape (S,)."""
    found: F64 = np.add.reduce(values * where, axis=0)
    return found


_MOST_CPU_M: Final = 128_000
_MOST_GPU: Final = 8000
_MOST: Final = 100


class Policy(Protocol):
    """A policy that scores nodes, and selects a GPU for a pod that requests a GPU share."""

    def scores(self, states: States) -> I64:
        """Return scores (S, K) from 0 to 100; scores of pods that do not fit are arbitrary."""

    def devices(self, states: States, classes: I64) -> I64:
        """Return the GPU on each node for a GPU share of the given class (S,), shape (S,)."""


@dataclass(frozen=True, eq=False)
class _Tightest:
    """A policy that puts a GPU share on the fullest GPU with enough idle capacity."""

    requests: Requests

    def devices(self, states: States, classes: I64) -> I64:
        fits = states.free >= self.requests.milli[classes][:, None]
        found: I64 = np.where(fits, states.free, WHOLE + 1).argmin(axis=1)
        return found


class DotProd(_Tightest):
    """Prefer nodes with the smallest dot product of their idle resources and the pod's request."""

    def scores(self, states: States) -> I64:
        """Return ⌊100·(1 − ½·(C/128000·c/128000 + G/8000·g/8000))⌋."""
        cpu = (states.cpu_m / _MOST_CPU_M)[:, None] * (self.requests.cpu_m / _MOST_CPU_M)
        gpu = (states.idle_gpu_milli / _MOST_GPU)[:, None] * (self.requests.worth / _MOST_GPU)
        return _cut(_MOST * (1 - (cpu + gpu) / 2))


class GpuClustering(_Tightest):
    """Prefer nodes with GPU pods of the same type (GPU share, or number of whole GPUs)."""

    def scores(self, states: States) -> I64:
        """Return ⌊25·(8000 − G)/8000⌋ plus a term for the types of the GPU pods on the node.

        The term is 75 if all GPU pods on the node have the type of the class, 50 if only some have
        it, and 0 if none has it. The term is 25 if the node has no GPU pods. Classes without GPUs
        score 0.
        """
        sort, present = sort_of(self.requests), states.sorts[:, None]
        among = np.where(present == sort, 75, 50)
        apart = np.where(present == 0, 25, 0)
        used = _MOST // 4 * (_MOST_GPU - states.idle_gpu_milli) // _MOST_GPU
        found: I64 = used[:, None] + np.where(present & sort, among, apart)
        return np.where(sort > 0, found, 0)


class GpuPacking(_Tightest):
    """Prefer GPUs that are already shared, then idle GPUs of used nodes, then empty nodes."""

    def scores(self, states: States) -> I64:
        """Return scores that decrease with the number of idle GPUs that the pod takes.

        If the pod takes no idle GPU, the score is 100 minus a tenth of the sum of ⌊100·R/1000⌋ over
        the GPUs that the pod takes, where R is a GPU's idle thousandths; it is at least 50.
        """
        num_idle = (states.free == WHOLE).sum(axis=1)
        empty = np.maximum(_MOST // 3 - num_idle, num_idle)[:, None]
        left = np.sort(states.free, axis=1)
        suffices = left[:, None, :] >= self.requests.milli[:, None]
        taken = suffices & (suffices.cumsum(axis=2) <= self.requests.number[:, None])
        opened = (taken & (left == WHOLE)[:, None, :]).sum(axis=2)
        spare = (taken * (left * _MOST // WHOLE)[:, None, :]).sum(axis=2)
        used = np.where(
            opened > 0,
            np.maximum(_MOST // 2 - opened, _MOST // 3),
            np.maximum(_MOST - spare // 10, _MOST // 2),
        )
        found: I64 = np.where((num_idle == states.num_gpu)[:, None], empty, used)
        return np.where(self.requests.milli > 0, found, 0)


class BestFit(_Tightest):
    """Prefer nodes that have the least idle resources after the pod is placed.

    The published policy also rescales the scores to 0..100, which does not change their order.
    """

    def scores(self, states: States) -> I64:
        """Return ⌊(1 − (½·(C − c)/128000 + ½·(G − g)/8000))·100⌋."""
        cpu = (states.cpu_m[:, None] - self.requests.cpu_m) / _MOST_CPU_M * 0.5
        gpu = (states.idle_gpu_milli[:, None] - self.requests.worth) / _MOST_GPU * 0.5
        return _cut((1.0 - (cpu + gpu)) * _MOST)


class Fgd:
    """Prefer the smallest increase of the fragmentation F: ⌊100·sigmoid((F − F′)/1000)⌋.

    F and F′ are a node's fragmentation before and after the pod is placed. The score of a GPU share
    is the maximum over the GPUs on which it fits. Scores are cached by node state. Two node states
    are equal if they have the same idle CPU, the same idle capacities of GPUs in any order, and GPU
    models that the same classes may use. Memory is ignored.
    """

    def __init__(self, workload: Workload) -> None:
        requests = workload.requests
        self._requests = requests
        self._fragments = Fragments.from_workload(workload)
        columns = [requests.cpu_m, requests.number, requests.milli, *requests.reach.T]
        self._class_of, first = row_groups(columns)
        self._classes = Requests(
            requests.cpu_m[first],
            np.zeros_like(first),
            requests.number[first],
            requests.milli[first],
            requests.reach[first],
        )
        self._alike, _ = row_groups([*requests.reach])
        self._known: dict[bytes, npt.NDArray[np.int8]] = {}

    def scores(self, states: States) -> I64:
        """Return the scores of the classes, shape (S, K), from the cache if possible."""
        codes = np.column_stack(
            [states.cpu_m, self._alike[states.model], np.sort(states.free, axis=1)]
        )
        keys = [row.tobytes() for row in codes]
        fresh = list({key: i for i, key in enumerate(keys) if key not in self._known}.values())
        if fresh:
            # In `_classes`, classes that differ only in memory are merged.
            new = states.select(np.array(fresh))
            at, classes = np.nonzero(fits_one_more(new, self._classes))
            shared = self._classes.is_share[classes]
            tries = _candidate_gpus(new, self._classes, at[shared], classes[shared])
            whole = at[~shared], classes[~shared], np.zeros_like(at[~shared])
            at, classes, device = (np.concatenate(pair) for pair in zip(whole, tries, strict=True))
            rows = np.zeros((len(new.cpu_m), len(self._classes.cpu_m)), np.int8)
            np.maximum.at(
                rows, (at, classes), self._points(new, self._classes, at, classes, device)
            )
            self._known.update((keys[i], row) for i, row in zip(fresh, rows, strict=True))
        found = np.array([self._known[key] for key in keys], np.int64)
        return found[:, self._class_of]

    def devices(self, states: States, classes: I64) -> I64:
        """Return the GPU with the best score on each node, shape (S,); on ties, the first GPU."""
        at, tried, device = _candidate_gpus(
            states, self._requests, np.arange(len(classes)), classes
        )
        table = np.full(states.free.shape, -1)
        table[at, device] = self._points(states, self._requests, at, tried, device)
        found: I64 = table.argmax(axis=1)
        return found

    def _points(
        self, states: States, requests: Requests, at: I64, classes: I64, devices: I64
    ) -> npt.NDArray[np.int8]:
        """Return the score of each (pod, node) pair, shape (P,).

        `at`, `classes` and `devices` (P,) are the pair's node state, pod class and GPU.
        """
        with_one = with_pods(states.free[at], requests, classes, devices)
        amount = self._fragments.amount(
            np.append(states.cpu_m, states.cpu_m[at] - requests.cpu_m[classes]),
            np.concatenate([states.free, with_one]),
            np.append(states.model, states.model[at]),
        )
        before, after = amount[: len(states.cpu_m)], amount[len(states.cpu_m) :]
        less = before[at] - after
        return (_MOST / (1 + np.exp(-less / 1000))).astype(np.int8)


def _candidate_gpus(
    states: States, requests: Requests, at: I64, classes: I64
) -> tuple[I64, I64, I64]:
    """Return index arrays (state, class, GPU): one element per GPU on which a GPU share fits.

    Of a node's GPUs with equal idle capacity, only the first is returned.
    """
    free = states.free
    same = free[:, :, None] == free[:, None, :]
    is_first = same.argmax(axis=2) == np.arange(free.shape[1])
    may = is_first[at] & (free[at] >= requests.milli[classes, None])
    pair, device = np.nonzero(may)
    return at[pair], classes[pair], device


def _cut(values: F64) -> I64:
    found: I64 = values.astype(np.int64)
    return found


POLICIES: Final[Mapping[str, Callable[[Workload], Policy]]] = {
    "02-DotProd": lambda workload: DotProd(workload.requests),
    "03-GpuClustering": lambda workload: GpuClustering(workload.requests),
    "04-GpuPacking": lambda workload: GpuPacking(workload.requests),
    "05-BestFit": lambda workload: BestFit(workload.requests),
    "06-FGD": Fgd,
}
"""Maps the name of each policy in the published tables to its constructor."""
