"""Parts of GPUs: a part comes from one device, a whole GPU is a device that nobody shares.

Mathematics: models/formulation/gpu_shares.md. Always on; it has a say only where somebody asks for
a part. Parts are thousandths of a device, as in the openb trace (Weng et al., USENIX ATC 2023).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from optsched.domain.amounts import amount_of
from optsched.rules.base import Greedy, Rule, Violation
from optsched.rules.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.domain.task import TaskShape
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.formulation import Formulation
    from optsched.problem.problem import Problem
    from optsched.rules.ledger import Ledger
    from optsched.rules.world import World

GPU = "nvidia.com/gpu"
WHOLE = 1000


class GpuShares(Rule):
    """The parts and whole GPUs that tasks of a node take can be dealt out to its devices."""

    name = "gpu-shares"

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`: by packing, in whatever way fits."""
        for name, placed in world.placed_on.items():
            node = world.snapshot.node_by_name[name]
            shapes = [t.shape for t in (*node.residents, *placed)]
            parts = sorted((p for s in shapes if (p := part_of(s))), reverse=True)
            whole = sum(amount_of(s.request, GPU) for s in shapes)
            devices = amount_of(node.allocatable, GPU) - whole
            if parts and not packs(parts, devices):
                asked = ", ".join(map(str, parts))
                room = counted(max(devices, 0), "device")
                detail = f"parts of {asked} thousandths do not fit {room}"
                yield Violation(self.name, f"node {name}", detail)

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """See `Rule`: parts, and whole GPUs beside them."""
        shape = problem.classes.shapes[task_class]
        return is_shared(problem) and bool(part_of(shape) or amount_of(shape.request, GPU))

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        return Devices(problem) if is_shared(problem) else None

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`: nodes that have devices at all."""
        if not part_of(problem.classes.shapes[task_class]):
            return None
        return np.array(
            [amount_of(n.allocatable, GPU) > 0 for n in problem.snapshot.nodes], np.bool_
        )

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`."""
        shape = problem.classes.shapes[task_class]
        part, whole = part_of(shape), amount_of(shape.request, GPU)
        if part:
            return f"had no GPU with {part}/{WHOLE} free"
        return f"had fewer than {counted(whole, 'whole GPU')} free"

    def encode_nodes(self, form: Formulation, supplied: I64) -> None:
        """Parts dealt to devices that are shared; whole GPUs have the rest."""
        if is_shared(form.problem):
            free = free_devices(form.problem)
            for n in range(form.problem.num_nodes):
                _encode_node(form, supplied[:, n], free[n])


def part_of(shape: TaskShape) -> int:
    """Thousandths of one device that a shape asks for; 0 when it asks for no part."""
    return shape.device.milli if shape.device is not None and shape.device.is_share else 0


def is_shared(problem: Problem) -> bool:
    """Whether any task, pending or running, asks for a part of a device."""
    return problem.derived(shares_devices)


def shares_devices(problem: Problem) -> bool:
    """The same, not kept."""
    if any(part_of(s) for s in problem.classes.shapes):
        return True
    return any(part_of(t.shape) for n in problem.snapshot.nodes for t in n.residents)


def packs(parts: Sequence[int], devices: int) -> bool:
    """Whether parts, largest first, fit so many devices of 1000 thousandths each."""
    if devices < 0 or sum(parts) > devices * WHOLE:
        return False
    return _pack(tuple(parts), (WHOLE,) * devices, set())


def _pack(parts: tuple[int, ...], free: tuple[int, ...], dead: set[tuple[int, ...]]) -> bool:
    """Whether parts, largest first, fit rooms, smallest first; `dead` are rooms seen to fail."""
    if not parts:
        return True
    useful = tuple(room for room in free if room >= parts[-1])
    if (len(parts), *useful) in dead or sum(parts) > sum(useful):
        return False
    part, rest = parts[0], parts[1:]
    for at, room in enumerate(useful):
        if room >= part and room not in useful[:at]:
            left = sorted((*useful[:at], room - part, *useful[at + 1 :]))
            if _pack(rest, tuple(left), dead):
                return True
    dead.add((len(parts), *useful))
    return False


def free_devices(problem: Problem) -> I64:
    """(N, D) thousandths free of each device, residents dealt out best fit, largest first."""
    return problem.derived(_free_devices)


def _free_devices(problem: Problem) -> I64:
    nodes = problem.snapshot.nodes
    number = np.array([amount_of(n.allocatable, GPU) for n in nodes], np.int64)
    devices = np.arange(number.max(initial=0))
    free = np.where(devices < number[:, None], WHOLE, 0).astype(np.int64)
    tasks = [(i, t.shape) for i, node in enumerate(nodes) for t in node.residents]
    parts = [(i, part) for i, shape in tasks if (part := part_of(shape))]
    whole = np.zeros(len(nodes), np.int64)
    for i, shape in tasks:
        whole[i] += amount_of(shape.request, GPU)
    return dealt(free, parts, whole)


def dealt(free: I64, parts: Sequence[tuple[int, int]], whole: I64) -> I64:
    """What is left of (N, D) devices once parts and then whole devices have been taken.

    Parts are (node, thousandths), the largest first to the fullest device that has room; whole (N,)
    are taken from devices that nobody uses. What finds no room takes none.
    """
    left = free.copy()
    for node, part in sorted(parts, key=lambda p: -p[1]):
        _take_part(left[node], part)
    fresh = left == WHOLE
    left[fresh & (fresh.cumsum(axis=1) <= whole[:, None])] = 0
    return left


def _take_part(devices: I64, part: int) -> None:
    """Take from the fullest device (D,) that has room; from none when there is none."""
    fits = np.where(devices >= part, devices, WHOLE + 1)
    if len(fits) and fits.min() <= WHOLE:
        devices[fits.argmin()] -= part


class Devices(Greedy):
    """Devices as tasks come; parts go to the fullest device that has room.

    Attributes
    ----------
    free
        (N, D) thousandths free of each device.

    """

    def __init__(self, problem: Problem) -> None:
        self.free = free_devices(problem).copy()
        shapes = problem.classes.shapes
        self._part = [part_of(s) for s in shapes]
        self._whole = [amount_of(s.request, GPU) for s in shapes]
        self._dealt: dict[tuple[int, int], list[int]] = {}

    def live_mask(self, task_class: int) -> Bool | None:
        """See `Greedy`."""
        part, whole = self._part[task_class], self._whole[task_class]
        if not part and not whole:
            return None
        fits = self.free >= part if part else self.free == WHOLE
        enough: Bool = fits.sum(axis=1) >= max(whole, 1)
        return enough

    def placed(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        """See `Greedy`."""
        part, whole = self._part[task_class], self._whole[task_class]
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            dealt = self._dealt.setdefault((node, task_class), [])
            for _ in range(abs(count)):
                if count > 0:
                    dealt.append(self._deal(node, part, whole))
                else:
                    self.free[node, _devices_of(dealt.pop())] += part or WHOLE

    def _deal(self, node: int, part: int, whole: int) -> int:
        """Take devices of a node; returns them as bits."""
        free = self.free[node]
        if part:
            at = int(np.where(free >= part, free, WHOLE + 1).argmin())
            free[at] -= part
            return 1 << at
        chosen = np.flatnonzero(free == WHOLE)[:whole]
        free[chosen] -= WHOLE
        return sum(1 << int(d) for d in chosen)


def _devices_of(bits: int) -> list[int]:
    return [d for d in range(bits.bit_length()) if bits >> d & 1]


def _encode_node(form: Formulation, supplied: I64, free: I64) -> None:
    problem, model = form.problem, form.model
    here = np.flatnonzero(supplied >= 0).tolist()
    shapes = problem.classes.shapes
    sharing = [c for c in here if part_of(shapes[c])]
    whole = [c for c in here if amount_of(shapes[c].request, GPU)]
    devices = np.flatnonzero(free > 0).tolist()
    shared = model.add_variables(0, np.ones(len(devices), np.int64))
    parts: dict[int, I64] = {}
    for c in sharing:
        most = [int(free[d]) // part_of(shapes[c]) for d in devices]
        parts[c] = model.add_variables(0, most)
        dealt = np.append(parts[c], supplied[c])
        model.add_rows(0, dealt, np.append(np.ones_like(parts[c]), -1), lower=0, upper=0)
    for i, d in enumerate(devices):
        on = np.array([parts[c][i] for c in sharing], np.int64)
        size = np.array([part_of(shapes[c]) for c in sharing], np.int64)
        model.add_rows(0, np.append(on, shared[i]), np.append(size, -int(free[d])), upper=0)
    # Only devices that nobody shares yet can be given out whole.
    fresh = [i for i, d in enumerate(devices) if free[d] == WHOLE]
    asked = np.array([amount_of(shapes[c].request, GPU) for c in whole], np.int64)
    model.add_rows(
        0,
        np.concatenate([supplied[whole], shared[fresh]]),
        np.concatenate([asked, np.ones(len(fresh), np.int64)]),
        upper=len(fresh),
    )
