"""NUMA nodes (cells) of one Kubernetes node: idle CPUs and GPUs, and assignment of containers.

The assignment follows the kubelet: k8s.io/kubernetes/pkg/kubelet/cm/topologymanager (policies) and
cm/cpumanager/policy_static.go (`generateCPUTopologyHints`). Sets of cells are bit masks.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from optsched.cluster.node_resources import Alignment, NumaNeed
from optsched.cluster.task import TaskStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.snapshot import Node
    from optsched.cluster.task import Task


MOST_FAILED = 3000
"""Maximum number of failed partial assignments before a search gives up."""


class Free(NamedTuple):
    """The numbers of idle CPUs and idle GPUs in each cell."""

    cpus: tuple[int, ...]
    gpus: tuple[int, ...]

    def subtract(self, parts: Iterable[Part], sign: int = 1) -> Free:
        """Return the idle amounts minus the amounts in `parts`, or plus them if `sign` is -1."""
        cpus, gpus = list(self.cpus), list(self.gpus)
        for part in parts:
            cpus[part.at] -= sign * part.cpus
            gpus[part.at] -= sign * part.gpus
        return Free(tuple(cpus), tuple(gpus))


class Part(NamedTuple):
    """The CPUs and GPUs that a task uses in one cell; `at` is the index of the cell on the node."""

    at: int
    cpus: int
    gpus: int


class Layout(NamedTuple):
    """A kubelet's alignment policy, and the number of CPUs and GPUs in each cell."""

    alignment: Alignment
    cpus: tuple[int, ...]
    gpus: tuple[int, ...]

    def relevant_needs(self, needs: Iterable[NumaNeed]) -> tuple[NumaNeed, ...]:
        """Return the requests that the kubelet aligns; it aligns GPUs only if a cell has GPUs."""
        gpus = any(self.gpus)
        found = (NumaNeed(n.cpus, n.gpus if gpus else 0) for n in needs)
        return tuple(need for need in found if need.cpus or need.gpus)


class Option(NamedTuple):
    """Bit masks of the cells for a container's CPUs and GPUs; 0 for a resource without request."""

    cpus: int
    gpus: int

    @property
    def cells(self) -> int:
        """The cells that provide CPUs or GPUs."""
        return self.cpus | self.gpus

    @property
    def shared(self) -> int:
        """The cells for both CPUs and GPUs; all cells if only CPUs or only GPUs are requested."""
        return self.cpus & self.gpus if self.cpus and self.gpus else self.cpus | self.gpus


def layout_of(node: Node) -> Layout | None:
    """Return a node's NUMA layout; None if its kubelet aligns no pods or its report is invalid."""
    numa = node.numa
    if numa is None or numa.problem or numa.alignment is Alignment.NONE:
        return None
    cells = numa.cells
    return Layout(numa.alignment, tuple(c.cpus for c in cells), tuple(c.gpus for c in cells))


# --- cells for a container ---------------------------------------------------------------------


@cache
def options(layout: Layout, need: NumaNeed) -> tuple[Option, ...]:
    """Return the sets of cells that the kubelet admits for a container, smallest set first.

    For each resource, a set has only as many cells as the request needs on an empty node. The cells
    for CPUs and the cells for GPUs must overlap. Without a strict policy, the only set contains all
    cells.
    """
    everything = (1 << len(layout.cpus)) - 1
    if not layout.alignment.is_strict:
        return (Option(everything if need.cpus else 0, everything if need.gpus else 0),)
    cpus = _smallest(layout, layout.cpus, need.cpus)
    gpus = _smallest(layout, layout.gpus, need.gpus)
    pairs = (Option(c, g) for c in cpus for g in gpus)
    meeting = [o for o in pairs if not (o.cpus and o.gpus) or o.cpus & o.gpus]
    return tuple(sorted(meeting, key=lambda o: (o.shared.bit_count(), o.shared, o)))


def _smallest(layout: Layout, amounts: Sequence[int], number: int) -> list[int]:
    """Return the smallest sets of cells that provide `number` units of a resource.

    The policy `single-numa-node` allows only single cells.
    """
    if not number:
        return [0]
    sets = [m for m in range(1, 1 << len(amounts)) if total(amounts, m) >= number]
    smallest = min((m.bit_count() for m in sets), default=0)
    size = 1 if layout.alignment is Alignment.SINGLE else smallest
    return [m for m in sets if m.bit_count() == size]


@cache
def _preferred_options(layout: Layout, need: NumaNeed) -> tuple[Option, ...]:
    """Return the sets of cells that the kubelet tries for a container, in order of preference.

    Without a strict policy, the kubelet tries all sets of cells, smallest first.
    """
    if layout.alignment.is_strict:
        return options(layout, need)
    sets = sorted(range(1, 1 << len(layout.cpus)), key=lambda m: (m.bit_count(), m))
    return tuple(Option(m if need.cpus else 0, m if need.gpus else 0) for m in sets)


def total(amounts: Sequence[int], cells: int) -> int:
    """Return the sum of `amounts` over the cells in a bit mask."""
    return sum(amount for at, amount in enumerate(amounts) if cells >> at & 1)


# --- assignment ----------------------------------------------------------------------------------


def assign(layout: Layout, free: Free, needs: Iterable[NumaNeed]) -> list[Part] | None:
    """Return the CPUs and GPUs that the kubelet assigns to a pod, or None if it rejects the pod."""
    found: list[Part] = []
    for need in layout.relevant_needs(needs):
        fitting = (
            option
            for option in _preferred_options(layout, need)
            if total(free.cpus, option.cpus) >= need.cpus
            and total(free.gpus, option.gpus) >= need.gpus
        )
        option = next(fitting, None)
        if option is None:
            return None
        parts = _take_from_cells(free, need, option)
        free = free.subtract(parts)
        found += parts
    return found


def _take_from_cells(free: Free, need: NumaNeed, option: Option) -> list[Part]:
    """Return the idle CPUs and GPUs that a request takes from the cells of an option.

    Cells that can provide both CPUs and GPUs are used first.
    """
    cells = [at for at in range(len(free.cpus)) if option.cells >> at & 1]
    cpus, gpus = need.cpus, need.gpus
    found = []
    for at in sorted(cells, key=lambda at: (not option.shared >> at & 1, at)):
        some = min(cpus, max(free.cpus[at], 0)) if option.cpus >> at & 1 else 0
        more = min(gpus, max(free.gpus[at], 0)) if option.gpus >> at & 1 else 0
        cpus, gpus = cpus - some, gpus - more
        if some or more:
            found.append(Part(at, some, more))
    return found


def take_available(free: Free, needs: Iterable[NumaNeed]) -> list[Part]:
    """Return the CPUs and GPUs that requests take from all cells, limited to the idle amounts."""
    everything = (1 << len(free.cpus)) - 1
    both = NumaNeed(sum(n.cpus for n in needs), sum(n.gpus for n in needs))
    return _take_from_cells(free, both, Option(everything, everything))


# --- feasibility ---------------------------------------------------------------------------------


def packs(layout: Layout, free: Free, needs: Iterable[NumaNeed]) -> bool:
    """Return whether the kubelet's topology manager admits some assignment of all requests.

    Returns False if the search stops after `MOST_FAILED` failed partial assignments.
    """
    ordered = sorted(layout.relevant_needs(needs), key=lambda n: (-n.cpus, -n.gpus))
    if not layout.alignment.is_strict or assign(layout, free, ordered) is not None:
        return True
    choices = [options(layout, need) for need in set(ordered)]
    if not all(choices):
        return False
    if all(o.cells.bit_count() == 1 for each in choices for o in each):
        return pack_single(ordered, tuple(zip(*free, strict=True)), set()) is not None
    # By Hall's theorem, the requests fit if and only if the capacity of each set of cells covers
    # the requests for the set and for all its subsets.
    sets = range(1 << len(free.cpus))
    cpus = tuple(total(free.cpus, cells) for cells in sets)
    gpus = tuple(total(free.gpus, cells) for cells in sets)
    return _pack_sets(layout, ordered, (cpus, gpus), (0, 0), set())


def pack_single(
    needs: Sequence[NumaNeed],
    capacities: tuple[tuple[int, int], ...],
    dead: set[tuple[int, tuple[tuple[int, int], ...]]],
) -> list[int] | None:
    """Return the cell of each request, or None if the requests do not fit into single cells.

    `capacities` contains the idle CPUs and GPUs of each cell. `dead` contains the states in which
    the search is known to fail; a state contains the capacities in sorted order, because cells are
    interchangeable.
    """
    if not needs:
        return []
    state = (len(needs), tuple(sorted(capacities)))
    if state in dead or len(dead) > MOST_FAILED:
        return None
    need, tried = needs[0], set()
    for at, capacity in sorted(enumerate(capacities), key=lambda each: each[1]):
        if capacity in tried or capacity[0] < need.cpus or capacity[1] < need.gpus:
            continue
        tried.add(capacity)
        left = (capacity[0] - need.cpus, capacity[1] - need.gpus)
        rest = pack_single(needs[1:], (*capacities[:at], left, *capacities[at + 1 :]), dead)
        if rest is not None:
            return [at, *rest]
    dead.add(state)
    return None


_SubsetCapacity = tuple[int, ...]
"""The capacity of each set of cells, minus the requests for subsets of the set, by bit mask."""


def _pack_sets(
    layout: Layout,
    needs: Sequence[NumaNeed],
    capacities: tuple[_SubsetCapacity, _SubsetCapacity],
    at: tuple[int, int],
    dead: set[object],
) -> bool:
    """Return whether all requests from index `at[0]` on fit into the cells.

    The request at `at[0]` tries only its options from index `at[1]` on, so that equal requests use
    their options in ascending order.
    """
    first, least = at
    if first == len(needs):
        return True
    if (at, capacities) in dead or len(dead) > MOST_FAILED:
        return False
    need = needs[first]
    is_equal = first + 1 < len(needs) and needs[first + 1] == need
    for number, option in enumerate(options(layout, need)[least:], least):
        cpus, gpus = (
            tuple(
                capacity - amount if cells and cells & around == cells else capacity
                for around, capacity in enumerate(left)
            )
            for left, cells, amount in (
                (capacities[0], option.cpus, need.cpus),
                (capacities[1], option.gpus, need.gpus),
            )
        )
        if min(cpus) < 0 or min(gpus) < 0:
            continue
        if _pack_sets(layout, needs, (cpus, gpus), (first + 1, number if is_equal else 0), dead):
            return True
    dead.add((at, capacities))
    return False


# --- idle amounts --------------------------------------------------------------------------------


def holdings(node: Node) -> tuple[Free, dict[str, list[Part]]]:
    """Return the idle CPUs and GPUs of a node's cells, and those that each resident uses.

    If the node's agent reports resources of a pod, these resources are in use while the pod exists,
    and idle afterwards. Reported usage without a reported pod is attributed to residents without a
    report, oldest first. The cells of a resident without a report are known only from the plan that
    bound the resident. A resident that requests more than the remaining reported usage is assumed
    to have started after the report. The cells of a resident that started after the report are the
    cells planned for it or, without a plan, the cells that the kubelet would assign.
    """
    layout, numa = layout_of(node), node.numa
    assert layout is not None  # noqa: S101  callers pass nodes with a layout
    assert numa is not None  # noqa: S101  callers pass nodes with a layout
    cells = numa.cells
    free = Free(tuple(c.free_cpus for c in cells), tuple(c.free_gpus for c in cells))
    place = {cell.number: at for at, cell in enumerate(cells)}
    by_uid = {task.uid: task for task in node.residents if task.uid}
    by_key = {task.key: task for task in node.residents}
    # For each report in `numa.holds`, the resident that the report describes, or None.
    matched = [by_uid.get(h.uid) or (by_key.get(h.key) if h.key else None) for h in numa.holds]
    found: dict[str, list[Part]] = {}
    for hold, task in zip(numa.holds, matched, strict=True):
        parts = [Part(place[p.cell], p.cpus, p.gpus) for p in hold.parts]
        if task is None:
            free = free.subtract(parts, -1)
        else:
            found[task.key] = parts
    for task, left in _find_unreported(layout, node, matched):
        cpus, gpus = any(n.cpus for n in left), any(n.gpus for n in left)
        planned = _planned_parts(task, free, place)
        parts = [Part(p.at, p.cpus * cpus, p.gpus * gpus) for p in planned]
        parts = parts or assign(layout, free, left) or take_available(free, left)
        free = free.subtract(parts)
        found.setdefault(task.key, []).extend(parts)
    taken = Free(tuple(c.cpus - c.reserved for c in cells), layout.gpus)
    taken = taken.subtract(Part(at, *idle) for at, idle in enumerate(zip(*free, strict=True)))
    taken = taken.subtract(part for parts in found.values() for part in parts)
    for task in node.residents:
        if task.numa and task.key not in found:
            found[task.key] = _planned_parts(task, taken, place)
            taken = taken.subtract(found[task.key])
    return free, found


def _find_unreported(
    layout: Layout, node: Node, matched: Sequence[Task | None]
) -> Iterator[tuple[Task, tuple[NumaNeed, ...]]]:
    """Yield each resident with requests that the agent has not reported yet, and these requests."""
    numa = node.numa
    assert numa is not None  # noqa: S101  callers pass nodes with a layout
    seen = [Counter[str](), Counter[str]()]
    unreported = [sum(c.cpus - c.reserved - c.free_cpus for c in numa.cells)]
    unreported.append(sum(c.gpus - c.free_gpus for c in numa.cells))
    for hold, task in zip(numa.holds, matched, strict=True):
        held = (sum(p.cpus for p in hold.parts), sum(p.gpus for p in hold.parts))
        for r, amount in enumerate(held):
            unreported[r] -= amount
            if task is not None:
                seen[r][task.key] += amount
    by_start = sorted(
        node.residents,
        key=lambda task: (task.status is TaskStatus.BOUND, task.started_ms, task.key),
    )
    for task in by_start:
        needs = layout.relevant_needs(task.shape.numa)
        requested = (sum(n.cpus for n in needs), sum(n.gpus for n in needs))
        is_unreported = [False, False]
        for r, amount in enumerate(requested):
            if seen[r][task.key] or not amount:
                continue
            is_unreported[r] = amount > unreported[r]
            unreported[r] -= 0 if is_unreported[r] else amount
        if any(is_unreported):
            yield (
                task,
                tuple(
                    NumaNeed(n.cpus * is_unreported[0], n.gpus * is_unreported[1]) for n in needs
                ),
            )


def _planned_parts(task: Task, most: Free, place: Mapping[int, int]) -> list[Part]:
    cells = ((p, place[p.cell]) for p in task.numa if p.cell in place)
    return [
        Part(at, min(p.cpus, max(most.cpus[at], 0)), min(p.gpus, max(most.gpus[at], 0)))
        for p, at in cells
    ]
