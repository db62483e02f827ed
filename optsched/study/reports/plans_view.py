"""A chart of the gangs on each GPU, in the current state and after each model's plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from optsched.cluster.amounts import amount_of
from optsched.cluster.gpu_accounting import WHOLE, GpuBook, gpu_milli
from optsched.study.reports.number_text import count_text, plain
from optsched.study.reports.occupancy_view import (
    FREE,
    MOST_CELLS,
    OTHERS,
    Grid,
    Holder,
    gang_colours,
    gang_keys,
    gang_table,
    grid_film,
    grid_note,
    shares_in,
    span_of,
    tile_changes,
)
from optsched.study.reports.page import Key
from optsched.study.reports.timeline_arrays import COLOURS, node_groups
from optsched.study.simulation.timeline import CPU_UNIT, lanes_of
from optsched.units import CPU

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from optsched.cluster.node_resources import GpuShare
    from optsched.cluster.snapshot import Snapshot
    from optsched.cluster.task import Task
    from optsched.formats.plan import PlanDocument
    from optsched.study.reports.page import Film
    from optsched.study.simulation.timeline import Lanes

BEFORE: Final = "before"


class PlacedTask(NamedTuple):
    """A task on lanes (GPUs) of a node; `is_new` is true if the plan placed the task there."""

    gang: str
    node: int
    lanes: tuple[int, ...]
    milli: int
    is_new: bool


@dataclass(frozen=True)
class PlansData:
    """A cluster snapshot and the plans of several models for it."""

    snapshot: Snapshot
    plans: Mapping[str, PlanDocument]  # The plans, keyed by model name.

    @cached_property
    def lanes(self) -> Lanes:
        """The lanes of all nodes, without pods: GPUs, or CPUs in a cluster without GPUs."""
        return lanes_of(tuple(replace(n, residents=()) for n in self.snapshot.nodes))

    @cached_property
    def frames(self) -> dict[str, list[PlacedTask]]:
        """The placed tasks in the current state (key `BEFORE`) and after each model's plan."""
        after = {name: _Lanes(self, plan).placed_tasks() for name, plan in self.plans.items()}
        return {BEFORE: _Lanes(self, None).placed_tasks(), **after}

    @cached_property
    def queue_of(self) -> dict[str, str]:
        """The queue of each gang, keyed by gang."""
        return {gang.key: gang.queue for gang in self.snapshot.gangs}

    @cached_property
    def colour_of(self) -> dict[str, int]:
        """The colour index of each queue with gangs.

        The queues with the lowest demand share a colour.
        """
        demand: Counter[str] = Counter()
        for gang in self.snapshot.gangs:
            demand[gang.queue] += sum(self.size(task) for task in gang.tasks)
        order = sorted(demand, key=lambda queue: (-demand[queue], queue))
        return {queue: min(i, COLOURS - 1) for i, queue in enumerate(order)}

    @property
    def legend(self) -> list[Key]:
        """The legend of the queue colours."""
        names: dict[int, list[str]] = {}
        for queue, colour in self.colour_of.items():
            names.setdefault(colour, []).append(queue)
        return [
            Key(f"f{colour}", several[0] if len(several) == 1 else f"{len(several)} other queues")
            for colour, several in names.items()
        ]

    def size(self, task: Task) -> int:
        """Return a task's request in thousandths of a GPU, or of a CPU if there are no GPUs."""
        if self.lanes.unit == CPU_UNIT:
            return amount_of(task.shape.request, CPU)
        return gpu_milli(task.shape)

    def milli_by_queue(self, frame: str) -> Counter[str]:
        """Return the thousandths that each queue holds; "" stands for other schedulers' pods."""
        found: Counter[str] = Counter()
        for placed in self.frames[frame]:
            found[self.queue_of.get(placed.gang, "")] += placed.milli * len(placed.lanes)
        return found


class _Lanes:
    """Assigns lanes to the running pods first, then to the pods that a plan places."""

    def __init__(self, data: PlansData, plan: PlanDocument | None) -> None:
        self._data = data
        nodes, gangs = data.snapshot.nodes, data.snapshot.gangs
        self._number = {node.name: i for i, node in enumerate(nodes)}
        self._gpu_books = [GpuBook(node) for node in nodes]
        self._placed: dict[str, list[PlacedTask]] = {}
        tasks = {task.key: task for node in nodes for task in node.residents}
        for node in nodes:
            for task in node.residents:
                self._place_task(task, node.name, task.shared_gpus, is_new=False)
        if plan is None:
            return
        for eviction in plan.evictions:
            for placed in self._placed.pop(eviction.pod, ()):
                task = tasks[eviction.pod]
                self._gpu_books[placed.node].release(task.shape, placed.lanes, task.shared_gpus)
        tasks |= {t.key: t for gang in gangs for t in gang.tasks}
        moved = {eviction.pod: eviction.to for eviction in plan.evictions if eviction.to}
        for key, name in sorted({**plan.binds, **moved}.items()):
            if key in tasks:
                self._place_task(tasks[key], name, plan.shared_gpus.get(key, ()), is_new=True)

    def placed_tasks(self) -> list[PlacedTask]:
        return [
            placed
            for placed_tasks in self._placed.values()
            for placed in placed_tasks
            if placed.lanes
        ]

    def _place_task(
        self, task: Task, node: str, shared_gpus: Sequence[GpuShare], *, is_new: bool
    ) -> None:
        number, size = self._number[node], self._data.size(task)
        if self._data.lanes.unit == CPU_UNIT:
            lanes: list[tuple[tuple[int, ...], int]] = [((0,), size)]
        elif shared_gpus:
            # The size of a GPU share is the maximum of its core fraction and its memory fraction.
            node_gpus = [
                gpu for gpu in self._data.snapshot.nodes[number].shared_gpus if not gpu.npu
            ]
            lane_of = {gpu.key: i for i, gpu in enumerate(node_gpus)}
            used = [(lane_of[use.key], use) for use in shared_gpus if use.key in lane_of]
            memory = [use.memory * WHOLE // max(node_gpus[i].memory, 1) for i, use in used]
            lanes = [
                ((i,), min(max(10 * use.cores, part), WHOLE))
                for (i, use), part in zip(used, memory, strict=True)
            ]
        else:
            gpus = self._gpu_books[number].allocate(task.shape)
            lanes = [(gpus, min(size // max(len(gpus), 1), WHOLE))]
        gang = task.gang or task.key
        self._placed[task.key] = [PlacedTask(gang, number, *each, is_new) for each in lanes]


# --- drawing -------------------------------------------------------------------------------------


def plan_film(data: PlansData) -> Film:
    """Return a grid of GPUs with a slider, which selects the current state or a model's plan."""
    captions = []
    for name in data.frames:
        held, unit = sum(data.milli_by_queue(name).values()), data.lanes.unit
        total = plain(data.lanes.total_milli / 1000)
        parts = [f"{plain(held / 1000, 1)} of {total} {unit}s held"]
        if name != BEFORE:
            plan = data.plans[name]
            placed = sum(
                any(task.key in plan.binds for task in gang.tasks) for gang in data.snapshot.gangs
            )
            parts += [f"{count_text(placed, 'gang')} placed", f"{len(plan.pending)} waiting"]
            if plan.evictions:
                parts.append(f"{count_text(len(plan.evictions), 'pod')} evicted")
        captions.append(f"{'Before' if name == BEFORE else name}: {', '.join(parts)}")
    whole = sum(data.lanes.number) <= MOST_CELLS
    holding = {placed.gang for placed_tasks in data.frames.values() for placed in placed_tasks}
    gangs = [key for key in data.queue_of if key in holding]
    note = "The slider goes from the current state to the plan of each model."
    free = Key("free", "free")
    tables = []
    if whole:
        colours = gang_colours([(0, 1)] * len(gangs))
        grid = _gpu_grid(data, gangs, colours)
        keys = [*gang_keys(gangs, colours), Key("fresh", "outlined: placed by the plan"), free]
        note = f"{grid_note(len(gangs))} {note}"
        tables.append(gang_table([(key, data.queue_of[key]) for key in gangs]))
    else:
        grid, keys = _node_grid(data), [*data.legend, free]
        note += (
            " The fill of a cell shows the load, and the colour shows the queue with the largest "
            "part."
        )
    if any(placed.gang not in data.queue_of for placed in data.frames[BEFORE]):
        keys.append(Key("others", "pods of other schedulers"))
    at = [round(i / max(len(captions) - 1, 1), 5) for i in range(len(captions))]
    title = f"Gangs on each {data.lanes.unit}"
    return grid_film(title, keys, tables, note, grid, min(1, len(captions) - 1), at, captions)


def _gpu_grid(data: PlansData, gangs: Sequence[str], colours: Sequence[str]) -> Grid:
    """Return a grid with one cell per GPU.

    Each gang has two holders: one for its running pods, one for the pods that the plan places.
    """
    lanes, names = data.lanes, [node.name for node in data.snapshot.nodes]
    first = np.concatenate([[0], np.cumsum(lanes.number)]).astype(int).tolist()
    number, holders = {key: i for i, key in enumerate(gangs)}, []
    for i, (key, css) in enumerate(zip(gangs, colours, strict=True), 1):
        words = f"{key} ({data.queue_of[key]})"
        holders.append(Holder(words, css, key, i))
        holders.append(Holder(f"{words}, placed by the plan", f"{css} fresh", key, i))
    held: list[list[Counter[int]]] = [[Counter() for _ in data.frames] for _ in range(first[-1])]
    for frame, placed_tasks in enumerate(data.frames.values()):
        for placed in placed_tasks:
            holder = 2 * number[placed.gang] + placed.is_new if placed.gang in number else OTHERS
            for lane in placed.lanes:
                held[first[placed.node] + lane][frame][holder] += placed.milli
    whole = np.repeat(np.maximum(lanes.milli, 1), lanes.number).tolist()
    cells = [
        [(i, shares_in(by, milli)) for i, by in enumerate(each)]
        for each, milli in zip(held, whole, strict=True)
    ]
    rows = [(name, n) for name, n in zip(names, lanes.number, strict=True) if n]
    unit = lanes.unit
    places = [f"{n}, GPU {i}" if unit != CPU_UNIT else n for n, k in rows for i in range(k)]
    return Grid(rows, places, holders, cells)


def _node_grid(data: PlansData) -> Grid:
    lanes, names = data.lanes, [node.name for node in data.snapshot.nodes]
    groups = node_groups(lanes, MOST_CELLS)
    cell_of = {node: cell for cell, group in enumerate(groups) for node in group}
    held = np.zeros((COLOURS, len(groups), len(data.frames)))
    for frame, placed_tasks in enumerate(data.frames.values()):
        for placed in placed_tasks:
            colour = data.colour_of.get(data.queue_of.get(placed.gang, ""), COLOURS - 1)
            held[colour, cell_of[placed.node], frame] += placed.milli * len(placed.lanes)
    whole = np.array([sum(lanes.number[i] * lanes.milli[i] for i in g) for g in groups])
    part = np.round(100 * held.sum(axis=0) / np.maximum(whole, 1)[:, None])
    owner = np.where(part > 0, held.argmax(axis=0), FREE)
    holders = [Holder(f"most held by colour {i + 1}", f"f{i}") for i in range(COLOURS)]
    for queue, colour in reversed(data.colour_of.items()):
        holders[colour] = Holder(f"most held by {queue}", f"f{colour}")
    places = [span_of(names, group) for group in groups]
    return Grid((), places, holders, tile_changes(owner, np.clip(part, 0, 100).astype(np.int64)))
