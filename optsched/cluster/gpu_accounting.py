"""GPU requests in thousandths of a GPU, and the assignment of a node's GPUs to tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from optsched.cluster.amounts import amount_of
from optsched.units import GPU, is_gpu

if TYPE_CHECKING:
    from collections.abc import Sequence

    from optsched.cluster.amounts import Amounts
    from optsched.cluster.node_resources import GpuShare
    from optsched.cluster.snapshot import Node
    from optsched.cluster.task import TaskShape

WHOLE: Final = 1000
"""Number of thousandths in a whole GPU."""


def num_gpus(amounts: Amounts) -> int:
    """Return the number of GPUs in `amounts`: the sum over resources such as nvidia.com/gpu."""
    return sum(amount for resource, amount in amounts if is_gpu(resource))


def share_milli(shape: TaskShape) -> int:
    """Return the requested share of one GPU in thousandths, or 0 if no share is requested."""
    return shape.device.milli if shape.device is not None and shape.device.is_share else 0


def gpu_milli(shape: TaskShape) -> int:
    """Return the GPU request of a task (whole GPUs or a GPU share) in thousandths of a GPU."""
    return num_gpus(shape.request) * WHOLE + share_milli(shape)


def gpus_of(node: Node) -> int:
    """Return the number of GPUs of a node, including GPUs that are shared as vGPUs."""
    return max(num_gpus(node.allocatable), sum(not device.npu for device in node.shared_gpus))


def milli_on(shape: TaskShape, node: Node | None) -> int:
    """Return the thousandths of a GPU that a task occupies on a node.

    The result includes whole GPUs, GPU shares and vGPUs. The result excludes MIG slices with their
    own resource name, and devices of ResourceClaims.
    """
    return gpu_milli(shape) + vgpu_milli(shape, node)


def vgpu_milli(shape: TaskShape, node: Node | None) -> int:
    """Return a vGPU request in thousandths of a GPU: the larger of its core and memory shares."""
    if not shape.shared_gpus:
        return 0
    devices = () if node is None else node.shared_gpus
    whole = max((device.memory for device in devices), default=0)
    milli = 0
    for request in shape.shared_gpus:
        if not request.npu:
            memory = request.memory * WHOLE // whole if whole else 0
            each = min(max(10 * request.cores, 10 * request.percent, memory), WHOLE)
            milli += request.number * each
    return milli


class GpuBook:
    """The free capacity of each GPU of a node, in thousandths of a GPU.

    Scheduler plugins only check that requests fit; the device plugin on the node picks the GPUs.
    This class assumes that a GPU share gets the GPU with the least sufficient free capacity. This
    class also assumes that a request for whole GPUs gets the unused GPUs with the lowest indices.

    `is_plain` is true if all GPUs of the node belong to the resource that supports GPU shares.
    """

    def __init__(self, node: Node) -> None:
        self._indices = {device.key: i for i, device in enumerate(node.shared_gpus)}
        self.free = [WHOLE] * num_gpus(node.allocatable)
        self.is_plain = amount_of(node.allocatable, GPU) == len(self.free)

    def allocate(self, shape: TaskShape, shared_gpus: Sequence[GpuShare] = ()) -> tuple[int, ...]:
        """Allocate GPUs to a task and return their indices.

        If too few GPUs are free, fewer GPUs than requested are returned, possibly none. GPU shares
        of other tasks are not moved to make a request fit.
        """
        if shared_gpus:
            indices = self._indices
            return tuple(sorted({indices[s.key] for s in shared_gpus if s.key in indices}))
        number = num_gpus(shape.request)
        if number:
            allocated = [i for i, free in enumerate(self.free) if free == WHOLE][:number]
            for i in allocated:
                self.free[i] = 0
            return tuple(allocated)
        part = gpu_milli(shape)
        fitting = [(free, i) for i, free in enumerate(self.free) if part and free >= part]
        if not fitting:
            return ()
        _, best = min(fitting)
        self.free[best] -= part
        return (best,)

    def allocate_jointly(self, shapes: Sequence[TaskShape]) -> list[tuple[int, ...]]:
        """Return the GPU indices for each task, without changing the free capacity.

        GPUs are first assigned task by task. If some task does not fit in this way, GPUs are
        assigned to all tasks jointly.
        """
        before = list(self.free)
        found = [self.allocate(shape) for shape in shapes]
        self.free[:] = before
        if all(
            len(gpus) == (num_gpus(shape.request) or bool(gpu_milli(shape)))
            for shape, gpus in zip(shapes, found, strict=True)
        ):
            return found
        order = sorted(range(len(shapes)), key=lambda i: -_gpu_milli_each(shapes[i]))
        joint = _find_joint_allocation([shapes[i] for i in order], before)
        if joint is None:
            return found
        by_index = dict(zip(order, joint, strict=True))
        return [by_index[i] for i in range(len(shapes))]

    def occupy(
        self,
        shape: TaskShape,
        gpus: Sequence[int],
        shared_gpus: Sequence[GpuShare],
        sign: int = 1,
    ) -> None:
        """Subtract a task's usage from the free capacity of its GPUs; add it if `sign` is -1."""
        if not shared_gpus:
            each = sign * _gpu_milli_each(shape)
            for i in gpus:
                self.free[i] -= each

    def release(
        self, shape: TaskShape, gpus: Sequence[int], shared_gpus: Sequence[GpuShare]
    ) -> None:
        """Add a task's usage back to the free capacity of its GPUs."""
        self.occupy(shape, gpus, shared_gpus, -1)


def _gpu_milli_each(shape: TaskShape) -> int:
    """Return the usage of a task on each of its GPUs, in thousandths of a GPU."""
    return WHOLE if num_gpus(shape.request) else gpu_milli(shape)


def _find_joint_allocation(
    shapes: Sequence[TaskShape], free: Sequence[int]
) -> list[tuple[int, ...]] | None:
    """Return the GPU indices for each task, or None if the tasks do not all fit together."""
    if not shapes:
        return []
    shape, *rest = shapes
    each, number = _gpu_milli_each(shape), num_gpus(shape.request) or 1
    fitting = sorted((idle, i) for i, idle in enumerate(free) if idle >= each)
    if len(fitting) < number:
        return None
    # GPUs with equal free capacity are interchangeable, so only one of these GPUs is tried.
    # Requests for several whole GPUs only fit on unused GPUs, which are all interchangeable.
    subsets = [fitting[:number]]
    if number == 1:
        subsets = [[f] for k, f in enumerate(fitting) if not k or fitting[k - 1][0] != f[0]]
    for subset in subsets:
        idle_after = list(free)
        for _, i in subset:
            idle_after[i] -= each
        found = _find_joint_allocation(rest, idle_after)
        if found is not None:
            return [tuple(sorted(i for _, i in subset)), *found]
    return None
