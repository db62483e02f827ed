"""GPU shares: each share is allocated on one GPU; a GPU allocated as a whole serves one task.

Mathematics: models/formulation/gpu_shares.md. The rule is always active but has no effect unless a
task requests a GPU share. GPU shares are in thousandths of a GPU, as in the openb trace (Weng et
al., USENIX ATC 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.amounts import amount_of
from optsched.cluster.gpu_accounting import WHOLE, share_milli
from optsched.cluster.task import TaskStatus
from optsched.plugins.extension_points import Greedy, Rule, Violation
from optsched.problem.running import running_tasks
from optsched.units import GPU, count_noun

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.snapshot import Node
    from optsched.cluster.task import Task, TaskShape
    from optsched.plugins.accounting import Ledger
    from optsched.plugins.extension_points import NodeModel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.linear import LinearModel
    from optsched.problem.problem import Problem


class GpuShares(Rule):
    """Rule: the GPU shares and whole GPUs of all tasks on a node fit on the GPUs of the node."""

    name = "gpu-shares"

    def verify(self, world: World) -> Iterator[Violation]:
        """Check that the GPU shares and whole GPUs of all tasks on a node fit on its GPUs."""
        for name, placed in world.placed_on.items():
            node = world.snapshot.node_by_name[name]
            if tied := [t for t in node.residents if t.gpus]:
                yield from self._verify_known_devices(node, tied, placed)
                continue
            have = Holding.from_shapes(node, [t.shape for t in (*node.residents, *placed)])
            if have.parts and not have.fits:
                requested = ", ".join(map(str, have.parts))
                number = count_noun(max(have.devices - have.whole, 0), "device")
                detail = f"shares of {requested} thousandths do not fit on {number}"
                yield Violation(self.name, f"node {name}", detail)
        # Nominated tasks must fit after terminating pods have ended.
        for name, nominated in world.nominated_tasks.items():
            node = world.snapshot.node_by_name[name]
            stays = [t.shape for t in node.residents if t.status is not TaskStatus.RELEASING]
            stays += [t.shape for t in world.placed_on.get(name, ())]
            have = Holding.from_shapes(node, (*stays, *(t.shape for t in nominated)))
            if any(_uses_gpus(t.shape) for t in nominated) and have.parts and not have.fits:
                detail = "nominated tasks request GPU shares that will not fit"
                yield Violation(self.name, f"node {name}", detail)

    def _verify_known_devices(
        self, node: Node, tied: Sequence[Task], placed: Sequence[Task]
    ) -> Iterator[Violation]:
        free_milli = [WHOLE] * amount_of(node.allocatable, GPU)
        for task in tied:
            for device in (d for d in task.gpus if d < len(free_milli)):
                free_milli[device] -= share_milli(task.shape) or WHOLE
        known = {task.key for task in tied}
        shapes = [t.shape for t in (*node.residents, *placed) if t.key not in known]
        others = Holding.from_shapes(node, shapes)
        whole, fresh = others.whole, free_milli.count(WHOLE)
        open_devices = sorted(free_milli)[: len(free_milli) - whole] if whole <= fresh else []
        if whole > fresh or not _pack(others.parts, tuple(open_devices), set()):
            requested = ", ".join(map(str, others.parts)) or "none"
            detail = (
                f"{count_noun(whole, 'whole GPU')} and shares of {requested} thousandths do not fit"
                f" on devices with {', '.join(map(str, free_milli))} free"
            )
            yield Violation(self.name, f"node {node.name}", detail)

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """Return whether any task has a GPU share and the class requests GPUs or a GPU share."""
        shape = problem.classes.shapes[task_class]
        return problem.derived(shares_devices) and _uses_gpus(shape)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        return Devices(problem) if problem.derived(shares_devices) else None

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """For tasks that request a GPU share, allow only nodes that have GPUs."""
        if not share_milli(problem.classes.shapes[task_class]):
            return None
        return np.array(
            [amount_of(n.allocatable, GPU) > 0 for n in problem.snapshot.nodes], np.bool_
        )

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`."""
        shape = problem.classes.shapes[task_class]
        part, whole = share_milli(shape), amount_of(shape.request, GPU)
        if part:
            return f"had no GPU with {part}/{WHOLE} free"
        return f"had fewer than {count_noun(whole, 'whole GPU')} free"

    def relevant_tasks(self, problem: Problem, task_class: int) -> I64 | None:
        """Return a number per running task (V,), equal for tasks with equal GPU requests."""
        if not self.ties_nodes(problem, task_class):
            return None
        running = running_tasks(problem)
        found = np.full(len(running), -1, np.int64)
        for v, task in enumerate(running.tasks):
            if _uses_gpus(task.shape):
                found[v] = share_milli(task.shape) + amount_of(task.shape.request, GPU) * WHOLE
        return found

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Add constraints for GPU shares; on nodes with victims, running tasks may be repacked."""
        problem, model, supplied = nodes.problem, nodes.model, nodes.supplied
        if not problem.derived(shares_devices):
            return
        free, victims = problem.derived(find_free_devices), nodes.victims_by_node()
        for n, node in enumerate(problem.snapshot.nodes):
            goes = [
                (leave, task.shape)
                for leave, _, task in victims.get(n, ())
                if _uses_gpus(task.shape)
            ]
            if not goes:
                _encode_node(problem, model, supplied[:, n], free[n])
                continue
            shapes = problem.classes.shapes
            comes = [
                (int(supplied[c, n]), shapes[c])
                for c in np.flatnonzero(supplied[:, n] >= 0).tolist()
                if _uses_gpus(shapes[c])
            ]
            if comes:
                have = Holding.from_shapes(node, [t.shape for t in node.residents])
                _repack_node(model, have, comes, goes)


@dataclass(frozen=True, slots=True)
class Holding:
    """A node's number of GPUs, its number of GPUs allocated whole, and its sorted GPU shares."""

    devices: int
    whole: int
    parts: tuple[int, ...]

    @classmethod
    def from_shapes(cls, node: Node, shapes: Sequence[TaskShape]) -> Holding:
        """Return the GPUs and GPU shares that tasks with the given shapes use on a node."""
        parts = sorted((p for s in shapes if (p := share_milli(s))), reverse=True)
        whole = sum(amount_of(s.request, GPU) for s in shapes)
        return cls(amount_of(node.allocatable, GPU), whole, tuple(parts))

    @property
    def fits(self) -> bool:
        """True if the GPU shares fit on the GPUs that are not allocated whole."""
        unused = self.devices - self.whole
        return unused >= 0 and _pack(self.parts, (WHOLE,) * unused, set())

    def with_tasks(self, part: int, whole: int, number: int = 1) -> Holding:
        """Return the usage after adding `number` equal tasks; a negative number removes tasks."""
        parts = [*self.parts, *([part] * number if part else ())]
        for _ in range(-number if part else 0):
            parts.remove(part)
        whole = self.whole + number * whole
        return Holding(self.devices, whole, tuple(sorted(parts, reverse=True)))


def shares_devices(problem: Problem) -> bool:
    """Return whether any pending or running task has a GPU share."""
    if any(share_milli(s) for s in problem.classes.shapes):
        return True
    residents = problem.snapshot.resident_shapes
    return any(shape.device is not None and share_milli(shape) for shape in residents)


def _pack(parts: tuple[int, ...], free: tuple[int, ...], dead: set[tuple[int, ...]]) -> bool:
    """Return whether the GPU shares `parts`, in descending order, fit on the GPUs.

    `free` contains the idle thousandths of the GPUs in ascending order. `dead` contains the states
    in which the search is known to fail.
    """
    if not parts:
        return True
    useful = tuple(free_milli for free_milli in free if free_milli >= parts[-1])
    if (len(parts), *useful) in dead or sum(parts) > sum(useful):
        return False
    part, rest = parts[0], parts[1:]
    for at, free_milli in enumerate(useful):
        if free_milli >= part and free_milli not in useful[:at]:
            left = sorted((*useful[:at], free_milli - part, *useful[at + 1 :]))
            if _pack(rest, tuple(left), dead):
                return True
    dead.add((len(parts), *useful))
    return False


def find_free_devices(problem: Problem) -> I64:
    """Return the idle thousandths (N, D) of each GPU of each node.

    Residents with unknown GPUs are packed by best fit, largest share first. If possible, the
    packing leaves GPUs for the tasks that are nominated to a node.
    """
    nodes = problem.snapshot.nodes
    number = np.array([amount_of(n.allocatable, GPU) for n in nodes], np.int64)
    devices = np.arange(number.max(initial=0))
    free = np.where(devices < number[:, None], WHOLE, 0).astype(np.int64)
    tied = {i for i, node in enumerate(nodes) if any(t.gpus for t in node.residents)}
    for i in sorted(tied):
        for task in (t for t in nodes[i].residents if t.gpus):
            held = [d for d in task.gpus if d < number[i]]
            free[i, held] = np.maximum(free[i, held] - (share_milli(task.shape) or WHOLE), 0)
    tasks = [(i, t.shape) for i, node in enumerate(nodes) for t in node.residents if not t.gpus]
    parts = [(i, part) for i, shape in tasks if (part := share_milli(shape))]
    whole = np.zeros(len(nodes), np.int64)
    for i, shape in tasks:
        whole[i] += amount_of(shape.request, GPU)
    found = devices_left(free, parts, whole)
    index_of = {node.name: i for i, node in enumerate(nodes)}
    nominated: dict[int, list[TaskShape]] = {}
    for task in problem.tasks:
        if task.nominated_node in index_of and _uses_gpus(task.shape):
            nominated.setdefault(index_of[task.nominated_node], []).append(task.shape)
    for i, coming in nominated.items():
        have = Holding.from_shapes(nodes[i], [t.shape for t in nodes[i].residents])
        loads = _pack_with_nominated(have, Holding.from_shapes(nodes[i], coming))
        if loads is not None and i not in tied:
            found[i, : have.devices] = WHOLE - np.array(loads, np.int64)
    return found


def _pack_with_nominated(have: Holding, coming: Holding) -> list[int] | None:
    """Pack residents so that nominated tasks fit too; return the used thousandths of each GPU.

    Returns None if residents and nominated tasks cannot all fit. GPUs that are allocated whole come
    last in the result.
    """
    open_devices = have.devices - have.whole - coming.whole
    if not have.parts or open_devices < 0:
        return None
    free, taken = [WHOLE] * open_devices, [0] * have.devices
    requests = sorted(
        ((p, side) for side in (have, coming) for p in side.parts), key=lambda w: -w[0]
    )
    rest = [part for part, _ in requests]
    for part, side in requests:
        rest.pop(0)
        for at in (d for d in range(open_devices) if free[d] >= part):
            left = sorted(free_milli - part * (d == at) for d, free_milli in enumerate(free))
            if _pack(tuple(rest), tuple(left), set()):
                free[at] -= part
                taken[at] += part if side is have else 0
                break
        else:
            return None
    return [*taken[: have.devices - have.whole], *[WHOLE] * have.whole]


def devices_left(free: I64, parts: Sequence[tuple[int, int]], whole: I64) -> I64:
    """Return the idle thousandths (N, D) after allocating GPU shares, and then whole GPUs.

    `parts` are the GPU shares as (node, thousandths) pairs. GPU shares are allocated in descending
    order, each on the fullest GPU where it fits; a share that fits on no GPU is ignored. `whole`
    (N,) is the number of GPUs to allocate whole on each node.
    """
    left = free.copy()
    for node, part in sorted(parts, key=lambda p: -p[1]):
        fit = fullest_fit(left[node][None], part)[0]
        if fit >= 0:
            left[node, fit] -= part
    fresh = left == WHOLE
    left[fresh & (fresh.cumsum(axis=1) <= whole[:, None])] = 0
    return left


def fullest_fit(free: I64, milli: int) -> I64:
    """Return each node's fullest GPU (m,) with at least `milli` idle thousandths, or -1.

    `free` (m, D) contains the idle thousandths of D GPUs on m nodes.
    """
    if not free.shape[1]:
        return np.full(len(free), -1, np.int64)
    fits = np.where(free >= max(milli, 1), free, WHOLE + 1)
    return np.where(fits.min(axis=1) <= WHOLE, fits.argmin(axis=1), -1)


class Devices(Greedy):
    """Tracks idle GPUs while tasks are placed; a GPU share uses the fullest GPU where it fits.

    On a node with terminating pods, all placed and nominated tasks must also fit together once
    these pods have ended.

    Attributes
    ----------
    free
        Idle thousandths of each GPU of each node, shape (N, D).

    """

    def __init__(self, problem: Problem) -> None:
        self.free = problem.derived(find_free_devices).copy()
        self._problem = problem
        self._after: dict[int, Holding] = {}
        self._placed: dict[int, list[tuple[int, int, int]]] = {}
        for n, node in enumerate(problem.snapshot.nodes):
            if any(
                t.status is TaskStatus.RELEASING and _uses_gpus(t.shape) for t in node.residents
            ):
                self._watch(n)
        shapes = problem.classes.shapes
        self._part = [share_milli(s) for s in shapes]
        self._whole = [amount_of(s.request, GPU) for s in shapes]
        self._allocated: dict[tuple[int, int], list[list[int]]] = {}

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        """See `NodeState`."""
        part, whole = self._part[task_class], self._whole[task_class]
        if not part and not whole:
            return None
        fits = self.free >= part if part else self.free == WHOLE
        enough: Bool = fits.sum(axis=1) >= max(whole, 1)
        for n, after in self._after.items():
            enough[n] = (later or enough[n]) and after.with_tasks(part, whole).fits
        return enough

    def record_eviction(self, victim: int, sign: int) -> None:
        """See `Greedy`."""
        running = running_tasks(self._problem)
        node, shape = int(running.node_of[victim]), running.tasks[victim].shape
        if _uses_gpus(shape):
            after = self._watch(node)
            self._after[node] = after.with_tasks(
                share_milli(shape), amount_of(shape.request, GPU), -sign
            )

    def _watch(self, node: int) -> Holding:
        """Return the GPU usage of a node with all placed tasks once terminating pods have ended."""
        if node not in self._after:
            watched = self._problem.snapshot.nodes[node]
            stays = [t.shape for t in watched.residents if t.status is not TaskStatus.RELEASING]
            after = Holding.from_shapes(watched, stays)
            for part, whole, number in self._placed.get(node, ()):
                after = after.with_tasks(part, whole, number)
            self._after[node] = after
        return self._after[node]

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        """See `Greedy`."""
        part, whole = self._part[task_class], self._whole[task_class]
        if not part and not whole:
            return
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            if node in self._after:
                self._after[node] = self._after[node].with_tasks(part, whole, count)
            self._placed.setdefault(node, []).append((part, whole, count))
            allocated = self._allocated.setdefault((node, task_class), [])
            free = self.free[node]
            for _ in range(count):
                if part:
                    at = int(fullest_fit(free[None], part)[0])
                    chosen = [at] if at >= 0 else []
                else:
                    idle = np.flatnonzero(free == WHOLE)[:whole].tolist()
                    chosen = idle if len(idle) == whole else []
                # A task that does not fit yet gets no GPU.
                free[chosen] -= part or WHOLE
                allocated.append(chosen)
            for _ in range(-count):
                free[allocated.pop()] += part or WHOLE


def _repack_node(
    model: LinearModel,
    have: Holding,
    comes: Sequence[tuple[int, TaskShape]],
    goes: Sequence[tuple[int, TaskShape]],
) -> None:
    """Add constraints that pack the remaining running tasks and the placed tasks on a node's GPUs.

    If the running tasks already exceed the GPUs of the node, the constraints apply only if a task
    is placed on the node.
    """
    # Placed tasks use GPU capacity, and victims release it.
    changes = [*((x, 1, shape) for x, shape in comes), *((x, -1, shape) for x, shape in goes)]
    placed = [x for x, _ in comes]
    most_placed = int(max(model.bounds[1][placed].max(), 1))
    any_placed = -1 if have.fits else model.add_indicator(placed, most_placed)
    shared = model.add_variables(0, np.ones(max(have.devices, 0), np.int64)).tolist()
    # Constraints Σ coefficient·variable ≤ bound, as ((variable, coefficient) pairs, bound).
    rows: list[tuple[list[tuple[int, int]], int]] = []
    on_device: list[list[tuple[int, int]]] = [[] for _ in shared]
    for part in sorted({share_milli(shape) for *_, shape in changes}.union(have.parts) - {0}):
        most = np.full(len(shared), WHOLE // part, np.int64)
        counts = model.add_variables(0, most).tolist() if len(shared) else []
        for on, variable in zip(on_device, counts, strict=True):
            on.append((variable, part))
        tasks = ((x, sign) for x, sign, shape in changes if share_milli(shape) == part)
        rows.append(([*((x, -1) for x in counts), *tasks], -have.parts.count(part)))
    for on, variable in zip(on_device, shared, strict=True):
        if on:
            rows.append(([*on, (variable, -WHOLE)], 0))
    whole = ((x, sign * amount_of(shape.request, GPU)) for x, sign, shape in changes)
    terms = [(x, amount) for x, amount in whole if amount]
    rows.append(([*terms, *((x, 1) for x in shared)], have.devices - have.whole))
    for terms, bound in rows:
        variables, amounts = [x for x, _ in terms], [amount for _, amount in terms]
        if any_placed >= 0:
            model.add_row([*variables, any_placed], [*amounts, -bound], upper=0)
        else:
            model.add_row(variables, amounts, upper=bound)


def _uses_gpus(shape: TaskShape) -> bool:
    return bool(share_milli(shape) or amount_of(shape.request, GPU))


def _encode_node(problem: Problem, model: LinearModel, supplied: I64, free: I64) -> None:
    """Add constraints that allocate the idle GPUs (D,) of a node to its placed tasks (C,)."""
    placeable = np.flatnonzero(supplied >= 0).tolist()
    shapes = problem.classes.shapes
    sharing = [c for c in placeable if share_milli(shapes[c])]
    whole = [c for c in placeable if amount_of(shapes[c].request, GPU)]
    devices = np.flatnonzero(free > 0).tolist()
    shared = model.add_variables(0, np.ones(len(devices), np.int64))
    parts: dict[int, I64] = {}
    for c in sharing:
        most = [int(free[d]) // share_milli(shapes[c]) for d in devices]
        parts[c] = model.add_variables(0, most)
        variables = np.append(parts[c], supplied[c])
        model.add_rows(0, variables, np.append(np.ones_like(parts[c]), -1), lower=0, upper=0)
    for i, d in enumerate(devices):
        on = np.array([parts[c][i] for c in sharing], np.int64)
        size = np.array([share_milli(shapes[c]) for c in sharing], np.int64)
        model.add_rows(0, np.append(on, shared[i]), np.append(size, -int(free[d])), upper=0)
    # Only unused GPUs can be allocated whole.
    fresh = [i for i, d in enumerate(devices) if free[d] == WHOLE]
    requested = np.array([amount_of(shapes[c].request, GPU) for c in whole], np.int64)
    model.add_rows(
        0,
        np.concatenate([supplied[whole], shared[fresh]]),
        np.concatenate([requested, np.ones(len(fresh), np.int64)]),
        upper=len(fresh),
    )
