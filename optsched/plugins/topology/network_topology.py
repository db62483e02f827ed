"""Hard and soft `networkTopology`: tasks of a gang or subgroup stay close in the network.

Mathematics: models/formulation/network_topology.md. Volcano:
`pkg/scheduler/plugins/network-topology-aware`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from optsched.cluster.decisions import Sense
from optsched.cluster.reasons import Reason, ReasonCode
from optsched.plugins.declaration import (
    Argument,
    Kind,
    LevelKind,
    Plugin,
    read_resource_weights,
    read_whole,
)
from optsched.plugins.extension_points import Greedy, Rule, Switch, Violation
from optsched.problem.formulation import Choices, candidates, widest
from optsched.problem.linear import Expression
from optsched.problem.shapes import NO_PART
from optsched.problem.topology import CLUSTER
from optsched.problem.topology_units import holders, units_of
from optsched.units import CPU, MEMORY, count_noun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from optsched.cluster.task import Task
    from optsched.cluster.topology import TopologyRequest
    from optsched.plugins.accounting import Ledger, Outcome
    from optsched.plugins.extension_points import AnyLevel, NodeModel, Room
    from optsched.plugins.verification.world import World
    from optsched.problem.arrays import F64, I64, Bool
    from optsched.problem.formulation import Choice, Formulation
    from optsched.problem.problem import Problem
    from optsched.problem.tiers import Tiers
    from optsched.problem.topology import Bound, Forest

    Pick = Callable[[Forest, Bound], I64 | None]

TOP = 100.0
LEVEL = "network topology"
MOST_CHOICES = 400
"""Maximum number of allowed domains, over all gang shapes, for a model with node classes."""

_SHOWN = 3


@dataclass(frozen=True)
class NetworkTopology(Rule):
    """Rule: all tasks of a gang with `networkTopology` are in one HyperNode of an allowed tier.

    Attributes
    ----------
    weight
        Weight of all scores of the plugin.
    resources
        Weights of resources in the scores of HyperNodes; other resources are ignored.
    packs_others
        True if tasks of gangs without a network topology also prefer HyperNodes in use.
    fading
        Weight of a tier relative to the next lower tier, in the score of tasks without a network
        topology.
    most_cleared
        Maximum number of domains in which evictions are tried for a gang.

    """

    name = "network-topology"
    hard_switch = Switch.HYPERNODE_GRADIENT

    weight: int = 1
    resources: Mapping[str, int] = field(default_factory=lambda: {CPU: 1, MEMORY: 1})
    packs_others: bool = True
    fading: float = 0.8
    most_cleared: int = 8

    # --- verify ----------------------------------------------------------------------------------

    def verify(self, world: World) -> Iterator[Violation]:
        """See `Rule`."""
        node_of = {p.task.key: p.node.name for p in (*world.placements, *world.nominations)}
        known = world.snapshot.node_by_name
        for key, placed in world.placed_of.items():
            gang = world.snapshot.gang_by_key[key]
            requests: list[tuple[TopologyRequest, Sequence[Task]]] = []
            if gang.topology is not None:
                requests.append((gang.topology, gang.tasks))
            tasks_of = gang.by_sub_group(gang.tasks)
            for group in gang.by_sub_group(placed):
                request = gang.sub_groups[group[0]].topology
                if request is not None:
                    requests.append((request, tasks_of[group]))
            for request, tasks in requests:
                nodes = {t.node for t in tasks if t.status.is_standing and t.node in known}
                nodes |= {node_of[t.key] for t in tasks if t.key in node_of}
                if request.is_hard and not _are_in_one_domain(world, request, nodes):
                    names = ", ".join(sorted(nodes)[:_SHOWN])
                    shown = f"{names} and others" if len(nodes) > _SHOWN else names
                    detail = f"tasks would be on {shown}, not in {request}"
                    yield Violation(self.name, f"gang {key}", detail)

    # --- greedy ----------------------------------------------------------------------------------

    def open(self, problem: Problem, ledger: Ledger) -> Greedy | None:
        """See `Rule`. The module `solver.greedy.topology` chooses the domains of gangs."""
        hard = any(bound.is_hard for bounds in problem.topology.bounds for bound in bounds.existing)
        return _DomainCheck(problem) if hard else None

    # --- evictions -------------------------------------------------------------------------------

    def find_eviction_domains(
        self, problem: Problem, gang: int
    ) -> tuple[Sequence[Bool], bool] | None:
        """Return masks (N,) of a gang's widest allowed domains, at most `most_cleared` masks.

        The largest domain comes first. The returned Boolean is True if the gang may use no further
        domain. Returns None if the gang may use all nodes.
        """
        topology = problem.topology
        bound = topology.bounds[int(problem.shape_of[gang])].whole
        if bound is None:
            return None
        forest = topology.forest(bound)
        domains = _find_widest_domains(forest, bound)
        if domains is None:
            return None
        size = forest.sums(np.ones(problem.num_nodes, np.int64))[domains]
        order = np.lexsort((forest.rank[domains], -size))[: self.most_cleared]
        masks = [forest.inside(d) for d in domains[order].tolist()]
        return masks, len(masks) == len(domains)

    # --- scores ----------------------------------------------------------------------------------

    def class_score(self, problem: Problem, task_class: int) -> F64 | None:
        """Return scores that make tasks without a network topology prefer HyperNodes in use.

        The score of node n is Σ_t fading^t · p[n, t] / Σ_t fading^t, where t = 0 is the lowest tier
        and p[n, t] is the relative usage (`packing`) of the domain of tier t that contains n. If no
        domain of tier t contains n, p[n, t] is 1, so nodes outside HyperNodes score highest
        (Volcano `batchNodeOrderFnForNormalPods`). The score is computed once per session, whereas
        Volcano updates it with every task.
        """
        forest = problem.topology.forests[0]
        if not self.packs_others or not self.weight or len(forest) == 1:
            return None
        if not problem.derived(_find_unconstrained_classes)[task_class]:
            return None
        packed = self.packing(problem, forest, problem.used, problem.classes.request[task_class])
        tiers = np.unique(forest.tier).tolist()
        weights = [self.fading**t for t in range(len(tiers))]
        by_domain = np.zeros(len(forest))
        for leaf in range(len(forest)):
            around = {int(forest.tier[d]): float(packed[d]) for d in forest.upwards(leaf)}
            scores = (w * around.get(tier, 1.0) for w, tier in zip(weights, tiers, strict=True))
            by_domain[leaf] = sum(scores) / sum(weights)
        return TOP * self.weight * by_domain[forest.leaf_of]

    def packing(self, problem: Problem, forest: Forest, used: I64, request: I64) -> F64:
        """Return the relative usage (D,) of each domain after the placement of a request (R,).

        The relative usage of domain d is Σ_r w[r] · (used[d, r] + request[r]) / allocatable[d, r],
        divided by Σ_r w[r], over the requested resources r. The result is 0 if the request does not
        fit.
        """
        counted = [
            (r, weight)
            for r, name in enumerate(problem.resources)
            if (weight := self.resources.get(name, 0)) and request[r]
        ]
        taken, offered = forest.sums(used), forest.sums(problem.allocatable)
        fits = np.ones(len(forest), np.bool_)
        total = np.zeros(len(forest))
        for r, weight in counted:
            after = taken[:, r] + request[r]
            fits &= after <= offered[:, r]
            total += weight * after / np.maximum(offered[:, r], 1)
        weights = sum(weight for _, weight in counted)
        return np.where(fits, total / max(weights, 1), 0.0)

    def domain_scores(self, problem: Problem, forest: Forest, used: I64, request: I64) -> F64:
        """Return the score (D,) of each domain for a gang or subgroup with a total request (R,)."""
        return TOP * self.weight * self.packing(problem, forest, used, request)

    def nearness(self, forest: Forest, anchor: int, share: F64) -> F64:
        """Return node scores (N,) for further tasks of a gang that has tasks in domain `anchor`.

        The score of a node decreases with the tier of the lowest domain that contains both the node
        and the anchor. `share` (N,) is the fraction of the gang's tasks on each node. If the anchor
        has child domains, the score of a node in the anchor increases with the fraction of the
        gang's tasks that are in the node's leaf domain.
        """
        lowest, top = int(forest.tier.min()), forest.top
        by_leaf = np.zeros(len(forest))
        for d in sorted(forest.upwards(anchor)):
            near = (top - int(forest.tier[d])) / (top - lowest) if top > lowest else 1.0
            by_leaf[d : forest.end[d]] = near
        inside = slice(anchor, int(forest.end[anchor]))
        if inside.stop > anchor + 1:
            by_leaf[inside] += np.bincount(forest.leaf_of, share, len(forest))[inside]
        return TOP * self.weight * by_leaf[forest.leaf_of]

    # --- encode ----------------------------------------------------------------------------------

    def distinguish_gangs(self, problem: Problem) -> Bool | None:
        """Return the mask (G,) of elastic gangs with a subgroup that has a topology request."""
        pairs = zip(problem.shapes.shapes, problem.topology.bounds, strict=True)
        apart = [not s.is_rigid and any(p is not None for p in b.parts) for s, b in pairs]
        if not any(apart):
            return None
        gangs: Bool = np.append(apart, False)[problem.shape_of]
        return gangs

    def choose_domains(self, form: Formulation) -> None:
        """Let gangs and subgroups with a hard topology choose among the widest allowed domains."""
        form.choices = _build_choices(form, _find_widest_domains)

    def constrain_nodes(self, nodes: NodeModel) -> None:
        """See `Rule`."""
        form, supplied = nodes.form, nodes.supplied
        if form is None:
            return
        self.choose_domains(form)
        form.choices.add_supply_rows(supplied)

    def find_tied_gangs(self, problem: Problem) -> Bool | None:
        """Return the mask (G,) of gangs with a hard topology.

        Returns None if all gang shapes together have at most `MOST_CHOICES` allowed domains.
        """
        topology = problem.topology
        choices = [
            [_find_widest_domains(topology.forest(bound), bound) for bound in bounds.existing]
            for bounds in topology.bounds
        ]
        numbers = [sum(len(c) for c in each if c is not None) for each in choices]
        if sum(numbers) <= MOST_CHOICES:
            return None
        gangs: Bool = np.append([n > 0 for n in numbers], False)[problem.shape_of]
        return gangs

    # --- levels ----------------------------------------------------------------------------------

    def levels(self, problem: Problem, tiers: Tiers) -> Sequence[AnyLevel]:
        """See `Rule`."""
        return [TierLevel()] if units_of(problem).bounds else []

    # --- explain ---------------------------------------------------------------------------------

    def explain(self, outcome: Outcome, gang: int) -> Reason | None:
        """See `Rule`. The reason is that the topology request of the gang allows no placement."""
        return outcome.problem.topology.bounds[int(outcome.problem.shape_of[gang])].problem

    def explain_rooms(self, outcome: Outcome, gang: int, rooms: Sequence[Room]) -> Reason | None:
        """See `CapacityExplanation`. The reason is that the pods fit into no allowed domain."""
        problem = outcome.problem
        bound = problem.topology.bounds[int(problem.shape_of[gang])].whole
        if bound is None or not bound.is_hard:
            return None
        forest = problem.topology.forest(bound)
        domains = candidates(forest, bound)
        fitting = sum(
            (np.minimum(forest.sums(np.minimum(r.counts, r.number)), r.number) for r in rooms),
            np.zeros(len(forest), np.int64),
        )
        number = sum(room.number for room in rooms)
        if not len(domains) or (fitting[domains] >= number).any():
            return None
        best = int(domains[np.lexsort((forest.rank[domains], -fitting[domains]))[0]])
        pods = count_noun(number, "pod") if number == 1 else f"all {count_noun(number, 'pod')}"
        kind = f"value of {forest.label}" if forest.label else "HyperNode"
        text = f"it needs {bound.request}; none has room for {pods}: the {kind} with the most, "
        text += f"{forest.names[best]}, has room for {int(fitting[best])}"
        return Reason(ReasonCode.TOPOLOGY, text)


# --- domain objects ------------------------------------------------------------------------------


def _are_in_one_domain(world: World, request: TopologyRequest, nodes: set[str]) -> bool:
    """Return whether some domain that a topology request allows contains all `nodes`."""
    if request.label:
        values = {world.snapshot.node_by_name[n].labels.get(request.label) for n in nodes}
        return len(values) == 1 and None not in values
    topology = world.snapshot.topology
    highest = request.highest_tier
    if topology.hypernodes and highest is not None and highest >= topology.top_tier:
        return not request.highest_tier_name
    fitting = [h for h in topology.hypernodes if nodes <= topology.covered[h.name]]
    if request.highest_tier_name:
        return any(h.tier_name == request.highest_tier_name for h in fitting)
    return any(highest is None or h.tier <= highest for h in fitting)


# --- arrays --------------------------------------------------------------------------------------


@dataclass(eq=False)
class _DomainCheck(Greedy):
    """Checks that the placed tasks of each gang and subgroup are in one allowed domain."""

    _problem: Problem
    _count: dict[tuple[int, int], Counter[int]] = field(default_factory=dict, init=False)

    def record_tasks(self, gang: int, entry: int, nodes: I64, counts: I64) -> None:
        count = self._count.setdefault((gang, entry), Counter())
        count.update(dict(zip(nodes.tolist(), counts.tolist(), strict=True)))

    def holds(self, gang: int) -> bool:
        number = int(self._problem.shape_of[gang])
        bounds = self._problem.topology.bounds[number]
        entries = self._problem.shapes.shapes[number].entries
        nodes = [
            np.array([n for n, count in self._count.get((gang, e), {}).items() if count], np.int64)
            for e in range(len(entries))
        ]
        of_part = zip(bounds.parts, range(len(bounds.parts)), strict=True)
        return self._is_within_domain(bounds.whole, nodes) and all(
            self._is_within_domain(
                bound, [n for n, e in zip(nodes, entries, strict=True) if e.part == p]
            )
            for bound, p in of_part
        )

    def _is_within_domain(self, bound: Bound | None, nodes: Sequence[I64]) -> bool:
        if bound is None or not bound.is_hard:
            return True
        forest = self._problem.topology.forest(bound)
        domain = forest.holder(np.concatenate([np.zeros(0, np.int64), *nodes]))
        if domain < 0:
            return True
        return bool(bound.allowed[domain if bound.held < 0 else forest.meet(domain, bound.held)])


def _find_unconstrained_classes(problem: Problem) -> Bool:
    """Return the mask (C,) of classes that have a task in a gang without a network topology."""
    has_request = np.array([bool(b.existing) for b in problem.topology.bounds], np.bool_)
    free = np.zeros(len(problem.classes.shapes), np.bool_)
    shape = problem.shape_of[problem.gang_of]
    has_shape = shape >= 0
    free[problem.task_class[has_shape][~has_request[shape[has_shape]]]] = True
    return free


def _find_widest_domains(forest: Forest, bound: Bound) -> I64 | None:
    """Return the widest domains that `bound` allows, or None if `bound` allows every node."""
    domains = widest(forest, candidates(forest, bound))
    is_free = not bound.is_hard or domains.tolist() == [CLUSTER]
    return None if is_free else domains


def _build_choices(form: Formulation, pick: Pick) -> Choices:
    """Return the choices of domains for gang classes and their subgroups.

    `pick` returns the domains to choose from. A subgroup chooses among domains that its gang may
    use.
    """
    topology, choices = form.problem.topology, Choices(form)
    for h, shape in enumerate(form.gangs.shape_of.tolist()):
        bounds = topology.bounds[shape]
        whole: Choice | None = None
        if bounds.whole is not None:
            domains = pick(topology.forest(bounds.whole), bounds.whole)
            if domains is not None:
                whole = choices.choose(h, NO_PART, bounds.whole, domains)
        parts: list[Choice | None] = []
        for p, bound in enumerate(bounds.parts):
            part: Choice | None = None
            if bound is not None:
                forest, within = topology.forest(bound), bound
                if whole is not None:
                    reach = np.zeros(len(forest), np.bool_)
                    for d in whole.domains.tolist():
                        reach[d : forest.end[d]] = True
                    within = replace(bound, allowed=bound.allowed & reach)
                domains = pick(forest, within)
                part = None if domains is None else choices.choose(h, p, bound, domains)
            parts.append(part)
        if whole is not None or any(part is not None for part in parts):
            choices.add_class(h, whole, parts)
    return choices


# --- the level -----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TierLevel:
    """A level that minimises the sum of the tiers that gangs and subgroups span.

    Only gangs and subgroups with a topology request count. A gang spans the tier of the lowest
    domain that contains all its running and placed tasks. The tier of the whole cluster is the
    highest tier plus 1. A gang or subgroup without running or placed tasks counts with its lowest
    allowed tier.
    """

    name: str = LEVEL
    unit: str = "tiers"
    sense: Sense = Sense.MIN

    def value(self, outcome: Outcome) -> int:
        """See `Level`."""
        problem = outcome.problem
        bounds = units_of(problem).bounds
        held = holders(problem, outcome.decisions.node_of).tolist()
        pairs = zip(bounds, held, strict=True)
        return sum(
            _find_lowest_tier(problem, b) if d < 0 else int(problem.topology.forest(b).tier[d])
            for b, d in pairs
        )

    def ideal(self, problem: Problem) -> int:
        """See `Level`. Returns the level's value if each gang spans its lowest allowed tier."""
        return sum(_find_lowest_tier(problem, bound) for bound in units_of(problem).bounds)

    def encode_places(self, form: Formulation, supplied: I64) -> Expression:
        """Return ideal + Σ (tier[d] − least[h]) · v[h, d] over the allowed domains d.

        v[h, d] is the number of gangs of class h, or of their subgroups, that use domain d.
        least[h] is the lowest tier that class h allows. The method `ideal` returns the constant.
        """
        problem = form.problem
        form.choices = _build_choices(form, candidates)
        form.choices.add_supply_rows(supplied)
        variables, factors = [], []
        for choice in form.choices.all:
            forest = problem.topology.forest(choice.bound)
            variables.append(choice.variables)
            factors.append(forest.tier[choice.domains] - _find_lowest_tier(problem, choice.bound))
        none = np.zeros(0, np.int64)
        return Expression.of(
            np.concatenate([none, *variables]),
            np.concatenate([none, *factors]),
            self.ideal(problem),
        )


def _find_lowest_tier(problem: Problem, bound: Bound) -> int:
    forest = problem.topology.forest(bound)
    domains = candidates(forest, bound)
    if len(domains):
        return int(forest.tier[domains].min())
    return int(forest.tier[bound.held]) if bound.held >= 0 else 0


PLUGIN = Plugin(
    "network-topology-aware",
    "gangs stay together in the network",
    (
        Argument("weight", Kind.WHOLE, 1, "weight of all scores of the plugin"),
        Argument("hypernode.binpack.cpu", Kind.WHOLE, 1, "weight of CPU in scores of HyperNodes"),
        Argument(
            "hypernode.binpack.memory", Kind.WHOLE, 1, "weight of memory in scores of HyperNodes"
        ),
        Argument(
            "hypernode.binpack.resources",
            Kind.NAMES,
            "",
            "additional resources in the scores of HyperNodes",
        ),
        Argument("hypernode.binpack.resources.*", Kind.WHOLE, 1, "weight of a further resource"),
        Argument(
            "hypernode.binpack.normal-pod.enable",
            Kind.SWITCH,
            True,
            "pods without a network topology also prefer HyperNodes in use",
        ),
        Argument(
            "hypernode.binpack.normal-pod.fading",
            Kind.NUMBER,
            0.8,
            "factor that multiplies the weight of HyperNodes in use at each higher tier",
        ),
        Argument(
            "hypernode.gradient.evict.max-hypernodes",
            Kind.WHOLE,
            8,
            "maximum number of HyperNodes, largest first, in which evictions are tried for a gang",
        ),
    ),
    lambda arguments: (
        NetworkTopology(
            weight=read_whole(arguments, "weight", 1),
            resources=read_resource_weights(arguments, "hypernode.binpack"),
            packs_others=bool(arguments.get("hypernode.binpack.normal-pod.enable", True)),
            fading=float(arguments.get("hypernode.binpack.normal-pod.fading", 0.8)),
            most_cleared=read_whole(arguments, "hypernode.gradient.evict.max-hypernodes", 8),
        ),
    ),
    levels=(
        LevelKind(
            "topology",
            "network tiers that gangs with a topology request span",
            70,
            ("network-topology",),
        ),
    ),
    aliases=("networktopologyaware",),
)
