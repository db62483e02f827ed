"""Compile the network into trees of domains, and find the domains that gang shapes may use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.reasons import Reason, ReasonCode
from optsched.problem.arrays import frozen, row_groups

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from optsched.cluster.snapshot import Node, Snapshot
    from optsched.cluster.topology import Topology, TopologyRequest
    from optsched.problem.arrays import I64, Bool
    from optsched.problem.columns import NodeColumns
    from optsched.problem.shapes import GangShape

CLUSTER = 0
"""The index of the domain that contains every node."""

_SHOWN = 3

NOWHERE = -1
"""The domain index that means "no domain", for example for a gang without running tasks."""


@dataclass(frozen=True, eq=False)
class Forest:
    """A tree of network domains in preorder, whose root is the whole cluster.

    Attributes
    ----------
    label
        The node label whose values are the domains; empty for HyperNodes.
    names
        (D,) name of each domain; empty for the whole cluster.
    tier, parent
        (D,) tier and parent of each domain. A parent has a higher tier than its children; the root
        has parent -1.
    end
        (D,) index after the last domain of each subtree: domain d contains the domains d to
        end[d]-1.
    leaf_of
        (N,) the lowest domain that contains each node.

    """

    label: str
    names: tuple[str, ...]
    tier: I64
    parent: I64
    end: I64
    leaf_of: I64

    def __post_init__(self) -> None:
        frozen(self.tier, self.parent, self.end, self.leaf_of)

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def rank(self) -> I64:
        """The rank (D,) of each domain among all domains, sorted by name."""
        rank = np.empty(len(self), np.int64)
        rank[sorted(range(len(self)), key=self.names.__getitem__)] = np.arange(len(self))
        return rank

    @property
    def top(self) -> int:
        """The tier of the root domain."""
        return int(self.tier[CLUSTER])

    def inside(self, domain: int) -> Bool:
        """Return the mask (N,) of the nodes in a domain."""
        nodes: Bool = (self.leaf_of >= domain) & (self.leaf_of < self.end[domain])
        return nodes

    def sums(self, values: I64) -> I64:
        """Return `values` (N, …), summed over the nodes in each domain (D, …)."""
        order, begin, end = self._in_preorder
        before = np.zeros((len(values) + 1, *values.shape[1:]), np.int64)
        np.cumsum(values[order], axis=0, out=before[1:])
        sums: I64 = before[end] - before[begin]
        return sums

    @cached_property
    def _in_preorder(self) -> tuple[I64, I64, I64]:
        """The nodes (N,) sorted by domain, and the start and end (D,) of each domain's nodes."""
        order = np.argsort(self.leaf_of, kind="stable")
        leaves = self.leaf_of[order]
        begin = np.searchsorted(leaves, np.arange(len(self)))
        return order, begin, np.searchsorted(leaves, self.end)

    def upwards(self, domain: int) -> Iterator[int]:
        """Yield a domain, then its ancestors from the nearest to the root."""
        while domain >= 0:
            yield domain
            domain = int(self.parent[domain])

    def holder(self, nodes: I64) -> int:
        """Return the lowest domain that contains all `nodes` (m,); NOWHERE if `nodes` is empty."""
        if not len(nodes):
            return NOWHERE
        leaves = self.leaf_of[nodes]
        return self.meet(int(leaves.min()), int(leaves.max()))

    def meet(self, one: int, other: int) -> int:
        """Return the lowest domain that contains both given domains."""
        first, last = min(one, other), max(one, other)
        return next(d for d in self.upwards(first) if last < self.end[d])


@dataclass(frozen=True, eq=False)
class Bound:
    """The network domains that a gang or a subgroup may use.

    Attributes
    ----------
    forest
        Index of the forest in `TopologyArrays.forests`.
    allowed
        (D,) mask of the domains in which tasks may be placed; includes all descendants of an
        allowed domain.
    is_hard
        Whether the bound is a constraint. A topology bound that is only a preference allows all
        domains.
    held
        The lowest domain that contains all running tasks of the gang or subgroup; NOWHERE if none
        runs.
    request
        The topology request that sets the bound.
    problem
        Why no domain can hold the tasks, or None if some domain can.
    """

    forest: int
    allowed: Bool
    is_hard: bool
    held: int
    request: TopologyRequest
    problem: Reason | None = None


@dataclass(frozen=True, eq=False)
class Bounds:
    """The topology bounds (allowed domains) of one gang shape and of each of its subgroups."""

    whole: Bound | None
    parts: tuple[Bound | None, ...]

    @property
    def existing(self) -> tuple[Bound, ...]:
        """The existing bounds of the whole gang and of its subgroups."""
        return tuple(b for b in (self.whole, *self.parts) if b is not None)

    @property
    def problem(self) -> Reason | None:
        """Why one of the bounds allows no domain, or None if every bound allows a domain."""
        return next((b.problem for b in self.existing if b.problem is not None), None)


@dataclass(frozen=True, eq=False)
class TopologyArrays:
    """The network domain forests of a problem, and the topology bounds of its gang shapes.

    Attributes
    ----------
    forests
        The forest of HyperNodes, then one forest per requested node label, sorted by label.
    bounds
        (S,) topology bounds of each gang shape.
    cell_of
        (N,) cell of each node. A cell is a set of nodes in the same domains of every forest.

    """

    forests: tuple[Forest, ...]
    bounds: tuple[Bounds, ...]
    cell_of: I64
    num_cells: int

    def __post_init__(self) -> None:
        frozen(self.cell_of)

    def forest(self, bound: Bound) -> Forest:
        """Return the forest to which the domains of a bound belong."""
        return self.forests[bound.forest]


def topology_arrays(
    snapshot: Snapshot,
    shapes: Sequence[GangShape],
    columns: NodeColumns,
    previous: tuple[Snapshot, TopologyArrays] | None,
) -> TopologyArrays:
    """Compile the network of a snapshot into arrays, for the gang shapes `shapes` (S,).

    `previous` holds an earlier snapshot with its topology arrays. The forest of HyperNodes is
    reused if nodes and HyperNodes did not change.
    """
    hypernodes = None
    if previous is not None and previous[0].topology is snapshot.topology:
        before, nodes = previous[0].nodes, snapshot.nodes
        if len(before) == len(nodes) and all(
            a is b or a.name == b.name for a, b in zip(before, nodes, strict=True)
        ):
            hypernodes = previous[1].forests[0]
    if hypernodes is None:
        hypernodes = _hypernodes(snapshot.topology, snapshot.nodes)
    requests = (r for s in shapes for r in (s.topology, *(part.topology for part in s.parts)))
    labels = sorted({request.label for request in requests if request and request.label})
    forests = (hypernodes, *(_by_label(label, columns) for label in labels))
    cell_of, first = row_groups([f.leaf_of for f in forests])
    reader = _BoundReader(snapshot, forests)
    return TopologyArrays(
        forests=forests,
        bounds=tuple(reader.bounds(shape) for shape in shapes),
        cell_of=cell_of,
        num_cells=len(first),
    )


# --- forests -------------------------------------------------------------------------------------


def _hypernodes(topology: Topology, nodes: Sequence[Node]) -> Forest:
    names, parents = [""], [-1]
    waiting = [(root, CLUSTER) for root in reversed(topology.members.get("", ()))]
    while waiting:
        name, parent = waiting.pop()
        place = len(names)
        names.append(name)
        parents.append(parent)
        waiting += ((child, place) for child in reversed(topology.members.get(name, ())))
    number = {name: d for d, name in enumerate(names)}
    tiers = [topology.by_name[name].tier for name in names[1:]]
    leaf = {node: number[h.name] for h in topology.hypernodes for node in h.nodes}
    leaf_of = np.array([leaf.get(node.name, CLUSTER) for node in nodes], np.int64)
    return _forest("", names, [topology.top_tier, *tiers], parents, leaf_of)


def _by_label(label: str, columns: NodeColumns) -> Forest:
    codes, values = columns.codes(label)
    present = sorted(v for v in values if v is not None)
    number = {value: d for d, value in enumerate(present, 1)}
    domain = [CLUSTER if v is None else number[v] for v in values]
    leaf_of = np.array(domain, np.int64)[codes] if values else np.zeros(0, np.int64)
    tiers, parents = [2] + [1] * len(present), [-1] + [CLUSTER] * len(present)
    return _forest(label, ["", *present], tiers, parents, leaf_of)


def _forest(
    label: str, names: Sequence[str], tiers: Sequence[int], parents: Sequence[int], leaf_of: I64
) -> Forest:
    end = list(range(1, len(names) + 1))
    for d in reversed(range(1, len(names))):
        end[parents[d]] = max(end[parents[d]], end[d])
    return Forest(
        label=label,
        names=tuple(names),
        tier=np.array(tiers, np.int64),
        parent=np.array(parents, np.int64),
        end=np.array(end, np.int64),
        leaf_of=leaf_of,
    )


# --- bounds --------------------------------------------------------------------------------------


class _BoundReader:
    """Resolves topology requests to domains in the forests of one snapshot."""

    def __init__(self, snapshot: Snapshot, forests: Sequence[Forest]) -> None:
        self._topology = snapshot.topology
        self._forests = forests
        self._number = {f.label: i for i, f in enumerate(forests)}
        self._nodes = snapshot.nodes
        self._index: dict[str, int] | None = None

    def bounds(self, shape: GangShape) -> Bounds:
        parts = tuple(self._bound(part.topology, part.held) for part in shape.parts)
        return Bounds(self._bound(shape.topology, shape.held), parts)

    def _bound(self, request: TopologyRequest | None, held: Sequence[str]) -> Bound | None:
        if request is None:
            return None
        number = self._number[request.label]
        forest = self._forests[number]
        if held and self._index is None:
            self._index = {node.name: i for i, node in enumerate(self._nodes)}
        index = self._index or {}
        nodes = [index[name] for name in held if name in index]
        holder = forest.holder(np.array(nodes, np.int64))
        allowed = self._allowed(request, forest)
        if isinstance(allowed, Reason):
            nothing = np.zeros(len(forest), np.bool_)
            return Bound(number, nothing, True, holder, request, allowed)
        problem = None
        if holder >= 0 and not allowed[holder]:
            where = ", ".join(held[:_SHOWN]) + (" ..." if len(held) > _SHOWN else "")
            text = f"its running pods are on {where}, which are not together in {request}"
            problem = Reason(ReasonCode.TOPOLOGY, text)
        return Bound(number, allowed, request.is_hard, holder, request, problem)

    def _allowed(self, request: TopologyRequest, forest: Forest) -> Bool | Reason:
        """Return the mask (D,) of domains that a request allows, or why it allows no domain."""
        if not request.is_hard:
            return np.ones(len(forest), np.bool_)
        if len(forest) == 1:
            what = f"node has the label {forest.label}" if forest.label else "HyperNode exists"
            return Reason(ReasonCode.TOPOLOGY_NOT_FOUND, f"it needs {request}, but no {what}")
        tier_name = request.highest_tier_name
        if tier_name:
            within = np.zeros(len(forest), np.bool_)
            known_names = {h.name: h.tier_name for h in self._topology.hypernodes}
            for d, name in enumerate(forest.names):
                if known_names.get(name) == tier_name:
                    within[d : forest.end[d]] = True
            if within.any():
                return within
            others = ", ".join(sorted({name for name in known_names.values() if name})) or "none"
            text = f"no HyperNode has tierName {tier_name}; known names: {others}"
            return Reason(ReasonCode.TOPOLOGY_NOT_FOUND, text)
        highest = request.highest_tier
        allowed: Bool = forest.tier <= (forest.top - 1 if highest is None else highest)
        if allowed.any():
            return allowed
        known = ", ".join(map(str, sorted(set(forest.tier[1:].tolist()))))
        text = f"no HyperNode has tier {highest} or below; known tiers: {known}"
        return Reason(ReasonCode.TOPOLOGY_NOT_FOUND, text)
