"""GPUs and NPUs that tasks share by memory and cores.

Mathematics: models/formulation/deviceshare.md. Volcano: `pkg/scheduler/plugins/deviceshare`,
`pkg/scheduler/api/devices/{nvidia,ascend/hami}`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import combinations, compress, product
from sys import maxsize
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np

from optsched.api.wellknown import (
    GPU_AVOID_TYPE,
    GPU_USE_TYPE,
    NPU_MODE,
    VGPU_AVOID_UUID,
    VGPU_MODE,
    VGPU_PODGROUP_POLICY,
    VGPU_USE_UUID,
)
from optsched.cluster.amounts import amount_of
from optsched.cluster.node_resources import ALL_CORES, NVIDIA, GpuShare
from optsched.cluster.task import TaskStatus
from optsched.plugins.declaration import Argument, Kind, Plugin, read_whole
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.plugins.gangs.gang import first_task
from optsched.problem.running import number_keys, running_tasks
from optsched.units import count_noun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.node_resources import SharedGpu
    from optsched.cluster.snapshot import Node
    from optsched.cluster.task import Task, TaskShape
    from optsched.plugins.accounting import Ledger
    from optsched.plugins.declaration import Value
    from optsched.plugins.extension_points import LiveScorer, NodeModel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.problem import Problem

GPU_MEMORY, GPU_NUMBER = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
MIG = "mig"
"""The mode of MIG devices; a MIG device with unknown geometries gets no tasks."""

TOP = 100.0
BY_TEMPLATE = "template"
"""The NPU sharing mode of pods that do not specify a mode."""
WIRED = "Ascend910"
"""The NPU model with several networks in one node; a task prefers NPUs of one network."""
WIRED_TOP = 10.0


EXCLUSIVE = "optsched.io/gpu-exclusive"
"""The annotation with the exclusion groups of a task; see `DeviceShare.exclusive_groups`."""

_BY_LABELS = "labels:"
MAX_FAILURES: Final = 100
"""Maximum number of dead ends in the search for residents' unknown device shares."""

MOST_STATES: Final = 5000
"""Maximum number of dead ends in all searches for the devices of a plan."""

_UUIDS = (VGPU_USE_UUID, VGPU_AVOID_UUID)


class Prefers(StrEnum):
    """Whether the score prefers nodes with devices in use or nodes with idle devices."""

    NONE = ""
    BINPACK = "binpack"
    SPREAD = "spread"


class Need(NamedTuple):
    """The device request of one container: number of devices, family, and share of each device.

    A request gets distinct devices. Tasks with a common exclusion group (`groups`) do not share a
    device.
    """

    number: int
    memory: int
    percent: int
    cores: int
    is_alone: bool
    family: str
    groups: tuple[str, ...] = ()

    @property
    def is_vgpu(self) -> bool:
        """True if the container requests vGPUs."""
        return self.family == NVIDIA

    @property
    def is_npu(self) -> bool:
        """True if the container requests NPUs; a task gets each NPU at most once."""
        return self.family not in ("", NVIDIA)

    def memory_of(self, device: SharedGpu) -> int:
        """Return the memory that a request uses on a device; an NPU uses its template's memory."""
        memory = self.memory or device.memory * self.percent // 100
        template = device.chip.cut(memory) if device.chip is not None else None
        return memory if template is None else template.memory


Slice: TypeAlias = tuple[int, int]
"""A MIG slice type: the index of a MIG geometry, and the index of a profile in this geometry."""


class Usage(NamedTuple):
    """Usage of a device: memory, cores, tasks, exclusive tasks, and cores used before this session.

    `slices` contains sorted (slice type, number of used slices) pairs. `groups` contains the sorted
    exclusion groups of the tasks on the device, once per task.
    """

    memory: int = 0
    cores: int = 0
    number: int = 0
    owners: int = 0
    cores_before: int = 0
    slices: tuple[tuple[Slice, int], ...] = ()
    groups: tuple[str, ...] = ()


class Allocation(NamedTuple):
    """The share of a device that a task uses; `at` is the index of the device on its node."""

    at: int
    memory: int
    cores: int
    is_alone: bool
    slice: Slice | None = None
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeviceShare(Rule):
    """Rule: tasks get shares of devices with enough idle memory and cores.

    Attributes
    ----------
    by_memory, by_number, by_vgpu, by_npu
        True if the plugin allocates `volcano.sh/gpu-memory`, `…/gpu-number`, `…/vgpu-*`, or
        `huawei.com/Ascend*` with its NPU memory, respectively.
    prefers, weight
        The nodes that the score prefers, and the weight of the score.
    geometries_in
        Namespace and name of the ConfigMap with MIG geometries and NPU templates. Only the readers
        of cluster objects use `geometries_in`.
    locks_nodes
        True if the binder locks a node while it binds a pod with vGPUs.
    exclusive
        Label sets. Pods that have all labels of the same set do not share a vGPU.

    """

    name = "deviceshare"
    hard_switch = Switch.PREDICATE

    by_memory: bool = False
    by_number: bool = False
    by_vgpu: bool = False
    by_npu: bool = False
    prefers: Prefers = Prefers.NONE
    weight: int = 0
    geometries_in: tuple[str, str] = ("kube-system", "volcano-vgpu-device-config")
    locks_nodes: bool = False
    exclusive: tuple[tuple[tuple[str, str], ...], ...] = ()

    def exclusive_groups(self, task: Task) -> str:
        """Return the value of the annotation `EXCLUSIVE` for a task; empty without vGPUs."""
        if not self.by_vgpu or not any(not r.npu for r in task.shape.shared_gpus):
            return ""
        has = task.labels.items()
        found = (i for i, labels in enumerate(self.exclusive) if labels and has >= set(labels))
        return " ".join(f"{_BY_LABELS}{i}" for i in found)

    def gpu_needs(self, shape: TaskShape) -> tuple[Need, ...]:
        """Return the requests for shared devices of tasks with the given `TaskShape`."""
        found = []
        if self.by_memory and (memory := amount_of(shape.request, GPU_MEMORY)):
            found.append(Need(1, memory, 0, 0, is_alone=False, family=""))
        if self.by_number and (number := amount_of(shape.request, GPU_NUMBER)):
            found.append(Need(number, 0, 100, 0, is_alone=True, family=""))
        for r in shape.shared_gpus:
            if self.by_npu if r.npu else self.by_vgpu:
                alone, family = r.cores >= ALL_CORES, r.npu or NVIDIA
                groups = () if r.npu else _groups_of(shape)
                found.append(Need(r.number, r.memory, r.percent, r.cores, alone, family, groups))
        return tuple(found)

    def verify(self, world: World) -> Iterator[Violation]:
        """Check that the placed tasks of each node fit together on its devices."""
        limit = SearchLimit(MOST_STATES)
        for name, placed in world.placed_on.items():
            node = world.snapshot.node_by_name[name]
            sharing = [t for t in placed if self.gpu_needs(t.shape)]
            before = node if world.unsettled is None else world.unsettled.node_by_name[name]
            used = self.resident_use(node, before) if sharing else []
            if sharing and self._allocate_tasks(node, used, sharing, limit) is None:
                number = count_noun(len(node.shared_gpus), "shared GPU")
                detail = f"{number} cannot run {count_noun(len(sharing), 'more task')}"
                yield Violation(self.name, f"node {name}", detail)

    def allocate_devices(self, world: World) -> dict[str, tuple[GpuShare, ...]]:
        """Return the device shares of each bound task, by task key.

        If possible, bound tasks leave enough devices for nominated tasks, which start once
        terminating pods have ended. Tasks on nodes without a valid allocation are omitted.
        """
        found: dict[str, tuple[GpuShare, ...]] = {}
        limit = SearchLimit(MOST_STATES)
        for name, placed in world.placed_on.items():
            node = world.snapshot.node_by_name[name]
            sharing = [t for t in placed if self.gpu_needs(t.shape)]
            if not sharing:
                continue
            uses = (use for task in node.residents for use in task.shared_gpus)
            positions = {(use.key, use.instance) for use in uses if use.instance}
            used = self.resident_use(node)
            reserved = self._reserve_devices(node, world.after, limit)
            kept = list(used)
            for taken in reserved:
                _add_use(kept, taken)
            allocated = self._allocate_tasks(node, kept, sharing, limit)
            if allocated is None:
                # The verifier has found this allocation within its limit.
                allocated = self._allocate_tasks(node, used, sharing, SearchLimit(MOST_STATES))
            if allocated is None:
                continue
            for task in sharing:
                needs = self.gpu_needs(task.shape)
                found[task.key] = tuple(
                    # Containers are numbered among those that request the same device family.
                    _build_share(
                        node.shared_gpus[taken.at],
                        taken,
                        sum(need.family == needs[i].family for need in needs[:i]),
                        positions,
                    )
                    for i, taken in allocated[task.key]
                )
        return found

    def _reserve_devices(self, node: Node, after: World, limit: SearchLimit) -> list[Allocation]:
        """Return the device shares of a node's nominated tasks once terminating pods have ended.

        `after` is the world in which victims are terminating. The result is empty if the devices do
        not suffice for all nominated tasks.
        """
        nominated = after.nominated_tasks.get(node.name, ())
        sharing = [t for t in nominated if self.gpu_needs(t.shape)]
        if not sharing:
            return []
        residents = after.snapshot.node_by_name[node.name].residents
        staying = tuple(t for t in residents if t.status is not TaskStatus.RELEASING)
        later = self.resident_use(replace(node, residents=staying), node)
        allocated = self._allocate_tasks(node, later, sharing, limit) or {}
        return [taken for pairs in allocated.values() for _, taken in pairs]

    def _allocate_tasks(
        self,
        node: Node,
        used: Sequence[Usage],
        sharing: Sequence[Task],
        limit: SearchLimit,
    ) -> dict[str, list[tuple[int, Allocation]]] | None:
        """Return (request index, share) pairs by task key, or None if no allocation fits all tasks.

        If all tasks fit when devices are allocated in Volcano's order, the result is this
        allocation; otherwise a search tries all allocations within `limit`.
        """
        after, in_order = list(used), dict[str, list[tuple[int, Allocation]]]()
        for task in sharing:
            needs = self.gpu_needs(task.shape)
            devices = assign(node.shared_gpus, after, needs, task.shape, self.prefers)
            if devices is None:
                break
            for taken in devices:
                _add_use(after, taken)
            places = [i for i, need in enumerate(needs) for _ in range(need.number)]
            in_order[task.key] = list(zip(places, devices, strict=True))
        else:
            return in_order
        requests = [
            TaskRequest(need, tuple(usable(c, need, t.shape) for c in node.shared_gpus), t.key, i)
            for t in sharing
            for i, need in enumerate(self.gpu_needs(t.shape))
        ]
        # Larger requests come first. The NPU requests of a task are adjacent, because a task must
        # not get the same NPU twice.
        requests.sort(
            key=lambda w: (
                w.need.family,
                w.task if w.need.is_npu else "",
                (not w.need.is_alone, -w.need.memory, -w.need.percent, -w.need.cores),
            )
        )
        search = _DeviceSearch(node.shared_gpus, requests, limit)
        chosen = search.allocate(0, tuple(used), frozenset())
        if chosen is None:
            return None
        by_task: dict[str, list[tuple[int, Allocation]]] = {t.key: [] for t in sharing}
        for each, allocated in zip(requests, chosen, strict=True):
            by_task[each.task] += ((each.place, taken) for taken in allocated)
        return by_task

    def resident_use(self, node: Node, before: Node | None = None) -> list[Usage]:
        """Return how much the residents of a node use of each of its devices.

        `before` is the node before some of its tasks ended. Unknown shares are derived from
        `before`, because they do not change when another task ends.
        """
        known = self.holdings(before or node)
        staying = {task.key for task in node.residents}
        return _sum_holdings(node, {key: known[key] for key in known if key in staying})

    def holdings(self, node: Node) -> dict[str, list[Allocation]]:
        """Return the device shares of each resident of a node by task key.

        Residents with unknown shares get shares such that all residents fit. If the search fails,
        residents with unknown shares get shares one by one in Volcano's order; a resident that does
        not fit gets no share.
        """
        used = [Usage() for _ in node.shared_gpus]
        place = {(device.npu, device.key): i for i, device in enumerate(node.shared_gpus)}
        found: dict[str, list[Allocation]] = {}
        for task in node.residents:
            alone = any(need.is_alone for need in self.gpu_needs(task.shape))
            for use in (u for u in task.shared_gpus if (u.npu, u.key) in place):
                at = place[use.npu, use.key]
                device = node.shared_gpus[at]
                # A task that requests whole devices uses all memory of each device.
                memory = use.memory or (device.memory if alone else 0)
                kind = _find_slice(device, use.instance)
                # A slice of an unknown geometry uses the whole device.
                is_owner = (alone and not use.npu) or (device.mode == MIG and kind is None)
                groups = _groups_of(task.shape) if device.is_vgpu and self.by_vgpu else ()
                taken = Allocation(
                    at, memory, use.cores, is_owner, kind, _groups_on(device, groups)
                )
                found.setdefault(task.key, []).append(taken)
                _add_use(used, found[task.key][-1])
        unknown = [
            task for task in node.residents if task.key not in found and self.gpu_needs(task.shape)
        ]
        assumed = self._allocate_tasks(node, used, unknown, SearchLimit(MAX_FAILURES))
        if assumed is not None:
            return found | {key: [taken for _, taken in each] for key, each in assumed.items()}
        for task in unknown:
            needs = self.gpu_needs(task.shape)
            found[task.key] = assign(node.shared_gpus, used, needs, task.shape, self.prefers) or []
            for taken in found[task.key]:
                _add_use(used, taken)
        return found

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """See `Rule`."""
        return bool(self.gpu_needs(problem.classes.shapes[task_class]))

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """Allow the nodes on which a task fits if all devices are idle."""
        shape = problem.classes.shapes[task_class]
        needs = self.gpu_needs(shape)
        if not needs:
            return None
        nodes = problem.snapshot.nodes
        found = (assign(n.shared_gpus, [Usage()] * len(n.shared_gpus), needs, shape) for n in nodes)
        return np.array([taken is not None for taken in found], np.bool_)

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`."""
        shape = problem.classes.shapes[task_class]
        needs = self.gpu_needs(shape)
        way = dict(shape.notes).get(NPU_MODE, BY_TEMPLATE)
        is_other = way != BY_TEMPLATE and any(need.is_npu for need in needs)
        other = f" ({NPU_MODE}: {way} is not shared by optsched)" if is_other else ""
        return f"had {' and '.join(map(_describe_need, needs))} free{other}"

    def relevant_tasks(self, problem: Problem, task_class: int) -> I64 | None:
        """Return a number per running task (V,), equal for tasks with equal device shares."""
        if not self.gpu_needs(problem.classes.shapes[task_class]):
            return None
        running = running_tasks(problem)
        pairs = zip(running.tasks, running.node_of.tolist(), strict=True)
        held = problem.derived(self.known_holdings)
        return number_keys(tuple(held[n].get(task.key, ())) for task, n in pairs)

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Add constraints that allocate devices within their memory, core and task limits."""
        problem, supplied = nodes.problem, nodes.supplied
        needs = [self.gpu_needs(shape) for shape in problem.classes.shapes]
        if not any(needs):
            return
        victims = nodes.victims_by_node()
        for n, node in enumerate(problem.snapshot.nodes):
            placeable = [c for c in range(len(needs)) if needs[c] and supplied[c, n] >= 0]
            if not placeable:
                continue
            parts = problem.derived(self.known_holdings)[n]
            leaving = [
                (leave, number, parts.get(task.key, []))
                for leave, number, task in victims.get(n, ())
            ]
            devices = _DeviceRows(nodes, node, _sum_holdings(node, parts), leaving)
            devices.add(placeable, needs, supplied[:, n])

    def known_holdings(self, problem: Problem) -> list[dict[str, list[Allocation]]]:
        """Return, for each node (N,), the device shares of its residents by task key."""
        return [self.holdings(n) if n.shared_gpus else {} for n in problem.snapshot.nodes]

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        if not any(self.gpu_needs(shape) for shape in problem.classes.shapes):
            return None
        return (
            _ScoredDeviceUsage(self, problem)
            if self.prefers and self.weight
            else _DeviceUsage(self, problem)
        )

    def points(
        self, devices: Sequence[SharedGpu], used: Sequence[Usage], taken: Iterable[Allocation]
    ) -> float:
        """Return the node score for a task that uses the shares `taken` (Volcano: `GPUScore`)."""
        after, total = list(used), 0.0
        taken = tuple(taken)
        wired = Counter(devices[each.at].network for each in taken if is_wired(devices[each.at]))
        if wired and wired.total() == len(taken):
            total += WIRED_TOP * max(wired.values()) / wired.total()
        for each in taken:
            _add_use(after, each)
            if self.prefers is Prefers.BINPACK:
                total += TOP * after[each.at].memory / max(devices[each.at].memory, 1)
            elif after[each.at].number == 1:
                total += TOP
        return total * self.weight


def _groups_of(shape: TaskShape) -> tuple[str, ...]:
    """Return the exclusion groups of a task, from its PodGroup policy and its annotation."""
    notes = dict(shape.notes)
    own = (notes[VGPU_PODGROUP_POLICY],) if VGPU_PODGROUP_POLICY in notes else ()
    return (*own, *notes.get(EXCLUSIVE, "").split())


def _groups_on(device: SharedGpu, groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the exclusion groups that apply to a device; MIG devices ignore label-based groups."""
    if device.mode != MIG:
        return groups
    return tuple(group for group in groups if not group.startswith(_BY_LABELS))


def _sum_holdings(node: Node, holdings: Mapping[str, Sequence[Allocation]]) -> list[Usage]:
    used = [Usage() for _ in node.shared_gpus]
    for parts in holdings.values():
        for taken in parts:
            _add_use(used, taken)
    return [u._replace(cores_before=u.cores) for u in used]


def _describe_need(need: Need) -> str:
    """Return a description of missing devices, such as `no vGPU with 3000 memory`."""
    kind = "vGPU" if need.is_vgpu else need.family or "shared GPU"
    few = f"fewer than {count_noun(need.number, kind)}" if need.number > 1 else f"no {kind}"
    if need.is_alone and not need.family:
        return f"{few} that no task uses"
    memory = f"{need.memory} memory" if need.memory else f"{need.percent}% memory"
    if need.is_npu and need.number > 1 and need.memory:
        return f"{few} with {memory} (several NPUs can only be allocated whole)"
    cores = f" and {need.cores}% cores" if need.cores else ""
    by_labels = [group.startswith(_BY_LABELS) for group in need.groups]
    pod_group = "" if all(by_labels) else " and no pod of its PodGroup"
    labels = " and no pod that its labels exclude" if any(by_labels) else ""
    return f"{few} with {memory}{cores}{pod_group}{labels}"


# --- devices -------------------------------------------------------------------------------------


def usable(device: SharedGpu, need: Need, shape: TaskShape) -> bool:
    """Return whether a device is eligible for a request, regardless of its usage."""
    if device.family != need.family or not device.is_healthy:
        return False
    notes = dict(shape.notes)
    if need.is_npu:
        if notes.get(NPU_MODE, BY_TEMPLATE) != BY_TEMPLATE or device.chip is None:
            return False
        template = device.chip.cut(need.memory or device.memory * need.percent // 100)
        # A request for several NPUs gets only whole NPUs.
        return template is not None and (need.number == 1 or not template.name)
    if not need.is_vgpu:
        return True
    if notes.get(VGPU_MODE, device.mode) != device.mode:
        return False
    uuids = {key: [u.strip() for u in notes.get(key, "").split(",")] for key in _UUIDS}
    is_selected = VGPU_USE_UUID not in notes or device.key in uuids[VGPU_USE_UUID]
    if not is_selected or device.key in uuids[VGPU_AVOID_UUID]:
        return False
    models = notes.get(GPU_USE_TYPE, notes.get(GPU_AVOID_TYPE))
    if models is None:
        return True
    is_named = any(model.upper() in device.model.upper() for model in models.split(","))
    return is_named == (GPU_USE_TYPE in notes)


def is_wired(device: SharedGpu) -> bool:
    """Return whether an NPU shares a network with other NPUs of its node."""
    return device.network is not None and device.npu.startswith(WIRED)


def admits(device: SharedGpu, used: Usage, need: Need) -> bool:
    """Return whether a device has enough idle memory, cores and slices for a request.

    A vGPU request without cores fits only on a device that had idle cores before the session.
    """
    if used.number >= device.sharers or used.owners or (need.is_alone and used.number):
        return False
    if need.groups and not set(_groups_on(device, need.groups)).isdisjoint(used.groups):
        return False
    if not need.cores and need.is_vgpu and used.cores_before >= ALL_CORES:
        return False
    if used.cores + need.cores > ALL_CORES:
        return False
    if device.mode == MIG:
        return bool(slices(device, used, need))
    return used.memory + need.memory_of(device) <= device.memory


def slices(device: SharedGpu, used: Usage, need: Need) -> list[Slice]:
    """Return the types of idle slices that satisfy a request, the smallest of each geometry first.

    If a geometry is in use, only slice types of this geometry are returned. A device that is
    changing its geometry has two geometries in use and offers no slice.
    """
    taken = dict(used.slices)
    in_use = {geometry for geometry, _ in taken}
    if len(in_use) > 1:
        return []
    found = [
        (g, instance.memory, kind)
        for g, geometry in enumerate(device.geometries)
        if g in in_use or not in_use
        for kind, instance in enumerate(geometry.instances)
        if instance.memory >= need.memory_of(device) and taken.get((g, kind), 0) < instance.number
    ]
    return [(g, kind) for g, _, kind in sorted(found)]


def allocations(device: SharedGpu, at: int, used: Usage, need: Need) -> list[Allocation]:
    """Return the shares that a request can get on a device, in Volcano's order."""
    if device.mode != MIG:
        return [
            Allocation(at, need.memory_of(device), need.cores, need.is_alone, None, need.groups)
        ]
    groups = _groups_on(device, need.groups)
    memory_of = [[i.memory for i in geometry.instances] for geometry in device.geometries]
    return [
        Allocation(at, memory_of[g][kind], need.cores, need.is_alone, (g, kind), groups)
        for g, kind in slices(device, used, need)
    ]


def _find_slice(device: SharedGpu, instance: str) -> Slice | None:
    """Return the slice type of `instance` (geometry-position), or None if none matches."""
    name, _, position = instance.rpartition("-")
    for g, geometry in enumerate(device.geometries):
        place = geometry.locate_slice(position) if geometry.name == name else None
        if place is not None:
            return g, place[0]
    return None


def _build_share(
    device: SharedGpu, taken: Allocation, container: int, positions: set[tuple[str, str]]
) -> GpuShare:
    """Return a device share in the form that the annotation of the pod uses.

    A share of a MIG device gets the first position of its slice type that is not in `positions`;
    the function adds the (device, position) pair to `positions`.
    """
    instance = ""
    template = device.chip.cut(taken.memory) if device.chip is not None else None
    if template is not None:
        instance = template.name
    elif taken.slice is not None:
        g, kind = taken.slice
        geometry = device.geometries[g]
        names = (
            f"{geometry.name}-{geometry.position(kind, number)}"
            for number in range(geometry.instances[kind].number)
        )
        instance = next((name for name in names if (device.key, name) not in positions), "")
        positions.add((device.key, instance))
    return GpuShare(device.key, taken.memory, taken.cores, container, instance, device.npu)


def assign(
    devices: Sequence[SharedGpu],
    used: Sequence[Usage],
    needs: Iterable[Need],
    shape: TaskShape,
    prefers: Prefers = Prefers.NONE,
) -> list[Allocation] | None:
    """Return a task's device shares in Volcano's order, or None if the task does not fit.

    vGPUs are allocated from the last device to the first, and GPUs shared by memory from the first
    device to the last. NPUs are allocated in the order that `prefers` selects, preferably within
    one network. A task gets each NPU at most once.
    """
    after = list(used)
    found: list[Allocation] = []
    for need in needs:
        own = {t.at for t in found} if need.is_npu else set()
        open_devices = [
            at
            for at in range(len(devices))[:: -1 if need.is_vgpu else 1]
            if at not in own and usable(devices[at], need, shape)
            if admits(devices[at], after[at], need)
        ]
        if len(open_devices) < need.number:
            return None
        if need.is_npu:
            # The order in which NPUs are allocated (Volcano: `selectDevices`).
            if prefers is Prefers.BINPACK:
                open_devices.sort(key=lambda at: -after[at].memory / max(devices[at].memory, 1))
            elif prefers is Prefers.SPREAD:
                open_devices.sort(key=lambda at: after[at].number > 0)
            if all(is_wired(devices[at]) for at in open_devices):
                number = Counter(devices[at].network for at in open_devices)
                networks = {at: devices[at].network for at in open_devices}
                open_devices.sort(key=lambda at: (-number[networks[at]], networks[at] or 0))
        for at in open_devices[: need.number]:
            found.append(allocations(devices[at], at, after[at], need)[0])
            _add_use(after, found[-1])
    return found


def _add_use(used: list[Usage], taken: Allocation, sign: int = 1) -> None:
    """Add a share to the usage of its device; subtract it if `sign` is -1."""
    now = used[taken.at]
    slices_now = dict(now.slices)
    if taken.slice is not None:
        slices_now[taken.slice] = slices_now.get(taken.slice, 0) + sign
    groups = sorted([*now.groups, *taken.groups]) if sign > 0 else list(now.groups)
    for group in taken.groups if sign < 0 else ():
        groups.remove(group)
    used[taken.at] = Usage(
        now.memory + sign * taken.memory,
        now.cores + sign * taken.cores,
        now.number + sign,
        now.owners + sign * taken.is_alone,
        now.cores_before,
        tuple(sorted((s, n) for s, n in slices_now.items() if n)),
        tuple(groups),
    )


class TaskRequest(NamedTuple):
    """A device request, its eligible devices, and its index among the requests of its task."""

    need: Need
    may: tuple[bool, ...]
    task: str
    place: int


@dataclass(slots=True)
class SearchLimit:
    """The number of states without a solution that searches for devices may still visit."""

    num_states: int


class _DeviceSearch:
    """Searches for devices for all requests of one node.

    Devices with equal properties and equal usage are interchangeable, so the search tries one of
    them.
    """

    def __init__(
        self, devices: Sequence[SharedGpu], requests: Sequence[TaskRequest], limit: SearchLimit
    ) -> None:
        self._devices = devices
        self._requests = requests
        self._limit = limit
        self._dead: set[tuple[object, ...]] = set()
        self._fewest = _find_sizes(devices, requests)
        number: dict[object, int] = {}
        self._kind_of = [
            number.setdefault((replace(device, key=""), tuple(r.may[i] for r in requests)), i)
            for i, device in enumerate(devices)
        ]

    def allocate(
        self, first: int, used: tuple[Usage, ...], mine: frozenset[int]
    ) -> list[list[Allocation]] | None:
        """Return the device shares of each request from index `first` on, or None without any.

        `mine` contains the NPUs already allocated to the current task.
        """
        if first == len(self._requests):
            return []
        need, may, task, _ = self._requests[first]
        if not need.is_npu or not first or self._requests[first - 1].task != task:
            mine = frozenset()
        places = [(self._kind_of[i], used[i], i in mine) for i in range(len(used))]
        state = (first, *sorted(places))
        if state in self._dead or self._limit.num_states <= 0:
            return None
        tried: set[tuple[object, ...]] = set()
        if self._fewest[first].fit(self._devices, used):
            open_devices = [
                i
                for i, device in enumerate(self._devices)
                if may[i] and i not in mine and admits(device, used[i], need)
            ]
            for chosen in combinations(open_devices, need.number):
                same = tuple(places[i] for i in chosen)
                if same in tried:
                    continue
                tried.add(same)
                shares = (allocations(self._devices[i], i, used[i], need) for i in chosen)
                for taken in product(*shares):
                    after = list(used)
                    for each in taken:
                        _add_use(after, each)
                    own = mine.union(each.at for each in taken)
                    rest = self.allocate(first + 1, tuple(after), own)
                    if rest is not None:
                        return [list(taken), *rest]
        self._dead.add(state)
        self._limit.num_states -= 1
        return None


class _Sizes(NamedTuple):
    """Lower bounds on the memory and cores that requests take: their sums and their minimums."""

    memory: int
    cores: int
    least_memory: int
    least_cores: int

    def fit(self, devices: Sequence[SharedGpu], used: Sequence[Usage]) -> bool:
        """Return False if the idle memory or cores of the devices do not suffice for the requests.

        Devices whose idle memory or cores are too small for each of the requests do not count.
        """
        pairs = [(d, u) for d, u in zip(devices, used, strict=True) if not u.owners]
        memory = [d.memory - u.memory for d, u in pairs]
        cores = [ALL_CORES - u.cores for _, u in pairs]
        return self.memory <= sum(n for n in memory if n >= self.least_memory) and (
            self.cores <= sum(n for n in cores if n >= self.least_cores)
        )


def _find_sizes(devices: Sequence[SharedGpu], requests: Sequence[TaskRequest]) -> list[_Sizes]:
    """Return the sizes of the requests from each index on; all are 0 if there are MIG devices."""
    if any(device.mode == MIG for device in devices):
        return [_Sizes(0, 0, 0, 0)] * len(requests)
    found: list[_Sizes] = []
    memory = cores = 0
    least_memory = least_cores = maxsize
    for need, may, _, _ in reversed(requests):
        usable_devices = compress(devices, may)
        each = min((need.memory_of(device) for device in usable_devices), default=0)
        memory += each * need.number
        cores += need.cores * need.number
        least_memory, least_cores = min(least_memory, each), min(least_cores, need.cores)
        found.append(_Sizes(memory, cores, least_memory, least_cores))
    return found[::-1]


# --- constraints ----------------------------------------------------------------------------------


class _DeviceRows:
    """Builds the constraints on the devices of one node.

    See models/formulation/deviceshare.md and models/formulation/victims.md.
    """

    def __init__(
        self,
        nodes: NodeModel,
        node: Node,
        used: list[Usage],
        leaving: Sequence[tuple[int, int, Sequence[Allocation]]],
    ) -> None:
        self._model = nodes.model
        self._shapes = nodes.problem.classes.shapes
        self._pending = int(nodes.problem.classes.num_pending.sum())
        self._devices, self._used = node.shared_gpus, used
        # By device: variables that count evicted tasks, and the share that each task releases.
        self._departures: list[list[tuple[int, Allocation]]] = [[] for _ in node.shared_gpus]
        left = list(used)
        for variable, number, parts in leaving:
            for taken in parts:
                self._departures[taken.at].append((variable, taken))
                for _ in range(number):
                    _add_use(left, taken, -1)
        # `_left` is the device usage that remains after the eviction of all possible victims.
        self._left = [u._replace(cores_before=u.cores) for u in left]
        self._alone = self._model.add_variables(0, np.ones(len(node.shared_gpus), np.int64))
        self._memory: list[list[tuple[int, int]]] = [[] for _ in node.shared_gpus]
        self._cores: list[list[tuple[int, int]]] = [[] for _ in node.shared_gpus]
        self._sharing: list[list[int]] = [[] for _ in node.shared_gpus]
        self._owning: list[list[int]] = [[] for _ in node.shared_gpus]
        self._coreless: list[list[int]] = [[] for _ in node.shared_gpus]
        self._cut: dict[int, dict[Slice, list[int]]] = {}
        self._exclusive: dict[tuple[int, str], list[int]] = {}

    def add(self, classes: Sequence[int], needs: Sequence[tuple[Need, ...]], supplied: I64) -> None:
        """Add constraints that allocate devices to placed tasks and limit the usage of devices."""
        for c in classes:
            npus: dict[int, list[int]] = {}
            for need in needs[c]:
                allocated = self._add_need(need, self._shapes[c], int(supplied[c]))
                for at, variable in allocated if need.is_npu else ():
                    npus.setdefault(at, []).append(variable)
            for variables in (v for v in npus.values() if len(v) > 1):
                # A task must not get the same NPU twice, not even in different containers.
                ones = [*[1] * len(variables), -1]
                self._model.add_row([*variables, int(supplied[c])], ones, upper=0)
        for at in range(len(self._devices)):
            self._bound_slices(at)
            self._bound_usage(at)
        for (at, group), variables in self._exclusive.items():
            # At most one task of an exclusion group uses a device at any time.
            self._model.add_row(variables, [1] * len(variables), upper=1)
            held = self._used[at].groups.count(group)
            if held:
                goes = [v for v, taken in self._departures[at] if group in taken.groups]
                factors = [*[held] * len(variables), *[-1] * len(goes)]
                self._model.add_row([*variables, *goes], factors, upper=0)

    def _add_need(self, need: Need, shape: TaskShape, tasks: int) -> list[tuple[int, int]]:
        """Return (device, v) pairs; the new variable v counts the tasks that use the device.

        The constraints are Σ_device v = number · tasks and v ≤ tasks, where `number` is the number
        of devices that a task requests.
        """
        model = self._model
        open_devices = [
            i
            for i, device in enumerate(self._devices)
            if usable(device, need, shape) and admits(device, self._left[i], need)
        ]
        most: list[int] = []
        for device, used in ((self._devices[i], self._left[i]) for i in open_devices):
            most.append(min(device.sharers - used.number, self._pending))
            memory = 0 if device.mode == MIG else need.memory_of(device)
            if memory:
                most[-1] = min(most[-1], (device.memory - used.memory) // memory)
        allocated = model.add_variables(0, np.array(most, np.int64)).tolist()
        model.add_row([*allocated, tasks], [*[1] * len(allocated), -need.number], lower=0, upper=0)
        found = list(zip(open_devices, allocated, strict=True))
        for at, variable in found:
            model.add_row([variable, tasks], [1, -1], upper=0)
            device = self._devices[at]
            if device.mode == MIG:
                # Every task on a MIG device gets one slice, so the numbers of tasks on all slice
                # types sum to `variable`.
                kinds = slices(device, self._left[at], need)
                counts = [device.geometries[g].instances[kind].number for g, kind in kinds]
                chosen = model.add_variables(0, np.array(counts, np.int64)).tolist()
                model.add_row([*chosen, variable], [*[1] * len(chosen), -1], lower=0, upper=0)
                by_slice = self._cut.setdefault(at, {})
                for slice_type, each in zip(kinds, chosen, strict=True):
                    by_slice.setdefault(slice_type, []).append(each)
            else:
                self._memory[at].append((variable, need.memory_of(device)))
            self._cores[at].append((variable, need.cores))
            for group in _groups_on(device, need.groups):
                self._exclusive.setdefault((at, group), []).append(variable)
            (self._owning if need.is_alone else self._sharing)[at].append(variable)
            if need.is_vgpu and not need.cores:
                self._coreless[at].append(variable)
        return found

    def _bound_slices(self, at: int) -> None:
        """Add constraints that the device with index `at` uses at most one MIG geometry.

        Per slice type, Σ w + held − evicted ≤ count · q, and over all geometries, Σ q ≤ 1. The
        variables w count the placed tasks on slices of the type, `held` is the number of used
        slices, and `evicted` the number of slices that victims release. `count` is the number of
        slices of the type in the geometry, or `held` if that is larger. q is 1 if the geometry is
        in use.

        A device with two geometries in use gets no task until only one of them is in use.
        """
        model, device, by_slice = self._model, self._devices[at], self._cut.get(at, {})
        if not by_slice:
            return
        taken = dict(self._used[at].slices)
        in_use: dict[int, int] = {}
        for g, kind in sorted({*by_slice, *taken}):
            if g not in in_use:
                (in_use[g],) = model.add_variables(0, 1).tolist()
            comes = by_slice.get((g, kind), [])
            goes = [v for v, released in self._departures[at] if released.slice == (g, kind)]
            held = taken.get((g, kind), 0)
            count = max(device.geometries[g].instances[kind].number, held)
            factors = [*[1] * len(comes), *[-1] * len(goes), -count]
            model.add_row([*comes, *goes, in_use[g]], factors, upper=-held)
        mixed = len({g for g, _ in taken}) - 1
        if mixed < 1:
            model.add_row(list(in_use.values()), [1] * len(in_use), upper=1)
            return
        comes = [w for variables in by_slice.values() for w in variables]
        anything = model.add_indicator(comes, self._pending)
        factors = [*[1] * len(in_use), mixed]
        model.add_row([*in_use.values(), anything], factors, upper=1 + mixed)

    def _bound_usage(self, at: int) -> None:
        """Add constraints on the memory, cores and tasks of a device after the evictions.

        An exclusive task shares its devices with no other task.
        """
        model, device, used = self._model, self._devices[at], self._used[at]
        departures = self._departures[at]
        memory = [(v, t.memory) for v, t in departures]
        model.add_limit(self._memory[at], memory, device.memory - used.memory, self._pending)
        cores = [(v, t.cores) for v, t in departures]
        model.add_limit(self._cores[at], cores, ALL_CORES - used.cores, self._pending)
        sharing, owning = self._sharing[at], self._owning[at]
        if departures:
            comes, goes = [*sharing, *owning], [(v, 1) for v, _ in departures]
            left = device.sharers - used.number
            model.add_limit([(v, 1) for v in comes], goes, left, self._pending)
            if used.owners and comes:
                # No task starts on a device before the device's exclusive tasks are evicted.
                owners = [v for v, t in departures if t.is_alone]
                anything = model.add_indicator(comes, self._pending)
                model.add_row([*owners, anything], [*[-1] * len(owners), used.owners], upper=0)
            over = used.cores_before - ALL_CORES + 1
            if over > 0 and self._coreless[at]:
                # A task without requested cores waits while all cores of the device are in use.
                anything = model.add_indicator(self._coreless[at], self._pending)
                variables = [*(v for v, _ in departures), anything]
                model.add_row(variables, [*(-t.cores for _, t in departures), over], upper=0)
        owner = int(self._alone[at])
        if owning:
            model.add_row([*owning, owner], [*[1] * len(owning), -1], upper=0)
            if departures:
                factors = [*[-1] * len(departures), used.number]
                model.add_row([*(v for v, _ in departures), owner], factors, upper=0)
        if sharing and (owning or not departures):
            most = min(device.sharers - self._left[at].number, self._pending)
            model.add_row([*sharing, owner], [*[1] * len(sharing), most], upper=most)


# --- greedy --------------------------------------------------------------------------------------


class _DeviceUsage(Greedy):
    """Tracks device usage while tasks are placed; devices are allocated in Volcano's order.

    `_used` is the current usage, and `_later` is the usage after terminating pods have ended. A
    nominated task that does not fit yet gets devices that are idle in `_later`, and its shares are
    added to `_used` and `_later`.
    """

    def __init__(self, rule: DeviceShare, problem: Problem) -> None:
        self._rule = rule
        self._problem = problem
        self._shapes = problem.classes.shapes
        self._needs = [rule.gpu_needs(shape) for shape in self._shapes]
        nodes = problem.snapshot.nodes
        self._devices = [node.shared_gpus for node in nodes]
        self._used = [
            _sum_holdings(node, held)
            for node, held in zip(nodes, problem.derived(rule.known_holdings), strict=True)
        ]
        self._later = [list(used) for used in self._used]
        self._allocated: dict[tuple[int, int], list[list[Allocation]]] = {}
        self._log: list[int] = []
        self._views: dict[tuple[int, bool], tuple[Bool, F64, int]] = {}
        for n, node in enumerate(nodes):
            leaving = [t for t in node.residents if t.status is TaskStatus.RELEASING]
            for task in leaving if node.shared_gpus else ():
                self._add_future_idle(n, task.key, 1)

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        return self._view(task_class, later=later)[0] if self._needs[task_class] else None

    def record_eviction(self, victim: int, sign: int) -> None:
        running = running_tasks(self._problem)
        node = int(running.node_of[victim])
        if self._devices[node]:
            self._log.append(node)
            self._add_future_idle(node, running.tasks[victim].key, sign)

    def _add_future_idle(self, node: int, task: str, sign: int) -> None:
        """Remove a terminating task's shares from `_later`, or add them again (`sign` -1)."""
        for taken in self._problem.derived(self._rule.known_holdings)[node].get(task, ()):
            _add_use(self._later[node], taken, -sign)
            now = self._later[node][taken.at]
            before = now.cores_before - sign * taken.cores
            self._later[node][taken.at] = now._replace(cores_before=before)

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        needs, shape = self._needs[task_class], self._shapes[task_class]
        if not needs:
            return
        prefers = self._rule.prefers
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            self._log.append(node)
            devices, used, later = self._devices[node], self._used[node], self._later[node]
            allocated = self._allocated.setdefault((node, task_class), [])
            for _ in range(count):
                found = assign(devices, used, needs, shape, prefers)
                found = found or assign(devices, later, needs, shape, prefers) or []
                allocated.append(found)
                for taken in found:
                    _add_use(used, taken)
                    _add_use(later, taken)
            for _ in range(-count):
                for taken in allocated.pop():
                    _add_use(used, taken, -1)
                    _add_use(later, taken, -1)

    def _view(self, task_class: int, *, later: bool = False) -> tuple[Bool, F64]:
        key = (task_class, later)
        if key not in self._views:
            number = self._problem.num_nodes
            self._views[key] = np.zeros(number, np.bool_), np.zeros(number), 0
            touched: Iterable[int] = range(number)
        else:
            touched = set(self._log[self._views[key][2] :])
        fits, points, _ = self._views[key]
        for node in touched:
            devices, used = self._devices[node], (self._later if later else self._used)[node]
            needs, shape = self._needs[task_class], self._shapes[task_class]
            found = assign(devices, used, needs, shape, self._rule.prefers)
            fits[node] = found is not None
            points[node] = self._rule.points(devices, used, found or ())
        self._views[key] = fits, points, len(self._log)
        return fits.copy(), points.copy()


class _ScoredDeviceUsage(_DeviceUsage):
    """Tracks device usage, and scores nodes by the devices that a task would get."""

    def live_scorer(self, gang: int, entry: int) -> LiveScorer | None:
        task_class = int(self._problem.task_class[first_task(self._problem, gang, entry)])
        if not self._needs[task_class]:
            return None
        return lambda nodes: self._view(task_class)[1]


_SHARE = "deviceshare."

_EXCLUSIVE = f"{_SHARE}GPUExclusiveRules"


def _deviceshare(arguments: Mapping[str, Value]) -> tuple[Rule, ...]:
    exclusive: dict[int, dict[str, str]] = {}
    for name, value in arguments.items():
        if name.startswith(f"{_EXCLUSIVE}."):
            number, _, label = name.removeprefix(f"{_EXCLUSIVE}.").partition(".")
            exclusive.setdefault(int(number), {})[label] = str(value)
    return (
        DeviceShare(
            by_memory=bool(arguments.get(f"{_SHARE}GPUSharingEnable", False)),
            by_number=bool(arguments.get(f"{_SHARE}GPUNumberEnable", False)),
            by_vgpu=bool(arguments.get(f"{_SHARE}VGPUEnable", False)),
            by_npu=bool(arguments.get(f"{_SHARE}AscendHAMiVNPUEnable", False)),
            prefers=Prefers(str(arguments.get(f"{_SHARE}SchedulePolicy", Prefers.NONE))),
            weight=read_whole(arguments, f"{_SHARE}ScheduleWeight", 0),
            geometries_in=(
                str(arguments.get(f"{_SHARE}KnownGeometriesCMNamespace", "kube-system")),
                str(arguments.get(f"{_SHARE}KnownGeometriesCMName", "volcano-vgpu-device-config")),
            ),
            locks_nodes=bool(arguments.get(f"{_SHARE}NodeLockEnable", False)),
            exclusive=tuple(tuple(sorted(exclusive[i].items())) for i in sorted(exclusive)),
        ),
    )


PLUGIN = Plugin(
    "deviceshare",
    "shares GPUs and NPUs by memory and cores",
    (
        Argument(
            f"{_SHARE}GPUSharingEnable", Kind.SWITCH, False, "allocates volcano.sh/gpu-memory"
        ),
        Argument(f"{_SHARE}GPUNumberEnable", Kind.SWITCH, False, "allocates volcano.sh/gpu-number"),
        Argument(f"{_SHARE}VGPUEnable", Kind.SWITCH, False, "allocates volcano.sh/vgpu-*"),
        Argument(
            f"{_SHARE}SchedulePolicy",
            Kind.CHOICE,
            Prefers.NONE,
            "whether nodes with GPUs in use or with idle GPUs score higher",
            choices=(Prefers.BINPACK, Prefers.SPREAD),
        ),
        Argument(f"{_SHARE}ScheduleWeight", Kind.WHOLE, 0, "weight of the node score"),
        Argument(
            f"{_SHARE}NodeLockEnable",
            Kind.SWITCH,
            False,
            "binds pods with vGPUs to a node one at a time",
        ),
        Argument(
            f"{_SHARE}AscendMindClusterVNPUEnable",
            Kind.SWITCH,
            False,
            "not supported: nodes do not report MindCluster vNPUs",
        ),
        Argument(
            f"{_SHARE}AscendHAMiVNPUEnable",
            Kind.SWITCH,
            False,
            "allocates huawei.com/Ascend* and NPU memory according to templates",
        ),
        Argument(
            f"{_SHARE}KnownGeometriesCMName",
            Kind.TEXT,
            "volcano-vgpu-device-config",
            "the ConfigMap with the MIG geometries of GPUs and the templates of NPUs",
        ),
        Argument(
            f"{_SHARE}KnownGeometriesCMNamespace",
            Kind.TEXT,
            "kube-system",
            "namespace of the ConfigMap",
        ),
        Argument(
            _EXCLUSIVE,
            Kind.LIST,
            "",
            "label sets: pods that have all labels of the same set never share a vGPU",
            fields=(Argument("*", Kind.TEXT, "", "required value of the label"),),
        ),
    ),
    _deviceshare,
)
