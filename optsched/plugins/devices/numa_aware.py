"""NUMA: a pod runs only on a node whose kubelet can align the CPUs and GPUs of the pod.

Mathematics: models/formulation/numa_aware.md. Volcano: `pkg/scheduler/plugins/numaaware`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from optsched.api.wellknown import NUMA_TOPOLOGY_POLICY
from optsched.cluster.node_resources import Alignment, NumaPart
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.cluster.task import TaskStatus
from optsched.plugins.declaration import Argument, Kind, Plugin, read_whole
from optsched.plugins.devices.numa_cells import (
    Free,
    Layout,
    Part,
    assign,
    holdings,
    layout_of,
    options,
    pack_single,
    packs,
    take_available,
)
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.plugins.gangs.gang import first_task
from optsched.problem.running import number_keys, running_tasks
from optsched.units import count_noun

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from optsched.cluster.node_resources import NumaNeed
    from optsched.cluster.snapshot import Node
    from optsched.cluster.task import Task, TaskShape
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.extension_points import LiveScorer, NodeModel
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.linear import LinearModel
    from optsched.problem.problem import Problem

_NumaState: TypeAlias = "tuple[Layout, Free] | None"

TOP = 100
_SHOWN = 3


def requested_policy(shape: TaskShape) -> str:
    """Return the topology policy that a pod requests; empty if it requests none.

    The policy of a pod without exclusive CPUs and GPUs is ignored.
    """
    policy = dict(shape.notes).get(NUMA_TOPOLOGY_POLICY, "") if shape.numa else ""
    return "" if policy == Alignment.NONE else policy


# --- policies ------------------------------------------------------------------------------------


class NumaPolicies(Rule):
    """Rule: a pod that requests a topology policy runs on a node whose kubelet uses this policy."""

    name = "numa-policy"
    hard_switch = Switch.PREDICATE

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        for task, _, node in world.placements:
            policy = requested_policy(task.shape)
            if policy and not _has_policy(node, policy):
                detail = f"requests {policy}, but node {node.name} {_policy_of(node)}"
                yield Violation(self.name, f"task {task.key}", detail)

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """See `Rule`."""
        policy = requested_policy(problem.classes.shapes[task_class])
        if not policy:
            return None
        return np.array([_has_policy(node, policy) for node in problem.snapshot.nodes], np.bool_)

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`."""
        policy = requested_policy(problem.classes.shapes[task_class])
        return f"had no Numatopology with policy {policy}"

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """Return the reason that no node has a policy that the gang requests, or None."""
        problem = outcome.problem
        for task in problem.tasks_of(gang):
            policy, nodes = requested_policy(task.shape), problem.snapshot.nodes
            if not policy or any(_has_policy(node, policy) for node in nodes):
                continue
            if policy not in tuple(Alignment):
                known = ", ".join(Alignment)
                message = f"NUMA policy {policy} does not exist: write one of {known}"
                return Reason(ReasonCode.PREDICATES, message)
            number = Counter(map(_policy_of, nodes))
            tally = ", ".join(f"{count_noun(n, 'node')} {words}" for words, n in number.items())
            broken = [f"{n.name}: {n.numa.problem}" for n in nodes if n.numa and n.numa.problem]
            faults = f"; Numatopology {'; '.join(broken[:_SHOWN])}" if broken else ""
            message = f"no node has NUMA policy {policy}: {tally or 'there are none'}{faults}"
            return Reason(ReasonCode.PREDICATES, message)
        return None


def _has_policy(node: Node, policy: str) -> bool:
    layout = layout_of(node)
    return layout is not None and layout.alignment == policy


def _policy_of(node: Node) -> str:
    if node.numa is None:
        return "has no Numatopology"
    if node.numa.problem:
        return "has a Numatopology that cannot be used"
    return f"has {node.numa.alignment}"


# --- NUMA nodes ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class NumaAware(Rule):
    """Rule: the kubelet of a node can align the exclusive CPUs and GPUs of its pods."""

    name = "numa-aware"
    hard_switch = Switch.PREDICATE

    weight: int = 1

    def verify(self, world: World) -> Iterator[Violation]:
        """Check that the placed tasks of each node fit together on its NUMA nodes."""
        for name, placed in world.placed_on.items():
            node = world.snapshot.node_by_name[name]
            layout = layout_of(node)
            needs = [need for task in placed for need in task.shape.numa]
            if layout is None or not layout.relevant_needs(needs):
                continue
            free, _ = holdings(node)
            if not packs(layout, free, needs):
                requested = _describe_needs(layout.relevant_needs(needs))
                idle = ", ".join(_describe_amounts(c, g) for c, g in zip(*free, strict=True))
                detail = f"{requested} do not fit on NUMA nodes with {idle} free"
                yield Violation(self.name, f"node {name}", f"{detail} ({layout.alignment})")

    def plan_cells(self, world: World) -> dict[str, tuple[NumaPart, ...]]:
        """Return the CPUs and GPUs per NUMA node that bound tasks should get, by task key."""
        found: dict[str, tuple[NumaPart, ...]] = {}
        for name, placed in world.placed_on.items():
            node = world.snapshot.node_by_name[name]
            layout = layout_of(node)
            aligned = [
                t for t in placed if layout is not None and layout.relevant_needs(t.shape.numa)
            ]
            if layout is not None and node.numa is not None and aligned:
                numbers = [cell.number for cell in node.numa.cells]
                for key, parts in _assign_tasks(layout, holdings(node)[0], aligned).items():
                    cpus, gpus = Counter[int](), Counter[int]()
                    for part in parts:
                        cpus[part.at] += part.cpus
                        gpus[part.at] += part.gpus
                    found[key] = tuple(NumaPart(numbers[c], cpus[c], gpus[c]) for c in sorted(cpus))
        return found

    def ties_nodes(self, problem: Problem, task_class: int) -> bool:
        """Return whether any node's kubelet aligns tasks of the class under a strict policy."""
        needs = problem.classes.shapes[task_class].numa
        return bool(needs) and any(
            state is not None and state[0].alignment.is_strict and state[0].relevant_needs(needs)
            for state in problem.derived(_find_numa_states)
        )

    def mask(self, problem: Problem, task_class: int) -> Bool | None:
        """Allow the nodes on which a task fits if all NUMA nodes are idle."""
        if not self.ties_nodes(problem, task_class):
            return None
        needs = problem.classes.shapes[task_class].numa
        known: dict[tuple[Layout, Free], bool] = {}
        allowed = np.ones(problem.num_nodes, np.bool_)
        for i, node in enumerate(problem.snapshot.nodes):
            layout = layout_of(node)
            if layout is not None and node.numa is not None:
                cpus = tuple(c.cpus - c.reserved for c in node.numa.cells)
                empty = (layout, Free(cpus, layout.gpus))
                if empty not in known:
                    known[empty] = packs(*empty, needs)
                allowed[i] = known[empty]
        return allowed

    def refusal(self, problem: Problem, task_class: int) -> str:
        """See `Rule`."""
        shape = problem.classes.shapes[task_class]
        policy, scope = requested_policy(shape), "NUMA nodes for its topology policy"
        if policy:
            noun = "NUMA node" if policy == Alignment.SINGLE else "NUMA nodes"
            scope = f"{noun} ({policy})"
        return f"had no {scope} with {_describe_needs(shape.numa)} free"

    def relevant_tasks(self, problem: Problem, task_class: int) -> I64 | None:
        """Return a number per running task (V,), equal for tasks with equal usage per NUMA node."""
        if not self.ties_nodes(problem, task_class):
            return None
        running, states = running_tasks(problem), problem.derived(_find_numa_states)
        has = {
            n: holdings(problem.snapshot.nodes[n])[1]
            for n in np.unique(running.node_of).tolist()
            if states[n] is not None
        }
        pairs = zip(running.tasks, running.node_of.tolist(), strict=True)
        return number_keys(tuple(has.get(n, {}).get(task.key, ())) for task, n in pairs)

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """Add constraints that assign containers to NUMA nodes within their idle CPUs and GPUs."""
        problem, model, supplied = nodes.problem, nodes.model, nodes.supplied
        num_pending, victims = problem.classes.num_pending, nodes.victims_by_node()
        for n, state in enumerate(problem.derived(_find_numa_states)):
            placeable = np.flatnonzero(supplied[:, n] >= 0).tolist()
            if state is None or not state[0].alignment.is_strict or not placeable:
                continue
            has = holdings(problem.snapshot.nodes[n])[1] if n in victims else {}
            goes = [
                (leave, number, part)
                for leave, number, task in victims.get(n, ())
                for part in has.get(task.key, ())
            ]
            layout, free = state
            containers = [
                (need, int(supplied[c, n]), int(num_pending[c]))
                for c in placeable
                for need in layout.relevant_needs(problem.classes.shapes[c].numa)
            ]
            requested = _choose_cells(model, layout, containers)
            _split_requests(model, free, requested, goes, int(num_pending.max(initial=0)))

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """Return scores (N,) that prefer nodes on which a pod with a policy uses few NUMA nodes."""
        if not self.weight or not requested_policy(problem.classes.shapes[task_class]):
            return None
        start = problem.derived(_NumaUsage)
        counts = start.view(task_class)[1]
        return self.points(start.nodes_with_policy(task_class), counts, problem.ready)

    def points(self, nodes_with_policy: Bool, counts: I64, nodes: Bool) -> F64:
        """Return scores (N,), given the number `counts` (N,) of NUMA nodes that a task would use.

        `nodes` (N,) selects the candidate nodes. A node scores 0 if the mask `nodes_with_policy`
        (N,) excludes it, or if its entry in `counts` is 0 (unknown).
        """
        known = nodes_with_policy & (counts > 0)
        most = max(int(counts[known & nodes].max(initial=1)), 1)
        points = self.weight * (TOP - TOP * counts // most)
        return np.where(known, points, 0).astype(np.float64)

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`."""
        aligns = any(state is not None for state in problem.derived(_find_numa_states))
        requests = any(shape.numa for shape in problem.classes.shapes)
        return _NumaUsage(problem, self) if aligns and requests else None


def _find_numa_states(problem: Problem) -> tuple[_NumaState, ...]:
    """Return the NUMA layout and idle CPUs and GPUs of each node (N,); None without a layout."""
    found = ((layout_of(node), node) for node in problem.snapshot.nodes)
    return tuple(None if layout is None else (layout, holdings(node)[0]) for layout, node in found)


def _assign_tasks(layout: Layout, free: Free, aligned: Sequence[Task]) -> dict[str, list[Part]]:
    """Return the CPUs and GPUs that each task gets on each NUMA node, by task key.

    The assignment is the one that the kubelet makes. If the policy is `single-numa-node` and the
    kubelet would reject a task, the result is any assignment that fits all tasks. The result is
    empty if no assignment is found.
    """
    found: dict[str, list[Part]] = {}
    left = free
    for task in aligned:
        parts = assign(layout, left, task.shape.numa)
        if parts is None:
            break
        left = left.subtract(parts)
        found[task.key] = parts
    else:
        return found
    if layout.alignment is not Alignment.SINGLE:
        return {}
    requests = [(need, t.key) for t in aligned for need in layout.relevant_needs(t.shape.numa)]
    requests.sort(key=lambda w: (-w[0].cpus, -w[0].gpus))
    idle = tuple(zip(*free, strict=True))
    cells = pack_single([need for need, _ in requests], idle, set()) or []
    packed: dict[str, list[Part]] = {}
    for (need, key), at in zip(requests, cells, strict=False):
        packed.setdefault(key, []).append(Part(at, need.cpus, need.gpus))
    return packed


# --- texts ---------------------------------------------------------------------------------------


def _describe_needs(needs: Sequence[NumaNeed]) -> str:
    listed = [_describe_amounts(n.cpus, n.gpus) for n in needs]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def _describe_amounts(cpus: int, gpus: int) -> str:
    parts = [count_noun(cpus, "CPU")] if cpus or not gpus else []
    return " and ".join([*parts, *([count_noun(gpus, "GPU")] if gpus else [])])


# --- constraints ----------------------------------------------------------------------------------


_Terms: TypeAlias = "list[tuple[int, int]]"
"""(variable, amount) pairs; one unit of the variable adds this amount of CPUs or GPUs."""


def _choose_cells(
    model: LinearModel, layout: Layout, containers: Sequence[tuple[NumaNeed, int, int]]
) -> list[dict[int, _Terms]]:
    """Add constraints that choose a set of NUMA nodes for each container of each task.

    Per container, Σ_option v = tasks, where the variable v counts the tasks that use an option.

    `containers` contains the request of each container, the variable that counts its tasks, and the
    maximum number of tasks. Returns the (variable, amount) pairs by set of NUMA nodes, for CPUs and
    for GPUs. See models/formulation/numa_aware.md.
    """
    requested: list[dict[int, _Terms]] = [{}, {}]
    for need, tasks, most in containers:
        choices = options(layout, need)
        chosen = model.add_variables(0, np.full(len(choices), most, np.int64))
        factors = np.append(np.ones(len(chosen), np.int64), -1)
        model.add_rows(0, np.append(chosen, tasks), factors, lower=0, upper=0)
        for variable, option in zip(chosen.tolist(), choices, strict=True):
            for by_cells, cells, amount in zip(
                requested, (option.cpus, option.gpus), (need.cpus, need.gpus), strict=True
            ):
                if cells:
                    by_cells.setdefault(cells, []).append((variable, amount))
    return requested


def _split_requests(
    model: LinearModel,
    free: Free,
    requested: Sequence[Mapping[int, _Terms]],
    goes: Sequence[tuple[int, int, Part]],
    most_tasks: int,
) -> None:
    """Add constraints that split the requests for a set of NUMA nodes among these nodes.

    The constraints keep each NUMA node within its idle CPUs and GPUs. `goes` contains, for each
    group of victims, its variable, its number of victims, and what one victim releases. See
    models/formulation/victims.md.
    """
    for r, idle in enumerate(free):
        released: list[_Terms] = [[] for _ in idle]
        most = list(idle)
        for variable, number, part in goes:
            amount = (part.cpus, part.gpus)[r]
            released[part.at] += [(variable, amount)] if amount else []
            most[part.at] += number * amount
        used: list[_Terms] = [[] for _ in idle]
        for cells, terms in requested[r].items():
            places = [at for at in range(len(most)) if cells >> at & 1]
            if len(places) == 1:
                used[places[0]] += terms
                continue
            parts = model.add_variables(0, [max(most[at], 0) for at in places])
            variables, amounts = zip(*terms, strict=True)
            factors = np.append(-np.ones_like(parts), amounts)
            model.add_rows(0, np.append(parts, variables), factors, lower=0, upper=0)
            for at, variable in zip(places, parts.tolist(), strict=True):
                used[at].append((variable, 1))
        for at, terms in enumerate(used):
            model.add_limit(terms, released[at], idle[at], max(most_tasks, *most))


# --- greedy --------------------------------------------------------------------------------------


class _NumaUsage(Greedy):
    """Tracks idle CPUs and GPUs of NUMA nodes, and assigns placed tasks as kubelets do.

    `_free` contains the CPUs and GPUs that are idle now, and `_later` those that are idle after
    terminating pods have ended. A nominated task that does not fit yet gets NUMA nodes from
    `_later`, and its amounts are subtracted from `_free` and `_later`. If `rule` is None, no nodes
    are scored.
    """

    def __init__(self, problem: Problem, rule: NumaAware | None = None) -> None:
        self._rule = rule
        self._problem = problem
        self._needs = [shape.numa for shape in problem.classes.shapes]
        states = problem.derived(_find_numa_states)
        self._layouts = [None if state is None else state[0] for state in states]
        self._free = [Free((), ()) if state is None else state[1] for state in states]
        self._later = list(self._free)
        self._allocated: dict[tuple[int, int], list[list[Part]]] = {}
        self._known: dict[tuple[Layout, Free, int], list[Part] | None] = {}
        self._nodes_with_policy: dict[str, Bool] = {}
        self._log: list[int] = []
        self._views: dict[tuple[int, bool], tuple[Bool, I64, int]] = {}
        for n, layout in enumerate(self._layouts):
            residents = problem.snapshot.nodes[n].residents if layout is not None else ()
            for task in (t for t in residents if t.status is TaskStatus.RELEASING):
                self._add_future_idle(n, task.key, 1)

    def fits(self, gang: int, task_class: int, *, later: bool) -> Bool | None:
        return self.view(task_class, later=later)[0].copy() if self._needs[task_class] else None

    def record_eviction(self, victim: int, sign: int) -> None:
        running = running_tasks(self._problem)
        node = int(running.node_of[victim])
        if self._layouts[node] is not None:
            self._log.append(node)
            self._add_future_idle(node, running.tasks[victim].key, sign)

    def _add_future_idle(self, node: int, task: str, sign: int) -> None:
        """Add the CPUs and GPUs of a terminating task to `_later`, or subtract them (`sign` -1)."""
        parts = holdings(self._problem.snapshot.nodes[node])[1].get(task, ())
        self._later[node] = self._later[node].subtract(parts, -sign)

    def live_scorer(self, gang: int, entry: int) -> LiveScorer | None:
        problem, rule = self._problem, self._rule
        task_class = int(problem.task_class[first_task(problem, gang, entry)])
        before = None if rule is None else rule.class_score(problem, task_class)
        if rule is None or before is None:
            return None
        nodes_with_policy = self.nodes_with_policy(task_class)
        return lambda nodes: (
            rule.points(nodes_with_policy, self.view(task_class)[1], nodes) - before
        )

    def nodes_with_policy(self, task_class: int) -> Bool:
        policy = requested_policy(self._problem.classes.shapes[task_class])
        if policy not in self._nodes_with_policy:
            having = [layout is not None and layout.alignment == policy for layout in self._layouts]
            self._nodes_with_policy[policy] = np.array(having, np.bool_)
        return self._nodes_with_policy[policy]

    def record_placement(self, gang: int, task_class: int, nodes: I64, counts: I64) -> None:
        if not self._needs[task_class]:
            return
        for node, count in zip(nodes.tolist(), counts.tolist(), strict=True):
            layout = self._layouts[node]
            if layout is None:
                continue
            self._log.append(node)
            assigned = self._allocated.setdefault((node, task_class), [])
            for _ in range(count):
                parts = self._assign_cached(layout, self._free[node], task_class)
                if parts is None:
                    parts = self._assign_cached(layout, self._later[node], task_class)
                if parts is None:
                    needs = layout.relevant_needs(self._needs[task_class])
                    parts = take_available(self._free[node], needs)
                assigned.append(parts)
                self._free[node] = self._free[node].subtract(parts)
                self._later[node] = self._later[node].subtract(parts)
            for _ in range(-count):
                parts = assigned.pop()
                self._free[node] = self._free[node].subtract(parts, -1)
                self._later[node] = self._later[node].subtract(parts, -1)

    def _assign_cached(self, layout: Layout, free: Free, task_class: int) -> list[Part] | None:
        key = (layout, free, task_class)
        if key not in self._known:
            self._known[key] = assign(layout, free, self._needs[task_class])
        return self._known[key]

    def view(self, task_class: int, *, later: bool = False) -> tuple[Bool, I64]:
        """Return per node whether a task fits (N,), and how many NUMA nodes it would use (N,).

        The number is 0 on nodes without a NUMA layout.
        """
        touched: Iterable[int] = range(self._problem.num_nodes)
        key = (task_class, later)
        if key in self._views:
            touched = set(self._log[self._views[key][2] :])
            fits, counts, _ = self._views[key]
        else:
            fits = np.ones(self._problem.num_nodes, np.bool_)
            counts = np.zeros(self._problem.num_nodes, np.int64)
        for node in touched:
            layout = self._layouts[node]
            if layout is not None:
                free = (self._later if later else self._free)[node]
                parts = self._assign_cached(layout, free, task_class)
                fits[node] = parts is not None or not layout.alignment.is_strict
                counts[node] = len(layout.cpus) if parts is None else len({p.at for p in parts})
        self._views[key] = fits, counts, len(self._log)
        return fits, counts


PLUGIN = Plugin(
    "numa-aware",
    "gives pods CPUs and GPUs of few NUMA nodes, according to their topology policy",
    (Argument("weight", Kind.WHOLE, 1, "weight of the node score"),),
    lambda a: (NumaPolicies(), NumaAware(read_whole(a, "weight", 1))),
    aliases=("numaaware",),
)
