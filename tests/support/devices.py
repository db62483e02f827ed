"""Check the allocation of single devices in plans, without code of the rules and engines.

A plan names the shared GPUs, slices, NPUs and claimed devices of its tasks. For plain GPUs and GPU
shares, a plan names only nodes. Therefore the check searches for an assignment to devices.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING

from optsched.cluster.decisions import Allocate
from optsched.cluster.snapshot import GangPhase
from optsched.cluster.task import DeviceRequest
from tests.support import small

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import numpy as np

    from optsched.cluster.node_resources import GpuShare, SharedGpu
    from optsched.cluster.snapshot import Node, Snapshot
    from optsched.cluster.task import Task, TaskShape

GPU = "nvidia.com/gpu"
MEMORY, NUMBER = "volcano.sh/gpu-memory", "volcano.sh/gpu-number"
WHOLE = 1000


def wrong_with_devices(snapshot: Snapshot, actions: Sequence[object]) -> list[str]:
    """Return the devices that a plan overcommits, and the tasks that get less
    than their request.
    """
    placed = [a for a in actions if isinstance(a, Allocate)]
    tasks = {t.key: t for gang in snapshot.gangs for t in gang.tasks}
    found: list[str] = []
    for node in snapshot.nodes:
        here = [(tasks[a.task], a) for a in placed if a.node == node.name]
        if here:
            found += _plain(node, [t for t, _ in here])
            found += _cards(node, here)
    return [*found, *_claims(snapshot, placed, tasks)]


# --- plain GPUs and GPU shares -------------------------------------------------------------------


def _plain(node: Node, come: Sequence[Task]) -> Iterator[str]:
    everybody = [*node.residents, *come]
    whole = sum(dict(t.shape.request).get(GPU, 0) for t in everybody)
    parts = [
        t.shape.device.milli
        for t in everybody
        if t.shape.device is not None and 0 < t.shape.device.milli < WHOLE
    ]
    number = dict(node.allocatable).get(GPU, 0)
    concerned = any(dict(t.shape.request).get(GPU, 0) or t.shape.device for t in come)
    if concerned and (whole > number or not _fit(sorted(parts), [WHOLE] * (number - whole))):
        yield f"{node.name}: {whole} GPUs and parts of {parts} thousandths of {number} GPUs"


def _fit(parts: list[int], free: list[int]) -> bool:
    if not parts:
        return True
    *rest, largest = parts
    return any(
        _fit(rest, [*free[:i], free[i] - largest, *free[i + 1 :]])
        for i in range(len(free))
        if free[i] >= largest and free[i] not in free[:i]
    )


# --- shared GPUs, slices and NPUs ----------------------------------------------------------------


def _cards(node: Node, here: Sequence[tuple[Task, Allocate]]) -> Iterator[str]:
    shared_gpus = {(c.npu, c.key): c for c in node.shared_gpus}
    uses: dict[tuple[str, str], list[GpuShare]] = defaultdict(list)
    alone: Counter[tuple[str, str]] = Counter()
    for task, use in _told(node, here):
        uses[use.npu, use.key].append(use)
        alone[use.npu, use.key] += _wants_it_alone(task)
    for task, action in here:
        yield from _deserved(node, task, action, shared_gpus)
    fresh = {(u.npu, u.key) for _, a in here for u in a.shared_gpus}
    for at in sorted(fresh & set(shared_gpus)):
        card, mine = shared_gpus[at], uses[at]
        where = f"{node.name}, card {card.key}"
        if sum(u.memory for u in mine) > card.memory:
            yield f"{where}: {sum(u.memory for u in mine)} of {card.memory} memory"
        if sum(u.cores for u in mine) > 100 or len(mine) > card.sharers:
            yield f"{where}: {sum(u.cores for u in mine)} % of its cores for {len(mine)}"
        if alone[at] and len(mine) > 1:
            yield f"{where}: shared, although somebody has it alone"
        yield from _slices(where, card, mine)


def _told(node: Node, here: Sequence[tuple[Task, Allocate]]) -> Iterator[tuple[Task, GpuShare]]:
    for task in node.residents:
        yield from ((task, use) for use in task.shared_gpus)
    for task, action in here:
        yield from ((task, use) for use in action.shared_gpus)


def _wants_it_alone(task: Task) -> bool:
    whole = any(r.cores >= 100 for r in task.shape.shared_gpus if not r.npu)
    return whole or dict(task.shape.request).get(NUMBER, 0) > 0


def _deserved(
    node: Node, task: Task, action: Allocate, shared_gpus: Mapping[tuple[str, str], SharedGpu]
) -> Iterator[str]:
    """Yield the tasks with devices that do not match their request.

    The devices of one container are distinct.
    """
    asked = [(r.number, r.memory, r.percent, r.cores, r.npu) for r in task.shape.shared_gpus]
    request = dict(task.shape.request)
    if request.get(MEMORY) and node.shared_gpus:
        asked.append((1, request[MEMORY], 0, 0, ""))
    if request.get(NUMBER) and node.shared_gpus:
        asked.append((request[NUMBER], 0, 100, 0, ""))
    if len(action.shared_gpus) != sum(number for number, *_ in asked):
        yield f"{task.key}: {len(action.shared_gpus)} cards for {asked}"
        return
    left = list(action.shared_gpus)
    for number, memory, percent, cores, npu in asked:
        mine, left = left[:number], left[number:]
        if len({u.key for u in mine}) != number:
            yield f"{task.key}: one card twice among {[u.key for u in mine]}"
        for use in mine:
            card = shared_gpus.get((use.npu, use.key))
            if card is None or not card.is_healthy or use.npu != npu:
                yield f"{task.key}: card {use.key} cannot be used"
                continue
            least = memory or card.memory * percent // 100
            if use.memory < least or (not npu and use.cores < cores):
                yield f"{task.key}: {use} for {memory or percent} of memory, {cores} % of cores"


def _slices(where: str, card: SharedGpu, uses: Iterable[GpuShare]) -> Iterator[str]:
    """Yield the errors of MIG slices.

    The slices of a GPU must be distinct and belong to one geometry.
    """
    cut = [u.instance for u in uses if u.instance and not u.npu]
    if not cut:
        return
    number = {g.name: sum(i.number for i in g.instances) for g in card.geometries}
    named = [each.rpartition("-") for each in cut]
    if len({name for name, _, _ in named}) > 1:
        yield f"{where}: cut in several ways, {cut}"
    if len(set(cut)) != len(cut) or any(
        int(position) >= number.get(name, 0) for name, _, position in named
    ):
        yield f"{where}: slices {cut}"


# --- devices of claims ---------------------------------------------------------------------------


def _claims(
    snapshot: Snapshot, placed: Sequence[Allocate], tasks: Mapping[str, Task]
) -> Iterator[str]:
    claims = snapshot.devices.claims
    held = {
        device
        for claim in claims.values()
        if claim.allocation is not None
        for _, device in claim.allocation.devices
    }
    grants = {(g.claim, a.node): g.devices for a in placed for g in a.devices if g.devices}
    given = Counter(device for devices in grants.values() for _, device in devices)
    for device, times in given.items():
        if times > 1 or device in held:
            yield f"{device} is given out {times + (device in held)} times"
    for (key, name), devices in grants.items():
        here = {d.id for d in snapshot.devices.on_node.get(name, ()) if not d.problem}
        if any(device not in here for _, device in devices):
            yield f"claim {key}: {devices} are not all devices of {name}"
        least = sum(1 if n.alternatives or n.is_all else n.number for n in claims[key].needs)
        if len(devices) < least:
            yield f"claim {key}: {len(devices)} devices, {least} at least"
    for action in placed:
        for key in tasks[action.task].device_claims:
            is_open = claims[key].allocation is None and bool(claims[key].needs)
            if is_open and (key, action.node) not in grants:
                yield f"{action.task}: claim {key} gets nothing"


# --- clusters ------------------------------------------------------------------------------------


def random_parts(rng: np.random.Generator) -> Snapshot:
    """Draw nodes with a few GPUs, running tasks on GPU shares and whole GPUs, and waiting gangs."""

    def some() -> TaskShape:
        if rng.random() < 0.3:
            return small.shape(1, gpu=int(rng.integers(1, 3)))
        return small.shape(1, device=DeviceRequest(1, int(rng.choice([250, 400, 500, 600, 700]))))

    nodes = [small.node(f"n{i}", 32, gpu=int(rng.integers(1, 4))) for i in range(3)]
    there = [small.gang(f"r{i}", ("w", 1, some())) for i in range(3)]
    room = {n.name: [] for n in nodes}
    runs = []
    for given in there:
        name = f"n{int(rng.integers(3))}"
        task = small.running(given.tasks[0], name)
        host = next(n for n in nodes if n.name == name)
        if not list(_plain(host, [*room[name], task])):
            room[name].append(task)
            runs.append(replace(given, tasks=(task,), phase=GangPhase.RUNNING))
    wanted = [
        small.gang(f"g{i}", ("w", int(rng.integers(1, 4)), some()), least=1) for i in range(4)
    ]
    return small.cluster(nodes, [*runs, *wanted])
